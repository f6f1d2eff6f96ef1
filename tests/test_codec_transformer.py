"""codec_transformer.py: how far a frame sees, and that streams of different ages share a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from engine.codec_blocks import FullHistory, History
from engine.codec_transformer import CausalTransformer, SlidingTransformer
from engine.transformer import LayersConfig

M = TypeVar("M", bound=nn.Module)
WINDOW = 5


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(3)
        yield


def layers_config(num_layers: int) -> LayersConfig:
    return LayersConfig(
        hidden_size=12,
        intermediate_size=10,
        num_layers=num_layers,
        num_heads=3,
        num_kv_heads=3,
        head_dim=6,
        eps=1e-5,
        rope={"rope_theta": 100.0},
    )


def transformer(num_layers: int) -> SlidingTransformer:
    with torch.inference_mode(False):
        return filled(SlidingTransformer(layers_config(num_layers), channels=8, window=WINDOW))


def causal() -> CausalTransformer:
    """Two of its columns are a frame."""
    with torch.inference_mode(False):
        return filled(CausalTransformer(layers_config(num_layers=2), rate=2))


def filled(module: M) -> M:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module.eval()


def whole(module: SlidingTransformer, x: Tensor) -> Tensor:
    """x [T, channels] of one stream."""
    return module(x, History(torch.zeros(1, module.memory), torch.zeros(1, dtype=torch.int64)))


def test_a_frame_sees_itself_and_the_window_before_it() -> None:
    module, x = transformer(num_layers=1), torch.randn(20, 8)
    before = whole(module, x)
    x[10] += 1
    changed = (whole(module, x) - before).abs().amax(1) > 1e-6
    assert changed.nonzero().flatten().tolist() == [10, 11, 12, 13, 14]


def test_layers_add_up_what_they_see() -> None:
    module, x = transformer(num_layers=3), torch.randn(30, 8)
    before = whole(module, x)
    x[10] += 1
    changed = (whole(module, x) - before).abs().amax(1) > 1e-6
    assert changed.nonzero().flatten().tolist() == list(range(10, 10 + 3 * (WINDOW - 1) + 1))


def test_streams_of_different_ages_share_a_batch() -> None:
    module = transformer(num_layers=2)
    old, young = torch.randn(14, 8), torch.randn(4, 8)
    history = History(torch.zeros(1, module.memory), torch.zeros(1, dtype=torch.int64))
    module(old[:11], history)
    past = torch.cat([history.columns, torch.zeros(1, module.memory)])
    pair = torch.stack([old[11:], young[:3]], 1).flatten(0, 1)
    together = module(pair, History(past, torch.tensor([11, 0]))).view(3, 2, 8)
    assert torch.allclose(together[:, 0], whole(module, old)[11:], rtol=0, atol=1e-5)
    assert torch.allclose(together[:, 1], whole(module, young)[:3], rtol=0, atol=1e-5)


def run_causal(module: CausalTransformer, x: Tensor, sizes: list[int]) -> Tensor:
    """x [T, B, hidden] in chunks of these sizes -> the same shape."""
    pieces, seen, frames = [], [], torch.zeros(x.shape[1], dtype=torch.int64)
    for chunk in x.split(sizes):
        history = FullHistory(torch.zeros(x.shape[1], 0), frames, seen)
        pieces.append(module(chunk.flatten(0, 1), history))
        frames = frames + len(chunk) // 2
    return torch.cat(pieces).view(x.shape)


def test_a_causal_column_sees_itself_and_all_before_it() -> None:
    module, x = causal(), torch.randn(20, 1, 12)
    before = run_causal(module, x, [20])
    x[7, 0, 0] += 1  # not all channels alike, which the norm takes away
    changed = (run_causal(module, x, [20]) - before).abs().amax((1, 2)) > 1e-6
    assert changed.nonzero().flatten().tolist() == list(range(7, 20))


@pytest.mark.parametrize("sizes", [[2] * 10, [6, 14], [18, 2]])
def test_causal_chunks_equal_the_whole(sizes: list[int]) -> None:
    module, x = causal(), torch.randn(20, 3, 12)
    whole = run_causal(module, x, [20])
    assert torch.allclose(run_causal(module, x, sizes), whole, rtol=0, atol=1e-5)
    assert torch.allclose(run_causal(module, x[:, 1:2], [20]), whole[:, 1:2], rtol=0, atol=1e-5)
