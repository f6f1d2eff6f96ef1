"""Measures what each stage costs on this machine, by running real steps with nobody listening.

It warms an engine up before its first caller, and `calibrate` writes what it measured as a profile. It does not know
what the Predictor makes of the numbers.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from math import inf
from multiprocessing.connection import Connection
from typing import Protocol

import numpy as np
from rich.console import Console
from rich.progress import track

from engine import chunking, encoding
from engine.checks import RequestError
from engine.clock import Clock, MonotonicClock
from engine.core import (
    SPEAKING,
    Admission,
    Chunk,
    Limits,
    Mode,
    ModelSpec,
    Prompt,
    PromptRow,
    Reference,
    Request,
    Row,
    SamplingParams,
    Stage,
    Step,
    StepResult,
    TextSegment,
)
from engine.executor import Executor
from engine.models import Model
from engine.predictor import Predictor
from engine.profile import CostKey, Profile
from engine.reader import reading

PROMPT_TOKENS = 96
"""A sentence of the usual length, where a token is a character."""
SENTENCE = "The train to the coast leaves from platform nine in about twelve minutes. "
MAX_FRAMES = sum(chunking.LADDER)
"""Of a script: each chunk size once."""
WARM_BATCHES = (1, 2)
WARM_ROUNDS = 2
"""Of recordings: the Predictor does not believe a single one."""
HASTY_BATCHES = (1,)
"""Of an engine that is to start at once, slow as it is: a round of eager steps takes a device half a second."""
PROMPTS = (16, 32, 64, 128, 256, 512)
"""Tokens of the prompts that are calibrated: the shapes to which their prefill is padded, while texts are packed."""
FEW = 10
"""Rounds at least of every shape; more are not spent on what no scheduler would choose: steps that share the device
and yet take longer than Limits.max_step_seconds."""
OPENING = frozenset({Stage.TEXT, Stage.PREFILL})


class Runs(Protocol):
    """What runs a step."""

    def run(self, step: Step) -> StepResult: ...


def warm_up(
    model: Model,
    executor: Executor,
    limits: Limits,
    clock: Clock,
    predictor: Predictor,
    wanted: Sequence[int] = WARM_BATCHES,
) -> None:
    """Runs every stage at small batches, so that no first caller pays for first calls.

    The first round at each batch size is thrown away; the others are the Predictor's first observations, two of
    each step, since it does not believe a single one.
    """
    for batch in batches(limits, wanted):
        for i in range(3):
            for step, seconds in exercise(model, executor, limits, batch, clock):
                if i:
                    predictor.observe(step, seconds)
    if model.encoder is not None:
        for step, seconds in listening(executor, model.spec, limits, clock):
            predictor.observe(step, seconds)


def batches(limits: Limits, wanted: Sequence[int]) -> list[int]:
    """The wanted batch sizes that the limits allow."""
    most = min(limits.num_slots, *(limits.max_batch[stage] for stage in SPEAKING))
    return [batch for batch in wanted if batch <= most]


def exercise(
    model: Model, executor: Executor, limits: Limits, batch: int, clock: Clock
) -> Iterator[tuple[Step, float]]:
    """Every stage for `batch` utterances in lockstep, with the chunks 1, 2, 4, 8, 16, and the seconds each step took.

    One frame a chunk is made: the others would cost as much. They use the first slots and pages and leave nothing
    behind: a slot starts anew with its next text step.
    """
    for step in lockstep(model.spec, limits, batch):
        started = clock.now()
        executor.run(step)
        yield step, clock.now() - started


def listening(
    executor: Runs, spec: ModelSpec, limits: Limits, clock: Clock, rounds: int = WARM_ROUNDS
) -> Iterator[tuple[Step, float]]:
    """Recordings becoming codes: pieces of every length for one of them, then as many at once as there are places, in
    pieces of the longest that takes no step longer than Limits.max_step_seconds; the first round is thrown away."""
    longest = encoding.PIECES[0]
    for frames in encoding.PIECES:
        fastest = yield from _listened(executor, heard(spec, 1, frames), clock, rounds)
        if fastest > limits.max_step_seconds:
            break
        longest = frames
    for batch in [batch for batch in limits.batches if 1 < batch <= limits.max_batch[Stage.ENCODE]]:
        fastest = yield from _listened(executor, heard(spec, batch, longest), clock, rounds)
        if fastest > limits.max_step_seconds:
            break


def _listened(executor: Runs, step: Step, clock: Clock, rounds: int) -> Generator[tuple[Step, float], None, float]:
    """The step as often, but for the first time; returns its fewest seconds."""
    fastest = inf
    for i in range(rounds + 1):
        started = clock.now()
        executor.run(step)
        elapsed = clock.now() - started
        if i:
            yield step, elapsed
            fastest = min(fastest, elapsed)
    return fastest


def heard(spec: ModelSpec, batch: int, frames: int) -> Step:
    """The first frames of so many recordings, of silence: what they say costs nothing."""
    samples = np.zeros(frames * spec.samples_per_frame, np.float32)
    rows = (Row(-1 - i, (1 + i,), 0, frames, final=True, samples=samples, recording=samples) for i in range(batch))
    return Step(Stage.ENCODE, tuple(rows))


def lockstep(spec: ModelSpec, limits: Limits, batch: int, tokens: int = PROMPT_TOKENS) -> Iterator[Step]:
    """The steps of `batch` usual utterances."""
    prompts, max_frames = usual(spec, limits, batch, tokens)
    sampling = replace(spec.sampling, max_frames=max_frames, min_frames=0)
    return script(prompts, sampling, limits, frames_a_chunk=1)


def usual(spec: ModelSpec, limits: Limits, batch: int, tokens: int = PROMPT_TOKENS) -> tuple[tuple[Prompt, ...], int]:
    """Prompts as long as a usual sentence and the frames of a whole script, or less where the voice has no room.

    Token 0, which every voice has: what the text says costs nothing, and a voice need not know the letters of ours.
    Each is a token shorter than the one before it: equal ones would be encoded once.
    """
    positions = min(spec.max_positions, limits.num_pages // batch * limits.page_size)
    frames = max(1, min(MAX_FRAMES, positions // 2))
    tokens = max(1, min(tokens, positions - frames))
    lengths = (max(1, tokens - i) for i in range(batch))
    return tuple(Prompt((PromptRow((TextSegment((0,) * length),)),)) for length in lengths), frames


def script(
    prompts: Sequence[Prompt], sampling: SamplingParams, limits: Limits, frames_a_chunk: int = chunking.LADDER[-1]
) -> Iterator[Step]:
    """What the scheduler would plan for these prompts, a slot each, were there nobody else: up to sampling.max_frames,
    in chunks that grow; fewer frames if asked to."""
    rows = [Row(-1 - i, (1 + i,)) for i in range(len(prompts))]
    pairs = list(zip(rows, prompts, strict=True))
    pages = max(pages_needed(prompt, sampling, limits) for prompt in prompts)
    yield Step(Stage.TEXT, tuple(admitted(row, prompt, sampling, pages) for row, prompt in pairs))
    yield from prefill(pairs, limits.max_prefill_tokens)
    yield from speech(rows, sampling.max_frames, frames_a_chunk)


def prefill(pairs: Sequence[tuple[Row, Prompt]], most: int) -> Iterator[Step]:
    """In parts of at most `most` positions."""
    for start in range(0, max(prompt.length for _, prompt in pairs), most):
        parts = [(row, prompt.length, min(most, prompt.length - start)) for row, prompt in pairs]
        rows = [replace(row, start=start, count=n, final=start + n == length) for row, length, n in parts if n > 0]
        yield Step(Stage.PREFILL, tuple(rows))


def speech(rows: Sequence[Row], max_frames: int, frames_a_chunk: int) -> Iterator[Step]:
    """All rows' frames in chunks that grow."""

    def step(stage: Stage, start: int, count: int = 1) -> Step:
        return Step(stage, tuple(replace(row, start=start, count=count) for row in rows))

    first = 0
    for wanted in chunking.LADDER:
        size = min(wanted, max_frames - first)
        if size == 0:
            return
        for frame in range(first, first + min(size, frames_a_chunk)):
            yield step(Stage.DEPTH, frame)
            yield step(Stage.DECODE, frame)
        yield step(Stage.CODEC, first, size)
        first += size


