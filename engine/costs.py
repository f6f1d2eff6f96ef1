"""What a simulated device takes for its steps, drawn from a profile. It knows neither clock nor scheduler.

Measured steps are slow in spells: a machine is slowed by its neighbours for a while, and then it is not. A profile that
knows the order of its samples keeps the spells, and then so does what is drawn from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from statistics import median
from typing import Protocol

import numpy as np

from engine.core import Stage, Step
from engine.profile import Profile


class Costs(Protocol):
    """Seconds that one run of a step takes, from `now` on."""

    def draw(self, step: Step, now: float) -> float: ...


class Pace:
    """How fast a machine worked while steps ran on it: those of a calibration, or of a run.

    A step that took e seconds and usually takes m did m seconds of work at the rate m / e. Between steps the rate is 1.
    That gives the work done by every instant: a line with a corner at each end of a step. After the last the same time
    begins again.

    Its limits: whatever slowed a step counts as the machine's, though it may have been the step's own; all stages are
    slowed alike, and whether the engine is busy or idle makes no difference; a spell of a kind that did not come during
    these steps never comes.
    """

    def __init__(self, steps: Iterable[tuple[float, float, float]]) -> None:
        """Of each step in their order: the instant at which it began, 0 or later, its seconds, and the usual ones."""
        at, done = [0.0], [0.0]
        for began, seconds, usual in steps:
            if (idle := began - at[-1]) > 0:
                at.append(began)
                done.append(done[-1] + idle)
            at.append(at[-1] + seconds)
            done.append(done[-1] + usual)
        self._at, self._done = np.array(at), np.array(done)

    @classmethod
    def of(cls, profile: Profile) -> Pace:
        """Of a profile with an order, whose steps ran back to back; usual is the median of a shape."""
        usual = {shape: median(seconds) for shape, seconds in profile.samples.items()}
        return cls((0.0, seconds, usual[shape]) for shape, seconds in profile.timeline)

    @property
    def period(self) -> float:
        """Seconds until it begins again."""
        return float(self._at[-1])

    def seconds(self, work: float, at: float) -> float:
        """How long it takes, from the instant `at` on, to do what usually takes `work` seconds."""
        at %= self.period
        rounds, rest = divmod(float(np.interp(at, self._at, self._done)) + work, float(self._done[-1]))
        return rounds * self.period + float(np.interp(rest, self._done, self._at)) - at


class ProfileCosts:
    """Costs of a profile's nearest shape: the smallest that is not smaller than the step in either measure. A step
    larger than all that was measured costs what the part of it costs that was, as many times as it has more work
    (sequences * length), so that costs grow without end.

    With an order, a run begins at some instant of the calibration, by the seed, and a step takes as long as its shape's
    median would have taken at the machine's pace there: a slow step is followed by slow ones. Without, every step is
    one of the shape's samples, whatever the last one was. A `pace` that is given takes the place of the calibration's,
    from its beginning on. The device is `speed` times as fast as the profile's. Raises ValueError if the profile lacks
    a stage.
    """

    def __init__(self, profile: Profile, seed: int = 0, speed: float = 1.0, pace: Pace | None = None) -> None:
        self._random = Random(seed)
        self._speed = speed
        self._measured: dict[Stage, dict[tuple[int, int], tuple[float, ...]]] = {stage: {} for stage in Stage}
        for (stage, sequences, length), seconds in profile.samples.items():
            self._measured[stage][sequences, length] = seconds
        if profile.missing:
            raise ValueError(
                f"profile {profile.name!r} has no samples of {', '.join(profile.missing)}; calibrate all stages"
            )
        self._samples: dict[tuple[Stage, int, int], tuple[float, ...]] = {}
        self._usual: dict[tuple[Stage, int, int], float] = {}
        self._begins, self._pace = 0.0, pace
        if profile.order and pace is None:
            self._pace = Pace.of(profile)
            self._begins = self._random.uniform(0.0, self._pace.period)

    def draw(self, step: Step, now: float) -> float:
        shape = step.stage, step.sequences, step.length
        if self._pace is None:
            return self._random.choice(self.samples(*shape)) / self._speed
        return self._pace.seconds(self.usual(*shape) / self._speed, self._begins + now)

    def usual(self, stage: Stage, sequences: int, length: int) -> float:
        """The median of the samples."""
        shape = stage, sequences, length
        if shape not in self._usual:
            self._usual[shape] = median(self.samples(*shape))
        return self._usual[shape]

    def largest(self, stage: Stage) -> int:
        """The most sequences that were measured: from there on a step costs as much more as it has more of them."""
        return max(sequences for sequences, _ in self._measured[stage])

    def samples(self, stage: Stage, sequences: int, length: int) -> tuple[float, ...]:
        """Those of the nearest shape, scaled if that is smaller."""
        shape = stage, sequences, length
        if shape not in self._samples:
            self._samples[shape] = self._nearest(*shape)
        return self._samples[shape]

    def _nearest(self, stage: Stage, sequences: int, length: int) -> tuple[float, ...]:
        """By what it has in common with the step; of those that have equally much, the smallest."""

        def common(shape: tuple[int, int]) -> int:
            return min(shape[0], sequences) * max(1, min(shape[1], length))

        measured = self._measured[stage]
        if not measured:
            raise ValueError(f"expected a profile with samples of {stage}, got none: calibrate a voice that has it")
        nearest = max(sorted(measured), key=common)
        more = sequences * max(1, length) / common(nearest)
        return tuple(more * seconds for seconds in measured[nearest])
