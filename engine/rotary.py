"""Rotary position embedding, half-split (Su et al. 2021, arXiv:2104.09864): pair i is channels i and i + head_dim/2.

It does not know which model asks or where positions come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from engine.weights import CheckpointError


def frequencies(config: Mapping[str, Any], head_dim: int) -> Tensor:
    """Radians a position for each channel pair, [head_dim / 2] float32 on the CPU.

    Reads `rope_theta` and the scaling from a model config (`rope_scaling` or `rope_parameters` inside, null = none)
    or from such a dictionary itself. Raises CheckpointError on an unknown kind or a missing number.
    """
    rope = {**config, **(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in SCALINGS:
        raise CheckpointError(f"rope_type must be one of {', '.join(SCALINGS)}, found {kind!r}")
    try:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float64, device="cpu") / head_dim
        return SCALINGS[kind](torch.pow(float(rope["rope_theta"]), -exponents), rope).float()
    except KeyError as error:
        raise CheckpointError(f"rope_type {kind} needs {error.args[0]}, found only {sorted(rope)}") from error


def _default(inv_freq: Tensor, rope: Mapping[str, Any]) -> Tensor:
    return inv_freq


def _linear(inv_freq: Tensor, rope: Mapping[str, Any]) -> Tensor:
    """Positions stretched by `factor` (Chen et al. 2023, arXiv:2306.15595)."""
    return inv_freq / float(rope["factor"])


def _llama3(inv_freq: Tensor, rope: Mapping[str, Any]) -> Tensor:
    """Slow pairs stretched by `factor`, fast ones kept, a linear ramp between (Llama 3.1, arXiv:2407.21783)."""
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return torch.lerp(inv_freq / rope["factor"], inv_freq, kept)


SCALINGS: Mapping[str, Callable[[Tensor, Mapping[str, Any]], Tensor]] = {
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
