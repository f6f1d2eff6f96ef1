"""Who tells what a user said: nobody, an OpenAI-compatible endpoint, faster-whisper, or the app's own, within limits.

It does not know where a turn begins or ends, nor what is done with the text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Protocol, cast

import aiohttp
import msgspec
import numpy as np

from agent.called import Called
from agent.dialogue import AUDIO_RATE, Audio
from agent.endpoint import Endpoint
from agent.secret import read_secret
from agent.trouble import OutsideError, SettingsError, TranscribeError, Trouble
from agent.whisper import WhisperTranscriber
from engine.wav import header

__all__ = [
    "AUDIO_RATE",
    "Audio",
    "BoundedTranscriber",
    "NoTranscriber",
    "SettingsError",
    "TranscribeError",
    "Transcriber",
    "TranscriberConfig",
    "make_transcriber",
]

log = logging.getLogger(__name__)

MIN_SECONDS = 0.1
"""Nobody says a word in less."""
MAX_ANSWER_BYTES = 1024 * 1024

Function = Callable[[Audio], object]
"""The app's own: the audio of a turn in; its text, or a coroutine of it, out."""


class Transcriber(Protocol):
    """Audio in, text out. One serves all conversations at once."""

    async def start(self) -> None:
        """Returns once it can transcribe. Raises OutsideError where it never will."""
        ...

    async def transcribe(self, audio: Audio) -> str:
        """What was said, empty for nothing. `audio`: int16 [samples] at AUDIO_RATE. Raises OutsideError.

        May be cancelled at any await: nobody waits for the text then, and no connection is left open.
        """
        ...

    async def close(self) -> None:
        """Gives back what it holds."""
        ...


@dataclass(frozen=True, slots=True)
class TranscriberConfig:
    """Who transcribes. Keys are not in it, only where they are."""

    kind: str = "none"
    """none, openai, faster-whisper, or function, where `make_transcriber` gets the app's own."""
    url: str = ""
    """Of an OpenAI-compatible server, such as http://localhost:8000/v1."""
    model: str = ""
    """The endpoint's name of it; of faster-whisper a folder, or a name that it downloads."""
    key_env: str | None = None
    """The name of the environment variable that holds the server's key."""
    key_file: Path | None = None
    language: str = ""
    """Such as en; empty leaves it to the model, which needs longer then and may err on a short turn."""
    device: str = "cpu"
    """Of faster-whisper: cpu, auto, or what else CTranslate2 knows."""
    threads: int = 2
    """Of faster-whisper on the CPU."""
    max_waiting: int = 8
    """Turns of all conversations at once, with the one that is being transcribed: one more is refused as busy."""
    max_audio_seconds: float = 120.0
    """Of one turn: a longer one is refused."""
    seconds: float = 15.0
    """What a turn may take, with its wait for others."""


BELONGS = {
    "model": ("openai", "faster-whisper"),
    "language": ("openai", "faster-whisper"),
    "url": ("openai",),
    "key_env": ("openai",),
    "key_file": ("openai",),
    "device": ("faster-whisper",),
    "threads": ("faster-whisper",),
}
"""The kinds that a setting is of; those that are not named here are everybody's."""


class NoTranscriber:
    """Nobody knows what was said."""

    async def start(self) -> None:
        """There is nothing to start."""

    async def transcribe(self, audio: Audio) -> str:
        """Nothing."""
        return ""

    async def close(self) -> None:
        """It holds nothing."""


class Transcript(msgspec.Struct):
    """What an endpoint answers; further keys are nobody's concern."""

    text: str


