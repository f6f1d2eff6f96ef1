"""A policy that is an order: the first candidate leads, those of its stage join in the same order up to the batch
limit, whether or not that saves time, unless the step would get too long. It predicts nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from engine.core import Limits, Stage, num_sequences
from engine.policy import Candidate, Decision
from engine.predictor import Pace, Predictor

Key = Callable[[Candidate, float], tuple[float, ...]]
"""What candidates are sorted by at an instant."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """See engine.policy.Policy."""

    name: str
    source: str
    """Where this way of choosing, and its numbers, are used; in a few words, since it is printed under tables."""
    key: Key
    first_chunk: int = 1
    wait: float = 0.0
    """Seconds that a codec step which is not full waits for mates, from when its first row was ready."""
    limits: Limits = field(default_factory=Limits)
    predictor: Predictor = field(default_factory=Predictor)
    """Asked only how long a step would take."""
    paced: bool = False

    def within(self, predictor: Predictor, limits: Limits) -> Ordered:
        """The same, for an engine of these limits and costs."""
        return replace(self, predictor=predictor, limits=limits)

    def decide(self, candidates: Sequence[Candidate], pace: Pace, now: float) -> Decision:
        ordered = sorted(candidates, key=lambda candidate: self.key(candidate, now))
        wait_until = inf
        for leader in ordered:
            mates = [c for c in ordered if c.joins(leader)]
            rows = mates[: self._room(mates)]
            ready_at = min(row.stream.served_at for row in rows) + self.wait
            full = len(rows) < len(mates) or len(rows) == self.limits.max_batch[leader.stage]
            if leader.stage is not Stage.CODEC or full or now >= ready_at:
                return Decision(rows, self.name)
            wait_until = min(wait_until, ready_at)
        return Decision((), self.name, wait_until)

    def _room(self, mates: Sequence[Candidate]) -> int:
        """How many of them, from the first on, one step may have: at least one."""
        stage, length, guided, limits = mates[0].stage, 0, False, self.limits
        most = min(len(mates), limits.max_batch[stage])
        for size, mate in enumerate(mates[:most], 1):
            length, guided = max(length, mate.count), guided or mate.stream.guided
            seconds = self.predictor.cost(stage, num_sequences(stage, size, guided), length)
            if seconds > limits.max_step_seconds:
                return max(1, size - 1)
        return most
