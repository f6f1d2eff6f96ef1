"""Finds how much load a policy bears, and how much any could. It runs nothing itself: races are handed to a runner.

Loads are steps of 5 % up and down from the device's throughput bound. Every fourth is run with all policies and seeds,
which gives the curves. Then each policy's capacity is looked for with each seed by itself: between the lowest of these
loads that fails and the one that holds below it, by halving. So a higher load that holds again does not count.

A load holds if nobody was refused, no request has a gap, and the p95 of first audio is at most five times the unloaded
one, at a load of 0.1 with the same seed: the same texts on a device of the same speed. The same runs are judged twice.
The common limit goes by the Predictor's unloaded p95, whatever the policy, since it is the callers who wait. The own
limit goes by that of the policy itself: one whose first chunk takes longer is not blamed for that again under load.

Bound and loads are by the profile's own costs, while each run's device is 0.8 to 1.25 times as fast (contest.speed): on
a fast device a load above the bound can hold, on a slow one none near it does. (And a run of fewer callers than the
device can sustain at once holds at any load.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import inf
from statistics import fmean, median

from engine.chunking import LADDER
from engine.contest import Figures, Race, Result, figures
from engine.core import Limits, Stage, num_sequences
from engine.costs import ProfileCosts
from engine.metrics import quantile
from engine.policies import PREDICTOR, newest_first
from engine.profile import Profile
from engine.simulator import LIMITS
from engine.traffic import SPEC, Utterance

GRID = 1.05
"""Ratio of one load to the one a step below."""
COARSE = 4
"""Steps between the loads that are run with all policies and seeds."""
CURVE = range(-24, 5, COARSE)
"""Those loads, in steps from the bound: 0.31 to 1.22 of it."""
LOWEST, HIGHEST = -60, 40
"""Steps beyond which nothing is looked for: 0.05 and 7 times the bound."""
UNLOADED = 0.1
SLOWER = 5.0
"""How many times as long as unloaded first audio may take."""
GAPS = 14 / 300
"""Share of newest-first's requests that have gaps at the load which is stored with a profile."""
PRECISION = 1.01
"""Ratio of that load to one at which there are fewer."""

Runner = Callable[[Sequence[Race], str], Sequence[Result]]
"""Runs races and gives their results in the same order; the text says what they are for."""


def bound(profile: Profile, script: Sequence[Utterance]) -> float:
    """The highest mean number of streams that a device with the profile's mean costs could sustain for these callers:
    text and prompts included, every step in full batches and every chunk the largest (or smaller ones, where a request
    costs less in them)."""
    limits = profile.limits or LIMITS
    share = cache(partial(cheapest, ProfileCosts(profile), limits))
    codec = min(share(Stage.CODEC, False, size) / size for size in LADDER)

    def seconds(said: Utterance) -> float:
        guided, parts = said.rows > 1, range(0, said.text_tokens, limits.max_prefill_tokens)
        prompt = [min(limits.max_prefill_tokens, said.text_tokens - start) for start in parts]
        frame = share(Stage.DECODE, guided, 1) + share(Stage.DEPTH, guided, 1) + codec
        text = share(Stage.TEXT, guided, said.text_tokens * said.rows)
        return text + sum(share(Stage.PREFILL, guided, length) for length in prompt) + said.frames * frame

    return sum(said.frames for said in script) * SPEC.frame_seconds / sum(map(seconds, script))


def cheapest(costs: ProfileCosts, limits: Limits, stage: Stage, guided: bool, length: int) -> float:
    """Seconds for each request, in a step of as many as make that least. More than were measured are no cheaper."""
    batches = range(1, min(limits.max_batch[stage], costs.largest(stage)) + 1)
    return min(fmean(costs.samples(stage, num_sequences(stage, batch, guided), length)) / batch for batch in batches)


def load_at(bound: float, steps: float) -> float:
    """The load so many steps above the bound, in four digits, so that it can be told exactly."""
    return float(f"{bound * GRID**steps:.4g}")


def failing(result: Result, unloaded: float) -> str:
    """Why a load does not hold, or nothing if it does. `unloaded` is the p95 of first audio, in seconds."""
    if result.refused:
        return "refused"
    if result.requests_with_gaps:
        return "gaps"
    return "" if result.ttfa and quantile(result.ttfa, 0.95) <= SLOWER * unloaded else "first audio"


@dataclass(slots=True)
class Search:
    """Looks for one policy's capacity with one seed, by what was found at some steps of the grid."""

    found: dict[int, str] = field(default_factory=dict)
    """Step to what `failing` says."""

    @property
    def failed(self) -> int | None:
        """The lowest step that fails."""
        return min((step for step, why in self.found.items() if why), default=None)

    @property
    def held(self) -> int | None:
        """The highest step that holds, below all that fail."""
        top = inf if self.failed is None else self.failed
        return max((step for step, why in self.found.items() if not why and step < top), default=None)

    @property
    def next_step(self) -> int | None:
        """Where to look next; None: nowhere, `held` is it."""
        held, failed = self.held, self.failed
        if held is None:
            step = 0 if failed is None else failed - COARSE
            return step if step >= LOWEST else None
        if failed is None:
            return held + COARSE if held + COARSE <= HIGHEST else None
        return (held + failed) // 2 if failed - held > 1 else None

    @property
    def limited_by(self) -> str:
        return "nothing" if self.failed is None else self.found[self.failed]


