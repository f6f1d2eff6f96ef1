"""Chooses codes from logits for a whole batch, each row by its own settings and its own random stream.

It does not know which model made the logits. Nothing here waits for the device or has a shape that depends on data,
and no row's result depends on its neighbours: what the host knows of a batch's rows (`max_top_k`, `any_top_p`) only
leaves out operations that would change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from engine.core import SamplingParams

OFF = 2**31 - 1
"""A top_k beyond every vocabulary."""
MIN_TEMPERATURE = 1e-3
"""Below it a draw is greedy: logits over less could overflow, and no other id would be drawn in years."""
GREEDY = SamplingParams(temperature=0.0, depth_temperature=0.0)
"""What a slot is set to before its first request."""
SEED_STEP = 0xD1342543DE82EF95 - 2**64
FRAME_STEP = 2**16
COUNTER_STEP = 0x9E3779B97F4A7C15 - 2**64
"""Odd 64-bit constants as signed integers: each (seed, frame, codebook) has a number of its own."""


@dataclass(frozen=True, slots=True)
class Filter:
    """How each row's logits become a distribution. Made by `of`, or by SamplingState for its slots."""

    temperature: Tensor
    """[B, 1], at least MIN_TEMPERATURE."""
    last: Tensor
    """[B, 1] int64, top_k - 1: the rank from 0 of the smallest logit that is kept; its ties are kept too."""
    top_p: Tensor
    """[B, 1]; 1 is off."""
    max_top_k: int
    """At least every row's top_k."""
    any_top_p: bool
    """False only if every top_p is 1."""

    @classmethod
    def of(cls, temperature: Sequence[float], top_k: Sequence[int], top_p: Sequence[float]) -> Filter:
        """From one value a row, as SamplingParams has them: below MIN_TEMPERATURE is greedy, top_k 0 is off."""
        rows = [_effective(*row) for row in zip(temperature, top_k, top_p, strict=True)]
        t, k, p = (torch.tensor(column)[:, None] for column in zip(*rows, strict=True))
        return cls(t, k - 1, p, *_flags(rows))

    def note(self, scores: Callable[[], Tensor]) -> None:
        """For whoever watches draws: kernels that filter by themselves say here what they draw from, [B, V]."""

    def scale(self, logits: Tensor) -> Tensor:
        """logits [B, V] over the temperature, minus infinity where a row's filter drops them."""
        scaled = logits / self.temperature
        return scaled.masked_fill_(scaled < self._cut(scaled), -torch.inf)

    def _cut(self, scaled: Tensor) -> Tensor:
        """The smallest value that each row keeps, [B, 1]. It is the same whatever the flags are."""
        size = scaled.shape[-1]
        last = self.last if self.max_top_k <= size else self.last.clamp(max=size - 1)
        if not self.any_top_p:
            return scaled.topk(min(self.max_top_k, size)).values.gather(1, last)
        ordered = scaled.sort(descending=True).values
        cut = ordered.gather(1, last)
        return torch.where(self.top_p < 1, self._nucleus(ordered, cut), cut)

    def _nucleus(self, ordered: Tensor, cut: Tensor) -> Tensor:
        """The last in falling order with at most top_p of the kept mass before it (Holtzman et al. 2020)."""
        mass = ordered.masked_fill(ordered < cut, -torch.inf).softmax(-1, dtype=torch.float64)
        before = mass.cumsum(-1) - mass
        last = (before <= self.top_p).sum(-1, keepdim=True) - 1
        return ordered.gather(1, last.clamp(min=0))  # a row of NaN has none


def _effective(temperature: float, top_k: int, top_p: float) -> tuple[float, int, float]:
    """Settings without special values: greedy is the best one at any temperature."""
    return (temperature, top_k or OFF, top_p) if temperature >= MIN_TEMPERATURE else (1.0, 1, 1.0)


def _flags(rows: Sequence[tuple[float, int, float]]) -> tuple[int, bool]:
    return max(top_k for _, top_k, _ in rows), any(top_p < 1 for *_, top_p in rows)


def _first(params: SamplingParams) -> tuple[float, int, float]:
    return _effective(params.temperature, params.top_k, params.top_p)


def _depth(params: SamplingParams) -> tuple[float, int, float]:
    return _effective(params.depth_temperature, params.depth_top_k, params.depth_top_p)


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The settings of a batch's B rows."""

    first: Filter
    """For code 0."""
    depth: Filter
    """For the other codes."""
    repetition_penalty: Tensor
    """[B, 1]"""
    cfg_scale: Tensor
    """[B, 1]"""
    seed: Tensor
    """[B] int64"""
    min_frames: Tensor
    """[B] int64"""
    seen: Tensor
    """[B, V0] bool: the code-0 values that the row has had."""
    any_penalty: bool
    """False only if every repetition_penalty is 1."""
    any_min_frames: bool
    """False only if every min_frames is 0."""


@dataclass(frozen=True, slots=True)
class Flags:
    """What the host knows of a batch's settings. The defaults hold for every batch."""

    first: tuple[int, bool] = (OFF, True)
    """Filter.max_top_k and any_top_p, for code 0."""
    depth: tuple[int, bool] = (OFF, True)
    penalty: bool = True
    min_frames: bool = True


ANY = Flags()


