"""RMSNorm: the formula, its two orders of rounding, its epsilon and its gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine.norm import RMSNorm, normalise


def filled(norm: RMSNorm, weight: Tensor) -> RMSNorm:
    norm.load_state_dict({"weight": weight})
    return norm.to(weight.dtype)


def test_four_numbers_by_hand() -> None:
    x = torch.tensor([[1.0, -1.0, 3.0, -3.0]])  # mean square 5
    norm = filled(RMSNorm(4, eps=4.0), torch.tensor([1.0, 2.0, 1.0, 0.0]))
    torch.testing.assert_close(norm(x), torch.tensor([[1 / 3, -2 / 3, 1.0, 0.0]]))


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_float32_is_the_formula(size: float, eps: float) -> None:
    x = torch.randn(7, 192, generator=torch.Generator().manual_seed(1)) * size
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + eps).sqrt()
    torch.testing.assert_close(normalise(x, eps).double(), exact, rtol=1e-6, atol=1e-6)


def test_zeros_stay_zeros() -> None:
    assert normalise(torch.zeros(2, 8), 1e-6).tolist() == [[0.0] * 8] * 2


def bf16_case() -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(64, 48, generator=draw).to(torch.bfloat16)
    exact = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return x, torch.randn(48, generator=draw).to(torch.bfloat16), exact


def test_plain_rounds_before_the_weight() -> None:
    x, weight, exact = bf16_case()
    assert torch.equal(filled(RMSNorm(48, 1e-6), weight)(x), exact.to(torch.bfloat16) * weight)


def test_zero_centred_rounds_after_one_plus_the_weight() -> None:
    x, weight, exact = bf16_case()
    got = filled(RMSNorm(48, 1e-6, zero_centred=True), weight)(x)
    torch.testing.assert_close(got.float(), (exact * (1 + weight.float())), rtol=2**-8, atol=0)
    assert not torch.equal(got, exact.to(torch.bfloat16) * (1 + weight))


def test_gradient_is_that_of_the_formula() -> None:
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(3), requires_grad=True)
    with torch.inference_mode():
        normalise(x, 1e-3)  # what inference left behind must not be in the way
    normalise(x, 1e-3).square().sum().backward()
    ours, x.grad = x.grad, None
    (x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()).square().sum().backward()
    torch.testing.assert_close(ours, x.grad, rtol=1e-4, atol=1e-6)
