"""What one call of the probe was: every packet that came, every sound that was said, every word of the server's.

It does not know what any of it means. All instants are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pcm = NDArray[np.int16]

RATE = 48_000
"""Samples a second: the clock of Opus on the wire, so that a tick of RTP's timestamp is a sample."""


@dataclass(frozen=True, slots=True)
class Packet:
    """One RTP packet of the agent's voice, as it came: sequence number of 16 bits, timestamp of 32, SSRC, Opus."""

    sequence: int
    timestamp: int
    source: int
    payload: bytes
    at: float


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """One sound that a step of the scenario put before the microphone: int16 [samples] at 48 kHz, mono.

    begins_at: when a microphone would have taken its first sample, which is 20 ms before the packet that begins with it
    left."""

    step: str
    begins_at: float
    samples: Pcm

    @property
    def ends_at(self) -> float:
        return self.begins_at + self.samples.size / RATE


@dataclass(frozen=True, slots=True)
class Told:
    """One message of the server's on the data channel, whatever its protocol."""

    at: float
    type: str
    body: dict[str, Any]


@dataclass(slots=True)
class Recording:
    """One trial. What did not happen is None: a call that was refused has only `dialled_at`, `ended_at`, `failure`."""

    scenario: str
    trial: int
    seed: int
    protocol: str
    """offer, openai or whep."""
    dialled_at: float
    answered_at: float | None = None
    """The server's SDP answer was there."""
    connected_at: float | None = None
    """DTLS was up: from here on the microphone can be heard."""
    ended_at: float = 0.0
    packets: list[Packet] = field(default_factory=list)
    """In the order in which they came; from the first one on, also what was sent before anybody spoke."""
    said: list[Said] = field(default_factory=list)
    """In the order of begins_at."""
    told: list[Told] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    """Steps that were never said, because what they wait for did not happen in time."""
    failure: str | None = None
    """Why the call could not be made, or ended before the scenario did."""
    delayed: bool = False
    """The probe's own network held packets of the agent's up, as it was asked to."""
    busy_for: float | None = None
    """Seconds after which a server that had no room says that it may be called again."""


@dataclass(frozen=True, slots=True, eq=False)
class Heard:
    """What came out of the listener's jitter buffer: int16 [samples] at 48 kHz, without a break from begins_at on.

    concealed, stretched: bool [blocks of 10 ms]: which of them hold a guess at what was missing, and which were made
    shorter or longer to follow the buffer's target. delay: float32 [blocks], the seconds from a block's packet to its
    coming out, NaN where there was none. Silence before the first packet is neither."""

    begins_at: float
    samples: Pcm
    concealed: NDArray[np.bool_]
    stretched: NDArray[np.bool_]
    delay: NDArray[np.float32]

    def at(self, sample: int) -> float:
        """The instant at which this sample came out."""
        return self.begins_at + sample / RATE
