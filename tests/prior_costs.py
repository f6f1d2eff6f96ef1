"""Costs for runs that need no profile: the predictor's built-in prior, with noise."""

from __future__ import annotations

from random import Random

from engine.core import Step
from engine.predictor import prior


class PriorCosts:
    """5 % either way, and one step in 500 three times as long."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def draw(self, step: Step, now: float) -> float:
        tail = 3.0 if self._random.random() < 0.002 else 1.0
        noise = tail * self._random.uniform(0.95, 1.05)
        return prior(step.stage, step.sequences, step.length) * noise
