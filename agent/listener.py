"""What one listener's own statistics say of the way to their ear. It does not know what is said.

Reports come over the data channel, once a second or never; what they leave out is what is usual.
"""

from __future__ import annotations

from math import isfinite

from agent.heard import USUAL_BUFFER_SECONDS, BufferTotals, heard_samples
from agent.protocol import Stats

MOST_SECONDS = 1.0
"""Of jitter and of a round trip: what is believed of a client's word."""


class ListenerReports:
    """The latest of one call."""

    def __init__(self) -> None:
        self.jitter = 0.0
        """Of the packets' arrival, in seconds."""
        self.round_trip = 0.0
        self.buffer = USUAL_BUFFER_SECONDS
        """What their jitter buffer holds, in seconds."""
        self._totals = BufferTotals()

    def take(self, stats: Stats) -> None:
        """One report."""
        self.jitter, self.round_trip = believed(stats.jitter), believed(stats.round_trip_time)
        totals = BufferTotals(stats.jitter_buffer_delay or 0.0, stats.jitter_buffer_emitted_count or 0)
        self.buffer, self._totals = totals.buffer_seconds(self._totals), totals

    def heard_samples(self, sent_samples: int, sample_rate: int) -> int:
        """Of the samples of an utterance that were sent up to now, those that were heard."""
        return heard_samples(sent_samples, sample_rate, self.buffer, self.round_trip)


def believed(seconds: float | None) -> float:
    """A client's word, within what can be."""
    return min(max(seconds, 0.0), MOST_SECONDS) if seconds is not None and isfinite(seconds) else 0.0
