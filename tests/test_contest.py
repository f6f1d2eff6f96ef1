"""Races and what is counted of them: literal listeners and results, and that every policy meets the same callers."""

from dataclasses import replace
from math import inf

import pytest

from engine import estimate, profiles
from engine.capacity import bound
from engine.contest import SPEEDS, Figures, Race, Result, counted, figures, result, run, speed, unrefusing
from engine.core import ErrorCode, Failed, Limits, Queued
from engine.costs import ProfileCosts
from engine.listener import Listener
from engine.policies import PREDICTOR
from engine.simulator import Simulation, simulate
from engine.traffic import SPEC, Moods, Utterance

RACE = Race("newest-first", 40.0, seed=7)
SOUND = Result(RACE, 3, (0.02, 0.03, 0.04), 0, 0.0, 0, audio=12.0, unheard=0.0, busy=1.0, elapsed=4.0, steps=90)
POOR = Result(RACE, 3, (0.01, 0.05), 2, 0.25, 1, audio=8.0, unheard=3.0, busy=3.0, elapsed=6.0, steps=80)


def listener(number: int, said: Utterance, *arrivals: tuple[float, float]) -> Listener:
    """Who heard chunks (instant, seconds)."""
    out = Listener(number, said)
    for at, seconds in arrivals:
        out.hear(seconds, at)
    return out


def test_a_chunk_after_first_delivery_and_audio_before_it_is_a_gap() -> None:
    heard = (
        listener(0, Utterance(1.0, 10), (1.5, 0.5), (2.0, 0.5)),
        listener(1, Utterance(1.0, 10), (1.25, 0.5), (2.0, 0.5), (2.75, 0.25)),
        listener(2, Utterance(2.0, 10, hears=0.5), (2.125, 2.0)),
        listener(3, Utterance(3.0, 10)),
    )
    refusal = Failed(3, 0, ErrorCode.TOO_LONG, "too long")
    heard[3].end = refusal
    metrics = {"device_busy_seconds_total": 2.5, "steps_total": 40.0}
    run = Simulation(heard, [(0.5, refusal), (3.5, refusal)], elapsed=9.0, metrics=metrics)
    assert counted(RACE, run) == Result(
        RACE,
        requests=4,
        ttfa=(0.125, 0.25, 0.5),
        requests_with_gaps=1,
        max_extra_buffer=0.5,  # the third chunk of 1: 2.75 - (1.25 + 0.5 + 0.5)
        refused=1,
        audio=4.25,
        unheard=1.5,
        busy=2.5,
        elapsed=3.5,
        steps=40,
        most_at_once=3,
    )


def test_figures_are_pooled() -> None:
    assert figures([SOUND, POOR]) == Figures(
        requests=6,
        refused=1,
        requests_with_gaps=2,
        worst_requests_with_gaps=2,
        max_extra_buffer_ms=250.0,
        ttfa_p50_ms=30.0,  # of 10, 20, 30, 40, 50
        ttfa_p95_ms=50.0,
        ttfa_p99_ms=50.0,
        rtf=0.2,
        throughput=2.0,
        idle_share=0.6,
        audio_seconds=20.0,
        unheard_seconds=3.0,
    )


def test_figures_of_a_run_in_which_nobody_heard_anything() -> None:
    silent = Result(RACE, 1, (), 0, 0.0, 1, audio=0.0, unheard=0.0, busy=0.0, elapsed=0.0, steps=0)
    assert figures([silent]) == Figures(1, 1, 0, 0, 0.0, None, None, None, None, 0.0, 1.0, 0.0, 0.0)


def test_a_seed_is_a_device_of_another_speed() -> None:
    speeds = [speed(seed) for seed in range(200)]
    assert speeds == [speed(seed) for seed in range(200)]
    assert SPEEDS[0] <= min(speeds) < 0.82 < 1.22 < max(speeds) <= SPEEDS[1]
    assert 90 < sum(value < 1 for value in speeds) < 110


def test_admission_is_off() -> None:
    limits = unrefusing(Limits(num_slots=3, max_queued=1, max_wait=0.5))
    assert (limits.num_slots, limits.max_queued, limits.max_wait) == (3, 1_000_000, inf)


def test_every_slot_has_pages_for_the_longest_request() -> None:
    assert unrefusing(Limits(num_slots=8, num_pages=512)).num_pages == 8 * 128
    assert unrefusing(Limits(num_slots=3, page_size=15), replace(SPEC, max_positions=31)).num_pages == 3 * 3


