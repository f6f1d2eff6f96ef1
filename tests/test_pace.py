"""agent/pace.py: packets are due every 20 ms from an anchor, and catch-up is bounded."""

from __future__ import annotations

import pytest

from agent.pace import Pace


def test_due_every_20_ms_from_the_first_pull() -> None:
    pace = Pace()
    assert pace.next_due(100.0) == 100.0
    assert [pace.next_due(100.001 + n * 0.02) for n in range(3)] == pytest.approx([100.02, 100.04, 100.06])


def test_jitter_of_the_pulls_does_not_move_the_anchor() -> None:
    pace = Pace()
    pulls = [0.0, 0.019, 0.055, 0.056, 0.079]
    assert [pace.next_due(now) for now in pulls] == pytest.approx([0.0, 0.02, 0.04, 0.06, 0.08])
    assert pace.stalls == 0


def test_a_stall_of_up_to_three_packets_is_caught_up() -> None:
    pace = Pace()
    pace.next_due(0.0)
    assert [pace.next_due(0.079) for _ in range(4)] == pytest.approx([0.02, 0.04, 0.06, 0.08])
    assert pace.stalls == 0


def test_a_longer_stall_moves_the_anchor_instead_of_bursting() -> None:
    pace = Pace()
    pace.next_due(0.0)
    assert pace.next_due(0.5) == 0.5
    assert pace.next_due(0.501) == pytest.approx(0.52)
    assert pace.stalls == 1


def test_it_says_how_far_behind_the_packet_pulled_last_is() -> None:
    pace = Pace()
    assert pace.behind(5.0) == 0.0
    pace.next_due(10.0)
    assert pace.next_due(10.05) == pytest.approx(10.02)
    assert pace.behind(10.05) == pytest.approx(0.03)
    assert pace.behind(10.015) == 0.0
