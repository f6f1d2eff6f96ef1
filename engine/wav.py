"""Writes a WAV file while its audio is still being made. It does not know where the audio comes from."""

from __future__ import annotations

import os
import struct
from typing import BinaryIO

from engine.core import PCM

UNKNOWN_BYTES = 0xFFFFFFFF
"""The size in the header of a stream that cannot go back to it: players read on to the end. No standard says so; FFmpeg
(libavformat/wavenc.c) does the same."""
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
    """Mono 16-bit WAV from the start of `file` on.

    With `sized` the file is a whole one after every write, whatever ends the program; it must be able to seek. Without,
    the header keeps the unknown size. Raises OSError (disk full), also from `write`.
    """

    def __init__(self, file: BinaryIO, sample_rate: int, *, sized: bool) -> None:
        self._file, self._sample_rate, self._sized, self._num_bytes = file, sample_rate, sized, 0
        file.write(header(sample_rate, 0 if sized else None))
        file.flush()

    def write(self, pcm: PCM) -> None:
        """Appends samples and flushes them, so that a reader hears them at once."""
        data = pcm.astype("<i2").tobytes()
        self._file.write(data)
        self._num_bytes += len(data)
        if self._sized:
            self._file.seek(0)
            self._file.write(header(self._sample_rate, self._num_bytes))
            self._file.seek(0, os.SEEK_END)
        self._file.flush()
