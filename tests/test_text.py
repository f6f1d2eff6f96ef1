"""text.py: what a token sees, what its pack changes (nothing), and how a config is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from engine.text import FULL, SLIDING, TextConfig, TextEncoder, within
from engine.weights import CheckpointError

CONFIG: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 12,
    "sliding_window": 4,
    "eoi_token_index": 39,
    "layer_types": [SLIDING, FULL, SLIDING],
    "rope_parameters": {
        FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        SLIDING: {"rope_type": "default", "rope_theta": 1e4},
    },
}


def encoder(**changes: Any) -> TextEncoder:
    """Random weights, the same for every call."""
    module = TextEncoder(TextConfig.from_dict(CONFIG | changes))
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4, generator=generator)
    return module.requires_grad_(False)


def ids(length: int, seed: int = 0) -> Tensor:
    return torch.randint(39, (length,), generator=torch.Generator().manual_seed(seed))


def alone(module: TextEncoder, row: Tensor) -> Tensor:
    return module(row, torch.tensor([len(row)]), len(row))


def packed(module: TextEncoder, rows: list[Tensor], count: int, tokens: int, longest: int) -> list[Tensor]:
    """The rows' states, from one pack of that shape."""
    lengths = torch.tensor([len(row) for row in rows] + [0] * (count - len(rows)))
    padding = torch.full((tokens - int(lengths.sum()),), 7)
    states = module(torch.cat((*rows, padding)), lengths, longest)
    assert states.shape == (tokens, CONFIG["hidden_size"])
    return list(states.split([*lengths.tolist(), len(padding)])[: len(rows)])


def reach(module: TextEncoder, length: int, changed: int) -> list[int]:
    """The positions whose state changes when the token at `changed` does."""
    row = ids(length)
    other = row.clone()
    other[changed] = (row[changed] + 1) % 39
    difference = (alone(module, row) - alone(module, other)).abs().amax(-1)
    return difference.gt(0).nonzero()[:, 0].tolist()


def test_a_full_layer_sees_both_directions() -> None:
    module = encoder(layer_types=[FULL])
    assert reach(module, 12, 0) == list(range(12))
    assert reach(module, 12, 11) == list(range(12))


def test_a_sliding_layer_sees_its_window_one_more_to_the_right() -> None:
    # Window 4: a query sees keys from one to its left to two to its right.
    assert reach(encoder(layer_types=[SLIDING]), 12, 5) == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("window", "seen"),
    [(1, [0]), (2, [-1, 0]), (3, [-1, 0, 1]), (4, [-2, -1, 0, 1]), (8, [-4, -3, -2, -1, 0, 1, 2, 3])],
)
def test_window_arithmetic(window: int, seen: list[int]) -> None:
    distance = torch.arange(-20, 21)
    assert distance[within(distance, window)].tolist() == seen


def test_the_official_window() -> None:
    distance = torch.arange(-600, 600)
    visible = distance[within(distance, 512)]
    assert (visible.min(), visible.max()) == (-256, 255)


ROWS = [ids(3, 1), ids(17, 2), ids(1, 3), ids(9, 4)]


@pytest.mark.parametrize(("count", "tokens", "longest"), [(4, 30, 17), (4, 32, 32), (8, 64, 20)])
def test_packed_is_one_by_one(count: int, tokens: int, longest: int) -> None:
    """In any order, with and without padding; another shape, so not to the last bit."""
    module = encoder()
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        rows = [ROWS[i] for i in order]
        for row, states in zip(rows, packed(module, rows, count, tokens, longest), strict=True):
            torch.testing.assert_close(states, alone(module, row), atol=2e-6, rtol=0)