class EndpointTranscriber:
    """Asks `model` at an OpenAI-compatible /audio/transcriptions endpoint (OpenAI's API reference, "Create
    transcription": a multipart form with a WAV file, JSON back)."""

    def __init__(self, endpoint: Endpoint, model: str, language: str = "") -> None:
        self._endpoint, self._model, self._language = endpoint, model, language

    async def start(self) -> None:
        """There is nothing to start: the first turn connects."""

    async def transcribe(self, audio: Audio) -> str:
        """See Transcriber.transcribe."""
        file = wav(audio)
        async with self._endpoint.post(
            "/audio/transcriptions", lambda: self._form(file), "application/json"
        ) as response:
            return transcript(await body(response), self._endpoint)

    def _form(self, file: bytes) -> aiohttp.FormData:
        form = aiohttp.FormData()
        form.add_field("file", file, filename="turn.wav", content_type="audio/wav")
        form.add_field("model", self._model)
        form.add_field("response_format", "json")
        if self._language:
            form.add_field("language", self._language)
        return form

    async def close(self) -> None:
        """Ends its connections."""
        await self._endpoint.close()


def wav(audio: Audio) -> bytes:
    """The audio as a WAV file."""
    data = audio.astype("<i2").tobytes()
    return header(AUDIO_RATE, len(data)) + data


async def body(response: aiohttp.ClientResponse) -> bytes:
    found = b""
    async for data in response.content.iter_any():
        found += data
        if len(found) > MAX_ANSWER_BYTES:
            raise OutsideError(Trouble.BROKEN, f"a transcript has at most {MAX_ANSWER_BYTES} bytes")
    return found


def transcript(answer: bytes, endpoint: Endpoint) -> str:
    try:
        return msgspec.json.decode(answer, type=Transcript).text.strip()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        got = endpoint.shown(answer[:100].decode(errors="replace"))
        reason = f'expected JSON such as {{"text": "..."}}: {error}: got {got}'
        raise OutsideError(Trouble.BROKEN, reason) from None


class FunctionTranscriber:
    """Asks a function of the app. See Called for what becomes of it when it is cancelled."""

    def __init__(self, function: Function) -> None:
        self._called = Called(function)

    async def start(self) -> None:
        """There is nothing to start."""

    async def transcribe(self, audio: Audio) -> str:
        """See Transcriber.transcribe. The app gets a copy, which it may keep; None counts as nothing."""
        said = list[str]()
        async with aclosing(self._called.outputs(audio.copy())) as outputs:
            async for text in outputs:
                if not (text is None or isinstance(text, str)):
                    raise OutsideError(
                        Trouble.BROKEN, f"the app's function must return text, got {type(text).__name__}"
                    )
                said.append(text or "")
        return "".join(said).strip()

    async def close(self) -> None:
        """What runs, runs on without anybody."""


class BoundedTranscriber:
    """A transcriber within limits, whose every failure is a TranscribeError."""

    def __init__(self, transcriber: Transcriber, max_waiting: int, max_audio_seconds: float, seconds: float) -> None:
        self._transcriber, self._max_waiting, self._waiting = transcriber, max_waiting, 0
        self._max_audio_seconds, self._seconds = max_audio_seconds, seconds

    @property
    def busy(self) -> bool:
        """A turn is waiting or being transcribed, or one is that nobody waits for any more: what need not be known
        would hold the next turn up. Of an app's own it is known where that has a `busy`, too."""
        return self._waiting > 0 or bool(getattr(self._transcriber, "busy", False))

    async def start(self) -> None:
        """Returns once it can transcribe. Raises TranscribeError where it never will."""
        try:
            await self._transcriber.start()
        except OutsideError as error:
            raise TranscribeError(error.trouble, str(error), error.retry_after) from None

    async def transcribe(self, audio: Audio) -> str:
        """What was said, empty for nothing. `audio`: int16 [samples] at AUDIO_RATE. Raises TranscribeError, after it
        was logged; ValueError for another shape or type. See Transcriber.transcribe on cancelling."""
        if audio.dtype != np.int16 or audio.ndim != 1:
            raise ValueError(f"audio must be int16 [samples], got {audio.dtype} {list(audio.shape)}")
        if len(audio) < MIN_SECONDS * AUDIO_RATE:
            return ""
        try:
            return await self._bounded(audio)
        except OutsideError as error:
            log.warning("a turn was not transcribed: %s: %s", error.trouble, error)
            raise TranscribeError(error.trouble, str(error), error.retry_after) from None
        except Exception as error:
            log.exception("the transcriber failed")
            reason = f"the transcriber raised {type(error).__name__}: {error}"
            raise TranscribeError(Trouble.BROKEN, reason) from error

    async def close(self) -> None:
        """Gives back what the transcriber holds."""
        await self._transcriber.close()

    async def _bounded(self, audio: Audio) -> str:
        if len(audio) > self._max_audio_seconds * AUDIO_RATE:
            said = f"a turn has at most {self._max_audio_seconds:g} s, this one {len(audio) / AUDIO_RATE:.0f} s"
            raise OutsideError(Trouble.REFUSED, said)
        if self._waiting >= self._max_waiting:
            raise OutsideError(Trouble.BUSY, f"{self._waiting} turns are being transcribed already", self._seconds)
        self._waiting += 1
        alarm = asyncio.timeout(self._seconds)
        try:
            async with alarm:
                return await self._transcriber.transcribe(audio)
        except TimeoutError:
            if alarm.expired():
                raise OutsideError(Trouble.TIMEOUT, f"no text came for {self._seconds:g} s") from None
            raise
        finally:
            self._waiting -= 1


