"""Says how many frames become one chunk. It does not know streams, stages or the time of day.

Chunks grow 1, 2, 4, 8, 16: the first is sent as soon as it exists (first audio), later ones are large (one codec call
for many frames), where that is cheaper and keeps the call short. A chunk that could not be finished in time shrinks to
the frames that exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

LADDER = (1, 2, 4, 8, 16)
GAIN = 0.05
"""Share of the codec's time for a frame that chunks of twice the size must save: they keep the device twice as long."""


def largest(codec: Mapping[int, float], most: float) -> int:
    """The ladder size up to which chunks grow, by the seconds of a codec step with one chunk: as long as it pays, and
    the step takes at most `most` seconds."""
    size = LADDER[0]
    while size < LADDER[-1] and codec[2 * size] <= min(most, (1 - GAIN) * 2 * codec[size]):
        size *= 2
    return size


@cache
def fitting(frames: int, most: int = LADDER[-1]) -> int:
    """The largest ladder size up to `most` that `frames` (at least 1) frames fill."""
    return min(most, 1 << (frames.bit_length() - 1))


@cache
def goal(chunks: int, most: int = LADDER[-1], first: int = LADDER[0]) -> int:
    """The size that the next chunk should have after `chunks` earlier ones: from `first` on, up to `most`."""
    return max(first, min(most, first << min(chunks, len(LADDER) - 1)))


def seconds(size: int, pending: int, frame: float, codec: Mapping[int, float]) -> float:
    """Work until a chunk of `size` is out, when `pending` frames exist; frame and codec[size] in seconds."""
    return max(0, size - pending) * frame + codec[size]


@cache
def steps(pending: int, wanted: int) -> tuple[int, int]:
    """The chunk of up to `wanted` frames that the pending ones (at least 1) fill, and the next larger one: 0 if it has
    `wanted` already. Who has the time for the larger one makes more frames first."""
    size = fitting(pending, wanted)
    return size, 2 * size if 2 * size <= wanted else 0


def expected(pending: int, wanted: int, time_left: float, frame: float, codec: Mapping[int, float]) -> int:
    """The size that the next chunk will have: the largest up to `wanted` that fits into time_left, at least 1."""
    for size in reversed(LADDER):
        if size <= wanted and seconds(size, pending, frame, codec) <= time_left:
            return size
    return 1
