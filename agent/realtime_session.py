"""What a client of the Realtime protocol asks of its session: checked, merged and read as the agent's own settings. It
knows no call.

Settings that mean nothing here (tools, formats, tracing) are kept as they came, and told with the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from agent.dialogue import Terms
from agent.fault import field_of
from agent.realtime import EventError, Json
from agent.turn import Settings

GROUPS = ("audio", "input", "output")
"""Settings that are merged key by key; others are replaced as a whole."""
MAX_BYTES = 100 * 1024
"""Of all settings as JSON: each change may add keys, and all of them are told every time."""
CHARS_A_TOKEN = 4
"""Of a reply's text, which is what is limited here: about what a token of English has."""
LEAST = 0.01
"""What a threshold or a silence of zero becomes."""


class TurnDetection(msgspec.Struct, frozen=True, kw_only=True):
    """When speech is speech and a turn over. Of semantic_vad, which leaves that to the server, only the last two."""

    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    prefix_padding_ms: Annotated[float, Meta(ge=0, le=5000)] | None = None
    silence_duration_ms: Annotated[float, Meta(ge=0, le=10_000)] | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None


class Input(msgspec.Struct, frozen=True, kw_only=True):
    turn_detection: TurnDetection | UnsetType | None = UNSET


class Audio(msgspec.Struct, frozen=True, kw_only=True):
    input: Input = Input()
    output: dict[str, Any] = {}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that mean something here."""

    type: Literal["realtime"] = "realtime"
    instructions: str | None = None
    audio: Audio = Audio()
    max_output_tokens: Annotated[int, Meta(ge=1, le=4096)] | Literal["inf"] = "inf"


@dataclass(frozen=True, slots=True)
class Hearing:
    """How the caller is heard."""

    settings: Settings | None
    """None: turns are over when the client says so."""
    before: float
    """Seconds that are kept in front of a turn."""
    automatic: bool
    """Every turn is answered."""
    interruptible: bool


def check(settings: Json, root: str = "session") -> None:
    """Raises EventError, which names the field, for settings that cannot be."""
    _read(settings, root)


def _read(settings: Json, root: str) -> Config:
    try:
        return msgspec.convert(settings, Config)
    except msgspec.ValidationError as error:
        raise EventError("invalid_value", str(error), field_of(str(error), root)) from error


class SessionSettings:
    """What holds in one call: what the client asks for on top of the defaults, under what its terms have fixed.

    `usual` are the server's own, None where nobody listens.
    """

    def __init__(self, session_id: str, voice: str, usual: Settings | None, terms: Terms) -> None:
        own = {"id": session_id, "object": "realtime.session", "type": "realtime"}
        self._usual, self._fixed = usual, merged(terms.fixed, own)
        self._settings = merged(defaults(session_id, voice, usual), terms.asked)
        self._hold()

    @property
    def shown(self) -> Json:
        """As the client is told."""
        return self._settings

    @property
    def output(self) -> Json:
        """Of the voice."""
        return {"output": self._settings["audio"]["output"]}

    @property
    def speaker(self) -> str:
        """Whom the client wants to hear; empty where that is no name."""
        voice = self._settings["audio"]["output"].get("voice")
        return voice if isinstance(voice, str) else ""

    @property
    def instructions(self) -> str:
        return self._config.instructions or ""

    @property
    def max_output_tokens(self) -> int | str:
        return self._config.max_output_tokens

    @property
    def max_chars(self) -> int | None:
        """Of a reply; None: the server's own limit alone."""
        tokens = self._config.max_output_tokens
        return None if isinstance(tokens, str) else CHARS_A_TOKEN * tokens

    @property
    def instructable(self) -> bool:
        """The client may say what is answered, beside the conversation itself."""
        return "instructions" not in self._fixed

    @property
    def hearing(self) -> Hearing:
        detection = self._config.audio.input.turn_detection
        if self._usual is None or detection is None or detection is UNSET:
            return Hearing(None, before=0.0, automatic=False, interruptible=True)
        before = 300.0 if detection.prefix_padding_ms is None else detection.prefix_padding_ms
        return Hearing(
            turns(detection, self._usual),
            before=before / 1000,
            automatic=detection.create_response is not False,
            interruptible=detection.interrupt_response is not False,
        )

    def update(self, change: Json) -> None:
        """Takes what is named over. Raises EventError; nothing has changed then."""
        check(change)
        settings = merged(self._settings, change)
        if len(msgspec.json.encode(settings)) > MAX_BYTES:
            raise EventError("too_long", f"a session has at most {MAX_BYTES} bytes of settings", "session")
        self._settings = settings
        self._hold()

    def _hold(self) -> None:
        """What is fixed, or cannot be otherwise."""
        self._settings = merged(self._settings, self._fixed)
        if self._usual is None:
            self._settings = merged(self._settings, {"audio": {"input": {"turn_detection": None}}})
        self._config = _read(self._settings, "session")


def defaults(session_id: str, voice: str, usual: Settings | None) -> Json:
    """The session of a client that has asked for nothing."""
    pcm = {"type": "audio/pcm", "rate": 24_000}
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": voice,
        "output_modalities": ["audio"],
        "instructions": "",
        "audio": {
            "input": {
                "format": pcm,
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": usual and detection(usual),
            },
            "output": {"format": pcm, "voice": voice, "speed": 1.0},
        },
        "tools": [],
        "tool_choice": "none",
        "max_output_tokens": "inf",
        "tracing": None,
    }


def detection(usual: Settings) -> Json:
    """The server's own settings, in the protocol's words."""
    return {
        "type": "server_vad",
        "threshold": usual.enter,
        "prefix_padding_ms": 300,
        "silence_duration_ms": round(1000 * usual.silence),
        "create_response": True,
        "interrupt_response": True,
        "idle_timeout_ms": None,
    }


def merged(settings: Json, change: Json) -> dict[str, Any]:
    """The settings with those changed that are named; neither of both is touched."""
    result = dict(settings)
    for key, value in change.items():
        old = result.get(key)
        nested = key in GROUPS and isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merged(old, value) if nested and old is not None else value
    return result


def turns(detection: TurnDetection, usual: Settings) -> Settings:
    """The server's settings with what the client wants of them.

    The threshold at which speech ends keeps its distance, but stays above half; a silence takes the others along that
    must not be longer or shorter.
    """
    settings = usual
    if detection.type == "semantic_vad":
        return settings
    if detection.threshold is not None:
        enter = max(detection.threshold, LEAST)
        leave = max(enter - (usual.enter - usual.leave), min(enter / 2, usual.leave))
        settings = replace(settings, enter=enter, leave=leave, sure=max(usual.sure, enter))
    if detection.silence_duration_ms is not None:
        silence = max(detection.silence_duration_ms / 1000, LEAST)
        settings = replace(
            settings,
            gap=min(usual.gap, silence),
            short_silence=min(usual.short_silence, silence),
            silence=silence,
            long_silence=max(usual.long_silence, silence),
        )
    return settings
