"""codec_blocks.py: each block against PyTorch's own convolutions, and in chunks against the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.codec_blocks import (
    CausalConv,
    CausalDownsample,
    CausalUpsample,
    ConvNeXt,
    DecoderBlock,
    DepthwiseConv,
    FullHistory,
    History,
    ResidualUnit,
    Snake,
)
from engine.device import sin_


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(11)
        yield


def memory(block: nn.Module) -> int:
    return sum(getattr(module, "memory", 0) for module in block.modules())


def rows(x: Tensor) -> Tensor:
    """[B, C, T] -> [T * B, C]"""
    return x.permute(2, 0, 1).flatten(0, 1)


def run(block: nn.Module, x: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x [B, C, T] -> [B, C', T'], and what is to be remembered."""
    past = torch.zeros(len(x), memory(block)) if past is None else past.clone()
    history = History(past, torch.zeros(len(x), dtype=torch.int64))
    y = block(rows(x), history)
    return y.view(-1, len(x), y.shape[1]).permute(1, 2, 0), history.columns


def snake(x: Tensor, act: Snake) -> Tensor:
    alpha, beta = act.alpha[:, None].exp(), act.beta[:, None].exp()
    return x + torch.sin(x * alpha) ** 2 / (beta + 1e-9)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: CausalConv(4, 6, 7),
    "dilated": lambda: CausalConv(4, 6, 3, dilation=9),
    "upsample without overlap": lambda: CausalUpsample(4, 6, 2, 2),
    "upsample": lambda: CausalUpsample(4, 6, 10, 5),
    "depthwise": lambda: DepthwiseConv(4, 7),
    "convnext": lambda: ConvNeXt(4),
    "unit": lambda: ResidualUnit(4, 9),
    "block": lambda: DecoderBlock(4, 2, 3),
}


def block_named(name: str) -> nn.Module:
    with torch.inference_mode(False):
        block = BLOCKS[name]()
        for parameter in block.parameters():
            nn.init.normal_(parameter, std=0.5)
        return block.eval()


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("sizes", [[1] * 30, [13, 1, 16], [29, 1]])
def test_chunks_equal_the_whole(name: str, sizes: list[int]) -> None:
    block, x = block_named(name), torch.randn(3, 4, 30)
    whole, remembered = run(block, x)
    pieces, past = [], torch.zeros(3, memory(block))
    for chunk in x.split(sizes, 2):
        piece, past = run(block, chunk, past)
        pieces.append(piece)
    assert torch.allclose(torch.cat(pieces, 2), whole, rtol=0, atol=1e-5)
    assert torch.allclose(past, remembered, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", BLOCKS)
def test_nothing_ahead_is_seen(name: str) -> None:
    block, x = block_named(name), torch.randn(2, 4, 20)
    whole, _ = run(block, x)
    x[:, :, 12:] = torch.nan
    blind, _ = run(block, x)
    known = whole.shape[2] // 20 * 12
    assert torch.equal(blind[:, :, :known], whole[:, :, :known])


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (7, 1), (7, 3), (7, 9)])
def test_causal_convolution(kernel: int, dilation: int) -> None:
    block, x = CausalConv(4, 6, kernel, dilation), torch.randn(2, 4, 25)
    padded = F.pad(x, ((kernel - 1) * dilation, 0))
    expected = F.conv1d(padded, block.conv.weight, block.conv.bias, dilation=dilation)
    assert torch.allclose(run(block, x)[0], expected, atol=1e-6)


@pytest.mark.parametrize(("kernel", "rate"), [(2, 2), (16, 8), (10, 5), (8, 4), (6, 3), (9, 3)])
def test_causal_upsampling(kernel: int, rate: int) -> None:
    block, x = CausalUpsample(4, 6, kernel, rate), torch.randn(2, 4, 9)
    expected = F.conv_transpose1d(x, block.conv.weight, block.conv.bias, stride=rate)[..., : 9 * rate]
    assert torch.allclose(run(block, x)[0], expected, atol=1e-6)


def downsample(kernel: int, rate: int, bias: bool = True, repeat_first: bool = False) -> CausalDownsample:
    return CausalDownsample(4, 6, kernel, rate, bias=bias, repeat_first=repeat_first).eval()