@dataclass(slots=True)
class SamplingState:
    """Every slot's settings and the code-0 values that it has had. Slot 0 belongs to nobody."""

    floats: Tensor
    """[slots, 6] float32, one column a setting, in the order of `settings`: one gather fetches all."""
    ints: Tensor
    """[slots, 4] int64, likewise."""
    seen: Tensor
    """[slots, V0] bool. Whoever draws a code 0 marks it here."""
    _params: list[SamplingParams]
    """What each slot was last set to, on the host, for the flags."""

    @classmethod
    def allocate(cls, num_slots: int, num_classes: int, device: torch.device | str) -> Self:
        """`num_slots` greedy slots, slot 0 included, and `num_classes` values of code 0."""
        state = cls(
            torch.zeros(num_slots, 6, device=device),
            torch.zeros(num_slots, 4, dtype=torch.int64, device=device),
            torch.zeros(num_slots, num_classes, dtype=torch.bool, device=device),
            [GREEDY] * num_slots,
        )
        for slot in range(num_slots):
            state.set(slot, GREEDY)
        return state

    def set(self, slot: int, params: SamplingParams, cfg_scale: float = 1.0) -> None:
        """Gives the slot a request's settings; what the slot has seen is forgotten."""
        self.note(slot, params)
        floats, ints = (torch.tensor([row], device=self.seen.device) for row in settings(params, cfg_scale))
        self.write(torch.tensor([slot], device=self.seen.device), floats, ints)

    def note(self, slot: int, params: SamplingParams) -> None:
        """The host's half of `set`, for the flags."""
        self._params[slot] = params

    def write(self, slots: Tensor, floats: Tensor, ints: Tensor) -> None:
        """The device's half of `set`: slots [n], floats [n, 6] and ints [n, 4] as `settings` has them."""
        self.floats[slots] = floats
        self.ints[slots] = ints
        self.seen.index_fill_(0, slots, False)

    def flags(self, slots: Sequence[int]) -> Flags:
        """What the host knows of these slots; nothing is read back from the device."""
        params = [self._params[slot] for slot in slots]
        return Flags(
            _flags([_first(row) for row in params]),
            _flags([_depth(row) for row in params]),
            any(row.repetition_penalty != 1 for row in params),
            any(row.min_frames for row in params),
        )

    def rows(self, slots: Tensor, flags: Flags = ANY) -> SamplingRows:
        """The settings of these slots [B], in order. A captured graph keeps the operations that the flags of its
        capture chose, so that it needs those that hold for every batch."""
        t, p, depth_t, depth_p, penalty, scale = torch.split(self.floats[slots], 1, -1)
        last, depth_last, seed, min_frames = torch.split(self.ints[slots], 1, -1)
        return SamplingRows(
            Filter(t, last, p, *flags.first),
            Filter(depth_t, depth_last, depth_p, *flags.depth),
            penalty,
            scale,
            seed.squeeze(1),
            min_frames.squeeze(1),
            self.seen[slots],
            flags.penalty,
            flags.min_frames,
        )


def settings(params: SamplingParams, cfg_scale: float = 1.0) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """A slot's row of SamplingState.floats and one of its ints."""
    (t, k, p), (depth_t, depth_k, depth_p) = _first(params), _depth(params)
    floats = t, p, depth_t, depth_p, params.repetition_penalty, cfg_scale
    return floats, (k - 1, depth_k - 1, params.seed, params.min_frames)


def uniforms(seed: Tensor, frame: Tensor, num_codebooks: int) -> Tensor:
    """Numbers in (0, 1) for each code of a frame, [B, num_codebooks] float64, from seed and frame [B] int64.

    Counter-based (Salmon et al. 2011): the splitmix64 mixer (Steele et al. 2014) over the numbered draw, in integers
    only, so that every device and every batch gets the same.
    """
    draw = (frame * FRAME_STEP)[:, None] + torch.arange(num_codebooks, device=frame.device)
    bits = draw * COUNTER_STEP + (seed * SEED_STEP)[:, None]
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ _shift_right(bits, shift)) * (factor - 2**64)
    bits = bits ^ _shift_right(bits, 31)
    return _shift_right(bits, 12).double().add(0.5).mul(2.0**-52)


def _shift_right(bits: Tensor, shift: int) -> Tensor:
    """Shifts zeros in; >> on signed integers would shift the sign in."""
    return torch.bitwise_and(bits >> shift, 2 ** (64 - shift) - 1)


def guide(cond: Tensor, uncond: Tensor, scale: Tensor) -> Tensor:
    """uncond + scale * (cond - uncond), cond and uncond [B, V], scale [B, 1] (Ho & Salimans 2022, arXiv:2207.12598).

    A row whose scale is 1 has no unconditional sequence: it is cond itself, whatever stands in uncond.
    """
    return torch.where(scale == 1, cond, torch.lerp(uncond, cond, scale))


def penalise(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Makes seen values less likely: l / penalty where l > 0, else l * penalty (Keskar et al. 2019, arXiv:1909.05858).

    logits and seen [B, V], penalty [B, 1].
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def probabilities(logits: Tensor, filter: Filter) -> Tensor:
    """logits [B, V] -> the distribution that `draw` draws from, [B, V]: temperature, then top-k, then top-p."""
    return filter.scale(logits).softmax(-1)


def draw(logits: Tensor, filter: Filter, uniform: Tensor) -> Tensor:
    """One id a row, [B] int64: where the cumulated distribution of logits [B, V] passes uniform [B].

    The sum is in float64: rounding could otherwise let a parallel sum step up at an id that has no mass.

    A row that holds NaN or plus infinity, or nothing but minus infinity, gives 0: an id that exists, ends no speech and
    is forbidden by no minimum length. Its mass is NaN throughout, which nothing reaches, so the search ends at V.
    """
    mass = filter.scale(logits).softmax(-1).cumsum(-1, dtype=torch.float64)
    ids = torch.searchsorted(mass, mass[:, -1:] * uniform[:, None])
    return ids.squeeze(1).remainder(logits.shape[-1])
