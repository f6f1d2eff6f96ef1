"""Hears, while a call is going on, when the agent becomes audible and when it was last. It does not know what is said.

What is heard is judged on frames as they come, before any buffer of a listener's. The figures of a recording are not
made here: they are measured later, on what a listener's buffer makes of the packets.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

AUDIBLE_DB = -50.0
"""Of full scale: 0.003, as for a browser (agent/browser.py)."""
ABOVE_NOISE_DB = 10.0
NOISE_DB = -45.0
"""Nothing louder is taken for comfort noise; an agent that speaks from its first packet on is not, either."""
NOISE_FRAMES = 150
"""3 s, in which every speaker pauses for a frame."""
GAP = 0.4
"""Seconds: a longer silence ends what is one stretch of speech; pauses between words are shorter."""
SILENCE_DB = -120.0


class Ear:
    """Takes the level of every frame of 20 ms, in order. All instants are when a frame's last sample came.

    Audible is what is louder than AUDIBLE_DB, and by ABOVE_NOISE_DB louder than the quietest frame of the last 3 s, so
    that comfort noise is not; and for two frames in a row, so that a click is not.
    """

    def __init__(self) -> None:
        self.began_at: float | None = None
        """When the last stretch of speech began."""
        self.last_at: float | None = None
        """When it was audible last."""
        self._levels: deque[float] = deque(maxlen=NOISE_FRAMES)
        self._first_at: float | None = None
        """Of the loud frames in a row."""
        self._loud_at: float | None = None
        """Of the last loud frame: an agent that sends nothing while it is silent ends a row, too."""

    def push(self, level_db: float, at: float) -> None:
        """Takes a frame's RMS, in dB of full scale."""
        self._levels.append(level_db)
        if level_db <= max(AUDIBLE_DB, min(NOISE_DB, *self._levels) + ABOVE_NOISE_DB):
            self._first_at = None
            return
        if self._first_at is None or self._loud_at is None or at - self._loud_at > GAP:
            self._first_at = at
        else:
            if self.last_at is None or self._first_at - self.last_at > GAP:
                self.began_at = self._first_at
            self.last_at = at
        self._loud_at = at


def level_db(samples: NDArray[np.int16]) -> float:
    """Their RMS in dB of full scale, at least SILENCE_DB."""
    power = float(np.mean((samples / 32768.0) ** 2))
    return max(SILENCE_DB, 10 * float(np.log10(power))) if power > 0 else SILENCE_DB