@dataclass(frozen=True, slots=True)
class Capacity:
    """Of one policy, by seed, under one limit of first audio."""

    loads: tuple[float, ...]
    """0: no load held."""
    limited_by: Mapping[str, int]
    """Why the next load did not hold, and with how many seeds."""

    @property
    def median(self) -> float:
        return median(self.loads)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweep over loads found."""

    bound: float
    load: float
    """The lowest, to 1 %, at which at least 14 of 300 of newest-first's requests have gaps, in the mean over seeds."""
    unloaded_ms: Mapping[str, float | None]
    """p95 of first audio by policy, all seeds together."""
    curves: Mapping[str, Mapping[float, Figures]]
    """By policy and load."""
    common: Mapping[str, Capacity]
    """By policy; first audio takes at most five times as long as the Predictor's, unloaded."""
    own: Mapping[str, Capacity]
    """By policy; first audio takes at most five times as long as the policy's own, unloaded."""

    @property
    def rated_load(self) -> float | None:
        """What the Predictor bears with every seed, on the slowest device too; None if it took no part, or bears
        nothing. It is the same under both limits."""
        return (min(self.common[PREDICTOR].loads) or None) if PREDICTOR in self.common else None


def sweep(policies: Sequence[str], seeds: Sequence[int], base: Race, bound: float, runner: Runner) -> Sweep:
    """`base` is what all races have in common."""
    runner = remembering(runner)
    calm = unloaded(dict.fromkeys((*policies, PREDICTOR)), seeds, base, runner)
    curves = {name: curve(replace(base, policy=name), seeds, bound, runner) for name in policies}
    common = capacities(dict.fromkeys(policies, calm[PREDICTOR]), bound, runner)
    own = capacities({name: calm[name] for name in policies}, bound, runner)
    load = load_with_gaps(replace(base, policy=newest_first.POLICY.name), seeds, bound, runner)
    return Sweep(bound, load, {name: figures(runs).ttfa_p95_ms for name, runs in calm.items()}, curves, common, own)


def ratio(capacities: Mapping[str, Capacity], policy: str) -> float | None:
    """Of the policy's capacity to newest-first's; None where that has none or did not take part."""
    first = capacities.get(newest_first.POLICY.name)
    return capacities[policy].median / first.median if first and first.median else None


def remembering(runner: Runner) -> Runner:
    """The same, but what was run before is not run again."""
    known: dict[Race, Result] = {}

    def run(races: Sequence[Race], what: str) -> Sequence[Result]:
        new = [race for race in dict.fromkeys(races) if race not in known]
        if new:
            known.update(zip(new, runner(new, what), strict=True))
        return [known[race] for race in races]

    return run


def unloaded(policies: Iterable[str], seeds: Sequence[int], base: Race, runner: Runner) -> dict[str, Sequence[Result]]:
    """A run a seed, by policy, in which hardly anybody meets anybody."""
    races = {name: [replace(base, policy=name, load=UNLOADED, seed=seed) for seed in seeds] for name in policies}
    runner([race for own in races.values() for race in own], "unloaded")
    return {name: runner(own, "unloaded") for name, own in races.items()}


def curve(race: Race, seeds: Sequence[int], bound: float, runner: Runner) -> dict[float, Figures]:
    """A policy's figures at the coarse loads, each of all seeds together."""
    loads = [load_at(bound, step) for step in CURVE]
    races = [replace(race, load=load, seed=seed) for load in loads for seed in seeds]
    results = runner(races, race.policy)
    count = len(seeds)
    return {load: figures(results[i * count : (i + 1) * count]) for i, load in enumerate(loads)}


def capacities(unloaded: Mapping[str, Sequence[Result]], bound: float, runner: Runner) -> dict[str, Capacity]:
    """By policy, given the unloaded runs that its first audio is held against, one for each seed. All searches at once,
    one more load each in every round, so that the runner always has many races."""
    limits = {
        replace(one.race, policy=name): quantile(one.ttfa, 0.95) for name, runs in unloaded.items() for one in runs
    }
    searches = {race: Search() for race in limits}
    todo = [(race, step) for race in limits for step in CURVE]
    while todo:
        tried = [replace(race, load=load_at(bound, step)) for race, step in todo]
        for (race, step), result in zip(todo, runner(tried, "capacities"), strict=True):
            searches[race].found[step] = failing(result, limits[race])
        todo = [(race, more) for race, search in searches.items() if (more := search.next_step) is not None]
    return {name: _capacity([s for race, s in searches.items() if race.policy == name], bound) for name in unloaded}


def _capacity(searches: Sequence[Search], bound: float) -> Capacity:
    loads = tuple(0.0 if search.held is None else load_at(bound, search.held) for search in searches)
    return Capacity(loads, Counter(search.limited_by for search in searches))


def load_with_gaps(race: Race, seeds: Sequence[int], bound: float, runner: Runner) -> float:
    """The lowest load, to 1 %, at which the mean over the seeds is at least GAPS. It is searched for as capacities are,
    then by halving the step that was found. Raises ValueError if there is none."""

    def many(steps: float) -> bool:
        load = load_at(bound, steps)
        results = runner([replace(race, load=load, seed=seed) for seed in seeds], f"{race.policy} at load {load:g}")
        return fmean(one.requests_with_gaps / one.requests for one in results) >= GAPS

    search = Search()
    while (step := search.next_step) is not None:
        search.found[step] = "gaps" if many(step) else ""
    if search.held is None or search.failed is None:
        often = "at no" if search.failed is None else "at every"
        raise ValueError(f"{race.policy} has {GAPS:.1%} of its requests with gaps {often} load: there is none to store")
    low, high = float(search.held), float(search.failed)
    while load_at(bound, high) / load_at(bound, low) > PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if many(middle) else (middle, high)
    return load_at(bound, high)
