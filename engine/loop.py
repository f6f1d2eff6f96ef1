"""The central loop: events in, steps run, audio out. It does not know what its parts do, nor which clock is real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.clock import Clock
from engine.core import Output, Step, StepResult
from engine.predictor import Predictor
from engine.scheduler import Applied, Scheduler


class Inbox(Protocol):
    """Where events arrive."""

    @property
    def closed(self) -> bool:
        """Nothing more will be wanted: the loop ends before its next step."""
        ...

    def drain(self) -> Sequence[Applied]:
        """All events that have arrived, in order; each is returned once."""
        ...

    def wait(self, until: float | None) -> None:
        """Return when an event has arrived (at once, if one is there), at the instant `until`, or when closed."""
        ...


class Executor(Protocol):
    """What runs a step."""

    def run(self, step: Step) -> StepResult: ...


def run(
    inbox: Inbox,
    scheduler: Scheduler,
    executor: Executor,
    predictor: Predictor,
    clock: Clock,
    deliver: Callable[[Output], None],
) -> None:
    """Serve until the inbox is closed. Production and simulation run this same function."""
    while not inbox.closed:
        for event in inbox.drain():  # submit, cancel, playhead; another policy
            for output in scheduler.apply(event, clock.now()):
                deliver(output)
        step = scheduler.plan(clock.now())  # pure choice; frees what ended streams held first
        if step is None:
            inbox.wait(until=scheduler.wake_at)
            continue
        started = clock.now()
        result = executor.run(step)
        finished = clock.now()
        predictor.observe(step, finished - started)
        for output in scheduler.commit(step, result, finished, finished - started):
            deliver(output)
