"""Emulation: newest-first with chunks of 16 frames from the first on, however long their codec step takes."""

from engine.policies import newest_first
from engine.policies.ordered import Ordered

POLICY = Ordered(
    "fixed-chunks",
    "vLLM-Omni's first vocoders: one chunk size, 25 frames; 16 here",
    newest_first.POLICY.key,
    first_chunk=16,
)
