"""The throughput bound by hand, and the searches for load and capacity against a runner whose answers are known."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

import pytest

from engine.capacity import (
    Capacity,
    Search,
    bound,
    cheapest,
    failing,
    load_at,
    load_with_gaps,
    ratio,
    remembering,
    sweep,
)
from engine.contest import Race, Result, result, speed
from engine.core import Stage
from engine.costs import ProfileCosts
from engine.profile import Profile
from engine.simulator import LIMITS
from engine.traffic import Utterance

SECONDS = {Stage.TEXT: 0.008, Stage.PREFILL: 0.016, Stage.DECODE: 0.004, Stage.DEPTH: 0.012, Stage.CODEC: 0.032}
LENGTHS = (1, 2, 4, 8, 16, 64, 256)
FLAT = Profile("flat", {(stage, batch, n): (s,) for stage, s in SECONDS.items() for batch in (1, 8) for n in LENGTHS})
"""A step costs the same whatever its batch, so a request in a batch of 8 costs an eighth."""


def test_the_bound_by_hand() -> None:
    frame = (0.004 + 0.012 + 0.032 / 16) / 8
    assert bound(FLAT, [Utterance(0.0, 25)]) == pytest.approx(2.0 / (0.001 + 0.002 + 25 * frame))
    long = Utterance(9.0, 50, text_tokens=512)  # two parts of its prompt, and twice the longest text that was measured
    assert bound(FLAT, [long]) == pytest.approx(4.0 / (2 * 0.001 + 2 * 0.002 + 50 * frame))
    both = [Utterance(0.0, 25), long]
    assert bound(FLAT, both) == pytest.approx(6.0 / (0.009 + 75 * frame))


def test_the_bound_of_guided_requests_and_of_an_engine_with_larger_batches() -> None:
    sixteen = replace(LIMITS, max_batch=dict.fromkeys(Stage, 16))
    wide = Profile("wide", {(stage, 16, n): (s,) for stage, s in SECONDS.items() for n in LENGTHS}, limits=sixteen)
    frame = (0.004 + 0.012 + 0.032 / 16) / 16
    assert bound(wide, [Utterance(0.0, 25)]) == pytest.approx(2.0 / (0.024 / 16 + 25 * frame))
    linear = {(stage, batch, n): (s * batch,) for stage, s in SECONDS.items() for batch in (1, 2, 4) for n in LENGTHS}
    pairs = replace(LIMITS, max_batch=dict.fromkeys(Stage, 2))
    guided = bound(Profile("linear", linear, limits=pairs), [Utterance(0.0, 25, rows=2)])
    assert guided == pytest.approx(2.0 / (0.008 + 2 * 0.016 + 25 * (2 * 0.004 + 2 * 0.012 + 0.032 / 16)))


def test_the_bound_takes_smaller_batches_and_chunks_where_they_cost_less() -> None:
    samples = {
        (stage, batch, n): (s * batch**1.5,) for stage, s in SECONDS.items() for batch in (1, 8) for n in LENGTHS
    }
    samples |= {(Stage.CODEC, 1, n): (0.001 * n * n,) for n in LENGTHS}
    assert bound(Profile("alone", samples), [Utterance(0.0, 25)]) == pytest.approx(2.0 / (0.024 + 25 * 0.017))


@pytest.mark.parametrize("rows", [1, 2])
def test_batches_beyond_those_measured_change_no_bound(rows: int) -> None:
    """They cost as much more as they have more requests; a profile may allow very large ones."""
    script = [Utterance(0.0, 25, rows=rows), Utterance(1.0, 60, text_tokens=300, rows=rows)]
    seven, many = (replace(FLAT, limits=replace(LIMITS, max_batch=dict.fromkeys(Stage, n))) for n in (8, 1024))
    assert bound(many, script) == bound(seven, script)
    assert cheapest(ProfileCosts(FLAT), many.limits or LIMITS, Stage.DEPTH, False, 1) == 0.012 / 8


def test_loads_have_four_digits() -> None:
    assert [load_at(71.62402, steps) for steps in (0, 1, -24, 0.5)] == [71.62, 75.21, 22.21, 73.39]


def outcome(race: Race, *, gaps: int = 0, refused: int = 0, ttfa: float = 0.02) -> Result:
    """Of a run of ten requests."""
    return Result(race, 10, (ttfa,) * 10, gaps, 0.1 * gaps, refused, 30.0, 0.0, 1.0, 10.0, 500)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (outcome(Race()), ""),
        (outcome(Race(), gaps=1, ttfa=9.0), "gaps"),
        (outcome(Race(), refused=1, gaps=1), "refused"),
        (outcome(Race(), ttfa=0.1), ""),
        (outcome(Race(), ttfa=0.101), "first audio"),
        (replace(outcome(Race()), ttfa=()), "first audio"),
    ],
)
def test_why_a_load_does_not_hold(result: Result, why: str) -> None:
    assert failing(result, unloaded=0.02) == why


@pytest.mark.parametrize("top", [-60, -57, -25, -1, 0, 3, 17, 40])
def test_a_search_finds_the_highest_step_that_holds(top: int) -> None:
    search, tried = Search(), 0
    while (step := search.next_step) is not None:
        assert step not in search.found
        search.found[step] = "" if step <= top else "gaps"
        tried += 1
    assert search.held == top
    assert search.limited_by == ("gaps" if top < 40 else "nothing")
    assert tried <= 20


def test_a_search_ends_where_nothing_holds() -> None:
    search = Search()
    while (step := search.next_step) is not None:
        search.found[step] = "first audio"
    assert (search.held, search.failed, search.limited_by) == (None, -60, "first audio")


def test_a_load_that_holds_above_one_that_fails_does_not_count() -> None:
    search = Search({-8: "", -4: "gaps", 0: "", 4: "gaps"})
    assert (search.held, search.failed, search.next_step) == (-8, -4, -6)


LIMIT = {"newest-first": 40.0, "predictor": 90.0, "run-to-completion": 0.0, "fixed-chunks": 60.0}
"""Load up to which no request has a gap; with seed 1 a tenth more."""
UNLOADED = {"fixed-chunks": 0.2}
"""Seconds to first audio, of others 0.02; from a load of 80 on, ten times as long."""


class Runs:
    """A runner with known answers: above LIMIT, a gap for each whole stream more."""

    def __init__(self) -> None:
        self.races: list[Race] = []

    def __call__(self, races: Sequence[Race], what: str) -> list[Result]:
        self.races += races
        return [self.answer(race) for race in races]

    def answer(self, race: Race) -> Result:
        assert race.load is not None
        over = race.load - LIMIT[race.policy] * (1 + 0.1 * (race.seed == 1))
        ttfa = UNLOADED.get(race.policy, 0.02) * (1 if race.load < 80 else 10)
        return outcome(race, gaps=max(0, min(10, ceil(over))), ttfa=ttfa)


def test_a_sweep_finds_capacities_curves_and_the_load() -> None:
    runs = Runs()
    found = sweep(tuple(LIMIT), (0, 1), Race(requests=10), 50.0, runs)
    assert found.bound == 50.0
    assert found.unloaded_ms == {"newest-first": 20, "predictor": 20, "run-to-completion": 20, "fixed-chunks": 200}
    assert 40.0 < found.load <= 40.4, "one of 20 is more than 14 of 300"
    first, ours, none, slow = (found.common[name] for name in LIMIT)
    assert first == Capacity((39.18, 43.19), {"gaps": 2})
    assert load_at(50.0, -5) == 39.18 <= 40.0 < load_at(50.0, -4)
    assert ours == Capacity((77.57, 77.57), {"first audio": 2}), "from 80 on callers wait ten times as long"
    assert none == Capacity((0.0, 0.0), {"gaps": 2})
    assert slow == Capacity((0.0, 0.0), {"first audio": 2}), "even unloaded ten times as long as the Predictor"
    assert found.own == found.common | {"fixed-chunks": Capacity((57.88, 63.81), {"gaps": 2})}
    assert (first.median, ours.median) == (41.185, 77.57)
    assert found.rated_load == 77.57, "the Predictor's capacity"
    assert replace(found, common={"predictor": none}).rated_load is None
    assert replace(found, common={"newest-first": first}).rated_load is None
    assert (ratio(found.common, "predictor"), ratio(found.own, "newest-first")) == (pytest.approx(1.8834, abs=1e-4), 1)
    assert ratio(found.own, "fixed-chunks") == pytest.approx((57.88 + 63.81) / 2 / 41.185)
    assert list(found.curves) == list(LIMIT)
    curve = found.curves["newest-first"]
    assert list(curve) == [load_at(50.0, steps) for steps in range(-24, 5, 4)]
    assert [one.requests_with_gaps for one in curve.values()] == [0, 0, 0, 0, 0, 2, 16, 20]
    assert [one.requests for one in curve.values()] == [20] * 8
    assert len(runs.races) == len(set(runs.races)), "nothing is run twice"
    assert len(runs.races) < 160


def test_the_second_limit_costs_no_second_search() -> None:
    """Where it changes nothing, only one unloaded run for each seed is added."""
    runs = Runs()
    sweep(("newest-first",), (0, 1), Race(requests=10), 50.0, runs)
    assert [race.policy for race in runs.races].count("predictor") == 2, "their first audio is the common limit"
    assert [race.load for race in runs.races].count(0.1) == 4
    assert len(runs.races) < 40


def test_a_fast_device_bears_more_than_the_bound_and_a_slow_one_less() -> None:
    """Loads and bound go by the profile, not by the device of the run."""
    most, requests = bound(FLAT, Race(load=1.0, requests=60).script), 60
    fast, slow = (min(range(50), key=lambda seed: sign * speed(seed)) for sign in (-1, 1))
    assert speed(fast) > 1.2 > 0.83 > speed(slow)
    gaps = {seed: result(Race("round-robin", most, seed, requests), FLAT).requests_with_gaps for seed in (fast, slow)}
    assert gaps[fast] < gaps[slow]


def test_a_ratio_needs_newest_first() -> None:
    alone = {"predictor": Capacity((3.0,), {})}
    assert ratio(alone, "predictor") is None
    assert ratio(alone | {"newest-first": Capacity((0.0,), {})}, "predictor") is None
    assert ratio(alone | {"newest-first": Capacity((2.0,), {})}, "predictor") == 1.5


def gaps_from(share: Callable[[float], float]) -> Callable[[Sequence[Race], str], list[Result]]:
    """A runner: of 1000 requests, share(load) have gaps."""

    def runner(races: Sequence[Race], what: str) -> list[Result]:
        return [
            replace(outcome(race), requests=1000, requests_with_gaps=int(1000 * share(race.load or 0)))
            for race in races
        ]

    return runner


@pytest.mark.parametrize("where", [3.0, 31.4, 50.0, 120.0])
def test_the_load_at_which_14_of_300_have_gaps(where: float) -> None:
    """47 of 1000 is the first whole number that is enough, 46 is not."""
    runner = gaps_from(lambda load: 0.047 if load >= where else 0.0465)
    assert where <= load_with_gaps(Race("newest-first"), (0, 1, 2), 50.0, runner) <= 1.0101 * where


@pytest.mark.parametrize(("share", "says"), [(0.0, "at no load"), (1.0, "at every load")])
def test_there_may_be_no_such_load(share: float, says: str) -> None:
    with pytest.raises(ValueError, match=f"newest-first has 4.7% of its requests with gaps {says}"):
        load_with_gaps(Race("newest-first"), (0,), 50.0, gaps_from(lambda _: share))


def test_what_was_run_is_remembered() -> None:
    runs = Runs()
    runner = remembering(runs)
    some = [Race("predictor", 10.0, seed) for seed in (0, 1)]
    assert runner(some, "a") == [runs.answer(race) for race in some]
    assert runner([some[1], Race("predictor", 20.0), some[0]], "b")[2] == runs.answer(some[0])
    assert runner(some, "c") == [runs.answer(race) for race in some]
    assert runs.races == [*some, Race("predictor", 20.0)]
    twice = [Race("predictor", 30.0)] * 2
    assert runner(twice, "d") == [runs.answer(race) for race in twice]
    assert runs.races.count(twice[0]) == 1
