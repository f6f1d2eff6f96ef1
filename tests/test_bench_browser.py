"""What `bench browser` makes of what a page heard: the arithmetic, on made-up samples, packets and clicks."""

from __future__ import annotations

import numpy as np
import pytest

from agent.bench_browser import arrivals, first_sound_ms, main, stop_ms, timestamp_steps
from agent.bench_report import measured
from agent.browser import AUDIBLE, QUANTUM_MS, BrowserError, Heard

QUIET, LOUD = AUDIBLE / 2, 0.2


def heard(*loud: tuple[float, float], click: tuple[float, str]) -> Heard:
    """One amplitude a millisecond from 0 to 3000, loud inside the given spans."""
    peaks = [[float(at), LOUD if any(a <= at < b for a, b in loud) else QUIET] for at in range(3000)]
    return Heard(peaks=peaks, clicks=[click])


def test_first_sound_counts_from_the_click_to_the_first_loud_sample() -> None:
    assert first_sound_ms(heard((100, 200), (700, 900), click=(500.0, "speak"))) == 200.0


def test_first_sound_is_none_where_nothing_was_heard() -> None:
    assert first_sound_ms(heard((100, 200), click=(500.0, "speak"))) is None


def test_stop_counts_to_the_end_of_the_last_loud_quantum() -> None:
    assert stop_ms(heard((100, 580), click=(500.0, "stop"))) == pytest.approx(79 + QUANTUM_MS)


def test_stop_in_a_pause_says_nothing() -> None:
    assert stop_ms(heard((100, 400), (530, 580), click=(500.0, "stop"))) is None


def test_stop_finds_sound_that_comes_back() -> None:
    assert stop_ms(heard((100, 520), (900, 950), click=(500.0, "stop"))) == pytest.approx(449 + QUANTUM_MS)


def test_voiced_seconds_bridge_short_pauses_only() -> None:
    said = heard((1000, 1500), (1540, 2000), (2400, 2500), click=(0.0, "speak"))
    assert said.voiced_seconds(0) == pytest.approx(1.1, abs=0.005)
    assert said.voiced_seconds(0, 1200) == pytest.approx(0.2, abs=0.005)


def test_the_last_click_on_a_button_counts() -> None:
    said = Heard(clicks=[(1.0, "stop"), (2.0, "speak"), (3.0, "stop")])
    assert said.clicked_at("stop") == 3.0
    assert said.clicked_at("speak") == 2.0


def test_timestamp_steps_survive_the_wrap_of_rtp_time() -> None:
    stamps = [2**32 - 960, 0, 960, 2880]
    packets = np.array([[0.0, stamp, 0.0, np.nan] for stamp in stamps])
    assert timestamp_steps(packets) == {"960": 2, "1920": 1}


def test_arrivals_are_those_at_the_socket_where_the_browser_tells_them() -> None:
    packets = np.array([[10.0, 0.0, 0.0, 1.0], [30.0, 960.0, 1.0, 21.0]])
    assert arrivals(packets)[0].tolist() == [1.0, 21.0]
    assert arrivals(packets)[1] == "socket"
    packets[1, 3] = np.nan
    assert arrivals(packets)[0].tolist() == [10.0, 30.0]
    assert arrivals(packets)[1] == "worker"


def test_spread_leaves_out_what_could_not_be_measured_and_says_so() -> None:
    spread = measured([1.0, None, 3.0], "sound")
    assert (spread.count, spread.p50, spread.max) == (2, 2.0, 3.0)
    with pytest.raises(BrowserError, match="no sound to measure"):
        measured([None], "sound")


def test_a_missing_browser_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", "http://127.0.0.1:9", "--chromium", "/nowhere/chromium"]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith("breezert bench browser:")
    assert "/nowhere/chromium" in error[-1]


def test_too_few_utterances_name_the_option_and_the_least(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--utterances", "1"])
    assert "--utterances: must be at least 5, got 1" in capsys.readouterr().err


def test_help_says_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    helped = " ".join(capsys.readouterr().out.split())
    assert "Starts a server and a headless Chromium" in helped
    assert "5 or more (default: 20)" in helped
