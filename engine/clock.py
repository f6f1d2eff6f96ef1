"""The one place that reads time. It does not know what the time is used for."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds on a clock that never goes back."""

    def now(self) -> float: ...


class MonotonicClock:
    """CLOCK_MONOTONIC: one clock for all processes of a machine, so instants may cross a pipe."""

    def now(self) -> float:
        return time.monotonic()
