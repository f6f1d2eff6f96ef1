"""Says whether one more reply can be kept playing, and else how long that will take. It does not know streams.

A device has room while all who have a place on it, at the pace of their listeners and in the largest batches allowed,
leave it some time. What streams have ahead of their listeners is not counted, it is their buffer against what was not
foreseen: chunks are taken to be as small as those of streams that have just begun. One caller with guidance makes
backbone and depth decoder run two sequences for each caller, since all share their steps; the codec runs one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from engine.core import Limits, RequestStats, Stage, num_sequences
from engine.playback import Playback
from engine.predictor import Predictor

MOST = 0.95
"""Share of the device's time that replies may take. tests/test_contest.py holds that no one who was admitted has a gap
with callers for 1.3 times what the simulated H200 can do."""
GRACE = 1.0
"""Seconds of silence after which a reply is over: what continues it earlier finds its place."""
TOKENS = 64
"""Of a usual prompt."""
FIRST_HOLDING = 5.0
"""Seconds that a reply is taken to hold its place, and to speak, while none has ended yet."""
MAX_HOLDING = 60.0
"""Seconds that one reply counts for at most in the mean: a listener who was away for an hour says nothing of others."""
WEIGHT = 0.1
"""Of the newest value in a running mean."""
OPENING = frozenset({Stage.TEXT, Stage.PREFILL})


@dataclass(slots=True, eq=False)
class Place:
    """What one reply takes of the device, from its first utterance's beginning until its last was heard."""

    rows: int
    """Backbone sequences: two with guidance."""
    since: float
    users: int = 1
    """Utterances of the reply that are made, or wait for the one before them."""
    playback: Playback | None = None
    """Of the last one, when there is no user any more."""

    def ends_at(self, now: float) -> float:
        """When it is free, if nothing more is said; infinite while it is being made."""
        return inf if self.playback is None else self.playback.heard_at(now) + GRACE


class Room:
    """Who has a place, and what that takes of the device by the Predictor's costs and the streams that have ended."""

    def __init__(self, predictor: Predictor, limits: Limits, frame_seconds: float) -> None:
        self._predictor = predictor
        self._limits = limits
        self._frame_seconds = frame_seconds
        self._places: dict[Place, None] = {}
        self._guided = 0
        """Places with guidance."""
        self._next_at = inf
        """No place is free before that, unless a listener moves: kept, since a plan has no time to look at each."""
        self._holding = FIRST_HOLDING
        self._opening = sum(predictor.mean(stage, 1, TOKENS) for stage in OPENING)
        """Seconds of device time for a prompt."""
        self._speaking = FIRST_HOLDING
        """Seconds of audio of an utterance."""

    # Places

    def take(self, rows: int, now: float) -> Place:
        place = Place(rows, now)
        self._places[place] = None
        self._guided += rows > 1
        return place

    def share_with(self, place: Place, followers: int) -> None:
        """So many utterances continue the one that was made, in its place."""
        place.users += followers
        place.playback = None

    def has(self, place: Place | None) -> bool:
        """Whether this place is still one."""
        return place in self._places

    def leave(self, place: Place, playback: Playback | None, now: float) -> None:
        """An utterance in that place is made, and is heard as `playback` says: if it was the last of its reply, the
        place is kept until then, for a listener who says where he stands. None: it was cancelled."""
        place.users -= 1
        if place.users:
            return
        place.playback = playback
        if playback is None or not playback.clock.known:
            self._free(place, now)
        else:
            self._next_at = min(self._next_at, place.ends_at(now))

    def moved(self) -> None:
        """A listener says anew where he stands in what was made: his place may be free sooner."""
        self._next_at = -inf

    def expire(self, now: float) -> None:
        """Free the places of those whose reply was heard."""
        if now < self._next_at:
            return
        ends = [(place.ends_at(now), place) for place in self._places if place.playback is not None]
        for at, place in ends:
            if at <= now:
                self._free(place, at - GRACE)
        self._next_at = min([at for at, _ in ends if at > now], default=inf)

    def next_end(self, now: float) -> float:
        """When the next place is free if nothing more is said; infinite if none is."""
        return min((place.ends_at(now) for place in self._places), default=inf)

    def _free(self, place: Place, now: float) -> None:
        del self._places[place]
        self._guided -= place.rows > 1
        held = min(max(0.0, now - place.since), MAX_HOLDING)
        self._holding += WEIGHT * (held - self._holding)

    def silence(self, place: Place | None, now: float) -> None:
        """Nobody listens any more to the reply that was made in that place: it is free."""
        if place is not None and place.playback is not None and self.has(place):
            self._free(place, now)

    # Room

    def fits(self, more: Sequence[int]) -> bool:
        """Whether callers with so many backbone sequences each can be kept playing too. Alone, anybody may begin."""
        return not self._places or self.share(len(self._places) + len(more), self._any_guided(more)) <= MOST

    def wait(self, more: Sequence[int]) -> float:
        """Predicted seconds until such callers fit, as replies end one after the other."""
        replies, rows = max(1, len(self._places)), sum(place.rows for place in self._places)
        late = len(self._places) + len(more) - self._most(self._any_guided(more))
        lacking = rows + sum(more) - self._limits.num_slots
        ends = max(1, late, ceil(lacking * replies / max(1, rows)))
        return ends * self._holding / replies

    def share(self, callers: int, guided: bool = False) -> float:
        """Share of the device's time that so many callers take, at least one; above 1 is more than it has. `guided`:
        one of them is, or more."""
        frame = sum(self._each(stage, callers, guided) for stage in (Stage.DECODE, Stage.DEPTH, Stage.CODEC))
        return callers * (frame / self._frame_seconds + self._opening / self._speaking)

    def learn(self, stats: RequestStats) -> None:
        """An utterance was served to its end."""
        opening = sum(stats.stage_seconds[stage] for stage in OPENING)
        self._opening += WEIGHT * (opening - self._opening)
        self._speaking += WEIGHT * (max(self._frame_seconds, stats.audio_seconds) - self._speaking)

    def _any_guided(self, more: Sequence[int]) -> bool:
        return self._guided > 0 or any(rows > 1 for rows in more)

    def _most(self, guided: bool) -> int:
        """Callers that the device can keep playing, of as many as have a slot."""
        fitting, beyond = 0, self._limits.num_slots + 1
        while beyond - fitting > 1:
            middle = (fitting + beyond) // 2
            fitting, beyond = (middle, beyond) if self.share(middle, guided) <= MOST else (fitting, middle)
        return fitting

    def _each(self, stage: Stage, callers: int, guided: bool) -> float:
        """Seconds of a step for each of its requests."""
        requests = min(callers, self._limits.max_batch[stage])
        return self._predictor.mean(stage, num_sequences(stage, requests, guided)) / requests
