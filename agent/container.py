"""Puts speech into a format that players take, while it is still being made. It knows neither HTTP nor files.

One object a stream: `push` gives the bytes that samples make, `end` the last ones. One call at a time, from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Protocol

import av

from agent.opus import BIT_RATE, COMPLEXITY, check_rate
from engine import wav
from engine.core import PCM

PAGE_MICROSECONDS = 20_000
"""Of an Ogg page: one packet, so that none waits for others. 28 bytes each, a third of the stream at 32 kbit/s."""


class Container(Protocol):
    """A format, for one stream of mono PCM."""

    media_type: str

    def push(self, pcm: PCM) -> bytes:
        """The bytes that may be sent now, the head of the stream before the first of them."""
        ...

    def end(self) -> bytes:
        """The last bytes; nothing may follow."""
        ...


class Plain:
    """The samples as they are: 16 bits, little-endian, no head."""

    def __init__(self, sample_rate: int) -> None:
        self.media_type = f"audio/pcm; rate={sample_rate}; channels=1"

    def push(self, pcm: PCM) -> bytes:
        return pcm.astype("<i2").tobytes()

    def end(self) -> bytes:
        return b""


class Wav(Plain):
    """The same behind a head that leaves the length open."""

    def __init__(self, sample_rate: int) -> None:
        self.media_type = "audio/wav"
        self._head = wav.header(sample_rate, None)

    def push(self, pcm: PCM) -> bytes:
        head, self._head = self._head, b""
        return head + super().push(pcm)

    def end(self) -> bytes:
        head, self._head = self._head, b""
        return head


class Sink:
    """Where a muxer writes; it cannot be gone back in."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """What was written since the last time."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data


class OggOpus:
    """Opus in Ogg (RFC 7845). The last page's position cuts the padding off: as many samples come out as went in.

    The muxer keeps the latest page back, 20 ms. Raises ValueError for a sample rate that Opus does not take.
    """

    media_type = "audio/ogg; codecs=opus"

    def __init__(self, sample_rate: int, bit_rate: int = BIT_RATE) -> None:
        check_rate(sample_rate)
        self._sink, self._position = Sink(), 0
        options = {"page_duration": str(PAGE_MICROSECONDS), "fflags": "flush_packets"}
        self._file = av.open(self._sink, "w", format="ogg", options=options)
        codec = {"application": "voip", "frame_duration": "20", "compression_level": str(COMPLEXITY)}
        self._stream = self._file.add_stream("libopus", rate=sample_rate, options=codec)
        self._stream.codec_context.layout = "mono"
        self._stream.codec_context.format = "s16"
        self._stream.codec_context.bit_rate = bit_rate
        self._time_base = Fraction(1, sample_rate)
        self._file.start_encoding()

    def push(self, pcm: PCM) -> bytes:
        if pcm.size:
            frame = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
            frame.sample_rate, frame.time_base, frame.pts = self._time_base.denominator, self._time_base, self._position
            self._position += pcm.size
            self._file.mux(self._stream.encode(frame))
        return self._sink.take()

    def end(self) -> bytes:
        self._file.mux(self._stream.encode(None))
        self._file.close()
        return self._sink.take()


CONTAINERS: Mapping[str, Callable[[int], Container]] = {"wav": Wav, "pcm": Plain, "opus": OggOpus}
"""By the name that clients ask for; each is made for a sample rate."""
