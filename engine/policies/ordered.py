"""A policy that is an order: the first candidate leads, those of its stage join in the same order up to the batch
limit, whether or not that saves time. It predicts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from engine.core import Limits, Stage
from engine.policy import Candidate, Decision
from engine.predictor import Pace

Key = Callable[[Candidate, float], tuple[float, ...]]
"""What candidates are sorted by at an instant."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """See engine.policy.Policy."""

    name: str
    source: str
    """Where this way of choosing, and its numbers, are used."""
    key: Key
    first_chunk: int = 1
    wait: float = 0.0
    """Seconds that a codec step which is not full waits for mates, from when its first row was ready."""
    max_batch: Mapping[Stage, int] = field(default_factory=dict)
    paced: bool = False

    def within(self, limits: Limits) -> Ordered:
        """The same, for an engine of these limits."""
        return replace(self, max_batch=limits.max_batch)

    def decide(self, candidates: Sequence[Candidate], pace: Pace, now: float) -> Decision:
        ordered = sorted(candidates, key=lambda candidate: self.key(candidate, now))
        wait_until = inf
        for leader in ordered:
            rows = [c for c in ordered if c.joins(leader)][: self.max_batch[leader.stage]]
            ready_at = min(row.stream.served_at for row in rows) + self.wait
            if leader.stage is not Stage.CODEC or len(rows) == self.max_batch[leader.stage] or now >= ready_at:
                return Decision(rows, self.name)
            wait_until = min(wait_until, ready_at)
        return Decision((), self.name, wait_until)
