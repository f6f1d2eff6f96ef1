"""One RTCPeerConnection's life: offer, answer, data channel, silence, end.

It does not know what is said: a Session does, and this wires it to the network.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aiortc import (
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCRtpSender,
    RTCSessionDescription,
)

from agent.offer import OfferError, usable
from agent.protocol import CHANNEL, ServerMessage, SpeechProgress, encode
from agent.session import Session
from agent.wire import Wire
from engine.clock import Clock

log = logging.getLogger(__name__)

PINGED_SILENCE = 4.5
"""Seconds without any datagram after which a client that pings every second is gone: within 5 s, with time to close."""
SILENCE = 9.5
"""The same for other clients, whose own checks come every few seconds (RFC 7675, section 5.1)."""
LOOK_SECONDS = 1.0
MAX_UNREAD_BYTES = 64 * 1024
"""Events that wait for a listener who does not take them; beyond it progress is not reported."""


class Peer:
    """Connects one session. `closed` is called once, when everything that it held was given back."""

    def __init__(
        self,
        session: Session,
        clock: Clock,
        closed: Callable[[Peer, str], None],
        *,
        silence: float = SILENCE,
        pinged_silence: float = PINGED_SILENCE,
    ) -> None:
        self.session = session
        self._clock, self._closed = clock, closed
        self._silence, self._pinged_silence = silence, pinged_silence
        # An empty list: left out, aiortc asks a public STUN server, and waits 5 s where there is none.
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._channel: RTCDataChannel | None = None
        self._wire: Wire | None = None
        self._watch: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def answer(self, sdp: str) -> str:
        """The answer to an offer's SDP. Raises OfferError; the peer is then to be closed."""
        offer = usable(sdp)
        self._connection.on("datachannel", self._take_channel)
        self._connection.on("connectionstatechange", self._take_state)
        # Sending only, whatever is offered: aiortc would decode inbound audio into a queue that nobody reads.
        transceiver = self._connection.addTransceiver(self.session.track, direction="sendonly")
        codecs = RTCRtpSender.getCapabilities("audio").codecs
        transceiver.setCodecPreferences([codec for codec in codecs if codec.mimeType.lower() == "audio/opus"])
        try:
            await self._connection.setRemoteDescription(RTCSessionDescription(offer, "offer"))
            await self._connection.setLocalDescription()
        except Exception as error:  # whatever the checks in offer.py let through is still the offer's fault
            raise OfferError(f"the offer cannot be applied: {type(error).__name__} {error}".rstrip()) from error
        self._wire = Wire(self._connection, self._clock)
        if not self._wire.num_sockets:
            raise OfferError("this machine has no network address to answer with: connect it to a network")
        self._watch = asyncio.create_task(self._watch_silence(self._wire))
        return str(self._connection.localDescription.sdp)

    async def close(self, why: str) -> None:
        """Gives everything back; may be called again, and returns when it is done."""
        await asyncio.shield(self.end(why))

    def end(self, why: str) -> asyncio.Task[None]:
        """Starts to close, once, from where nothing can be awaited."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(why))
        return self._closing

    async def _close(self, why: str) -> None:
        log.info("call %s ends: %s", self.session.id[:6], why)
        self.session.close()
        if self._watch is not None:
            self._watch.cancel()
        try:
            await self._connection.close()
        finally:
            self._closed(self, why)

    def _take_state(self) -> None:
        state = self._connection.connectionState
        if state in ("failed", "closed"):
            self.end("hung up" if state == "closed" else "connection failed")

    async def _watch_silence(self, wire: Wire) -> None:
        """Ends the call when nothing came for too long. Looks every second, because the first ping shortens that."""
        while not wire.overrun:
            patience = self._pinged_silence if self.session.pinged else self._silence
            remaining = wire.last_at + patience - self._clock.now()
            if remaining <= 0:
                self.end("vanished")
                return
            await asyncio.sleep(min(remaining, LOOK_SECONDS))
        self.end("overran its window")

    def _take_channel(self, channel: RTCDataChannel) -> None:
        if channel.label != CHANNEL or self._channel is not None:
            channel.close()
            return
        self._channel = channel
        channel.on("message", self.session.receive)
        channel.on("close", self._drop_channel)
        self.session.listen(self._send)

    def _drop_channel(self) -> None:
        self._channel = None

    def _send(self, message: ServerMessage) -> None:
        channel = self._channel
        if channel is None or channel.readyState != "open":
            return
        if isinstance(message, SpeechProgress) and channel.bufferedAmount > MAX_UNREAD_BYTES:
            return
        channel.send(encode(message))
