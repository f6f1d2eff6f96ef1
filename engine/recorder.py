"""Keeps a record of the steps that an engine runs: which, when, and how long each took. It does not know why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from engine.clock import Clock
from engine.core import Stage, Step, StepResult


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that ran."""

    stage: Stage
    sequences: int
    length: int
    """As Step has it."""
    started_at: float
    """On the engine's clock."""
    elapsed: float
    """Seconds."""
    waited: bool
    """Whether the engine had nothing to do just before."""
    requests: tuple[int, ...]
    """Whose step it was."""

    @property
    def ended_at(self) -> float:
        return self.started_at + self.elapsed


class Recorder:
    """An executor that has its steps run by another one's `run`."""

    def __init__(self, run: Callable[[Step], StepResult], clock: Clock) -> None:
        self._run, self._clock = run, clock
        self._ran: list[Ran] = []
        self._waited = True

    def run(self, step: Step) -> StepResult:
        started = self._clock.now()
        result = self._run(step)
        elapsed = self._clock.now() - started
        requests = tuple(row.request_id for row in step.rows)
        self._ran.append(Ran(step.stage, step.sequences, step.length, started, elapsed, self._waited, requests))
        self._waited = False
        return result

    def idle(self) -> None:
        """Nothing is to be done: what runs next has waited."""
        self._waited = True

    def taken(self) -> tuple[Ran, ...]:
        """Those that ran since this was last asked."""
        ran, self._ran = tuple(self._ran), []
        return ran


def between(ran: Sequence[Ran]) -> list[float]:
    """Seconds from the end of each step to the beginning of the next, where the engine had something to do: planning,
    bookkeeping, handing over."""
    return [after.started_at - before.ended_at for before, after in pairwise(ran) if not after.waited]
