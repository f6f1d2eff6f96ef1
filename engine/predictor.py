"""Predicts what a step costs. It does not know streams, nor when anything has to be done, and chooses nothing.

Costs are known in layers, each correcting the one below: the built-in prior (an affine guess), a profile of measured
steps, the steps seen lately. A layer interpolates between the batch sizes that it knows and scales what is below by
its nearest ratio elsewhere, so a size never seen costs what its neighbours suggest, and never nothing. A cost is an
upper quantile, so it holds a margin; the mean is kept beside it. A batch size is a number of sequences, as
core.num_sequences counts them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, inf
from types import MappingProxyType

from engine.chunking import LADDER, largest
from engine.core import Limits, Stage, Step, num_sequences
from engine.metrics import Window
from engine.profile import Profile

QUANTILE = 0.9
OVERRUN_QUANTILE = 0.998
"""Of the time that steps took beyond what was predicted: the margin of every deadline, since one such step may come
between a decision and its end."""
WINDOW = 32
"""Recent steps kept for one stage, length bucket and batch size."""
FORGET_AFTER = 500
"""Steps of a stage after which a batch size not run since is forgotten: what one bad second taught must not keep a
batch size out of use for ever, because then nothing better could be learned."""

PRIOR = MappingProxyType(
    {
        Stage.TEXT: (4e-3, 50e-6),
        Stage.PREFILL: (5e-3, 100e-6),
        Stage.DECODE: (5e-3, 1e-3),
        Stage.DEPTH: (15e-3, 3e-3),
        Stage.CODEC: (5e-3, 4e-3),
        Stage.ENCODE: (2e-3, 10e-3),
    }
)
"""Seconds a step, and seconds for each token (TEXT, PREFILL), sequence (DECODE, DEPTH) or frame (CODEC, ENCODE): the
order of magnitude of a voice of 20 M parameters, and of the published encoder, on two CPU cores. The first few steps
correct it."""


def prior(stage: Stage, sequences: int, length: int) -> float:
    """What the step costs, in seconds, as far as is known before anything was measured."""
    fixed, each = PRIOR[stage]
    return fixed + each * sequences * max(1, length)


@cache
def bucket(length: int) -> int:
    """Lengths with one cost: the next power of two."""
    return 1 << max(0, length - 1).bit_length()


def upper(ordered: Sequence[float]) -> float:
    """The QUANTILE of sorted values, rounded down: one outlier among up to eleven values is left out."""
    return ordered[int(QUANTILE * (len(ordered) - 1))]


def typical(ordered: Sequence[float]) -> float:
    """The mean of sorted values without those above the QUANTILE."""
    usual = ordered[: int(QUANTILE * (len(ordered) - 1)) + 1]
    return sum(usual) / len(usual)


class Curve:
    """Ratios of a layer's costs to those below it, by batch size."""

    def __init__(self) -> None:
        self._batches: list[int] = []
        self._ratios: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def set(self, batch: int, ratio: float) -> bool:
        """Whether that is news."""
        known = self._ratios.get(batch)
        if known is None:
            insort(self._batches, batch)
        self._ratios[batch] = ratio
        return ratio != known

    def shaped_by(self, batch: int) -> tuple[int, float]:
        """Between which batch sizes costs depend on the ratio at this known one: its neighbours, if it has any."""
        index = bisect_left(self._batches, batch)
        low = self._batches[index - 1] if index else 0
        return low, self._batches[index + 1] if index + 1 < len(self._batches) else inf

    def remove(self, batch: int) -> None:
        self._batches.remove(batch)
        del self._ratios[batch]

    def cost(self, batch: int, below: Callable[[int], float]) -> float:
        """The cost at `batch`: on the line between its known neighbours, or with the ratio of the only one."""
        index = min(bisect_left(self._batches, batch), len(self._batches) - 1)
        high = self._batches[index]
        if batch >= high or index == 0:
            return self._ratios[high] * below(batch)
        low = self._batches[index - 1]
        share = (batch - low) / (high - low)
        return self._ratios[low] * below(low) * (1 - share) + self._ratios[high] * below(high) * share


