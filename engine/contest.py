"""Compares scheduling policies on the same simulated callers: gaps, first audio, capacity. It schedules nothing.

Every run draws its device's speed from 0.8 to 1.25 of the profile's, which no policy is told, and what a policy knows
beforehand comes from other samples than those that its steps are drawn from. All is the same for every policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from random import Random

from engine.core import Failed, Limits
from engine.profile import Profile
from engine.simulator import LIMITS, ProfileCosts, Simulation, simulate
from engine.traffic import Moods, Utterance, moody, poisson

SPEEDS = (0.8, 1.25)


@dataclass(frozen=True, slots=True)
class Race:
    """One policy's run."""

    policy: str
    load: float
    seed: int
    requests: int = 300
    burst: int = 1
    moods: Moods = field(default_factory=Moods)
    trace: tuple[Utterance, ...] = ()

    @property
    def script(self) -> Sequence[Utterance]:
        plain = self.trace or poisson(self.requests, self.load, self.seed, burst=self.burst)
        return moody(plain, self.moods, self.seed)


@dataclass(frozen=True, slots=True)
class Result:
    """What one run gave."""

    race: Race
    speed: float
    ttfa: tuple[float, ...]
    """Of everybody who heard anything, sorted; seconds."""
    requests_with_gaps: int
    max_extra_buffer: float
    """Seconds."""
    refused: int
    audio: float
    """Seconds made; `unheard` of them for nobody."""
    unheard: float
    busy: float
    """Seconds of device time, of `elapsed`."""
    elapsed: float
    steps: float


def speed(seed: int) -> float:
    """Of the device, in the run of that seed: as likely half of the range's ratio up as down."""
    return exp(Random(f"speed {seed}").uniform(log(SPEEDS[0]), log(SPEEDS[1])))


def run(race: Race, profile: Profile) -> Simulation:
    known, drawn = profile.halves(race.seed)
    costs = ProfileCosts(drawn, race.seed, speed(race.seed))
    limits = unrefusing(profile.limits or LIMITS)
    return simulate(race.script, costs, limits=limits, profile=known, policy=race.policy)


def unrefusing(limits: Limits) -> Limits:
    return replace(limits, max_queued=10**6)


def result(race: Race, profile: Profile) -> Result:
    simulation = run(race, profile)
    heard = simulation.listeners
    return Result(
        race,
        speed(race.seed),
        tuple(sorted(x.ttfa for x in heard if x.ttfa is not None)),
        sum(x.extra_buffer > 0 for x in heard),
        max((x.extra_buffer for x in heard), default=0.0),
        sum(isinstance(x.end, Failed) for x in heard),
        sum(x.audio for x in heard),
        sum(x.unheard for x in heard),
        simulation.metrics["device_busy_seconds_total"],
        simulation.elapsed,
        simulation.metrics["steps_total"],
    )
