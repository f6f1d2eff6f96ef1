"""Lays the rows of a step out as one padded batch of a fixed ladder of shapes. It knows no tensors and no model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.core import Row

TOKENS = (16, 32, 64, 128, 256)
PAGES = (4, 8, 16, 32, 64, 128)


def bucket(size: int, ladder: Sequence[int]) -> int:
    """The smallest shape of the ladder that holds `size`; beyond its end, the next multiple of its last shape."""
    for shape in ladder:
        if size <= shape:
            return shape
    return -(-size // ladder[-1]) * ladder[-1]


@dataclass(frozen=True, slots=True)
class Batch:
    """`size` places for requests; when any is guided, as many again for the unconditional sequences, in the same order.

    A place without a request, and the second place of a request without guidance, has slot 0, which belongs to nobody.
    """

    rows: tuple[Row, ...]
    size: int
    paired: bool

    @classmethod
    def of(cls, rows: Sequence[Row], ladder: Sequence[int]) -> Batch:
        return cls(tuple(rows), bucket(len(rows), ladder), any(len(row.slots) > 1 for row in rows))

    @property
    def first_slots(self) -> list[int]:
        """[size]: the slot that holds a request's depth, codec and sampling state."""
        return [slot for _, slot in self._places(0)]

    @property
    def sequences(self) -> list[tuple[Row | None, int]]:
        """[size or 2 * size]: every backbone sequence with its request and its slot."""
        places = list(self._places(0))
        return [*places, *self._places(1)] if self.paired else places

    @property
    def slots(self) -> list[int]:
        """The slots of `sequences`."""
        return [slot for _, slot in self.sequences]

    def starts(self) -> list[int]:
        """[size]: each request's start, 0 in empty places."""
        return [row.start for row in self.rows] + [0] * (self.size - len(self.rows))

    def _places(self, index: int) -> Iterator[tuple[Row | None, int]]:
        for row in self.rows:
            guided = index < len(row.slots)
            yield (row, row.slots[index]) if guided else (None, 0)
        for _ in range(self.size - len(self.rows)):
            yield None, 0
