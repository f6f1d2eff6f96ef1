"""What planning costs: that it is counted for the right steps, streams and parts. Never how much."""

import gc
import io

import pytest
from rich.console import Console

from engine import estimate
from engine.bench_plan import (
    Crowd,
    Planning,
    Simulated,
    Stopwatch,
    against_target,
    growth,
    growth_line,
    planning,
    run,
    simulated_line,
)
from engine.clock import MonotonicClock
from engine.entrance import Entrance
from engine.simulator import FakeClock
from engine.stream import Stream


def row(streams: int, p50: float, admission: bool = False) -> Planning:
    return Planning(streams, admission, float(streams), 0.0, 100, p50, 2 * p50, 3 * p50, 1.5 * p50, 3 * p50, 4 * p50)


def test_a_stopwatch_adds_up_what_calls_took() -> None:
    clock = FakeClock(5.0)
    watch = Stopwatch(clock)

    def work(seconds: float, answer: int = 1) -> int:
        clock.advance(seconds)
        return answer

    assert watch.time(work, 0.25, answer=7) == 7
    clock.advance(100.0)
    assert watch.time(work, 0.5) == 1
    assert watch.seconds == 0.75


def test_all_streams_are_there_in_every_step_that_counts() -> None:
    crowd = Crowd(5, 300, estimate.profile(), MonotonicClock())
    costs = crowd.run()
    assert len(costs) == 300
    assert all(0 < plan < whole for plan, whole in costs), "planning is part of the whole"
    assert crowd.sizes == (5.0, 0.0)
    assert crowd._scheduler.snapshot(0.0)["requests_finished_total"] > 5, "whoever was served calls again"
    assert crowd._inbox.waits == 0, "nobody is held"


def test_at_overload_callers_are_held_back_for_others_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    held, holds_back = list[bool](), Entrance._holds_back

    def noted(entrance: Entrance, stream: Stream) -> bool:
        held.append(holds_back(entrance, stream))
        return held[-1]

    monkeypatch.setattr(Entrance, "_holds_back", noted)
    crowd = Crowd(32, 100, estimate.profile(), MonotonicClock(), admission=True)
    assert len(crowd.run()) == 100
    active, waiting = crowd.sizes
    assert 16 < active <= 32
    assert waiting > 1
    assert any(held)


def test_planning_at_64_streams_is_told_against_its_target() -> None:
    assert against_target(row(64, 99.9)) == (
        "64 streams without it: planning took 200 us (p95), within the target of 200 us"
    )
    assert against_target(row(64, 150.0, admission=True)) == (
        "64 streams with admission: planning took 300 us (p95), over the target of 200 us"
    )


def test_a_row_is_in_microseconds_and_leaves_the_garbage_collector_as_it_was() -> None:
    gc.unfreeze()
    seen = planning(3, 50, estimate.profile(), MonotonicClock())
    assert not gc.get_freeze_count()
    assert (seen.streams, seen.admission, seen.active, seen.waiting, seen.steps) == (3, False, 3.0, 0.0, 50)
    assert 1 < seen.plan_us_p50 <= seen.plan_us_p95 <= seen.plan_us_p99
    assert seen.plan_us_p50 < seen.step_us_p50 <= seen.step_us_p95 <= seen.step_us_p99


def test_growth_is_told_against_n_log_n() -> None:
    assert growth([row(256, 2048.0), row(16, 999.0), row(8, 24.0)]) == 1.0
    assert growth([row(8, 24.0), row(256, 4096.0)]) == 2.0
    assert growth([row(8, 24.0)]) is None
    assert growth([row(8, 24.0), row(8, 900.0, admission=True)]) is None
    assert growth([row(8, 24.0), row(8, 9.0, admission=True), row(256, 2048.0)]) == 1.0


def test_growth_is_told_in_words() -> None:
    assert growth_line([row(256, 240.0), row(8, 24.0)]) == (
        "from 8 to 256 streams planning (p50) grew 10.0-fold, within the 85.3-fold of n log n"
    )
    assert "grew 100.0-fold, over the 85.3-fold" in growth_line([row(8, 24.0), row(256, 2400.0)])
    assert growth_line([row(8, 24.0)]) == ""


def test_rows_and_growth_are_printed() -> None:
    written = io.StringIO()
    rows, simulated = run([4, 2, 4], 20, 3, Console(file=written, width=80))
    assert [(seen.streams, seen.admission) for seen in rows] == [(2, False), (2, True), (4, False), (4, True)]
    assert "n log n" in written.getvalue()
    assert "target" not in written.getvalue(), "it is one of 64 streams and of 2000 callers"
    assert (simulated.requests, simulated.load) == (3, 30.0)
    assert simulated.steps > 100
    assert f"3 callers, {simulated.steps} steps, were simulated in" in written.getvalue()
    assert "…" not in written.getvalue()
    with pytest.raises(ValueError, match="at least 2, got 1"):
        run([1, 2], 20, 3, Console(quiet=True))


def test_a_simulation_of_2000_callers_is_told_against_its_target() -> None:
    line = "2000 callers, 100000 steps, were simulated in 7.1 s, within the target of 30 s"
    assert simulated_line(Simulated(2000, 30.0, 100_000, 7.1)) == line
    assert "over the target of 30 s" in simulated_line(Simulated(2000, 30.0, 100_000, 31.0))
