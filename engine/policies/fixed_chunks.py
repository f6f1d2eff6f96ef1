"""Emulation: newest-first with chunks of 16 frames from the first on."""

from engine.policies import newest_first
from engine.policies.ordered import Ordered

POLICY = Ordered(
    "fixed-chunks",
    "one chunk size for a whole stream, as in the first streaming vocoders of vLLM-Omni (25 frames); 16 here",
    newest_first.POLICY.key,
    first_chunk=16,
)
