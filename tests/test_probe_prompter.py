"""agent/probe/prompter.py and ear.py: when steps begin, with literal times and a scripted agent; no clock runs."""

from __future__ import annotations

import numpy as np
import pytest

from agent.probe.ear import GAP, SILENCE_DB, Ear, level_db
from agent.probe.prompter import Prompter, drawn, reply_key
from agent.probe.scenario import Cue, Scenario, Step

TICK = 0.02
SPEECH_DB, NOISE_DB = -24.0, -47.0


def scenario(*steps: Step, seconds: float = 2.0, limit: float = 30.0) -> Scenario:
    return Scenario("test", "user_interruption", "", (), steps, (), seconds, limit)


def step(name: str, after: str, least: float = 0.0, most: float | None = None, echo_db: float | None = None) -> Step:
    return Step(name, Cue(after, least, least if most is None else most), name, echo_db=echo_db)


def begun(
    told: Scenario,
    *spoken: tuple[float, float],
    durations: dict[str, float] | None = None,
    lengths: dict[str, float] | None = None,
    until: float = 40.0,
    noise: float = SILENCE_DB,
) -> dict[str, float]:
    """When each step began, and when it was over; the call is up at 0, and the agent speaks from and until."""
    durations = {one.name: 1.0 for one in told.steps if one.echo_db is None} | (durations or {})
    prompter, ear, found = Prompter(told, 1, 1, durations, lengths or {}), Ear(), dict[str, float]()
    prompter.connected(0.0)
    for n in range(round(until / TICK)):
        now = round(n * TICK, 6)
        ear.push(SPEECH_DB if any(start <= now < end for start, end in spoken) else noise, now)
        found |= {one.name: now for one in prompter.due(now, ear)}
        if prompter.is_over(now, ear):
            return {**found, "over": now}
    return found


def test_a_step_follows_the_connection_another_step_and_its_end() -> None:
    told = scenario(step("a", "connected", 0.5), step("b", "a", 0.4), step("c", "a.end", 0.4), seconds=1.5)
    assert begun(told) == pytest.approx({"a": 0.5, "b": 0.9, "c": 1.9, "over": 4.4})


def test_a_step_follows_the_agents_answer_not_what_it_said_before() -> None:
    """It greets, is asked meanwhile and falls silent, answers, is interrupted, and answers again."""
    told = scenario(step("ask", "connected", 1.0), step("cut", "agent", 0.5), step("again", "agent", 0.2))
    found = begun(told, (0.2, 1.3), (2.6, 3.4), (4.5, 6.0))
    assert found == pytest.approx({"ask": 1.0, "cut": 3.1, "again": 4.7, "over": 7.98}, abs=0.021)


def test_an_agent_that_never_stops_has_not_answered() -> None:
    told = scenario(step("ask", "connected", 1.0), step("cut", "agent"), limit=10.0)
    assert begun(told, (0.2, 30.0)) == pytest.approx({"ask": 1.0, "over": 10.0})


def test_an_agent_that_speaks_up_and_yields_while_the_user_speaks_has_not_answered() -> None:
    told = scenario(step("ask", "connected", 1.0), step("cut", "agent", 0.5))
    assert begun(told, (1.2, 1.5), (2.5, 5.0))["cut"] == pytest.approx(3.0, abs=0.021)


def test_a_background_and_an_echo_are_not_said() -> None:
    told = scenario(
        step("ask", "connected"), step("noise", "ask.end", 0.5), step("echo", "ask.end", 1.5, echo_db=-20.0),
        step("cut", "agent", 1.0),
    )  # fmt: skip
    found = begun(told, (1.2, 9.0), durations={"noise": 20.0})
    assert found == pytest.approx({"ask": 0.0, "noise": 1.5, "echo": 2.5, "cut": 2.52, "over": 23.5}, abs=0.021)


