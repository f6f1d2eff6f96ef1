"""agent/transit.py: what is learned of packets' ways, at literal times."""

from __future__ import annotations

import pytest

from agent.transit import GRACE, MAX_TARGET, MIN_TARGET, WINDOW, Transit


def fed(*lateness: float, every: float = 0.02, start: float = 100.0) -> Transit:
    """Packets complete every 20 ms that take 50 ms, and some longer."""
    transit = Transit()
    for n, late in enumerate(lateness):
        transit.observe(7.0 + n * every, start + n * every + late)
    return transit


def test_the_fastest_packet_says_when_the_next_one_is_to_come() -> None:
    assert fed(0.03, 0.0, 0.05).expected_at(7.06) == pytest.approx(100.06)


def test_a_steady_stream_is_waited_for_no_longer_than_the_least() -> None:
    assert fed(*[0.0] * 50).target == MIN_TARGET


def test_the_wait_covers_the_jitter_that_was_seen() -> None:
    assert fed(*[0.06 * (n % 5 == 0) for n in range(100)]).target == pytest.approx(0.06 + GRACE)


def test_one_packet_that_comes_far_too_late_changes_nothing() -> None:
    assert fed(*[0.0] * 80, 5.0, *[0.0] * 10).target == MIN_TARGET


def test_the_wait_is_bounded() -> None:
    assert fed(*[0.0, 5.0] * 50).target == MAX_TARGET


def test_jitter_that_is_over_is_forgotten() -> None:
    assert fed(*[0.0, 0.1] * 50, *[0.0] * 100).target == MIN_TARGET


def test_a_longer_way_is_the_usual_one_after_two_windows() -> None:
    packets = round(2 * WINDOW / 0.02)
    transit = fed(*[0.0] * 50, *[0.08] * (packets + 100))
    assert transit.expected_at(7.0) == pytest.approx(100.08)
    assert transit.target == MIN_TARGET


def test_a_long_silence_forgets_what_was_before() -> None:
    transit = fed(0.0)
    transit.observe(7.0 + 60.0, 160.0 + 0.2)
    assert transit.expected_at(67.0) == pytest.approx(160.2)


def test_a_sender_whose_clock_is_slower_by_one_in_ten_thousand_is_not_late() -> None:
    transit = fed(*[0.02 * n * 1e-4 for n in range(3000)])
    assert transit.expected_at(67.0) == pytest.approx(160.006, abs=1e-3)
    assert transit.target == MIN_TARGET
