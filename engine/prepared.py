"""Modules that derive tensors from their weights once, rather than in every step. It does not know which tensors."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import nn

from engine.device import lay_out

P = TypeVar("P")


class Prepared(nn.Module, Generic[P]):
    """A module with tensors derived from its weights: kept in eval mode, made anew at each call while training.

    Loading, moving, casting, `train()` and `eval()` drop what is kept. Whoever writes into the weights of a module in
    eval mode calls `eval()` again.
    """

    _kept: P | None = None

    def prepared(self) -> P:
        """What `_prepare` makes of the weights as they are; in eval mode they are laid out for the device, too."""
        if self.training:
            return self._prepare()
        if self._kept is None:
            # Not of inference mode unless the weights are: training may follow.
            with torch.inference_mode(next(self.parameters()).is_inference()), torch.no_grad():
                self._lay_out()
                self._kept = self._prepare()
        return self._kept

    def _prepare(self) -> P:
        raise NotImplementedError

    def _lay_out(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.data = lay_out(layer.weight.data)

    def train(self, mode: bool = True) -> Prepared[P]:
        self._kept = None
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._kept = None
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._kept = None
        super()._load_from_state_dict(*args, **kwargs)
