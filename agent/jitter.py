"""Puts the packets of one microphone into the order of time: what is there goes on at once, what is missing is waited
for as long as it pays.

It knows neither sockets nor decoders, and reads no clock. The listener is a program, not an ear: it needs every sample
in order, not one every 20 ms. So a packet whose predecessors are all out is never held back; delay arises only behind a
gap, and is gone with the gap. (An ear needs the constant delay that NetEQ and aiortc's own buffer give it.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from agent.toc import TICKS, packet_ticks, silence_follows
from agent.transit import MAX_TARGET, Transit

FILL_TICKS = 960
GRAIN_TICKS = 120
"""2.5 ms: a decoder conceals multiples of it (opus_decode)."""
STALL = 0.2
"""Seconds without any packet before the time that passes is filled in, so that silence has a length. What comes after
all is heard after what was filled in: to break a word in two as seldom as possible, this is longer than most stalls of
a radio link."""
MAX_FILL = 2 * TICKS
"""Filled in without a packet at most: by then whoever spoke is silent, or gone."""
MAX_JUMP_TICKS = 2 * TICKS
MAX_JUMP_PACKETS = 1000
"""Farther off the place where the stream stands, a packet belongs to another stream, if the next one agrees."""
MAX_HELD = 64
MAX_PAYLOAD_BYTES = 3 * 1276
"""60 ms at the highest rate that there is (RFC 6716, section 3.2.1)."""
FLOW, MAX_BURST = 1.25 * TICKS, 3.0 * TICKS
"""Ticks that may come out in a second, and at once: more than time brings is not sound but a load."""
REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Piece:
    """The next stretch of sound: `ticks` of 1/48000 s, from `position` on.

    A heard piece is decoded from `payload`. A concealed one is guessed by the decoder: its end with the help of
    `payload`, the packet behind it, where that may carry a copy of it (in-band FEC, RFC 6716, section 2.1.7).
    """

    position: int
    ticks: int
    payload: bytes | None
    concealed: bool
    at: float
    """When its packet came, or when it was given up."""
    fresh: bool = False
    """It belongs to another stream than the piece before it: the decoder starts anew."""


@dataclass(slots=True)
class Counts:
    """Packets, by what became of them."""

    received: int = 0
    lost: int = 0
    """Given up; those that came after that are also `late`."""
    late: int = 0
    duplicates: int = 0
    refused: int = 0
    """Too large, too many, or more sound than time."""
    restarts: int = 0
    filled: int = 0
    """Ticks that were filled in because nothing came."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A packet as it came; sequence and timestamp are continued beyond their wrap-around once it has its place."""

    sequence: int
    timestamp: int
    payload: bytes
    source: int
    at: float

    @property
    def ticks(self) -> int:
        return packet_ticks(self.payload)

    @property
    def end(self) -> int:
        return self.timestamp + self.ticks

    def follows(self, other: Arrival) -> bool:
        return self.source == other.source and self.sequence == (other.sequence + 1) % (1 << 16)


def unwrapped(value: int, near: int, bits: int) -> int:
    """The number closest to `near` of those whose last `bits` bits are `value`."""
    half = 1 << (bits - 1)
    return near + ((value - near + half) & ((1 << bits) - 1)) - half


