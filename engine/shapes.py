"""The few shapes in which the device's work comes, and how a step's rows are dealt to them. It knows no tensors.

The rule: batches as Limits.batches has them; tokens in the powers of two from 16 to 256, then multiples of 256 up to
the model's last position; chunks of chunking.LADDER. Products of rows and length are capped, which bounds memory and
the number of shapes: a step with more is done in several parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import TypeVar

from engine.batch import TOKENS, bucket
from engine.chunking import LADDER
from engine.core import Limits, Stage

T = TypeVar("T")
MAX_TOKENS = 2048
"""Tokens, padded, of all rows of one part, unless it is the smallest batch."""
MAX_ROWS = 16
"""Text segments or prompts of one part."""
MAX_FRAMES = 256
"""Frames of all rows of one codec part."""


class Work(StrEnum):
    """What is captured as one graph. A prompt's first code is drawn apart from it: its parts may end apart."""

    TEXT = "text"
    PREFILL = "prefill"
    START = "start"
    DECODE = "decode"
    DEPTH = "depth"
    CODEC = "codec"

    @property
    def stage(self) -> Stage:
        return Stage.PREFILL if self is Work.START else Stage(self.value)


@dataclass(frozen=True, slots=True)
class Shape:
    """One of them. Rows are text segments, prompt sequences, or requests."""

    work: Work
    rows: int
    length: int = 1
    """Tokens or frames of a row."""
    paired: bool = False
    """As many backbone sequences again, for guidance."""
    pages: int = 0
    """Of each sequence that attention looks at, for the stages that run the backbone."""

    @property
    def sequences(self) -> int:
        return 2 * self.rows if self.paired else self.rows


def ladder(limits: Limits, max_positions: int, guided: bool = True) -> list[Shape]:
    """Every shape that a step within the limits can need, the largest first, without `pages`. Only where requests can
    be `guided` are there pairs."""
    text, prompts = (_most(limits, stage) for stage in (Stage.TEXT, Stage.PREFILL))
    shapes = [Shape(Work.TEXT, rows, length) for rows, length in _token_shapes(text, limits, max_positions)]
    parts = _token_shapes(prompts, limits, min(max_positions, limits.max_prefill_tokens))
    shapes += [Shape(Work.PREFILL, rows, length) for rows, length in parts]
    for work, paired in product((Work.START, Work.DECODE, Work.DEPTH), (False, True) if guided else (False,)):
        shapes += [Shape(work, rows, paired=paired) for rows in _batches(limits.max_batch[work.stage], limits.batches)]
    for frames in LADDER:
        rows = min(limits.max_batch[Stage.CODEC], _fitting(MAX_FRAMES // frames, limits.batches))
        shapes += [Shape(Work.CODEC, rows, frames) for rows in _batches(rows, limits.batches)]
    return sorted(shapes, key=lambda shape: (-shape.sequences * shape.length, shape.work, shape.paired))


def _most(limits: Limits, stage: Stage) -> int:
    """Rows of a part."""
    return min(MAX_ROWS, 2 * limits.max_batch[stage])


def _batches(most: int, batches: Sequence[int]) -> list[int]:
    """What up to `most` rows are padded to."""
    return sorted({bucket(rows, batches) for rows in range(1, most + 1)})


def _token_shapes(most: int, limits: Limits, longest: int) -> Iterator[tuple[int, int]]:
    for length in sorted({token_shape(tokens, longest) for tokens in range(1, longest + 1)}):
        for rows in _batches(_part(most, length, limits.batches), limits.batches):
            yield rows, length


def token_shape(tokens: int, longest: int) -> int:
    """The padded length of a row of so many tokens, of which the model has room for `longest`."""
    return min(bucket(tokens, TOKENS), longest)


def dealt(rows: Sequence[T], tokens: Callable[[T], int], longest: int, limits: Limits, stage: Stage) -> list[list[T]]:
    """The rows in parts that have a shape, rows of similar length together."""
    parts: list[list[T]] = []
    length = 0
    for row in sorted(rows, key=tokens, reverse=True):
        if not parts or len(parts[-1]) >= _part(_most(limits, stage), length, limits.batches):
            length = token_shape(tokens(row), longest)
            parts.append([])
        parts[-1].append(row)
    return parts


def _part(most: int, length: int, batches: Sequence[int]) -> int:
    """Rows of so many tokens that one part has at most."""
    return min(most, _fitting(MAX_TOKENS // length, batches))


def _fitting(most: int, batches: Sequence[int]) -> int:
    """The largest step of the ladder that is no more than `most`, or its first."""
    return max((size for size in batches if size <= most), default=batches[0])


def codec_parts(rows: Sequence[T], frames: int, batches: Sequence[int]) -> list[Sequence[T]]:
    """Likewise for a codec step."""
    most = _fitting(MAX_FRAMES // frames, batches)
    return [rows[first : first + most] for first in range(0, len(rows), most)]
