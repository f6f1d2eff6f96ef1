"""Networks that tell made speech from real speech, and what they say to whoever makes it. Only training needs them.

They know samples and nothing else, and none below the lowest pitch. Spectra at several windows, complex and compressed
in power (EnCodec, arXiv:2210.13438) or log magnitudes (UnivNet, arXiv:2106.07889), and samples folded by several
periods (HiFi-GAN, arXiv:2010.05646); least squares, and matching of inner features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from spectra import high_passed, transform
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

Verdict = tuple[Tensor, list[Tensor]]
"""Scores, and the features on the way to them."""
SLOPE = 0.1
LOUDER = 10.0
"""Speech has about a tenth of full scale; what the layers see shall be about 1."""
QUIET = 1e-6
"""Squared magnitude (a full-scale sine has LOUDER) below which compression stops: its slope stays finite at silence."""

FLOOR = 3e-5
"""Magnitude below which a spectrum is silence to those who look at logarithms."""


class Stack(nn.Module):
    """Convolutions with leaky rectifiers, and one to a score at each place."""

    def __init__(self, layers: Sequence[nn.Conv2d], last: nn.Conv2d) -> None:
        super().__init__()
        for layer in (*layers, last):
            # PyTorch's own beginning halves a signal in every layer: scores would hang on biases for long.
            nn.init.kaiming_normal_(layer.weight, SLOPE)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        last.weight.data.mul_(0.1)  # no opinion yet
        self.layers = nn.ModuleList(map(weight_norm, layers))
        self.last = weight_norm(last)

    def judge(self, x: Tensor) -> Verdict:
        features = []
        for layer in self.layers:
            x = F.leaky_relu(layer(x), SLOPE)
            features.append(x)
        return self.last(x), features


class SpectralDiscriminator(Stack):
    """Looks at real and imaginary parts of one spectrogram, [B, 2, bins, columns]."""

    parts = 2

    def __init__(self, window: int, channels: int) -> None:
        wide = [nn.Conv2d(channels, channels, (9, 3), (2, 1), (4, d), (1, d)) for d in (1, 2, 4)]
        first = nn.Conv2d(self.parts, channels, (9, 3), padding=(4, 1))
        narrow = nn.Conv2d(channels, channels, 3, padding=1)
        super().__init__([first, *wide, narrow], nn.Conv2d(channels, 1, 3, padding=1))
        self.size = window
        self.register_buffer("window", torch.hann_window(window), persistent=False)

    def forward(self, samples: Tensor) -> Verdict:
        """samples [B, T] -> scores and features."""
        with torch.autocast(samples.device.type, enabled=False):
            x = self.seen(transform(samples.float(), self.size, self.size // 4, self.get_buffer("window")))
        return self.judge(x.contiguous(memory_format=torch.channels_last))

    def seen(self, spectrum: Tensor) -> Tensor:
        """spectrum [B, bins, columns], complex -> [B, parts, bins, columns]."""
        x = torch.view_as_real(spectrum).permute(0, 3, 1, 2) * (LOUDER * 4 / self.size)
        return x * (x.square().sum(1, keepdim=True) + QUIET).pow(-0.25)


class MagnitudeDiscriminator(SpectralDiscriminator):
    """Looks at the logarithm of magnitudes: what it sees does not hang on phases, so its features can be matched."""

    parts = 1

    def seen(self, spectrum: Tensor) -> Tensor:
        """A full-scale sine gives about 2, speech -1 to 1, silence -2."""
        power = torch.view_as_real(spectrum * (4 / self.size)).square().sum(-1)
        return ((power + FLOOR**2).log() / 2 + 5)[:, None] / 2.5


class PeriodDiscriminator(Stack):
    """Looks at samples that are a period apart."""

    def __init__(self, period: int, channels: Sequence[int]) -> None:
        widths = [1, *channels]
        strides = [3] * (len(channels) - 1) + [1]
        pairs = zip(widths, widths[1:], strides, strict=False)
        super().__init__(
            [nn.Conv2d(a, b, (5, 1), (stride, 1), (2, 0)) for a, b, stride in pairs],
            nn.Conv2d(widths[-1], 1, (3, 1), padding=(1, 0)),
        )
        self.period = period

    def forward(self, samples: Tensor) -> Verdict:
        """samples [B, T] -> scores and features."""
        x = F.pad(samples * LOUDER, (0, -samples.shape[-1] % self.period))
        return self.judge(x.view(len(x), 1, -1, self.period))


class Discriminators(nn.ModuleList):
    """All of them. What is below `lowest`, in cycles a sample, none of them hears.

    Speech has nothing there, and a constant adds up over all places: a period discriminator's gradient would be nearly
    all below 50 Hz.
    """

    def __init__(
        self,
        windows: Sequence[int],
        magnitudes: Sequence[int],
        channels: int,
        periods: Sequence[int],
        period_channels: Sequence[int],
        lowest: float,
    ) -> None:
        spectral = (SpectralDiscriminator(window, channels) for window in windows)
        matched = (MagnitudeDiscriminator(window, channels) for window in magnitudes)
        super().__init__([*spectral, *matched, *(PeriodDiscriminator(period, period_channels) for period in periods)])
        self.lowest = lowest
        self.spectra = slice(0, len(windows) + len(magnitudes))
        self.matched = slice(len(windows), len(windows) + len(magnitudes))
        """Those whose features a maker can match without knowing phases."""
        self.matched_count = len(magnitudes)
        self.periods = slice(len(windows) + len(magnitudes), len(self))

    def forward(self, samples: Tensor) -> list[Verdict]:
        """samples [B, T] -> each one's verdict."""
        heard = high_passed(samples, self.lowest)
        return [discriminator(heard) for discriminator in self]


def own_losses(real: Sequence[Verdict], made: Sequence[Verdict]) -> Tensor:
    """What each discriminator pays: real is 1, made is 0."""
    pairs = zip(real, made, strict=True)
    return torch.stack([(1 - r.float()).square().mean() + m.float().square().mean() for (r, _), (m, _) in pairs])


def makers_losses(made: Sequence[Verdict]) -> Tensor:
    """What the maker pays to each: made shall be 1."""
    return torch.stack([(1 - scores.float()).square().mean() for scores, _ in made])


def feature_distance(real: Sequence[Verdict], made: Sequence[Verdict]) -> Tensor:
    """Mean distance of the features, each in units of the real one's size."""
    reals, mades = ([feature for _, features in verdicts for feature in features] for verdicts in (real, made))
    return torch.stack([_apart(r.detach(), m) for r, m in zip(reals, mades, strict=True)]).mean()


def _apart(real: Tensor, made: Tensor) -> Tensor:
    size = real.abs().mean(dtype=torch.float32)
    return (real - made).abs().mean(dtype=torch.float32) / (size + 1e-3)
