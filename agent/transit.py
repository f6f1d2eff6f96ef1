"""Learns when packets come: the least time on the way of late, and how much longer others take.

It does not know what a packet holds, and reads no clock.
"""

from __future__ import annotations

import math

from agent.lateness import Lateness

WINDOW = 2.0
"""Seconds for which the fastest packet is remembered, at least: long enough to hold one that was not held up, short
enough to follow a sender whose clock goes slower than ours, or a route that became longer."""
MIN_TARGET = 0.04
"""Two packets: one that was overtaken by its successor is not taken for lost."""
MAX_TARGET = 0.12
"""Beyond it a listener who waits is worse off than one who guesses."""
GRACE = 0.01
"""For the sleep of our own event loop."""
QUANTILE, DECAY, MEMORY = 0.98, 0.99, 100
"""Of the lateness that is waited for: one packet of two seconds may be later, two may not. That is far into the tail,
because it costs nothing as long as no packet is missing."""


class Transit:
    """Offsets between our clock and the sender's: their minimum over WINDOW to 2 * WINDOW, and a quantile above it."""

    def __init__(self) -> None:
        self._least = self._least_before = math.inf
        self._turns_at = -math.inf
        self._lateness = Lateness(QUANTILE, DECAY, MEMORY)

    def observe(self, sent: float, now: float) -> None:
        """A packet that was complete at `sent` on the sender's clock (seconds, from anywhere) came at `now`."""
        offset = now - sent
        if now >= self._turns_at:
            stale = now >= self._turns_at + WINDOW
            self._least_before = math.inf if stale else self._least
            self._least, self._turns_at = offset, now + WINDOW
        self._least = min(self._least, offset)
        self._lateness.observe(offset - self._base)

    def expected_at(self, sent: float) -> float:
        """The instant at which a packet complete at `sent` comes, if nothing holds it up; needs one observation."""
        return sent + self._base

    @property
    def target(self) -> float:
        """Seconds beyond the expected instant for which a missing packet is worth waiting."""
        return min(MAX_TARGET, max(MIN_TARGET, self._lateness.value + GRACE))

    @property
    def _base(self) -> float:
        return min(self._least, self._least_before)
