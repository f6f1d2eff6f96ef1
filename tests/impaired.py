"""The probe's network in trouble (agent/probe/network.py), for both ends of a call that share an event loop.

There the sockets of one connection are told apart; here those are taken that the loop opens, whoever's they are.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agent.probe.network import CALM, Trouble, Way, is_media
from agent.probe.network import Direction as Plain

__all__ = ["CALM", "Direction", "Line", "Trouble"]


@dataclass(slots=True)
class Direction(Plain):
    """One that keeps what became of each packet."""

    sent: list[tuple[int, int]] = field(default_factory=list)
    """Number, counted from the first, and timestamp of each RTP packet, in the order of sending."""
    lost: list[int] = field(default_factory=list)
    """Numbers of RTP packets."""
    cut: list[int] = field(default_factory=list)
    """Those that were still on their way when the socket was closed."""

    def fate(self, data: bytes, media: Trouble, others: Trouble) -> tuple[float, ...]:
        copies = Plain.fate(self, data, media, others)  # slots make a new class, which super() without words misses
        if is_media(data):
            sequence, timestamp = struct.unpack("!HI", data[2:8])
            self.sent.append((self.place(sequence), timestamp))
            self.lost += [] if copies else [self.place(sequence)]
        return copies


class Line:
    """All datagrams of this event loop's sockets, from when they are opened on; with `first_lost` the first datagram of
    each kind is lost (the first byte tells which, RFC 7983: STUN requests and answers, DTLS handshake and data)."""

    def __init__(self, media: Trouble = CALM, others: Trouble = CALM, *, first_lost: bool = False) -> None:
        self.first_lost: set[int] | None = set() if first_lost else None
        """The kinds of which one was lost."""
        self.talking = list[Direction]()
        """Those that sent media, the one that began first in front."""
        self._media, self._others, self._ways = media, others, list[Way]()

    @property
    def waiting(self) -> int:
        """Datagrams that are on their way."""
        return sum(way.waiting for way in self._ways)

    @contextmanager
    def laid(self) -> Iterator[Line]:
        """Sockets that are opened on the running loop meanwhile send through it."""
        loop: Any = asyncio.get_running_loop()
        create = loop.create_datagram_endpoint

        async def create_impaired(*args: Any, **kwargs: Any) -> Any:
            transport, protocol = await create(*args, **kwargs)
            self._join(transport)
            return transport, protocol

        loop.create_datagram_endpoint = create_impaired
        try:
            yield self
        finally:
            del loop.create_datagram_endpoint

    def _join(self, transport: Any) -> None:
        send = transport.sendto

        def arrive(data: bytes, address: Any) -> None:
            if not transport.is_closing():
                send(data, address)
            elif is_media(data):
                direction.cut.append(direction.place(struct.unpack("!H", data[2:4])[0]))

        def sendto(data: bytes, address: Any = None) -> None:
            if not self._is_first(data):
                self.talking += [direction] if is_media(data) and not direction.sent else []
                way.send(bytes(data), address)

        way = Way(arrive, self._media, self._others)
        way.direction = direction = Direction()
        self._ways.append(way)
        transport.sendto = sendto

    def _is_first(self, data: bytes) -> bool:
        """Whether it is the first datagram of its kind, and is to be lost."""
        if self.first_lost is None or is_media(data) or data[0] in self.first_lost:
            return False
        self.first_lost.add(data[0])
        return True
