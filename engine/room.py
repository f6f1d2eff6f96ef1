"""Says whether one more stream can be kept playing, and else how long that will take. It does not know streams.

A device has room while all that generate, at the pace of their listeners and in the largest batches allowed, leave it
some time. What streams have ahead of their listeners is not counted, it is their buffer against what was not foreseen:
chunks are taken to be as small as those of streams that have just begun.
"""

from __future__ import annotations

from engine.core import Limits, RequestStats, Stage
from engine.predictor import Predictor

MOST = 0.85
"""Share of the device's time that streams may take: the rest is for first audio, which is made in small steps, and for
chunks that are sent in part."""
TOKENS = 64
"""Of a usual prompt."""
FIRST_HOLDING = 5.0
"""Seconds that a reply is taken to hold its place, and to speak, while none has ended yet."""
WEIGHT = 0.1
"""Of the newest value in a running mean."""
OPENING = frozenset({Stage.TEXT, Stage.PREFILL})


class Room:
    """What streams take of the device, from the Predictor's costs and the streams that have ended."""

    def __init__(self, predictor: Predictor, limits: Limits, frame_seconds: float) -> None:
        self._predictor = predictor
        self._limits = limits
        self._frame_seconds = frame_seconds
        self._holding = FIRST_HOLDING
        opening = sum(predictor.mean(stage, 1, TOKENS) for stage in OPENING)
        self._opening = opening / FIRST_HOLDING
        """Seconds of device time for a prompt, by second of audio."""

    def share(self, sequences: int) -> float:
        """Share of the device's time that so many backbone sequences take; above 1 is more than it has."""
        frame = sum(self._each(stage, sequences) for stage in (Stage.DECODE, Stage.DEPTH, Stage.CODEC))
        return sequences * (frame / self._frame_seconds + self._opening)

    def fits(self, sequences: int) -> bool:
        """Whether so many can be kept playing."""
        return self.share(sequences) <= MOST

    def wait(self, ahead: int, active: int) -> float:
        """Predicted seconds until one more can begin: the replies that are active end one after the other, and `ahead`
        others begin first."""
        return (ahead + 1) * self._holding / max(1, active)

    def free(self, held: float) -> None:
        """A reply is over, whose place was taken for so many seconds."""
        self._holding += WEIGHT * (held - self._holding)

    def learn(self, stats: RequestStats) -> None:
        """A stream ended."""
        if stats.audio_seconds:
            opening = sum(stats.stage_seconds[stage] for stage in OPENING) / stats.audio_seconds
            self._opening += WEIGHT * (opening - self._opening)

    def _each(self, stage: Stage, sequences: int) -> float:
        """Seconds of a step for each of its rows."""
        rows = min(sequences, self._limits.max_batch[stage])
        return self._predictor.mean(stage, rows) / rows
