"""The record of steps: what ran, how long, and what passed between."""

from engine.core import Row, Stage, Step, StepResult
from engine.recorder import Ran, Recorder, between
from engine.simulator import FakeClock

STEP = Step(Stage.DEPTH, (Row(1, (1, 2)), Row(2, (3, 4))))
RESULT = StepResult(ended=(True, False))


class Slow:
    """Takes a quarter of a second."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def run(self, step: Step) -> StepResult:
        assert step is STEP
        self._clock.advance(0.25)
        return RESULT


def test_each_step_is_kept_once_with_its_time() -> None:
    clock = FakeClock(3.0)
    recorder = Recorder(Slow(clock).run, clock)
    assert recorder.run(STEP) is RESULT
    clock.advance(0.5)
    recorder.run(STEP)
    first, second = recorder.taken()
    assert first == Ran(Stage.DEPTH, 4, 1, 3.0, 0.25, waited=True, requests=(1, 2))
    assert second == Ran(Stage.DEPTH, 4, 1, 3.75, 0.25, waited=False, requests=(1, 2))
    assert recorder.taken() == ()
    assert second.ended_at == 4.0


def test_what_passes_while_there_is_nothing_to_do_is_not_between_steps() -> None:
    clock = FakeClock()
    recorder = Recorder(Slow(clock).run, clock)
    for pause, idle in ((0.125, False), (5.0, True), (0.5, False)):
        recorder.run(STEP)
        clock.advance(pause)
        if idle:
            recorder.idle()
    recorder.run(STEP)
    assert between(recorder.taken()) == [0.125, 0.5]
