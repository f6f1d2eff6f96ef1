"""The outbound audio: every 20 ms one Opus packet, popped from the playout buffer and encoded off the event loop.

It knows neither sessions nor the engine: what a packet means is told to whoever listens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from fractions import Fraction

import av
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from av.stream import Stream

from agent.opus import OpusEncoder
from agent.pace import PACKET_SECONDS, Pace
from agent.playout import PCM, Packet, PlayoutBuffer
from engine.clock import Clock

RTP_CLOCK = 48_000
"""Ticks a second, whatever the rate of the PCM (RFC 7587, section 4.1)."""
PACKET_TICKS = round(PACKET_SECONDS * RTP_CLOCK)
AHEAD_SECONDS = 0.005
"""How long before it is due a packet is popped and encoded: an encoding takes 0.2 ms, the way to the thread and back
some more, and 5 ms is how long another thread may hold the interpreter. Popping earlier would only delay the start of
speech."""


class SpeechTrack(MediaStreamTrack):
    """Never falls silent on the wire: where there is no speech, packets of silence flow.

    `recv` paces itself, because aiortc's sender sends what it is given at once. At most one packet is encoded ahead; a
    flush or a pause replaces it. `sent` is called with every packet in the moment in which it is handed over.
    """

    kind = "audio"

    def __init__(
        self,
        buffer: PlayoutBuffer,
        encoder: OpusEncoder,
        executor: Executor,
        clock: Clock,
        sent: Callable[[Packet], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__()
        self.pace = Pace()
        self._buffer, self._encoder, self._executor = buffer, encoder, executor
        self._clock, self._sleep, self._sent = clock, sleep, sent
        self._ahead: Packet | None = None
        self._pts = 0

    def flush(self, epoch: int) -> dict[str, int]:
        """Falls silent with the next packet; see PlayoutBuffer.flush."""
        unsent, self._ahead = self._ahead is not None, None
        return self._buffer.flush(epoch, unsent=unsent)

    def pause(self) -> None:
        """Fades out with the next packet and keeps speech back; see PlayoutBuffer.pause."""
        if not self._buffer.paused:  # else the packet that waits is silence, or the fade itself
            unsent, self._ahead = self._ahead is not None, None
            self._buffer.pause(unsent=unsent)

    def resume(self) -> None:
        """Goes on with the next packet that is popped, where the fade-out began; see PlayoutBuffer.resume."""
        self._buffer.resume()

    async def recv(self) -> av.Packet[Stream]:
        """The next packet, in the moment in which it is due."""
        if self.readyState != "live":
            raise MediaStreamError
        due_at = self.pace.next_due(self._clock.now())
        await self._until(due_at - AHEAD_SECONDS)
        payload = await self._encode(self._encoder.encode)
        await self._until(due_at)
        while self._ahead is None:  # flushed or paused after it was popped
            payload = await self._encode(self._encoder.replace)
        packet, self._ahead = self._ahead, None
        self._sent(packet)
        return self._wrapped(payload)

    async def _encode(self, encode: Callable[[PCM], bytes]) -> bytes:
        packet = self._ahead = self._buffer.pop(self._encoder.packet_samples, self._clock.now())
        return await asyncio.get_running_loop().run_in_executor(self._executor, encode, packet.samples)

    async def _until(self, instant: float) -> None:
        remaining = instant - self._clock.now()
        if remaining > 0:
            await self._sleep(remaining)

    def _wrapped(self, payload: bytes) -> av.Packet[Stream]:
        packet = av.Packet(payload)
        packet.time_base = Fraction(1, RTP_CLOCK)
        packet.pts = packet.dts = self._pts
        self._pts += PACKET_TICKS
        return packet
