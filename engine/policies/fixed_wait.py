"""Emulation: the codec takes chunks by playback deadline, and waits a fixed 4 ms for batch-mates."""

from engine.core import Stage
from engine.policies.ordered import Ordered
from engine.policy import Candidate

WAIT = 0.004
"""Seconds."""


def key(candidate: Candidate, now: float) -> tuple[float, ...]:
    stream = candidate.stream
    codec = candidate.stage is Stage.CODEC
    return (not stream.starting, not codec, stream.playback.deadline(now) if codec else stream.submitted_at)


POLICY = Ordered("fixed-wait", "SGLang-Omni's codec queue: by deadline, max_batch_wait_ms", key, wait=WAIT)