def test_quiet_is_a_silence_behind_speech_and_behind_the_step() -> None:
    told = scenario(step("ask", "connected"), step("hm", "agent", 0.5), step("next", "quiet", 0.3))
    found = begun(told, (2.0, 2.8), (3.2, 5.0))
    assert found["hm"] == pytest.approx(2.5, abs=0.021)
    assert found["next"] == pytest.approx(5.0 + 0.6 + 0.3, abs=0.041), "a pause of 0.4 s is none"


def test_the_end_of_a_reply_is_known_from_the_rehearsal() -> None:
    last = step("late", "agent_end", 0.25)
    told = scenario(step("ask", "connected"), last)
    assert reply_key(told, last) == "ask"
    assert reply_key(scenario(last), last) == ""
    assert begun(told, (2.0, 6.0), lengths={"ask": 4.0})["late"] == pytest.approx(5.75, abs=0.021)
    assert "late" not in begun(told, (2.0, 6.0)), "without a rehearsal it is missed"


def test_comfort_noise_and_a_click_are_not_the_agent() -> None:
    told = scenario(step("ask", "connected"), step("cut", "agent"))
    assert begun(told, (1.5, 1.52), (3.0, 4.0), noise=NOISE_DB)["cut"] == pytest.approx(3.0, abs=0.041)
    ear = Ear()
    for n in range(200):
        ear.push(NOISE_DB + n % 3, n * TICK)
    assert ear.last_at is None


def test_an_agent_that_speaks_from_its_first_packet_on_is_heard_with_its_pauses_as_one_stretch() -> None:
    ear = Ear()
    for n in range(300):
        ear.push(SPEECH_DB if n % 25 else SILENCE_DB, n * TICK)
    assert (ear.began_at, ear.last_at) == (pytest.approx(TICK), pytest.approx(299 * TICK))
    ear.push(SPEECH_DB, 300 * TICK + GAP)
    ear.push(SPEECH_DB, 301 * TICK + GAP)
    assert ear.began_at == pytest.approx(300 * TICK + GAP)


def test_level_is_of_full_scale() -> None:
    assert level_db(np.full(960, 3277, np.int16)) == pytest.approx(-20.0, abs=0.01)
    assert level_db(np.zeros(960, np.int16)) == SILENCE_DB


def test_a_wait_is_drawn_with_seed_and_trial_whatever_other_steps_there_are() -> None:
    one = step("cut", "agent", 0.6, 1.8)
    draws = {(trial, seed): drawn(one, trial, seed) for trial in range(20) for seed in range(3)}
    assert len(set(draws.values())) == 60
    assert all(0.6 <= wait <= 1.8 for wait in draws.values())
    assert min(draws.values()) < 0.75
    assert max(draws.values()) > 1.65
    assert drawn(step("cut", "quiet", 0.6, 1.8), 4, 2) == draws[4, 2]


def test_a_call_in_which_nothing_happens_ends_with_its_limit() -> None:
    assert begun(scenario(limit=3.0)) == pytest.approx({"over": 3.0})
    assert begun(scenario(seconds=1.0), (0.5, 2.0))["over"] == pytest.approx(2.98, abs=0.021)
    prompter = Prompter(scenario(step("ask", "agent"), seconds=1.0), 1, 1, {"ask": 1.0}, {})
    prompter.connected(5.0)
    assert not prompter.is_over(9.0, Ear(), deaf=True)
    assert prompter.missing == ["ask"]


def test_a_scenario_that_cannot_be_followed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"b waits for c, which is none of connected, .*, quiet, a"):
        Prompter(scenario(step("a", "connected"), step("b", "c")), 1, 1, {}, {})
    with pytest.raises(ValueError, match="two steps are called a"):
        Prompter(scenario(step("a", "connected"), step("a", "agent")), 1, 1, {}, {})
    with pytest.raises(ValueError, match=r"a waits for a\.end"):
        Prompter(scenario(step("a", "a.end")), 1, 1, {}, {})
