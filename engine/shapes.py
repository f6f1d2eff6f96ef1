"""The few shapes in which the device's work comes, and how a step's rows are dealt to them. It knows no tensors.

The rule: batches as Limits.batches has them; tokens in the powers of two from 16 to 256, then multiples of 256 up to
the model's last position; chunks of chunking.LADDER. Products of rows and length are capped, which bounds memory and
the number of shapes: a step with more is done in several parts.

Text segments are packed, one after the other without padding between them: a shape has room for `rows` of them and for
`length` tokens of all together, and only attention looks at each apart, as rows of up to `longest` tokens. The smallest
batch has every length, and its segments may be as long. Larger ones have up to MAX_PACK tokens, at least SHARE a
segment, and no segment with more than SPREAD even shares: so attention's rows have at most SPREAD times the tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Generic, TypeVar

from engine.batch import TOKENS, bucket
from engine.chunking import LADDER
from engine.core import Limits, Stage

T = TypeVar("T")
MAX_TOKENS = 2048
"""Tokens, padded, of all prompts of one part, unless it is the smallest batch."""
MAX_PACK = 1024
"""Tokens of several text segments in one part; what the fused kernels take, too."""
SHARE, SPREAD = 16, 4
"""Tokens of a segment's even share at least, where there are several; how many shares the longest may have."""
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
    """Tokens or frames of a row; tokens of all text segments together."""
    longest: int = 0
    """Tokens of a text segment, at most."""
    paired: bool = False
    """As many backbone sequences again, for guidance."""
    pages: int = 0
    """Of each sequence that attention looks at, for the stages that run the backbone."""

    @property
    def sequences(self) -> int:
        return 2 * self.rows if self.paired else self.rows

    @property
    def size(self) -> int:
        """Rows that pass through the stage's layers."""
        return self.length if self.work is Work.TEXT else self.sequences * self.length


def ladder(limits: Limits, max_positions: int, guided: bool = True) -> list[Shape]:
    """Every shape that a step within the limits can need, the largest first, without `pages`. Only where requests can
    be `guided` are there pairs."""
    shapes = pack_shapes(limits, max_positions)
    parts = _token_shapes(_most(limits, Stage.PREFILL), limits, min(max_positions, limits.max_prefill_tokens))
    shapes += [Shape(Work.PREFILL, rows, length) for rows, length in parts]
    for work, paired in product((Work.START, Work.DECODE, Work.DEPTH), (False, True) if guided else (False,)):
        shapes += [Shape(work, rows, paired=paired) for rows in _batches(limits.max_batch[work.stage], limits.batches)]
    for frames in LADDER:
        rows = min(limits.max_batch[Stage.CODEC], _fitting(MAX_FRAMES // frames, limits.batches))
        shapes += [Shape(Work.CODEC, rows, frames) for rows in _batches(rows, limits.batches)]
    return sorted(shapes, key=lambda shape: (-shape.size, shape.work, shape.paired))


def _most(limits: Limits, stage: Stage) -> int:
    """Rows of a part."""
    return min(MAX_ROWS, 2 * limits.max_batch[stage])


def _batches(most: int, batches: Sequence[int]) -> list[int]:
    """What up to `most` rows are padded to."""
    return sorted({bucket(rows, batches) for rows in range(1, most + 1)})


def pack_shapes(limits: Limits, max_positions: int) -> list[Shape]:
    """Those of text segments, of which none is longer than the model's last position: fewest tokens first."""
    first, *more = _batches(_fitting(_most(limits, Stage.TEXT), limits.batches), limits.batches)
    most = {rows: min(MAX_PACK, rows * max_positions) for rows in (first, *more)}
    shapes = [Shape(Work.TEXT, first, tokens, tokens) for tokens in _tokens(1, max(max_positions, most[first]))]
    for rows in more:
        sizes = _tokens(min(SHARE * rows, most[rows]), most[rows])
        shapes += [Shape(Work.TEXT, rows, tokens, min(tokens, SPREAD * tokens // rows)) for tokens in sizes]
    return sorted(shapes, key=lambda shape: (shape.length, shape.rows))


def _tokens(least: int, most: int) -> list[int]:
    """The steps that hold from `least` to `most` tokens."""
    return sorted({bucket(tokens, TOKENS) for tokens in range(least, most + 1)})


def _token_shapes(most: int, limits: Limits, longest: int) -> Iterator[tuple[int, int]]:
    for length in sorted({token_shape(tokens, longest) for tokens in range(1, longest + 1)}):
        for rows in _batches(_part(most, length, limits.batches), limits.batches):
            yield rows, length


def token_shape(tokens: int, longest: int) -> int:
    """The padded length of a prompt of so many tokens, of which the model has room for `longest`."""
    return min(bucket(tokens, TOKENS), longest)


@dataclass(slots=True)
class Pack(Generic[T]):
    """Text segments of one part, and the smallest shape that holds them."""

    shape: Shape
    segments: list[T]
    tokens: int
    longest: int


def packed(segments: Sequence[T], tokens: Callable[[T], int], shapes: Sequence[Shape]) -> list[Pack[T]]:
    """The segments in packs, each in the first one with room, long ones first (first fit decreasing: Johnson 1973):
    few packs, and full ones. `shapes` as pack_shapes orders them."""
    packs: list[Pack[T]] = []
    for segment in sorted(segments, key=tokens, reverse=True):
        size = tokens(segment)
        for pack in packs:
            shape = _holding(shapes, len(pack.segments) + 1, pack.tokens + size, pack.longest)
            if shape is not None:
                pack.shape, pack.tokens = shape, pack.tokens + size
                pack.segments.append(segment)
                break
        else:
            shape = _holding(shapes, 1, size, size)
            assert shape is not None, f"a segment has room in the model, got {size} tokens"
            packs.append(Pack(shape, [segment], size, size))
    return packs


def _holding(shapes: Sequence[Shape], rows: int, tokens: int, longest: int) -> Shape | None:
    """The first with room for so many segments, of so many tokens together and one."""
    fitting = (shape for shape in shapes if shape.length >= tokens and shape.rows >= rows and shape.longest >= longest)
    return next(fitting, None)


def dealt(rows: Sequence[T], tokens: Callable[[T], int], longest: int, limits: Limits) -> list[list[T]]:
    """Prompts in parts that have a shape, those of similar length together."""
    parts: list[list[T]] = []
    length = 0
    for row in sorted(rows, key=tokens, reverse=True):
        if not parts or len(parts[-1]) >= _part(_most(limits, Stage.PREFILL), length, limits.batches):
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
