"""Sees what arrives on a peer's sockets: when something came, how much lies unread, and the microphone's packets. And
can spoil what leaves them, for show.

It does not know what any of it means. It reaches below aiortc's interface, as closing.py and probe/network.py do:
neither aiortc nor aioice tells when something came (their own consent check takes 30 s to notice a silent peer, RFC
7675), so a tap is put between each socket and aioice with asyncio's own set_protocol. And aiortc decodes what it
receives itself, behind a jitter buffer of fixed length that stays late after a loss (aiortc#543), so its buffer is
replaced.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from aiortc import RTCPeerConnection, RTCRtpReceiver
from aiortc.rtcrtpparameters import RTCRtpReceiveParameters
from aiortc.rtp import RtpPacket

from engine.clock import Clock

MAX_SOURCES = 4
"""Senders that are kept account of; aiortc would keep one of every SSRC that a peer makes up, and report on all."""
MAX_JITTER_Q4 = 1 << 35
"""Half of what fits a report's 32 bits, in sixteenths (RFC 3550, section 6.4.1). A sender whose timestamps jump to and
fro makes it more; aiortc then fails to write the report, and waits for ever when the receiver is to stop."""
TakeRtp = Callable[[int, int, int, bytes], None]
"""SSRC, sequence number, timestamp, payload."""


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

    def spoil(self, loss: float, jitter: float) -> None:
        """From now on this share of the media packets is lost on the way, and each of the others comes up to `jitter`
        seconds late; none and 0 end it."""
        for transport in _ice_transports(self._connection):
            for protocol in transport._connection._protocols:
                if not isinstance(protocol.transport, Spoiled):
                    protocol.transport = Spoiled(protocol.transport)
                protocol.transport.loss, protocol.transport.jitter = loss, jitter

    def touch(self) -> None:
        self.last_at = self._clock.now()

    @property
    def overrun(self) -> bool:
        """Whether the peer sent more of an unfinished message than the window it was given: aiortc keeps it all."""
        sctp = self._connection.sctp
        return sctp is not None and sctp._advertised_rwnd < 0


class Spoiled:
    """A datagram transport with a bad network behind it. What is no RTP or RTCP is spared: else there is no call at all
    (first bytes 128 to 191: RFC 7983, section 7)."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.loss = self.jitter = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def sendto(self, data: bytes, addr: Any = None) -> None:
        if not (data and 128 <= data[0] <= 191 and (self.loss or self.jitter)):
            self._transport.sendto(data, addr)
        elif random.random() >= self.loss:
            asyncio.get_running_loop().call_later(random.random() * self.jitter, self._late, data, addr)

    def _late(self, data: bytes, addr: Any) -> None:
        if not self._transport.is_closing():
            self._transport.sendto(data, addr)


class Diversion:
    """Stands where a receiver has its jitter buffer, and hands every packet on; for aiortc no frame is ever complete.

    What comes before stays aiortc's: decryption, the choice by payload type, the counts for RTCP's receiver reports.
    """

    def __init__(self, receiver: RTCRtpReceiver, take: TakeRtp) -> None:
        self._receiver: Any = receiver
        self._take = take

    def add(self, packet: RtpPacket) -> tuple[bool, None]:
        """Whether a key frame is to be asked for, and the frame that is complete."""
        self._bound(packet.ssrc)
        self._take(packet.ssrc, packet.sequence_number, packet.timestamp, packet.payload)
        return False, None

    def _bound(self, ssrc: int) -> None:
        statistics = self._receiver._RTCRtpReceiver__remote_streams
        statistics[ssrc]._jitter_q4 = min(statistics[ssrc]._jitter_q4, MAX_JITTER_Q4)
        while len(statistics) > MAX_SOURCES:
            self._forget(next(iter(statistics)))

    def _forget(self, ssrc: int) -> None:
        receiver = self._receiver
        for table in ("remote_streams", "active_ssrc", "lsr", "lsr_time"):
            getattr(receiver, f"_RTCRtpReceiver__{table}").pop(ssrc, None)
        receiver.transport._rtp_router.ssrc_table.pop(ssrc, None)


def divert(receiver: RTCRtpReceiver, take: TakeRtp) -> None:
    """From now on `take` gets each RTP packet of the receiver, in the moment in which it comes.

    Neither aiortc's decoder nor its track gets any. The decoder's thread, which starts with the receiver, ends at once.
    To be called before the receiver starts, that is before the connection is negotiated.
    """
    inner: Any = receiver
    start = inner.receive
    inner._RTCRtpReceiver__jitter_buffer = Diversion(receiver, take)

    async def receive(parameters: RTCRtpReceiveParameters) -> None:
        await start(parameters)
        inner._RTCRtpReceiver__stop_decoder()

    inner.receive = receive


def _ice_transports(connection: RTCPeerConnection) -> set[Any]:
    carriers = {transceiver.sender.transport for transceiver in connection.getTransceivers()}
    if connection.sctp is not None:
        carriers.add(connection.sctp.transport)
    return {carrier.transport for carrier in carriers}
