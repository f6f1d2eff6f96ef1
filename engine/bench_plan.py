"""The command `bench plan`: what a step's planning costs, by the number of streams, and how long a simulation
takes. It runs no model.

The scheduler is the one that serves callers; device and listeners are simulated, with the costs of `h200-estimate`. So
many callers are there at every moment, and all of them generate: whoever was served calls again, nobody is held because
he is far ahead, and a device that could not keep them all playing is taken to be faster. That is measured twice: with
admission off, and at overload, where more callers wait until a stream more breaks no deadline. Planning is
Scheduler.plan; with it, a step costs Scheduler.commit and Predictor.observe.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle, product
from math import ceil, inf, log2
from statistics import mean
from typing import ParamSpec, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from engine import estimate, loop
from engine.clock import Clock, MonotonicClock
from engine.contest import Race, result
from engine.core import Chunk, End, Failed, Limits, Output, Step, StepResult
from engine.costs import ProfileCosts
from engine.listener import Listener
from engine.metrics import QUANTILES, quantile
from engine.predictor import Predictor
from engine.profile import Profile
from engine.room import MOST, Room
from engine.scheduler import Scheduler
from engine.simulator import FakeClock, ScriptedInbox, TimedExecutor
from engine.traffic import SPEC, poisson

PLAYABLE = 48
"""Streams that a device with the costs of h200-estimate keeps playing."""
WARM_STEPS = 500
"""Steps before the first that counts, and a few for each stream: all have begun by then."""
MAX_WAIT = 2.0
"""Of an engine that serves callers."""
CROWDED = 2
"""Streams for each caller more who waits, at overload."""
RETRY = 0.25
"""Seconds after which a caller who was refused calls again."""
SPARE = 2.2
"""Times as fast as a device with places for just so many: a place is kept until all was heard, and who only listens
does not generate. So nearly so many generate while callers are held back."""
CALLERS, CALLERS_LOAD = 2000, 30.0
"""Of the one simulation that is timed, and streams at once on average."""
TARGET_SECONDS = 30.0
"""What that may take."""
TARGET_STREAMS, TARGET_US = 64, 200.0
"""What planning may take (p95) with so many."""

SHARES = ("p50", "p95", "p99")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Planning:
    """Microseconds a step, with so many streams."""

    streams: int
    admission: bool
    """Whether callers are held back for others' deadlines, as at overload."""
    active: float
    """Mean number of streams that generate; with admission the deadlines allow for a few less."""
    waiting: float
    """Mean number of callers who were not let in yet. Of few streams none: with admission they are refused."""
    steps: int
    plan_us_p50: float
    plan_us_p95: float
    plan_us_p99: float
    step_us_p50: float
    """Planning, commit and observation together."""
    step_us_p95: float
    step_us_p99: float


@dataclass(frozen=True, slots=True)
class Simulated:
    """How long it takes to simulate so many callers, from the first to the last."""

    requests: int
    load: float
    steps: int
    seconds: float


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
        self.crowds: list[tuple[int, int]] = []
        """Streams, and callers who waited, by step."""

    def plan(self, now: float) -> Step | None:
        self._watch.seconds = 0.0
        step = self._watch.time(super().plan, now)
        self._planned = self._watch.seconds
        if step is not None:
            self.crowds.append((len(self._admitted), len(self._entrance.streams)))
        return step

    def commit(self, step: Step, result: StepResult, now: float, elapsed: float) -> list[Output]:
        outputs = self._watch.time(super().commit, step, result, now, elapsed)
        self.costs.append((self._planned, self._watch.seconds))
        return outputs


class TimedPredictor(Predictor):
    def __init__(self, profile: Profile, watch: Stopwatch) -> None:
        super().__init__(profile)
        self._watch = watch

    def observe(self, step: Step, elapsed: float) -> None:
        self._watch.time(super().observe, step, elapsed)


class Crowd:
    """So many callers at every moment, until so many steps were run. With admission, there are a few more."""

    def __init__(self, streams: int, steps: int, profile: Profile, clock: Clock, admission: bool = False) -> None:
        known, drawn = profile.halves(0)
        limits = replace(profile.limits or Limits(), num_slots=streams, num_pages=128 * streams, max_lead=inf)
        limits = replace(limits, max_wait=MAX_WAIT if admission else inf)
        watch = Stopwatch(clock)
        self._steps, self._least = steps, steps + WARM_STEPS + 10 * streams
        self._clock = FakeClock()
        self._inbox = ScriptedInbox(self._clock)
        self._predictor = TimedPredictor(known, watch)
        self._scheduler = TimedScheduler(limits, self._predictor, watch)
        self._frames: dict[int, int] = {}
        full = Room(Predictor(known), limits, SPEC.frame_seconds).share(streams) / MOST
        costs = ProfileCosts(drawn, speed=SPARE * full if admission else max(1.0, streams / PLAYABLE))
        self._executor = TimedExecutor(self._clock, costs, self._frames)
        self._lengths = cycle(poisson(1000, 1.0, seed=0))
        self._listeners: list[Listener] = []
        for _ in range(streams + (ceil(streams / CROWDED) if admission else 0)):
            self._call(0.0)

    def run(self) -> list[tuple[float, float]]:
        """Seconds of planning, and of a step's whole bookkeeping, by step."""
        loop.run(self._inbox, self._scheduler, self._executor, self._predictor, self._clock, self._deliver)
        return self._scheduler.costs[-self._steps :]

    @property
    def sizes(self) -> tuple[float, float]:
        """Means of the same steps: streams, and callers who waited."""
        active, waiting = zip(*self._scheduler.crowds[-self._steps :], strict=True)
        return mean(active), mean(waiting)

    def _call(self, at: float) -> None:
        said, number = replace(next(self._lengths), at=at), len(self._listeners)
        self._listeners.append(Listener(number, said))
        self._frames[number] = said.frames
        self._inbox.push(said.at, said.submit(number))

    def _deliver(self, output: Output) -> None:
        now, listener = self._clock.now(), self._listeners[output.request_id]
        if isinstance(output, Chunk):
            listener.hear(len(output.pcm) / SPEC.sample_rate, now)
            for at, event in listener.events(now, SPEC.sample_rate):
                self._inbox.push(at, event)
        elif isinstance(output, Failed):
            self._call(now + RETRY)
        elif isinstance(output, End):
            self._call(now)
        self._inbox.closed = len(self._scheduler.costs) >= self._least