def pages_needed(prompt: Prompt, sampling: SamplingParams, limits: Limits) -> int:
    return -(-(prompt.length + sampling.max_frames) // limits.page_size)


def admitted(row: Row, prompt: Prompt, sampling: SamplingParams, pages: int) -> Row:
    """The row with its admission: a prompt without guidance, and the `pages` that its slot number entitles it to."""
    own = range(1 + (row.slots[0] - 1) * pages, 1 + row.slots[0] * pages)
    return replace(row, count=prompt.text_tokens, admission=Admission(prompt, sampling, (tuple(own),)))


def calibrate(model: Model, executor: Executor, limits: Limits, runs: int, console: Console) -> Profile:
    """The profile of this machine: the samples themselves, not their means, so that tails survive.

    `runs` rounds of an utterance alone, and proportionally fewer of larger batches (no fewer than FEW), evenly mixed so
    that what disturbs the machine for a while disturbs all alike; each batch size after one that is thrown away. A
    process reads the audio meanwhile, as it does when an engine runs. Recordings come last.
    """
    sizes, clock = batches(limits, limits.batches), MonotonicClock()
    for batch in sizes:
        for _ in exercise(model, executor, limits, batch, clock):
            pass
    rounds = {batch: max(min(runs, FEW), runs // batch) for batch in sizes}
    plan = sorted(((i + 0.5) / count, batch, i) for batch, count in rounds.items() for i in range(count))
    with reading() as reader:
        calibration = Calibration(model.spec, executor, limits, reader, clock)
        for _, batch, i in track(plan, description="measuring stages", console=console):
            calibration.round(batch, i)
        if model.encoder is not None:
            calibration.listen(FEW)
    return replace(calibration.profile, tokens_per_char=tokens_per_char(model))


def tokens_per_char(model: Model) -> float:
    """What the voice's tokenizer makes of English text; 1 if it cannot read any. One that only clones reads it like
    somebody of whom nothing but a vector is known."""
    spec = model.spec
    like = None if Mode.PLAIN in spec.modes else Reference("", (), (0.0,) * spec.vector_width)
    try:
        requests = (Request(SENTENCE * n, spec.sampling, reference=like) for n in (1, 2))
        once, twice = (model.prompt(request).text_tokens for request in requests)
    except RequestError:
        return 1.0
    return round((twice - once) / len(SENTENCE), 3)


class Calibration:
    """Collects the seconds that steps take, and in which order they ran."""

    def __init__(self, spec: ModelSpec, executor: Executor, limits: Limits, reader: Connection, clock: Clock) -> None:
        self._spec, self._executor, self._limits, self._reader, self._clock = spec, executor, limits, reader, clock
        self._costs: dict[CostKey, list[float]] = {}
        self._order: list[CostKey] = []

    @property
    def profile(self) -> Profile:
        samples = {key: tuple(seconds) for key, seconds in sorted(self._costs.items())}
        sources = dict.fromkeys(samples, "measured")
        return Profile(self._spec.name, samples, sources, self._limits, order=tuple(self._order))

    def round(self, batch: int, number: int) -> None:
        """Prompts of all lengths with their first chunk; one of them, by number, goes on with the others."""
        lengths = [length for length in self._lengths(batch) if self._opens(batch, length)]
        for length in lengths:
            whole = length == lengths[number % len(lengths)]
            for step in lockstep(self._spec, self._limits, batch, length):
                if step.stage in OPENING or self._matters((step.stage, batch, step.length)):
                    self._run(step)
                if step.stage is Stage.CODEC and not whole:
                    break

    def listen(self, rounds: int) -> None:
        """To recordings."""
        for step, elapsed in listening(self._executor, self._spec, self._limits, self._clock, rounds):
            self._note(step, elapsed)

    def _lengths(self, batch: int) -> list[int]:
        """Of the prompts that there is room for."""
        return sorted({usual(self._spec, self._limits, batch, tokens)[0][0].length for tokens in PROMPTS})

    def _opens(self, batch: int, length: int) -> bool:
        """Whether text and prefill of prompts of this length are worth another round."""
        text = next(lockstep(self._spec, self._limits, batch, length))
        prefill = Stage.PREFILL, batch, min(length, self._limits.max_prefill_tokens)
        return self._matters((text.stage, batch, text.length), prefill)

    def _matters(self, shape: CostKey, *others: CostKey) -> bool:
        """Whether steps of this shape, which come with some of others, are worth another round."""
        seen = [self._costs.get(part, []) for part in (shape, *others)]
        slow = shape[1] > 1 and any(min(seconds, default=0.0) > self._limits.max_step_seconds for seconds in seen)
        return not slow or len(seen[0]) < FEW

    def _run(self, step: Step) -> None:
        started = self._clock.now()
        result = self._executor.run(step)
        elapsed = self._clock.now() - started
        self._note(step, elapsed)
        for row, pcm, codes in zip(step.rows, result.pcm, result.codes, strict=False):  # only codec steps have audio
            self._reader.send(Chunk(row.request_id, 0, row.start, pcm, codes, 0.0))

    def _note(self, step: Step, elapsed: float) -> None:
        key = step.stage, step.batch, step.length
        self._costs.setdefault(key, []).append(max(1e-6, round(elapsed, 6)))
        self._order.append(key)
