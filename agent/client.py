"""A headless client: one call to a BreezeRT server, for programs that speak, listen and answer without a browser.

It does not know what is said or what becomes of the sound.

    async with Client.connect("http://127.0.0.1:8080") as call:
        spoken = await call.speak("Good morning!")
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec
import numpy as np
from aiortc import RTCBundlePolicy, RTCConfiguration, RTCRtpSender, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from numpy.typing import NDArray

from agent.allowance import Allowance
from agent.closing import Connection
from agent.dial import BusyError, ClientError, Line, RefusedError, UnreachableError
from agent.feed import Feed
from agent.hearing import RATE, Frame, Hearing, statistics
from agent.microphone import Microphone
from agent.protocol import (
    CHANNEL,
    ClientMessage,
    Ping,
    Pong,
    Say,
    ServerMessage,
    SessionCreated,
    SessionUpdate,
    Speak,
    Stop,
    TextAppend,
    TextDone,
    decode,
)
from agent.utterance import SpeechError, Spoken, Utterance
from agent.wire import Wire, divert
from engine.clock import Clock, MonotonicClock

__all__ = [
    "RATE",
    "BusyError",
    "Client",
    "ClientError",
    "Feed",
    "Frame",
    "LostError",
    "RefusedError",
    "SpeechError",
    "Spoken",
    "UnreachableError",
    "Utterance",
]

log = logging.getLogger(__name__)

WITHIN = 10.0
"""Seconds in which a call is to be connected."""
SILENCE = 4.5
"""Seconds without any datagram after which the server is gone: it sends a packet every 20 ms."""
PING_SECONDS = 1.0
HEARD_FRAMES = 250
"""That wait for a slow listener: 5 s."""
MESSAGES = 1000
"""That wait for a slow reader."""
MESSAGES_A_SECOND = 40.0
"""Below what a server takes, 50 a second and 100 at once: what it drops it answers to nobody in particular."""

Pcm = NDArray[np.int16]
M = TypeVar("M", bound=ServerMessage)
T = TypeVar("T")

_decoder = msgspec.json.Decoder(ServerMessage)


class LostError(ClientError):
    """The call is over: the server ended it or fell silent, or it was hung up here."""


class Client:
    """One call, from `connect` on. To be used on the event loop; every await may be cancelled.

    When the call ends, whatever is awaited on it raises LostError, `listen` and `events` too; after a `hang_up` of
    one's own those two just end.
    """

    def __init__(
        self, line: Line, clock: Clock, on_message: Callable[[ServerMessage], None] | None, silence: float
    ) -> None:
        """Use `connect`."""
        self.id = ""
        """The call's, as the server calls it: whoever has it may hang up."""
        self.round_trip: float | None = None
        """Seconds a message and its answer took last."""
        self._line, self._clock, self._on_message, self._silence = line, clock, on_message, silence
        configuration = RTCConfiguration(iceServers=[], bundlePolicy=RTCBundlePolicy.MAX_BUNDLE)
        self._connection = Connection(configuration)
        self._microphone = Microphone(clock)
        self._hearing = Hearing(clock, self._hear)
        self._transceiver = self._connection.addTransceiver(self._microphone, direction="sendrecv")
        codecs = RTCRtpSender.getCapabilities("audio").codecs
        self._transceiver.setCodecPreferences([codec for codec in codecs if codec.mimeType.lower() == "audio/opus"])
        divert(self._transceiver.receiver, self._hearing.push)
        self._channel = self._connection.createDataChannel(CHANNEL)
        self._channel.on("message", self._take)
        self._channel.on("close", self._take_close)
        self._connection.on("connectionstatechange", self._take_state)
        self._session: SessionCreated | None = None
        self._settled = asyncio.Event()
        """There is a session, or there will be none."""
        self._error: ClientError | None = None
        """Why the call is over."""
        self._hung_up = False
        self._wire: Wire | None = None
        self._allowance = Allowance(MESSAGES_A_SECOND, 2 * MESSAGES_A_SECOND)
        self._count = 0
        self._utterances: dict[str, Utterance] = {}
        """That are not over."""
        self._listeners = WeakSet[Feed[Frame]]()
        self._readers = WeakSet[Feed[ServerMessage]]()
        self._early: Feed[ServerMessage] | None = Feed(MESSAGES)
        """What was told before anybody asked for events."""
        self._waiting = list[tuple[type[Any], asyncio.Future[Any]]]()
        self._pinging: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def connect(
        cls,
        url: str,
        token: str | None = None,
        *,
        on_message: Callable[[ServerMessage], None] | None = None,
        tls: ssl.SSLContext | None = None,
        within: float = WITHIN,
        silence: float = SILENCE,
    ) -> AsyncGenerator[Client]:
        """A call to the server at `url`, such as http://127.0.0.1:8080 or https://example.org/voice; it ends with the
        block.

        `on_message` is called with everything that the server says, from its first message on. `tls` is for a server
        whose certificate is not publicly known. It is connected within so many seconds, and lost after `silence` of
        them without any packet. Raises RefusedError with status and reason, BusyError with `retry_after`,
        UnreachableError, and ValueError for an address that is not absolute.
        """
        line = Line(url, token, tls)
        try:
            call = cls(line, MonotonicClock(), on_message, silence)
        except BaseException:
            await line.close()
            raise
        try:
            await call._dial(within)
            yield call
        finally:
            await call.hang_up()

    # ---- speaking ---------------------------------------------------------------------------------------------

    @property
    def session(self) -> SessionCreated:
        """What the server said first: its voice, and how much it takes."""
        assert self._session is not None, "connect() returns when it is there"
        return self._session

    def speak(
        self,
        text: str,
        *,
        id: str | None = None,
        speaker: str | None = None,
        instruction: str | None = None,
        seed: int | None = None,
        temperature: float | None = None,
        language: str | None = None,
        voice: str | None = None,
        cfg_scale: float | None = None,
        open: bool = False,
    ) -> Utterance:
        """Has the text spoken, after whatever is queued; what is left out is the voice's own default. `open`: it is
        only the beginning, `append` goes on with it and `finish` ends it, where session.open_text.

        Raises LostError, ValueError for what the protocol does not take, and BusyError for more than MESSAGES_A_SECOND.
        """
        self._count += 1
        name = f"call-{self._count}" if id is None else id
        if name in self._utterances:
            raise ValueError(f"{name} is being said already")
        self._send_counted(
            Speak(
                id=name,
                text=text,
                speaker=speaker,
                instruction=instruction,
                seed=seed,
                temperature=temperature,
                language=language,
                voice=voice,
                cfg_scale=cfg_scale,
                open=open,
            )
        )
        utterance = self._utterances[name] = Utterance(name, text)
        return utterance

    def update(
        self,
        *,
        speaker: str | None = None,
        language: str | None = None,
        instruction: str | None = None,
        voice: str | None = None,
        cfg_scale: float | None = None,
    ) -> None:
        """How all is said from now on, replies too, unless a `speak` says otherwise; what is left out is as the server
        says everything. Raises as `speak`."""
        self._send_counted(
            SessionUpdate(speaker=speaker, language=language, instruction=instruction, voice=voice, cfg_scale=cfg_scale)
        )

    def append(self, utterance: Utterance, text: str) -> None:
        """More of the text of an utterance that is open. Raises as `speak`."""
        self._send_counted(TextAppend(id=utterance.id, text=text))
        utterance.text += text

    def finish(self, utterance: Utterance) -> None:
        """Its text is complete. Raises as `speak`."""
        self._send_counted(TextDone(id=utterance.id))

    def say(self, text: str) -> None:
        """A turn of the user's that is typed: the server's brain answers it, and events tell what. Raises as `speak`.

        To wait for the end of the answer, `await call.told(ReplyEnded)`.
        """
        self._send_counted(Say(text=text))

    def stop(self) -> None:
        """Interrupts: the server falls silent at once and forgets what is queued. Raises LostError.

        Utterances that were cut end with the reason `cancelled`, and know what was heard of them.
        """
        self._send(Stop())

    async def send_microphone(self, pcm: Pcm | Iterable[Pcm] | AsyncIterable[Pcm], rate: int = RATE) -> None:
        """Speaks into the call: int16 [samples], mono, at 16, 24 or 48 kHz; an array, or an iterator of them.

        Returns when all but 100 ms of it were sent, in real time; then silence is sent. One may speak at a time. Raises
        LostError, RefusedError where the server does not listen, TypeError and ValueError. Cancelled, it takes no more;
        what waits to be sent still is.
        """
        if self._transceiver.currentDirection != "sendrecv":
            self._check()
            raise RefusedError("this server does not listen: it needs a brain and --vad", 200, "not_listening")
        try:
            if isinstance(pcm, AsyncIterable):
                async for samples in pcm:
                    await self._microphone.speak(samples, rate)
            else:
                for samples in [pcm] if isinstance(pcm, np.ndarray) else pcm:
                    await self._microphone.speak(samples, rate)
        except MediaStreamError:
            raise self._error or LostError("the call is over") from None

    # ---- listening --------------------------------------------------------------------------------------------

    def listen(self) -> Feed[Frame]:
        """What is heard from now on, silence too: `async for frame in call.listen()`, 20 ms each at 48 kHz.

        250 of them (5 s) wait for a slow listener; then the oldest give way, which `dropped` counts. Each call of it
        gives a listener of its own.
        """
        listener: Feed[Frame] = Feed(HEARD_FRAMES)
        self._join(self._listeners, listener)
        return listener

    def events(self) -> Feed[ServerMessage]:
        """All that the server says: `async for message in call.events()`, with classes of agent.protocol.

        The first reader gets everything from the first message on, a later one what comes from now on. 1000 of them
        wait for a slow reader; then the oldest give way, which `dropped` counts.
        """
        reader: Feed[ServerMessage] = Feed(MESSAGES) if self._early is None else self._early
        self._early = None
        self._join(self._readers, reader)
        return reader

    async def told(self, kind: type[M]) -> M:
        """The next message of this class that comes. Raises LostError."""
        self._check()
        future: asyncio.Future[M] = asyncio.get_running_loop().create_future()
        entry = (kind, future)
        self._waiting.append(entry)
        try:
            return await future
        finally:
            self._waiting.remove(entry)

    @property
    def lost(self) -> ClientError | None:
        """Why the call is over; None while it is not."""
        return self._error

    async def hang_up(self) -> None:
        """Ends the call and gives everything back; may be called again. Cancelled, it is done all the same, first."""
        self._hung_up = True
        self._end(LostError("the call was hung up"))
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await settled(self._closing)

    # ---- the connection ---------------------------------------------------------------------------------------

    async def _dial(self, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                await settled(self._connection.setLocalDescription())
                answer = await self._line.offer(self._connection.localDescription.sdp)
                self.id = answer.call_id
                await self._apply(answer.sdp)
                await self._settled.wait()
        except TimeoutError:
            what = "no packets come through: is UDP blocked?" if self.id else "the server does not answer"
            raise UnreachableError(f"not connected within {within:g} s; {what}") from None
        self._check()
        self._pinging = asyncio.create_task(self._keep_alive())

    async def _apply(self, sdp: str) -> None:
        try:
            await settled(self._connection.setRemoteDescription(RTCSessionDescription(sdp, "answer")))
        except Exception as error:  # whatever is wrong with it: the parser asserts, indexes and looks up
            raise RefusedError(f"the server's answer cannot be applied: {type(error).__name__} {error}", 200) from error
        self._wire = Wire(self._connection, self._clock)

    async def _keep_alive(self) -> None:
        """Pings, reports what the receiver knows, and notices when nothing comes any more."""
        assert self._wire is not None
        while self._error is None:
            silent = self._clock.now() - self._wire.last_at
            if silent >= self._silence:
                self._end(LostError(f"the server fell silent: no packet for {silent:.1f} s"))
                return
            self._tell(Ping(t=self._clock.now()))
            self._tell(await statistics(self._transceiver.receiver, self._hearing, self.round_trip))
            await asyncio.sleep(min(PING_SECONDS, self._silence - silent))

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _send_counted(self, message: ClientMessage) -> None:
        decode(msgspec.json.encode(message))  # as the server will: an error of its would name no utterance
        self._check()
        wait = self._allowance.take("", self._clock.now())
        if wait > 0:
            raise BusyError(f"more than {MESSAGES_A_SECOND:.0f} messages a second: send them later", wait)
        self._tell(message)

    def _send(self, message: ClientMessage) -> None:
        self._check()
        self._tell(message)

    def _tell(self, message: ClientMessage) -> None:
        if self._channel.readyState == "open":
            self._channel.send(msgspec.json.encode(message).decode())

    def _hear(self, frame: Frame) -> None:
        for listener in self._listeners:
            listener.push(frame)

    def _take(self, data: str | bytes) -> None:
        try:
            message = _decoder.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:  # a newer server's: the call goes on without it
            log.debug("a message was not understood: %s", error)
            return
        self._note(message)
        if self._early is not None:
            self._early.push(message)
        for reader in self._readers:
            reader.push(message)
        for kind, future in self._waiting:
            if isinstance(message, kind) and not future.done():
                future.set_result(message)
        if self._on_message is not None:
            self._call_back(self._on_message, message)

    def _note(self, message: ServerMessage) -> None:
        """What it means for the call and for its utterances."""
        match message:
            case SessionCreated():
                self._session = message
                self._settled.set()
            case Pong(t=t) if t is not None:
                self.round_trip = self._clock.now() - t
        utterance = self._utterances.get(getattr(message, "id", None) or "")
        if utterance is not None:
            utterance.take(message)
            if utterance.over:
                del self._utterances[utterance.id]

    def _call_back(self, callback: Callable[[ServerMessage], None], message: ServerMessage) -> None:
        try:
            callback(message)
        except Exception:
            log.exception("on_message failed")

    def _take_close(self) -> None:
        self._end(LostError("the server ended the call"))

    def _take_state(self) -> None:
        state = self._connection.connectionState
        if state in ("failed", "closed"):
            known = self._session is not None
            text = "the server ended the call" if state == "closed" else "the connection broke"
            self._end(LostError(text) if known else UnreachableError("no packets come through: is UDP blocked?"))

    def _end(self, error: ClientError) -> None:
        """The call is over; the first reason counts."""
        if self._error is not None:
            return
        self._error = error
        self._settled.set()
        for utterance in self._utterances.values():
            utterance.fail(error)
        self._utterances.clear()
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        feeds: list[Feed[Any] | None] = [*self._listeners, *self._readers, self._early]
        for feed in feeds:
            if feed is not None:
                feed.end(None if self._hung_up else error)
        self._microphone.stop()

    def _join(self, feeds: WeakSet[Feed[T]], feed: Feed[T]) -> None:
        feeds.add(feed)
        if self._error is not None:
            feed.end(None if self._hung_up else self._error)

    async def _close(self) -> None:
        self._hearing.close()
        if self._pinging is not None:
            self._pinging.cancel()
            await asyncio.wait([self._pinging])
        try:
            if self.id:
                await self._line.hang_up(self.id)
            await self._connection.close()
        finally:
            await self._line.close()


async def settled(work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
    """Its result. Cancelled meanwhile, it is done first, and then this is cancelled: aiortc leaves open what it is
    interrupted in."""
    task = work if isinstance(work, asyncio.Task) else asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # was looked at
        raise cancelled
    return task.result()
