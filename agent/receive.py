"""Makes a microphone's RTP packets into frames of 20 ms at 16 kHz, in the order of time, decoded off the event loop.

It knows neither how packets come here nor what is said in them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agent.jitter import Counts, JitterBuffer, Piece
from agent.opus import HEARING_RATE, OpusDecoder
from agent.toc import TICKS
from engine.clock import Clock

FRAME_SAMPLES = HEARING_RATE // 50
TICKS_A_SAMPLE = TICKS // HEARING_RATE
MAX_BACKLOG_TICKS = TICKS
"""A second. Decoding takes a small part of the time that it covers: who is that far behind waits for a thread, and
would hear the caller a second late."""


@dataclass(frozen=True, slots=True)
class Heard:
    """20 ms of the microphone: int16 [320] at 16 kHz, from sample `position` on, counted from the first one heard."""

    samples: NDArray[np.int16]
    position: int
    received_at: float
    """When the packet with its last sample came; of a guess, when it was made. In seconds of the given clock."""
    concealed: bool
    """Some of it is a guess: a packet was lost or late, or the sender is silent and sends nothing (DTX)."""


class Decoding:
    """One microphone's decoder, and the samples that do not fill a frame yet. One call at a time, from any thread."""

    def __init__(self) -> None:
        self._decoder = OpusDecoder()
        self._frame = np.zeros(FRAME_SAMPLES, np.int16)
        self._filled, self._position, self._concealed = 0, 0, False
        self.broken = 0
        """Packets that are no Opus, and were guessed."""

    def decode(self, pieces: list[Piece]) -> list[Heard]:
        """The frames that are full after these pieces."""
        return [heard for piece in pieces for heard in self._cut(piece, self._samples(piece))]

    def _samples(self, piece: Piece) -> NDArray[np.int16]:
        if piece.fresh:
            self._decoder.reset()
        count = piece.ticks // TICKS_A_SAMPLE
        if piece.concealed or piece.payload is None:
            return self._decoder.conceal(count, piece.payload)
        samples = self._decoder.decode(piece.payload)
        if samples is not None and samples.size == count:
            return samples
        self.broken += 1
        return self._decoder.conceal(count)

    def _cut(self, piece: Piece, samples: NDArray[np.int16]) -> Iterator[Heard]:
        position = piece.position // TICKS_A_SAMPLE
        if position != self._position + self._filled:  # some were dropped: what is left of those before goes, too
            self._filled, self._position, self._concealed = 0, position, False
        edges = [0, *range(FRAME_SAMPLES - self._filled, samples.size, FRAME_SAMPLES), samples.size]
        for start, end in pairwise(edges):
            self._frame[self._filled : self._filled + end - start] = samples[start:end]
            self._filled += end - start
            self._concealed |= piece.concealed
            if self._filled == FRAME_SAMPLES:
                yield Heard(self._frame.copy(), self._position, piece.at, self._concealed)
                self._filled, self._position, self._concealed = 0, self._position + FRAME_SAMPLES, False


class Receiver:
    """Hears one peer. `heard` is called with every frame, in order, on the event loop that it was made on.

    The executor decodes one batch at a time; what waits for it meanwhile is at most MAX_BACKLOG_TICKS, the oldest is
    dropped. Raises LibraryMissing where there is no libopus.
    """

    def __init__(self, executor: Executor, clock: Clock, heard: Callable[[Heard], None]) -> None:
        self.heard = heard
        self.dropped = 0
        """Ticks of 1/48000 s that waited for the decoder too long."""
        self._executor, self._clock = executor, clock
        self._loop = asyncio.get_running_loop()
        self._buffer, self._decoding = JitterBuffer(), Decoding()
        self._backlog: deque[Piece] = deque()
        self._backlog_ticks = 0
        self._busy: asyncio.Future[list[Heard]] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = float("inf")
        self._closed = False

    @property
    def counts(self) -> Counts:
        """Packets, by what became of them."""
        return self._buffer.counts

    @property
    def broken(self) -> int:
        """Packets that are no Opus."""
        return self._decoding.broken

    @property
    def target(self) -> float:
        """Seconds for which a missing packet is waited for now."""
        return self._buffer.target

    def push(self, source: int, sequence: int, timestamp: int, payload: bytes) -> None:
        """Takes an RTP packet in the moment in which it comes: SSRC, sequence number, timestamp and Opus payload."""
        if not self._closed:
            self._buffer.push(sequence, timestamp, payload, self._clock.now(), source)
            self.poll()

    def poll(self) -> None:
        """Has decoded what is due. Its own timer calls it when nothing comes."""
        if self._closed:
            return
        for piece in self._buffer.pop(self._clock.now()):
            self._backlog.append(piece)
            self._backlog_ticks += piece.ticks
        while self._backlog_ticks > MAX_BACKLOG_TICKS and len(self._backlog) > 1:
            self.dropped += self._take_oldest().ticks
        self._decode()
        self._arm()

    def close(self) -> None:
        """Hears nothing any more; may be called again."""
        self._closed = True
        self._backlog.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _take_oldest(self) -> Piece:
        piece = self._backlog.popleft()
        self._backlog_ticks -= piece.ticks
        return piece

    def _decode(self) -> None:
        if self._busy is None and self._backlog:
            pieces = [self._take_oldest() for _ in range(len(self._backlog))]
            self._busy = self._loop.run_in_executor(self._executor, self._decoding.decode, pieces)
            self._busy.add_done_callback(self._decoded)

    def _decoded(self, done: asyncio.Future[list[Heard]]) -> None:
        self._busy = None
        if self._closed or done.cancelled():
            return
        self._decode()
        for heard in done.result():
            self.heard(heard)

    def _arm(self) -> None:
        """A timer that rings too early only looks and is set again: most packets come long before it, and need no new
        one."""
        wake_at = self._buffer.wake_at
        if wake_at is None or (self._timer is not None and self._wakes_at <= wake_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = wake_at
        self._timer = self._loop.call_later(max(0.0, wake_at - self._clock.now()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.poll()
