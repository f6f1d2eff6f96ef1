"""Chooses which streams make the next step. It knows their slack and the costs of steps, not how they came about.

In order of precedence:
  1. A playing stream whose slack is smaller than the step that a new caller would run: the one with the least slack.
  2. A new caller, first come first: first audio counts most.
  3. A recording that is to become codes, while no playing stream has little slack: it takes longer than first audio.
     Under load its turn may never come: whoever waits for it does so for a while only (engine.cloning).
  4. The playing stream with the least slack.
Those one stage behind go first, so that they share the step (waiting for batch-mates), if all have time for that; for a
new caller's step only while the device is strained, or if one of them would soon interrupt new callers anyway.
Whoever is ready for the same stage then joins, if that saves enough time (of a new caller: if it costs the others less
than their further way to first audio, for which he would wait), keeps the step within Limits.max_step_seconds, and
breaks no deadline that would otherwise hold, or else if his own would break.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from operator import attrgetter

from engine.core import Limits, Stage, num_sequences
from engine.policy import Candidate, Decision
from engine.predictor import Pace, Predictor

CODEC, ENCODE = Stage.CODEC, Stage.ENCODE
SLACK = attrgetter("slack")
OPENING = (Stage.TEXT, Stage.PREFILL, Stage.DEPTH, Stage.CODEC)
"""A new caller's way to first audio."""
AFTER = {stage: OPENING[place:] for place, stage in enumerate(OPENING, 1)}
STAGE_BEFORE = {Stage.DEPTH: Stage.DECODE, Stage.DECODE: Stage.CODEC}
SAVING = 0.1
"""Share of the time of two separate steps that a shared one must save: it lasts longer than either, and whoever comes
meanwhile waits for its end."""

