"""agent/probe/report.py and outcome.py: figures, JSON and page of made-up trials, of which one has a hostile server."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from agent.probe.books import Entry, growths
from agent.probe.command import print_all
from agent.probe.outcome import (
    PEAK_SECONDS,
    Checked,
    Found,
    Mark,
    Outcome,
    Picture,
    Spread,
    Summary,
    counted,
    peaks,
    plain,
    plainly,
    worst,
)
from agent.probe.report import Cycles, Killed, Load, Report, axis, ceiling, data, joined, page, shown, tag, wave

HOSTILE = "</p><script src='http://evil.test/x.js'>alert(1)</script><img src=x onerror=alert(2)>\"'&"
STOPS = "interruption: the agent stops within 500 ms"
ABSENT = "nothing is found"


def outcome(trial: int = 0, held: bool = True, stop: float = 250.0, **fields: Any) -> Outcome:
    picture = Picture(
        bytes([0, 50, 0, 0] * 25),
        bytes([0, 0, 80, 80] * 25),
        (Mark("onset", 0.1, "interruption"), Mark("stop", 0.1 + stop / 1000, f"silent {stop:.0f} ms later")),
        ((0.4, 0.45),) if not held else (),
    )
    checks = Checked(STOPS, held, f"{stop:.0f} ms"), Checked(ABSENT, True)
    figures = {"stop_ms": (stop,), "response_ms": (700.0, 750.0)}
    made = Outcome("interruption", trial, 7, "offer", 12.0, figures, checks, picture=picture)
    return replace(made, **fields)


def summary(*outcomes: Outcome, name: str = "interruption") -> Summary:
    own = tuple(replace(each, scenario=name) for each in outcomes)
    return Summary(name, "user_interruption", "Somebody speaks over the agent.", ("https://arxiv.org/abs/1",), own)


def report(*summaries: Summary, **fields: Any) -> Report:
    machine = {"cpu": "a cpu", "cores": 2, "date": "2026-11-30"}
    command = "breezert probe http://127.0.0.1:8080"
    made = Report(
        "http://127.0.0.1:8080", "offer", "", command, machine, 1, 90.0, summaries, {"gap": "Silence in a word."}
    )
    return replace(made, **fields)


class Page(HTMLParser):
    """Tags, attributes and visible text of a page; what is not closed as it was opened is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.attributes, self.words, self._open = list[str](), list[tuple[str, str]](), "", list[str]()
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += "" if self._open[-1:] == ["style"] else data


# ---- outcomes -----------------------------------------------------------------------------------------------------


def test_a_trial_holds_where_all_was_said_and_all_is_as_expected() -> None:
    assert outcome().held
    assert not outcome(held=False).held
    assert not outcome(missed=("interruption",)).held
    assert not outcome(failure="the agent ended the call").held


def test_the_worst_trial_is_the_most_broken_then_the_slowest() -> None:
    slow, found, broken, unheard = (
        outcome(1, stop=900.0),
        outcome(2, findings=(Found("gap"),)),
        outcome(3, held=False, stop=1.0),
        outcome(4, failure="refused", picture=None),
    )
    assert worst([outcome(), slow, found, broken, unheard], 3) == [broken, found, slow]


def test_a_spread_is_of_all_values_of_all_trials() -> None:
    trials = summary(outcome(stop=100.0), outcome(stop=200.0), outcome(figures={}))
    assert trials.spread("stop_ms") == Spread(2, 150.0, 195.0, 199.0, 200.0)
    assert trials.figures["response_ms"].count == 4
    assert trials.spread("padded_ms") is None


def test_turns_taken_are_counted_by_step() -> None:
    taken = [outcome(n, takeovers={"ask": n < 2, "rest": True}) for n in range(3)]
    trials = summary(*taken, outcome(3, takeovers={"ask": True}))
    assert trials.takeovers == {"ask": (3, 4), "rest": (3, 3)}
    assert data(report(trials))["scenarios"]["interruption"]["takeovers"]["ask"] == {"taken": 3, "of": 4}
    assert "ask: 3 of 4, rest: 3 of 3" in Page(page(report(trials))).words


def test_each_figure_stands_on_the_page_with_what_it_is() -> None:
    words = Page(page(report(summary(outcome(), outcome(1, stop=740.0))))).words
    assert "from a user's last sample to the first audible one of the answer" in words
    assert "725 ms" in words
    assert "silence in a reply that was to go on" not in words, "nothing was measured"


def test_each_figure_has_its_unit() -> None:
    figures = {"drift_ppm": (-812.0,), "rate_percent": (99.9,), "wrongly_stamped_packets": (3.0,)}
    words = Page(page(report(summary(outcome(figures=figures))))).words
    assert "-812 ppm" in words
    assert "99.9 %" in words
    assert "wrongly stamped packetsof a call" in words
    assert "3 ms" not in words


