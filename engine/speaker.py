"""The speaker encoder: a recording becomes one vector that says who speaks.

It does not know what was said, nor what reads the vector. It is ECAPA-TDNN (Desplanques et al. 2020, arXiv:2005.07143)
over a mel spectrogram, as Qwen3-TTS ships it in its Base voices.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.config import Section

WINDOW, HOP = 1024, 256
"""Samples that a column of the spectrogram sees, and from one to the next."""
LEAST_SECONDS = 0.1
"""Of a recording: what pads its ends is its own beginning and end, turned round."""
MAX_CHANNELS = 2**16
USUAL: Mapping[str, Any] = {
    "mel_dim": 128,
    "enc_channels": [512, 512, 512, 512, 1536],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 128,
    "enc_res2net_scale": 8,
    "enc_se_channels": 128,
    "sample_rate": 24_000,
}
"""The official class's own dimensions, for configs that leave them out."""


@dataclass(frozen=True, slots=True)
class SpeakerConfig:
    """The dimensions of a speaker encoder, as its checkpoint says."""

    width: int
    """Numbers of a vector."""
    mels: int
    channels: tuple[int, ...]
    """Of the first block, of those between, and of the last one, which sees all between."""
    kernels: tuple[int, ...]
    dilations: tuple[int, ...]
    attention: int
    scale: int
    """Groups of channels of a block between."""
    squeezed: int
    sample_rate: int

    @property
    def least_samples(self) -> int:
        """Of a recording: what pads its ends is there to be turned round."""
        return math.ceil(LEAST_SECONDS * self.sample_rate)

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> SpeakerConfig:
        """Reads `speaker_encoder_config`. Raises CheckpointError."""
        given = Section.of(d, "speaker_encoder_config")
        d = Section.of({**USUAL, **given}, given.where)
        channels, kernels, dilations = (
            d.integers(f"enc_{name}", high=MAX_CHANNELS) for name in ("channels", "kernel_sizes", "dilations")
        )
        if not 3 <= len(channels) == len(kernels) == len(dilations) or len(set(channels[:-1])) > 1:
            raise d.misfit("enc_channels", "as long as enc_kernel_sizes and enc_dilations, and equal but for the last")
        scale = d.integer("enc_res2net_scale", low=2)
        if channels[0] % scale:
            raise d.misfit("enc_res2net_scale", f"a divisor of {channels[0]}")
        config = cls(
            d.integer("enc_dim"),
            d.integer("mel_dim"),
            channels,
            kernels,
            dilations,
            d.integer("enc_attention_channels"),
            scale,
            d.integer("enc_se_channels"),
            d.integer("sample_rate", low=8000, high=192_000),
        )
        columns = config.least_samples // HOP
        if any(dilation * (kernel - 1) // 2 >= columns for kernel, dilation in zip(kernels, dilations, strict=True)):
            raise d.misfit("enc_dilations", f"so small that a block sees less than {columns} columns on either side")
        return config


class Around(nn.Module):
    """A convolution that sees as far on both sides; beyond the ends stands what lies before them, turned round."""

    def __init__(self, width: int, out: int, kernel: int, dilation: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, out, kernel, dilation=dilation)
        self._reach = dilation * (kernel - 1)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, width, T] -> [B, out, T], no negative ones."""
        before = self._reach // 2
        padded = F.pad(x, (before, self._reach - before), mode="reflect") if self._reach else x
        return F.relu(self.conv(padded))


class Res2Net(nn.Module):
    """Groups of channels, of which each sees what the one before made (Gao et al. 2019, arXiv:1904.01169)."""

    def __init__(self, config: SpeakerConfig, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        group = width // config.scale
        self.blocks = nn.ModuleList(Around(group, group, kernel, dilation) for _ in range(config.scale - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *groups = x.chunk(len(self.blocks) + 1, 1)
        made = [first]
        for block, group in zip(self.blocks, groups, strict=True):
            made.append(block(group if len(made) == 1 else group + made[-1]))
        return torch.cat(made, 1)


class Squeeze(nn.Module):
    """Scales channels by what the whole recording says of them (Hu et al. 2017, arXiv:1709.01507)."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(width, squeezed, 1)
        self.conv2 = nn.Conv1d(squeezed, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.conv2(F.relu(self.conv1(x.mean(2, keepdim=True)))))


