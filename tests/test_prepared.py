"""Derived tensors are kept in eval mode, made anew in training, and dropped when the weights may have changed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from engine.prepared import Prepared


class Doubled(Prepared[Tensor]):
    """Derives twice its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(2, 3, bias=False)

    def _prepare(self) -> Tensor:
        return self.wide.weight * 2


def test_eval_mode_keeps_what_was_derived() -> None:
    module = Doubled().eval()
    assert module.prepared() is module.prepared()
    assert not module.prepared().requires_grad


def test_training_derives_anew_and_passes_gradients() -> None:
    module = Doubled().train()
    assert module.prepared() is not module.prepared()
    module.prepared().sum().backward()
    assert module.wide.weight.grad is not None
    assert module.wide.weight.grad.tolist() == [[2.0, 2.0]] * 3


def test_loading_casting_and_eval_drop_what_was_kept() -> None:
    module = Doubled().eval()
    module.load_state_dict({"wide.weight": torch.ones(3, 2)})
    assert module.prepared().tolist() == [[2.0, 2.0]] * 3
    module.load_state_dict({"wide.weight": torch.full((3, 2), 4.0)})
    assert module.prepared().tolist() == [[8.0, 8.0]] * 3
    module.to(torch.bfloat16)
    assert module.prepared().dtype == torch.bfloat16
    module.wide.weight.data.fill_(0.5)
    assert module.eval().prepared().tolist() == [[1.0, 1.0]] * 3


def test_what_inference_derived_serves_outside_it() -> None:
    module = Doubled().eval()
    with torch.inference_mode():
        kept = module.prepared()
    assert not kept.is_inference()
    with torch.inference_mode():
        built = Doubled().eval()  # its weights are of inference mode already
        assert torch.equal(built.prepared(), built.wide.weight * 2)


def test_a_wide_matrix_is_laid_out_by_columns_with_the_same_values() -> None:
    module = Doubled().eval()
    before = module.wide.weight.detach().clone()
    module.prepared()
    assert module.wide.weight.stride() == (1, 3)
    assert torch.equal(module.wide.weight, before)
    assert torch.equal(module.state_dict()["wide.weight"], before)