def test_nobody_waits_for_pages() -> None:
    """Eight at once on an engine of eight slots, whose own voice has half the positions."""
    few = Limits(num_slots=8, num_pages=512)
    profile = replace(estimate.profile(), limits=few)
    script = tuple(Utterance(0.0, 30) for _ in range(8))
    simulation = run(Race(trace=script), profile)
    assert not any(isinstance(output, Queued) for _, output in simulation.outputs)
    assert max(x.ttfa or inf for x in simulation.listeners) < 0.06


def test_every_policy_has_the_same_callers() -> None:
    first = replace(RACE, requests=5, moods=Moods(100.0, 0.5, 0.5)).script
    second = replace(RACE, requests=5, moods=Moods(100.0, 0.5, 0.5), policy="predictor").script
    assert first == second
    assert [said.at for said in replace(RACE, requests=4, burst=2).script][::2] == [
        said.at for said in replace(RACE, requests=4, burst=2).script
    ][1::2]


def test_a_trace_brings_its_own_callers_and_keeps_their_moods() -> None:
    said = Utterance(0.5, 30, rate=1.01, hears=1.0)
    assert Race(trace=(said,)).script == [said]
    assert Race(trace=(said,), moods=Moods(barge_ins=1.0), seed=3).script != [said]


def test_without_a_load_nobody_comes() -> None:
    with pytest.raises(ValueError, match="expected a load or a trace, got neither"):
        _ = Race().script


def test_the_same_race_gives_the_same_result() -> None:
    race, profile = Race("fixed-wait", 20.0, seed=1, requests=5), estimate.profile()
    lines: list[str] = []
    first, second = result(race, profile), result(race, profile, lines.append)
    assert first == second
    assert len(first.ttfa) == first.requests == 5
    assert len(lines) >= first.steps, "a line for each step, and for each wait"
    assert result(replace(race, seed=2), profile) != first


H200 = profiles.read(profiles.find("h200-estimate"))
"""With its load: where newest-first has gaps."""


@pytest.mark.parametrize("seed", [0, 4, 6])
def test_sixteen_at_once(seed: int) -> None:
    """All start, nobody has a gap, and the Predictor pays little for that in first audio."""
    baselines = ("newest-first", "round-robin", "run-to-completion", "urgency-margin")
    races = [Race(name, H200.load, seed, requests=16, burst=16) for name in (PREDICTOR, *baselines)]
    ours, *theirs = (result(race, H200) for race in races)
    assert len({said.at for said in ours.race.script}) == 1
    assert (len(ours.ttfa), ours.refused, ours.requests_with_gaps) == (16, 0, 0)
    p95, *others = (figures([one]).ttfa_p95_ms or inf for one in (ours, *theirs))
    assert p95 <= 1.25 * min(others)


@pytest.mark.parametrize("seed", [6, 8])
def test_at_the_load_of_the_profile_only_others_have_gaps(seed: int) -> None:
    ours, first = (result(Race(name, H200.load, seed, requests=200), H200) for name in (PREDICTOR, "newest-first"))
    assert len(ours.ttfa) == len(first.ttfa) == 200
    assert (ours.requests_with_gaps, ours.max_extra_buffer) == (0, 0.0)
    assert first.requests_with_gaps > 0


@pytest.mark.parametrize("seed", [0, 7])
def test_beyond_the_bound_who_is_admitted_has_no_gap_and_who_is_not_knows_at_once(seed: int) -> None:
    """With the admission that races do without."""
    race = Race(load=1.0, seed=seed, requests=150)
    script = replace(race, load=1.3 * bound(H200, race.script)).script
    known, drawn = H200.halves(seed)
    limits = replace(unrefusing(H200.limits or Limits()), max_wait=2.0)
    simulation = simulate(script, ProfileCosts(drawn, seed, speed(seed)), limits=limits, profile=known)
    refused = {o.request_id: at - script[o.request_id].at for at, o in simulation.outputs if isinstance(o, Failed)}
    served = [x for x in simulation.listeners if x.request_id not in refused]
    assert len(refused) > 5
    assert max(refused.values()) <= 0.050
    assert len(served) > 75
    assert all(x.audio == pytest.approx(0.08 * x.said.frames) and x.extra_buffer == 0 for x in served)
