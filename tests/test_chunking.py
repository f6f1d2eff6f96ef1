"""Chunks grow on the ladder and shrink to what exists when time is short."""

import pytest

from engine.chunking import LADDER, expected, fitting, goal, seconds, sendable

CODEC = {1: 0.010, 2: 0.012, 4: 0.016, 8: 0.024, 16: 0.040}
FRAME = 0.020


def test_chunks_grow_1_2_4_8_16_and_stay_there() -> None:
    assert [goal(chunks) for chunks in range(7)] == [1, 2, 4, 8, 16, 16, 16]


@pytest.mark.parametrize(
    ("frames", "size"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (15, 8), (16, 16), (17, 16), (99, 16)]
)
def test_a_partial_chunk_is_the_largest_ladder_size_that_is_filled(frames: int, size: int) -> None:
    assert fitting(frames) == size


def test_work_is_missing_frames_and_the_codec() -> None:
    assert seconds(4, 1, FRAME, CODEC) == pytest.approx(3 * 0.020 + 0.016)
    assert seconds(4, 5, FRAME, CODEC) == pytest.approx(0.016)


def test_a_full_chunk_is_sent_however_much_time_there_is() -> None:
    assert sendable(4, 4, 9.0, FRAME, CODEC) == 4


def test_with_time_for_the_next_size_more_frames_are_made() -> None:
    assert sendable(2, 4, 2 * 0.020 + 0.016 + 0.001, FRAME, CODEC) == 0


def test_without_time_for_the_next_size_what_exists_is_sent() -> None:
    assert sendable(2, 4, 2 * 0.020 + 0.016 - 0.001, FRAME, CODEC) == 2
    assert sendable(3, 4, 0.020 + 0.016 - 0.001, FRAME, CODEC) == 2
    assert sendable(1, 16, -1.0, FRAME, CODEC) == 1


@pytest.mark.parametrize(("time_left", "size"), [(1.0, 16), (0.350, 8), (0.2, 8), (0.1, 4), (0.05, 1), (-1.0, 1)])
def test_the_expected_chunk_is_the_largest_that_fits_into_the_time(time_left: float, size: int) -> None:
    assert expected(0, 16, time_left, FRAME, CODEC) == size


def test_the_expected_chunk_does_not_exceed_the_goal() -> None:
    assert [expected(0, wanted, 9.0, FRAME, CODEC) for wanted in LADDER] == list(LADDER)
