"""agent/allowance.py: a bucket each, bounded in number."""

from __future__ import annotations

import pytest

from agent import allowance
from agent.allowance import Allowance


def test_a_burst_and_then_the_rate() -> None:
    bucket = Allowance(rate=2.0, burst=3.0)
    assert [bucket.take("a", 10.0) for _ in range(3)] == [0.0, 0.0, 0.0]
    assert bucket.take("a", 10.0) == pytest.approx(0.5)
    assert bucket.take("a", 10.4) == pytest.approx(0.1)
    assert bucket.take("a", 10.5) == 0.0


def test_an_idle_client_saves_no_more_than_the_burst() -> None:
    bucket = Allowance(rate=2.0, burst=3.0)
    bucket.take("a", 0.0)
    assert [bucket.take("a", 1000.0) > 0 for _ in range(4)] == [False, False, False, True]


def test_clients_do_not_share() -> None:
    bucket = Allowance(rate=1.0, burst=1.0)
    assert bucket.take("a", 0.0) == 0.0
    assert bucket.take("b", 0.0) == 0.0
    assert bucket.take("a", 0.0) > 0.0


def test_many_clients_never_free_the_one_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allowance, "MAX_CLIENTS", 10)
    bucket = Allowance(rate=1.0, burst=2.0)
    bucket.take("flood", 0.0)
    bucket.take("flood", 0.0)
    for client in range(100):
        bucket.take(f"other {client}", 0.0)
        assert bucket.take("flood", 0.0) > 0.0
    assert len(bucket._buckets) <= 10