def test_expectations_and_findings_are_counted_by_trial() -> None:
    gap = Found("gap", "one"), Found("gap", "two"), Found("late_stop")
    network = Found("gap", "the network lost 3 packets", network=True)
    trials = summary(
        outcome(0, findings=(network,)), outcome(1, held=False, findings=gap), outcome(2, findings=gap[:1])
    )
    assert trials.expectations == {STOPS: (2, 3), ABSENT: (3, 3)}
    assert trials.held == 2
    assert counted(trials.outcomes) == {"gap": 2, "late_stop": 1}


def test_what_could_not_be_judged_counts_for_nothing_unless_it_never_could() -> None:
    unknown = (Checked(STOPS, None, "it was at its own end"), Checked(ABSENT, True))
    some, never = summary(outcome(), outcome(1, checks=unknown)), summary(outcome(checks=unknown))
    assert some.expectations[STOPS] == (1, 1)
    assert some.held == 2
    assert report(some).good
    assert never.unjudged == [STOPS]
    assert not report(never).good
    assert "All 1 expectations held, 1 could never be judged" in Page(page(report(never))).words
    assert "1 of 1, 1 not judged" in Page(page(report(some))).words
    assert data(report(some))["trials"][1]["unjudged"] == [f"{STOPS}: it was at its own end"]


def test_peaks_are_the_loudest_of_each_ten_milliseconds() -> None:
    samples = np.zeros(3 * 480 + 10, np.int16)
    samples[100], samples[480 + 5], samples[-1] = -32768, 104, 30000
    assert list(peaks(samples, 48_000)) == [100, 1, 0], "what is audible at all is at least 1; a rest is left out"
    assert round(480 / 48_000, 6) == PEAK_SECONDS
    assert peaks(samples[:0], 48_000) == b""


@pytest.mark.parametrize(
    ("said", "shown_as"),
    [
        ("open /home/me/voices/a.wav failed", "open a.wav failed"),
        ("'/root/x/y.yaml', line 3", "'y.yaml', line 3"),
        ("http://127.0.0.1:8080/api/offer answered 404", "http://127.0.0.1:8080/api/offer answered 404"),
        ("stop and/or go, 3/4 of 10 ms / 20 ms", "stop and/or go, 3/4 of 10 ms / 20 ms"),
        ("</p>", "</p>"),
    ],
)
def test_folders_of_this_machine_are_left_out(said: str, shown_as: str) -> None:
    assert plain(said) == shown_as
    assert plainly({"a": [said, (1.5, None)]}) == {"a": [shown_as, [1.5, None]]}


# ---- JSON ---------------------------------------------------------------------------------------------------------


def test_the_data_have_each_scenario_and_each_trial() -> None:
    gap = Found("gap", "in /home/me/x.wav", 0.4, size=80.04, unit="ms")
    broken = outcome(1, held=False, stop=740.0, findings=(gap,))
    found = data(report(summary(outcome(), broken), summary(outcome(), name="cough")))
    assert set(found) == {
        *("command", "machine", "url", "protocol", "network", "seed", "good", "interrupted", "warning"),
        *("seconds", "notes", "scenarios", "findings", "trials"),
    }
    assert found["good"] is False
    interruption = found["scenarios"]["interruption"]
    assert (interruption["trials"], interruption["held"]) == (2, 1)
    assert interruption["figures"]["stop_ms"] == {"count": 2, "p50": 495.0, "p95": 715.5, "p99": 735.1, "max": 740.0}
    assert interruption["expectations"][STOPS] == {"held": 1, "of": 2}
    assert found["findings"] == {"gap": 1}
    assert found["trials"][1] == {
        "scenario": "interruption",
        "trial": 1,
        "seed": 7,
        "held": False,
        "seconds": 12.0,
        "figures": {"stop_ms": [740.0], "response_ms": [700.0, 750.0]},
        "broken": [f"{STOPS}: 740 ms"],
        "findings": [{"name": "gap", "says": "in x.wav", "size": 80.0, "unit": "ms"}],
    }
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_all_is_good_only_where_nothing_was_found() -> None:
    assert report(summary(outcome())).good
    assert not report(summary(outcome(findings=(Found("gap"),)))).good
    assert report(summary(outcome(findings=(Found("gap", network=True),)))).good
    assert not report(summary(outcome(held=False))).good
    assert not report(summary(outcome()), load=load(left=("peers: 0 before, 1 after",))).good


# ---- the page -----------------------------------------------------------------------------------------------------


