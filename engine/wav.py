"""Writes a WAV file while its audio is still being made. It does not know where the audio comes from."""

from __future__ import annotations

import struct
from types import TracebackType
from typing import BinaryIO

from engine.core import PCM

UNKNOWN_BYTES = 0xFFFFFFFF
"""The size that streams write before they know it; players read on to the end (RFC 2361 leaves it open)."""
HEADER_BYTES = 44


def header(sample_rate: int, num_bytes: int | None) -> bytes:
    """The 44 bytes before mono 16-bit PCM; num_bytes None for a stream of unknown length."""
    data = UNKNOWN_BYTES if num_bytes is None else num_bytes
    riff = UNKNOWN_BYTES if num_bytes is None else num_bytes + HEADER_BYTES - 8
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff, b"WAVE", b"fmt ", 16, 1, 1, sample_rate, sample_rate * 2, 2, 16, b"data", data),
    )


class WavWriter:
    """Mono 16-bit WAV. Where the file can seek, the sizes are written on leaving; a pipe keeps the unknown size."""

    def __init__(self, file: BinaryIO, sample_rate: int) -> None:
        self._file, self._sample_rate, self._num_bytes = file, sample_rate, 0
        file.write(header(sample_rate, None))
        file.flush()

    def write(self, pcm: PCM) -> None:
        """Appends samples and flushes them, so that a reader hears them at once. Raises OSError (disk full)."""
        data = pcm.astype("<i2").tobytes()
        self._file.write(data)
        self._file.flush()
        self._num_bytes += len(data)

    def __enter__(self) -> WavWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file.seekable():
            self._file.seek(0)
            self._file.write(header(self._sample_rate, self._num_bytes))
            self._file.seek(0, 2)