class Layer:
    """Costs that are known at some points, over those of `below`. A length bucket without a point uses the nearest."""

    def __init__(self, below: Callable[[Stage, int, int], float]) -> None:
        self._below = below
        self._curves: dict[Stage, dict[int, Curve]] = {stage: {} for stage in Stage}
        self._costs: dict[Stage, dict[int, dict[int, float]]] = {stage: {} for stage in Stage}
        """By batch and length, those asked for since they last changed: a plan asks for dozens, a step changes few."""

    def set(self, stage: Stage, batch: int, length: int, ratio: float) -> bool:
        """At this point costs are `ratio` times what is below. Whether that is news."""
        curve, costs = self._curves[stage].setdefault(bucket(length), Curve()), self._costs[stage]
        news = curve.set(batch, ratio)
        if news:
            low, high = curve.shaped_by(batch)
            for size in [size for size in costs if low < size < high]:
                del costs[size]
        return news

    def remove(self, stage: Stage, batch: int, length: int) -> None:
        curves = self._curves[stage]
        curves[length].remove(batch)
        if not curves[length]:
            del curves[length]
        self._costs[stage].clear()

    def cost(self, stage: Stage, batch: int, length: int) -> float:
        costs = self._costs[stage].get(batch)
        if costs is None:
            costs = self._costs[stage][batch] = {}
        known = costs.get(length)
        if known is None:
            known = costs[length] = self._cost(stage, batch, length)
        return known

    def _cost(self, stage: Stage, batch: int, length: int) -> float:
        curves, size = self._curves[stage], bucket(length)
        if not curves:
            return self._below(stage, batch, length)
        if size not in curves:
            size = min(curves, key=lambda known: max(known, size) / min(known, size))
        return curves[size].cost(batch, lambda batch: self._below(stage, batch, length))


class Recent:
    """The last ratios seen at one point, after what was believed before: one outlier alone then changes nothing."""

    def __init__(self, believed: list[float]) -> None:
        self._order = deque(believed)
        self._sorted = list(believed)
        self.seen_at = 0

    def add(self, ratio: float) -> tuple[float, float]:
        """Add one and return the upper quantile and the mean."""
        if len(self._order) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._order.append(ratio)
        insort(self._sorted, ratio)
        return upper(self._sorted), typical(self._sorted)


@dataclass(frozen=True, slots=True)
class Pace:
    """What work costs each of some streams while they share the device, in seconds."""

    decode: float
    depth: float
    codec: Mapping[int, float]
    """By chunk size in frames."""
    largest: int
    """Frames of the largest chunk that is worth its time."""
    margin: float
    """What a step may last longer than predicted."""

    @property
    def frame(self) -> float:
        return self.decode + self.depth

    @property
    def whole_frame(self) -> float:
        """With its share of the largest chunk."""
        return self.frame + self.codec[self.largest] / self.largest

    def turn(self, stage: Stage, count: int) -> float:
        """What the slack of a playing stream allows for the step; 0 for its first two stages, which it does alone."""
        match stage:
            case Stage.DECODE:
                return self.decode
            case Stage.DEPTH:
                return self.depth
            case Stage.CODEC:
                return self.codec[count]
        return 0.0


