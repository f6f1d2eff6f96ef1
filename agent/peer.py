"""One RTCPeerConnection's life: offer, answer, data channel, silence, end.

It does not know what is said: a Session does, and this wires it to the network. The label of the data channel says in
which protocol: our own, or that of OpenAI Realtime where somebody answers.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable

from aiortc import (
    RTCConfiguration,
    RTCDataChannel,
    RTCRtpSender,
    RTCSessionDescription,
)

from agent import realtime
from agent.closing import Connection
from agent.conversation import Conversation
from agent.offer import OfferError, usable
from agent.protocol import CHANNEL, ServerMessage, SpeechProgress, SpeechWaterfall, View, encode
from agent.realtime_dialect import RealtimeDialect
from agent.receive import Receiver
from agent.session import Session
from agent.wire import Wire, divert
from engine.clock import Clock

log = logging.getLogger(__name__)

PINGED_SILENCE = 4.5
"""Seconds without any datagram after which a client that pings every second is gone: within 5 s, with time to close."""
SILENCE = 9.5
"""The same for other clients, whose own checks come every few seconds (RFC 7675, section 5.1)."""
LOOK_SECONDS = 1.0
SHOWN = SpeechProgress | View | SpeechWaterfall
"""Of demo.state the newest counts, and no other follows: it is told."""
MAX_UNREAD_BYTES = 64 * 1024
"""Events that wait for a listener who does not take them; beyond it what only shows how a call goes is left out."""
MAX_WAITING_BYTES = 4 * 1024 * 1024
"""Beyond it the call ends: somebody asks and asks, and takes no answer."""


class Peer:
    """Connects one session. `closed` is called once, when everything that it held was given back.

    `hear` gets the caller's microphone, where one is offered; without it none is asked for.
    """

    def __init__(
        self,
        session: Session,
        clock: Clock,
        closed: Callable[[Peer, str], None],
        *,
        silence: float = SILENCE,
        pinged_silence: float = PINGED_SILENCE,
        hear: Receiver | None = None,
    ) -> None:
        self.session = session
        self._hear = hear
        self._clock, self._closed = clock, closed
        self._silence, self._pinged_silence = silence, pinged_silence
        # An empty list: left out, aiortc asks a public STUN server, and waits 5 s where there is none.
        self._connection = Connection(RTCConfiguration(iceServers=[]))
        self._channel: RTCDataChannel | None = None
        self._had_channel = False
        """One a call: what was agreed upon in the first would be forgotten in a second."""
        self._wire: Wire | None = None
        self._watch: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def answer(self, sdp: str) -> str:
        """The answer to an offer's SDP. Raises OfferError; the peer is then to be closed."""
        offer = usable(sdp)
        self._connection.on("datachannel", self._take_channel)
        self._connection.on("connectionstatechange", self._take_state)
        # Sending only, whatever is offered, where nobody hears: aiortc would decode it into a queue that nobody reads.
        direction = "sendonly" if self._hear is None else "sendrecv"
        transceiver = self._connection.addTransceiver(self.session.track, direction=direction)
        if self._hear is not None:
            divert(transceiver.receiver, self._hear.push)
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
        self.session.spoil = self._spoil
        self._watch = asyncio.create_task(self._watch_silence(self._wire))
        answer = str(self._connection.localDescription.sdp)
        return answer if self._hear is None else with_fec(answer)

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
        if self._hear is not None:
            self._hear.close()
        if self._watch is not None:
            self._watch.cancel()
        try:
            await self._connection.close()
        finally:
            self._closed(self, why)

    def _spoil(self, loss: float, jitter: float) -> None:
        self.session.loss, self.session.jitter = loss, jitter
        if self._wire is not None:
            self._wire.spoil(loss, jitter)

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
        partner = self.session.partner
        if self._had_channel:
            channel.close()
        elif channel.label == CHANNEL and not (isinstance(partner, Conversation) and partner.terms.fixed):
            self._keep(channel, self.session.receive)
            self.session.listen(self._send)
        elif channel.label == realtime.CHANNEL and isinstance(partner, Conversation):
            dialect = RealtimeDialect(self.session, partner, self._clock, self._send_text)
            self._keep(channel, dialect.receive)
            dialect.open()
        else:
            channel.close()

    def _keep(self, channel: RTCDataChannel, receive: Callable[[str | bytes], None]) -> None:
        self._channel, self._had_channel = channel, True
        channel.on("message", receive)
        channel.on("close", self._drop_channel)

    def _drop_channel(self) -> None:
        self._channel = None

    def _send(self, message: ServerMessage) -> None:
        unread = 0 if self._channel is None else self._channel.bufferedAmount
        if not (isinstance(message, SHOWN) and unread > MAX_UNREAD_BYTES):
            self._send_text(encode(message))

    def _send_text(self, text: str) -> None:
        channel = self._channel
        if channel is None or channel.readyState != "open":
            return
        if channel.bufferedAmount > MAX_WAITING_BYTES:
            self.end("takes no answers")
            return
        channel.send(text)


def with_fec(answer: str) -> str:
    """The answer, asking for in-band FEC (RFC 7587, section 6.1): a sender that hears of losses then sends each packet
    once more inside of the next one. aiortc's answer says nothing, which means no."""
    return re.sub(r"(a=rtpmap:(\d+) opus/48000/2\r\n)(?!a=fmtp)", r"\1a=fmtp:\2 useinbandfec=1\r\n", answer)
