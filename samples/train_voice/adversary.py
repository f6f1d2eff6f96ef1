"""Stage B of the codec: the decoder learns to be taken for the teacher, its codes being given.

It does not know where batches come from, nor when to stop. Spectral and adversarial gradients are balanced where they
meet, at the samples: each is brought to one size an item, so that neither silence nor a loss's own scale decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from discriminators import Discriminators, feature_distance, makers_loss, own_loss
from spectra import SpectralDistance
from torch import Tensor, nn
from torch.optim import AdamW
from whole import WholeDecoder, bend

from engine.codec import CodecDecoder

TOLD = ("mel", "lines", "judges", "fooling", "features", "g_spectral", "g_adversarial", "g_decoder", "bad")
BETAS = (0.8, 0.99)
CLUELESS = 0.5
"""What one judge pays at least who cannot tell real from made."""
MEL = 7.0
"""Weight of log-mel distance beside that of lines."""


class Adversary:
    """One step of decoder and discriminators at once; both learn from the same forward pass."""

    def __init__(
        self,
        decoder: CodecDecoder,
        settings: Mapping[str, Any],
        distance: SpectralDistance,
        device: torch.device,
        bend: Callable[[Tensor, Tensor, Tensor], Tensor] = bend,
    ) -> None:
        self.decoder, self.settings, self.distance, self.device = decoder, settings, distance, device
        self.whole = WholeDecoder(decoder, bend)
        judges = Discriminators(*(settings[k] for k in ("stft_windows", "stft_channels", "periods", "period_channels")))
        self.judges = judges.to(device)
        self.judges.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.weights = learnable(decoder)
        self.averages = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.maker = optimiser(self.weights.values(), device)
        self.judging = optimiser(self.judges.parameters(), device)
        self.word = torch.zeros((), device=device)
        """How much the discriminators' word counts, 0 to 1."""
        self.samples_per_frame = decoder.config.samples_per_frame

    def step(self, codes: Tensor, wanted: Tensor, context: int, settle: int) -> Tensor:
        """codes [B, K, context + settle + T], wanted [B, T * samples_per_frame] -> the numbers of TOLD."""
        made = self.whole.codes(codes, context)[:, settle * self.samples_per_frame :]
        heard = made.detach().requires_grad_()
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda", cache_enabled=False):
            real, fake = self.judges(wanted), self.judges(heard)
        judged, fooling, features = own_loss(real, fake), makers_loss(fake), feature_distance(real, fake)
        wish = fooling + self.settings["features"] * features * len(self.judges)
        (adversarial,) = torch.autograd.grad(wish, heard, retain_graph=True)
        bad_judges = self._learn(self.judging, self.judges.parameters(), judged, "clip_discriminators")
        mel, lines = self.distance(heard, wanted)
        (spectral,) = torch.autograd.grad(MEL * mel + lines, heard)
        pull, sizes = self._balanced(spectral, adversarial, self._sureness(judged.detach()))
        gradients = torch.autograd.grad(made, list(self.weights.values()), pull)
        bad = apply(self.maker, self.weights.values(), gradients, self.settings["clip"])
        with torch.no_grad():
            torch._foreach_lerp_(list(self.averages.values()), list(self.weights.values()), 1 - self.settings["ema"])
        told = [mel, lines, judged, fooling, features, *sizes, bad[0], bad[1] + bad_judges[1]]
        return torch.stack([number.detach() for number in told])

    def _learn(self, by: AdamW, weights: Iterable[nn.Parameter], loss: Tensor, clip: str) -> tuple[Tensor, Tensor]:
        weights = list(weights)
        return apply(by, weights, torch.autograd.grad(loss, weights), self.settings[clip])

    def _balanced(self, spectral: Tensor, adversarial: Tensor, sure: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Both [B, T] and how sure the judges are -> the gradient at the samples; and the mean sizes of both."""
        spectral, adversarial = (g.nan_to_num(0, 0, 0) for g in (spectral, adversarial))
        sizes = [g.norm(dim=1, keepdim=True) for g in (spectral, adversarial)]
        a, b = (g / (n + n.mean() + 1e-6) for g, n in zip((spectral, adversarial), sizes, strict=True))
        pull = (a + self.word * sure * self.settings["adversarial"] * b) / len(a) ** 0.5
        return pull, [size.mean() for size in sizes]

    def _sureness(self, judged: Tensor) -> Tensor:
        """0 where the judges pay what constant scores of a half would cost, 1 from a fifth below that on.

        Brought to one size, the gradient of judges who know nothing is noise at full volume, and ruins the decoder.
        """
        return ((1 - judged / (CLUELESS * len(self.judges))) / 0.2).clamp(0, 1)

    def set_rate(self, rate: float, word: float) -> None:
        """Of both; and how much the discriminators' word counts."""
        for optimiser in (self.maker, self.judging):
            set_rate(optimiser, rate)
        self.word.fill_(word)


def learnable(decoder: CodecDecoder) -> dict[str, nn.Parameter]:
    """The decoder without its quantizer: codes keep their meaning."""
    return {name: p for name, p in decoder.named_parameters() if not name.startswith("quantizer.")}


def optimiser(weights: Iterable[Tensor], device: torch.device, betas: tuple[float, float] = BETAS) -> AdamW:
    """AdamW whose rate a graph reads from the device."""
    weights, on_cuda = list(weights), device.type == "cuda"
    rate: float | Tensor = torch.zeros((), device=device) if on_cuda else 0.0
    return AdamW(weights, lr=rate, betas=betas, weight_decay=0.0, foreach=on_cuda, capturable=on_cuda)


def set_rate(optimiser: AdamW, rate: float) -> None:
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def apply(by: AdamW, weights: Iterable[Tensor], gradients: Sequence[Tensor], clip: float) -> tuple[Tensor, Tensor]:
    """One step of the optimiser -> the gradients' norm, and 1 if it was not finite: then they count as zero."""
    weights = list(weights)
    bad = ~torch.isfinite(torch.stack(torch._foreach_norm(list(gradients))).sum())
    for weight, gradient in zip(weights, gradients, strict=True):
        # A convolution's gradient may lie otherwise in memory than its weight, which fused optimisers do not take.
        weight.grad = torch.empty_like(weight).copy_(gradient.nan_to_num(0, 0, 0))
    norm = nn.utils.clip_grad_norm_(weights, clip)
    by.step()
    return norm, bad.float()
