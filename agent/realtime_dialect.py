"""A call as a client of the OpenAI Realtime protocol sees it: its events become what a conversation does, and what
becomes of turns and replies becomes events. It knows neither channels nor how anything is heard, thought of or said.

What differs from the original: a response is over when it was played, since speech is made little ahead of it; so an
interruption always finds it active, cancelling it silences it, and what was heard of it is told by
conversation.item.truncated without being asked for.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from agent import protocol, realtime
from agent.allowance import Allowance
from agent.conversation import END, INTERRUPTED, WORDS, Conversation, Watcher
from agent.dialogue import Message, Role
from agent.protocol import ServerMessage
from agent.realtime import EventError
from agent.realtime_items import CUT, DONE, OPEN, Entry, Items, Piece
from agent.realtime_session import Hearing, SessionSettings
from agent.session import MAX_SAID_CHARS, MESSAGES_A_SECOND, Session
from agent.trouble import Trouble
from engine.clock import Clock

log = logging.getLogger(__name__)

MAX_CREATED = 500
"""Items that a client may have added to a call."""
MAX_NOTING = 16
"""Turns that a client may have committed and whose words are not known yet."""
LEAST_COMMITTED = 1600
"""Samples at 16 kHz, 0.1 s: the original refuses to commit less."""
TURN_DETECTED, CLIENT_CANCELLED = "turn_detected", "client_cancelled"
"""Why a response was cancelled."""
STATUSES = {END: "completed", INTERRUPTED: "cancelled"}
"""Of a response, by why its reply is over; else it has failed."""
CONTENT = {"user": ("input_text",), "system": ("input_text",), "assistant": ("output_text", "text")}
"""What a part of an item of each role may be."""


@dataclass(slots=True)
class Open:
    """A response that is not over."""

    id: str
    reply: str
    metadata: realtime.Json | None
    entry: Entry | None = None
    """What it says, once it says something."""
    playing: bool = False
    error: str | None = None
    """The code of what went wrong."""

    def piece(self, utterance: str) -> Piece | None:
        return self.entry.pieces.get(utterance) if self.entry else None


class RealtimeDialect(Watcher):
    """Speaks the Realtime protocol for one session and its conversation. `send` takes events as JSON text.

    To be used on the event loop; `open` is called first, once the client is there. Whatever a client sends, the call
    goes on.
    """

    def __init__(self, session: Session, conversation: Conversation, clock: Clock, send: Callable[[str], None]) -> None:
        self._session, self._conversation, self._clock, self._out = session, conversation, clock, send
        self._tag = secrets.token_hex(4)
        """Makes ids differ from those of another call, whose history the client may still have."""
        self._events = self._ids = self._created = 0
        self._items = Items()
        self._settings: SessionSettings | None = None
        self._speaker = ""
        """Whom the client has asked for last, or the voice's own name."""
        self._tuned: Hearing | None = None
        self._allowance = Allowance(MESSAGES_A_SECOND, 2 * MESSAGES_A_SECOND)
        self._flooded = False
        self._response: Open | None = None
        self._last_response = ""
        self._metadata: realtime.Json | None = None
        """Of the response that is being asked for."""
        self._reason = TURN_DETECTED
        """Why a reply is cut, if one is."""
        self._speaking: str | None = None
        """The id of the item that the user's turn will be, while it lasts."""
        self._began_at = self._buffer_at = clock.now()
        self._turn_seconds = 0.0

    def open(self) -> None:
        """The client is there."""
        self._conversation.watcher = self
        self._session.listen(self.take)

    # ---- from the client --------------------------------------------------------------------------------------

    def receive(self, data: str | bytes) -> None:
        """One event from the data channel. What cannot be taken is answered with an error event.

        What asks for silence is never dropped for coming too fast.
        """
        try:
            event = realtime.decode(data)
        except EventError as error:
            if not self._too_fast():
                self._refuse(error, error.event_id)
            return
        if isinstance(event, realtime.ResponseCancel | realtime.OutputAudioBufferClear) or not self._too_fast():
            try:
                self._handle(event)
            except EventError as error:
                self._refuse(error, event.event_id, f"{event.__struct_config__.tag}: ")
            except Exception:  # aiortc would end the whole call
                log.exception("an event could not be taken")
                fault = EventError("server_error", "this could not be done: the server's log says why")
                self._refuse(fault, event.event_id, f"{event.__struct_config__.tag}: ")

    def _too_fast(self) -> bool:
        """Takes one from the allowance; says once that events are being dropped."""
        flooded = self._allowance.take("", self._clock.now()) > 0
        if flooded and not self._flooded:
            many = f"more than {MESSAGES_A_SECOND:.0f} events a second: some were dropped"
            self._refuse(EventError("rate_limit_exceeded", many), None)
        self._flooded = flooded
        return flooded

    def _refuse(self, error: EventError, event_id: str | None, event: str = "") -> None:
        complaint = realtime.Complaint(
            type="invalid_request_error",
            code=error.code,
            message=f"{event}{error}",
            param=error.param,
            event_id=event_id,
        )
        self._send(realtime.ErrorEvent(error=complaint))

    def _handle(self, event: realtime.ClientEvent) -> None:
        match event:
            case realtime.SessionUpdate(session=change):
                self._session_settings.update(change)
                self._apply()
                self._send(realtime.SessionUpdated(session=self._session_settings.shown))
            case realtime.ItemCreate():
                self._create_item(event)
            case realtime.ItemTruncate():
                self._truncate(event)
            case realtime.ItemDelete(item_id=item_id):
                self._delete(self._items.find(item_id))
            case realtime.ItemRetrieve(item_id=item_id):
                self._send(realtime.ItemRetrieved(item=self._items.find(item_id).shown()))
            case realtime.ResponseCreate():
                self._create_response(event.response or realtime.Wanted())
            case realtime.ResponseCancel(response_id=response_id):
                self._cancel(response_id)
            case realtime.OutputAudioBufferClear():
                self._clear_output()
            case realtime.InputAudioBufferCommit():
                self._commit()
            case realtime.InputAudioBufferClear():
                self._buffer_at = self._clock.now()
                self._send(realtime.InputCleared())
            case realtime.InputAudioBufferAppend():
                raise EventError("unsupported", "in a WebRTC call the microphone's track is heard, nothing is appended")

    @property
    def _session_settings(self) -> SessionSettings:
        if self._settings is None:
            raise EventError("too_early", "the session is not there yet: wait for session.created")
        return self._settings

    @property
    def _hearing(self) -> Hearing:
        return self._session_settings.hearing

    def _apply(self) -> None:
        """Has the conversation go by the settings."""
        hearing, conversation = self._hearing, self._conversation
        conversation.instructions = self._instructions(self._session_settings.instructions)
        conversation.max_chars = self._session_settings.max_chars
        conversation.automatic, conversation.interruptible = hearing.automatic, hearing.interruptible
        if self._session_settings.speaker != self._speaker:
            self._speaker = self._session_settings.speaker
            self._session.speak_as(self._speaker)
        if conversation.ears and hearing != self._tuned:
            conversation.ears.retune(hearing.settings, hearing.before)
            self._tuned = hearing

    def _instructions(self, instructions: str) -> str:
        """With what the client has added as the system: a model may refuse such messages inside a conversation."""
        system = (entry.text for entry in self._items if entry.role == "system")
        return "\n\n".join(filter(None, (instructions, *system)))

    def _create_item(self, event: realtime.ItemCreate) -> None:
        """Raises EventError."""
        new = event.item
        role, text = content(new)
        if new.id is not None and new.id in self._items:
            raise EventError("item_exists", f"there is an item {new.id!r} already", "item.id")
        if role == "system" and not self._session_settings.instructable:
            raise EventError("not_allowed", "the client key has fixed the instructions", "item.role")
        if self._items.added >= MAX_CREATED:
            raise EventError("too_many_items", f"a call has at most {MAX_CREATED} items that its client has added")
        kind = "output_text" if role == "assistant" else "input_text"
        entry = Entry(new.id or self._next_id("item"), role, kind, f"created{self._created}", text)
        self._items.add(entry, event.previous_item_id)
        self._created += 1
        if role == "system":
            self._apply()
        else:
            self._conversation.add(Message(Role(role), text, id=entry.message), self._items.behind(entry))
        self._tell_added(entry)
        self._tell_done(entry)

    def _truncate(self, event: realtime.ItemTruncate) -> None:
        """What lies beyond the item's audio is all of it. An item that is being said is stopped. Raises EventError."""
        entry = self._items.find(event.item_id)
        if entry.kind != "output_audio":
            raise EventError("invalid_value", "only what the agent has spoken can be truncated", "item_id")
        if event.content_index != 0:
            raise EventError("invalid_value", "an item has one part, of index 0", "content_index")
        if entry.status == OPEN:
            self._interrupt(CLIENT_CANCELLED)
        end_ms = min(event.audio_end_ms, entry.audio_ms)
        if end_ms < entry.audio_ms:
            entry.text = entry.until(end_ms)
            self._conversation.amend(entry.message, entry.text)
        self._send(realtime.ItemTruncated(item_id=entry.id, content_index=0, audio_end_ms=int(end_ms)))

    def _delete(self, entry: Entry) -> None:
        """Raises EventError."""
        if entry.status == OPEN:
            raise EventError("item_in_progress", "the item is not complete yet: cancel its response first", "item_id")
        self._items.remove(entry)
        self._conversation.remove(entry.message)
        if entry.role == "system":
            self._apply()
        self._send(realtime.ItemDeleted(item_id=entry.id))

    def _create_response(self, wanted: realtime.Wanted) -> None:
        """Raises EventError."""
        if self._conversation.answering:
            active = self._response.id if self._response else "one that waits"
            raise EventError("conversation_already_has_active_response", f"there is an active response: {active}")
        if wanted.conversation not in (None, "auto"):
            raise EventError("unsupported", "responses belong to the conversation: auto", "response.conversation")
        if wanted.input is not None:
            raise EventError("unsupported", "a response answers to the conversation's items", "response.input")
        self._metadata = wanted.metadata
        own = wanted.instructions if self._session_settings.instructable else None
        self._conversation.respond(self._instructions(own) if own else "")
        self._metadata = None

    def _cancel(self, response_id: str | None) -> None:
        """Raises EventError."""
        active = self._response.id if self._response else None
        if not self._conversation.answering or response_id not in (None, active):
            raise EventError("response_cancel_not_active", "there is no such active response to cancel", "response_id")
        self._interrupt(CLIENT_CANCELLED)

    def _clear_output(self) -> None:
        """Is answered also where nothing was to be heard any more: the client may wait for it."""
        playing = self._response is not None and self._response.playing
        self._interrupt(CLIENT_CANCELLED)
        if not playing:
            self._send(realtime.OutputCleared(response_id=self._last_response))

    def _interrupt(self, reason: str) -> None:
        self._reason = reason
        self._conversation.interrupt()
        self._reason = TURN_DETECTED

    def _commit(self) -> None:
        """Raises EventError."""
        ears = self._conversation.ears
        if ears is None:
            raise EventError("unsupported", "nobody listens in this call: it has no microphone, or the server no VAD")
        if self._hearing.settings is not None:
            raise EventError("unsupported", "the server commits turns: for doing so set turn_detection to null first")
        if self._conversation.noting >= MAX_NOTING:
            raise EventError("rate_limit_exceeded", f"the words of {MAX_NOTING} turns are still being found out")
        now = self._clock.now()
        if ears.audio(self._buffer_at, now).size < LEAST_COMMITTED:
            raise EventError("input_audio_buffer_commit_empty", "less than 100 ms of audio is there to be committed")
        begun_at, self._buffer_at = self._buffer_at, now
        self._conversation.commit(begun_at, now)

    # ---- from the session -------------------------------------------------------------------------------------

    def take(self, message: ServerMessage) -> None:
        """What the session tells its client, as far as the protocol has a word for it."""
        match message:
            case protocol.SessionCreated():
                self._begin(message)
            case protocol.TurnStarted() if self._speaking is None:
                self._speaking = self._next_id("item")
                start_ms = self._ms(self._conversation.speech_at[0] - self._hearing.before)
                self._send(realtime.SpeechStarted(audio_start_ms=start_ms, item_id=self._speaking))
            case protocol.TurnEnded(seconds=seconds):
                self._turn_seconds = seconds
            case protocol.ReplyText(id=utterance, text=text):
                self._say(utterance, text)
            case protocol.SpeechStarted(id=utterance):
                self._play(utterance)
            case protocol.SpeechStopped():
                piece = self._response and self._response.piece(message.id)
                if piece:
                    piece.heard, piece.heard_ms, piece.sent_ms = message.heard, message.heard_ms, message.sent_ms
            case protocol.Error():
                self._fail(message)

    def _begin(self, created: protocol.SessionCreated) -> None:
        ears, terms = self._conversation.ears, self._conversation.terms
        self._settings = SessionSettings(created.id, created.voice, ears.settings if ears else None, terms)
        self._speaker = created.voice
        self._apply()
        self._send(realtime.SessionCreated(session=self._settings.shown))

    def _say(self, utterance: str, text: str) -> None:
        """The next piece of the response's text."""
        response = self._response
        if response is None or reply_of(utterance) != response.reply:
            return
        first = response.entry is None
        entry = response.entry or self._begin_output(response)
        before = entry.pieces.get(utterance)
        entry.pieces[utterance] = Piece(before.text + text if before else text)
        entry.text = entry.spoken
        delta = text if first or before else f" {text}"
        self._send(realtime.TranscriptDelta(response_id=response.id, item_id=entry.id, delta=delta))

    def _begin_output(self, response: Open) -> Entry:
        entry = response.entry = Entry(
            self._next_id("item"), "assistant", "output_audio", response.reply, "", status=OPEN
        )
        self._items.add(entry)
        self._send(realtime.OutputItemAdded(response_id=response.id, item=entry.shown(empty=True)))
        self._tell_added(entry, empty=True)
        part = {"type": "audio", "transcript": ""}
        self._send(realtime.PartAdded(response_id=response.id, item_id=entry.id, part=part))
        return entry

    def _play(self, utterance: str) -> None:
        response = self._response
        if response and not response.playing and response.piece(utterance):
            response.playing = True
            self._send(realtime.OutputStarted(response_id=response.id))

    def _fail(self, error: protocol.Error) -> None:
        if self._response and error.id and reply_of(error.id) == self._response.reply:
            self._response.error = error.code
        complaint = realtime.Complaint(type="server_error", code=error.code, message=error.message, param=error.field)
        self._send(realtime.ErrorEvent(error=complaint))

    # ---- from the conversation --------------------------------------------------------------------------------

    def turn_ended(self, turn: str) -> None:
        """See Watcher."""
        entry = Entry(self._speaking or self._next_id("item"), "user", "input_audio", turn)
        if self._speaking is not None:
            end_ms = self._ms(self._conversation.speech_at[1])
            self._send(realtime.SpeechStopped(audio_end_ms=end_ms, item_id=entry.id))
            self._speaking = None
        self._items.add(entry)
        self._send(realtime.InputCommitted(previous_item_id=self._items.before(entry), item_id=entry.id))
        self._tell_added(entry)
        self._tell_done(entry)

    def turn_text(self, turn: str, text: str) -> None:
        """See Watcher."""
        entry = self._items.of(turn)
        if entry is None:  # the client has deleted it
            return
        entry.text = text
        self._send(realtime.TranscriptionDelta(item_id=entry.id, delta=text))
        usage = {"type": "duration", "seconds": self._turn_seconds}
        self._send(realtime.TranscriptionCompleted(item_id=entry.id, transcript=text, usage=usage))

    def turn_unknown(self, turn: str, trouble: Trouble) -> None:
        """See Watcher."""
        entry = self._items.of(turn)
        if entry is not None:
            error = {"type": "server_error", "code": str(trouble), "message": WORDS[trouble]}
            self._send(realtime.TranscriptionFailed(item_id=entry.id, error=error))

    def turn_dropped(self, turn: str) -> None:
        """See Watcher."""
        entry = self._items.of(turn)
        if entry is not None:
            self._items.remove(entry)
            self._send(realtime.ItemDeleted(item_id=entry.id))

    def reply_begun(self, reply: str) -> None:
        """See Watcher."""
        response = self._response = Open(self._next_id("resp"), reply, self._metadata)
        self._last_response = response.id
        self._send(realtime.ResponseCreated(response=self._shown(response, "in_progress", None)))

    def reply_over(self, reply: str, reason: str) -> None:
        """See Watcher."""
        response, self._response = self._response, None
        if response is None or response.reply != reply:  # it began before the client was there
            return
        entry, cut = response.entry, reason == INTERRUPTED
        if entry is not None:
            self._end_output(response, entry, reason)
        status = STATUSES.get(reason, "failed")
        details = None if reason == END else self._details(response, status)
        self._send(realtime.ResponseDone(response=self._shown(response, status, details)))
        if response.playing:
            over = realtime.OutputCleared if cut else realtime.OutputStopped
            self._send(over(response_id=response.id))
        if entry is not None and cut:
            entry.text = entry.heard
            self._send(realtime.ItemTruncated(item_id=entry.id, content_index=0, audio_end_ms=int(entry.heard_ms)))

    def _details(self, response: Open, status: str) -> realtime.Json:
        if status == "cancelled":
            return {"type": status, "reason": self._reason}
        return {"type": status, "error": {"type": "server_error", "code": response.error or "failed"}}

    def _end_output(self, response: Open, entry: Entry, reason: str) -> None:
        """Says that nothing more of the item comes."""
        entry.status = DONE if reason == END else CUT
        part = {"type": "audio", "transcript": entry.spoken}
        self._send(realtime.AudioDone(response_id=response.id, item_id=entry.id))
        self._send(realtime.TranscriptDone(response_id=response.id, item_id=entry.id, transcript=entry.spoken))
        self._send(realtime.PartDone(response_id=response.id, item_id=entry.id, part=part))
        self._send(realtime.OutputItemDone(response_id=response.id, item=entry.shown()))
        self._tell_done(entry)

    # ---- to the client ----------------------------------------------------------------------------------------

    def _shown(self, response: Open, status: str, details: realtime.Json | None) -> realtime.Response:
        return realtime.Response(
            id=response.id,
            status=status,
            status_details=details,
            conversation_id=f"conv_{self._tag}",
            output=(response.entry.shown(),) if response.entry else (),
            audio=self._session_settings.output,
            max_output_tokens=self._session_settings.max_output_tokens,
            metadata=response.metadata,
        )

    def _tell_added(self, entry: Entry, empty: bool = False) -> None:
        before, item = self._items.before(entry), entry.shown(empty)
        self._send(realtime.ItemAdded(previous_item_id=before, item=item))
        self._send(realtime.ItemCreated(previous_item_id=before, item=item))

    def _tell_done(self, entry: Entry) -> None:
        self._send(realtime.ItemDone(previous_item_id=self._items.before(entry), item=entry.shown()))

    def _send(self, event: realtime.ServerEvent) -> None:
        self._events += 1
        self._out(realtime.encode(event, f"event_{self._tag}_{self._events}"))

    def _next_id(self, kind: str) -> str:
        """One that no client has taken."""
        self._ids += 1
        name = f"{kind}_{self._tag}_{self._ids}"
        return name if name not in self._items else self._next_id(kind)

    def _ms(self, at: float) -> int:
        """Of the call, at this instant."""
        return max(0, round(1000 * (at - self._began_at)))


def content(new: realtime.NewItem) -> tuple[str, str]:
    """Role and text of an item that a client adds. Raises EventError for what is no text."""
    if new.type != "message":
        raise EventError("unsupported", f"an item is a message here, there are no tools: {new.type!r:.50}", "item.type")
    if new.role is None:
        raise EventError("invalid_value", "a message has a role: user, assistant or system", "item.role")
    for n, part in enumerate(new.content):
        if part.type not in CONTENT[new.role]:
            allowed, where = CONTENT[new.role][0], f"item.content[{n}].type"
            raise EventError("unsupported", f"an item of {new.role} holds {allowed}, not {part.type!r:.50}", where)
    text = "\n".join(part.text or "" for part in new.content).strip()
    if not 0 < len(text) <= MAX_SAID_CHARS:
        raise EventError(
            "invalid_value", f"an item has 1 to {MAX_SAID_CHARS} characters, not {len(text)}", "item.content"
        )
    return new.role, text


def reply_of(name: str) -> str:
    """The reply that an utterance is part of, or that the name is."""
    return name.partition(".")[0]
