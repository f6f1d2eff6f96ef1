"""Runs the production loop on a fake clock for scripted callers and listeners. It knows no model: steps only take
their time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import Protocol

import numpy as np

from engine import loop
from engine.core import (
    Cancel,
    Chunk,
    End,
    Event,
    Finished,
    FinishReason,
    Limits,
    ModelSpec,
    Output,
    Playhead,
    Stage,
    Step,
    StepResult,
)
from engine.metrics import lateness
from engine.policies import PREDICTOR, make
from engine.policy import Explain
from engine.predictor import Predictor, prior
from engine.profile import NO_OVERHEAD, Overhead, Profile
from engine.scheduler import Scheduler
from engine.traffic import SPEC, Utterance

LIMITS = Limits(num_slots=16, num_pages=16 * 128)


class FakeClock:
    """Time that passes only when told to."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, f"time does not go back: {seconds}"
        self._now += seconds

    def advance_to(self, instant: float) -> None:
        self._now = max(self._now, instant)


class ScriptedInbox:
    """Events at known instants. Waiting lets time pass; when nothing can ever come, it is closed. Each time that the
    loop comes by takes `turn` seconds."""

    def __init__(self, clock: FakeClock, script: Iterable[tuple[float, Event]] = (), turn: float = 0.0) -> None:
        self.closed = False
        self.waits = 0
        self._clock = clock
        self._turn = turn
        self._heap: list[tuple[float, int, Event]] = []
        self._pushed = 0
        for at, event in script:
            self.push(at, event)

    def push(self, at: float, event: Event) -> None:
        heappush(self._heap, (at, self._pushed, event))
        self._pushed += 1

    def drain(self) -> list[Event]:
        self._clock.advance(self._turn)
        events = []
        while self._heap and self._heap[0][0] <= self._clock.now():
            events.append(heappop(self._heap)[2])
        return events

    def wait(self, until: float | None) -> None:
        self.waits += 1
        next_at = min(self._heap[0][0] if self._heap else inf, inf if until is None else until)
        if next_at == inf:
            self.closed = True
        else:
            self._clock.advance_to(next_at)


class Costs(Protocol):
    """Seconds that one run of a step takes."""

    def draw(self, step: Step) -> float: ...


class PriorCosts:
    """The predictor's built-in prior, with noise: 5 % either way, and one step in 500 three times as long."""

    def __init__(self, seed: int = 0, speed: float = 1.0) -> None:
        self._random = Random(seed)
        self._speed = speed

    def draw(self, step: Step) -> float:
        tail = 3.0 if self._random.random() < 0.002 else 1.0
        noise = tail * self._random.uniform(0.95, 1.05)
        return prior(step.stage, step.sequences, step.length) * noise / self._speed


class ProfileCosts:
    """Samples of a profile, drawn from the nearest shape that was measured and is not smaller, if there is one."""

    def __init__(self, profile: Profile, seed: int = 0, speed: float = 1.0) -> None:
        self._random = Random(seed)
        self._speed = speed
        self._samples: dict[Stage, dict[tuple[int, int], tuple[float, ...]]] = {stage: {} for stage in Stage}
        for (stage, batch, length), seconds in profile.samples.items():
            self._samples[stage][batch, length] = seconds
        self._nearest: dict[tuple[Stage, int, int], tuple[float, ...]] = {}
        missing = [stage.value for stage, shapes in self._samples.items() if not shapes]
        if missing:
            raise ValueError(f"profile {profile.name!r} has no samples of {', '.join(missing)}; calibrate all stages")

    def draw(self, step: Step) -> float:
        shape = step.stage, step.sequences, step.length
        samples = self._nearest.get(shape)
        if samples is None:
            samples = self._nearest[shape] = self.samples(*shape)
        return self._random.choice(samples) / self._speed

    def samples(self, stage: Stage, sequences: int, length: int) -> tuple[float, ...]:
        """Those that a step of this shape is drawn from."""
        shapes = self._samples[stage]
        enough = [shape for shape in shapes if shape[0] >= sequences and shape[1] >= length]
        return shapes[min(enough) if enough else max(shapes)]