class Predictor:
    """Costs of steps from what was seen lately, on top of a profile (or the built-in prior)."""

    def __init__(self, profile: Profile | None = None) -> None:
        self._profile, self._profile_mean = Layer(prior), Layer(prior)
        self._live, self._live_mean = Layer(self._profile.cost), Layer(self._profile_mean.cost)
        self._profiled = profile is not None
        self._recent: dict[Stage, dict[tuple[int, int], Recent]] = {stage: {} for stage in Stage}
        self._steps = dict.fromkeys(Stage, 0)
        self._overruns = Window()
        self._paces: dict[tuple[int, bool], Pace] = {}
        """Those asked for since a cost last changed, of these limits; and their chunks, since the codec's did."""
        self._chunks: dict[int, tuple[dict[int, float], int]] = {}
        self._limits: Limits | None = None
        for (stage, batch, length), seconds in (profile.samples if profile else {}).items():
            below, ordered = prior(stage, batch, length), sorted(seconds)
            self._profile.set(stage, batch, length, upper(ordered) / below)
            self._profile_mean.set(stage, batch, length, typical(ordered) / below)

    def predict(self, step: Step) -> float:
        """Seconds that the step will take, with the margin of an upper quantile."""
        return self.cost(step.stage, step.sequences, step.length)

    def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
        """The same for a step that is only considered."""
        return self._live.cost(stage, sequences, length)

    def mean(self, stage: Stage, sequences: int, length: int = 1) -> float:
        """Seconds that such steps take on average, without a margin."""
        return self._live_mean.cost(stage, sequences, length)

    @property
    def margin(self) -> float:
        """Seconds by which a step may last longer than predicted."""
        return self._overruns.quantile(OVERRUN_QUANTILE)

    def observe(self, step: Step, elapsed: float) -> None:
        """Learn that the step took `elapsed` seconds."""
        stage, batch, length = step.stage, step.sequences, step.length
        below = self._profile.cost(stage, batch, length)
        recent, key = self._recent[stage], (batch, bucket(length))
        point = recent.pop(key, None)
        if point is not None:  # else it is news of a shape or of another machine, and no overrun
            self._overruns.add(max(0.0, elapsed - self.cost(stage, batch, length)))
        if point is None:
            # what other points say; the built-in prior alone is too rough to doubt a measurement
            measured = self._profiled or recent
            point = Recent([self.cost(stage, batch, length) / below] if measured else [])
        recent[key] = point  # last again: the dict stays in order of last use
        point.seen_at = self._steps[stage] = self._steps[stage] + 1
        high, mean = point.add(max(elapsed, 1e-9) / below)
        if self._live.set(stage, batch, length, high):
            self._changed(stage)
        self._live_mean.set(stage, batch, length, mean * below / self._profile_mean.cost(stage, batch, length))
        self._forget(stage)

    def pace(self, streams: int, limits: Limits, guided: bool = False) -> Pace:
        """What a frame and a chunk cost each of `streams` streams that take turns in the largest batches allowed."""
        if limits is not self._limits:
            self._limits = limits
            self._changed(Stage.CODEC)
        known, margin = self._paces.get((streams, guided)), self.margin
        if known is None or known.margin != margin:
            decode, depth = (self._turn(stage, streams, limits, guided) for stage in (Stage.DECODE, Stage.DEPTH))
            known = Pace(decode, depth, *self._chunk_costs(streams, limits), margin)
            self._paces[streams, guided] = known
        return known

    def _chunk_costs(self, streams: int, limits: Limits) -> tuple[dict[int, float], int]:
        """Pace.codec and Pace.largest."""
        known = self._chunks.get(streams)
        if known is None:
            codec = {size: self._turn(Stage.CODEC, streams, limits, False, size) for size in LADDER}
            alone = {size: self.cost(Stage.CODEC, 1, size) for size in LADDER}
            known = self._chunks[streams] = codec, largest(alone, limits.max_step_seconds)
        return known

    def _turn(self, stage: Stage, streams: int, limits: Limits, guided: bool, length: int = 1) -> float:
        """Seconds until all had their turn, in the largest batches that no step takes too long for."""
        rows = min(streams, limits.max_batch[stage])
        while (seconds := self.cost(stage, num_sequences(stage, rows, guided), length)) > limits.max_step_seconds:
            if rows == 1:
                break
            rows //= 2
        return ceil(streams / rows) * seconds

    def _changed(self, stage: Stage) -> None:
        """That stage's costs have changed."""
        self._paces.clear()
        if stage is Stage.CODEC:
            self._chunks.clear()

    def _forget(self, stage: Stage) -> None:
        recent = self._recent[stage]
        oldest = next(iter(recent))
        if recent[oldest].seen_at < self._steps[stage] - FORGET_AFTER:
            del recent[oldest]
            self._changed(stage)
            self._live.remove(stage, *oldest)
            self._live_mean.remove(stage, *oldest)
