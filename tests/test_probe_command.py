"""The command `breezert probe` from its options to its files, against real servers in processes of their own."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from faulty_agent import serving

from agent.opus import OpusEncoder
from agent.probe import command, judging, run
from agent.probe.call import Target
from agent.probe.command import main, origin, shown, token
from agent.probe.judging import Judges, expects, judged, reply_seconds
from agent.probe.outcome import PEAK_SECONDS, Outcome
from agent.probe.recording import RATE, Packet, Recording, Said, Told
from agent.probe.report import FIGURES, UNITS
from agent.probe.run import Lateness, Plan, Run, at_once, rehearsals
from agent.probe.scenario import Cue, Expectation, Scenario, Step, built_in

WITHIN = 60.0
ASKING = """
about: Somebody asks for something short & <b>odd</b>.
kind: user_interruption
sources: [https://example.org/paper]
steps:
  - name: ask
    after: connected
    wait: [0.2, 0.4]
    sound: stop
expect:
  - answers: ask
    within_ms: 8000
  - absent: long_packets
seconds: 3
limit: 10
"""
LATE = {"irregular_pacing", "gap", "clock_drift"}
"""What a machine that has too much to do is found to do, whoever the agent is."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Of a server with agents of all kinds; see faulty_agent."""
    with serving() as address:
        yield address


@pytest.fixture
def asking(tmp_path: Path) -> Path:
    file = tmp_path / "asking.yaml"
    file.write_text(ASKING)
    return file


def read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data


# ---- trials -------------------------------------------------------------------------------------------------------


def test_an_agent_that_does_as_expected(
    url: str, asking: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    secret = tmp_path / "token"
    secret.write_text("not-to-be-seen\n")
    address = f"{url}/perfect/good/offer"
    argv = [address, "--scenario", str(asking), "--trials", "2", "--seed", "7", "--quiet", f"--token-file={secret}"]
    status = main([*argv, "--json", str(out), "--html", str(page)])
    data = read(out)
    assert set(data["findings"]) <= LATE
    assert data["good"] is not bool(data["findings"])
    assert status == (0 if data["good"] else 1)
    assert data["command"] == (
        f"breezert probe {address} --scenario asking.yaml --trials 2 --seed 7 --quiet --token-file=token "
        "--json out.json --html out.html"
    )
    assert (data["interrupted"], data["protocol"], data["seed"]) == (False, "offer", 7)
    assert {"cpu", "cores", "python", "aiortc", "av", "date"} <= set(data["machine"])
    found = data["scenarios"]["asking"]
    assert (found["trials"], found["held"]) == (2, 2)
    assert found["expectations"] == {
        "answers ask within 8000 ms": {"held": 2, "of": 2},
        "no long packets": {"held": 2, "of": 2},
    }
    assert found["figures"]["response_ms"]["count"] == 2
    assert set(found["figures"]["response_ms"]) == {"count", "p50", "p95", "p99", "max"}
    assert [(trial["trial"], trial["held"]) for trial in data["trials"]] == [(0, True), (1, True)]
    assert str(tmp_path) not in out.read_text() + page.read_text()
    assert "not-to-be-seen" not in out.read_text() + page.read_text()
    text = page.read_text()
    assert "All 4 expectations held" in text
    assert "short &amp; &lt;b&gt;odd&lt;/b&gt;" in text
    assert text.count('class="wave"') == 2
    said = capsys.readouterr()
    assert "asking" in said.err
    assert said.out == ""


def test_an_agent_that_does_not_answer(
    url: str, asking: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    argv = [f"{url}/answers=False/mute/offer", "--scenario", str(asking), "--trials", "1", "--quiet"]
    assert main([*argv, "--json", str(out)]) == 1
    data = read(out)
    assert data["good"] is False
    assert data["findings"]["no_answer"] == 1
    assert data["trials"][0]["held"] is False
    said = capsys.readouterr().err
    assert "answers ask within 8000 ms: 0 of 1" in said
    assert "no_answer" in said


def test_a_reply_that_has_to_be_known_is_rehearsed(url: str, tmp_path: Path) -> None:
    """Whoever wants to speak in a reply's last moments calls once before, and listens to its end."""
    late = built_in()["at_the_last_word"]
    (rehearsal, key), *others = rehearsals(late)
    assert ([step.name for step in rehearsal.steps], key, others) == (["question"], "question", [])
    assert Plan((late,), 1, 1, 1).rehearsed
    assert not Plan((built_in()["question"],), 1, 1, 1).rehearsed
    out = tmp_path / "out.json"
    argv = [f"{url}/perfect/late/offer", "--scenario", "at_the_last_word", "--trials", "1", "--quiet"]
    main([*argv, "--json", str(out)])
    (trial,) = read(out)["trials"]
    assert "missed" not in trial, "the reply's length was known, so its last word was spoken over"


def test_an_interrupt_leaves_no_call_and_writes_what_there_is(url: str, asking: Path, tmp_path: Path) -> None:
    out, page, tag = tmp_path / "out.json", tmp_path / "out.html", f"{url}/perfect/interrupted"
    argv = [f"{tag}/offer", "--scenario", str(asking), "--trials", "50", "--parallel", "1", "--quiet"]
    argv += ["--json", str(out), "--html", str(page)]
    with subprocess.Popen([sys.executable, "-m", "agent.probe.command", *argv], stderr=subprocess.PIPE) as process:
        try:
            first = wait_for_call(tag, "")
            wait_for_call(tag, first)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=WITHIN)
        finally:
            process.kill()
    assert process.returncode == 130
    assert b"Traceback" not in err
    data = read(out)
    assert data["interrupted"] is True
    assert 1 <= len(data["trials"]) < 50
    assert "interrupted" in page.read_text()
    assert truth(tag)["ended_at"] is not None, "the last call was hung up"


def wait_for_call(tag: str, before: str) -> str:
    """The next call's name, once it is up."""
    give_up_at = time.monotonic() + WITHIN
    while time.monotonic() < give_up_at:
        found = truth(tag)
        if found.get("connected_at") is not None and found["id"] != before:
            return str(found["id"])
        time.sleep(0.05)  # the server is another process: nothing here tells
    raise AssertionError("there was no call")


def truth(tag: str) -> dict[str, Any]:
    """What the server knows of the last call to this agent; empty where there was none."""
    try:
        with urlopen(f"{tag}/truth", timeout=10) as response:
            found: dict[str, Any] = json.load(response)
            return found
    except HTTPError:
        return {}


async def test_the_first_error_ends_all_others() -> None:
    """And each of them is waited for."""
    ended, begun = list[int](), list[int]()

    async def job(number: int) -> None:
        begun.append(number)
        try:
            if number == 1:
                raise ValueError("the second")
            await asyncio.sleep(60)  # justified: until it is cancelled
        finally:
            ended.append(number)

    with pytest.raises(ValueError, match="the second"):
        await at_once([partial(job, number) for number in range(9)], 3)
    assert sorted(ended) == sorted(begun) == [0, 1, 2]


async def test_a_server_without_room_is_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter([0.01, 0.01, None])

    async def busy(target: Target, scenario: Scenario, trial: int, seed: int, **more: Any) -> Recording:
        return Recording(scenario.name, trial, seed, "offer", 0.0, answered_at=1.0, busy_for=next(calls))

    monkeypatch.setattr(run, "call", busy)
    monkeypatch.setattr(run, "LEAST_SECONDS", 0.0)
    probing = Run(Target("http://127.0.0.1:1"), Any)
    assert (await probing.call(built_in()["question"], 0, 1)).busy_for is None
    assert probing.turned_away == "the server had no room 2 times, and was called again"


async def test_a_probe_that_was_late_itself_says_so() -> None:
    late = Lateness()
    watching = asyncio.create_task(late.watch())
    await asyncio.sleep(0)  # it begins to watch
    assert (late.p99_ms, late.warning) == (0.0, "")
    time.sleep(0.25)  # noqa: ASYNC251 - the loop is held up on purpose
    await asyncio.sleep(0.03)  # its next look, which is late
    watching.cancel()
    assert late.p99_ms > 150
    assert "the probe itself was late" in late.warning


# ---- what is made of a recording ----------------------------------------------------------------------------------

OVER = Scenario(
    "over",
    "user_interruption",
    "Somebody speaks over the agent.",
    (),
    (Step("question", Cue("connected"), "no"), Step("interruption", Cue("agent"), "wait")),
    (
        Expectation("answers", "question", 1500.0),
        Expectation("stops", "interruption", 700.0),
        Expectation("answers", "interruption", 400.0),
        Expectation("absent", absent="gap"),
    ),
)


def recording(*spoken: tuple[float, float]) -> Recording:
    """Dialled at 100 s, with a question from 101 to 102 and an interruption from 104.5 to 106; the agent is a tone."""
    encoder, packets = OpusEncoder(RATE), list[Packet]()
    wave = (8000 * np.sin(2 * np.pi * 440 * np.arange(960) / RATE)).astype(np.int16)
    for n in range(500):
        loud = any(begin <= 100 + 0.02 * n < end for begin, end in spoken)
        packets.append(Packet(n, 960 * n, 1, encoder.encode(wave if loud else 0 * wave), 100 + 0.02 * n))
    said = [Said("question", 101.0, np.full(RATE, 5000, np.int16))]
    said += [Said("interruption", 104.5, np.full(3 * RATE // 2, 5000, np.int16))]
    told = [Told(105.0, "speech.stopped", {"heard_ms": 2000.0}), Told(105.1, "unheard.of", {})]
    return Recording("over", 3, 7, "offer", 100.0, 100.1, 100.2, 110.0, packets, said, told)


def test_a_recording_becomes_figures_and_a_picture() -> None:
    outcome = judged(recording((103.0, 105.0), (107.0, 109.0)), OVER, None)
    assert (outcome.scenario, outcome.trial, outcome.seed, outcome.seconds) == ("over", 3, 7, 10.0)
    assert outcome.figures["stop_ms"] == pytest.approx((560.0,), abs=40)
    assert outcome.figures["response_ms"] == pytest.approx((1040.0, 1040.0), abs=40)
    assert [(check.expects, check.held) for check in outcome.checks] == [
        ("answers question within 1500 ms", True),
        ("falls silent for interruption within 700 ms", True),
        ("answers interruption within 400 ms", False),
        ("no gap", True),
    ]
    assert outcome.picture is not None
    assert [(mark.kind, mark.says) for mark in outcome.picture.marks if mark.kind in ("onset", "claim")] == [
        *(("onset", "question"), ("onset", "interruption"), ("claim", "stopped"))
    ]
    user, agent = (np.frombuffer(each, np.uint8) for each in (outcome.picture.user, outcome.picture.agent))
    assert user[: round(1.0 / PEAK_SECONDS)].max() == 0, "nobody speaks in the first second"
    assert user[round(1.01 / PEAK_SECONDS) : round(1.99 / PEAK_SECONDS)].min() > 10
    assert agent[: round(3.0 / PEAK_SECONDS)].max() == 0
    assert agent[round(3.3 / PEAK_SECONDS) : round(4.8 / PEAK_SECONDS)].min() > 10


def test_all_that_was_measured_is_told_and_the_page_says_what_it_is() -> None:
    outcome = judged(recording((103.0, 105.0), (107.0, 109.0)), OVER, None)
    assert set(outcome.figures) <= set(FIGURES)
    assert {name.rpartition("_")[2] for name in FIGURES} == set(UNITS)
    assert outcome.figures["claimed_over_ms"] == pytest.approx((0.0,), abs=60)
    assert {"answered_ms", "between_p99_ms", "spread_ms", "after_stop_ms"} <= set(outcome.figures)
    assert (outcome.figures["packet_ms"], outcome.figures["between_max_ms"]) == ((20.0,), pytest.approx((20.0,)))
    assert outcome.figures["timestamp_ms"] == (20.0,)
    assert outcome.figures["rate_percent"] == pytest.approx((100.0,))
    assert outcome.figures["drift_ppm"] == pytest.approx((0.0,), abs=0.1)
    packets = ("wrongly_stamped_packets", "lost_packets", "reordered_packets")
    assert [outcome.figures[name] for name in packets] == [(0.0,)] * 3
    assert outcome.takeovers == {"question": True, "interruption": True}


def test_a_finding_keeps_its_size_and_a_check_what_was_assumed() -> None:
    expect = Expectation("resumes", "interruption", 1500.0), Expectation("absent", absent="any")
    outcome = judged(recording((103.0, 105.0), (107.0, 109.0)), replace(OVER, expect=expect), None)
    assert [check.assumed for check in outcome.checks] == [True, False]
    made = recording((103.0, 105.0))
    made.failure = "refused"
    (found,) = judged(made, replace(OVER, expect=expect[1:]), None).findings
    assert (found.name, found.size, found.unit) == ("lost_call", pytest.approx(10.0), "s")
    says = "the call was lost after 10.0 s: refused"
    assert found.data() == {"name": "lost_call", "says": says, "size": 10.0, "unit": "s"}


async def test_a_recording_that_cannot_be_judged_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "LIMIT_SECONDS", 0.2)
    judges = Judges(1)
    try:
        with pytest.raises(TimeoutError, match="it took longer than"):
            await judges.run(time.sleep, 600)
        assert await judges.run(abs, -1) == 1, "the process goes on"
    finally:
        judges.close()


def test_a_rehearsal_tells_how_long_the_reply_is() -> None:
    assert reply_seconds(recording((101.5, 101.8), (106.5, 107.0), (107.6, 109.0))) == pytest.approx(2.5, abs=0.05)
    assert reply_seconds(recording((103.0, 105.0))) is None, "nothing after the user's last sound"


@pytest.mark.parametrize("later", [False, True])
async def test_judging_takes_nothing_from_an_agent_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """Not before all calls are over, unless more are kept than there may be."""
    told, agent = list[str](), Target("http://127.0.0.1:9", "offer", None)

    async def call(target: Target, scenario: Scenario, trial: int, seed: int, **_: object) -> Recording:
        return replace(recording((103.0, 105.0)), trial=trial)

    monkeypatch.setattr(run, "call", call)
    monkeypatch.setattr(run, "STAGGER_SECONDS", 0.0)
    monkeypatch.setattr(run, "MOST_KEPT", 3)
    judges = Judges(1)
    try:
        probing = Run(agent, judges, later=later)
        for trial in range(3):
            await probing.attempt(OVER, trial, 1, told.append)
        if later:
            await judges.run(abs, -1)  # whatever was given to the process before is done
            assert told == [run.CALLED] * 3
        await probing.attempt(OVER, 3, 1, told.append)
        assert run.JUDGED in told or not later, "one is judged before a fourth is kept"
        await probing.settle()
    finally:
        judges.close()
    assert sorted(told) == [run.CALLED] * 4 + [run.JUDGED] * 4
    assert sorted(outcome.trial for outcome in probing.outcomes) == [0, 1, 2, 3]
    assert not any(outcome.failure for outcome in probing.outcomes)


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (Expectation("answers", "", 5000.0), "speaks within 5000 ms of the call's being up"),
        (Expectation("continues", "cough", 300.0), "goes on through cough, silent for 300 ms at most"),
        (Expectation("resumes", "side_talk", 900.0), "goes on after side talk within 900 ms"),
        (Expectation("waits", "begin"), "waits from begin to the next sound, audible for 0 ms at most"),
        (Expectation("absent", absent="any"), "nothing is wrong"),
        (Expectation("absent", absent="late_stop"), "no late stop"),
    ],
)
def test_an_expectation_is_put_into_words(expected: Expectation, words: str) -> None:
    assert expects(expected) == words


# ---- what cannot be probed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("", "expected the URL of an agent"),
        ("http://127.0.0.1:9 --trails 3", "unrecognized arguments: --trails 3"),
        ("http://127.0.0.1:9 --trials 0", "must be at least 1, got 0"),
        ("http://127.0.0.1:9 --protocol sip", "invalid choice: 'sip'"),
        ("--self-check --html out.html", "--self-check makes no page: leave --html out"),
    ],
)
def test_bad_usage_shows_the_usage(argv: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(argv.split())
    assert exit_info.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert "usage: breezert probe" in said


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("127.0.0.1:9", "an agent's address reads like http://"),
        ("http://127.0.0.1:9 --scenario nosuch", "there is no scenario nosuch: expected one of at_the_first_word"),
        ("http://127.0.0.1:9 --scenario nosuch.yaml", "the scenario nosuch.yaml cannot be read"),
        ("http://127.0.0.1:9 --scenario echo --scenario echo", "the scenario echo is named twice"),
        ("http://127.0.0.1:9 --scenario echo --protocol whep", "whep has no microphone"),
        ("http://127.0.0.1:9 --network loss", "a network is described by"),
        ("http://127.0.0.1:9 --token-file nosuch", "nosuch"),
        ("http://127.0.0.1:9 --reference nosuch.wav", "nosuch.wav"),
        ("http://127.0.0.1:9 --json /no/such/folder/out.json", "/no/such/folder/out.json"),
        ("http://127.0.0.1:9 --html -", "--html needs a file"),
        ("http://127.0.0.1:9 --minutes 3", "--minutes needs --peers"),
        ("http://127.0.0.1:9 --kill-engine 3", "--kill-engine needs --peers"),
        ("http://127.0.0.1:9 --talking 1", "--talking needs --peers"),
        ("http://127.0.0.1:9 --growth 5", "--growth needs --peers"),
        ("http://127.0.0.1:9 --peers 2 --trials 3", "--trials does not go with --peers"),
        ("http://127.0.0.1:9 --cycles 2 --trials 3", "--trials does not go with --cycles"),
        ("http://127.0.0.1:9 --peers 2 --talking 3", "--talking 3 of --peers 2: expected no more than there are"),
        ("http://127.0.0.1:9 --server-pid 3", "--server-pid needs --peers or --cycles"),
        ("http://127.0.0.1:9 --peers 2 --minutes 1 --kill-engine 55", "--kill-engine 55 needs --minutes 1.2 or more"),
        ("http://127.0.0.1:9 --peers 2 --minutes 1 --kill-engine 5", "--kill-engine needs a server of this machine"),
    ],
)
def test_what_cannot_be_probed_is_one_line(argv: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*argv.split(), "--quiet"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("breezert probe: ")
    assert says in line


def test_nobody_there(asking: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    argv = ["http://127.0.0.1:9", "--scenario", str(asking), "--quiet", "--json", str(out)]
    assert main(argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be reached" in line
    assert not out.exists(), "there is nothing to write"


def test_somebody_else_there(url: str, asking: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"{url}/no/such/route", "--scenario", str(asking), "--quiet"]) == 2
    assert "404" in capsys.readouterr().err


async def test_calls_begin_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    began = list[float]()

    async def quick(target: Target, scenario: Scenario, trial: int, seed: int, *_: Any, **__: Any) -> Recording:
        began.append(time.monotonic())
        return Recording(scenario.name, trial, seed, "offer", 0.0, answered_at=1.0)

    monkeypatch.setattr(run, "call", quick)
    monkeypatch.setattr(run, "STAGGER_SECONDS", 0.05)
    probing, since = Run(Target("http://127.0.0.1:1"), Any), time.monotonic()
    await asyncio.gather(*(probing.call(built_in()["question"], n, 1) for n in range(4)))
    assert all(at >= since + 0.05 * n - 0.001 for n, at in enumerate(began))


# ---- the rest -----------------------------------------------------------------------------------------------------


def test_the_list_has_every_scenario_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for name, scenario in built_in().items():
        assert name in said
        assert scenario.about.split()[0] in said


def test_a_protocol_without_a_microphone_only_listens() -> None:
    names = [scenario.name for scenario in command.scenarios(None, "whep")]
    assert names == ["listening"]
    assert {one.name for one in built_in().values()} - {one.name for one in command.scenarios(None, "offer")} == {
        "listening"
    }


@pytest.mark.parametrize(
    ("word", "seen"),
    [
        ("http://user:secret@host:8080/api/offer?key=secret", "http://host:8080/api/offer"),
        ("/home/me/out.json", "out.json"),
        ("--json=/home/me/out.json", "--json=out.json"),
        ("loss=5", "loss=5"),
        ("--trials", "--trials"),
    ],
)
def test_others_may_read_the_command(word: str, seen: str) -> None:
    assert shown(word) == seen


def test_the_servers_address_is_that_of_its_route() -> None:
    assert origin("http://127.0.0.1:7860/api/offer?x=1") == "http://127.0.0.1:7860"


@pytest.mark.parametrize("text", ["", "\n", "two\nlines", "ünicode", "x" * 5000])
def test_a_token_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("a-token\n")
    assert token(file) == "a-token"
    file.write_text(text)
    with pytest.raises(command.UsageError, match="holds no token"):
        token(file)


def test_failures_are_counted_by_why() -> None:
    outcomes = [Outcome("a", n, 1, "offer", 1.0, failure="refused" if n else None) for n in range(3)]
    assert command.failures(outcomes) == {"refused": 2}


def test_connecting_and_closing_is_reported(url: str, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "out.html"
    argv = [f"{url}/perfect/cycles/offer", "--cycles", "6", "--parallel", "3", "--quiet"]
    main([*argv, "--json", str(out), "--html", str(page)])
    cycles = read(out)["load"]["cycles"]
    assert (cycles["cycles"], cycles["failed"]) == (6, 0)
    assert cycles["first"]["descriptors"] > 3, "the server's process was found by its port"
    assert "Connect and close" in page.read_text()
