"""Root-mean-square normalisation (Zhang & Sennrich 2019, arXiv:1910.07467). It does not know what it normalises."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps), scaled a channel, over the last dimension.

    Plain, the normalised value is rounded to x's dtype and then multiplied by the weight, as Llama and Qwen3 do;
    zero-centred, it is multiplied by 1 + weight in float32 and rounded last, as Gemma does.
    """

    def __init__(self, width: int, eps: float, zero_centred: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps
        self.zero_centred = zero_centred

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] -> the same shape and dtype."""
        if not self.zero_centred:
            return normalise(x, self.eps) * self.weight
        return (normalise(x.float(), self.eps) * (1.0 + self.weight.float())).to(x.dtype)


def normalise(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) over the last dimension, computed in float32, in x's dtype.

    In float32 it is written as sqrt(n) * x / hypot(|x|, sqrt(n * eps)): three operations instead of the six behind
    F.rms_norm on a CPU, where a decode step spends its time on operations and not on numbers.
    """
    width = x.shape[-1]
    if x.dtype != torch.float32:
        return F.rms_norm(x, (width,), None, eps)
    zero, floor = _constants(width, eps, x.device)
    length = torch.hypot(torch.linalg.vector_norm(x, 2, -1, True), floor)
    return torch.addcdiv(zero, x, length, value=width**0.5)


@lru_cache(maxsize=64)
def _constants(width: int, eps: float, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.zeros((), device=device), torch.tensor((width * eps) ** 0.5, device=device)
