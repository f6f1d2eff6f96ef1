"""Says when each packet is due, counted from an anchor. It reads no clock and does not know what a packet holds."""

from __future__ import annotations

PACKET_SECONDS = 0.02
MAX_BEHIND = 3
"""Packets: a longer stall moves the anchor. A burst of more would only sit in the listener's jitter buffer, and its
target, once raised, stays raised for seconds."""


class Pace:
    """One packet every 20 ms from the first pull on; a sender that fell behind catches up by at most MAX_BEHIND."""

    def __init__(self) -> None:
        self._due_at: float | None = None
        self.stalls = 0
        """How often the anchor was moved."""

    def next_due(self, now: float) -> float:
        """The instant at which the packet that is pulled at `now` is to leave; in the past where it is overdue."""
        due_at = now if self._due_at is None else self._due_at + PACKET_SECONDS
        if now - due_at > MAX_BEHIND * PACKET_SECONDS:
            self.stalls += 1
            due_at = now
        self._due_at = due_at
        return due_at

    def behind(self, instant: float) -> float:
        """Seconds by which the packet pulled last is overdue at `instant`: those after it follow so much sooner."""
        return 0.0 if self._due_at is None else max(0.0, instant - self._due_at)
