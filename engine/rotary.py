"""Rotary position embedding, half-split (Su et al. 2021, arXiv:2104.09864): pair i is channels i and i + head_dim/2.

It does not know which model asks or where positions come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from engine.config import TINY, Section


def frequencies(config: Mapping[str, Any], head_dim: int) -> Tensor:
    """Radians a position for each channel pair, [head_dim / 2] float32 on the CPU.

    Reads `rope_theta` and the scaling from a model config (`rope_scaling` or `rope_parameters` inside, null = none)
    or from such a dictionary itself. Raises CheckpointError on an unknown kind and a missing or wrong number.
    """
    config = Section.of(config, "rotary config")
    inner = config.section("rope_scaling", {}) | config.section("rope_parameters", {})
    rope = Section.of(config | inner, config.where)
    key = "rope_type" if "rope_type" in rope else "type"
    kind = rope.text(key, "default")
    if kind not in SCALINGS:
        raise rope.misfit(key, f"one of {', '.join(SCALINGS)}")
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim
    return SCALINGS[kind](torch.pow(rope.number("rope_theta", low=1), -exponents), rope).float()


def _default(inv_freq: Tensor, rope: Section) -> Tensor:
    return inv_freq


def _linear(inv_freq: Tensor, rope: Section) -> Tensor:
    """Positions stretched by `factor` (Chen et al. 2023, arXiv:2306.15595)."""
    return inv_freq / rope.number("factor", low=TINY)


def _llama3(inv_freq: Tensor, rope: Section) -> Tensor:
    """Slow pairs stretched by `factor`, fast ones kept, a linear ramp between (Llama 3.1, arXiv:2407.21783)."""
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise rope.misfit("high_freq_factor", f"above low_freq_factor = {low:g}")
    turns = rope.integer("original_max_position_embeddings") * inv_freq / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return torch.lerp(inv_freq / rope.number("factor", low=TINY), inv_freq, kept)


SCALINGS: Mapping[str, Callable[[Tensor, Section], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
}


def cos_sin(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """positions [...] -> cos and sin [..., head_dim]; angles in float32, rounded to `dtype` last."""
    angles = positions[..., None] * torch.cat((inv_freq, inv_freq))
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [..., head_dim] turned by the angles whose cos and sin [..., head_dim] broadcast to it."""
    first, second = x.chunk(2, -1)
    return torch.addcmul(x * cos, torch.cat((-second, first), -1), sin)


def rotations(count: int, inv_freq: Tensor, dtype: torch.dtype) -> Tensor:
    """The rotation at each of the first `count` positions as a matrix: x @ rotations[p] = rotate(x, at p).

    [count, head_dim, head_dim]. One product turns all heads, where `rotate` needs six operations.
    """
    cos, sin = cos_sin(torch.arange(count, device=inv_freq.device), inv_freq, dtype)
    identity = torch.eye(cos.shape[-1], dtype=dtype, device=inv_freq.device)
    return rotate(identity, cos[:, None], sin[:, None])
