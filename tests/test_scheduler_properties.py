"""Whatever callers, listeners and the device do: nothing leaks, nothing is lost, repeated or said after its end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine import chunking
from engine.core import (
    Cancel,
    Chunk,
    ErrorCode,
    Event,
    Failed,
    Finished,
    FinishReason,
    Limits,
    Output,
    Playhead,
    Row,
    SamplingParams,
    Stage,
    Step,
    StepResult,
)
from engine.loop import run
from engine.predictor import Predictor
from engine.scheduler import Scheduler
from engine.simulator import FakeClock, PriorCosts, ScriptedInbox, TimedExecutor
from engine.traffic import SPEC, Utterance

LIMITS = Limits(
    num_slots=4,
    num_pages=60,
    page_size=16,
    max_queued=5,
    max_prefill_tokens=32,
    max_lead=1.0,
    max_step_seconds=0.050,
    max_batch={**dict.fromkeys(Stage, 3), Stage.CODEC: 2},
)
MAX_FRAMES = 60
LAST = 1000.0
SMALLEST = {Stage.TEXT: 10**9, Stage.PREFILL: 16, Stage.DECODE: 1, Stage.DEPTH: 1, Stage.CODEC: 1}
"""Lengths that a step alone may have, however long it takes."""

instants = st.integers(0, 400).map(lambda ticks: ticks * 0.01)
ids = st.integers(0, 9)


@dataclass(frozen=True)
class Scenario:
    utterances: tuple[Utterance, ...]
    cancels: tuple[tuple[float, int], ...]
    playheads: tuple[tuple[float, int, float, bool, float], ...]
    slow_from: float
    seed: int

    def events(self) -> Iterable[tuple[float, Event]]:
        for number, said in enumerate(self.utterances):
            submit = said.submit(number)
            yield said.at, replace(submit, sampling=SamplingParams(max_frames=MAX_FRAMES), epoch=7)
        for at, number in self.cancels:
            yield at, Cancel(number)
        for at, number, played, running, jitter in self.playheads:
            yield at, Playhead(number, round(played * SPEC.sample_rate), at, running, jitter)
        for number in range(len(self.utterances)):  # nobody stays paused for ever
            yield LAST, Playhead(number, 10**9, LAST)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    count = draw(st.integers(1, 10))
    said = st.builds(
        Utterance,
        at=instants,
        frames=st.integers(0, 70),
        text_tokens=st.sampled_from([1, 31, 32, 33, 90, 400, 2100]),
        rows=st.sampled_from([1, 1, 2, 5]),
        follows=st.none() | st.integers(0, count - 1),
    )
    utterances = draw(st.lists(said, min_size=count, max_size=count))
    if draw(st.booleans()):  # one long reply
        utterances = [replace(one, at=0.01 * i, follows=i - 1 if i else None) for i, one in enumerate(utterances)]
    playhead = st.tuples(instants, ids, st.floats(0, 6), st.booleans(), st.floats(0, 1))
    return Scenario(
        tuple(utterances),
        tuple(draw(st.lists(st.tuples(instants, ids), max_size=5))),
        tuple(draw(st.lists(playhead, max_size=12))),
        draw(instants),
        draw(st.integers(0, 3)),
    )


class Unspun(ScriptedInbox):
    """Sleeps must lead somewhere: never into the past, never to now."""

    def __init__(self, clock: FakeClock, script: Iterable[tuple[float, Event]]) -> None:
        super().__init__(clock, script)
        self._now = clock.now

    def wait(self, until: float | None) -> None:
        assert until is None or until > self._now()
        super().wait(until)


@dataclass
class Life:
    """What the device has seen of one request."""

    slots: tuple[int, ...]
    pages: tuple[tuple[int, ...], ...]
    length: int
    prefilled: int = 0
    drawn: int = 0
    """Codes 0 drawn."""
    made: int = 0
    decoded: int = 0


@dataclass
class Strict:
    """A device that accepts only steps that a real one could run, three times slower for a second."""

    clock: FakeClock
    device: TimedExecutor
    predictor: Predictor
    slow_from: float
    lives: dict[int, Life] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)
    steps: list[tuple[float, Step]] = field(default_factory=list)

    def run(self, step: Step) -> StepResult:
        self.steps.append((self.clock.now(), step))
        assert 1 <= step.batch <= LIMITS.max_batch[step.stage]
        numbers = [row.request_id for row in step.rows]
        assert len(set(numbers)) == len(numbers)
        assert not self.over & set(numbers), "a request that has ended is run"
        for row in step.rows:
            self.check(step.stage, row)
        if step.stage is Stage.CODEC:
            assert {row.count for row in step.rows} == {step.length} <= set(chunking.LADDER)
        assert (step.batch == 1 and step.length <= SMALLEST[step.stage]) or self.predictor.predict(step) <= 0.050
        started = self.clock.now()
        result = self.device.run(step)
        if self.slow_from <= started < self.slow_from + 1.0:
            self.clock.advance(2 * (self.clock.now() - started))
        return result

    def check(self, stage: Stage, row: Row) -> None:
        if stage is Stage.TEXT:
            self.admit(row)
            return
        life = self.lives[row.request_id]
        assert (row.slots, row.admission) == (life.slots, None)
        match stage:
            case Stage.PREFILL:
                assert row.start == life.prefilled
                assert 1 <= row.count <= LIMITS.max_prefill_tokens
                life.prefilled += row.count
                assert row.final == (life.prefilled == life.length)
                life.drawn += row.final
            case Stage.DEPTH:
                assert row.start == life.made == life.drawn - 1
                life.made += 1
            case Stage.DECODE:
                assert row.start == life.drawn - 1 == life.made - 1
                life.drawn += 1
            case Stage.CODEC:
                assert row.start == life.decoded
                life.decoded += row.count
                assert life.decoded <= life.made

    def admit(self, row: Row) -> None:
        assert row.admission is not None
        prompt, pages = row.admission.prompt, row.admission.pages
        assert row.request_id not in self.lives
        assert len(row.slots) == len(pages) == len(prompt.rows)
        assert all(16 * len(own) >= one.length + MAX_FRAMES for own, one in zip(pages, prompt.rows, strict=True))
        others = [life for number, life in self.lives.items() if number not in self.over]
        own, taken = {p for one in pages for p in one}, {p for life in others for one in life.pages for p in one}
        assert len(own) == sum(map(len, pages))
        assert not own & taken
        assert own <= set(range(1, LIMITS.num_pages + 1))
        assert not set(row.slots) & {slot for life in others for slot in life.slots}
        assert set(row.slots) <= set(range(1, LIMITS.num_slots + 1))
        self.lives[row.request_id] = Life(row.slots, pages, prompt.length)


@dataclass
class Run:
    outputs: list[tuple[float, Output]]
    strict: Strict
    scheduler: Scheduler
    waits: int


def play(scenario: Scenario) -> Run:
    clock, predictor, outputs = FakeClock(), Predictor(), list[tuple[float, Output]]()
    frames = {number: said.frames for number, said in enumerate(scenario.utterances)}
    strict = Strict(clock, TimedExecutor(clock, PriorCosts(scenario.seed), frames), predictor, scenario.slow_from)
    scheduler = Scheduler(SPEC, LIMITS, predictor)
    inbox = Unspun(clock, scenario.events())

    def deliver(output: Output) -> None:
        outputs.append((clock.now(), output))
        if not isinstance(output, Chunk):
            strict.over.add(output.request_id)

    run(inbox, scheduler, strict, predictor, clock, deliver)
    return Run(outputs, strict, scheduler, inbox.waits)


def check_outputs(said: Utterance, outputs: list[Output]) -> None:
    """One request's outputs: contiguous chunks, then one end, with true figures."""
    *chunks, end = outputs
    frame = 0
    for chunk in chunks:
        assert isinstance(chunk, Chunk)
        assert (chunk.first_frame, chunk.epoch) == (frame, 7)
        assert len(chunk.pcm) == SPEC.samples_per_frame * len(chunk.codes)
        frame += len(chunk.codes)
    assert not any(chunk.final for chunk in chunks[:-1] if isinstance(chunk, Chunk))
    if isinstance(end, Failed):
        assert not chunks
        assert (end.code is ErrorCode.BUSY) == (end.retry_after is not None)
        return
    assert isinstance(end, Finished)
    assert (end.stats.num_frames, end.epoch) == (frame, 7)
    if end.reason is not FinishReason.CANCELLED:
        assert frame == min(said.frames, MAX_FRAMES)
        assert (end.reason is FinishReason.LENGTH) == (said.frames >= MAX_FRAMES)


