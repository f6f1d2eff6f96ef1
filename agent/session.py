"""One conversation: what a client asks for goes to the engine, what the engine makes goes to the track and is reported.

It does not know how it is connected: messages come in decoded or as text, and go out through a callable.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Protocol

import msgspec

from agent.allowance import Allowance
from agent.asking import check_manner, to_request, unsayable
from agent.listener import ListenerReports
from agent.manner import Manner
from agent.metrics import AgentMetrics
from agent.opus import BIT_RATE, OpusEncoder
from agent.playout import Cue, CueKind, Packet, PlayoutBuffer
from agent.protocol import (
    MAX_REASON_CHARS,
    ClientMessage,
    Demo,
    DemoState,
    Error,
    Ping,
    Pong,
    ProtocolError,
    Say,
    ServerMessage,
    SessionCreated,
    SessionUpdate,
    Speak,
    SpeechQueued,
    SpeechStopped,
    SpeechUnderrun,
    Stats,
    Stop,
    TextAppend,
    TextDone,
    VoiceCreate,
    Watch,
    decode,
)
from agent.saying import Utterance
from agent.scene import Scene
from agent.sight import Peer, Sight, Steps
from agent.silencing import Silencing
from agent.track import SpeechTrack
from agent.voice_making import VoiceMaking
from agent.voices import Voices, found
from engine.checks import RequestError
from engine.clock import Clock
from engine.core import (
    Chunk,
    End,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    Mode,
    ModelSpec,
    Output,
    Playhead,
    Queued,
    Request,
)
from engine.messages import PATIENCE

log = logging.getLogger(__name__)

MAX_QUEUED = 8
LOOKAHEAD = 2
"""Utterances of a session that are in the engine at once: one that plays and the next. Those behind it wait here, so
that a long queue takes no other session's place and an interruption wastes little."""
PLAYHEAD_SECONDS = 0.15
PROGRESS_SECONDS = 0.2
MESSAGES_A_SECOND = 50.0
MAX_SAID_CHARS = 4000
"""Of a turn that is typed."""
MAX_UNSENT = 32
"""Messages kept for a client whose data channel is not open yet; media may flow earlier. The oldest give way."""
OVER = "the call is over"
FAILED = "failed"
"""The reason of speech.stopped after an error."""
FIELDS = {"reference": "voice", "reference text": "voice"}
"""What the engine calls a field, and what a message does."""
NO_MORE_TEXT = f"takes no more text: it is over, or not open, or nothing came of it for {PATIENCE:g} s"


class Partner(Protocol):
    """Who answers in a session: what it is told, on the event loop."""

    def begin(self) -> None:
        """The client is there."""
        ...

    def say(self, text: str) -> None:
        """The user has typed a turn."""
        ...

    def take_stopped(self, stopped: SpeechStopped) -> None:
        """An utterance is over."""
        ...

    def take_cut(self) -> None:
        """All was silenced."""
        ...

    def take_packet(self, packet: Packet) -> None:
        """This was handed over just now."""
        ...

    def close(self) -> None:
        """The call is over."""
        ...


class Stage(Protocol):
    """What a session needs of a server that is started for show (demo.Demonstration)."""

    def state(self, session: Session) -> DemoState: ...
    def change(self, session: Session, wanted: Demo) -> None: ...
    def record(self, request_id: int, request: Request, end: Finished) -> None: ...


class Watcher(Protocol):
    """Who follows a session: what it is told, on the event loop. It must not raise, and acts on the session later."""

    def take(self, message: ServerMessage) -> None:
        """The session says this, whether a client is there or not."""
        ...

    def end(self) -> None:
        """The call is over."""
        ...


