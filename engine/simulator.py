"""Runs the production loop on a fake clock for scripted callers and listeners. It knows no model: steps only take
their time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf

import numpy as np

from engine import loop
from engine.core import (
    Cancel,
    Chunk,
    Encode,
    Encoded,
    End,
    Event,
    Failed,
    Limits,
    ModelSpec,
    Output,
    Stage,
    Step,
    StepResult,
)
from engine.costs import Costs
from engine.listener import Listener, listeners
from engine.policies import PREDICTOR, make
from engine.policy import Explain
from engine.predictor import Predictor
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


class TimedExecutor:
    """Spends a step's time. A request ends after the number of frames that the script gives it."""

    def __init__(self, clock: FakeClock, costs: Costs, frames: Mapping[int, int], spec: ModelSpec = SPEC) -> None:
        self._clock = clock
        self._costs = costs
        self._frames = frames
        self._spec = spec

    def run(self, step: Step) -> StepResult:
        self._clock.advance(self._costs.draw(step, self._clock.now()))
        match step.stage:
            case Stage.PREFILL:
                return StepResult(ended=tuple(row.final and not self._frames[row.request_id] for row in step.rows))
            case Stage.DECODE:
                return StepResult(ended=tuple(row.start + 1 >= self._frames[row.request_id] for row in step.rows))
            case Stage.CODEC:
                pcm = np.zeros(step.length * self._spec.samples_per_frame, np.int16)
                codes = np.zeros((step.length, self._spec.num_codebooks), np.int16)
                return StepResult(pcm=(pcm,) * step.batch, codes=(codes,) * step.batch)
            case Stage.ENCODE:
                books = self._spec.num_codebooks
                return StepResult(codes=tuple(np.zeros((row.count, books), np.int16) for row in step.rows))
        return StepResult()


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
    clock, simulation = FakeClock(), Simulation(tuple(listeners(script)))
    spec = replace(spec, encodes=True)
    inbox = ScriptedInbox(clock, ((at + overhead.submit, event) for at, event in _events(script, spec)), overhead.step)
    predictor = Predictor(profile)
    scheduler = Scheduler(spec, limits, predictor, make(policy, predictor, limits), explain)

    def deliver(output: Output) -> None:
        simulation.outputs.append((clock.now(), output))
        if output.request_id >= len(script):  # of a recording: now the text can be said
            number = output.request_id - len(script)
            if isinstance(output, Encoded):
                inbox.push(clock.now() + overhead.submit, script[number].submit(number))
                for written_at, text in script[number].texts(number):
                    inbox.push(max(written_at, clock.now()) + overhead.submit, text)
            elif isinstance(output, Failed):
                simulation.listeners[number].over(output, clock.now())
            return
        listener = simulation.listeners[output.request_id]
        for at, event in _answers(listener, output, clock.now(), spec.sample_rate, overhead):
            if playheads or isinstance(event, Cancel):
                inbox.push(at, event)

    frames = {number: said.frames for number, said in enumerate(script)}
    loop.run(inbox, scheduler, TimedExecutor(clock, costs, frames, spec), predictor, clock, deliver)
    simulation.elapsed, simulation.waits, simulation.metrics = clock.now(), inbox.waits, scheduler.snapshot(clock.now())
    return simulation


def _events(script: Sequence[Utterance], spec: ModelSpec) -> Iterable[tuple[float, Event]]:
    for number, said in enumerate(script):
        ids = [number]
        if said.recording:
            ids.append(len(script) + number)
            silence = np.zeros(max(1, round(said.recording * spec.sample_rate)), np.float32)
            yield said.at, Encode(ids[-1], silence, said.at)
        else:
            yield said.at, said.submit(number)
            yield from said.texts(number)
        if said.cancel_at is not None:
            for each in ids:
                yield said.cancel_at, Cancel(each)


def _answers(
    listener: Listener, output: Output, now: float, sample_rate: int, overhead: Overhead
) -> Iterator[tuple[float, Event]]:
    """What a listener says to what leaves the engine now, and when the engine knows."""
    if isinstance(output, End):
        listener.over(output, now)
    elif isinstance(output, Chunk):
        arrived_at = now + overhead.deliver
        listener.hear(len(output.pcm) / sample_rate, arrived_at, output.text_late)
        for at, event in listener.events(arrived_at, sample_rate):
            yield at + overhead.submit, event
