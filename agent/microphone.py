"""A microphone that a program speaks into: PCM in, every 20 ms one Opus packet out. It does not know who hears it."""

from __future__ import annotations

import asyncio
from collections import deque
from fractions import Fraction

import av
import numpy as np
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from av.stream import Stream
from numpy.typing import NDArray

from agent.opus import RATES, OpusEncoder
from agent.pace import PACKET_SECONDS, Pace
from engine.clock import Clock

LEAD_PACKETS = 5
"""That wait to be sent at most: 100 ms, which a source that comes in bursts needs, and who stops speaking can bear."""
RTP_CLOCK = 48_000
PACKET_TICKS = round(PACKET_SECONDS * RTP_CLOCK)


class Microphone(MediaStreamTrack):
    """Sends nothing until somebody speaks into it; from then on it sends silence where there is no sound.

    `recv` paces itself, because aiortc's sender sends what it is given at once.
    """

    kind = "audio"

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock, self._pace = clock, Pace()
        self._packets: deque[NDArray[np.int16]] = deque()
        self._rest = np.zeros(0, np.int16)
        """What does not fill a packet."""
        self._encoder: OpusEncoder | None = None
        self._rate = 0
        self._begun, self._moved = asyncio.Event(), asyncio.Event()
        self._pts = 0

    async def speak(self, samples: NDArray[np.int16], rate: int) -> None:
        """Speaks int16 [samples], mono, at a rate that Opus takes; returns when all but 100 ms of it were sent.

        What does not fill a packet of 20 ms waits for more. Raises MediaStreamError when the call is over, TypeError
        and ValueError for samples or a rate that cannot be taken. Cancelled, it has spoken what it had handed over.
        """
        self._tune(rate)
        size = rate // 50
        samples = np.concatenate([self._rest, checked(samples)])
        whole = samples.size - samples.size % size
        self._rest = samples[:0]
        for start in range(0, whole, size):
            await self._room()
            self._packets.append(samples[start : start + size])
            self._begun.set()
        self._rest = samples[whole:]

    def stop(self) -> None:
        """The call is over; whoever still speaks is told."""
        super().stop()
        self._moved.set()

    async def recv(self) -> av.Packet[Stream]:
        """The next packet, in the moment in which it is due."""
        await self._begun.wait()
        due_at = self._pace.next_due(self._clock.now())
        await asyncio.sleep(max(0.0, due_at - self._clock.now()))
        if self.readyState != "live":
            raise MediaStreamError
        return self._wrapped(self._encoded())

    def _tune(self, rate: int) -> None:
        if rate not in RATES:
            raise ValueError(f"a microphone takes one of {RATES} samples a second, got {rate}")
        if rate != self._rate:
            self._rate, self._rest = rate, np.zeros(0, np.int16)

    async def _room(self) -> None:
        while self.readyState == "live" and len(self._packets) >= LEAD_PACKETS:
            self._moved.clear()
            await self._moved.wait()
        if self.readyState != "live":
            raise MediaStreamError

    def _encoded(self) -> bytes:
        """On the event loop: 0.4 to 0.8 ms for 20 ms of noise (measured on 2 busy cores), less for speech."""
        samples = self._packets.popleft() if self._packets else np.zeros(self._rate // 50, np.int16)
        self._moved.set()
        if self._encoder is None or self._encoder.packet_samples != samples.size:
            self._encoder = OpusEncoder(50 * samples.size)
        return self._encoder.encode(samples)

    def _wrapped(self, payload: bytes) -> av.Packet[Stream]:
        packet = av.Packet(payload)
        packet.time_base = Fraction(1, RTP_CLOCK)
        packet.pts = packet.dts = self._pts
        self._pts += PACKET_TICKS
        return packet


def checked(samples: NDArray[np.int16]) -> NDArray[np.int16]:
    """The samples. Raises TypeError where they are no int16 [samples]."""
    if not isinstance(samples, np.ndarray) or samples.dtype != np.int16 or samples.ndim != 1:
        found = f"{samples.dtype} {list(samples.shape)}" if isinstance(samples, np.ndarray) else type(samples).__name__
        raise TypeError(f"a microphone takes arrays of int16 [samples], mono, got {found}")
    return samples
