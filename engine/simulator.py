"""Runs the production loop on a fake clock for scripted callers and listeners. It knows no model: steps only take
their time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    Event,
    Failed,
    Finished,
    FinishReason,
    Limits,
    Mode,
    ModelSpec,
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
from engine.metrics import missing_seconds, quantile
from engine.predictor import Predictor, Profile, prior
from engine.scheduler import Scheduler

SPEC = ModelSpec(
    name="simulated",
    licence="none",
    sample_rate=24000,
    samples_per_frame=1920,
    num_codebooks=16,
    max_positions=2048,
    modes=frozenset(Mode),
    sampling=SamplingParams(),
)
LIMITS = Limits(num_slots=16, num_pages=16 * 128)
TOKENS_PER_SECOND = 14.0
"""English speech, a token a character."""


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
    """Events at known instants. Waiting lets time pass; when nothing can ever come, it is closed."""

    def __init__(self, clock: FakeClock, script: Iterable[tuple[float, Event]] = ()) -> None:
        self.closed = False
        self.waits = 0
        self._clock = clock
        self._heap: list[tuple[float, int, Event]] = []
        self._pushed = 0
        for at, event in script:
            self.push(at, event)

    def push(self, at: float, event: Event) -> None:
        heappush(self._heap, (at, self._pushed, event))
        self._pushed += 1

    def drain(self) -> list[Event]:
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
        missing = [stage.value for stage, shapes in self._samples.items() if not shapes]
        if missing:
            raise ValueError(f"profile {profile.name!r} has no samples of {', '.join(missing)}; calibrate all stages")

    def draw(self, step: Step) -> float:
        shapes = self._samples[step.stage]
        enough = [shape for shape in shapes if shape[0] >= step.sequences and shape[1] >= step.length]
        return self._random.choice(shapes[min(enough) if enough else max(shapes)]) / self._speed


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


@dataclass(frozen=True, slots=True)
class Utterance:
    """What one scripted caller does. Its request_id is its place in the script."""

    at: float
    frames: int
    text_tokens: int = 40
    rows: int = 1
    follows: int | None = None
    cancel_at: float | None = None

    def submit(self, request_id: int) -> Submit:
        prompt = Prompt((PromptRow((TextSegment((0,) * self.text_tokens),)),) * self.rows)
        return Submit(request_id, prompt, SamplingParams(), follows=self.follows, submitted_at=self.at)


@dataclass(slots=True)
class Listener:
    """Plays one utterance as it arrives, after the one that it follows, and keeps what the metrics need."""

    request_id: int
    submitted_at: float
    before: Listener | None = None
    arrivals: list[tuple[float, float]] = field(default_factory=list)
    """Instant and seconds of audio of each chunk."""
    plays_at: float = 0.0
    """When the first sample is played."""
    runs_out_at: float = 0.0
    underruns: int = 0
    end: Finished | Failed | None = None

    @property
    def ttfa(self) -> float | None:
        return self.arrivals[0][0] - self.submitted_at if self.arrivals else None

    @property
    def audio(self) -> float:
        """Seconds."""
        return sum(seconds for _, seconds in self.arrivals)

    @property
    def extra_buffer(self) -> float:
        """The delay of the first sample that would have avoided every gap."""
        return missing_seconds(self.arrivals, self.plays_at)

    def hear(self, seconds: float, now: float) -> None:
        if not self.arrivals:
            self.plays_at = self.runs_out_at = max(now, self.before.runs_out_at if self.before else now)
        self.arrivals.append((now, seconds))
        self.underruns += now > self.runs_out_at
        self.runs_out_at = max(self.runs_out_at, now) + seconds

    def playhead(self, now: float, sample_rate: int) -> Playhead | None:
        """Where it stands, once it plays."""
        played = self.audio - (self.runs_out_at - now)
        if now < self.plays_at:
            return None
        return Playhead(self.request_id, round(played * sample_rate), now)


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
    playheads: bool = True,
) -> Simulation:
    """Run the loop until nothing is left to happen. `profile` is what the predictor knows beforehand."""
    listeners: list[Listener] = []
    for number, said in enumerate(script):
        listeners.append(Listener(number, said.at, None if said.follows is None else listeners[said.follows]))
    clock, simulation = FakeClock(), Simulation(tuple(listeners))
    inbox = ScriptedInbox(clock, _events(script))
    predictor = Predictor(profile)
    scheduler = Scheduler(spec, limits, predictor)

    def deliver(output: Output) -> None:
        simulation.outputs.append((clock.now(), output))
        listener = listeners[output.request_id]
        if not isinstance(output, Chunk):
            listener.end = output
            return
        playhead = listener.playhead(clock.now(), spec.sample_rate)
        if playheads and playhead is not None and listener.arrivals:
            inbox.push(clock.now(), playhead)
        listener.hear(len(output.pcm) / spec.sample_rate, clock.now())

    frames = {number: said.frames for number, said in enumerate(script)}
    loop.run(inbox, scheduler, TimedExecutor(clock, costs, frames, spec), predictor, clock, deliver)
    simulation.elapsed, simulation.waits, simulation.metrics = clock.now(), inbox.waits, scheduler.snapshot()
    return simulation


def _events(script: Sequence[Utterance]) -> Iterable[tuple[float, Event]]:
    for number, said in enumerate(script):
        yield said.at, said.submit(number)
        if said.cancel_at is not None:
            yield said.cancel_at, Cancel(number)


def poisson(requests: int, load: float, seed: int, spec: ModelSpec = SPEC) -> list[Utterance]:
    """Callers who come independently, each for one utterance of 2 to 20 s (log-normal, median 4.5 s); `load` is the
    number of utterances that would play at once on average."""
    random = Random(seed)
    seconds = [min(20.0, max(2.0, random.lognormvariate(1.5, 0.6))) for _ in range(requests)]
    rate = load * requests / sum(seconds)
    script, at = [], 0.0
    for length in seconds:
        at += random.expovariate(rate)
        script.append(Utterance(at, round(length / spec.frame_seconds), round(length * TOKENS_PER_SECOND)))
    return script


def report(
    requests: int = 300,
    load: float = 1.0,
    seed: int = 0,
    *,
    profile: Profile | None = None,
    speed: float = 1.0,
    limits: Limits = LIMITS,
) -> dict[str, float]:
    """One run in figures. The device is the profile's, or the built-in prior's, `speed` times as fast."""
    costs = ProfileCosts(profile, seed, speed) if profile else PriorCosts(seed, speed)
    run = simulate(poisson(requests, load, seed), costs, limits=limits, profile=profile)
    return {"requests": requests, "load": load, "seed": seed, "speed": speed} | summary(run)


def summary(run: Simulation) -> dict[str, float]:
    """Gaps, first audio and what the device did. A gap is a chunk that arrives later than first delivery + audio
    delivered before it."""
    ttfa = sorted(listener.ttfa for listener in run.listeners if listener.ttfa is not None)
    ends = [listener.end for listener in run.listeners]
    busy, audio = run.metrics["device_busy_seconds_total"], sum(listener.audio for listener in run.listeners)
    return {
        "finished": sum(isinstance(end, Finished) and end.reason is not FinishReason.CANCELLED for end in ends),
        "failed": sum(isinstance(end, Failed) for end in ends),
        "requests_with_gaps": sum(listener.extra_buffer > 0 for listener in run.listeners),
        "max_extra_buffer_ms": 1000 * max((listener.extra_buffer for listener in run.listeners), default=0.0),
        **{f"ttfa_p{p}_ms": 1000 * quantile(ttfa, p / 100) for p in (50, 95, 99) if ttfa},
        "audio_seconds": audio,
        "device_seconds_per_audio_second": busy / audio if audio else 0.0,
        "device_idle_share": 1 - busy / run.elapsed if run.elapsed else 0.0,
        "steps": run.metrics["steps_total"],
    }