class TimedExecutor:
    """Spends a step's time. A request ends after the number of frames that the script gives it."""

    def __init__(self, clock: FakeClock, costs: Costs, frames: Mapping[int, int], spec: ModelSpec = SPEC) -> None:
        self._clock = clock
        self._costs = costs
        self._frames = frames
        self._spec = spec

    def run(self, step: Step) -> StepResult:
        self._clock.advance(self._costs.draw(step))
        match step.stage:
            case Stage.PREFILL:
                return StepResult(ended=tuple(row.final and not self._frames[row.request_id] for row in step.rows))
            case Stage.DECODE:
                return StepResult(ended=tuple(row.start + 1 >= self._frames[row.request_id] for row in step.rows))
            case Stage.CODEC:
                pcm = np.zeros(step.length * self._spec.samples_per_frame, np.int16)
                codes = np.zeros((step.length, self._spec.num_codebooks), np.int16)
                return StepResult(pcm=(pcm,) * step.batch, codes=(codes,) * step.batch)
        return StepResult()


@dataclass(slots=True)
class Listener:
    """Plays one utterance as it arrives, after the one that it follows, and keeps what the metrics need."""

    request_id: int
    said: Utterance
    before: Listener | None = None
    arrivals: list[tuple[float, float]] = field(default_factory=list)
    """Instant and seconds of audio of each chunk."""
    audio: float = 0.0
    """Seconds that arrived."""
    plays_at: float = 0.0
    """When the first sample is played."""
    runs_out_at: float = 0.0
    underruns: int = 0
    extra_buffer: float = 0.0
    """The delay of the first sample that would have avoided every gap, in seconds."""
    end: End | None = None

    @property
    def ttfa(self) -> float | None:
        return self.arrivals[0][0] - self.said.at if self.arrivals else None

    @property
    def unheard(self) -> float:
        """Seconds of audio that nobody listened to."""
        heard = inf if self.said.hears is None else self.said.hears
        if self.said.cancel_at is not None:
            heard = min(heard, max(0.0, self._position(self.said.cancel_at)))
        return max(0.0, self.audio - heard)

    def hear(self, seconds: float, now: float) -> None:
        """A chunk arrives. It is late if it comes after all before it was played, by the listener's own clock."""
        if not self.arrivals:
            self.plays_at = self.runs_out_at = self._begins(now)
        self.extra_buffer = max(self.extra_buffer, lateness(now, self.plays_at, self._wall(0.0, self.audio)))
        self.underruns += now > self.runs_out_at
        self.arrivals.append((now, seconds))
        self.runs_out_at = max(self.runs_out_at, now) + self._wall(self.audio, seconds)
        self.audio += seconds

    def _begins(self, now: float) -> float:
        """When its first sample is due: at the end of what went before, if that was still heard when it was asked for;
        else as soon as there is one."""
        ends_at = self.before.runs_out_at if self.before else -inf
        return ends_at if ends_at >= self.said.at else now

    def _wall(self, position: float, seconds: float) -> float:
        """Seconds that it takes to play `seconds` of audio from `position` on."""
        return seconds / self.said.rate + self._stalled(position, position + seconds)

    def _stalled(self, start: float, end: float) -> float:
        return self.said.stall[1] if start < self.said.stall[0] <= end else 0.0

    def _at(self, position: float) -> float:
        """When it plays, or begins to stall at, a position that has arrived."""
        return self.runs_out_at - self._wall(position, self.audio - position)

    def over(self, end: End, now: float) -> None:
        """The last word. What was interrupted is silent from then on."""
        self.end = end
        if isinstance(end, Finished) and end.reason is FinishReason.CANCELLED:
            self.runs_out_at = min(self.runs_out_at, now)

    def events(self, now: float, sample_rate: int) -> Iterator[tuple[float, Event]]:
        """What the listener does and says, once its newest chunk has arrived: where it stands, when it stalls and goes
        on, when it interrupts."""
        start, (stalls_at, pause) = self.audio - self.arrivals[-1][1], self.said.stall
        if self.plays_at < now and len(self.arrivals) > 1:
            yield now, self._playhead(self._position(now), now, sample_rate, running=not self._stands(now))
        if start < stalls_at <= self.audio:
            at = self._at(stalls_at) - pause
            yield at, self._playhead(stalls_at, at, sample_rate, running=False)
            yield at + pause, self._playhead(stalls_at, at + pause, sample_rate)
        if self.said.hears is not None and start < self.said.hears <= self.audio:
            yield max(now, self._at(self.said.hears)), Cancel(self.request_id)

    def _stands(self, now: float) -> bool:
        """Whether it is in its stall."""
        stalls_at, pause = self.said.stall
        return stalls_at <= self.audio and 0 < self._at(stalls_at) - now <= pause

    def _position(self, now: float) -> float:
        """Where it stands, in seconds of audio; of a stall, where it stalled."""
        stalls_at, pause = self.said.stall
        left = max(0.0, self.runs_out_at - now)
        if pause and stalls_at <= self.audio and left > (after := (self.audio - stalls_at) / self.said.rate):
            left = max(after, left - pause)
        return self.audio - left * self.said.rate

    def _playhead(self, position: float, at: float, sample_rate: int, running: bool = True) -> Playhead:
        return Playhead(self.request_id, max(0, round(position * sample_rate)), at, running)


