"""Spectra, and how far two sounds are from each other by them. It does not know who made the sounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def mel(hertz: Tensor) -> Tensor:
    return 2595 * torch.log10(1 + hertz / 700)


def mel_bank(window: int, mels: int, sample_rate: int) -> Tensor:
    """[mels, window / 2 + 1]: triangles of equal width on the mel scale, each summing to 1 where it has a bin."""
    bins = torch.linspace(0, sample_rate / 2, window // 2 + 1)
    edges = 700 * (10 ** (torch.linspace(0, float(mel(bins[-1])), mels + 2) / 2595) - 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - low) / (centre - low).clamp(min=1e-3), (high - bins) / (high - centre).clamp(min=1e-3)
    weights = torch.minimum(rising, falling).clamp(min=0)
    return weights / weights.sum(-1, keepdim=True).clamp(min=1e-3)


def magnitudes(samples: Tensor, window: int, hop: int, shape: Tensor) -> Tensor:
    """samples [B, T] -> [B, window / 2 + 1, columns]."""
    return transform(samples, window, hop, shape).abs()


def transform(samples: Tensor, window: int, hop: int, shape: Tensor) -> Tensor:
    """The same with phases; beyond both ends there is silence."""
    return torch.stft(samples, window, hop, window=shape, center=True, pad_mode="constant", return_complex=True)


def high_passed(samples: Tensor, lowest: float) -> Tensor:
    """samples [..., T] without what lies below `lowest`, in cycles a sample; the end is taken to join the beginning.

    The edge is a quarter of `lowest` wide on each side. It is its own transpose: a gradient passes it the same way.
    """
    spectrum = torch.fft.rfft(samples.float())
    places = torch.fft.rfftfreq(samples.shape[-1], device=samples.device)
    return torch.fft.irfft(spectrum * (2 * places / lowest - 1.5).clamp(0, 1), samples.shape[-1])


class SpectralDistance(nn.Module):
    """Log-mel and log-magnitude distances at several windows, short ones too (DAC, arXiv:2306.06546).

    A full-scale sine has magnitude 1; what is below `floor` counts as silence.
    """

    def __init__(self, sample_rate: int, windows: Sequence[int], mels: Sequence[int], floor: float) -> None:
        super().__init__()
        self.sample_rate, self.windows, self.floor = sample_rate, tuple(windows), floor
        for window, count in zip(windows, mels, strict=True):
            self.register_buffer(f"bank{window}", mel_bank(window, count, sample_rate), persistent=False)
            self.register_buffer(f"window{window}", torch.hann_window(window), persistent=False)

    def forward(self, made: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Both [B, T] -> mean log-mel distance; mean log-magnitude distance of windows from 512."""
        mels, lines = [], []
        for window in self.windows:
            shape, bank = self.get_buffer(f"window{window}"), self.get_buffer(f"bank{window}")
            a, b = (magnitudes(x, window, window // 4, shape) * (4 / window) for x in (made, wanted))
            mels.append(self._apart(bank @ a, bank @ b))
            if window >= 512:
                lines.append(self._apart(a, b))
        return torch.stack(mels).mean(), torch.stack(lines or mels).mean()

    def _apart(self, a: Tensor, b: Tensor) -> Tensor:
        return ((a + self.floor).log() - (b + self.floor).log()).abs().mean()
