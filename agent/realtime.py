"""The events of the OpenAI Realtime protocol over WebRTC: a class an event, a field a key, and what reads and writes
them as JSON. It knows no call: what an event does is said elsewhere.

Names and shapes are those of OpenAI's API reference, "Realtime: client events" and "server events", as the types of
npm openai 7.59 and the schemas of npm @openai/agents-realtime 0.20 have them. Unlike in our own protocol unknown keys
are passed over: stock clients send more than anybody here asks for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from agent.fault import UNREADABLE, Named, field_of, longest, named

CHANNEL = "oai-events"
"""The label of the data channel."""
MAX_EVENT_BYTES = 64 * 1024
"""What aiortc's answer says that it takes; a session.update of the stock client holds instructions and tools."""
MAX_REASON_CHARS = 300
"""Of an error's text that may quote what the client sent."""

Json = Mapping[str, Any]
Id = Annotated[str, Meta(min_length=1, max_length=128)]
EventId = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]
"""As OpenAI takes it: 16 pairs of short texts."""
Milliseconds = Annotated[float, Meta(ge=0)]


class EventError(ValueError):
    """An event that cannot be taken. `param` is the path of the field at fault, `event_id` the client's own name of the
    event, where there is one."""

    def __init__(self, code: str, message: str, param: str | None = None, event_id: str | None = None) -> None:
        super().__init__(message[:MAX_REASON_CHARS])
        self.code, self.param, self.event_id = code, param, event_id


# ---- from the client ------------------------------------------------------------------------------------------------


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may send."""

    event_id: EventId | None = None


class SessionUpdate(Client, tag="session.update", frozen=True, kw_only=True):
    """Changes those settings that it names; realtime_session.py reads them."""

    session: dict[str, Any]


class InputAudioBufferAppend(Client, tag="input_audio_buffer.append", frozen=True, kw_only=True):
    """Of clients without a track."""

    audio: str = ""


class InputAudioBufferCommit(Client, tag="input_audio_buffer.commit", frozen=True, kw_only=True):
    """What was heard since the last commit or clear is a turn, where nothing else says when one is over."""


class InputAudioBufferClear(Client, tag="input_audio_buffer.clear", frozen=True, kw_only=True):
    """What was heard so far is no part of the next turn."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a new item's content."""

    type: str
    text: str | None = None
    transcript: str | None = None


class NewItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that a client adds to the conversation."""

    type: str
    id: Id | None = None
    role: Literal["user", "assistant", "system"] | None = None
    content: tuple[Part, ...] = ()


class ItemCreate(Client, tag="conversation.item.create", frozen=True, kw_only=True):
    """Adds an item behind another, at the beginning (root) or at the end; nothing answers to it."""

    item: NewItem
    previous_item_id: str | None = None


class ItemTruncate(Client, tag="conversation.item.truncate", frozen=True, kw_only=True):
    """No more than audio_end_ms of an item of the agent's was heard."""

    item_id: str
    content_index: int
    audio_end_ms: Milliseconds


class ItemDelete(Client, tag="conversation.item.delete", frozen=True, kw_only=True):
    item_id: str


class ItemRetrieve(Client, tag="conversation.item.retrieve", frozen=True, kw_only=True):
    item_id: str


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What one response is to be like."""

    instructions: str | None = None
    conversation: str | None = None
    metadata: Metadata | None = None
    input: list[Any] | None = None


class ResponseCreate(Client, tag="response.create", frozen=True, kw_only=True):
    """Has the agent answer to the conversation so far."""

    response: Wanted | None = None


class ResponseCancel(Client, tag="response.cancel", frozen=True, kw_only=True):
    response_id: str | None = None


class OutputAudioBufferClear(Client, tag="output_audio_buffer.clear", frozen=True, kw_only=True):
    """Silence, at once."""


ClientEvent = (
    SessionUpdate
    | InputAudioBufferAppend
    | InputAudioBufferCommit
    | InputAudioBufferClear
    | ItemCreate
    | ItemTruncate
    | ItemDelete
    | ItemRetrieve
    | ResponseCreate
    | ResponseCancel
    | OutputAudioBufferClear
)


# ---- from the server ------------------------------------------------------------------------------------------------


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the conversation, as it stands."""

    id: str
    role: str
    status: str
    content: tuple[dict[str, Any], ...]
    type: str = "message"
    object: str = "realtime.item"


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A response, as it stands. status: in_progress, completed, cancelled or failed, and why in status_details."""

    id: str
    status: str
    conversation_id: str
    status_details: Json | None = None
    output: tuple[Item, ...] = ()
    output_modalities: tuple[str, ...] = ("audio",)
    audio: Json = {}
    max_output_tokens: int | str = "inf"
    metadata: Json | None = None
    usage: Json | None = None
    object: str = "realtime.response"


class Complaint(msgspec.Struct, frozen=True, kw_only=True):
    """What an error event says. type: invalid_request_error or server_error."""

    type: str
    code: str
    message: str
    param: str | None = None
    event_id: str | None = None


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """What the server may send."""

    event_id: str = ""


class SessionCreated(Server, tag="session.created", frozen=True, kw_only=True):
    session: Json


class SessionUpdated(Server, tag="session.updated", frozen=True, kw_only=True):
    session: Json


class SpeechStarted(Server, tag="input_audio_buffer.speech_started", frozen=True, kw_only=True):
    audio_start_ms: int
    item_id: str


class SpeechStopped(Server, tag="input_audio_buffer.speech_stopped", frozen=True, kw_only=True):
    audio_end_ms: int
    item_id: str


class InputCommitted(Server, tag="input_audio_buffer.committed", frozen=True, kw_only=True):
    previous_item_id: str | None
    item_id: str


class InputCleared(Server, tag="input_audio_buffer.cleared", frozen=True, kw_only=True):
    """The answer to input_audio_buffer.clear."""


class ItemAdded(Server, tag="conversation.item.added", frozen=True, kw_only=True):
    previous_item_id: str | None
    item: Item


class ItemCreated(Server, tag="conversation.item.created", frozen=True, kw_only=True):
    """ItemAdded once more, by the name that clients from before 2025-08 know."""

    previous_item_id: str | None
    item: Item


class ItemDone(Server, tag="conversation.item.done", frozen=True, kw_only=True):
    previous_item_id: str | None
    item: Item


class ItemRetrieved(Server, tag="conversation.item.retrieved", frozen=True, kw_only=True):
    item: Item


class ItemDeleted(Server, tag="conversation.item.deleted", frozen=True, kw_only=True):
    item_id: str


class ItemTruncated(Server, tag="conversation.item.truncated", frozen=True, kw_only=True):
    item_id: str
    content_index: int
    audio_end_ms: int


class TranscriptionDelta(Server, tag="conversation.item.input_audio_transcription.delta", frozen=True, kw_only=True):
    item_id: str
    delta: str
    content_index: int = 0


class TranscriptionCompleted(
    Server, tag="conversation.item.input_audio_transcription.completed", frozen=True, kw_only=True
):
    item_id: str
    transcript: str
    usage: Json
    content_index: int = 0


class TranscriptionFailed(Server, tag="conversation.item.input_audio_transcription.failed", frozen=True, kw_only=True):
    item_id: str
    error: Json
    content_index: int = 0


class ResponseCreated(Server, tag="response.created", frozen=True, kw_only=True):
    response: Response


class ResponseDone(Server, tag="response.done", frozen=True, kw_only=True):
    response: Response


class OutputItemAdded(Server, tag="response.output_item.added", frozen=True, kw_only=True):
    response_id: str
    item: Item
    output_index: int = 0


class OutputItemDone(Server, tag="response.output_item.done", frozen=True, kw_only=True):
    response_id: str
    item: Item
    output_index: int = 0


class OfPart(Server, frozen=True, kw_only=True):
    """An event of an item's only part."""

    response_id: str
    item_id: str
    output_index: int = 0
    content_index: int = 0