class Block(nn.Module):
    """One between the first and the last, under the names of the checkpoint."""

    def __init__(self, config: SpeakerConfig, width: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.tdnn1, self.tdnn2 = Around(width, width, 1), Around(width, width, 1)
        self.res2net_block = Res2Net(config, width, kernel, dilation)
        self.se_block = Squeeze(width, config.squeezed)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.se_block(self.tdnn2(self.res2net_block(self.tdnn1(x))))
        return made + x


class Pooling(nn.Module):
    """Mean and deviation over time, each instant with a weight of its own (Okabe et al. 2018, arXiv:1803.10963)."""

    def __init__(self, width: int, attention: int) -> None:
        super().__init__()
        self.tdnn = Around(3 * width, attention, 1)
        self.conv = nn.Conv1d(attention, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, width, T] -> [B, 2 * width, 1]."""
        even = torch.full_like(x, 1 / x.shape[2])
        around = [part.expand_as(x) for part in moments(x, even)]
        weights = self.conv(torch.tanh(self.tdnn(torch.cat((x, *around), 1)))).softmax(2)
        return torch.cat(moments(x, weights), 1)


def moments(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation over the last dimension, which stays, with one entry."""
    mean = (weights * x).sum(2, keepdim=True)
    variance = (weights * (x - mean).square()).sum(2, keepdim=True)
    return mean, variance.clamp(min=1e-12).sqrt()


class SpeakerEncoder(nn.Module):
    """The whole encoder; parameter names as in the checkpoint below `speaker_encoder.`."""

    def __init__(self, config: SpeakerConfig) -> None:
        super().__init__()
        self.config = config
        width, (first, *_), (dilated, *_) = config.channels[0], config.kernels, config.dilations
        between = zip(config.channels[1:-1], config.kernels[1:-1], config.dilations[1:-1], strict=True)
        blocks = [Block(config, *dimensions) for dimensions in between]
        self.blocks = nn.ModuleList((Around(config.mels, width, first, dilated), *blocks))
        last = config.channels[-1]
        self.mfa = Around(len(blocks) * width, last, config.kernels[-1], config.dilations[-1])
        self.asp = Pooling(last, config.attention)
        self.fc = nn.Conv1d(2 * last, config.width, 1)

    def forward(self, mels: Tensor) -> Tensor:
        """Spectrograms [B, T, mels] -> [B, width], in the weights' dtype."""
        x, made = mels.to(self.fc.weight.dtype).transpose(1, 2), []
        for block in cast(Iterable[nn.Module], self.blocks):
            x = block(x)
            made.append(x)
        vectors: Tensor = self.fc(self.asp(self.mfa(torch.cat(made[1:], 1))))
        return vectors[..., 0]

    def hear(self, samples: Tensor) -> Tensor:
        """A recording, mono at config.sample_rate: [n] -> [width]. Raises ValueError for one that is too short."""
        least = self.config.least_samples
        if samples.dim() != 1 or len(samples) < least:
            raise ValueError(
                f"a recording must be at least {least} samples, got {list(samples.shape)}: take a longer one"
            )
        vector: Tensor = self(spectrogram(samples.float(), self.config)[None])[0]
        return vector


def spectrogram(samples: Tensor, config: SpeakerConfig) -> Tensor:
    """Samples [n] float32 -> logarithms of mel bands [T, mels]; a column every HOP samples."""
    reach = (WINDOW - HOP) // 2
    padded = F.pad(samples[None, None], (reach, reach), mode="reflect")[0, 0]
    window = torch.hann_window(WINDOW, device=samples.device)
    columns = torch.stft(padded, WINDOW, HOP, window=window, center=False, return_complex=True)
    size = torch.view_as_real(columns).square().sum(-1).add(1e-9).sqrt()
    bands = mel_bands(config.mels, config.sample_rate).to(samples.device)
    return (bands @ size).clamp(min=1e-5).log().t()


@lru_cache(maxsize=4)
def mel_bands(count: int, sample_rate: int) -> Tensor:
    """[count, WINDOW / 2 + 1]: triangles of equal area, evenly spaced on Slaney's scale (Auditory Toolbox, 1998), which
    is linear up to 1 kHz and logarithmic above, from 0 to half the sample rate."""
    top = torch.tensor(sample_rate / 2, dtype=torch.float64, device="cpu")
    mels = torch.linspace(0, 1, count + 2, dtype=torch.float64, device="cpu") * to_mel(top)
    edges, places = from_mel(mels), torch.linspace(0, 1, WINDOW // 2 + 1, dtype=torch.float64, device="cpu") * top
    rising = (places - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - places) / (edges[2:] - edges[1:-1])[:, None]
    area = 2 / (edges[2:] - edges[:-2])
    return (torch.minimum(rising, falling).clamp(min=0) * area[:, None]).float()


BREAK_HZ, BREAK_MEL, OCTAVES = 1000.0, 15.0, 27 / math.log(6.4)
"""Where Slaney's scale turns logarithmic, and its mels for each factor of e above."""


def to_mel(hertz: Tensor) -> Tensor:
    high = BREAK_MEL + OCTAVES * (hertz.clamp(min=BREAK_HZ) / BREAK_HZ).log()
    return torch.where(hertz < BREAK_HZ, hertz * BREAK_MEL / BREAK_HZ, high)


def from_mel(mels: Tensor) -> Tensor:
    high = BREAK_HZ * ((mels - BREAK_MEL) / OCTAVES).exp()
    return torch.where(mels < BREAK_MEL, mels * BREAK_HZ / BREAK_MEL, high)
