"""The codec's convolutional blocks: causal, with a memory, the same over a whole utterance and frame by frame.

It does not know which streams there are or where their memories are kept. Blocks after BigVGAN (arXiv:2206.04658) and
ConvNeXt (arXiv:2201.03545), joined as the checkpoint of Qwen3-TTS-Tokenizer-12Hz and its model card say.

Activations are matrices [T * B, channels] whose rows count time first, then streams. Any stretch of time is then one
block of rows, and every convolution, transposed ones too, a sum of products of such blocks, without a copy.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.device import sin_
from engine.prepared import Prepared

KERNEL = 7
DILATIONS = (1, 3, 9)


class History:
    """What a causal network remembers of its B streams: for each place that looks back, the last columns it had.

    The places take theirs from `columns` [B, floats] one after the other, in the order in which they run, and leave
    there what they are to find next time. Zeros are the past of a stream that begins.
    `frames` [B] int64 counts the frames that each stream has had.
    """

    def __init__(self, columns: Tensor, frames: Tensor) -> None:
        self.columns = columns
        self.frames = frames
        self.batch = columns.shape[0]
        self._taken = 0

    def extend(self, x: Tensor, columns: int) -> Tensor:
        """x [T * B, C] with the `columns` columns before it in front -> [(columns + T) * B, C]."""
        if columns == 0:
            return x
        place = self.columns[:, self._taken : self._taken + columns * x.shape[1]]
        self._taken += place.shape[1]
        past = place.view(self.batch, columns, -1).transpose(0, 1)
        extended = torch.cat((past.flatten(0, 1), x))
        past.copy_(extended[-columns * self.batch :].detach().view_as(past))
        return extended


class FullHistory(History):
    """A history that also keeps every column of the places that look back to the beginning, in `seen`.

    There is one matrix [S * B, C] in `seen` for each such place, in the order in which they run; none where the streams
    begin. The B streams have begun together.
    """

    def __init__(self, columns: Tensor, frames: Tensor, seen: list[Tensor]) -> None:
        super().__init__(columns, frames)
        self.seen = seen
        self._places = 0

    def extend_fully(self, x: Tensor) -> Tensor:
        """x [T * B, C] with all columns before it in front -> [(S + T) * B, C]."""
        place, self._places = self._places, self._places + 1
        if place == len(self.seen):
            self.seen.append(x)
        else:
            self.seen[place] = torch.cat((self.seen[place], x))
        return self.seen[place]


class Snake(Prepared[tuple[Tensor, Tensor]]):
    """x + sin(x * e^alpha)^2 / (e^beta + 1e-9), a frequency and a size for each channel (arXiv:2006.08195)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(channels))
        self.beta = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        """x [T * B, channels] -> the same shape."""
        frequency, size = self.prepared()
        return torch.addcmul(x, sin_(x * frequency).square_(), size)

    def _prepare(self) -> tuple[Tensor, Tensor]:
        return self.alpha.exp(), 1 / (self.beta.exp() + 1e-9)


def stretches(x: Tensor, taps: int, step: int) -> Tensor:
    """x [(taps - 1) * step + N, C] -> [taps, N, C], each N rows of x, each `step` rows after the one before."""
    return x.unfold(0, x.shape[0] - (taps - 1) * step, step).transpose(1, 2)


def bias_of(conv: nn.Conv1d | nn.ConvTranspose1d) -> Tensor:
    """[outputs]; every convolution here has one."""
    assert conv.bias is not None
    return conv.bias


class CausalConv(Prepared[tuple[Tensor, Tensor]]):
    """A convolution that sees (kernel - 1) * dilation columns back and nothing ahead."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel)
        self._taps, self._dilation = kernel, dilation
        self._columns = (kernel - 1) * dilation
        self.memory = self._columns * inputs

    def forward(self, x: Tensor, history: History) -> Tensor:
        """x [T * B, inputs] -> [T * B, outputs]."""
        blocks = stretches(history.extend(x, self._columns), self._taps, self._dilation * history.batch)
        kernel, bias = self.prepared()
        return torch.addbmm(bias, blocks, kernel)

    def _prepare(self) -> tuple[Tensor, Tensor]:
        """[taps, inputs, outputs] and [outputs]."""
        return self.conv.weight.permute(2, 1, 0).contiguous(), bias_of(self.conv)


class CausalUpsample(Prepared[tuple[Tensor, Tensor]]):
    """A transposed convolution, kernel a multiple of `rate`, that ends where its input ends.

    As out[t * rate + j] = bias + sum over i of W[:, :, j + i * rate]^T x[t - i], it is a causal convolution to
    rate * outputs channels, whose groups of `outputs` channels then stand one after the other in time.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, rate: int) -> None:
        super().__init__()
        assert kernel % rate == 0, f"the kernel must be a multiple of the rate, got {kernel} and {rate}"
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, rate)
        self._taps, self._rate, self._outputs = kernel // rate, rate, outputs
        self._columns = self._taps - 1
        self.memory = self._columns * inputs

    def forward(self, x: Tensor, history: History) -> Tensor:
        """x [T * B, inputs] -> [T * rate * B, outputs]."""
        kernel, bias = self.prepared()
        blocks = stretches(history.extend(x, self._columns), self._taps, history.batch)
        groups = torch.addbmm(bias, blocks, kernel).view(-1, history.batch, self._rate, self._outputs)
        return groups.transpose(1, 2).flatten(0, 2)

    def _prepare(self) -> tuple[Tensor, Tensor]:
        """[taps, inputs, rate * outputs], oldest tap first, and [rate * outputs]."""
        kernel = self.conv.weight.reshape(-1, self._outputs, self._taps, self._rate).permute(2, 0, 3, 1)
        return kernel.flatten(2).flip(0), bias_of(self.conv).repeat(self._rate)


