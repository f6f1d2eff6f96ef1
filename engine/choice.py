"""Chooses which streams make the next step. It knows their slack and the costs of steps, not how they came about.

In order of precedence:
  1. A playing stream whose slack is smaller than the step that a new caller would run: the one with the least slack.
  2. A new caller, first come first: first audio counts most.
  3. The playing stream with the least slack. If all have time, those one stage behind it go first, so that they
     share its step (waiting for batch-mates).
Whoever is ready for the same stage then joins, if that saves time and breaks no deadline that would otherwise hold, or
else if his own would break.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from engine.core import Limits, Stage
from engine.predictor import Predictor
from engine.stream import Stream

STAGE_BEFORE = {Stage.DEPTH: Stage.DECODE, Stage.DECODE: Stage.CODEC}


@dataclass(slots=True)
class Candidate:
    """A stream with the step that it needs next."""

    stream: Stream
    stage: Stage
    count: int
    """As in Row."""
    slack: float
    """Seconds that it can wait until its listener runs dry: deadline - now - predicted work for the least that it must
    send - margin. Minus infinity for a new caller, who is waiting now."""
    optional: bool = False
    """That work does not contain this step: frames are pending that could be sent without it."""

    def joins(self, leader: Candidate) -> bool:
        """Whether one step can serve both: one stage, and chunks of one size."""
        return self.stage is leader.stage and (self.stage is not Stage.CODEC or self.count == leader.count)


def choose(candidates: Sequence[Candidate], predictor: Predictor, limits: Limits) -> list[Candidate]:
    """The rows of the next step, out of at least one candidate; new callers are given in order of arrival."""
    starting = [c for c in candidates if c.slack == -inf]
    playing = sorted((c for c in candidates if c.slack > -inf), key=lambda c: c.slack)
    if not starting:
        batch = _batch(_first(playing, predictor), playing, predictor, limits)
        return _sooner(batch, playing, predictor, limits) or batch
    cost = _cost(starting[0], predictor)
    urgent = [c for c in playing if c.slack < cost]
    leader = _first(urgent, predictor) if urgent else starting[0]
    return _batch(leader, urgent + starting + playing[len(urgent) :], predictor, limits)


def _cost(candidate: Candidate, predictor: Predictor) -> float:
    return predictor.cost(candidate.stage, 1, candidate.count)


def _first(playing: Sequence[Candidate], predictor: Predictor) -> Candidate:
    """The one with the least slack, or another who would otherwise be late and can go first without making it late."""
    tight = playing[0]
    cost = _cost(tight, predictor)
    others = (c for c in playing if c.slack < cost and not c.joins(tight))
    return next((c for c in others if _cost(c, predictor) <= tight.slack), tight)


def _batch(leader: Candidate, everyone: Sequence[Candidate], predictor: Predictor, limits: Limits) -> list[Candidate]:
    """The leader and those who join it."""
    stage, length = leader.stage, leader.count
    alone = cost = predictor.cost(stage, 1, length)
    usual = predictor.cost(stage, min(len(everyone), limits.max_batch[stage]), length)
    time = _time(leader, alone, usual, everyone)
    batch = [leader]
    for mate in everyone:
        if len(batch) == limits.max_batch[stage]:
            break
        if mate is leader or not mate.joins(leader):
            continue
        longest = max(length, mate.count)
        together = predictor.cost(stage, len(batch) + 1, longest)
        fits = together <= time or -inf < mate.slack < alone
        if fits and together < cost + predictor.cost(stage, 1, mate.count):
            batch.append(mate)
            length, cost = longest, together
    return batch


def _time(leader: Candidate, cost: float, usual: float, everyone: Sequence[Candidate]) -> float:
    """Seconds that the leader's step may take without breaking a deadline that would hold if it went alone. `usual` is
    what the slack of those who join already allows for this step."""
    times = [c.slack if c.optional or not c.joins(leader) else c.slack + usual for c in everyone]
    return min((time for time in times if time > cost), default=inf)


def _sooner(
    waiting: list[Candidate], playing: Sequence[Candidate], predictor: Predictor, limits: Limits
) -> list[Candidate] | None:
    """The step that brings others to the stage where `waiting` stands, if waiting for them pays and harms nobody."""
    stage = waiting[0].stage
    before = STAGE_BEFORE.get(stage)
    behind = [c for c in playing if c.stage is before and c.stream.reason is None]
    if not behind:
        return None
    first = _batch(behind[0], playing, predictor, limits)
    both = len(waiting) + len(first)
    if both > limits.max_batch[stage]:
        return None
    together = predictor.cost(stage, both)
    apart = predictor.cost(stage, len(waiting)) + predictor.cost(stage, len(first))
    sooner = predictor.cost(before, len(first), max(c.count for c in first)) if before else 0.0
    return first if together < apart and sooner + together <= playing[0].slack else None
