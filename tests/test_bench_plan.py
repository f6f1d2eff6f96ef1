"""What planning costs: that it is counted for the right steps, streams and parts. Never how much."""

import gc
import io

import pytest
from rich.console import Console

from engine import estimate
from engine.bench_plan import Crowd, Planning, Stopwatch, growth, planning, run
from engine.clock import MonotonicClock
from engine.simulator import FakeClock


def row(streams: int, p50: float) -> Planning:
    return Planning(streams, 100, p50, 2 * p50, 3 * p50, 1.5 * p50, 3 * p50, 4 * p50)


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
    assert crowd._scheduler.snapshot(0.0)["requests_active"] == 5
    assert crowd._scheduler.snapshot(0.0)["requests_finished_total"] > 5, "whoever was served calls again"
    assert crowd._inbox.waits == 0, "nobody is held"


def test_a_row_is_in_microseconds_and_leaves_the_garbage_collector_as_it_was() -> None:
    frozen = gc.get_freeze_count()
    seen = planning(3, 50, estimate.profile(), MonotonicClock())
    assert gc.get_freeze_count() == frozen
    assert (seen.streams, seen.steps) == (3, 50)
    assert 1 < seen.plan_us_p50 <= seen.plan_us_p95 <= seen.plan_us_p99
    assert seen.plan_us_p50 < seen.step_us_p50 <= seen.step_us_p95 <= seen.step_us_p99


def test_growth_is_told_against_n_log_n() -> None:
    assert growth([row(256, 2048.0), row(16, 999.0), row(8, 24.0)]) == 1.0
    assert growth([row(8, 24.0), row(256, 4096.0)]) == 2.0
    assert growth([row(8, 24.0)]) is None


def test_rows_and_growth_are_printed() -> None:
    written = io.StringIO()
    rows = run([4, 2, 4], 20, Console(file=written, width=120))
    assert [seen.streams for seen in rows] == [2, 4]
    assert "n log n" in written.getvalue()
    with pytest.raises(ValueError, match="at least 2, got 1"):
        run([1, 2], 20, Console(quiet=True))
