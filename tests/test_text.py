"""text.py: what a token sees, what padding changes (nothing), and how a config is read."""

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
    return module(row[None], torch.tensor([len(row)]))[0]


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


def test_padding_and_row_order_change_nothing() -> None:
    module = encoder()
    rows = [ids(3, 1), ids(17, 2), ids(1, 3), ids(9, 4)]
    lengths = torch.tensor([len(row) for row in rows])
    batch = torch.full((4, 20), 7)
    for place, row in enumerate(rows):
        batch[place, : len(row)] = row
    states = module(batch, lengths)
    assert torch.isfinite(states).all()
    for place, row in enumerate(rows):
        torch.testing.assert_close(states[place, : len(row)], alone(module, row), atol=2e-6, rtol=0)
    turned = module(batch.flip(0), lengths.flip(0)).flip(0)
    torch.testing.assert_close(turned, states, atol=2e-6, rtol=0)


def test_what_stands_in_the_padding_does_not_matter() -> None:
    module = encoder()
    batch = torch.stack((ids(16, 5), ids(16, 5)))
    batch[1, 6:] = 0
    states = module(batch, torch.tensor([6, 6]))
    assert torch.equal(states[0, :6], states[1, :6])


def test_end_of_image_has_its_own_unscaled_vector() -> None:
    embedding = encoder().embed_tokens
    states = embedding(torch.tensor([[39, 5]]))
    assert torch.equal(states[0, 0], embedding.eoi_embedding)
    torch.testing.assert_close(states[0, 1], embedding.weight[5] * 24**0.5)


def test_the_embedding_factor_is_rounded_to_the_weights_dtype() -> None:
    embedding = encoder(hidden_size=1152).embed_tokens.bfloat16()
    embedding.weight.fill_(1.0)
    assert embedding(torch.tensor([[5]]))[0, 0, 0].item() == 34.0  # sqrt(1152) is 33.94


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
