"""agent/lateness.py: a quantile of lateness that forgets."""

from __future__ import annotations

import pytest

from agent.lateness import Lateness


def test_nothing_seen_is_not_late() -> None:
    assert Lateness().value == 0.0


def test_early_deliveries_do_not_count_as_credit() -> None:
    lateness = Lateness()
    for seconds in (-0.05, -0.02, -0.3):
        lateness.observe(seconds)
    assert lateness.value == 0.0


def test_it_is_a_quantile_and_not_the_mean() -> None:
    lateness = Lateness(quantile=0.5, decay=1.0)
    for seconds in (0.01, 0.02, 0.03, 0.04, 5.0):
        lateness.observe(seconds)
    assert lateness.value == 0.03


def test_one_late_delivery_is_remembered_and_then_forgotten() -> None:
    lateness = Lateness()
    for _ in range(20):
        lateness.observe(0.01)
    lateness.observe(0.1)
    assert lateness.value == 0.1
    values = []
    for _ in range(40):
        lateness.observe(0.01)
        values.append(lateness.value)
    assert values[-1] == 0.01
    assert values == sorted(values, reverse=True)


def test_it_keeps_no_more_than_its_memory() -> None:
    lateness = Lateness(quantile=1.0, decay=1.0, memory=3)
    for seconds in (9.0, 0.01, 0.02, 0.03):
        lateness.observe(seconds)
    assert lateness.value == pytest.approx(0.03)
