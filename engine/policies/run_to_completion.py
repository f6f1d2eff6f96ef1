"""Emulation: whoever came first is served to the end, together with those who were waiting when that began.

The open runtime of Breeze TTS 2 serves one request, and answers a second with HTTP 409; batches, and waiting instead of
a refusal, are added here. So is that a chunk that is ready for the codec goes before everything, for the reason that
newest_first gives: it makes the baseline stronger.
"""

from engine.core import Stage
from engine.policies.ordered import Ordered

POLICY = Ordered(
    "run-to-completion",
    "Breeze TTS 2's open runtime serves one request at a time",
    lambda candidate, _: (candidate.stage is not Stage.CODEC, candidate.stream.submitted_at),
)
