"""Sees what arrives on a peer's sockets: when the last datagram came, and how much lies unread.

It does not know what a datagram means. It is the only file that reaches below aiortc's interface: neither aiortc nor
aioice tells when something came (their own consent check takes 30 s to notice a silent peer, RFC 7675), so a tap is
put between each socket and aioice with asyncio's own set_protocol.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiortc import RTCPeerConnection

from engine.clock import Clock


class Tap(asyncio.DatagramProtocol):
    """Passes everything on, and notes the instant of each datagram in its wire."""

    def __init__(self, wire: Wire, behind: asyncio.DatagramProtocol) -> None:
        self._wire, self._behind = wire, behind

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        self._wire.touch()
        self._behind.datagram_received(data, addr)

    def error_received(self, exc: Exception) -> None:
        self._behind.error_received(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self._behind.connection_lost(exc)


class Wire:
    """The sockets of a connection whose candidates are gathered."""

    def __init__(self, connection: RTCPeerConnection, clock: Clock) -> None:
        self._connection, self._clock = connection, clock
        self.last_at = clock.now()
        """The instant of the last datagram of any kind: STUN, DTLS, RTP or RTCP."""
        self.num_sockets = 0
        for transport in _ice_transports(connection):
            for protocol in transport._connection._protocols:
                protocol.transport.set_protocol(Tap(self, protocol))
                self.num_sockets += 1

    def touch(self) -> None:
        self.last_at = self._clock.now()

    @property
    def overrun(self) -> bool:
        """Whether the peer sent more of an unfinished message than the window it was given: aiortc keeps it all."""
        sctp = self._connection.sctp
        return sctp is not None and sctp._advertised_rwnd < 0


def _ice_transports(connection: RTCPeerConnection) -> set[Any]:
    carriers = {transceiver.sender.transport for transceiver in connection.getTransceivers()}
    if connection.sctp is not None:
        carriers.add(connection.sctp.transport)
    return {carrier.transport for carrier in carriers}