class JitterBuffer:
    """One microphone's packets. Every call gives `now` in seconds, never less than before.

    Holds at most MAX_HELD packets, each for MAX_TARGET at most, and gives out no more sound than FLOW and MAX_BURST
    allow, whatever comes.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._held: dict[int, Arrival] = {}
        self._source = self._next_sequence = self._next_timestamp = self._position = 0
        self._started = self._fresh = self._pausing = False
        self._filled = 0
        """Ticks filled in since the last packet."""
        self._last_at = 0.0
        self._last_ticks = FILL_TICKS
        self._stray: Arrival | None = None
        self._given_up: deque[int] = deque(maxlen=REMEMBERED)
        self._transit = Transit()
        self._tokens, self._tokens_at = MAX_BURST, 0.0

    @property
    def target(self) -> float:
        """Seconds for which a missing packet is waited for now, from when it should have come."""
        return self._transit.target

    @property
    def held(self) -> int:
        """Packets that wait for one before them."""
        return len(self._held)

    @property
    def wake_at(self) -> float | None:
        """The instant at which there will be something to pop though nothing comes."""
        if not self._started:
            return None
        if self._held:
            return self._give_up_at()
        return None if self._filled >= MAX_FILL else self._fill_at()

    def push(self, sequence: int, timestamp: int, payload: bytes, now: float, source: int = 0) -> None:
        """Takes a packet that came at `now`: RTP's sequence number (16 bits), timestamp (32 bits) and SSRC."""
        self.counts.received += 1
        if len(payload) > MAX_PAYLOAD_BYTES:
            self.counts.refused += 1
            return
        packet = Arrival(sequence % (1 << 16), timestamp % (1 << 32), payload, source, now)
        if not self._started:
            self._restart(packet)
        stray, self._stray = self._stray, None
        if self._near(packet):
            self._hold(packet)
        elif stray is not None and packet.follows(stray):
            self.counts.restarts += 1
            self._restart(stray)
            self._hold(stray)
            self._hold(packet)
        else:
            self._stray = packet

    def pop(self, now: float) -> list[Piece]:
        """What is due at `now`, in the order of time."""
        pieces: list[Piece] = []
        while self._held:
            head = self._held.get(self._next_sequence)
            if head is None and now < self._give_up_at() and len(self._held) < MAX_HELD:
                return pieces
            head = head or self._held[min(self._held)]
            pieces += self._given_up_one(now) if self._several_missing(head) else self._released(head, now)
        while self._started and self._filled < MAX_FILL and now >= self._fill_at():
            pieces += self._fill(now)
        return pieces

    # ---- in ---------------------------------------------------------------------------------------------------

    def _restart(self, packet: Arrival) -> None:
        """The stream goes on with this packet, whatever was before."""
        self._started = self._fresh = True
        self._source, self._next_sequence, self._next_timestamp = packet.source, packet.sequence, packet.timestamp
        self._filled, self._pausing, self._last_ticks = 0, False, packet.ticks or FILL_TICKS
        self._held.clear()
        self._given_up.clear()
        self._transit = Transit()

    def _place(self, packet: Arrival) -> tuple[int, int]:
        sequence = unwrapped(packet.sequence, self._next_sequence, 16)
        return sequence, unwrapped(packet.timestamp, self._next_timestamp, 32)

    def _near(self, packet: Arrival) -> bool:
        sequence, timestamp = self._place(packet)
        near = abs(sequence - self._next_sequence) <= MAX_JUMP_PACKETS
        return near and abs(timestamp - self._next_timestamp) <= MAX_JUMP_TICKS and packet.source == self._source

    def _hold(self, packet: Arrival) -> None:
        sequence, timestamp = self._place(packet)
        late = sequence < self._next_sequence and sequence in self._given_up
        if late:
            self._given_up.remove(sequence)  # if it comes once more, that is a duplicate
            self.counts.late += 1
        elif sequence < self._next_sequence or sequence in self._held:
            self.counts.duplicates += 1
            return
        packet = Arrival(sequence, timestamp, packet.payload, packet.source, packet.at)
        self._transit.observe(packet.end / TICKS, packet.at)
        if late:
            return
        if len(self._held) >= MAX_HELD:
            self.counts.refused += 1
            return
        self._held[sequence] = packet

    # ---- out --------------------------------------------------------------------------------------------------

    def _expected_at(self) -> float:
        """When the packet that is next would come if nothing held it up, being as long as the one before it."""
        return self._transit.expected_at((self._next_timestamp + self._last_ticks) / TICKS)

    def _give_up_at(self) -> float:
        """When the packet that is next is taken for lost: no packet waits behind it for longer than MAX_TARGET."""
        oldest_at = min(packet.at for packet in self._held.values())
        return min(self._expected_at() + self.target, oldest_at + MAX_TARGET)

    def _fill_at(self) -> float:
        """When time is filled in though no packet says that one is missing: as it passes since the last one came, also
        where a sender is ever later than expected. In a pause that was announced nothing is to be waited for."""
        wait = self.target if self._pausing else STALL
        return max(self._expected_at(), self._last_at + self._filled / TICKS) + wait

    def _several_missing(self, head: Arrival) -> bool:
        """Before this packet, each as long as the last one: those behind the first have a deadline of their own."""
        missing = head.sequence - self._next_sequence
        even = head.timestamp - self._next_timestamp == missing * self._last_ticks
        return missing > 1 and even and len(self._held) < MAX_HELD

    def _given_up_one(self, now: float) -> Iterator[Piece]:
        """The packet that is next is lost."""
        self.counts.lost += 1
        self._given_up.append(self._next_sequence)
        self._next_sequence += 1
        yield from self._piece(self._last_ticks, None, True, now, now)
        self._next_timestamp += self._last_ticks

    def _released(self, head: Arrival, now: float) -> Iterator[Piece]:
        """The packet, and before it what is missing."""
        del self._held[head.sequence]
        lost = range(self._next_sequence, head.sequence)
        self.counts.lost += len(lost)
        self._given_up.extend(lost[-REMEMBERED:])
        self._next_sequence = head.sequence + 1
        gap = max(0, head.timestamp - self._next_timestamp)
        yield from self._piece(gap - gap % GRAIN_TICKS, head.payload if lost and head.ticks else None, True, now, now)
        yield from self._piece(head.ticks, head.payload, False, head.at, now)
        self._follow(head)

    def _follow(self, head: Arrival) -> None:
        """The stream now stands where this packet ends. One that says that it began earlier than the one before it
        ended was cut out of a longer one (aiortc#1357), unless it is late and its time was filled in."""
        begins = head.timestamp if self._filled else max(self._next_timestamp, head.timestamp)
        self._next_timestamp = begins + head.ticks
        self._last_at = head.at
        if head.ticks:
            self._filled, self._last_ticks, self._pausing = 0, head.ticks, silence_follows(head.payload)

    def _fill(self, now: float) -> Iterator[Piece]:
        """20 ms for which nothing came."""
        yield from self._piece(FILL_TICKS, None, True, now, now)
        self._next_timestamp += FILL_TICKS
        self._filled += FILL_TICKS
        self.counts.filled += FILL_TICKS

    def _piece(self, ticks: int, payload: bytes | None, concealed: bool, at: float, now: float) -> Iterator[Piece]:
        """The stretch, if there is any of it, and if it is not more sound than time."""
        self._tokens = min(MAX_BURST, self._tokens + (now - self._tokens_at) * FLOW)
        self._tokens_at = now
        if ticks > self._tokens:
            self.counts.refused += 1
        elif ticks:
            self._tokens -= ticks
            yield Piece(self._position, ticks, payload, concealed, at, self._fresh)
            self._position += ticks
            self._fresh = False
