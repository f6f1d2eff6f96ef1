"""A scheduler whose steps are run by the test, on the test's clock, at literal costs.

Steps cost, alone or shared: text 10 ms, prefill 10, decode 5, depth 15, codec 10. A frame is 80 ms of audio.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from engine.core import (
    Cancel,
    Chunk,
    End,
    Finished,
    Limits,
    Output,
    Playhead,
    Prompt,
    PromptRow,
    SamplingParams,
    Stage,
    Step,
    StepResult,
    Submit,
    TextSegment,
)
from engine.policy import Explain
from engine.predictor import Pace, Predictor
from engine.scheduler import Scheduler
from engine.simulator import FakeClock, TimedExecutor
from engine.traffic import SPEC

COSTS = {
    Stage.TEXT: 0.010,
    Stage.PREFILL: 0.010,
    Stage.DECODE: 0.005,
    Stage.DEPTH: 0.015,
    Stage.CODEC: 0.010,
    Stage.ENCODE: 0.050,
}
ENDLESS = 10**9
"""Frames."""


class Fixed(Predictor):
    """Knows what steps cost, however that changes."""

    def pace(self, streams: int, limits: Limits, guided: bool = False) -> Pace:
        self._changed(Stage.CODEC)
        return super().pace(streams, limits, guided)

    def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
        return COSTS[stage]

    def mean(self, stage: Stage, sequences: int, length: int = 1) -> float:
        return self.cost(stage, sequences, length)


class Instant:
    """Costs nothing."""

    def draw(self, step: Step, now: float) -> float:
        return 0.0


class Affine(Fixed):
    """A codec of 6 ms and 15.5 ms a frame, a prefill of 10 ms and 0.7 ms a position, for each sequence."""

    def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
        match stage:
            case Stage.CODEC:
                return 0.006 + 0.0155 * sequences * length
            case Stage.PREFILL:
                return 0.010 + 0.0007 * sequences * length
        return COSTS[stage]


def submit(
    request_id: int,
    tokens: int = 40,
    rows: int = 1,
    max_frames: int = 200,
    follows: int | None = None,
    submitted_at: float | None = None,
) -> Submit:
    row = PromptRow((TextSegment((0,) * tokens),))
    sampling = SamplingParams(max_frames=max_frames)
    return Submit(request_id, Prompt((row,) * rows), sampling, 10 + request_id, follows, submitted_at)


@dataclass
class Engine:
    """A scheduler whose steps are run by the test, on the test's clock."""

    limits: Limits = field(default_factory=lambda: Limits(num_slots=4, num_pages=400))
    frames: dict[int, int] = field(default_factory=dict)
    """Where each request ends; those not named are endless."""
    predictor: Predictor = field(default_factory=Fixed)
    now: float = 100.0
    explain: Explain | None = None
    outputs: list[Output] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(SPEC, self.limits, self.predictor, explain=self.explain)
        self.frames = defaultdict(lambda: ENDLESS, self.frames)
        self.device = TimedExecutor(FakeClock(), Instant(), self.frames)

    def submit(self, *submits: Submit) -> list[Output]:
        return [output for one in submits for output in self.scheduler.apply(one, self.now)]

    def cancel(self, request_id: int) -> list[Output]:
        return self.scheduler.apply(Cancel(request_id), self.now)

    def playhead(self, request_id: int, seconds: float, running: bool = True, jitter: float = 0.0) -> None:
        played = round(seconds * SPEC.sample_rate)
        assert self.scheduler.apply(Playhead(request_id, played, self.now, running, jitter), self.now) == []

    def result(self, step: Step) -> StepResult:
        """Of the step, in no time."""
        return self.device.run(step)

    def step(self) -> Step | None:
        step = self.scheduler.plan(self.now)
        if step is not None:
            elapsed = self.predictor.predict(step)
            self.now += elapsed
            self.outputs += self.scheduler.commit(step, self.result(step), self.now, elapsed)
        return step

    def until(self, stage: Stage, request_id: int) -> Step:
        """Run until this request has taken part in such a step."""
        for _ in range(1000):
            step = self.step()
            if step is not None and step.stage is stage and request_id in ids(step):
                return step
        raise AssertionError(f"{stage} of {request_id} never ran")

    def drain(self) -> None:
        """Run, sleeping where told to, until only an event could bring work."""
        while self.step() is not None or self.scheduler.wake_at is not None:
            self.now = max(self.now, self.scheduler.wake_at or 0.0)

    def drain_until(self, kind: type[Output]) -> None:
        """Run until there is such an output."""
        while not any(isinstance(output, kind) for output in self.outputs):
            assert self.step() is not None

    def chunks(self, request_id: int) -> list[Chunk]:
        return [c for c in self.outputs if isinstance(c, Chunk) and c.request_id == request_id]

    def served(self) -> list[int]:
        """Who was served to the end, in order."""
        return [output.request_id for output in self.outputs if isinstance(output, Finished)]

    def end(self, request_id: int) -> End:
        (end,) = (o for o in self.outputs if isinstance(o, End) and o.request_id == request_id)
        return end


def ids(step: Step) -> list[int]:
    return [row.request_id for row in step.rows]


def free(engine: Engine) -> tuple[float, float]:
    engine.scheduler.plan(engine.now)
    values = engine.scheduler.snapshot(engine.now)
    return values["slots_free"], values["pages_free"]
