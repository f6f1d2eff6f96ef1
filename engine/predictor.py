"""Predicts what a step costs and when a listener runs out of audio. It does not know streams and chooses nothing.

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
from dataclasses import dataclass, field
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
MAX_JITTER = 0.2
"""Seconds of delivery jitter that are allowed for, however much a listener reports: an allowance is urgency."""
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
    }
)
"""Seconds a step, and seconds for each token (TEXT, PREFILL), sequence (DECODE, DEPTH) or frame (CODEC): the order of
magnitude of a voice of 20 M parameters on two CPU cores. The first few steps correct it."""


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
        self._costs: dict[Stage, dict[tuple[int, int], float]] = {stage: {} for stage in Stage}
        """Those asked for since the stage last changed."""

    def set(self, stage: Stage, batch: int, length: int, ratio: float) -> None:
        """At this point costs are `ratio` times what is below."""
        if self._curves[stage].setdefault(bucket(length), Curve()).set(batch, ratio):
            self._costs[stage].clear()

    def remove(self, stage: Stage, batch: int, length: int) -> None:
        curves = self._curves[stage]
        curves[length].remove(batch)
        if not curves[length]:
            del curves[length]
        self._costs[stage].clear()

    def cost(self, stage: Stage, batch: int, length: int) -> float:
        costs = self._costs[stage]
        known = costs.get((batch, length))
        if known is None:
            known = costs[batch, length] = self._cost(stage, batch, length)
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
        self._live.set(stage, batch, length, high)
        self._live_mean.set(stage, batch, length, mean * below / self._profile_mean.cost(stage, batch, length))
        self._forget(stage)

    def pace(self, streams: int, limits: Limits, guided: bool = False) -> Pace:
        """What a frame and a chunk cost each of `streams` streams that take turns in the largest batches allowed."""

        def turn(stage: Stage, length: int = 1) -> float:
            rows = min(streams, limits.max_batch[stage])
            while (seconds := cost(stage, rows, length)) > limits.max_step_seconds and rows > 1:
                rows //= 2
            return ceil(streams / rows) * seconds

        def cost(stage: Stage, rows: int, length: int) -> float:
            return self.cost(stage, num_sequences(stage, rows, guided), length)

        codec = {size: turn(Stage.CODEC, size) for size in LADDER}
        alone = {size: self.cost(Stage.CODEC, 1, size) for size in LADDER}
        most = largest(alone, limits.max_step_seconds)
        return Pace(turn(Stage.DECODE), turn(Stage.DEPTH), codec, most, self.margin)

    def _forget(self, stage: Stage) -> None:
        recent = self._recent[stage]
        oldest = next(iter(recent))
        if recent[oldest].seen_at < self._steps[stage] - FORGET_AFTER:
            del recent[oldest]
            self._live.remove(stage, *oldest)
            self._live_mean.remove(stage, *oldest)


@dataclass(slots=True)
class PlaybackClock:
    """Where one listener stands in all that one reply says; positions are seconds of audio since its beginning.

    Without word from the listener it is taken to run from the first delivery on, and to stand still only where there
    is nothing to play. Playhead events put it right.
    """

    origin: float | None = None
    """While it runs: the instant at which position 0 was played, had there been no pause. None: nothing delivered."""
    still: float | None = None
    """The position at which it stands still."""
    at: float = -inf
    """When the listener last said where it stands."""
    jitter: float = 0.0

    @property
    def known(self) -> bool:
        """Whether the listener ever said where it stands."""
        return self.at > -inf

    def move(self, position: float, at: float, running: bool, jitter: float) -> None:
        """The listener says where it stands. Older news than the last, and what is no instant, is ignored; a jitter
        that is no number above 0 is none."""
        if not self.at <= at < inf:  # also false for NaN, which would poison every slack
            return
        self.at, self.jitter = at, min(jitter, MAX_JITTER) if jitter > 0 else 0.0
        self.still = None if running else position
        if running:
            self.origin = at - position

    def deliver(self, position: float, now: float) -> None:
        """Audio from `position` on arrives; a clock that had already come there has been waiting for it."""
        if self.still is None and (self.origin is None or self.origin + position < now):
            self.origin = now - position

    def reaches(self, position: float, now: float) -> float:
        """The instant at which the listener is at `position`: the deadline of what comes next. It moves along with
        `now` while the clock stands still; whoever stands still at `position` itself has starved since saying so."""
        if self.still is not None:
            return now + position - self.still if position > self.still else min(now, self.at)
        return now if self.origin is None else self.origin + position

    def nears(self, position: float, lead: float) -> float:
        """The instant at which the listener is `lead` before `position`; infinite if it stands still farther away, long
        past if it never said where it is."""
        if not self.known:
            return -inf
        if self.still is not None:
            return inf if position - self.still > lead else -inf
        return -inf if self.origin is None else self.origin + position - lead


@dataclass(slots=True)
class Playback:
    """One utterance's place on its listener's clock: what was delivered of it begins at `offset`."""

    clock: PlaybackClock = field(default_factory=PlaybackClock)
    offset: float = 0.0
    delivered: float = 0.0
    """Seconds of audio."""

    @property
    def end(self) -> float:
        return self.offset + self.delivered

    @property
    def paused(self) -> bool:
        """The listener stands still before the end of what was delivered."""
        return self.clock.still is not None and self.clock.still < self.end

    def deliver(self, seconds: float, now: float) -> None:
        self.clock.deliver(self.end, now)
        self.delivered += seconds

    def deadline(self, now: float) -> float:
        """When all that was delivered has been played."""
        return self.clock.reaches(self.end, now)

    def left(self, now: float) -> float:
        """Seconds in which the next chunk has to be out, to arrive in time."""
        return self.clock.reaches(self.offset + self.delivered, now) - self.clock.jitter - now

    def due_at(self, max_lead: float) -> float:
        """When less than max_lead seconds of it are left to play, for a listener who says where it stands."""
        return self.clock.nears(self.end, max_lead)
