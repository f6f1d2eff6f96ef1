"""Definitions and accumulators, by hand-made numbers."""

import pytest

from engine.metrics import Count, Measure, Metrics, Window, lateness, missing_seconds, quantile


def test_a_chunk_is_late_when_all_before_it_has_been_played() -> None:
    assert lateness(arrived_at=10.25, first_at=10.0, audio_before=0.24) == pytest.approx(0.01)
    assert lateness(arrived_at=10.25, first_at=10.0, audio_before=0.32) == pytest.approx(-0.07)


def test_the_missing_buffer_is_the_largest_lateness() -> None:
    arrivals = [(1.0, 0.08), (1.10, 0.16), (1.29, 0.08), (1.30, 0.64)]
    assert missing_seconds(arrivals) == pytest.approx(0.05)  # 1.29 against 1.0 + 0.24
    assert missing_seconds([(1.0, 0.08), (1.08, 0.08)]) == 0.0
    assert missing_seconds([]) == 0.0


def test_quantiles_are_nearest_ranks() -> None:
    values = [float(value) for value in range(1, 101)]
    assert quantile(values, 0.5) == 51.0
    assert quantile(values, 0.99) == 100.0
    assert quantile([7.0], 0.95) == 7.0


def test_a_window_forgets_the_oldest() -> None:
    window = Window(3)
    for value in (9.0, 1.0, 2.0, 3.0):
        window.add(value)
    assert window.quantile(1.0) == 3.0
    assert (window.count, window.total) == (4, 15.0)


def test_a_snapshot_names_every_count_and_the_measures_seen() -> None:
    metrics = Metrics()
    metrics.count(Count.CHUNKS)
    metrics.count(Count.BUSY, 0.25)
    for ttfa in (0.1, 0.2, 0.3):
        metrics.observe(Measure.TTFA, ttfa)
    values = metrics.snapshot()
    assert values["chunks_total"] == 1.0
    assert values["device_busy_seconds_total"] == 0.25
    assert values["requests_refused_total"] == 0.0
    assert values["ttfa_seconds_count"] == 3.0
    assert values["ttfa_seconds_sum"] == pytest.approx(0.6)
    assert values["ttfa_seconds_p50"] == 0.2
    assert "rtf_p50" not in values