@dataclass(slots=True)
class Simulation:
    """What happened: every output with its instant, and what each listener heard."""

    listeners: tuple[Listener, ...]
    outputs: list[tuple[float, Output]] = field(default_factory=list)
    elapsed: float = 0.0
    waits: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


def simulate(
    script: Sequence[Utterance],
    costs: Costs,
    *,
    spec: ModelSpec = SPEC,
    limits: Limits = LIMITS,
    profile: Profile | None = None,
    policy: str = PREDICTOR,
    playheads: bool = True,
    explain: Explain | None = None,
    overhead: Overhead = NO_OVERHEAD,
) -> Simulation:
    """Run the loop until nothing is left to happen. `profile` is what the predictor knows beforehand."""
    listeners: list[Listener] = []
    for number, said in enumerate(script):
        listeners.append(Listener(number, said, None if said.follows is None else listeners[said.follows]))
    clock, simulation = FakeClock(), Simulation(tuple(listeners))
    inbox = ScriptedInbox(clock, ((at + overhead.submit, event) for at, event in _events(script)), overhead.step)
    predictor = Predictor(profile)
    scheduler = Scheduler(spec, limits, predictor, make(policy, predictor, limits), explain)

    def deliver(output: Output) -> None:
        simulation.outputs.append((clock.now(), output))
        listener = listeners[output.request_id]
        if isinstance(output, End):
            listener.over(output, clock.now())
        if not isinstance(output, Chunk):
            return
        arrived_at = clock.now() + overhead.deliver
        listener.hear(len(output.pcm) / spec.sample_rate, arrived_at)
        for at, event in listener.events(arrived_at, spec.sample_rate):
            if playheads or isinstance(event, Cancel):
                inbox.push(at + overhead.submit, event)

    frames = {number: said.frames for number, said in enumerate(script)}
    loop.run(inbox, scheduler, TimedExecutor(clock, costs, frames, spec), predictor, clock, deliver)
    simulation.elapsed, simulation.waits, simulation.metrics = clock.now(), inbox.waits, scheduler.snapshot(clock.now())
    return simulation


def _events(script: Sequence[Utterance]) -> Iterable[tuple[float, Event]]:
    for number, said in enumerate(script):
        yield said.at, said.submit(number)
        if said.cancel_at is not None:
            yield said.cancel_at, Cancel(number)