def test_only_markup_is_markup() -> None:
    inner = tag("b", HOSTILE, title=HOSTILE, data_name="x", class_=None)
    assert inner.count("<") == 2
    assert 'data-name="x"' in inner
    assert joined([inner, "<i>", None]) == f"{inner}&lt;i&gt;"


def hostile() -> Report:
    found = Found("gap", HOSTILE, 0.4), Found(HOSTILE, "unheard of")
    bad = outcome(held=False, findings=found, checks=(Checked(HOSTILE, False, HOSTILE),), failure=HOSTILE)
    assert bad.picture is not None
    bad = replace(bad, picture=replace(bad.picture, marks=(Mark("claim", 0.2, HOSTILE), Mark(HOSTILE, 0.3, "odd"))))
    made = Summary("interruption", HOSTILE, HOSTILE, ("javascript:alert(1)", HOSTILE, "https://a.test/x"), (bad,))
    return report(made, network=HOSTILE, machine={"cpu": HOSTILE}, load=load())


def test_what_the_server_says_is_never_markup() -> None:
    text = page(hostile())
    read = Page(text)
    assert not {"script", "img", "iframe", "object", "link", "base", "form"} & set(read.tags)
    assert not [name for name, _ in read.attributes if name.startswith("on")]
    assert HOSTILE in read.words


def test_the_page_loads_nothing() -> None:
    read = Page(page(hostile()))
    loading = {"src", "srcset", "xlink:href", "action", "data", "poster", "background"}
    assert not loading & {name for name, _ in read.attributes}
    assert [value for name, value in read.attributes if name == "href"] == ["https://a.test/x"], "a link is no load"
    style = Path(page.__code__.co_filename).with_suffix(".css").read_text()
    assert "url(" not in style
    assert "@import" not in style


def test_the_page_says_what_held_and_what_did_not() -> None:
    broken = outcome(1, held=False, stop=740.0, findings=(Found("gap", "80 ms in a word", 0.4),))
    read = Page(page(report(summary(outcome(), broken))))
    for words in (
        "1 of 4 expectations did not hold, 1 finding",
        "✗ 1 of 2",
        "✓ 2 of 2",
        "trial 1: 740 ms",
        "Silence in a word.",
        "interruption, trial 1: 80 ms in a word",
        "495 / 716 ms",
    ):
        assert words in read.words, words
    good = Page(page(report(summary(outcome()))))
    assert "All 2 expectations held, nothing was found" in good.words
    assert "Take care: it was late." in Page(page(report(summary(outcome()), warning="it was late"))).words
    assert "No trial was finished" in Page(page(report())).words


def test_what_was_taken_for_granted_is_said_once() -> None:
    taken = Checked("goes on after mhm within 1000 ms", True, "0 ms", assumed=True)
    made = report(summary(*(outcome(n, checks=(taken, Checked(ABSENT, True))) for n in range(3))))
    (note,) = data(made)["notes"]
    assert note.startswith("3 times it was not checked that the agent went on with the same reply")
    assert Page(page(made)).words.count(f"Not known: {note}.") == 1
    assert made.good
    assert data(report(summary(outcome())))["notes"] == []
    assert "Not known" not in Page(page(report(summary(outcome())))).words


def test_a_picture_has_both_voices_the_marks_and_the_gaps() -> None:
    picture = outcome(held=False).picture
    assert picture is not None
    text = wave(picture, "a call")
    assert text.count("<path") == 2
    assert "M2 0v200" in text, "the loudest of the agent, as high as its lane"
    assert 'class="gap" ' not in text
    assert text.count('class="gap"') == 2, "the gap, and a line where it begins"
    assert 'x="10.00%"' in text, "the onset, at 0.1 of 1 s"
    assert "silent 250 ms later" in text
    assert wave(Picture(b"", b""), "nothing").startswith("<svg")


def test_words_that_would_run_into_others_are_left_out() -> None:
    marks = (
        Mark("claim", 1.0, "first"),
        Mark("claim", 1.1, "second"),
        Mark("stop", 1.1, "other row"),
        Mark("claim", 4, "x"),
    )
    text = wave(Picture(bytes(500), bytes(500), marks), "")
    assert [words for words in ("first", "second", "other row", ">x<") if words in text] == [
        "first",
        "other row",
        ">x<",
    ]
    assert text.count('class="claim"') == 3 + 2, "all lines, and words of two"


def test_pictures_are_of_the_worst_of_every_scenario() -> None:
    many = summary(*(outcome(n, held=False) for n in range(30)))
    other = summary(outcome(99, stop=800.0, findings=(Found("gap"),)), name="cough")
    chosen = shown([many, other])
    assert len(chosen) == 12
    assert {each.scenario for each in chosen} == {"interruption", "cough"}
    assert len(shown([summary(*(outcome(n) for n in range(30)))])) == 4, "all is well: a few are enough"