@settings(max_examples=120, deadline=None)
@given(scenarios())
def test_every_scenario_ends_well(scenario: Scenario) -> None:
    played = play(scenario)
    for number, said in enumerate(scenario.utterances):
        outputs = [output for _, output in played.outputs if output.request_id == number]
        assert sum(not isinstance(output, Chunk) for output in outputs) == 1
        check_outputs(said, outputs)
    assert played.scheduler.plan(2 * LAST) is None
    values = played.scheduler.snapshot()
    assert (values["slots_free"], values["pages_free"]) == (LIMITS.num_slots, LIMITS.num_pages)
    assert (values["requests_queued"], values["requests_active"]) == (0.0, 0.0)
    events = sum(1 for _ in scenario.events())
    assert played.waits <= len(played.strict.steps) + events + 1


@settings(max_examples=20, deadline=None)
@given(scenarios())
def test_the_same_seed_gives_the_same_trace(scenario: Scenario) -> None:
    first, second = play(scenario), play(scenario)
    assert first.strict.steps == second.strict.steps
    assert [(at, said(output)) for at, output in first.outputs] == [(at, said(output)) for at, output in second.outputs]


def said(output: Output) -> tuple[object, ...]:
    """The output without its arrays, which == would compare element by element."""
    if isinstance(output, Chunk):
        return output.request_id, output.first_frame, len(output.pcm), output.slack, output.final
    return (output,)


def test_a_crowd_larger_than_the_engine_is_served_to_the_last() -> None:
    crowd = [Utterance(1.5 * i, 40, follows=i - 3 if i % 4 == 3 else None) for i in range(24)]
    played = play(Scenario(tuple(crowd), (), (), 3.0, 0))
    assert sum(isinstance(output, Finished) for _, output in played.outputs) == 24