class CausalDownsample(Prepared[tuple[Tensor, Tensor]]):
    """A convolution of stride `rate`, kernel a multiple of it, that sees kernel - rate columns back and nothing ahead.

    The mirror of CausalUpsample: `rate` columns that stand one after the other in time are one of rate * inputs
    channels, and what sees them a causal convolution. Before a stream begins there are zeros or, if it is told to
    `repeat_first`, its first column again.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, rate: int, bias: bool = True, repeat_first: bool = False
    ) -> None:
        super().__init__()
        assert kernel % rate == 0, f"the kernel must be a multiple of the rate, got {kernel} and {rate}"
        self.conv = nn.Conv1d(inputs, outputs, kernel, rate, bias=bias)
        self.rate = rate
        self._taps, self._repeats = kernel // rate, repeat_first
        self._columns = kernel - rate
        self.memory = self._columns * inputs

    def forward(self, x: Tensor, history: History) -> Tensor:
        """x [T * B, inputs], T a multiple of the rate -> [T / rate * B, outputs]."""
        extended = history.extend(x, self._columns)
        if self._repeats:
            self._repeat_first(extended.view(-1, history.batch, x.shape[1]), history.frames)
        groups = extended.view(-1, self.rate, history.batch, x.shape[1]).transpose(1, 2)
        blocks = stretches(groups.reshape(-1, self.rate * x.shape[1]), self._taps, history.batch)
        kernel, bias = self.prepared()
        return torch.addbmm(bias, blocks, kernel)

    def _repeat_first(self, x: Tensor, frames: Tensor) -> None:
        """x [columns + T, B, inputs]: the past of streams that begin, in place."""
        past = x[: self._columns]
        past.copy_(torch.where((frames == 0)[:, None], x[self._columns], past))

    def _prepare(self) -> tuple[Tensor, Tensor]:
        """[taps, rate * inputs, outputs], oldest tap first, and [outputs]."""
        outputs, inputs = self.conv.weight.shape[:2]
        kernel = self.conv.weight.view(outputs, inputs, self._taps, self.rate).permute(2, 3, 1, 0)
        bias = self.conv.weight.new_zeros(outputs) if self.conv.bias is None else self.conv.bias
        return kernel.flatten(1, 2).contiguous(), bias


class DepthwiseConv(nn.Module):
    """A causal convolution of each channel by itself."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, kernel, groups=channels)
        self._taps = kernel
        self.memory = (kernel - 1) * channels

    def forward(self, x: Tensor, history: History) -> Tensor:
        """x [T * B, channels] -> the same shape."""
        blocks = stretches(history.extend(x, self._taps - 1), self._taps, history.batch)
        return (blocks * self.conv.weight.permute(2, 1, 0)).sum(0).add_(bias_of(self.conv))


class ConvNeXt(Prepared[tuple[Tensor, Tensor]]):
    """Depthwise convolution, norm, then a feed-forward layer for each column, scaled and added."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = DepthwiseConv(channels, KERNEL)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 4 * channels)
        self.pwconv2 = nn.Linear(4 * channels, channels)
        self.gamma = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor, history: History) -> Tensor:
        """x [T * B, channels] -> the same shape."""
        widen, narrow = self.prepared()
        inner = F.gelu(torch.addmm(self.pwconv1.bias, self.norm(self.dwconv(x, history)), widen))
        return torch.addcmul(x, torch.addmm(self.pwconv2.bias, inner, narrow), self.gamma)

    def _prepare(self) -> tuple[Tensor, Tensor]:
        return self.pwconv1.weight.t(), self.pwconv2.weight.t()


class ResidualUnit(nn.Module):
    """A dilated convolution and a mixing of channels, each behind a Snake, added to the input."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.act1 = Snake(channels)
        self.conv1 = CausalConv(channels, channels, KERNEL, dilation)
        self.act2 = Snake(channels)
        self.conv2 = CausalConv(channels, channels, 1)

    def forward(self, x: Tensor, history: History) -> Tensor:
        """x [T * B, channels] -> the same shape."""
        branch: Tensor = self.conv2(self.act2(self.conv1(self.act1(x), history)), history)
        return branch.add_(x)


class DecoderBlock(nn.Module):
    """Snake, an upsampling by `rate`, three residual units of growing dilation."""

    def __init__(self, inputs: int, outputs: int, rate: int) -> None:
        super().__init__()
        units = (ResidualUnit(outputs, dilation) for dilation in DILATIONS)
        self.block = nn.ModuleList((Snake(inputs), CausalUpsample(inputs, outputs, 2 * rate, rate), *units))

    def forward(self, x: Tensor, history: History) -> Tensor:
        """x [T * B, inputs] -> [T * rate * B, outputs]."""
        snake, *rest = self.block
        x = snake(x)
        for module in rest:
            x = module(x, history)
        return x
