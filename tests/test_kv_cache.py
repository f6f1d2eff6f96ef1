"""Pages of keys and values: where positions go, what is looked at, what is seen."""

from __future__ import annotations

import pytest
import torch

from engine.kv_cache import PagedKV
from engine.transformer import LayersConfig

CONFIG = LayersConfig(
    hidden_size=8, intermediate_size=8, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, eps=1e-6, rope={}
)


@pytest.fixture
def kv() -> PagedKV:
    """Pages of 2 positions; slot 1 has pages 5 and 3, slot 2 has page 4."""
    kv = PagedKV.allocate(
        CONFIG, num_pages=6, page_size=2, num_slots=3, max_positions=5, dtype=torch.float32, device="cpu"
    )
    kv.assign(1, (5, 3))
    kv.assign(2, (4,))
    return kv


def test_shapes_follow_the_config(kv: PagedKV) -> None:
    assert kv.keys.shape == kv.values.shape == (2, 6, 2, 2, 4)
    assert kv.page_table.tolist() == [[0, 0, 0], [5, 3, 0], [4, 0, 0]]
    assert [tuple(keys.shape) for keys, _ in kv.layers] == [(12, 2, 4)] * 2


def test_layers_are_the_pages_themselves(kv: PagedKV) -> None:
    kv.layers[1][0][7] = 1.0
    assert bool((kv.keys[1, 3, 1] == 1).all())
    assert kv.keys.sum() == 8


def test_positions_lie_in_the_pages_of_their_slot(kv: PagedKV) -> None:
    positions, valid = torch.tensor([[1, 2], [0, 1]]), torch.ones(2, 2, dtype=torch.bool)
    window = kv.window(positions, valid, torch.tensor([1, 2]), 2)
    assert window.write.tolist() == [11, 6, 8, 9]
    assert window.read.view(2, 4).tolist() == [[10, 11, 6, 6], [8, 9, 9, 9]]


def test_nothing_beyond_the_last_position_is_looked_at(kv: PagedKV) -> None:
    window = kv.window(torch.tensor([[0]]), torch.tensor([[True]]), torch.tensor([1]), 3)
    assert window.read.tolist() == [10] * 6


def test_a_query_sees_up_to_its_own_position(kv: PagedKV) -> None:
    window = kv.window(torch.tensor([[1, 2]]), torch.ones(1, 2, dtype=torch.bool), torch.tensor([1]), 2)
    seen = (window.bias == 0).long()
    assert seen.tolist() == [[[[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]]]]
    assert bool((window.bias[seen == 0] == -torch.inf).all())


def test_invalid_positions_go_to_page_0_and_see_something(kv: PagedKV) -> None:
    """A query that sees nothing would be NaN. Positions of invalid places may be anything, also out of range."""
    positions, valid = torch.tensor([[2, 99], [77, 78]]), torch.tensor([[True, False], [False, False]])
    window = kv.window(positions, valid, torch.tensor([1, 0]), 2)
    assert window.write.tolist() == [6, 0, 0, 0]
    assert window.read.view(2, 4).tolist() == [[10, 11, 6, 6], [0, 0, 0, 0]]
    assert bool((window.bias == 0).any(-1).all())


def test_a_new_owner_keeps_no_page_of_the_old_one(kv: PagedKV) -> None:
    kv.assign(1, (2,))
    assert kv.page_table[1].tolist() == [2, 0, 0]
    with pytest.raises(AssertionError, match="slot 1 holds at most 3 pages, got 4"):
        kv.assign(1, (1, 2, 3, 4))