@contextmanager
def settled() -> Iterator[None]:
    """The garbage collector as the engine has it: what is there already is not looked at again."""
    frozen = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:  # else an engine of this process has its own there
            gc.unfreeze()


def planning(streams: int, steps: int, profile: Profile, clock: Clock, admission: bool = False) -> Planning:
    """One row."""
    crowd = Crowd(streams, steps, profile, clock, admission)
    with settled():
        costs = crowd.run()
    plans, wholes = (sorted(1e6 * seconds for seconds in part) for part in zip(*costs, strict=True))
    figures = [round(quantile(part, share), 1) for part in (plans, wholes) for share in QUANTILES]
    active, waiting = (round(size, 1) for size in crowd.sizes)
    return Planning(streams, admission, active, waiting, len(costs), *figures)


def simulating(requests: int, profile: Profile, clock: Clock) -> Simulated:
    """One run of the Predictor."""
    race = Race(load=CALLERS_LOAD, requests=requests)
    started = clock.now()
    steps = result(race, profile).steps
    return Simulated(requests, CALLERS_LOAD, steps, round(clock.now() - started, 2))


def growth(rows: Sequence[Planning]) -> float | None:
    """How the cost of planning grew from the fewest to the most streams (p50), over how n log n did: at most 1 is no
    worse. None for one number of streams. Of the rows without admission: with it, not all streams are always there."""
    few, many = _ends(rows)
    return None if few.streams == many.streams else many.plan_us_p50 / few.plan_us_p50 / _n_log_n(few, many)


def growth_line(rows: Sequence[Planning]) -> str:
    """The same in words; nothing for one number of streams."""
    few, many = _ends(rows)
    if few.streams == many.streams:
        return ""
    grew, allowed = many.plan_us_p50 / few.plan_us_p50, _n_log_n(few, many)
    span, verdict = f"from {few.streams} to {many.streams} streams", "within" if grew <= allowed else "over"
    return f"{span} planning (p50) grew {grew:.1f}-fold, {verdict} the {allowed:.1f}-fold of n log n"


def _ends(rows: Sequence[Planning]) -> tuple[Planning, Planning]:
    """The rows without admission with the fewest and the most streams."""
    alone = sorted((row for row in rows if not row.admission), key=lambda row: row.streams)
    return alone[0], alone[-1]


def _n_log_n(few: Planning, many: Planning) -> float:
    return many.streams * log2(many.streams) / (few.streams * log2(few.streams))


def run(streams: Sequence[int], steps: int, callers: int, console: Console) -> tuple[list[Planning], Simulated]:
    """Two rows for each number of streams, without admission and with it, printed at the end; then a simulation of so
    many callers.

    Raises ValueError for one stream: it has no n log n."""
    if min(streams) < 2:
        raise ValueError(f"--streams must be at least 2, got {min(streams)}")
    profile, clock = estimate.profile(), MonotonicClock()
    kinds = list(product(sorted(set(streams)), (False, True)))
    asked = track(kinds, description="planning", console=console, transient=True)
    rows = [planning(number, steps, profile, clock, admission) for number, admission in asked]
    console.print(table(rows))
    if line := growth_line(rows):
        console.print(line)
    for row in rows:
        if row.streams == TARGET_STREAMS:
            console.print(against_target(row))
    with console.status(f"simulating {callers} callers"):
        simulated = simulating(callers, profile, clock)
    console.print(simulated_line(simulated))
    return rows, simulated


def simulated_line(simulated: Simulated) -> str:
    """In words, against the target where it is one of so many."""
    line = f"{simulated.requests} callers, {simulated.steps} steps, were simulated in {simulated.seconds:.1f} s"
    if simulated.requests != CALLERS:
        return line
    met = "within" if simulated.seconds <= TARGET_SECONDS else "over"
    return f"{line}, {met} the target of {TARGET_SECONDS:.0f} s"


def against_target(row: Planning) -> str:
    """One line, of a row with the target's number of streams."""
    how, met = "with admission" if row.admission else "without it", row.plan_us_p95 <= TARGET_US
    took = f"{row.streams} streams {how}: planning took {row.plan_us_p95:.0f} us (p95)"
    return f"{took}, {'within' if met else 'over'} the target of {TARGET_US:.0f} us"


def table(rows: Sequence[Planning]) -> Table:
    """The rows as a person reads them, in microseconds."""
    sizes, measures = ("streams", "admission", "active", "waiting"), ("plan", "step")
    names = (*sizes, *(f"{what}\n{share}" for what in measures for share in SHARES))
    out = Table(*names, box=SIMPLE_HEAD, padding=0)
    for row in rows:
        cells = [value for name, value in asdict(row).items() if name.endswith(SHARES)]
        crowd = (str(row.streams), "on" if row.admission else "off", f"{row.active:.1f}", f"{row.waiting:.1f}")
        out.add_row(*crowd, *(f"{cell:.0f}" for cell in cells))
    return out
