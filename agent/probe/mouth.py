"""A microphone before which several sounds may be made at once: every 20 ms one Opus packet, from the call's beginning.

It does not know why a sound is made, or who hears it. agent/microphone.py is for one speaker who hands PCM over; here
the sounds are known beforehand, begin with a packet each and are mixed sample by sample.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Protocol

import av
import numpy as np
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from av.stream import Stream
from numpy.typing import NDArray

from agent.opus import OpusEncoder
from agent.pace import PACKET_SECONDS, Pace
from agent.probe.recording import RATE, Pcm, Said
from engine.clock import Clock

PACKET_SAMPLES = RATE // 50
LISTENER_SECONDS = 0.06
"""What the listener's jitter buffer holds back before the loudspeaker plays it."""
AIR_SECONDS = 0.02
"""From loudspeaker to microphone: the devices' own buffers, and 30 cm of air (1 ms)."""
LEAST_HELD, MOST_HELD = AIR_SECONDS, LISTENER_SECONDS + AIR_SECONDS + 0.2
"""Seconds that a frame may wait for its turn in the air: later, the loudspeaker pauses; longer, it skips."""
KEPT_SECONDS = 1.0

Mixed = NDArray[np.int32]


class Source(Protocol):
    """A sound before the microphone."""

    begins_at: float | None
    """When the microphone took its first sample; None before."""

    def take(self, at: float) -> Pcm:
        """int16, at most [960]: what sounds in the 20 ms from `at` on. Called packet by packet."""


class Sound:
    """One sound, int16 [samples] at 48 kHz, from its beginning to its end."""

    def __init__(self, step: str, samples: Pcm, gain_db: float = 0.0) -> None:
        self.step = step
        self.begins_at: float | None = None
        self._samples = louder(samples, gain_db)
        self._taken = 0

    def take(self, at: float) -> Pcm:
        samples = self._samples[self._taken : self._taken + PACKET_SAMPLES]
        self._taken += samples.size
        return samples

    @property
    def said(self) -> Said | None:
        """What the microphone took of it; None where it took nothing."""
        return None if self.begins_at is None else Said(self.step, self.begins_at, self._samples[: self._taken])


class Air:
    """What a loudspeaker plays of a voice, as it reaches a microphone: LISTENER_SECONDS + AIR_SECONDS after it came.

    The buffer's delay is fixed: a frame is played behind the one before it as long as it comes in time for that."""

    def __init__(self) -> None:
        self._parts: deque[tuple[int, Pcm]] = deque()
        """The first one's sample, counted on the clock, and the samples."""
        self._end = 0

    def push(self, samples: Pcm, came_at: float) -> None:
        """Takes a frame whose last sample came at this instant; frames come in order."""
        held = self._end / RATE - came_at
        if not LEAST_HELD <= held <= MOST_HELD:
            self._end = round((came_at + LISTENER_SECONDS + AIR_SECONDS) * RATE)
        self._parts.append((self._end, samples))
        self._end += samples.size
        while self._parts[0][0] < self._end - KEPT_SECONDS * RATE:
            self._parts.popleft()

    def take(self, at: float) -> Pcm:
        """int16 [960]: what is heard in the 20 ms from `at` on."""
        first, heard = round(at * RATE), np.zeros(PACKET_SAMPLES, np.int16)
        for start, samples in self._parts:
            low, high = max(start, first), min(start + samples.size, first + PACKET_SAMPLES)
            if low < high:
                heard[low - first : high - first] = samples[low - start : high - start]
        return heard


class Echo:
    """The microphone hears the loudspeaker, from now to the call's end."""

    def __init__(self, step: str, air: Air, gain_db: float) -> None:
        self.step = step
        self.begins_at: float | None = None
        self._air, self._gain_db, self._taken = air, gain_db, list[Pcm]()

    def take(self, at: float) -> Pcm:
        self._taken.append(louder(self._air.take(at), self._gain_db))
        return self._taken[-1]

    @property
    def said(self) -> Said | None:
        """What the microphone took of it."""
        return None if self.begins_at is None else Said(self.step, self.begins_at, np.concatenate(self._taken))


class Mouth(MediaStreamTrack):
    """`begins` is asked before each packet which sounds begin with it, given the instant of the packet's first sample.

    `room_db`, if given, is the RMS of a room's noise in dB of full scale, white and seeded; else a silence is digital.
    `recv` paces itself, because aiortc's sender sends what it is given at once.
    """

    kind = "audio"

    def __init__(
        self,
        clock: Clock,
        begins: Callable[[float], Iterable[Source]],
        room_db: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._clock, self._begins, self._pace = clock, begins, Pace()
        self._encoder = OpusEncoder(RATE)
        self._sources = list[Source]()
        self._room = None if room_db is None else 32768 * 10 ** (room_db / 20)
        self._noise = np.random.default_rng(seed)
        self._now = 0.0
        """The instant of the next packet's first sample, counted evenly; set anew after a stall."""
        self._pts = 0

    async def recv(self) -> av.Packet[Stream]:
        """The next packet, in the moment in which it is due: its first sample was taken 20 ms before."""
        due_at = self._pace.next_due(self._clock.now())
        await asyncio.sleep(max(0.0, due_at - self._clock.now()))
        if self.readyState != "live":
            raise MediaStreamError
        begins_at = self._clock.now() - PACKET_SECONDS
        self._sources += self._begins(begins_at)
        payload = self._encoder.encode(self._mixed(begins_at))
        self._mark(self._clock.now() - PACKET_SECONDS)
        return self._wrapped(payload)

    def _mixed(self, begins_at: float) -> Pcm:
        if abs(begins_at - self._now) > PACKET_SECONDS:
            self._now = begins_at
        sum_: Mixed = np.zeros(PACKET_SAMPLES, np.int32)
        if self._room is not None:
            sum_ += np.rint(self._noise.normal(0.0, self._room, PACKET_SAMPLES)).astype(np.int32)
        for source in self._sources:
            samples = source.take(self._now)
            sum_[: samples.size] += samples
        self._now += PACKET_SECONDS
        return clipped(sum_)

    def _mark(self, at: float) -> None:
        for source in self._sources:
            if source.begins_at is None:
                source.begins_at = at

    def _wrapped(self, payload: bytes) -> av.Packet[Stream]:
        packet = av.Packet(payload)
        packet.time_base = Fraction(1, RATE)
        packet.pts = packet.dts = self._pts
        self._pts += PACKET_SAMPLES
        return packet


def louder(samples: Pcm, gain_db: float) -> Pcm:
    """The samples, so much louder; what is too loud is clipped, as a microphone does."""
    return samples if gain_db == 0.0 else clipped(np.rint(samples * 10 ** (gain_db / 20)))


def clipped(samples: NDArray[np.int32] | NDArray[np.float64]) -> Pcm:
    return np.clip(samples, -32768, 32767).astype(np.int16)
