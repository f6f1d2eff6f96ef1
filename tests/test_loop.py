"""The loop applies, plans, runs, observes, commits and delivers, in this order, and sleeps without work."""

from collections import deque

from prior_costs import PriorCosts
from scripted_engine import submit

from engine.core import (
    Cancel,
    Chunk,
    Event,
    Failed,
    Finished,
    Limits,
    Output,
    Stage,
    Step,
    StepResult,
)
from engine.loop import run
from engine.predictor import Predictor
from engine.scheduler import Scheduler
from engine.simulator import FakeClock, ScriptedInbox, TimedExecutor
from engine.traffic import SPEC


class Closing:
    """An inbox with batches of events; it closes when it has to wait and none is left."""

    def __init__(self, *batches: list[Event]) -> None:
        self.closed = False
        self.waited: list[float | None] = []
        self._batches = deque(batches)

    def drain(self) -> list[Event]:
        return self._batches.popleft() if self._batches else []

    def wait(self, until: float | None) -> None:
        self.waited.append(until)
        self.closed = not self._batches


def serve(inbox: Closing | ScriptedInbox, frames: dict[int, int], limits: Limits) -> list[Output]:
    clock, predictor, outputs = FakeClock(), Predictor(), list[Output]()
    executor = TimedExecutor(clock, PriorCosts(), frames)
    run(inbox, Scheduler(SPEC, limits, predictor), executor, predictor, clock, outputs.append)
    return outputs


def test_a_request_is_served_to_its_end() -> None:
    outputs = serve(Closing([submit(1)]), {1: 3}, Limits())
    assert [type(output) for output in outputs] == [Chunk, Chunk, Finished]


def test_without_work_it_waits_and_does_not_spin() -> None:
    inbox = Closing([])
    assert serve(inbox, {}, Limits()) == []
    assert inbox.waited == [None]


def test_what_apply_says_is_delivered_too() -> None:
    outputs = serve(Closing([submit(1, tokens=5000)], [submit(2), Cancel(2)]), {2: 3}, Limits())
    assert [type(output) for output in outputs] == [Failed, Finished]


def test_a_closed_inbox_ends_it_before_the_next_step() -> None:
    inbox = Closing([submit(1)])
    inbox.closed = True
    assert serve(inbox, {1: 3}, Limits()) == []


def test_every_step_is_observed_with_the_time_it_took() -> None:
    class Watched(Predictor):
        observed: list[tuple[Stage, float]]

        def observe(self, step: Step, elapsed: float) -> None:
            self.observed.append((step.stage, elapsed))

    class Slow:
        def run(self, step: Step) -> StepResult:
            clock.advance(0.25)
            return StepResult(ended=(True,) if step.stage is Stage.PREFILL else ())

    clock, predictor = FakeClock(), Watched()
    predictor.observed = []
    run(Closing([submit(1)]), Scheduler(SPEC, Limits(), predictor), Slow(), predictor, clock, lambda output: None)
    assert predictor.observed == [(Stage.TEXT, 0.25), (Stage.PREFILL, 0.25)]
