"""Chunks grow on the ladder and shrink to what exists when time is short."""

from math import inf

import pytest

from engine.chunking import LADDER, expected, fitting, goal, largest, seconds, steps

CODEC = {1: 0.010, 2: 0.012, 4: 0.016, 8: 0.024, 16: 0.040}
FRAME = 0.020


def test_chunks_grow_1_2_4_8_16_and_stay_there() -> None:
    assert [goal(chunks) for chunks in range(7)] == [1, 2, 4, 8, 16, 16, 16]


def test_chunks_that_begin_larger_are_never_smaller() -> None:
    assert [goal(chunks, first=4) for chunks in range(5)] == [4, 8, 16, 16, 16]
    assert [goal(chunks, first=16) for chunks in range(3)] == [16, 16, 16]
    assert [goal(chunks, 8, first=16) for chunks in range(3)] == [16, 16, 16]
    assert [goal(chunks, 8, first=2) for chunks in range(4)] == [2, 4, 8, 8]


def test_so_many_chunks_do_not_overflow() -> None:
    assert goal(10**6) == 16


@pytest.mark.parametrize(
    ("frames", "size"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (15, 8), (16, 16), (17, 16), (99, 16)]
)
def test_a_partial_chunk_is_the_largest_ladder_size_that_is_filled(frames: int, size: int) -> None:
    assert fitting(frames) == size


def test_no_chunk_is_larger_than_the_largest() -> None:
    assert [goal(chunks, 4) for chunks in range(5)] == [1, 2, 4, 4, 4]
    assert [fitting(frames, 4) for frames in (1, 3, 4, 16, 99)] == [1, 2, 4, 4, 4]
    assert steps(16, 4) == (4, 0)


def test_chunks_grow_as_far_as_one_step_may_take() -> None:
    """A call of 6 ms and 15.5 ms a frame: 4 frames take 68 ms, 8 take 130."""
    codec = {size: 0.006 + 0.0155 * size for size in LADDER}
    assert [largest(codec, most) for most in (0.037, 0.067, 0.069, 0.100)] == [2, 2, 4, 4]


def test_chunks_grow_as_far_as_that_pays() -> None:
    """Per frame 8.2, 6.4, 5.4, 4.8 and 4.4 ms: each size is at least 5 % cheaper than the one before."""
    codec = {1: 0.0082, 2: 0.0128, 4: 0.0216, 8: 0.0384, 16: 0.0704}
    assert largest(codec, 0.100) == 16
    assert largest({**codec, 16: 2 * 0.0384 * 0.96}, 0.100) == 8
    assert largest({**codec, 4: 2 * 0.0128}, 0.100) == 2
    assert largest({size: 0.0082 * size for size in LADDER}, 0.100) == 1


def test_the_smallest_chunk_may_take_longer() -> None:
    assert largest({size: 0.200 + 0.001 * size for size in LADDER}, 0.100) == 1


def test_work_is_missing_frames_and_the_codec() -> None:
    assert seconds(4, 1, FRAME, CODEC) == pytest.approx(3 * 0.020 + 0.016)
    assert seconds(4, 5, FRAME, CODEC) == pytest.approx(0.016)


def test_nothing_is_waited_for_beyond_a_full_chunk() -> None:
    assert [steps(pending, 4) for pending in (4, 5, 16)] == [(4, 0)] * 3
    assert steps(1, 1) == (1, 0)


def test_between_what_exists_and_a_full_chunk_is_the_next_size() -> None:
    assert [steps(pending, 16) for pending in (1, 2, 3, 7, 8, 15)] == [(1, 2), (2, 4), (2, 4), (4, 8), (8, 16), (8, 16)]


@pytest.mark.parametrize(("time_left", "size"), [(1.0, 16), (0.350, 8), (0.2, 8), (0.1, 4), (0.05, 1), (-1.0, 1)])
def test_the_expected_chunk_is_the_largest_that_fits_into_the_time(time_left: float, size: int) -> None:
    assert expected(0, 16, time_left, FRAME, CODEC) == size


def test_the_expected_chunk_does_not_exceed_the_goal() -> None:
    assert [expected(0, wanted, 9.0, FRAME, CODEC) for wanted in LADDER] == list(LADDER)


def test_a_chunk_of_what_exists_needs_the_codec_only() -> None:
    assert [expected(8, 16, left, FRAME, CODEC) for left in (0.201, 0.199, 0.025, 0.023, 0.017, 0.0)] == [
        *(16, 8, 8, 4, 4, 1),
    ]


def test_where_time_is_endless_the_goal_is_expected() -> None:
    assert expected(0, 8, inf, FRAME, CODEC) == 8