@pytest.mark.parametrize(("kernel", "rate"), [(2, 2), (8, 4), (10, 5), (9, 3)])
def test_causal_downsampling(kernel: int, rate: int) -> None:
    block, x = downsample(kernel, rate), torch.randn(2, 4, 6 * rate)
    expected = F.conv1d(F.pad(x, (kernel - rate, 0)), block.conv.weight, block.conv.bias, rate)
    assert torch.allclose(run(block, x)[0], expected, atol=1e-6)


def test_causal_downsampling_may_repeat_the_first_column() -> None:
    block, x = downsample(4, 2, bias=False, repeat_first=True), torch.randn(2, 4, 10)
    expected = F.conv1d(F.pad(x, (2, 0), mode="replicate"), block.conv.weight, None, 2)
    assert torch.allclose(run(block, x)[0], expected, atol=1e-6)


@pytest.mark.parametrize("repeat_first", [False, True])
@pytest.mark.parametrize("sizes", [[2] * 6, [4, 2, 6]])
def test_downsampling_in_chunks_equals_the_whole(repeat_first: bool, sizes: list[int]) -> None:
    block, x = downsample(4, 2, repeat_first=repeat_first), torch.randn(3, 4, 12)
    past, pieces, frames = torch.zeros(3, memory(block)), [], torch.zeros(3, dtype=torch.int64)
    for chunk in x.split(sizes, 2):
        pieces.append(block(rows(chunk), History(past, frames)))
        frames = frames + 1
    assert torch.allclose(torch.cat(pieces), rows(run(block, x)[0]), rtol=0, atol=1e-6)


def test_a_full_history_gives_each_place_all_its_columns() -> None:
    seen: list[Tensor] = []
    for first in (0.0, 2.0):
        history = FullHistory(torch.zeros(1, 0), torch.zeros(1, dtype=torch.int64), seen)
        for place in (0.0, 10.0):
            extended = history.extend_fully(torch.tensor([[first], [first + 1]]) + place)
    assert [x.flatten().tolist() for x in seen] == [[0, 1, 2, 3], [10, 11, 12, 13]]
    assert extended is seen[1]


def test_depthwise_convolution() -> None:
    block, x = DepthwiseConv(4, 7), torch.randn(2, 4, 9)
    expected = F.conv1d(F.pad(x, (6, 0)), block.conv.weight, block.conv.bias, groups=4)
    assert torch.allclose(run(block, x)[0], expected, atol=1e-6)


def test_snake() -> None:
    with torch.inference_mode(False):
        act = Snake(5)
        nn.init.normal_(act.alpha)
        nn.init.normal_(act.beta)
    x = torch.randn(2, 5, 12)
    assert torch.allclose(act(rows(x)), rows(snake(x, act)), atol=1e-6)


def test_residual_unit() -> None:
    block, x = ResidualUnit(4, 3), torch.randn(2, 4, 20)
    inner = F.pad(snake(x, block.act1), (18, 0))
    inner = F.conv1d(inner, block.conv1.conv.weight, block.conv1.conv.bias, dilation=3)
    inner = F.conv1d(snake(inner, block.act2), block.conv2.conv.weight, block.conv2.conv.bias)
    assert torch.allclose(run(block, x)[0], x + inner, atol=1e-6)


def test_columns_that_are_remembered_are_the_last_inputs() -> None:
    block, x = CausalConv(2, 1, 3), torch.tensor([[[1.0, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]])
    _, remembered = run(block, x)
    assert remembered.tolist() == [[2, 5, 3, 6], [8, 11, 9, 12]]
    _, remembered = run(block, x[:, :, :1], remembered)
    assert remembered.tolist() == [[3, 6, 1, 4], [9, 12, 7, 10]]


@pytest.mark.parametrize("kind", [CausalUpsample, CausalDownsample])
def test_a_kernel_that_is_no_multiple_of_the_rate_is_refused(kind: Callable[..., nn.Module]) -> None:
    with pytest.raises(AssertionError, match="got 7 and 3"):
        kind(4, 6, 7, 3)


def test_sine_in_place() -> None:
    x = torch.linspace(-500, 500, 10_001)
    expected = x.double().sin()
    assert sin_(x) is x
    assert torch.allclose(x.double(), expected, rtol=0, atol=1e-7)
    assert sin_(torch.tensor([1.0, torch.nan])).isnan().tolist() == [False, True]


def test_sine_has_its_gradient() -> None:
    with torch.inference_mode(False):
        x = torch.tensor([0.3, 2.0], requires_grad=True)
        (gradient,) = torch.autograd.grad(sin_(x * 1).sum(), x)
    assert torch.allclose(gradient, x.detach().cos())