def make_transcriber(config: TranscriberConfig, own: Function | Transcriber | None = None) -> BoundedTranscriber:
    """The transcriber that the settings ask for; `own` is the app's, for the kind function. Raises SettingsError."""
    check(config, own)
    inner: Transcriber
    match config.kind:
        case "none":
            inner = NoTranscriber()
        case "openai":
            endpoint = Endpoint(config.url, read_secret(config.key_env, config.key_file))
            inner = EndpointTranscriber(endpoint, config.model, config.language)
        case "faster-whisper":
            inner = whisper(config)
        case _:
            inner = cast(Transcriber, own) if hasattr(own, "transcribe") else FunctionTranscriber(cast(Function, own))
    return BoundedTranscriber(inner, config.max_waiting, config.max_audio_seconds, config.seconds)


def check(config: TranscriberConfig, own: object) -> None:
    """Raises SettingsError, also for settings that would have no effect."""
    if config.kind not in ("none", "openai", "faster-whisper", "function"):
        raise SettingsError(f"a transcriber is none, openai, faster-whisper or function, got {config.kind!r:.50}")
    if (own is not None) != (config.kind == "function"):
        raise SettingsError("the kind function, and no other, takes a function of the app")
    if own is not None and not (callable(own) or hasattr(own, "transcribe")):
        raise SettingsError(f"the app's own must be a function or a Transcriber, got {type(own).__name__}")
    unset = TranscriberConfig()
    for name, kinds in BELONGS.items():
        if config.kind not in kinds and getattr(config, name) != getattr(unset, name):
            raise SettingsError(f"{name} is a setting of {' and '.join(kinds)}, and this transcriber is {config.kind}")
    if "model" in needed(config.kind) and not config.model.strip():
        raise SettingsError(f"the transcriber {config.kind} needs a model")
    for name in ("max_waiting", "threads", "max_audio_seconds", "seconds"):
        if not 0 < getattr(config, name) < inf:
            raise SettingsError(f"{name} must be above zero and finite, got {getattr(config, name)!r}")


def needed(kind: str) -> list[str]:
    return [name for name, kinds in BELONGS.items() if kind in kinds]


def whisper(config: TranscriberConfig) -> WhisperTranscriber:
    if find_spec("faster_whisper") is None:
        raise SettingsError("faster-whisper is not installed: pip install 'breezert[whisper]'")
    folder = Path(config.model).expanduser()
    looks_like_path = config.model.startswith((".", "/", "~")) or folder.is_dir()
    if looks_like_path and not (folder / "model.bin").is_file():
        raise SettingsError(f"{config.model} is no folder of a CTranslate2 Whisper model: it has no model.bin")
    model = str(folder.resolve()) if looks_like_path else config.model
    return WhisperTranscriber(model, config.device, config.threads, config.language)
