"""The command `bench determinism`: do a request's codes depend on the shape of the batch that it is padded to?

Within one shape they never do (tests hold that). Across shapes kernels differ by rounding, and a code may tip where two
logits are nearly equal; this counts how often, and how near they were. It knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import zip_longest

import torch
from rich.progress import track
from torch import Tensor

from engine.calibrate import MAX_FRAMES, script
from engine.core import Limits, Request, Stage
from engine.executor import Executor
from engine.models import Model
from engine.sampling import ANY, Filter, Flags, SamplingRows, SamplingState

MAX_MARGIN, MAX_MARGIN_BF16 = 1e-4, 0.1
"""Two logits nearer than this may change places by rounding alone; where activations are bfloat16, whose numbers around
4 are 1/32 apart."""


@dataclass(frozen=True, slots=True)
class Run:
    """One request, alone in a batch of some shape: what was drawn, and how clearly."""

    codes: list[int]
    """Frame after frame, up to the end of speech."""
    margins: list[float]
    """For each code, the first logit's lead over the second."""


@dataclass(frozen=True, slots=True)
class Row:
    """A shape against shape 1."""

    shape: int
    requests: int
    equal_share: float
    largest_margin: float | None
    """Of the codes at which runs parted; None when none did."""
    allowed: float = MAX_MARGIN

    @property
    def ok(self) -> bool:
        return self.largest_margin is None or self.largest_margin < self.allowed


@dataclass(frozen=True, slots=True)
class WatchedFilter(Filter):
    """A filter that writes down the margin of each draw's first row."""

    margins: list[Tensor]

    def note(self, scores: Callable[[], Tensor]) -> None:
        best = scores()[0].topk(2).values
        self.margins.append(best[0] - best[1])

    def scale(self, logits: Tensor) -> Tensor:
        self.note(lambda: logits)
        return Filter.scale(self, logits)


@dataclass(slots=True)
class WatchedSampling(SamplingState):
    """A sampling state whose rows write down the margins of what is drawn."""

    margins: list[Tensor] = field(default_factory=list)

    def rows(self, slots: Tensor, flags: Flags = ANY) -> SamplingRows:
        rows = SamplingState.rows(self, slots, flags)
        return replace(rows, first=self._watch(rows.first), depth=self._watch(rows.depth))

    def _watch(self, kept: Filter) -> WatchedFilter:
        return WatchedFilter(**{f.name: getattr(kept, f.name) for f in fields(kept)}, margins=self.margins)


def compare(
    model: Model, limits: Limits, texts: Sequence[str], shapes: Sequence[int], fused: frozenset[Stage] = frozenset()
) -> list[Row]:
    """Greedy codes of every text at every shape, each against shape 1; by fused kernels in the stages `fused`.

    One request at a time: of the limits' slots and pages one slot's share is enough."""
    limits = replace(limits, num_slots=1, num_pages=limits.num_pages // limits.num_slots)
    runs = {
        shape: run_all(model, replace(limits, batches=(shape,)), texts, fused)
        for shape in track((1, *shapes), description="speaking", transient=True)
    }
    allowed = MAX_MARGIN_BF16 if model.dtype is torch.bfloat16 else MAX_MARGIN
    return [replace(contrast(shape, runs[1], runs[shape]), allowed=allowed) for shape in shapes]


def run_all(model: Model, limits: Limits, texts: Sequence[str], fused: frozenset[Stage] = frozenset()) -> list[Run]:
    """Each text alone, padded to the one shape of the limits' ladder; nothing is captured, so that draws are seen."""
    executor = Executor(model, limits, fused)
    return [run_one(model, executor, limits, text) for text in texts]


def run_one(model: Model, executor: Executor, limits: Limits, text: str) -> Run:
    """One text, greedy, to the end of speech or the longest script."""
    sampling = replace(model.spec.sampling, temperature=0.0, depth_temperature=0.0, min_frames=0, max_frames=MAX_FRAMES)
    prompt = model.prompt(Request(text, sampling))
    sampling = replace(sampling, max_frames=min(MAX_FRAMES, model.spec.max_positions - prompt.length))
    num_slots, num_classes = executor.state.sampling.seen.shape
    watched = WatchedSampling.allocate(num_slots, num_classes, model.device)
    executor.state.sampling = watched
    codes: list[int] = []
    ends: list[bool] = []
    for step in script([prompt], sampling, limits):
        result = executor.run(step)
        codes += result.codes[0].flatten().tolist() if result.codes else ()
        ends += result.ended
    drawn = (ends.index(True) if True in ends else len(ends)) * model.spec.num_codebooks
    return Run(codes[:drawn], [float(margin) for margin in watched.margins])


def contrast(shape: int, alone: Sequence[Run], padded: Sequence[Run]) -> Row:
    """How many runs are equal, and the largest margin at which one of the others left its twin."""
    parted = [margin for a, b in zip(alone, padded, strict=True) if (margin := parting(a, b)) is not None]
    return Row(shape, len(alone), 1 - len(parted) / len(alone), max(parted, default=None))


def parting(alone: Run, padded: Run) -> float | None:
    """The margin of the first draw that differs (the end of speech is drawn, too); None if all are equal."""
    for margin, a, b in zip_longest(alone.margins, alone.codes, padded.codes):
        if a != b:
            return float(margin)
    return None