class Engine(Protocol):
    """What a session needs of engine.runtime.Runtime."""

    @property
    def spec(self) -> ModelSpec: ...
    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int: ...
    def append_text(self, request_id: int, text: str) -> None: ...
    def end_text(self, request_id: int, text: str = "") -> None: ...
    def cancel(self, request_id: int) -> None: ...
    def playhead(self, event: Playhead) -> None: ...
    def snapshot(self) -> Mapping[str, float]: ...


class Session:
    """Takes client messages, keeps the order of utterances, and answers with server messages through `send`.

    To be used on the event loop that it was made on. Every utterance that is accepted ends with exactly one
    speech.stopped; one that fails gets an error before it; one that is refused gets an error only.
    """

    def __init__(
        self,
        session_id: str,
        engine: Engine,
        executor: Executor,
        clock: Clock,
        metrics: AgentMetrics,
        *,
        max_queued: int = MAX_QUEUED,
        bit_rate: int = BIT_RATE,
        voices: Voices | None = None,
    ) -> None:
        self.id = session_id
        self.usual = self.manner = Manner()
        """How all is said in every call of the server; and in this one, unless a message says otherwise."""
        self._voices = voices
        self._making = VoiceMaking(voices, self.send, self.report) if voices is not None else None
        self._unsent: deque[ServerMessage] = deque(maxlen=MAX_UNSENT)
        self._out: Callable[[ServerMessage], None] = self._unsent.append
        self._watchers = list[Watcher]()
        self.partner: Partner | None = None
        """Who answers here, if anybody does."""
        self.scene: Scene | None = None
        """Shows its client how it is served, if that is asked for."""
        self.demo: Stage | None = None
        self.number, self.synthetic = 0, False
        self.loss = self.jitter = 0.0
        """Trouble on the way to the listener, for show: a share, and seconds."""
        self.spoil: Callable[[float, float], None] = self._note_trouble
        self._sight: Sight | None = None
        self.pinged = False
        self._engine, self._clock, self._metrics, self._max_queued = engine, clock, metrics, max_queued
        self._loop = asyncio.get_running_loop()
        self._rate = engine.spec.sample_rate
        self._buffer = PlayoutBuffer(self._rate)
        self.track = SpeechTrack(self._buffer, OpusEncoder(self._rate, bit_rate), executor, clock, self._packet_sent)
        self._live: dict[str, Utterance] = {}
        self._said: int | None = None
        """The engine's number of the last utterance that was heard to its end: what comes soon continues it."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusing: str | None = None
        self._allowance = Allowance(MESSAGES_A_SECOND, 2 * MESSAGES_A_SECOND)
        self._flooded = False
        self._event: str | None = None
        """The type of the client's message that is being handled."""
        self._stalls, self._behind = 0, 0.0
        self._listener = ListenerReports()
        self._playhead_at = self._progress_at = float("-inf")
        self._playing: str | None = None
        """The utterance that played through the end of the last packet."""
        self._silencing: Silencing | None = None
        """Asked for, and not sent yet."""

    # ---- from the client --------------------------------------------------------------------------------------

    def listen(self, send: Callable[[ServerMessage], None]) -> None:
        """From now on messages go to `send`: first what the voice can do, then what was to be told before."""
        self._out = send
        self._introduce()
        while self._unsent:
            send(self._unsent.popleft())
        if self.partner:
            self.partner.begin()

    def send(self, message: ServerMessage) -> None:
        """Tells the client, and whoever watches."""
        self._out(message)
        for watcher in self._watchers:
            watcher.take(message)

    def watch(self, watcher: Watcher) -> None:
        """From now on the watcher is told what the client is told, and the end of the call, once."""
        if self._refusing == OVER:
            watcher.end()
        else:
            self._watchers.append(watcher)

    def _introduce(self) -> None:
        spec = self._engine.spec
        created = SessionCreated(
            id=self.id,
            voice=spec.name,
            licence=spec.licence,
            sample_rate=spec.sample_rate,
            modes=tuple(sorted(spec.modes)),
            max_text_chars=spec.max_text_chars,
            max_queued=self._max_queued,
            speakers=spec.speakers,
            voices=self._voices.names if self._voices is not None else (),
            open_text=spec.open_text,
            languages=spec.languages,
            recordings=self._making is not None and spec.encodes and Mode.CLONE in spec.modes,
        )
        self.send(created)
        if self.demo is not None:
            self.send(self.demo.state(self))

    def receive(self, data: str | bytes) -> None:
        """One message from the data channel. What cannot be taken is answered with an error event.

        A stop is never dropped for coming too fast: silence costs nothing.
        """
        if self._refusing == OVER:
            return
        try:
            message = decode(data)
        except ProtocolError as error:
            if not self._too_fast():
                self.report(Error(code=ErrorCode.BAD_REQUEST, message=str(error), event=error.event, field=error.field))
            return
        self._event = str(message.__struct_config__.tag)
        try:
            if isinstance(message, Stop) or not self._too_fast():
                self._handle(message)
        except Exception:  # aiortc would end the whole call
            log.exception("a message could not be taken")
            self._error(ErrorCode.BAD_REQUEST, "this could not be done: the server's log says why")
        finally:
            self._event = None

    def _too_fast(self) -> bool:
        """Takes one from the allowance; says once that messages are being dropped."""
        flooded = self._allowance.take("", self._clock.now()) > 0
        if flooded and not self._flooded:
            self._error(ErrorCode.BUSY, f"more than {MESSAGES_A_SECOND:.0f} messages a second: some were dropped")
        self._flooded = flooded
        return flooded

    def _handle(self, message: ClientMessage) -> None:
        match message:
            case Speak():
                self.speak(message)
            case SessionUpdate():
                self._change_manner(message)
            case TextAppend():
                self._append(message)
            case TextDone():
                self._finish(message)
            case VoiceCreate():
                self._create_voice(message)
            case Stop():
                self.stop()
            case Say():
                self._say(message)
            case Stats():
                self._listener.take(message)
            case Watch(on=on):
                self._watch(on)
            case Demo():
                self._demonstrate(message)
            case Ping(t=t):
                self.pinged = True
                self.send(Pong(t=t))

    def _change_manner(self, update: SessionUpdate) -> None:
        manner = self.usual.of(update)
        try:
            found(self._voices, manner.voice)
            check_manner(manner, self._engine.spec)
        except RequestError as error:
            message = str(error)[:MAX_REASON_CHARS]
            self.report(Error(code=ErrorCode.BAD_REQUEST, message=message, field=error.field))
        else:
            self.manner = manner

    def _create_voice(self, create: VoiceCreate) -> None:
        if self._making is None:
            message = "voices cannot be made here"
            self.report(Error(code=ErrorCode.BAD_REQUEST, message=message, id=create.id, field="type"))
        else:
            self._making.take(create)

    def _watch(self, on: bool) -> None:
        """The client wants to see how it is served, or not any more."""
        self._sight = Sight(self._engine.spec.samples_per_frame) if on else None
        if on and self.scene is not None:
            self.scene.watch()

    def _demonstrate(self, wanted: Demo) -> None:
        if self.demo is None:
            message = "this server is not for show: start it with serve --demo"
            self.report(Error(code=ErrorCode.BAD_REQUEST, message=message, field="type"))
        else:
            self.demo.change(self, wanted)

    def _note_trouble(self, loss: float, jitter: float) -> None:
        self.loss, self.jitter = loss, jitter

    @property
    def watched(self) -> bool:
        """The client wants to be shown how it is served."""
        return self._sight is not None

    @property
    def buffered(self) -> float:
        """Seconds of speech that are ready."""
        return self._buffer.buffered

    def show(self, steps: Steps, peers: Sequence[Peer]) -> None:
        """Tells a client that watches what happened since the last time; the steps are the engine's."""
        if self._sight is not None:
            heard, now = self._buffer.heard(self._playing or "") / self._rate, self._clock.now()
            others = peers if self.demo is not None else ()  # who else calls, and when, is not everybody's to know
            for message in self._sight.told(now, heard, self.buffered, self._playing, steps, others):
                self.send(message)

    def _say(self, say: Say) -> None:
        """A turn that was typed."""
        if self.partner is None:
            message = "nobody answers here: have the text spoken with speak, or start the server with a brain"
            self.report(Error(code=ErrorCode.BAD_REQUEST, message=message, field="type"))
        elif not 0 < len(say.text.strip()) <= MAX_SAID_CHARS:
            message = f"a turn has 1 to {MAX_SAID_CHARS} characters, this one has {len(say.text)}"
            self.report(Error(code=ErrorCode.BAD_REQUEST, message=message, field="text"))
        else:
            self.partner.say(say.text)

    def speak(self, speak: Speak) -> bool:
        """Says it after what is queued, or answers with an error event: false."""
        if problem := self._problem(speak):
            self.report(problem)
            return False
        try:
            manner = self.manner.of(speak)
            reference = found(self._voices, manner.voice)
            request = to_request(speak, manner, self._engine.spec, reference, self._buffer.epoch)
        except RequestError as error:
            message = str(error)[:MAX_REASON_CHARS]
            self.report(Error(code=ErrorCode.BAD_REQUEST, message=message, id=speak.id, field=error.field))
            return False
        self._live[speak.id] = Utterance(
            speak,
            request,
            self._rate,
            "" if speak.open else self._engine.spec.normalise,
            self._clock.now(),
            bool(self._live),
            self._event,
        )
        self._idle.clear()
        self._buffer.enqueue(speak.id)
        self._submit_waiting()
        return True

    def speak_as(self, name: str) -> None:
        """From now on as the speaker, or like the voice, that is called so; as usual where nobody is."""
        if name in self._engine.spec.speakers:
            self.manner = msgspec.structs.replace(self.usual, speaker=name)
        elif self._voices is not None and self._voices.has(name):
            self.manner = msgspec.structs.replace(self.usual, voice=name)
        else:
            self.manner = self.usual

    @property
    def speaks_while_written(self) -> bool:
        """Whether replies are best opened: like a recording, speech waits for as much text as that has frames."""
        return self.open_text and not self.manner.voice

    @property
    def open_text(self) -> bool:
        """Whether the voice can say a text while that is being written."""
        return self._engine.spec.open_text

    def append(self, utterance_id: str, text: str) -> bool:
        """More of the text of an utterance that is open; false where it is not, or would be too long, or where the
        voice has ended it by itself."""
        utterance, most = self._live.get(utterance_id), self._engine.spec.max_text_chars
        if utterance is None or not utterance.writing or len(utterance.text) + len(text) > most:
            return False
        if utterance.text and utterance.text_event != self._event:
            utterance.text_event = None
        else:
            utterance.text_event = self._event
        utterance.text += text
        return self._write(utterance, text)

    def finish(self, utterance_id: str) -> None:
        """The text of an utterance is complete. Nothing happens if it is over, or was."""
        utterance = self._live.get(utterance_id)
        if utterance is not None and utterance.writing:
            utterance.writing = False
            self._write(utterance, "")

    def _append(self, message: TextAppend) -> None:
        if self.append(message.id, message.text):
            return
        utterance, most = self._live.get(message.id), self._engine.spec.max_text_chars
        if utterance is not None and utterance.writing:
            self._refuse_text(message, ErrorCode.TOO_LONG, f"would have more than {most} characters with this", "text")
        else:
            self._refuse_text(message, ErrorCode.BAD_REQUEST, NO_MORE_TEXT, "id")

    def _finish(self, message: TextDone) -> None:
        if (utterance := self._live.get(message.id)) is None or not utterance.writing:
            self._refuse_text(message, ErrorCode.BAD_REQUEST, NO_MORE_TEXT, "id")
        else:
            self.finish(message.id)

    def _refuse_text(self, message: TextAppend | TextDone, code: ErrorCode, why: str, field: str) -> None:
        """Without `id`: an utterance of that id goes on."""
        self.report(Error(code=code, message=f"{message.id} {why}", field=field))

    def _write(self, utterance: Utterance, text: str) -> bool:
        """Hands on what has come of its text; or keeps it, for an utterance that waits here. False where the engine
        has ended it."""
        if utterance.request_id is None:
            utterance.request = replace(utterance.request, text=utterance.text)
            return True
        try:
            if utterance.writing:
                self._engine.append_text(utterance.request_id, text)
            else:
                self._engine.end_text(utterance.request_id)
        except RequestError as error:
            log.debug("%s has just ended: %s", utterance.id, error)
            utterance.text, utterance.writing = utterance.text.removesuffix(text), False
            return False
        return True

    def pause(self, noticed_at: float | None = None) -> None:
        """Stands still with the next packet, until `resume` or `stop`. `noticed_at`: since when somebody speaks."""
        asked_at = self._clock.now()
        self.track.pause()
        self._fall_silent(asked_at, noticed_at)

    def resume(self) -> None:
        """Goes on where it stood still."""
        self._silencing = None
        self.track.resume()

    def stop(self) -> None:
        """Falls silent with the next packet and forgets the queue. What was heard of it is told."""
        asked_at = self._clock.now()
        sent = self.track.flush(self._buffer.epoch + 1)
        self._fall_silent(asked_at)
        utterances = list(self._live.values())
        self._cancel_all()
        for utterance in utterances:
            utterance.underruns += utterance.paused
            played = utterance.played_samples if utterance.played_samples is not None else sent.get(utterance.id, 0)
            self._stopped(utterance, FinishReason.CANCELLED, played)
        if self.partner:
            self.partner.take_cut()

    def refuse(self, why: str) -> None:
        """Takes no new utterance from now on; those that are there go on."""
        self._refusing = why

    @property
    def quiet(self) -> bool:
        """Nothing is queued or playing."""
        return not self._live

    @property
    def room(self) -> int:
        """How many more utterances are taken now."""
        return self._max_queued - len(self._live)

    @property
    def max_queued(self) -> int:
        """Utterances that are taken at once."""
        return self._max_queued

    @property
    def max_text_chars(self) -> int:
        """Of one utterance."""
        return self._engine.spec.max_text_chars

    async def idle(self) -> None:
        """Returns once nothing is queued or playing."""
        await self._idle.wait()

    def close(self) -> None:
        """Gives back what it holds in the engine, and ends the track. Nothing is sent any more."""
        self._out = lambda message: None
        watchers, self._watchers = self._watchers, []
        self.refuse(OVER)
        if self.partner:
            self.partner.close()
        if self._making is not None:
            self._making.close()
        self._sight = None
        if self.scene is not None:
            self.scene.leave(self)
        self._cancel_all()
        self.track.stop()
        for watcher in watchers:
            watcher.end()

    def _cancel_all(self) -> None:
        """Also of those that the engine has made whole: their listener is not to be waited for."""
        for utterance in self._live.values():
            if utterance.request_id is not None:
                self._engine.cancel(utterance.request_id)
        self._live.clear()
        self._said = None
        self._idle.set()

    def _problem(self, speak: Speak) -> Error | None:
        if self._refusing is not None:
            return Error(code=ErrorCode.CLOSED, message=self._refusing, id=speak.id)
        if speak.id in self._live:
            return Error(code=ErrorCode.BAD_REQUEST, message=f"{speak.id} is being said already", field="id")
        if speak.open and not self.open_text:
            message = f"the voice {self._engine.spec.name} reads whole texts only: leave out open"
            return Error(code=ErrorCode.BAD_REQUEST, message=message, id=speak.id, field="open")
        if (problem := unsayable(speak, self.max_text_chars)) is not None:
            return problem
        if len(self._live) >= self._max_queued:
            message = f"{self._max_queued} utterances are waiting already: try again when one is over"
            return Error(code=ErrorCode.BUSY, message=message, id=speak.id)
        return None

    # ---- to and from the engine -------------------------------------------------------------------------------

    def _submit_waiting(self) -> None:
        """Hands the engine the next utterances, each with the one that it continues: not one that failed."""
        room = LOOKAHEAD - sum(utterance.in_engine for utterance in self._live.values())
        follows = self._said
        for utterance in self._live.values():
            if utterance.request_id is None and room > 0:
                room -= 1
                utterance.request = replace(utterance.request, follows=follows)
                utterance.request_id = self._engine.submit(utterance.request, partial(self._deliver, utterance))
                if utterance.request.open and not utterance.writing:
                    self._write(utterance, "")
            if utterance.reason != FAILED:
                follows = utterance.request_id

    def _deliver(self, utterance: Utterance, output: Output) -> None:
        """Called on the engine's reader thread."""
        try:
            self._loop.call_soon_threadsafe(self._take, utterance, output)
        except RuntimeError:
            log.debug("the event loop is closed, an output of %s is dropped", utterance.id)

    def _take(self, utterance: Utterance, output: Output) -> None:
        if isinstance(output, Finished) and self.demo is not None:
            self.demo.record(output.request_id, utterance.request, output)
        if self._live.get(utterance.id) is not utterance:
            return  # stopped meanwhile
        if isinstance(output, Chunk):
            self._take_chunk(utterance, output)
        elif isinstance(output, Queued):
            self.send(SpeechQueued(id=utterance.id, wait_ms=1000 * output.wait))
        elif isinstance(output, End):
            self._take_end(utterance, output)

    def _take_end(self, utterance: Utterance, end: End) -> None:
        """What waits behind an utterance that was refused is asked for all the same, and gets its own answer."""
        if isinstance(end, Failed):
            wait = None if end.retry_after is None else 1000 * end.retry_after
            reason = end.message[:MAX_REASON_CHARS]
            asked = utterance.text_event if end.field == "text" else utterance.event
            event = asked if end.code is ErrorCode.BAD_REQUEST else None
            field = FIELDS.get(end.field or "", end.field)
            self.report(
                Error(code=end.code, message=reason, id=utterance.id, event=event, field=field, retry_after_ms=wait)
            )
        utterance.reason = FAILED if isinstance(end, Failed) else end.reason
        self._buffer.end(utterance.id)
        self._submit_waiting()
        self._settle(utterance)

    def _take_chunk(self, utterance: Utterance, chunk: Chunk) -> None:
        now = self._clock.now()
        if utterance.take(chunk, now) and not utterance.waited:
            self._metrics.ttfa.observe(utterance.ttfa)
        if self._sight is not None:
            self._sight.take_chunk(utterance, chunk, now)
        self._buffer.push(
            utterance.id, chunk.epoch, chunk.pcm, now, chunk.slack, chunk.final, chunk.made_at, chunk.text_late
        )

    def _playhead(self, utterance: Utterance, played_samples: int, at: float, running: bool) -> None:
        """Where the playback clock stands: that of the packets, the instants at which they are taken from the buffer.

        The engine is to be early by what its chunks take to come here, and by the jitter of the listener's network.
        What his own jitter buffer holds (jitterBufferDelay by jitterBufferEmittedCount) is time beyond this clock
        before he runs dry: nothing has to come sooner for it, so it is not counted.
        """
        if utterance.request_id is not None:
            jitter = self._buffer.jitter + self._listener.jitter
            self._playhead_at = at
            self._engine.playhead(Playhead(utterance.request_id, played_samples, at - self._behind, running, jitter))

    # ---- from the track ---------------------------------------------------------------------------------------

    def _packet_sent(self, packet: Packet) -> None:
        self._metrics.packets.inc()
        if self.partner:
            self.partner.take_packet(packet)
        self._follow_silence(packet)
        self._follow_pace(packet.at)
        for cue in packet.cues:
            if cue.utterance in self._live:
                self._take_cue(self._live[cue.utterance], cue)
        if packet.playing in self._live and not packet.cues:
            self._progress(self._live[packet.playing], packet)

    def _fall_silent(self, asked_at: float, noticed_at: float | None = None) -> None:
        """What plays was flushed or paused just now; a stop right after a pause changes nothing."""
        if self._playing is not None and self._silencing is None:
            self._silencing = Silencing(asked_at, self._clock.now(), noticed_at)

    def _follow_silence(self, packet: Packet) -> None:
        """Tells what falling silent took, with the first packet after the decision: the fade, or silence already."""
        self._playing = packet.playing
        silencing, self._silencing = self._silencing, None
        if silencing is not None:
            silent_at = self._clock.now() if packet.samples.any() else silencing.flushed_at
            self._metrics.barge_in.observe(silencing.seconds(silent_at))
            self.send(silencing.told(silent_at))

    def _follow_pace(self, at: float) -> None:
        """A clock that stood still with the packets is told at once. One that is behind catches up within the next
        packets, so it counts as if it had: from where it stands now, deadlines would seem later than they are."""
        pace = self.track.pace
        if pace.stalls > self._stalls:
            self._playhead_at = float("-inf")
        self._metrics.stalls.inc(pace.stalls - self._stalls)
        self._stalls, self._behind = pace.stalls, pace.behind(at)

    def _take_cue(self, utterance: Utterance, cue: Cue) -> None:
        self._playhead(utterance, cue.played_samples, cue.at, cue.running)
        message = utterance.take_cue(cue)
        if self._sight is not None and cue.kind is CueKind.STARTED:
            self._sight.take_start(utterance, cue.at)
        if message is not None:
            self.send(message)
        if isinstance(message, SpeechUnderrun):
            self._metrics.missed.inc(message.missed_ms / 1000)
        self._settle(utterance)

    def _progress(self, utterance: Utterance, packet: Packet) -> None:
        if packet.at - self._playhead_at >= PLAYHEAD_SECONDS:
            self._playhead(utterance, packet.played_samples, packet.at, running=True)
        if packet.at - self._progress_at >= PROGRESS_SECONDS:
            self._progress_at = packet.at
            if not self.watched:  # a view tells it, too
                self.send(utterance.progress(self._buffer.heard(utterance.id), self._buffer.buffered))

    def _settle(self, utterance: Utterance) -> None:
        if not utterance.over:
            return
        assert utterance.reason is not None and utterance.played_samples is not None
        del self._live[utterance.id]
        if utterance.reason != FAILED:
            self._said = utterance.request_id
        self._stopped(utterance, utterance.reason, utterance.played_samples)
        self._submit_waiting()
        if not self._live:
            self._idle.set()
            self.track.resume()  # a pause is of what was playing

    def _stopped(self, utterance: Utterance, reason: str, sent_samples: int) -> None:
        self._metrics.utterances.labels(reason).inc()
        self._metrics.underruns.inc(utterance.underruns)
        stopped = utterance.stopped(reason, sent_samples, self._listener)
        self.send(stopped)
        if self.partner:
            self.partner.take_stopped(stopped)

    def _error(self, code: ErrorCode, message: str, utterance: str | None = None) -> None:
        self.report(Error(code=code, message=message[:MAX_REASON_CHARS], id=utterance))

    def report(self, error: Error) -> None:
        """Tells the client what was refused or has failed; what a message of theirs is the cause of names it."""
        self._metrics.errors.labels(error.code).inc()
        self.send(msgspec.structs.replace(error, event=error.event or self._event))
