"""Says when a listener runs out of audio, by his own clock as far as he tells it. It does not know what makes audio."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

PACKET = 0.02
"""Seconds: who stands nearer to a position has come there. Listeners count packets, or samples at another rate."""
AHEAD = 1.0
"""Seconds by which a listener's word may come from the future: clocks are the same machine's."""
PATIENCE = 10.0
"""Seconds after which a listener who stands still, and said so, is no longer waited for by others."""
MAX_JITTER = 0.2
"""Seconds of delivery jitter that are allowed for, however much a listener reports: an allowance is urgency."""


@dataclass(slots=True)
class PlaybackClock:
    """Where one listener stands in all that one reply says; positions are seconds of audio since its beginning.

    Without word from the listener it is taken to run from the first delivery on, and to stand still only where there
    is nothing to play. Playhead events put it right.
    """

    origin: float | None = None
    """While it runs: the instant at which position 0 was played, had there been no pause. None: nothing delivered."""
    still: float | None = None
    """The position at which it stands still."""
    at: float = -inf
    """When the listener last said where it stands."""
    jitter: float = 0.0
    began: float = -inf
    """The first delivery."""

    @property
    def known(self) -> bool:
        """Whether the listener ever said where it stands."""
        return self.at > -inf

    def move(self, position: float, at: float, running: bool, jitter: float, now: float) -> None:
        """The listener says where it stands. Older news than the last, what is from before the first delivery or from
        the future, and what is no position, is ignored; a jitter that is no number above 0 is none."""
        if not (max(self.at, self.began) <= at <= now + AHEAD and position >= 0):  # also false for NaN
            return
        self.at, self.jitter = at, min(jitter, MAX_JITTER) if jitter > 0 else 0.0
        self.still = None if running else position
        if running:
            self.origin = at - position

    def deliver(self, position: float, now: float) -> None:
        """Audio from `position` on arrives; a clock that had already come there has been waiting for it."""
        if self.began == -inf:
            self.began = now
        if self.still is None and (self.origin is None or self.origin + position < now):
            self.origin = now - position

    def pauses_before(self, position: float) -> bool:
        """Whether it stands still before that position."""
        return self.still is not None and position - self.still > PACKET

    def reaches(self, position: float, now: float) -> float:
        """The instant at which the listener is at `position`: the deadline of what comes next. It moves along with
        `now` while the clock stands still; whoever stands still at `position` itself has starved since saying so."""
        if self.still is not None:
            return now + position - self.still if self.pauses_before(position) else min(now, self.at)
        return now if self.origin is None else self.origin + position

    def nears(self, position: float, lead: float) -> float:
        """The instant at which the listener is `lead` before `position`; infinite if it stands still farther away, long
        past if it never said where it is."""
        if not self.known:
            return -inf
        if self.still is not None:
            return inf if position - self.still > lead else -inf
        return -inf if self.origin is None else self.origin + position - lead


@dataclass(slots=True)
class Playback:
    """One utterance's place on its listener's clock: what was delivered of it begins at `offset`."""

    clock: PlaybackClock = field(default_factory=PlaybackClock)
    offset: float = 0.0
    delivered: float = 0.0
    """Seconds of audio."""

    @property
    def end(self) -> float:
        return self.offset + self.delivered

    def heard_at(self, now: float) -> float:
        """When its last word is heard, if nothing changes. Who stands still before its end is waited for so long."""
        if self.clock.pauses_before(self.end):
            return self.clock.at + PATIENCE
        return self.clock.reaches(self.end, now)

    def deliver(self, seconds: float, now: float) -> None:
        self.clock.deliver(self.end, now)
        self.delivered += seconds

    def deadline(self, now: float) -> float:
        """When all that was delivered has been played."""
        return self.clock.reaches(self.end, now)

    def left(self, now: float) -> float:
        """Seconds in which the next chunk has to be out, to arrive in time."""
        clock, end = self.clock, self.offset + self.delivered
        if clock.still is None and clock.origin is not None:  # PlaybackClock.reaches, without its call
            return clock.origin + end - clock.jitter - now
        return clock.reaches(end, now) - clock.jitter - now

    def due_at(self, max_lead: float) -> float:
        """When less than max_lead seconds of it are left to play, for a listener who says where it stands."""
        clock, end = self.clock, self.offset + self.delivered
        if clock.still is None and clock.origin is not None and clock.at > -inf:  # nears, without its call
            return clock.origin + end - max_lead
        return clock.nears(end, max_lead)
