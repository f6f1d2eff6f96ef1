"""Makes the RTP packets of a voice into frames of 20 ms at 48 kHz, in the order of time, as a program wants to hear it.

It knows neither how packets come here nor what is said. Unlike receive.py, which serves many microphones in a thread of
their own, it decodes on the event loop: that takes 2 to 10 ms in a second of one call (measured on 2 busy cores).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from aiortc import RTCRtpReceiver
from numpy.typing import NDArray

from agent.jitter import Counts, JitterBuffer, Piece
from agent.opus import OpusDecoder
from agent.protocol import Stats
from agent.toc import TICKS
from engine.clock import Clock

RATE = TICKS
"""Samples a second: the clock of Opus on the wire, so that a tick is a sample."""
FRAME_SAMPLES = RATE // 50


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """20 ms of what is heard: int16 [960] at 48 kHz, mono."""

    samples: NDArray[np.int16]
    position: int
    """Of its first sample, counted from the first one heard."""
    received_at: float
    """When the packet with its last sample came; of a guess, when it was made. In seconds of the call's clock."""
    concealed: bool
    """Some of it is a guess, because a packet was lost or late."""


class Hearing:
    """Hears one voice. `heard` is called with every frame, in order, on the event loop.

    Nothing is held back that came in order: whoever plays it needs a buffer of their own. Raises LibraryMissing where
    there is no libopus.
    """

    def __init__(self, clock: Clock, heard: Callable[[Frame], None]) -> None:
        self.heard_samples = self.concealed_samples = 0
        self._clock, self._heard = clock, heard
        self._loop = asyncio.get_running_loop()
        self._buffer, self._decoder = JitterBuffer(), OpusDecoder(RATE)
        self._rest = np.zeros(0, np.int16)
        """What does not fill a frame yet; some of it a guess where it says so."""
        self._rest_concealed = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def counts(self) -> Counts:
        """Packets, by what became of them."""
        return self._buffer.counts

    def push(self, source: int, sequence: int, timestamp: int, payload: bytes) -> None:
        """Takes an RTP packet in the moment in which it comes: SSRC, sequence number, timestamp and Opus payload."""
        if not self._closed:
            self._buffer.push(sequence, timestamp, payload, self._clock.now(), source)
            self._poll()

    def close(self) -> None:
        """Hears nothing any more; may be called again."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _poll(self) -> None:
        """Has heard what is due. A timer calls it when nothing comes."""
        for piece in self._buffer.pop(self._clock.now()):
            for frame in self._cut(piece, self._decoded(piece)):
                self._heard(frame)
        if self._timer is not None:
            self._timer.cancel()
        wake_at = None if self._closed else self._buffer.wake_at
        self._timer = None if wake_at is None else self._loop.call_later(wake_at - self._clock.now(), self._poll)

    def _decoded(self, piece: Piece) -> NDArray[np.int16]:
        if piece.fresh:
            self._decoder.reset()
        self.heard_samples += piece.ticks
        self.concealed_samples += piece.ticks * piece.concealed
        if piece.concealed or piece.payload is None:
            return self._decoder.conceal(piece.ticks, piece.payload)
        samples = self._decoder.decode(piece.payload)
        return samples if samples is not None and samples.size == piece.ticks else self._decoder.conceal(piece.ticks)

    def _cut(self, piece: Piece, samples: NDArray[np.int16]) -> Iterator[Frame]:
        position = piece.position - self._rest.size
        samples = np.concatenate([self._rest, samples])
        concealed = piece.concealed or self._rest_concealed
        whole = samples.size - samples.size % FRAME_SAMPLES
        for start in range(0, whole, FRAME_SAMPLES):
            yield Frame(samples[start : start + FRAME_SAMPLES], position + start, piece.at, concealed)
        self._rest = samples[whole:]
        self._rest_concealed = concealed and bool(self._rest.size)


async def statistics(receiver: RTCRtpReceiver, hearing: Hearing, round_trip: float | None) -> Stats:
    """What the server is told of how it is heard. Nothing is held back here, so the buffer's delay is 0."""
    report = await receiver.getStats()
    inbound = [entry for entry in report.values() if entry.type == "inbound-rtp"]
    return Stats(
        jitter_buffer_delay=0.0,
        jitter_buffer_emitted_count=hearing.heard_samples,
        concealed_samples=hearing.concealed_samples,
        total_samples_received=hearing.heard_samples,
        packets_lost=sum(int(entry.packetsLost) for entry in inbound),
        jitter=max((float(entry.jitter) for entry in inbound), default=0.0) / RATE,
        round_trip_time=round_trip,
    )
