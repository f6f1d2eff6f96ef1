"""Padded batches: the ladder, the places of nobody, the second half of guided requests."""

import pytest

from engine.batch import Batch, bucket
from engine.core import Row

LADDER = (1, 2, 4, 8)


@pytest.mark.parametrize(("size", "shape"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (17, 24)])
def test_a_size_gets_the_next_shape(size: int, shape: int) -> None:
    assert bucket(size, LADDER) == shape


def test_empty_places_belong_to_nobody() -> None:
    rows = (Row(7, (3,), start=5), Row(8, (1,), start=9), Row(9, (2,), start=4))
    batch = Batch.of(rows, LADDER)
    assert batch.size == 4
    assert not batch.paired
    assert batch.first_slots == [3, 1, 2, 0]
    assert batch.slots == [3, 1, 2, 0]
    assert batch.starts() == [5, 9, 4, 0]
    assert batch.sequences[3] == (None, 0)


def test_guided_requests_add_a_half_in_the_same_order() -> None:
    plain, guided = Row(7, (3,)), Row(8, (1, 4))
    batch = Batch.of((plain, guided, Row(9, (2,))), LADDER)
    assert batch.paired
    assert batch.first_slots == [3, 1, 2, 0]
    assert batch.slots == [3, 1, 2, 0, 0, 4, 0, 0]
    assert batch.sequences[4] == (None, 0)
    assert batch.sequences[5] == (guided, 4)
