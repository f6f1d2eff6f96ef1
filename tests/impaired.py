"""A network in trouble, the same every time: what becomes of a datagram is a function of its number, not of chance.

`Trouble` says the fate of the nth packet. `Line` applies it to every datagram that the sockets of an event loop send,
in both directions. It tells media by RTP's own sequence number, which SRTP leaves readable (RFC 3711, section 3.1), so
the same packets are hit however busy the machine is; STUN, DTLS and what runs inside it (SCTP) by their count.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

STEPS = 2**16


@dataclass(frozen=True, slots=True)
class Trouble:
    """Of a hundred packets `lost` are lost, in bursts of `burst`; others take up to `jitter` seconds longer, overtaken
    by those behind them where `reorders`, and one of `doubled` comes twice."""

    lost: int = 0
    burst: int = 1
    jitter: float = 0.0
    reorders: bool = True
    doubled: int = 0
    seed: int = 1

    def copies(self, number: int) -> tuple[float, ...]:
        """By how many seconds each copy of this packet is held up; none where it is lost."""
        if self.is_lost(number):
            return ()
        chance = random.Random(f"{self.seed} {number}")
        delay = self.jitter * chance.random()
        return (delay, delay + 0.005) if self.doubled and number % self.doubled == 1 else (delay,)

    def is_lost(self, number: int) -> bool:
        """In every hundred, at places that the seed chooses, never in its first ten."""
        hundred, place = divmod(number, 100)
        bursts = self.lost // self.burst
        starts = random.Random(f"{self.seed} {hundred}").sample(range(10, 100 - self.burst, self.burst + 1), bursts)
        return any(start <= place < start + self.burst for start in starts)


CALM = Trouble()


def is_media(data: bytes) -> bool:
    """RTP, not RTCP: RFC 7983, and RFC 5761, section 4."""
    return len(data) >= 12 and 128 <= data[0] <= 191 and not 64 <= data[1] & 0x7F <= 95


@dataclass(slots=True)
class Direction:
    """What one socket sent, and what became of it."""

    sent: list[tuple[int, int]] = field(default_factory=list)
    """Number, counted from the first, and timestamp of each RTP packet, in the order of sending."""
    lost: list[int] = field(default_factory=list)
    """Numbers of RTP packets."""
    cut: list[int] = field(default_factory=list)
    """Those that were still on their way when the socket was closed."""
    others: int = 0
    first_sequence: int | None = None
    free_at: float = 0.0
    """Where nothing is overtaken, nothing leaves before."""

    def fate(self, data: bytes, media: Trouble, others: Trouble) -> tuple[float, ...]:
        """By how many seconds each copy of this datagram is held up."""
        if not is_media(data):
            self.others += 1
            return others.copies(self.others)
        number = self.number(data)
        copies = media.copies(number)
        self.lost += [] if copies else [number]
        return copies

    def number(self, data: bytes) -> int:
        """Of an RTP packet that is sent; sequence numbers wrap around."""
        sequence, timestamp = struct.unpack("!HI", data[2:8])
        if self.first_sequence is None:
            self.first_sequence = sequence
        self.sent.append((self.place(sequence), timestamp))
        return self.sent[-1][0]

    def place(self, sequence: int) -> int:
        """The number of the packet with this sequence number, counted from the first that was sent."""
        assert self.first_sequence is not None, "nothing was sent"
        return (sequence - self.first_sequence) % STEPS


class Line:
    """All datagrams of this event loop's sockets, from when they are opened on. `media` and `others` may be changed at
    any time; with `first_lost` the first datagram of each kind is lost (the first byte tells which, RFC 7983: STUN
    requests and answers, DTLS handshake and data)."""

    def __init__(self, media: Trouble = CALM, others: Trouble = CALM, *, first_lost: bool = False) -> None:
        self.media, self.others = media, others
        self.first_lost: set[int] | None = set() if first_lost else None
        """The kinds of which one was lost."""
        self.talking = list[Direction]()
        """Those that sent media, the one that began first in front."""
        self.waiting = 0
        """Datagrams that are on their way."""

    @contextmanager
    def laid(self) -> Iterator[Line]:
        """Sockets that are opened on the running loop meanwhile send through it."""
        loop: Any = asyncio.get_running_loop()
        create = loop.create_datagram_endpoint

        async def create_impaired(*args: Any, **kwargs: Any) -> Any:
            transport, protocol = await create(*args, **kwargs)
            self._join(loop, transport)
            return transport, protocol

        loop.create_datagram_endpoint = create_impaired
        try:
            yield self
        finally:
            del loop.create_datagram_endpoint

    def _join(self, loop: asyncio.AbstractEventLoop, transport: Any) -> None:
        direction, send = Direction(), transport.sendto

        def arrive(data: bytes, address: Any) -> None:
            self.waiting -= 1
            if not transport.is_closing():
                send(data, address)
            elif is_media(data):
                direction.cut.append(direction.place(struct.unpack("!H", data[2:4])[0]))

        def sendto(data: bytes, address: Any = None) -> None:
            now = loop.time()
            for delay in self._fate(direction, bytes(data)):
                at = now + delay
                if not self.media.reorders:
                    at = direction.free_at = max(at, direction.free_at + 1e-6)  # the loop's timers are no queue
                self.waiting += 1
                loop.call_at(at, arrive, bytes(data), address)

        transport.sendto = sendto

    def _fate(self, direction: Direction, data: bytes) -> tuple[float, ...]:
        if is_media(data):
            self.talking += [] if direction.sent else [direction]
        elif self.first_lost is not None and data[0] not in self.first_lost:
            self.first_lost.add(data[0])
            return ()
        return direction.fate(data, self.media, self.others)
