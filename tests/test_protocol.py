"""agent/protocol.py: what goes over the data channel, in both directions, and what is not taken."""

from __future__ import annotations

import ast
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import protocol, realtime
from agent.protocol import (
    CHANNEL,
    EVENTS,
    MAX_MESSAGE_BYTES,
    ClientMessage,
    Error,
    Ping,
    Pong,
    ProtocolError,
    ReplyEnded,
    ReplyStarted,
    ReplyText,
    SessionCreated,
    Speak,
    SpeechContinued,
    SpeechPaused,
    SpeechProgress,
    SpeechQueued,
    SpeechSilenced,
    SpeechStarted,
    SpeechStopped,
    SpeechUnderrun,
    Stats,
    Stop,
    TurnEnded,
    TurnStarted,
    TurnStopped,
    TurnText,
    decode,
    encode,
)
from engine.core import ErrorCode


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"type": "speak", "id": "a", "text": "Hi."}', Speak(id="a", text="Hi.")),
        (
            '{"type":"speak","id":"a","text":"Hi.","speaker":"S1","instruction":"softly","seed":3,"temperature":0}',
            Speak(id="a", text="Hi.", speaker="S1", instruction="softly", seed=3, temperature=0.0),
        ),
        ('{"type": "stop"}', Stop()),
        ('{"type": "stats"}', Stats()),
        ('{"type": "stats", "jitter": 0.01, "packets_lost": 3}', Stats(jitter=0.01, packets_lost=3)),
        ('{"type": "ping"}', Ping()),
        ('{"type": "ping", "t": 12.5}', Ping(t=12.5)),
    ],
)
def test_client_messages(text: str, message: ClientMessage) -> None:
    assert decode(text) == message
    assert decode(text.encode()) == message


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        (
            SessionCreated(
                id="c", voice="v", licence="L", sample_rate=24_000, modes=("plain",), max_text_chars=9, max_queued=8
            ),
            {
                "type": "session.created",
                "id": "c",
                "voice": "v",
                "licence": "L",
                "sample_rate": 24_000,
                "modes": ["plain"],
                "max_text_chars": 9,
                "max_queued": 8,
            },
        ),
        (SpeechQueued(id="a", wait_ms=800.0), {"type": "speech.queued", "id": "a", "wait_ms": 800.0}),
        (SpeechStarted(id="a", ttfa_ms=120.5), {"type": "speech.started", "id": "a", "ttfa_ms": 120.5}),
        (
            SpeechProgress(id="a", heard_ms=1.0, buffered_ms=2.0, underruns=0),
            {"type": "speech.progress", "id": "a", "heard_ms": 1.0, "buffered_ms": 2.0, "underruns": 0},
        ),
        (
            SpeechUnderrun(id="a", heard_ms=1.0, missed_ms=2.0, underruns=1),
            {"type": "speech.underrun", "id": "a", "heard_ms": 1.0, "missed_ms": 2.0, "underruns": 1},
        ),
        (
            SpeechStopped(id="a", reason="end", heard_ms=5.0, sent_ms=6.0),
            {"type": "speech.stopped", "id": "a", "reason": "end", "heard_ms": 5.0, "sent_ms": 6.0},
        ),
        (
            SpeechStopped(id="a", reason="cancelled", heard_ms=5.0, sent_ms=6.0, heard="Hello", underruns=2),
            {
                "type": "speech.stopped",
                "id": "a",
                "reason": "cancelled",
                "heard_ms": 5.0,
                "sent_ms": 6.0,
                "heard": "Hello",
                "underruns": 2,
            },
        ),
        (SpeechPaused(id="a", heard_ms=5.0), {"type": "speech.paused", "id": "a", "heard_ms": 5.0}),
        (
            SpeechSilenced(flush_ms=0.5, wire_ms=12.0, turn_ms=40.0),
            {"type": "speech.silenced", "flush_ms": 0.5, "wire_ms": 12.0, "turn_ms": 40.0},
        ),
        (SpeechContinued(id="a", heard_ms=5.0), {"type": "speech.continued", "id": "a", "heard_ms": 5.0}),
        (TurnStarted(), {"type": "turn.started"}),
        (TurnStopped(), {"type": "turn.stopped"}),
        (TurnEnded(seconds=1.5), {"type": "turn.ended", "seconds": 1.5}),
        (TurnText(text="Hi."), {"type": "turn.text", "text": "Hi."}),
        (ReplyStarted(id="r"), {"type": "reply.started", "id": "r"}),
        (ReplyText(id="r.1", text="Yes."), {"type": "reply.text", "id": "r.1", "text": "Yes."}),
        (
            ReplyEnded(id="r", reason="end", heard="Yes."),
            {"type": "reply.ended", "id": "r", "reason": "end", "heard": "Yes."},
        ),
        (
            Error(code=ErrorCode.BUSY, message="m", id="a", retry_after_ms=10.0),
            {"type": "error", "code": "busy", "message": "m", "id": "a", "retry_after_ms": 10.0},
        ),
        (Pong(t=3.0), {"type": "pong", "t": 3.0}),
        (Pong(), {"type": "pong"}),
    ],
)
def test_server_messages(message: msgspec.Struct, fields: dict[str, object]) -> None:
    assert json.loads(encode(message)) == fields  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "truncated"),
        ("{", "truncated"),
        ("null", "object"),
        ("{}", "type"),
        ('{"type": 3}', "type"),
        ('{"type": "speech.started", "id": "a", "ttfa_ms": 1}', "speech.started"),  # only the server says that
        ('{"type": "speak", "id": "a"}', "text"),
        ('{"type": "speak", "text": "a"}', "id"),
        ('{"type": "speak", "id": "' + "i" * 129 + '", "text": "a"}', "128"),
        ('{"type": "speak", "id": "a", "text": "b", "seed": 1.5}', "seed"),
        ('{"type": "stop", "now": true}', "now"),
        ('{"type": "ping", "t": NaN}', "malformed"),
    ],
)
def test_what_cannot_be_taken_says_where(text: str, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        decode(text)


@pytest.mark.parametrize(
    ("text", "event", "field"),
    [
        ("[]", None, None),
        ("{}", None, "type"),
        ('{"type": 3}', None, "type"),
        ('{"type": "say it"}', "say it", "type"),
        ('{"type": "speak", "id": "a"}', "speak", "text"),
        ('{"type": "speak", "id": "a", "text": 5}', "speak", "text"),
        ('{"type": "stop", "now": true}', "stop", "now"),
        ('{"type": "stats", "packets_lost": 1.5}', "stats", "packets_lost"),
        ('{"type": "speak", "id": "a", "text": "' + "x" * MAX_MESSAGE_BYTES + '"}', "speak", "text"),
        ('{"type": "speak", "id": "' + "x" * MAX_MESSAGE_BYTES + '"}', "speak", "id"),
        ("[" + "1," * MAX_MESSAGE_BYTES + "1]", None, None),
        ('{"' + "k" * MAX_MESSAGE_BYTES + '": 1}', None, "k" * 64),
        ("{" + "x" * MAX_MESSAGE_BYTES, None, None),
    ],
)
def test_what_cannot_be_taken_is_named(text: str, event: str | None, field: str | None) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(text)
    assert (caught.value.event, caught.value.field) == (event, field)
    assert event is None or event in str(caught.value) or "at most" in str(caught.value)


def test_an_error_does_not_echo_more_than_a_line() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode('{"type": "stop", "' + "k" * 10_000 + '": 1}')
    assert len(str(caught.value)) <= 300


def test_a_message_may_have_64_kb_counted_in_bytes() -> None:
    frame = len('{"type":"speak","id":"a","text":""}')
    fits = json.dumps({"type": "speak", "id": "a", "text": "x" * (MAX_MESSAGE_BYTES - frame)}, separators=(",", ":"))
    assert len(fits) == 65_536
    decode(fits)
    with pytest.raises(ProtocolError, match="at most 65536 bytes, got 65537"):
        decode(fits + " ")
    with pytest.raises(ProtocolError, match="65536"):
        decode(json.dumps({"type": "speak", "id": "a", "text": "é" * 32_768}, ensure_ascii=False))


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_anything_else_is_a_protocol_error_and_nothing_worse(data: bytes | str) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(decode(data), msgspec.Struct)


@given(st.text(), st.text(min_size=1, max_size=128))
def test_text_survives_the_channel(text: str, name: str) -> None:
    message = json.dumps({"type": "speak", "id": name, "text": text})
    try:
        spoken = decode(message)
    except ProtocolError as error:
        assert "surrogate" in str(error) or "65536" in str(error) or "unicode" in str(error).lower()
        return
    assert isinstance(spoken, Speak)
    assert (spoken.id, spoken.text) == (name, text)


# ---- the one table ----------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[1]
TABLES = {"protocol.py", "realtime.py"}
"""Where an event's name stands, at its class."""
OUTSIDE = {"browser.py", "wrtc.py", *(path.name for path in (ROOT / "agent").glob("bench_*.py"))}
"""They listen from outside, as any client does, and know messages by their names."""


def written_names(file: Path) -> set[str]:
    """Of events, as a string in the code. `error`, `stop` and the like are words of other things, too."""
    known = {name for of_channel in EVENTS.values() for side in of_channel for name in side if "." in name}
    return {node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)} & known


