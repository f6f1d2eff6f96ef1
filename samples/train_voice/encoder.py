"""The codec's encoder: samples become vectors a frame, and codes of a residual quantizer. Only training needs it.

It does not know the decoder; the codebooks are the decoder's own. A mel spectrogram, ConvNeXt blocks (arXiv:2201.03545)
and strides of two; it looks ahead. The quantizer is SoundStream's (arXiv:2107.03312): straight-through gradients,
codebooks as running means, unused codes born anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from spectra import magnitudes, mel_bank
from torch import Tensor, nn

from engine.codec import Codebook, Quantizer, QuantizerLayer, ResidualQuantizer

WINDOW, HOP, MELS = 1024, 240, 128
WIDTHS = (256, 320, 384, 512)
"""Channels at 100, 50, 25 and 12.5 columns a second."""
KERNELS = (7, 7, 7, 3)
SILENCE = 1e-5


class Block(nn.Module):
    """Depthwise convolution, norm, feed-forward, scaled and added."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.pwconv1 = nn.Linear(channels, 3 * channels)
        self.pwconv2 = nn.Linear(3 * channels, channels)
        self.gamma = nn.Parameter(torch.full((channels,), 0.2))

    def forward(self, x: Tensor) -> Tensor:
        """x [B, channels, T] -> the same shape."""
        inner = F.gelu(self.pwconv1(self.norm(self.dwconv(x).transpose(1, 2))))
        out: Tensor = x + (self.gamma * self.pwconv2(inner)).transpose(1, 2)
        return out


class Encoder(nn.Module):
    """Samples to vectors of the codec's width, 1920 samples (three strides of two, a hop of 240) to one."""

    bank: Tensor

    def __init__(self, dim: int, sample_rate: int, widths: tuple[int, ...] = WIDTHS) -> None:
        super().__init__()
        self.register_buffer("bank", mel_bank(WINDOW, MELS, sample_rate), persistent=False)
        self.register_buffer("window", torch.hann_window(WINDOW), persistent=False)
        self.first = nn.Conv1d(MELS, widths[0], 5, padding=2)
        self.blocks = nn.Sequential(*(Block(w, k) for w, k in zip(widths, KERNELS, strict=True) for _ in range(2)))
        self.strides = nn.ModuleList(
            nn.Conv1d(narrow, wide, 4, stride=2, padding=1) for narrow, wide in pairwise(widths)
        )
        self.last = nn.Conv1d(widths[-1], dim, 1)
        self.project_first = nn.Conv1d(dim, dim // 2, 1, bias=False)
        self.project_rest = nn.Conv1d(dim, dim // 2, 1, bias=False)

    def forward(self, samples: Tensor) -> Tensor:
        """samples [B, T * 1920] -> [B, dim, T]."""
        with torch.autocast(samples.device.type, enabled=False):
            spectrum = magnitudes(samples.float(), WINDOW, HOP, self.get_buffer("window"))
            x = (self.bank @ spectrum[..., : samples.shape[-1] // HOP] + SILENCE).log()
        x = self.first((x + 5) / 3)
        for index in range(len(KERNELS)):
            x = self.blocks[2 * index + 1](self.blocks[2 * index](x))
            if index < len(self.strides):
                x = self.strides[index](x)
        out: Tensor = self.last(x)
        return out


@dataclass(frozen=True, slots=True)
class Learning:
    """How codebooks follow what they are given."""

    decay: float
    dead: float
    fresh: bool
    """Whether this is the first batch: codebooks begin as vectors of it."""


@dataclass(frozen=True, slots=True)
class Quantized:
    """vectors [B, dim, T], with straight-through gradients; codes [B, K, T]; what the encoder pays for its distance."""

    vectors: Tensor
    codes: Tensor
    commitment: Tensor


def quantize(
    encoder: Encoder, quantizer: Quantizer, z: Tensor, learning: Learning | None = None, kept: Tensor | None = None
) -> Quantized:
    """z [B, dim, T] -> codes and their vectors: the first codebook, and the others on what it leaves.

    kept [B, K] is true for the codebooks that an item keeps, always the first. With `learning`, codebooks are updated.
    """
    first = _stack(z, encoder.project_first, quantizer.rvq_first, learning, None)
    left = z - first.vectors.detach()
    rest = _stack(left, encoder.project_rest, quantizer.rvq_rest, learning, None if kept is None else kept[:, 1:])
    if kept is not None:
        rest = Quantized(rest.vectors * kept[:, 1, None, None], rest.codes, rest.commitment)
    codes = torch.cat((first.codes, rest.codes), 1)
    return Quantized(first.vectors + rest.vectors, codes, first.commitment + rest.commitment)


def _stack(
    z: Tensor, project: nn.Conv1d, stack: ResidualQuantizer, learning: Learning | None, kept: Tensor | None
) -> Quantized:
    with torch.autocast(z.device.type, enabled=False):
        x = project(z.float()).transpose(1, 2)
        left, total, commitment, codes = x, torch.zeros_like(x), x.new_zeros(()), []
        for index, layer in enumerate(cast(Iterable[QuantizerLayer], stack.vq.layers)):
            code, entry = nearest(layer._codebook, left.detach(), learning)
            weight = 1.0 if kept is None else kept[:, index, None, None].float()
            commitment = commitment + ((left - entry).square() * weight).mean()
            total, left = total + entry * weight, left - entry
            codes.append(code)
        vectors = F.conv1d((x + (total - x).detach()).transpose(1, 2), stack.output_proj.weight)
    return Quantized(vectors, torch.stack(codes, 1), commitment)


@torch.no_grad()
def nearest(codebook: Codebook, x: Tensor, learning: Learning | None) -> tuple[Tensor, Tensor]:
    """x [B, T, width] -> the nearest entry's code [B, T] and the entry [B, T, width], before any update."""
    rows = x.flatten(0, 1)
    if learning and learning.fresh:
        codebook.embedding_sum.copy_(_some(rows, len(codebook.cluster_usage)))
        codebook.cluster_usage.fill_(1.0)
    entries = codebook.entries()
    codes = (entries.square().sum(-1) - 2 * rows @ entries.t()).argmin(-1)
    if learning:
        _follow(codebook, rows, codes, learning)
    return codes.view(x.shape[:2]), F.embedding(codes, entries).view_as(x)


def _follow(codebook: Codebook, rows: Tensor, codes: Tensor, learning: Learning) -> None:
    """Moves the running sums towards what was assigned; codes below a share of an even use become random rows."""
    size = len(codebook.cluster_usage)
    counts = torch.zeros_like(codebook.cluster_usage).index_add_(0, codes, rows.new_ones(len(rows)))
    sums = torch.zeros_like(codebook.embedding_sum).index_add_(0, codes, rows)
    codebook.cluster_usage.lerp_(counts, 1 - learning.decay)
    codebook.embedding_sum.lerp_(sums, 1 - learning.decay)
    even = len(rows) / size
    dead = codebook.cluster_usage < learning.dead * even
    born = _some(rows, size) * (0.5 * even)
    codebook.embedding_sum.copy_(torch.where(dead[:, None], born, codebook.embedding_sum))
    codebook.cluster_usage.copy_(torch.where(dead, 0.5 * even, codebook.cluster_usage))


def _some(rows: Tensor, count: int) -> Tensor:
    return rows[torch.randint(len(rows), (count,), device=rows.device)]
