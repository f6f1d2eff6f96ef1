"""What `bench bargein` makes of what a listener heard: arithmetic on made-up samples and messages, and two real runs.

How fast the agent is, the bench says; here is what it counts.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent import wrtc
from agent.bench_bargein import (
    ELSEWHERE,
    PARTS,
    SPARE,
    STOPPED_WITHIN_MS,
    WITHIN_MS,
    Trials,
    books,
    kept,
    main,
    rows,
    unlabelled,
)
from agent.bench_silence import (
    FIRST_ONSET,
    TICKS,
    Cycles,
    Silences,
    Speaking,
    Trial,
    began_at,
    forget,
    in_ms,
    microphone,
    next_sound_ms,
    onset_at,
    planned,
    trial,
)
from agent.browser import AUDIBLE, BrowserError, Heard, find_chromium
from agent.probe.outcome import Spread
from agent.sounds import NAMES, RATE, onset, sentence

QUIET, LOUD = AUDIBLE / 2, 0.2
ONSET = 1000.0


def silenced(at: float, **links: float) -> dict[str, Any]:
    return {"type": "speech.silenced", "at": at, "flush_ms": 0.5, "wire_ms": 12.0, **links}


def heard(*loud: tuple[float, float], messages: list[dict[str, Any]] | None = None) -> Heard:
    """One amplitude a millisecond from 0 to 4000, loud inside the given spans."""
    peaks = [[float(at), LOUD if any(a <= at < b for a, b in loud) else QUIET] for at in range(4000)]
    return Heard(peaks=peaks, messages=messages or [])


def spoken(*loud: tuple[float, float], messages: list[dict[str, Any]]) -> Trial | None:
    return trial(heard(*loud, messages=messages), ONSET, WITHIN_MS, 1.0, "wait")


# ---- one trial ----------------------------------------------------------------------------------------------------


def test_the_links_of_a_trial_add_up_to_its_total() -> None:
    cut = {"type": "speech.stopped", "at": 1700.0, "reason": "cancelled"}
    row = spoken((0, 1190), messages=[silenced(1120.0, turn_ms=40.0), cut])
    assert row == Trial("wait", 67.5, 40.0, 0.5, 12.0, 70.0, 190.0, over=True)
    assert row.packet_ms == 12.5


def test_a_stop_has_no_turn_and_its_way_is_what_is_left() -> None:
    stopped = trial(heard((0, 1090), messages=[silenced(1020.0)]), ONSET, STOPPED_WITHIN_MS, 10.0)
    assert stopped == Trial("", 7.5, None, 0.5, 12.0, 79.0, 99.0)


def test_the_answer_that_follows_is_not_the_old_sound() -> None:
    answer = {"type": "speech.started", "at": 2600.0}
    row = spoken((0, 1190), (2650, 4000), messages=[silenced(1120.0, turn_ms=40.0), answer])
    assert row is not None
    assert row.total_ms == 190.0


def test_a_sentence_that_began_before_is_no_answer() -> None:
    before = {"type": "speech.started", "at": 1050.0}
    row = spoken((0, 1190), messages=[before, silenced(1120.0, turn_ms=40.0)])
    assert row is not None
    assert row.total_ms == 190.0


def test_sound_that_comes_back_is_found() -> None:
    row = spoken((0, 1190), (1500, 1600), messages=[silenced(1120.0, turn_ms=40.0)])
    assert row is not None
    assert (row.total_ms, row.listener_ms) == (600.0, 480.0)


@pytest.mark.parametrize("messages", [[], [silenced(1120.0, turn_ms=40.0)], [silenced(900.0)], [silenced(3100.0)]])
def test_who_speaks_on_has_missed_the_user(messages: list[dict[str, Any]]) -> None:
    assert spoken((0, 4000), messages=messages) == Trial("wait")


def test_whatever_ends_late_and_unasked_is_a_miss_too() -> None:
    assert spoken((0, 2000), messages=[]) == Trial("wait")
    assert spoken((0, 1200), messages=[]) is None, "an underrun: what was left in the listener's buffer was played out"


@pytest.mark.parametrize("loud", [[], [(0, 800)], [(0, 980)], [(0, 1110)]])
def test_a_pause_of_the_agents_own_says_nothing(loud: list[tuple[float, float]]) -> None:
    assert spoken(*loud, messages=[silenced(1120.0, turn_ms=40.0)]) is None


def test_a_reply_that_goes_on_later_is_not_over() -> None:
    ended = {"type": "speech.stopped", "at": 1700.0, "reason": "end"}
    late = {"type": "speech.stopped", "at": 3700.0, "reason": "cancelled"}
    row = spoken((0, 1190), messages=[silenced(1120.0, turn_ms=40.0), ended, late])
    assert row is not None
    assert not row.over


def test_the_other_listener_counts_in_seconds() -> None:
    told = wrtc.Heard(blocks=[(1.0, 0.2), (1.01, 0.0)], messages=[{"type": "pong", "at": 1.25}])
    assert in_ms(told) == Heard(peaks=[[1000.0, 0.2], [1010.0, 0.0]], messages=[{"type": "pong", "at": 1250.0}])


def test_the_next_sound_is_that_of_the_new_utterance() -> None:
    started = [{"type": "speech.started", "id": name, "at": at} for name, at in (("old", 10.0), ("new", 1160.0))]
    both = heard((0, 1080), (1210, 2000), messages=started)
    assert next_sound_ms(both, ONSET, "new") == 210.0
    assert next_sound_ms(both, ONSET, "other") is None
    late = heard((0, 1180), (1250, 2000), messages=started)
    assert next_sound_ms(late, ONSET, "new") == 250.0, "the old one was still in the listener's buffer"
    assert next_sound_ms(heard((0, 1080), messages=started), ONSET, "new") is None


def test_what_is_forgotten_is_older() -> None:
    all_of_it = heard((0, 4000), messages=[silenced(900.0), silenced(1100.0)])
    forget(all_of_it, ONSET)
    assert all_of_it.peaks[0][0] == ONSET
    assert [message["at"] for message in all_of_it.messages] == [1100.0]


# ---- many trials --------------------------------------------------------------------------------------------------


def test_a_miss_is_counted_and_left_out_of_no_total() -> None:
    fell = Trial("wait", 67.5, 40.0, 0.5, 12.0, 70.0, 190.0, over=True)
    found = Silences.of([fell, fell, fell, Trial("no")], repeated=2, missed_as_ms=WITHIN_MS)
    assert (found.trials, found.missed, found.over, found.repeated) == (4, 1, 3, 2)
    assert (found.total_ms.count, found.total_ms.p50, found.total_ms.max) == (4, 190.0, 2000.0)
    assert (found.noticed_ms.count, found.noticed_ms.max) == (3, 67.5)
    assert found.packet_ms.p99 == 12.5
    assert found.turn_ms is not None


def test_stops_have_no_spread_of_turns() -> None:
    assert Silences.of([Trial("", 7.5, None, 0.5, 12.0, 79.0, 99.0)], 0, STOPPED_WITHIN_MS).turn_ms is None


def test_misses_alone_are_an_error() -> None:
    with pytest.raises(BrowserError, match="falling silent"):
        Silences.of([Trial("no")], 0, WITHIN_MS)


def test_pauses_are_repeated_but_not_for_ever() -> None:
    done = list[float]()
    trials = Trials(1, done.append)
    for _ in range(SPARE + 1):
        trials.add(None)
    assert not trials.enough
    with pytest.raises(BrowserError, match=f"{SPARE + 2} times nothing was audible"):
        trials.add(None)


def test_there_are_enough_trials_when_as_many_as_wanted_said_something() -> None:
    done = list[float]()
    trials = Trials(2, done.append)
    for row in (Trial("no"), None, Trial("no")):
        assert not trials.enough
        trials.add(row)
    assert trials.enough
    assert (done, trials.repeated) == ([1, 1, 2], 1)


def test_each_sentence_has_its_share_whatever_is_repeated() -> None:
    trials, asked = Trials(11, lambda done: None), cycle(NAMES)
    for number in count():
        if trials.enough:
            break
        name = next(filter(trials.lacks, asked))
        trials.add(None if number in (2, 3, 9) else Trial(name))
    assert Counter(row.said for row in trials.rows) == {name: 1 + (n < 11 - len(NAMES)) for n, name in enumerate(NAMES)}
    assert trials.repeated == 3


def test_the_books_are_those_that_must_balance() -> None:
    found = dict.fromkeys(
        ["breezert_peers", *(f"breezert_engine_{name}" for name in ("open_requests", "requests_active"))], 0.0
    )
    with pytest.raises(BrowserError, match="has no breezert_engine_requests_queued, breezert_engine_slots_free"):
        books(found)
    kept_books = {"breezert_peers": 0.0}
    spread = Spread(1, 200.0, 200.0, 200.0, 200.0)
    cycles = Cycles(1, 0, spread, spread, spread, kept_books, kept_books, 5, 5, (200.0,))
    assert cycles.balanced
    assert not replace(cycles, accounted=4).balanced
    assert not replace(cycles, books_after={"breezert_peers": 1.0}).balanced


def test_metrics_with_labels_are_left_out() -> None:
    text = '# HELP a A.\nbreezert_peers 1.0\nbreezert_calls_ended_total{why="hung up"} 3.0\nb 2e3\n'
    assert unlabelled(text) == {"breezert_peers": 1.0, "b": 2000.0}


def test_each_target_is_held_to_its_own_figure() -> None:
    fell = Trial("wait", 67.5, 40.0, 0.5, 12.0, 70.0, 190.0, over=True)
    slow = Trial("no", 167.5, 140.0, 0.5, 26.0, 170.0, 504.0)

    def judged(name: str, *trials: Trial) -> dict[str, bool | None]:
        found = Silences.of(trials, 0, WITHIN_MS)
        return {words.strip(): met for words, _, _, met in rows(name, found) if met is not None}

    packet = "decision -> last audible packet"
    good = {"missed": True, "the reply was over": True, packet: True}
    assert judged("spoken_chromium", fell) == good | {"total": True}
    assert judged("spoken_wrtc", fell) == good
    assert judged("stopped_wrtc", fell) == good | {"total": False}
    bad = {"missed": True, "the reply was over": False, packet: False}
    assert judged("spoken_chromium", slow) == bad | {"total": False}
    assert not judged("spoken_chromium", fell, Trial("no"))["missed"]


# ---- the user's side ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_sentence_begins_with_its_onset_and_is_as_long_as_a_sentence(name: str) -> None:
    samples = sentence(name)
    assert onset(samples) == 0
    assert 1.5 < samples.size / RATE < 3.0
    assert 1500 < np.sqrt((samples.astype(float) ** 2).mean()) < 2500


def test_the_microphone_has_each_sentence_at_its_instant_and_ticks_before() -> None:
    plan = planned(10, random.Random(1))
    assert plan[0] == Speaking(NAMES[0], FIRST_ONSET)
    assert [speaking.name for speaking in plan[:9]] == [*NAMES, NAMES[0]]
    sound = microphone(plan)
    for speaking in plan:
        at = round(speaking.at * RATE)
        said = sentence(speaking.name)
        assert np.abs(sound[at - RATE // 2 : at]).max() < 20, "it is quiet before"
        assert np.abs(sound[at : at + said.size] - said.astype(float)).max() < 20
    for at in TICKS:
        assert np.abs(sound[round(at * RATE)]) > 16_000
        assert np.abs(sound[round((at - 0.1) * RATE)]) < 20


def test_the_files_beginning_is_found_by_the_ticks_that_were_heard() -> None:
    """The page begins to listen a little late, and its threads are not punctual."""
    began, blocks = 5000.0, np.arange(800)
    late = [-3.0, 0.0, 2.0, 0.0, 0.0, 9.0]
    loud = {round((1000 * at + wrong) / 10): 1000 * at + wrong for at, wrong in zip(TICKS[2:], late, strict=True)}
    spoken = [[began + loud.get(int(n), 10.0 * n), 0.4 if int(n) in loud else 0.0004] for n in blocks]
    assert began_at(Heard(spoken=spoken)) == began


def test_the_onset_is_the_first_audible_block_near_its_place() -> None:
    loud = {1500.0, 1980.0, 1990.0, 2400.0}
    heard = Heard(spoken=[[10.0 * n, 0.01 if 10.0 * n in loud else 0.0004] for n in range(400)])
    assert onset_at(heard, 2000.0) == 1980.0
    with pytest.raises(BrowserError, match="did not hear its microphone's sentence"):
        onset_at(heard, 3000.0)


def test_a_page_without_its_microphone_is_an_error() -> None:
    with pytest.raises(BrowserError, match="heard 0 of 8 ticks"):
        began_at(Heard(spoken=[[0.0, 0.0004]]))


# ---- the command --------------------------------------------------------------------------------------------------


def test_a_file_keeps_the_parts_that_are_not_measured_anew(tmp_path: Path) -> None:
    file = tmp_path / "bargein.json"
    assert kept(str(file), ["cycles"]) == {}
    file.write_text(json.dumps({"cycles": {"cycles": 3}, "elsewhere": []}))
    assert kept(str(file), ["spoken_wrtc"])["cycles"] == {"cycles": 3}
    assert kept(str(file), None) == {}
    for other in (json.dumps({"turns": 1}), "no JSON"):
        file.write_text(other)
        with pytest.raises(BrowserError, match="is not a file of bench bargein"):
            kept(str(file), ["cycles"])


def test_mistakes_are_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json", str(tmp_path / "nowhere" / "a.json")]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith("breezert bench bargein:")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--only", "spoken"], "--only: invalid choice: 'spoken'"),
        (["--trials", "0"], "--trials"),
        (["--trial", "3"], "unrecognized arguments: --trial"),
    ],
)
def test_unknown_options_are_errors(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(argv)
    assert said in capsys.readouterr().err


def test_help_names_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    helped = capsys.readouterr().out
    assert all(name in helped for name in PARTS)


def test_what_others_publish_names_where() -> None:
    assert all(other.source.startswith("https://") and other.what for other in ELSEWHERE)


def require(**programs: object) -> None:
    """With CI set a missing program is a failure, elsewhere a skip."""
    if missing := [name for name, found in programs.items() if not found]:
        reason = f"not installed: {', '.join(missing)}"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


@pytest.mark.browser
def test_a_user_in_a_real_browser_is_measured_link_by_link(tmp_path: Path) -> None:
    require(playwright=find_spec("playwright"), chromium=find_chromium())
    file = tmp_path / "bargein.json"
    assert main(["--only", "spoken_chromium", "--trials", "2", "--json", str(file)]) == 0
    found = json.loads(file.read_text())["spoken_chromium"]
    assert found["trials"] == 2
    assert found["chromium"]
    assert found["command"].startswith("breezert bench bargein --only spoken_chromium")
    for row in found["rows"]:
        links = [row[f"{link}_ms"] for link in ("noticed", "turn", "flush", "wire", "listener")]
        if None not in links:  # a machine that is too busy may miss one; how fast it is, is not asked here
            assert row["total_ms"] == pytest.approx(sum(links))


def test_a_call_of_libwebrtc_is_stopped_and_goes_on(tmp_path: Path) -> None:
    require(node=shutil.which("node"), npm=shutil.which("npm"))
    file = tmp_path / "bargein.json"
    assert main(["--only", "cycles", "--cycles", "2", "--json", str(file)]) == 0
    found = json.loads(file.read_text())["cycles"]
    assert (found["cycles"], len(found["rows"])) == (2, 2)
    assert 0 < found["ttfa_ms"]["max"] < found["started_ms"]["max"] < found["next_sound_ms"]["max"] + 500
    assert found["books_before"] == found["books_after"]
    assert found["submitted"] == found["accounted"] >= 3
    assert found["wrtc"] == wrtc.VERSION
