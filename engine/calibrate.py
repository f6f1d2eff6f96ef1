"""Measures what each stage costs on this machine, by running real steps with nobody listening.

It warms an engine up before its first caller, and `calibrate` writes what it measured as a profile. It does not know
what the Predictor makes of the numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.progress import track

from engine import chunking
from engine.clock import Clock, MonotonicClock
from engine.core import Admission, Limits, ModelSpec, Prompt, PromptRow, Row, SamplingParams, Stage, Step, TextSegment
from engine.executor import Executor
from engine.models import Model
from engine.predictor import Predictor

PROMPT_TOKENS = 96
"""A sentence of the usual length, where a token is a character."""
MAX_FRAMES = sum(chunking.LADDER)
"""Of a script: each chunk size once."""
WARM_BATCHES = (1, 2)


def warm_up(model: Model, executor: Executor, limits: Limits, clock: Clock, predictor: Predictor) -> None:
    """Runs every stage at small batches, so that no first caller pays for first calls.

    The first round at each batch size is thrown away; the others are the Predictor's first observations, two of
    each step, since it does not believe a single one.
    """
    for batch in batches(limits, WARM_BATCHES):
        for i in range(3):
            for step, seconds in exercise(model, executor, limits, batch, clock):
                if i:
                    predictor.observe(step, seconds)


def batches(limits: Limits, wanted: Sequence[int]) -> list[int]:
    """The wanted batch sizes that the limits allow."""
    return [batch for batch in wanted if batch <= min(limits.num_slots, *limits.max_batch.values())]


def exercise(
    model: Model, executor: Executor, limits: Limits, batch: int, clock: Clock
) -> Iterator[tuple[Step, float]]:
    """Every stage for `batch` utterances in lockstep, with the chunks 1, 2, 4, 8, 16, and the seconds each step took.

    One frame a chunk is made: the others would cost as much. They use the first slots and pages and leave nothing
    behind: a slot starts anew with its next text step.
    """
    prompt, max_frames = usual(model.spec, limits, batch)
    sampling = replace(model.spec.sampling, max_frames=max_frames, min_frames=0)
    for step in script(prompt, sampling, limits, batch, frames_a_chunk=1):
        started = clock.now()
        executor.run(step)
        yield step, clock.now() - started


def usual(spec: ModelSpec, limits: Limits, batch: int) -> tuple[Prompt, int]:
    """A prompt as long as a usual sentence and the frames of a whole script, or less where the voice has no room.

    Token 0, which every voice has: what the text says costs nothing, and a voice need not know the letters of ours.
    """
    positions = min(spec.max_positions, limits.num_pages // batch * limits.page_size)
    frames = max(1, min(MAX_FRAMES, positions // 2))
    tokens = max(1, min(PROMPT_TOKENS, positions - frames))
    return Prompt((PromptRow((TextSegment((0,) * tokens),)),)), frames


def script(
    prompt: Prompt, sampling: SamplingParams, limits: Limits, batch: int, frames_a_chunk: int = chunking.LADDER[-1]
) -> Iterator[Step]:
    """What the scheduler would plan for `batch` equal prompts, were there nobody else: up to sampling.max_frames, in
    chunks that grow; fewer frames if asked to."""
    rows = [Row(-1 - i, (1 + i,)) for i in range(batch)]

    def step(stage: Stage, start: int = 0, count: int = 1, final: bool = False) -> Step:
        return Step(stage, tuple(replace(row, start=start, count=count, final=final) for row in rows))

    yield Step(Stage.TEXT, tuple(admitted(row, prompt, sampling, limits) for row in rows))
    for start in range(0, prompt.length, limits.max_prefill_tokens):
        count = min(limits.max_prefill_tokens, prompt.length - start)
        yield step(Stage.PREFILL, start, count, final=start + count == prompt.length)
    first = 0
    for wanted in chunking.LADDER:
        size = min(wanted, sampling.max_frames - first)
        if size == 0:
            return
        for frame in range(first, first + min(size, frames_a_chunk)):
            yield step(Stage.DEPTH, frame)
            yield step(Stage.DECODE, frame)
        yield step(Stage.CODEC, first, size)
        first += size


def admitted(row: Row, prompt: Prompt, sampling: SamplingParams, limits: Limits) -> Row:
    """The row with its admission: a prompt without guidance, and the pages that its slot number entitles it to."""
    pages = -(-(prompt.length + sampling.max_frames) // limits.page_size)
    own = range(1 + (row.slots[0] - 1) * pages, 1 + row.slots[0] * pages)
    return replace(row, count=prompt.text_tokens, admission=Admission(prompt, sampling, (tuple(own),)))


def calibrate(model: Model, executor: Executor, limits: Limits, runs: int, console: Console) -> dict[str, object]:
    """The profile of this machine as JSON data: the samples themselves, not their means, so that tails survive.

    `runs` rounds at every batch size of the ladder that the limits allow, after one round that is thrown away.
    """
    clock = MonotonicClock()
    costs: dict[tuple[Stage, int, int], list[float]] = {}
    plan = [(batch, i) for batch in batches(limits, limits.batches) for i in range(runs + 1)]
    for batch, i in track(plan, description="measuring", console=console):
        for step, seconds in exercise(model, executor, limits, batch, clock):
            if i:
                costs.setdefault((step.stage, step.batch, step.length), []).append(round(seconds, 6))
    return {
        "voice": model.spec.name,
        "costs": [
            {"stage": stage, "batch": batch, "length": length, "source": "measured", "seconds": seconds}
            for (stage, batch, length), seconds in sorted(costs.items())
        ],
    }