@pytest.mark.parametrize(("value", "top"), [(0, 1), (1, 1), (7, 8), (250, 300), (401, 500), (999, 1000), (0.07, 0.08)])
def test_an_axis_ends_at_a_round_number(value: float, top: float) -> None:
    assert ceiling(value) == pytest.approx(top)


def test_noise_of_memory_looks_like_noise() -> None:
    low, high = axis([610.0, 611.0])
    assert high - low > 30
    assert axis([0.0]) == (0.0, 0.5)


# ---- load ---------------------------------------------------------------------------------------------------------


def load(leak: float = 0.0, **fields: Any) -> Load:
    entries = tuple(Entry(30.0 * n, 2, 400.0, 300.0 + leak * n, 40, 9, 1.0 * n, peers=4.0) for n in range(20))
    return replace(Load(4, 4, 600.0, 150, 0.1, entries, tuple(growths(entries))), **fields)


def test_what_a_load_shows_is_said() -> None:
    assert load().broken == []
    assert load(leak=1.0).broken == ["memory grows by 120 MB an hour"]
    killed = Killed(60.0, 3, (0.2, None, 0.3), (4.0, 11.0, None), 10.0)
    assert load(killed=killed).broken == [
        "1 of 3 calls got no error event when the engine was killed",
        "2 of 3 calls heard no answer within 10 s of the engine's death",
    ]
    assert load(killed=Killed(60.0, 0, (), (), 10.0)).broken == ["no call was up when the engine was killed"]
    first, last = load(leak=1.0).entries[0], load(leak=1.0).entries[9]
    cycles = Cycles(100, 2, first, last, ("peers: 0 before, 2 after",), 9.0, 5.0)
    assert load(cycles=cycles).broken == [
        "2 of 100 connect/close cycles failed",
        "left after 100 connect/close cycles: peers: 0 before, 2 after",
        "memory grew by 9 MB in the second half of 100 connect/close cycles",
    ]
    assert load(cycles=replace(cycles, failed=0, left=(), bound_mb=9.0)).broken == []


def test_what_the_books_do_not_say_is_said() -> None:
    assert load().unknown == ""
    unread = report(summary(outcome()), load=load(entries=(), growths=()))
    words = Page(page(unread)).words
    assert data(unread)["notes"] == [unread.load.unknown]  # type: ignore[union-attr]
    assert "Not known: what the server holds could not be read" in words
    assert "nothing grows" not in words
    brief = load(growths=tuple(replace(each, seconds=150.0) for each in load(leak=9.0).growths))
    words = Page(page(report(summary(outcome()), load=brief))).words
    assert "not judged whether memory grows: that takes eight minutes" in words
    assert " MB, not judged" in words
    assert "nothing grows" not in words
    cycled = load(peers=0, talking=0, calls=0, entries=(), growths=(), cycles=Cycles(9, 0, None, None, (), None, 24.0))
    assert "Not known: what the server holds" in Page(page(report(load=cycled))).words, "without trials, too"


def test_what_could_not_be_judged_is_said() -> None:
    checks = (Checked(STOPS, None, "its own end is not known"), Checked(ABSENT, True))
    made = report(summary(outcome(), outcome(1, checks=checks)))
    note = f"interruption: {STOPS}: 1 of 2 not judged, for example: its own end is not known"
    assert data(made)["notes"] == [note]
    assert f"Not known: {note}" in Page(page(made)).words
    out = StringIO()
    print_all(Console(file=out, width=200), made)
    assert note in out.getvalue()


def test_who_only_connects_and_closes_has_no_trials() -> None:
    well = load(peers=0, talking=0, calls=0, growths=(), cycles=Cycles(100, 0, None, None, (), -1.0, 24.0))
    text = page(report(load=well))
    words = Page(text).words
    assert "100 of 100 calls connected and closed, nothing was found" in words
    assert 'class="word verdict good"' in text
    assert "No trial was finished" not in words
    assert "0 of 0" not in words
    broken = page(report(load=replace(well, left=("peers: 0 before, 1 after",))))
    assert "100 of 100 calls connected and closed, not all is as it should be" in broken
    assert 'class="word verdict bad"' in broken
    assert "No trial was finished" in page(report(load=replace(well, peers=4)))


def test_the_load_is_on_the_page_and_in_the_data() -> None:
    made = report(summary(outcome()), load=load(leak=1.0))
    read = Page(page(made))
    assert "✗ memory grows by 120 MB an hour" in read.words
    assert "Memory, MB: 300 at first, 319 at last" in read.words
    found = data(made)["load"]
    assert found["broken"] == ["memory grows by 120 MB an hour"]
    assert len(found["entries"]) == 20
    assert json.loads(json.dumps(found, allow_nan=False)) == found
