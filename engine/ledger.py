"""What a verification notes: which expected tensors there are, which were looked at, and how far off ours were.

It does not know which model made them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.core import SamplingParams
from engine.weights import CheckpointError

STATES = 5e-5
"""Tolerance of text, prompt and backbone states, codec stages and samples: largest absolute difference in fp32."""
LOGITS = 2e-4
PROBABILITIES = 1e-5
EXACT = 0.0
"""Codes: how many differ."""
GREEDY = SamplingParams(temperature=0.0, depth_temperature=0.0)
PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class Row:
    """The largest error of a group of tensors. `differs` turns it round: the error must exceed the tolerance."""

    group: str
    error: float
    tolerance: float
    differs: bool = False

    @property
    def ok(self) -> bool:
        return self.error > self.tolerance if self.differs else self.error <= self.tolerance


class Ledger:
    """The expected tensors, which of them were used, and how far off ours were."""

    def __init__(self, expected: Mapping[str, Tensor]) -> None:
        self.expected = expected
        self._unused = set(expected)
        self._rows: dict[str, Row] = {}

    def take(self, name: str) -> Tensor:
        """An expected tensor. Raises CheckpointError if it is not there."""
        if name not in self.expected:
            raise CheckpointError(f"expected tensors lack {name}; make them again with a complete script")
        self._unused.discard(name)
        return self.expected[name]

    def ids(self, name: str, *shape: int | None, below: int) -> Tensor:
        """Integers from 0 to `below` - 1 that serve as input; None in the shape is any size. Raises CheckpointError."""
        tensor = self.take(name)
        whole = not tensor.is_floating_point() and not tensor.is_complex()
        if not whole or not fits(tensor, shape) or bool(((tensor < 0) | (tensor >= below)).any()):
            raise unusable(name, f"ids from 0 to {below - 1}", shape, tensor)
        return tensor.long()

    def states(self, name: str, *shape: int | None) -> Tensor:
        """Floats that serve as input, likewise."""
        tensor = self.take(name)
        if not tensor.is_floating_point() or not fits(tensor, shape):
            raise unusable(name, "floats", shape, tensor)
        return tensor.float()

    def names(self, pattern: str) -> list[re.Match[str]]:
        """The names that match the whole pattern, in order."""
        return [match for name in sorted(self.expected) if (match := re.fullmatch(pattern, name))]

    def has(self, name: str) -> bool:
        return name in self.expected

    def note(self, group: str, error: float, tolerance: float) -> None:
        """Enters an error that no single tensor stands for."""
        self._enter(Row(group, error, tolerance))

    def compare(self, group: str, name: str, ours: Tensor, tolerance: float) -> None:
        """Enters the error of our tensor against the expected one of that name into the group's row."""
        self.note(group, distance(ours, self.take(name)), tolerance)

    def contrast(self, group: str, name: str, ours: Tensor, tolerance: float) -> None:
        """Likewise for a tensor that is wrong by design."""
        self._enter(Row(group, distance(ours, self.take(name)), tolerance, differs=True))

    def rows(self) -> list[Row]:
        """A row a group, and one for each tensor that nobody looked at."""
        forgotten = [Row(f"{name}: nothing checks it", math.inf, EXACT) for name in sorted(self._unused)]
        return [*self._rows.values(), *forgotten]

    def _enter(self, row: Row) -> None:
        before = self._rows.setdefault(row.group, row)
        if row.error > before.error:
            self._rows[row.group] = row


def fits(tensor: Tensor, shape: tuple[int | None, ...]) -> bool:
    return tensor.dim() == len(shape) and all(
        want in (None, is_) for want, is_ in zip(shape, tensor.shape, strict=True)
    )


def unusable(name: str, what: str, shape: tuple[int | None, ...], tensor: Tensor) -> CheckpointError:
    wanted = ", ".join("any" if size is None else str(size) for size in shape)
    found = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    return CheckpointError(f"{name} must be {what} [{wanted}], found {found}; make the expected tensors again")


def distance(ours: Tensor, expected: Tensor) -> float:
    """Largest absolute difference, of integers how many differ; infinity for another shape, NaN or a lone infinity."""
    if ours.shape != expected.shape:
        return math.inf
    if not expected.is_floating_point():
        return float((ours != expected).sum())
    difference = torch.where(ours == expected, 0.0, (ours - expected).abs()).nan_to_num(math.inf, math.inf)
    return float(difference.max()) if difference.numel() else 0.0