def test_neighbours_change_no_bit() -> None:
    """Within one shape, in one place: whatever stands before and behind, and nothing. That another place changes none
    either is the fused kernels' word; a CPU's vectors and their rests may round apart."""
    module = encoder()
    row, others = ids(9, 4), [ids(11, seed) for seed in range(5, 11)]
    expected = packed(module, [others[0], row], 4, 64, 32)[1]
    for before, behind in ((1, []), (2, [3]), (4, [5, 0])):
        rows = [others[before], row, *(others[i] for i in behind)]
        assert torch.equal(packed(module, rows, 4, 64, 32)[1], expected)
    split = packed(module, [others[1][:4], others[1][4:], row, others[2]], 4, 64, 32)
    assert torch.equal(split[2], expected)


def test_another_place_changes_next_to_nothing() -> None:
    module, row = encoder(), ids(9, 4)
    expected = packed(module, [row], 4, 64, 32)[0]
    for before in (1, 2, 7, 16, 31):
        moved = packed(module, [ids(before), row], 4, 64, 32)[1]
        torch.testing.assert_close(moved, expected, atol=1e-6, rtol=0)


def test_a_neighbours_nan_stays_with_him() -> None:
    """Token 39 looks up a vector of its own, which is NaN here."""
    module, row = encoder(), ids(9, 4)
    module.embed_tokens.eoi_embedding.fill_(torch.nan)
    broken = torch.full((7,), 39)
    clean = packed(module, [ids(7), row, ids(5)], 4, 32, 32)
    for rows in ([broken, row, ids(5)], [ids(7), row, broken[:5]], [broken, row, broken, broken]):
        states = packed(module, rows, 4, 32, 32)
        assert torch.equal(states[1], clean[1])
        assert states[0].isnan().all() or torch.equal(states[0], clean[0])


def test_a_pack_without_segments_is_finite() -> None:
    """As it is when its shape is captured."""
    states = encoder()(torch.zeros(16, dtype=torch.int64), torch.zeros(2, dtype=torch.int64), 16)
    assert torch.isfinite(states).all()


def test_end_of_image_has_its_own_unscaled_vector() -> None:
    embedding = encoder().embed_tokens
    states = embedding(torch.tensor([39, 5]))
    assert torch.equal(states[0], embedding.eoi_embedding)
    torch.testing.assert_close(states[1], embedding.weight[5] * 24**0.5)


def test_the_embedding_factor_is_rounded_to_the_weights_dtype() -> None:
    embedding = encoder(hidden_size=1152).embed_tokens.bfloat16()
    embedding.weight.fill_(1.0)
    assert embedding(torch.tensor([5]))[0, 0].item() == 34.0  # sqrt(1152) is 33.94


def test_bf16_stays_near_fp32() -> None:
    exact = alone(encoder(), ids(20))
    rough = alone(encoder().bfloat16(), ids(20))
    assert rough.dtype == torch.bfloat16
    assert torch.cosine_similarity(exact, rough.float(), dim=-1).min() > 0.99


def test_the_form_of_older_configs_means_the_same() -> None:
    older = {key: value for key, value in CONFIG.items() if key != "rope_parameters"} | {
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    module = TextEncoder(TextConfig.from_dict(older))
    module.load_state_dict(encoder().state_dict())
    assert torch.equal(alone(module, ids(9)), alone(encoder(), ids(9)))


def test_the_rotary_factor_counts() -> None:
    plain = CONFIG["rope_parameters"] | {FULL: {"rope_type": "default", "rope_theta": 1e6}}
    assert not torch.allclose(alone(encoder(rope_parameters=plain), ids(9)), alone(encoder(), ids(9)))


def test_layers_can_be_trained() -> None:
    module = encoder().requires_grad_(True)
    alone(module, torch.cat((ids(9), torch.tensor([39])))).square().sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_activation": "gelu"},
        {"attn_logit_softcapping": 50.0},
        {"attention_bias": True},
        {"layer_types": ["chunked_attention"]},
        {"layer_types": []},
    ],
)
def test_foreign_variants_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=next(iter(change))):
        TextConfig.from_dict(CONFIG | change)
