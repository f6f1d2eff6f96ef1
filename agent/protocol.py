"""The data channels' messages, one table for server, page and docs. It knows nothing of channels or sessions.

JSON objects whose `type` is the name of the event; a class a message, a field a key. Unknown keys are errors on the
way in, so that a misspelt option is never silently ignored. EVENTS is the table: of our own channel, whose messages
are here, and of OpenAI's, which realtime.py writes down as their reference has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple, get_args

import msgspec
from msgspec import Meta

from agent import realtime
from agent.fault import UNREADABLE, field_of, longest, named

CHANNEL = "breezert"
MAX_MESSAGE_BYTES = 64 * 1024
"""What aiortc says that it takes."""
MAX_REASON_CHARS = 300
"""Of an error's text that may quote what the client sent."""
MAX_TYPE_CHARS = 64
"""Of the name that a message gives itself, where an error tells it."""

Id = Annotated[str, Meta(min_length=1, max_length=128)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Signed = Annotated[int, Meta(ge=-(2**53), le=2**53)]
"""More packets may come than were expected."""


class Client(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a client may send."""


class Speak(Client, tag="speak", frozen=True):
    """Say `text`, after whatever is already queued. Fields left out are those of the offer's session, or the voice's
    own defaults. voice: the id of one that was created, or the name of one that the server has, to speak like. open: it
    is only the beginning, and text.append goes on with it, where session.created says open_text."""

    id: Id
    text: str
    speaker: str | None = None
    instruction: str | None = None
    seed: int | None = None
    temperature: float | None = None
    language: str | None = None
    voice: str | None = None
    cfg_scale: float | None = None
    open: bool = False


class SessionUpdate(Client, tag="session.update", frozen=True):
    """How all is said from now on, replies too, unless a speak says otherwise: in the place of the offer's session.
    Fields as those of speak; what is left out is as the server says everything."""

    speaker: str | None = None
    language: str | None = None
    instruction: str | None = None
    voice: str | None = None
    cfg_scale: float | None = None


class TextAppend(Client, tag="text.append", frozen=True):
    """More of the text of an utterance that is open: it is said while it is being written. Pieces may be cut
    anywhere."""

    id: Id
    text: str


class TextDone(Client, tag="text.done", frozen=True):
    """The text of that utterance is complete. Where nothing comes for 30 s, it is taken to be."""

    id: Id


class VoiceCreate(Client, tag="voice.create", frozen=True):
    """Make a voice of a recording in which `text` is said, word by word: a file of 1 to 30 s of one person's speech, as
    WAV, FLAC, Ogg, MP3 or M4A, in base64. `id` comes back with the answer. Larger files: POST /voices."""

    id: Id
    text: str
    audio: str


class Stop(Client, tag="stop", frozen=True):
    """Fall silent at once and forget the queue."""


class Say(Client, tag="say", frozen=True):
    """What the user has typed instead of saying it: a turn, which the agent answers."""

    text: str


class Stats(Client, tag="stats", frozen=True):
    """What the listener's own getStats says: totals since the call began, in seconds and samples."""

    jitter_buffer_delay: float | None = None
    jitter_buffer_emitted_count: Count | None = None
    concealed_samples: Count | None = None
    silent_concealed_samples: Count | None = None
    total_samples_received: Count | None = None
    packets_lost: Signed | None = None
    jitter: float | None = None
    round_trip_time: float | None = None


class Watch(Client, tag="watch", frozen=True):
    """From now on the server shows how it works, with `view` and `speech.waterfall`; or not any more."""

    on: bool


class Demo(Client, tag="demo", frozen=True):
    """Changes what the server is shown with, where it said `demo.state`: each field that is there.

    load: synthetic listeners on the server; policy: who decides what runs next, for everybody; loss (a share) and
    jitter_ms: trouble on the way to this client."""

    load: Count | None = None
    policy: str | None = None
    loss: Annotated[float, Meta(ge=0, le=1)] | None = None
    jitter_ms: Annotated[float, Meta(ge=0, le=1000)] | None = None


class Ping(Client, tag="ping", frozen=True):
    """Sent every second by our own clients; `t` comes back unchanged."""

    t: float | None = None


class Server(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the server may send."""


class SessionCreated(Server, tag="session.created", frozen=True):
    """The first message of a call: what the voice can do. speakers: who can speak, its own first; voices: the names of
    those that it can speak like; languages: what a speak may name. Each is left out where there is none. open_text: it
    can say a text while that is being written; recordings: they become voices by voice.create and POST /voices."""

    id: str
    voice: str
    licence: str
    sample_rate: int
    modes: tuple[str, ...]
    max_text_chars: int
    max_queued: int
    speakers: tuple[str, ...] = ()
    voices: tuple[str, ...] = ()
    open_text: bool = False
    languages: tuple[str, ...] = ()
    recordings: bool = False


class VoiceCreated(Server, tag="voice.created", frozen=True):
    """The answer to a voice.create of that `id`: `voice` is what to speak like, of so many seconds of speech. It is
    kept in memory, until others take its place."""

    id: str
    voice: str
    seconds: float


class SpeechQueued(Server, tag="speech.queued", frozen=True):
    """The utterance has to wait, because one more voice would make others stutter. wait_ms: predicted, until it begins.

    Not sent for what begins at once, nor for what only waits for the utterance before it."""

    id: str
    wait_ms: float


class SpeechStarted(Server, tag="speech.started", frozen=True):
    """The utterance's first packet was sent. ttfa_ms counts from the speak message to the first PCM."""

    id: str
    ttfa_ms: float
    heard_ms: float = 0.0


class SpeechProgress(Server, tag="speech.progress", frozen=True):
    """At most five times a second while an utterance plays; who watches is told by `view` instead."""

    id: str
    heard_ms: float
    buffered_ms: float
    underruns: int


class SpeechUnderrun(Server, tag="speech.underrun", frozen=True):
    """Playback stood still inside an utterance, because the engine was late; `missed_ms` of silence were sent."""

    id: str
    heard_ms: float
    missed_ms: float
    underruns: int


class SpeechPaused(Server, tag="speech.paused", frozen=True):
    """The utterance stands still, because the user seems to speak: it goes on, or is stopped."""

    id: str
    heard_ms: float


class SpeechContinued(Server, tag="speech.continued", frozen=True):
    """It was no interruption: the utterance goes on from the very sample at which it stood still."""

    id: str
    heard_ms: float


class SpeechSilenced(Server, tag="speech.silenced", frozen=True):
    """What was being said had to fall silent, and the last audible packet was sent: what that took, link by link.

    turn_ms: from the end of the first frame that is speech to the decision to pause; absent after a stop. flush_ms:
    from there, or the stop, until there is nothing left to send but a fade. wire_ms: from there to the last audible
    packet, 0 where the one before was it. Not sent where nothing was playing."""

    flush_ms: float
    wire_ms: float
    turn_ms: float | None = None


class SpeechStopped(Server, tag="speech.stopped", frozen=True):
    """Nothing more of this utterance will be sent: the last word on every utterance that was accepted.

    reason: end, length, cancelled, or failed after an error with its id. heard_ms and heard: how much of it, and of its
    text, came out of the listener's jitter buffer before it was stopped; sent_ms of it are on their way."""

    id: str
    reason: str
    heard_ms: float
    sent_ms: float
    heard: str = ""
    underruns: int = 0


class TurnStarted(Server, tag="turn.started", frozen=True):
    """The user speaks, and has the turn."""


class TurnStopped(Server, tag="turn.stopped", frozen=True):
    """The user is silent; the turn may go on."""


class TurnEnded(Server, tag="turn.ended", frozen=True):
    """The user's turn is over. seconds: of speech, 0 where it was typed."""

    seconds: float


class TurnText(Server, tag="turn.text", frozen=True):
    """What the user said, where somebody knows: transcribed or typed."""

    text: str


class ReplyStarted(Server, tag="reply.started", frozen=True):
    """The agent begins to answer; the utterances of its answer are called ID.1, ID.2 and so on."""

    id: str


class ReplyText(Server, tag="reply.text", frozen=True):
    """The next piece of the answer: what the utterance `id` will say, or more of it."""

    id: str
    text: str


class ReplyEnded(Server, tag="reply.ended", frozen=True):
    """The answer is over. reason: end, interrupted, or failed; heard: its text as far as it was heard."""

    id: str
    reason: str
    heard: str


class View(Server, tag="view", frozen=True):
    """What happened since the last one, five times a second for those who watch; left out for a client that is behind.

    Instants are ms of the server's clock, `at` is now. chunks, of this call: (utterance, at, frames of 80 ms, slack_ms:
    by how much the next is expected to be early, null for the last). steps, of the engine: (stage, at, ms, rows, 1
    where this call is one of them). peers, the other calls of a server that is for show: (number, buffered_ms, 0 silent
    or 1 speaking or 2 synthetic), people's first, and no more than can be shown; calls: how many there are."""

    at: float
    heard_ms: float
    buffered_ms: float
    playing: str | None = None
    chunks: tuple[tuple[str, float, int, float | None], ...] = ()
    steps: tuple[tuple[str, float, float, int, int], ...] = ()
    peers: tuple[tuple[int, float, int], ...] = ()
    calls: int = 0


class SpeechWaterfall(Server, tag="speech.waterfall", frozen=True):
    """Where the time went from a speak message to its first packet, in order, for those who watch.

    queued_ms: until its first step; text_ms to codec_ms: in steps that it took part in; waited_ms: between them, in
    which others were served; delivered_ms: to this process; playout_ms: until the first packet. Not sent for what had
    to wait for another utterance of its call."""

    id: str
    queued_ms: float
    text_ms: float
    prefill_ms: float
    decode_ms: float
    depth_ms: float
    codec_ms: float
    waited_ms: float
    delivered_ms: float
    playout_ms: float


class DemoState(Server, tag="demo.state", frozen=True):
    """What a server that is started for show is shown with: at the beginning, and after changes, at most five times a
    second."""

    load: int
    max_load: int
    policy: str
    policies: tuple[str, ...]
    loss: float
    jitter_ms: float


class Error(Server, tag="error", frozen=True):
    """Something was refused; the call goes on. `event` is the type of the message that was, `field` the path of the
    culprit in it, `id` the utterance's, each where there is one.

    A speak whose id is taken is answered without `id`: the utterance of that id goes on."""

    code: str
    message: str
    id: str | None = None
    event: str | None = None
    field: str | None = None
    retry_after_ms: float | None = None


class Pong(Server, tag="pong", frozen=True):
    """The answer to ping."""

    t: float | None = None


ClientMessage = Speak | SessionUpdate | TextAppend | TextDone | VoiceCreate | Stop | Say | Stats | Watch | Demo | Ping
SpeechMessage = (
    SpeechQueued | SpeechStarted | SpeechProgress | SpeechUnderrun | SpeechPaused | SpeechContinued | SpeechStopped
)
"""What becomes of one utterance."""
TurnMessage = SpeechSilenced | TurnStarted | TurnStopped | TurnEnded | TurnText | ReplyStarted | ReplyText | ReplyEnded
"""What becomes of a conversation."""
ShownMessage = View | SpeechWaterfall | DemoState
"""How the server works, for those who watch."""
ServerMessage = SessionCreated | VoiceCreated | SpeechMessage | TurnMessage | ShownMessage | Error | Pong


class Events(NamedTuple):
    """Of one data channel: what the client may send and the server may send, by name."""

    client: Mapping[str, type[msgspec.Struct]]
    server: Mapping[str, type[msgspec.Struct]]


def by_name(messages: object) -> dict[str, type[msgspec.Struct]]:
    """A union's classes: each names its event, once."""
    return {str(each.__struct_config__.tag): each for each in get_args(messages)}


EVENTS = {
    CHANNEL: Events(by_name(ClientMessage), by_name(ServerMessage)),
    realtime.CHANNEL: Events(by_name(realtime.ClientEvent), by_name(realtime.ServerEvent)),
}
"""Every event there is, by the label of its data channel."""

_decoder = msgspec.json.Decoder(ClientMessage)
_encoder = msgspec.json.Encoder()


class ProtocolError(ValueError):
    """A message that cannot be taken; the text says what was expected and where. `event` is what it calls itself, and
    `field` the path of what is wrong, where they are known."""

    def __init__(self, message: str, event: str | None = None, field: str | None = None) -> None:
        super().__init__(message[:MAX_REASON_CHARS])
        self.event, self.field = event, field


def decode(text: str | bytes) -> ClientMessage:
    """One client message. Raises ProtocolError on size, encoding, JSON, type, key or value."""
    data = text.encode() if isinstance(text, str) else text
    if len(data) > MAX_MESSAGE_BYTES:
        message = f"a message holds at most {MAX_MESSAGE_BYTES} bytes, got {len(data)}"
        raise ProtocolError(message, _event(data), longest(data))
    try:
        return _decoder.decode(data)
    except UNREADABLE as error:
        raise _refusal(data, error) from error


def _refusal(data: bytes, error: Exception) -> ProtocolError:
    """The same error, with the names of event and field."""
    event, field = _event(data), field_of(str(error))
    if event is not None and field == "type":
        known = ", ".join(sorted(EVENTS[CHANNEL].client))
        return ProtocolError(f"there is no message of the type {event!r}: there are {known}", event, field)
    return ProtocolError(f"{event}: {error}" if event else str(error), event, field)


def _event(data: bytes) -> str | None:
    """What a message calls itself, if that is a name at all."""
    message = named(data)
    return message.type[:MAX_TYPE_CHARS] if message and isinstance(message.type, str) else None


def encode(message: ServerMessage) -> str:
    """The message as JSON text."""
    return _encoder.encode(message).decode()
