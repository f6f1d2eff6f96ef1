"""Runs one scheduling policy for simulated callers, and counts what they heard. It schedules nothing.

Every run draws its device's speed from 0.8 to 1.25 of the profile's, which no policy is told, and what a policy knows
beforehand comes from other samples than those that its steps are drawn from. With the same seed all is the same for
every policy: callers, device, samples. Admission is off, nobody waits for pages, everybody is served in full unless he
interrupts, and first audio counts from submit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, exp, inf, log
from random import Random

from engine.core import Failed, Limits, ModelSpec
from engine.costs import ProfileCosts
from engine.listener import Listener
from engine.metrics import QUANTILES, quantile
from engine.policies import PREDICTOR
from engine.policy import Explain
from engine.profile import Profile
from engine.simulator import LIMITS, Simulation, simulate
from engine.traffic import SPEC, Moods, Utterance, moody, poisson, written

SPEEDS = (0.8, 1.25)


@dataclass(frozen=True, slots=True)
class Race:
    """One policy's run."""

    policy: str = PREDICTOR
    load: float | None = None
    """Mean number of streams at once; None only where a trace says who comes when."""
    seed: int = 0
    requests: int = 300
    burst: int = 1
    moods: Moods = field(default_factory=Moods)
    trace: tuple[Utterance, ...] = ()
    tokens_per_char: float = 1.0
    text_rate: float | None = None
    """Words a second in which the callers' texts are written; None: they are there, or as the trace has it."""

    @property
    def script(self) -> Sequence[Utterance]:
        """The callers; raises ValueError where neither load nor trace is given."""
        if self.trace:
            return moody(self.trace, self.moods, self.seed)
        if self.load is None:
            raise ValueError("expected a load or a trace, got neither: give one of them")
        callers = poisson(self.requests, self.load, self.seed, burst=self.burst, tokens_per_char=self.tokens_per_char)
        return moody(written(callers, self.text_rate), self.moods, self.seed)


@dataclass(frozen=True, slots=True)
class Result:
    """What one run gave. A gap is a chunk that comes later than first delivery + audio delivered before it."""

    race: Race
    requests: int
    ttfa: tuple[float, ...]
    """Of everybody who heard anything, sorted; seconds."""
    requests_with_gaps: int
    max_extra_buffer: float
    """Seconds by which playback would have had to start later for every gap to be avoided."""
    refused: int
    audio: float
    """Seconds made; `unheard` of them for nobody."""
    unheard: float
    busy: float
    """Seconds of device time, of `elapsed` until the last output."""
    elapsed: float
    steps: int
    text_waits: int = 0
    """Silences because a text that was still being written was late; they are no gaps."""
    most_at_once: int = 0
    """Listeners who heard something at the same instant."""


def speed(seed: int) -> float:
    """Of the device, in the run of that seed: as likely half of the range's ratio up as down."""
    return exp(Random(f"speed {seed}").uniform(log(SPEEDS[0]), log(SPEEDS[1])))


def run(race: Race, profile: Profile, explain: Explain | None = None) -> Simulation:
    """Raises ValueError if the profile lacks a stage."""
    known, drawn = profile.halves(race.seed)
    costs = ProfileCosts(drawn, race.seed, speed(race.seed))
    limits = unrefusing(profile.limits or LIMITS)
    return simulate(
        race.script,
        costs,
        limits=limits,
        profile=known,
        policy=race.policy,
        explain=explain,
        overhead=profile.overhead,
    )


def unrefusing(limits: Limits, spec: ModelSpec = SPEC) -> Limits:
    """The same, with admission off, and with pages for all positions of every slot: those of an engine are meant for
    its own voice, and simulated callers may be given more positions than that has."""
    pages = limits.num_slots * ceil(spec.max_positions / limits.page_size)
    return replace(limits, num_pages=pages, max_queued=10**6, max_wait=inf)


def result(race: Race, profile: Profile, explain: Explain | None = None) -> Result:
    """Of one run."""
    return counted(race, run(race, profile, explain))


def counted(race: Race, simulation: Simulation) -> Result:
    """What the listeners of a run heard."""
    heard = simulation.listeners
    return Result(
        race,
        len(heard),
        tuple(sorted(x.ttfa for x in heard if x.ttfa is not None)),
        sum(x.extra_buffer > 0 for x in heard),
        max((x.extra_buffer for x in heard), default=0.0),
        sum(isinstance(x.end, Failed) for x in heard),
        sum(x.audio for x in heard),
        sum(x.unheard for x in heard),
        simulation.metrics["device_busy_seconds_total"],
        simulation.outputs[-1][0] if simulation.outputs else 0.0,
        int(simulation.metrics["steps_total"]),
        sum(x.text_waits for x in heard),
        most_at_once(heard),
    )


def most_at_once(listeners: Iterable[Listener]) -> int:
    """Of those who heard anything, from their first sample, or where a late text went on, to the end."""
    playing = most = 0
    spans = [(x.plays_at, x.runs_out_at) for x in listeners if x.runs_out_at > x.plays_at]
    for _, change in sorted([edge for begin, end in spans for edge in ((begin, 1), (end, -1))]):
        playing += change
        most = max(most, playing)
    return most


@dataclass(frozen=True, slots=True)
class Figures:
    """What the runs of one policy gave together."""

    requests: int
    refused: int
    requests_with_gaps: int
    worst_requests_with_gaps: int
    """Of one run."""
    max_extra_buffer_ms: float
    ttfa_p50_ms: float | None
    """None where nobody heard anything; the quantiles are of all runs' requests together."""
    ttfa_p95_ms: float | None
    ttfa_p99_ms: float | None
    rtf: float | None
    """Device seconds for a second of audio."""
    throughput: float
    """Seconds of audio made in a second, from the first instant to the last output: streams that were sustained."""
    idle_share: float
    """Of the device's time."""
    audio_seconds: float
    unheard_seconds: float
    """Of those: made, but never heard."""
    text_waits: int = 0
    """See Result."""
    most_at_once: int = 0
    """In one run."""


def figures(results: Sequence[Result]) -> Figures:
    """Pooled over at least one run."""
    ttfa = sorted(seconds for one in results for seconds in one.ttfa)
    audio, busy = sum(one.audio for one in results), sum(one.busy for one in results)
    elapsed = sum(one.elapsed for one in results)
    p50, p95, p99 = (1000 * quantile(ttfa, share) if ttfa else None for share in QUANTILES)
    return Figures(
        sum(one.requests for one in results),
        sum(one.refused for one in results),
        sum(one.requests_with_gaps for one in results),
        max(one.requests_with_gaps for one in results),
        1000 * max(one.max_extra_buffer for one in results),
        p50,
        p95,
        p99,
        busy / audio if audio else None,
        audio / elapsed if elapsed else 0.0,
        1 - busy / elapsed if elapsed else 1.0,
        audio,
        sum(one.unheard for one in results),
        sum(one.text_waits for one in results),
        max(one.most_at_once for one in results),
    )
