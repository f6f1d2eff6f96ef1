"""Emulation: prompts first, then streams that have less than a fixed 1.0 s to play before their last chunk begins, or
nothing at all yet, then the others; by arrival within each, but for a chunk that is ready for the codec. It goes before
frames, for the reason that newest_first gives: this makes the baseline stronger.

The rule is that of VoxServe's OnlineScheduler. Two things of it are not emulated: it takes one new prompt at a time,
and it runs the codec only while a stream that has a chunk ready is pressing.
"""

from engine.core import Stage
from engine.policies.ordered import Ordered
from engine.policy import Candidate

MARGIN = 1.0
"""Seconds."""


def key(candidate: Candidate, now: float) -> tuple[float, ...]:
    stream = candidate.stream
    prompt = candidate.stage in (Stage.TEXT, Stage.PREFILL)
    last_begins_at = stream.playback.deadline(now) - stream.last_chunk_seconds
    pressing = not stream.sent or now >= last_begins_at - MARGIN
    return (not prompt, not pressing, candidate.stage is not Stage.CODEC, stream.submitted_at)


POLICY = Ordered("urgency-margin", "VoxServe's vox_serve/scheduler/online.py: a buffer of 1.0 s", key)
