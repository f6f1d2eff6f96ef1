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
from engine.core import Admission, Limits, Prompt, Request, Row, SamplingParams, Stage, Step
from engine.executor import Executor, load
from engine.messages import RuntimeConfig
from engine.models import Model
from engine.predictor import Predictor

SENTENCE = "One sentence of the usual length, so that every stage is seen at work before the first caller."
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
    sampling = replace(model.spec.sampling, max_frames=sum(chunking.LADDER), min_frames=0)
    prompt = model.prompt(Request(SENTENCE, sampling))
    for step in script(prompt, sampling, limits, batch, frames_a_chunk=1):
        started = clock.now()
        executor.run(step)
        yield step, clock.now() - started


def script(
    prompt: Prompt, sampling: SamplingParams, limits: Limits, batch: int, frames_a_chunk: int = chunking.LADDER[-1]
) -> Iterator[Step]:
    """What the scheduler would plan for `batch` equal prompts, were there nobody else; fewer frames if asked to."""
    rows = [Row(-1 - i, (1 + i,)) for i in range(batch)]

    def step(stage: Stage, start: int = 0, count: int = 1, final: bool = False) -> Step:
        return Step(stage, tuple(replace(row, start=start, count=count, final=final) for row in rows))

    yield Step(Stage.TEXT, tuple(admitted(row, prompt, sampling, limits) for row in rows))
    for start in range(0, prompt.length, limits.max_prefill_tokens):
        count = min(limits.max_prefill_tokens, prompt.length - start)
        yield step(Stage.PREFILL, start, count, final=start + count == prompt.length)
    first = 0
    for size in chunking.LADDER:
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


def calibrate(config: RuntimeConfig, runs: int, console: Console) -> dict[str, object]:
    """The profile of this machine as JSON data: the samples themselves, not their means, so that tails survive.

    `runs` rounds at every batch size of the ladder that the limits allow, after one round that is thrown away.
    """
    model, executor, limits = load(config)
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
