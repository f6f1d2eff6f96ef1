"""Stage B of the codec: the decoder learns to be taken for the teacher, its codes being given.

It does not know where batches come from, nor when to stop. Spectral and adversarial gradients are balanced where they
meet, at the samples: each is brought to one size an item, so that neither silence nor a loss's own scale decides. What
is below the lowest pitch counts for no size: it is held by its distance alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from discriminators import Discriminators, Verdict, feature_distance, makers_losses, own_losses
from spectra import SpectralDistance, high_passed
from torch import Tensor, nn
from torch.optim import AdamW
from whole import WholeDecoder, bend

from engine.codec import CodecDecoder

TOLD = (
    "mel",
    "lines",
    "level",  # made over real, of the samples' sizes
    "spectra",  # what a spectral discriminator pays on average, CLUELESS if it cannot tell
    "periods",
    "fooling",
    "features",
    "g_spectral",
    "g_spectra",
    "g_periods",
    "low",  # share of the pull's energy that is below the lowest pitch
    "g_decoder",
    "bad",
)
BETAS = (0.8, 0.99)
CLUELESS = 0.5
"""What one judge pays at least who cannot tell real from made."""
RECENT = 0.02
"""Weight of a step in what discriminators pay on average: by single steps, luck would give the clueless a word."""
TINY = 1e-6
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
        kinds = ("stft_windows", "stft_magnitudes", "stft_channels", "periods", "period_channels")
        self.lowest = settings["lowest"] / distance.sample_rate
        self.judges = Discriminators(*(settings[k] for k in kinds), self.lowest).to(device)
        self.judges.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.weights = learnable(decoder)
        self.averages = {name: weight.detach().clone() for name, weight in self.weights.items()}
        self.maker = optimiser(self.weights.values(), device)
        self.judging = optimiser(self.judges.parameters(), device)
        self.word = torch.zeros((), device=device)
        """How much the discriminators' word counts, 0 to 1."""
        self.paid = {name: torch.full((), CLUELESS, device=device) for name in ("spectra", "periods")}
        """What a discriminator of each group pays on average, over the last steps."""
        self.samples_per_frame = decoder.config.samples_per_frame

    def step(self, codes: Tensor, wanted: Tensor, context: int, settle: int) -> Tensor:
        """codes [B, K, context + settle + T], wanted [B, T * samples_per_frame] -> the numbers of TOLD."""
        made = self.whole.codes(codes, context)[:, settle * self.samples_per_frame :]
        heard = made.detach().requires_grad_()
        with torch.autocast(self.device.type, torch.bfloat16, self.device.type == "cuda", cache_enabled=False):
            real, fake = self.judges(wanted), self.judges(heard)
        judged, features = own_losses(real, fake), self._features(real, fake)
        fooling = makers_losses(fake)
        wishes = self._wishes(heard, fooling, features)
        bad_judges = self._learn(self.judging, self.judges.parameters(), judged.sum(), "clip_discriminators")
        mel, lines = self.distance(heard, wanted)
        (spectral,) = torch.autograd.grad(MEL * mel + lines, heard)
        paid = [judged[group].detach().mean() for group in self._groups]
        for mean, now in zip(self.paid.values(), paid, strict=True):
            mean.lerp_(now, RECENT)
        pull, sizes = self._balanced(spectral, wishes, [sureness(mean) for mean in self.paid.values()])
        pull = pull + self._held_low(heard.detach(), wanted)
        gradients = torch.autograd.grad(made, list(self.weights.values()), pull)
        bad = apply(self.maker, self.weights.values(), gradients, self.settings["clip"])
        with torch.no_grad():
            torch._foreach_lerp_(list(self.averages.values()), list(self.weights.values()), 1 - self.settings["ema"])
        level, low = heard.norm() / (wanted.norm() + TINY), self._share_below(pull)
        told = [mel, lines, level, *paid, fooling.mean(), features, *sizes, low, bad[0], bad[1] + bad_judges[1]]
        return torch.stack([number.detach() for number in told])

    @property
    def _groups(self) -> tuple[slice, slice]:
        """Discriminators of spectra and of periods: each group has half of the word."""
        return self.judges.spectra, self.judges.periods

    def _features(self, real: Sequence[Verdict], fake: Sequence[Verdict]) -> Tensor:
        matched = self.judges.matched
        if not self.judges.matched_count:
            return torch.zeros((), device=self.device)
        return feature_distance(real[matched], fake[matched])

    def _wishes(self, heard: Tensor, fooling: Tensor, features: Tensor) -> list[Tensor]:
        """Each group's gradient at the samples; features are a wish of those who see spectra."""
        spectra, periods = self._groups
        matched = features * self.settings["features"] * self.judges.matched_count
        losses = (fooling[spectra].sum() + matched, fooling[periods].sum())
        return [torch.autograd.grad(loss, heard, retain_graph=True)[0] for loss in losses]

    def _learn(self, by: AdamW, weights: Iterable[nn.Parameter], loss: Tensor, clip: str) -> tuple[Tensor, Tensor]:
        weights = list(weights)
        return apply(by, weights, torch.autograd.grad(loss, weights), self.settings[clip])

    def _balanced(
        self, spectral: Tensor, wishes: Sequence[Tensor], sure: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """All [B, T], and how sure each group is -> the gradient at the samples; and the mean sizes of all.

        What is below the lowest pitch is taken away before sizes are compared: a constant is a large gradient for next
        to no sound.
        """
        gradients = [high_passed(g.nan_to_num(0, 0, 0), self.lowest) for g in (spectral, *wishes)]
        sizes = [g.norm(dim=1, keepdim=True) for g in gradients]
        pull, *pulls = (g / (n + n.mean() + TINY) for g, n in zip(gradients, sizes, strict=True))
        word = self.word * self.settings["adversarial"] / len(wishes)
        for one, certain in zip(pulls, sure, strict=True):
            pull = pull + word * certain * one
        return pull / len(spectral) ** 0.5, [size.mean() for size in sizes]

    def _held_low(self, heard: Tensor, wanted: Tensor) -> Tensor:
        """The pull below the lowest pitch, where no other is: how far samples are apart there, beside their size."""
        apart = heard - wanted
        size = wanted.norm(dim=1, keepdim=True)
        return (apart - high_passed(apart, self.lowest)) / (size + size.mean() + TINY) / len(heard) ** 0.5

    def _share_below(self, pull: Tensor) -> Tensor:
        return (pull - high_passed(pull, self.lowest)).square().sum() / (pull.square().sum() + TINY)

    def set_rate(self, rate: float, judges_rate: float, word: float) -> None:
        """Of the decoder and of the discriminators; and how much the discriminators' word counts."""
        set_rate(self.maker, rate)
        set_rate(self.judging, judges_rate)
        self.word.fill_(word)


def sureness(paid: Tensor) -> Tensor:
    """0 where discriminators pay on average what a constant score of a half would cost, 1 from a fifth below that on.

    Brought to one size, the gradient of judges who know nothing is noise at full volume, and ruins the decoder.
    """
    return ((1 - paid / CLUELESS) / 0.2).clamp(0, 1)


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
