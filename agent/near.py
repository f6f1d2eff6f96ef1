"""Tells the user, who is near the microphone, from somebody behind: by how loud they are. It does not know the words.

A voice detector takes a television, or a neighbour in a cafe, for speech, which it is. But who talks into a microphone
is much louder than who does not, and how loud that is, a call soon knows. Who has moved away is heard again as soon as
nobody has been louder for some seconds.
"""

from __future__ import annotations

from collections import deque
from math import inf, log10

import numpy as np
from numpy.typing import NDArray

SURE = 0.8
"""Speech by which levels are learnt; a probability."""
BEHIND_DB = 10.0
"""Below the user's level is somebody else."""
HOLD_SECONDS = 0.3
"""A frame is as loud as the loudest of so long before: soft sounds belong to the word that they are in."""
RISE, FALL = 0.03, 0.02
"""A frame's share in the level, where it is louder and where it is softer. A bump against the microphone raises it by
less than BEHIND_DB: it is held for 0.3 s, and counts for so many frames."""
FADE_DB = 0.7
"""A second of speech from behind, for which the level falls: a user who has moved away is heard again."""


class Near:
    """One microphone's. `weigh` takes every frame, in order."""

    def __init__(self, frame_seconds: float) -> None:
        self.level_db = -inf
        """The user's; -inf while nobody has spoken."""
        self._frame_seconds = frame_seconds
        self._recent: deque[float] = deque(maxlen=max(1, round(HOLD_SECONDS / frame_seconds)))

    def weigh(self, probability: float, frame_db: float, echo: float) -> float:
        """How likely it is that the user speaks, where this is how likely anybody does: `frame_db` is the frame's RMS
        in dB of full scale; `echo`, how likely it is the agent's own, from which nothing is learnt."""
        self._recent.append(frame_db)
        loud_db = max(self._recent)
        behind = loud_db < self.level_db - BEHIND_DB
        if probability >= SURE and echo < 1.0 - SURE:
            self._learn(loud_db, behind)
        return 0.0 if behind else probability

    def _learn(self, loud_db: float, behind: bool) -> None:
        if self.level_db == -inf:
            self.level_db = loud_db
        elif behind:
            self.level_db -= FADE_DB * self._frame_seconds
        else:
            self.level_db += (RISE if loud_db > self.level_db else FALL) * (loud_db - self.level_db)


def decibels(samples: NDArray[np.int16]) -> float:
    """RMS in dB of full scale; -inf for digital silence."""
    power = float(np.mean(np.square(samples, dtype=np.float64))) / 32768.0**2
    return 10.0 * log10(power) if power > 0.0 else -inf
