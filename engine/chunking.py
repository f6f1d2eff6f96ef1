"""Says how many frames become one chunk. It does not know streams, stages or the time of day.

Chunks grow 1, 2, 4, 8, 16: the first is sent as soon as it exists (first audio), later ones are large (one codec call
for many frames). A chunk that could not be finished in time shrinks to the frames that exist.
"""

from __future__ import annotations

from collections.abc import Mapping

LADDER = (1, 2, 4, 8, 16)


def fitting(frames: int) -> int:
    """The largest ladder size that `frames` (at least 1) frames fill."""
    return min(LADDER[-1], 1 << (frames.bit_length() - 1))


def goal(chunks: int) -> int:
    """The size that the next chunk should have after `chunks` earlier ones."""
    return LADDER[min(chunks, len(LADDER) - 1)]


def seconds(size: int, pending: int, frame: float, codec: Mapping[int, float]) -> float:
    """Work until a chunk of `size` is out, when `pending` frames exist; frame and codec[size] in seconds."""
    return max(0, size - pending) * frame + codec[size]


def sendable(pending: int, wanted: int, time_left: float, frame: float, codec: Mapping[int, float]) -> int:
    """How many of the pending frames (at least 1) to send now; 0 means: make more frames first.

    That is so as long as the next ladder size, up to `wanted`, can be finished within time_left seconds.
    """
    size = fitting(pending)
    larger = 2 * size
    if larger <= wanted and seconds(larger, pending, frame, codec) <= time_left:
        return 0
    return size


def expected(pending: int, wanted: int, time_left: float, frame: float, codec: Mapping[int, float]) -> int:
    """The size that the next chunk will have: the largest up to `wanted` that fits into time_left, at least 1."""
    sizes = (size for size in reversed(LADDER) if size <= wanted)
    return next((size for size in sizes if seconds(size, pending, frame, codec) <= time_left), 1)
