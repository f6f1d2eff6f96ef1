"""Estimates how late deliveries come: a quantile that forgets. It knows neither what is delivered nor the time."""

from __future__ import annotations

from collections import deque


class Lateness:
    """A quantile of the last observations, in seconds, in which an older one weighs less.

    Every new observation multiplies the weight of those before it by `decay`: at 0.95 the last twenty carry two
    thirds of the weight, a second or two of progressive chunks.
    """

    def __init__(self, quantile: float = 0.95, decay: float = 0.95, memory: int = 64) -> None:
        self._quantile, self._decay = quantile, decay
        self._seen: deque[float] = deque(maxlen=memory)

    def observe(self, seconds: float) -> None:
        """One delivery came `seconds` after its predicted instant; negative is early."""
        self._seen.appendleft(seconds)

    @property
    def value(self) -> float:
        """The smallest lateness that at least `quantile` of the weight does not exceed; 0 when nothing came late."""
        weighted = sorted((seconds, self._decay**age) for age, seconds in enumerate(self._seen))
        wanted = self._quantile * sum(weight for _, weight in weighted)
        below = 0.0
        for seconds, weight in weighted:
            below += weight
            if below >= wanted:
                return max(0.0, seconds)
        return 0.0