LEISURE = 4
"""Times what a recording's step costs, that playing streams must have as slack for it: some of them take much longer,
and it comes again and again, so that all would soon have as little as is allowed."""
EASE = 1.5
"""Seconds of slack that half of the playing streams have while the device has time to spare: then a new caller's steps
do not wait for batch-mates."""
STRAIN = 0.5
"""Share of the device's time that those who run need to play on, while it is strained. With less they gain a second or
more in each, so they have little slack only because they are young. On a fast device most of those who run are: older
ones are held at Limits.max_lead."""
AHEAD = 2
"""New callers whose way to first audio someone must be able to wait for, or else their step waits for him: this one,
and one more who may come meanwhile."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """The policy that serves callers. See engine.policy.Policy."""

    predictor: Predictor
    limits: Limits
    name: str = "predictor"
    first_chunk: int = 1
    paced: bool = True

    def decide(self, candidates: Sequence[Candidate], pace: Pace, now: float) -> Decision:
        """`pace` is what slack was judged by."""
        return Choice(self.predictor, self.limits, pace).decide(candidates)


@dataclass(slots=True)
class Choice:
    """What one choice is made by."""

    predictor: Predictor
    limits: Limits
    pace: Pace

    def decide(self, candidates: Sequence[Candidate]) -> Decision:
        everyone = sorted(candidates, key=SLACK)
        new = bisect_right(everyone, -inf, key=SLACK)
        starting, playing = everyone[:new], everyone[new:]
        if not starting:
            leader = self._first(playing)
            batch = self._batch(leader, playing)
            if sooner := self._sooner(batch, playing):
                return Decision(sooner, f"they can still share the {leader.stage} step of {leader.stream.request_id}")
            return Decision(batch, "the least slack" if leader is playing[0] else "late unless it goes first")
        starting.sort(key=_encodes)
        cost = self._alone(starting[0])
        if starting[0].stage is ENCODE:
            cost *= LEISURE
        urgent = playing[: bisect_left(playing, cost, key=SLACK)]
        leader = self._first(urgent) if urgent else starting[0]
        batch = self._batch(leader, urgent + starting + playing[len(urgent) :])
        brings = self._strained(playing) or (not urgent and self._pressed(leader, playing))
        if brings and (sooner := self._sooner(batch, playing)):
            return Decision(sooner, f"they can still share the {leader.stage} step of {leader.stream.request_id}")
        why = "no new caller waits" if leader.stage is ENCODE else "start priority"
        return Decision(batch, "its slack is less than a new caller's step" if urgent else why)

    def _alone(self, candidate: Candidate) -> float:
        """Seconds of its step without mates."""
        return self._cost(candidate.stage, 1, candidate.stream.guided, candidate.count)

    def _cost(self, stage: Stage, rows: int, guided: bool, length: int = 1) -> float:
        return self.predictor.cost(stage, num_sequences(stage, rows, guided), length)

    def _first(self, playing: Sequence[Candidate]) -> Candidate:
        """The one with the least slack, or another who would otherwise be late and can go first without making it
        late."""
        tight = playing[0]
        cost = self._alone(tight)
        for other in playing:
            if other.slack >= cost:
                break
            if not other.joins(tight) and self._alone(other) <= tight.slack:
                return other
        return tight

    def _batch(self, leader: Candidate, everyone: Sequence[Candidate]) -> list[Candidate]:
        """The leader and those who join it."""
        stage, length, guided = leader.stage, leader.count, leader.stream.guided
        usual, most, longest_step = (length, guided), self.limits.max_batch[stage], self.limits.max_step_seconds
        batch, alike = [leader], stage is not CODEC  # below: Candidate.joins, without its calls
        mates = [c for c in everyone if c.stage is stage and c is not leader and (alike or c.count == length)]
        if stage is ENCODE:
            mates = [c for c in mates if c.joins(leader)]
        alone = cost = self._alone(leader)
        time, rest = (self._time(leader, alone, everyone), self._rest(leader)) if mates else (0.0, 0.0)
        for mate in mates:
            if len(batch) == most:
                break
            longest, paired = max(length, mate.count), guided or mate.stream.guided
            together = self._cost(stage, len(batch) + 1, paired, longest)
            fits = together <= longest_step and (together <= time or -inf < mate.slack < alone)
            spared = mate.slack == -inf and together - cost <= rest
            own = alone if (mate.count, mate.stream.guided) == usual else self._alone(mate)
            if fits and (spared or _pays(together, cost + own)):
                batch.append(mate)
                length, guided, cost = longest, paired, together
        return batch

    def _rest(self, leader: Candidate) -> float:
        """What a new caller at the leader's stage is spared, if he joins: the others' way from there to first audio,
        which they would go before he has his turn. 0 if the leader plays already."""
        return 0.0 if leader.slack > -inf else self._way(leader, AFTER.get(leader.stage, ()))

    def _way(self, caller: Candidate, stages: Sequence[Stage]) -> float:
        """Seconds of these stages of a new caller, without mates."""
        stream = caller.stream
        lengths = {Stage.TEXT: stream.text_tokens, Stage.PREFILL: stream.prompt_length}
        return sum([self._cost(stage, 1, stream.guided, lengths.get(stage, 1)) for stage in stages])

    def _time(self, leader: Candidate, cost: float, everyone: Sequence[Candidate]) -> float:
        """Seconds that the leader's step may take without breaking a deadline that would hold if it went alone. Who
        joins has slack that allows for this step. Those who play are in order of slack."""
        usual, least = max(cost, self.pace.turn(leader.stage, leader.count)), inf
        for c in everyone:
            if c.slack >= least:
                break
            time = c.slack + usual if not c.optional and c.joins(leader) else c.slack
            if cost < time < least:
                least = time
        return least

    def _strained(self, playing: Sequence[Candidate]) -> bool:
        """Whether full batches count for more than a new caller's next few milliseconds; by streams in order of
        slack."""
        if not playing or playing[len(playing) // 2].slack >= EASE:
            return False
        return self.pace.whole_frame > STRAIN * playing[0].stream.frame_seconds

    def _pressed(self, leader: Candidate, playing: Sequence[Candidate]) -> bool:
        """Whether someone one stage behind a new caller could not wait until that one, and one like him, have first
        audio: then his frame would interrupt the way to it, and in this step it costs little."""
        before = STAGE_BEFORE.get(leader.stage)
        if before is None:
            return False
        tight = next((c for c in playing if c.stage is before), None)
        return tight is not None and tight.slack < AHEAD * self._way(leader, OPENING)

    def _sooner(self, waiting: Sequence[Candidate], playing: Sequence[Candidate]) -> list[Candidate] | None:
        """The step that brings others to the stage where `waiting` stands, if waiting for them pays and harms
        nobody."""
        stage = waiting[0].stage
        room, before = self.limits.max_batch[stage] - len(waiting), STAGE_BEFORE.get(stage)
        if before is None or not room:
            return None
        behind = next((c for c in playing if c.stage is before and c.stream.reason is None), None)
        if behind is None:
            return None
        first = self._batch(behind, playing)[:room]
        some, others = True in [c.stream.guided for c in waiting], True in [c.stream.guided for c in first]
        together = self._cost(stage, len(waiting) + len(first), some or others)
        apart = self._cost(stage, len(waiting), some) + self._cost(stage, len(first), others)
        sooner = self._cost(first[0].stage, len(first), others, max([c.count for c in first]))
        usual, slack = max(self.pace.turn(stage, 1), together), inf
        for c in playing:
            if c.slack >= slack:
                break
            slack = min(slack, c.slack + usual if c.stage is stage else c.slack)
        fits = together <= self.limits.max_step_seconds and sooner + together <= slack
        return first if fits and _pays(together, apart) else None


def _encodes(candidate: Candidate) -> bool:
    return candidate.stage is ENCODE


def _pays(together: float, apart: float) -> bool:
    return together <= (1 - SAVING) * apart