class PartAdded(OfPart, tag="response.content_part.added", frozen=True, kw_only=True):
    part: Json


class PartDone(OfPart, tag="response.content_part.done", frozen=True, kw_only=True):
    part: Json


class TranscriptDelta(OfPart, tag="response.output_audio_transcript.delta", frozen=True, kw_only=True):
    delta: str


class TranscriptDone(OfPart, tag="response.output_audio_transcript.done", frozen=True, kw_only=True):
    transcript: str


class AudioDone(OfPart, tag="response.output_audio.done", frozen=True, kw_only=True):
    """No more audio will come of this item."""


class OutputStarted(Server, tag="output_audio_buffer.started", frozen=True, kw_only=True):
    response_id: str


class OutputStopped(Server, tag="output_audio_buffer.stopped", frozen=True, kw_only=True):
    response_id: str


class OutputCleared(Server, tag="output_audio_buffer.cleared", frozen=True, kw_only=True):
    response_id: str


class ErrorEvent(Server, tag="error", frozen=True, kw_only=True):
    """Something was refused or has failed; the call goes on."""

    error: Complaint


ServerEvent = (
    SessionCreated
    | SessionUpdated
    | SpeechStarted
    | SpeechStopped
    | InputCommitted
    | InputCleared
    | ItemAdded
    | ItemCreated
    | ItemDone
    | ItemRetrieved
    | ItemDeleted
    | ItemTruncated
    | TranscriptionDelta
    | TranscriptionCompleted
    | TranscriptionFailed
    | ResponseCreated
    | ResponseDone
    | OutputItemAdded
    | OutputItemDone
    | PartAdded
    | PartDone
    | TranscriptDelta
    | TranscriptDone
    | AudioDone
    | OutputStarted
    | OutputStopped
    | OutputCleared
    | ErrorEvent
)

_decoder = msgspec.json.Decoder(ClientEvent)
_encoder = msgspec.json.Encoder()


def decode(data: str | bytes) -> ClientEvent:
    """One client event. Raises EventError on size, encoding, JSON, type or value, with the event's name in its text."""
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    if len(raw) > MAX_EVENT_BYTES:
        raise _too_long(raw)
    try:
        return _decoder.decode(raw)
    except UNREADABLE as error:
        raise _refusal(raw, error) from error


def encode(event: ServerEvent, event_id: str) -> str:
    """The event as JSON text, under an id."""
    return _encoder.encode(msgspec.structs.replace(event, event_id=event_id)).decode()


def _too_long(raw: bytes) -> EventError:
    event = named(raw) or Named()
    kind = f"{event.type}: " if isinstance(event.type, str) else ""
    message = f"{kind:.70}an event has at most {MAX_EVENT_BYTES} bytes, this one has {len(raw)}"
    return EventError("too_long", message, longest(raw), event.event_id if isinstance(event.event_id, str) else None)


def _refusal(raw: bytes, error: Exception) -> EventError:
    """The same error, with the names of event and field."""
    event = named(raw)
    if event is None:
        return EventError("invalid_json", f"an event is a JSON object: {error}")
    event_id = event.event_id if isinstance(event.event_id, str) else None
    param = field_of(str(error))
    if not isinstance(event.type, str) or param == "type":
        return EventError("unknown_event", f"there is no event of the type {event.type!r:.100}", "type", event_id)
    return EventError("invalid_value", f"{event.type}: {error}", param, event_id)