def test_every_class_of_a_message_is_in_the_table_and_no_name_stands_twice() -> None:
    for of_channel, module in ((EVENTS[CHANNEL], protocol), (EVENTS[realtime.CHANNEL], realtime)):
        for base, side in ((module.Client, of_channel.client), (module.Server, of_channel.server)):
            classes = [each for each in descendants(base) if each.__struct_config__.tag is not None]
            assert {str(each.__struct_config__.tag): each for each in classes} == dict(side)
            assert len(classes) == len(side)


def descendants(base: Any) -> Iterator[Any]:
    for each in base.__subclasses__():
        yield each
        yield from descendants(each)


def test_no_other_module_of_the_server_names_an_event() -> None:
    files = [path for path in (ROOT / "agent").glob("*.py") if path.name not in TABLES | OUTSIDE]
    assert len(files) > 50
    assert {path.name: written_names(path) for path in files if written_names(path)} == {}
    for name in TABLES:
        assert written_names(ROOT / "agent" / name), "the search finds what is there"


@pytest.mark.parametrize("label", EVENTS)
def test_a_message_is_read_as_its_class_in_the_table(label: str) -> None:
    read = decode if label == CHANNEL else realtime.decode
    for name, kind in EVENTS[label].client.items():
        wanted = {field.encode_name for field in msgspec.structs.fields(kind) if field.required}
        given = {"type": name, **{key: value for key, value in VALUES.items() if key in wanted}}
        assert type(read(json.dumps(given))) is kind


VALUES = {
    "id": "a",
    "text": "Hi.",
    "on": True,
    "session": {},
    "item": {"type": "message"},
    "item_id": "a",
    "content_index": 0,
    "audio_end_ms": 0,
    "audio": "",
    "transcript": "Hi.",
}
"""Of the fields that must be there."""
