"""The command `bench plan`: what a step's planning costs, by the number of streams. It runs no model.

The scheduler is the one that serves callers; device and listeners are simulated, with the costs of `h200-estimate`. So
many callers are there at every moment, and all of them generate: whoever was served calls again, nobody is held because
he is far ahead, and a device that could not keep them all playing is taken to be faster. Planning is Scheduler.plan;
with it, a step costs Scheduler.commit and Predictor.observe.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from math import inf, log2
from typing import ParamSpec, TypeVar

from rich.console import Console
from rich.progress import track
from rich.table import Table

from engine import estimate, loop
from engine.clock import Clock, MonotonicClock
from engine.core import Chunk, End, Limits, Output, Step, StepResult
from engine.metrics import QUANTILES, quantile
from engine.predictor import Predictor
from engine.profile import Profile
from engine.scheduler import Scheduler
from engine.simulator import FakeClock, Listener, ProfileCosts, ScriptedInbox, TimedExecutor
from engine.traffic import SPEC, poisson

PLAYABLE = 48
"""Streams that a device with the costs of h200-estimate keeps playing."""
WARM_STEPS = 500
"""Steps before the first that counts, and a few for each stream: all have begun by then."""

SHARES = ("p50", "p95", "p99")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Planning:
    """Microseconds a step, with so many streams."""

    streams: int
    steps: int
    plan_us_p50: float
    plan_us_p95: float
    plan_us_p99: float
    step_us_p50: float
    """Planning, commit and observation together."""
    step_us_p95: float
    step_us_p99: float


class Stopwatch:
    """Sums the seconds of calls."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.seconds = 0.0

    def time(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        started = self._clock.now()
        out = call(*args, **kwargs)
        self.seconds += self._clock.now() - started
        return out


class TimedScheduler(Scheduler):
    """Notes the seconds of each planned step: of its plan, and of all."""

    def __init__(self, limits: Limits, predictor: TimedPredictor, watch: Stopwatch) -> None:
        super().__init__(SPEC, limits, predictor)
        self._watch = watch
        self._planned = 0.0
        self.costs: list[tuple[float, float]] = []

    def plan(self, now: float) -> Step | None:
        self._watch.seconds = 0.0
        step = self._watch.time(super().plan, now)
        self._planned = self._watch.seconds
        return step

    def commit(self, step: Step, result: StepResult, now: float) -> list[Output]:
        outputs = self._watch.time(super().commit, step, result, now)
        self.costs.append((self._planned, self._watch.seconds))
        return outputs


class TimedPredictor(Predictor):
    def __init__(self, profile: Profile, watch: Stopwatch) -> None:
        super().__init__(profile)
        self._watch = watch

    def observe(self, step: Step, elapsed: float) -> None:
        self._watch.time(super().observe, step, elapsed)


class Crowd:
    """So many callers at every moment, until so many steps were run."""

    def __init__(self, streams: int, steps: int, profile: Profile, clock: Clock) -> None:
        known, drawn = profile.halves(0)
        limits = replace(profile.limits or Limits(), num_slots=streams, num_pages=128 * streams, max_lead=inf)
        watch = Stopwatch(clock)
        self._steps, self._least = steps, steps + WARM_STEPS + 10 * streams
        self._clock = FakeClock()
        self._inbox = ScriptedInbox(self._clock)
        self._predictor = TimedPredictor(known, watch)
        self._scheduler = TimedScheduler(limits, self._predictor, watch)
        self._frames: dict[int, int] = {}
        costs = ProfileCosts(drawn, speed=max(1.0, streams / PLAYABLE))
        self._executor = TimedExecutor(self._clock, costs, self._frames)
        self._lengths = cycle(poisson(1000, 1.0, seed=0))
        self._listeners: list[Listener] = []
        for _ in range(streams):
            self._call()

    def run(self) -> list[tuple[float, float]]:
        """Seconds of planning, and of a step's whole bookkeeping, by step."""
        loop.run(self._inbox, self._scheduler, self._executor, self._predictor, self._clock, self._deliver)
        return self._scheduler.costs[-self._steps :]

    def _call(self) -> None:
        said, number = replace(next(self._lengths), at=self._clock.now()), len(self._listeners)
        self._listeners.append(Listener(number, said))
        self._frames[number] = said.frames
        self._inbox.push(said.at, said.submit(number))

    def _deliver(self, output: Output) -> None:
        now, listener = self._clock.now(), self._listeners[output.request_id]
        if isinstance(output, Chunk):
            listener.hear(len(output.pcm) / SPEC.sample_rate, now)
            for at, event in listener.events(now, SPEC.sample_rate):
                self._inbox.push(at, event)
        elif isinstance(output, End):
            self._call()
        self._inbox.closed = len(self._scheduler.costs) >= self._least


@contextmanager
def settled() -> Iterator[None]:
    """The garbage collector as the engine has it: what is there already is not looked at again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def planning(streams: int, steps: int, profile: Profile, clock: Clock) -> Planning:
    """One row."""
    crowd = Crowd(streams, steps, profile, clock)
    with settled():
        costs = crowd.run()
    plans, wholes = (sorted(1e6 * seconds for seconds in part) for part in zip(*costs, strict=True))
    figures = [round(quantile(part, share), 1) for part in (plans, wholes) for share in QUANTILES]
    return Planning(streams, len(costs), *figures)


def growth(rows: Sequence[Planning]) -> float | None:
    """How the cost of planning grew from the fewest to the most streams (p50), over how n log n did: at most 1 is no
    worse. None for one number of streams."""
    few, many = min(rows, key=lambda row: row.streams), max(rows, key=lambda row: row.streams)
    if few.streams == many.streams:
        return None
    steeper = many.streams * log2(many.streams) / (few.streams * log2(few.streams))
    return many.plan_us_p50 / few.plan_us_p50 / steeper


def run(streams: Sequence[int], steps: int, console: Console) -> list[Planning]:
    """A row for each number of streams, printed at the end. Raises ValueError for one stream: it has no n log n."""
    if min(streams) < 2:
        raise ValueError(f"--streams must be at least 2, got {min(streams)}")
    profile, clock = estimate.profile(), MonotonicClock()
    numbers = track(sorted(set(streams)), description="planning", console=console, transient=True)
    rows = [planning(number, steps, profile, clock) for number in numbers]
    console.print(table(rows))
    ratio = growth(rows)
    if ratio is not None:
        verdict = "no worse than" if ratio <= 1 else "worse than"
        console.print(f"planning grows {verdict} n log n: {ratio:.2f} times as much, by p50")
    return rows


def table(rows: Sequence[Planning]) -> Table:
    """The rows as a person reads them, in microseconds."""
    out = Table("streams", "steps", *(f"{what} {share}" for what in ("plan", "whole step") for share in SHARES))
    for row in rows:
        cells = [value for name, value in asdict(row).items() if name.endswith(SHARES)]
        out.add_row(str(row.streams), str(row.steps), *(f"{cell:.0f} us" for cell in cells))
    return out
