"""Emulation: whoever came first is served to the end, together with those who were waiting when that began."""

from engine.core import Stage
from engine.policies.ordered import Ordered

POLICY = Ordered(
    "run-to-completion",
    "the open runtime of Breeze TTS 2, which serves one request and answers a second with HTTP 409; with batches here",
    lambda candidate, _: (candidate.stage is not Stage.CODEC, candidate.stream.submitted_at),
)
