"""agent/bench_page.py: the arithmetic on made-up periods, and one short run of real calls that watch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from scripted_runtime import SPEC, tone

from agent import bench_page
from agent.bench_arrivals import BenchError
from agent.bench_page import (
    STEPS,
    TICKS,
    Cpu,
    Drawn,
    Events,
    Period,
    Showing,
    Stretch,
    Weight,
    added,
    cpu_seconds,
    drawn,
    drawn_rows,
    event_rows,
    events,
    gaps_ms,
    main,
    stat_seconds,
    turns,
    watched,
)
from agent.bench_transport import Speech
from agent.scene import Scene
from engine.core import Request

SPEECH = Speech(SPEC, (tone(0, 24_000), tone(0, 36_000)))


def test_every_other_round_goes_the_other_way_round() -> None:
    assert [*turns(3, ("a", "b", "c"))] == [*"abc", *"cba", *"abc"]


def test_what_is_added_is_the_median_of_the_rounds_and_not_of_the_sums() -> None:
    """The machine got slower from round to round; each time it was 2 more."""
    assert added([10, 20, 90], [12, 22, 92]) == 2
    assert Cpu.of([12, 22, 92], [15, 25, 95], [10, 20, 90]) == Cpu(drawn=22, counted=25, closed=20, picture=2)


def test_cpu_is_user_and_system_time_whatever_the_name_is() -> None:
    line = "42 (odd) name 1) S 1 42 42 0 -1 4194560 100 0 0 0 700 50 9 9 20 0 5 0 1234 0 0"
    assert stat_seconds(line) == pytest.approx(750 / TICKS)


def test_processes_of_a_kind_are_added_and_those_that_are_gone_took_nothing() -> None:
    mine = os.getpid()
    found = cpu_seconds({mine: "renderer", 2**30: "GPU"})
    assert found["renderer"] == pytest.approx(sum(os.times()[:2]), abs=0.1)
    assert found["GPU"] == 0


def period(renderer: float, gpu: float = 5.0, frames: int = 0, moves: int = 0) -> Period:
    return Period(
        1.0, {"renderer": renderer, "GPU": gpu}, [100 + 50 / 3 * index for index in range(frames)], moves, True
    )


def test_frames_are_counted_over_all_periods_and_cpu_in_each() -> None:
    found = drawn(4, [period(20), period(24)], [period(30, frames=61, moves=40)] * 2, [period(12, 1.0)] * 2, 0.5)
    assert (found.frames_a_second, found.moves_a_second, found.frame_ms.count) == (60.0, 40.0, 120)
    assert found.renderer == Cpu(drawn=22, counted=30, closed=12, picture=10)
    assert found.speaking_share == 1
    assert found.chromium == Cpu(drawn=27, counted=35, closed=13, picture=14)


def verdicts(rows: Any) -> list[bool]:
    return [met for _, _, _, met in rows if met is not None]


def test_a_frame_that_is_missed_or_too_much_cpu_is_told() -> None:
    def found(frames: int, renderer: float, gpu: float) -> Drawn:
        return drawn(0, [period(renderer, gpu)], [period(9, frames=frames)], [period(9)], 0.1)

    assert verdicts(drawn_rows(found(61, 20, 5))) == [True, True, True]
    assert verdicts(drawn_rows(found(61, 31, 5))) == [True, False, True]
    assert verdicts(drawn_rows(found(61, 20, 25))) == [True, True, False]
    slow = Period(1.0, {"renderer": 9.0}, [0.0, 16.7, 50.0], 0, False)
    assert verdicts(drawn_rows(drawn(0, [slow], [slow], [slow], 0.1)))[0] is False


def stretch(cpu: float, p99: float, views: int = 0) -> Stretch:
    return Stretch(2.0, cpu, cpu / 2, p99, views, 400 * views)


def told(cpu: float, p99: float) -> Events:
    """What 2 calls' watching adds to 20 % and 21 ms, +- 1."""
    off = [stretch(20, 20), stretch(30, 21), stretch(25, 22)]
    return events(2, off, [stretch(each.cpu_percent + cpu, each.p99_ms + p99, 40) for each in off])


def test_events_are_told_round_by_round() -> None:
    found = told(1.5, 0.25)
    assert (found.cpu_off_percent, found.cpu_on_percent, found.cpu_added_percent) == (25, 26.5, 1.5)
    assert (found.cpu_added_share_percent, found.loop_added_percent) == (6, 0.75)
    assert (found.p99_off_ms, found.p99_on_ms, found.p99_added_ms, found.p99_scatter_ms) == (21, 21.2, 0.25, 1)
    assert (found.rounds, found.period_seconds, found.views_a_second, found.view_bytes) == (3, 2.0, 10, 400)


def test_too_much_of_either_is_missed() -> None:
    assert verdicts(event_rows(told(1.9, 0.9))) == [True, True]
    assert verdicts(event_rows(told(2.1, 1.1))) == [False, False]


def test_calls_that_are_shown_nothing_are_an_error() -> None:
    with pytest.raises(BenchError, match="no call was shown"):
        events(2, [stretch(20, 20)], [stretch(20, 20)])


def test_gaps_are_those_between_two_instants() -> None:
    assert gaps_ms([1.0, 1.02, 1.05, 1.07], 1.01, 1.06) == [pytest.approx(30)]
    assert gaps_ms([], 0, 1) == []


def test_a_recording_tells_of_steps_for_all_who_are_served() -> None:
    engine, shown = Showing(SPEECH, 2), Scene()
    for text in "abcde":
        engine.submit(Request(text, SPEC.sampling), lambda output: None)
    shown.take(engine._steps(10.0))
    ran = [*shown._ran]
    assert [step.stage for step in ran] == [*STEPS]
    assert {step.requests for step in ran} == {(2, 3, 4, 5)}
    assert ran[0].started_at == 10
    assert ran[-1].ended_at == pytest.approx(10.1)


def test_real_calls_watch_in_turn_and_only_then_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_page, "SETTLE_SECONDS", 0.1)
    steps: list[float] = []
    found = watched(SPEECH, peers=2, rounds=2, seconds=0.6, advance=steps.append)
    assert steps == [1, 2, 3, 4]
    assert (found.peers, found.rounds) == (2, 2)
    assert 0 < found.views_a_second <= 12  # 10 on a machine that has time
    assert 100 < found.view_bytes < 2000
    assert 0 < found.cpu_off_percent < 200
    assert found.p99_off_ms > 10


def test_what_is_wrong_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--json", str(tmp_path / "nowhere" / "page.json")]) == 2
    assert "breezert bench page: " in capsys.readouterr().err.strip().splitlines()[-1]
    monkeypatch.setattr(bench_page, "serve_calls", ends)
    with pytest.raises(BenchError, match="ended early"):
        watched(SPEECH, 1, 1, 0.1)


def ends(*arguments: object) -> None:
    """A process that does nothing."""


def test_a_page_that_is_too_heavy_or_asks_elsewhere_is_missed() -> None:
    light = Weight(files=20, bytes=150_000, header_bytes=9_000, foreign=(), first_paint_ms=100)
    heavy = Weight(files=20, bytes=150_001, header_bytes=9_000, foreign=("https://example.org/",), first_paint_ms=100)
    assert verdicts(bench_page.weight_rows(light)) == [True, True]
    assert verdicts(bench_page.weight_rows(heavy)) == [False, False]


def test_too_few_rounds_name_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rounds", "0"])
    assert "--rounds" in capsys.readouterr().err
