"""Voices to speak like: those that clients made of recordings, by id, and those with a name. Any call may use them.

It does not know how a recording came here. A voice that was made is known by a secret id, in memory only, until others
take its place or the server ends; one with a name is a file of the server's owner. All of these are in memory, too, so
that nobody waits for a disk: a thread looks for what has changed.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from engine.byte_cache import ByteCache
from engine.checks import RequestError, shown
from engine.cloning import Attempt, CloneFailed, GivenUp, num_bytes
from engine.core import ErrorCode, Mode, ModelSpec, Reference
from engine.reference import check_cloning
from engine.voice_folder import NamedVoice, VoiceFolder

log = logging.getLogger(__name__)

MAX_VOICES_BYTES = 32 * 2**20
"""Of those that clients made: half a minute of a recording takes 240 kB."""
AT_ONCE, MAX_WAITING = 2, 16
"""Recordings that are worked on, and that wait for that: each may be 10 MB, decoded by a process of its own."""
RETRY_AFTER = 2.0
LOOK_SECONDS = 1.0
"""Between two looks at the folder, for files that have come, changed or gone."""
FIELDS = {"reference": "audio", "reference text": "text"}
"""What the engine calls a field, and what clients do who send a recording."""
PREFIX = "voice_"
"""Of an id, which so is no name."""


class Cloner(Protocol):
    """What is needed of engine.runtime.Runtime."""

    @property
    def spec(self) -> ModelSpec: ...
    def clone(self, data: bytes, text: str, attempt: Attempt | None = None) -> Reference: ...


@dataclass(frozen=True, slots=True)
class Made:
    """A voice that was made."""

    id: str
    seconds: float
    """Of speech in its recording."""


class VoicesBusy(Exception):
    """There is no room for a recording now; `code` says of what kind that is, `retry_after` is in seconds."""

    def __init__(self, message: str, code: ErrorCode, retry_after: float | None) -> None:
        super().__init__(message)
        self.code, self.retry_after = code, retry_after


class NamedVoices:
    """Those of a folder, which are read at once, and then on a thread where they change. To be closed."""

    def __init__(self, folder: VoiceFolder, spec: ModelSpec) -> None:
        self._folder, self._spec = folder, spec
        self._read: Mapping[str, tuple[int, NamedVoice | str]] = {}
        """By name, when the file was last changed, and the voice, or what is wrong with it. Replaced as a whole."""
        self._closed = threading.Event()
        self._look()
        threading.Thread(target=self._follow, name="voices", daemon=True).start()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._read)

    def find(self, name: str) -> Reference | None:
        """None where there is none of that name. Raises RequestError for one that cannot be spoken with."""
        known = self._read.get(name)
        if known is None:
            return None
        voice = known[1]
        if isinstance(voice, str):
            raise RequestError(voice, "voice")
        voice.check(self._spec)
        return voice.reference

    def close(self) -> None:
        """Looks no more."""
        self._closed.set()

    def _follow(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        try:
            self._read = {name: self._file(name) for name in self._folder.names()}
        except OSError as error:
            log.warning("the folder of voices cannot be read: %s", error)

    def _file(self, name: str) -> tuple[int, NamedVoice | str]:
        """As it is known, unless it has changed, or could not be read."""
        changed, known = self._folder.changed(name), self._read.get(name)
        if known is not None and known[0] == changed and isinstance(known[1], NamedVoice):
            return known
        try:
            return changed, self._folder.read(name)
        except RequestError as error:
            return changed, str(error)


class Voices:
    """All of one server's. To be used on one event loop, and closed."""

    def __init__(self, engine: Cloner, folder: VoiceFolder | None = None, max_bytes: int = MAX_VOICES_BYTES) -> None:
        self._engine = engine
        self._made = ByteCache[str, Reference](max_bytes)
        self._named = NamedVoices(folder, engine.spec) if folder is not None else None
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cloning")
        self._attempts: set[Attempt] = set()
        self._turn = asyncio.Semaphore(AT_ONCE)
        """Who waits here and goes takes their recording along; what waits in a pool keeps it until a thread is free."""

    @property
    def names(self) -> tuple[str, ...]:
        """Those that are files, where the engine's voice can speak like them."""
        speaks = self._named is not None and Mode.CLONE in self._engine.spec.modes
        return self._named.names if self._named is not None and speaks else ()

    def find(self, voice: str) -> Reference:
        """The voice of that id or name. Raises RequestError where there is none, or where the engine cannot clone."""
        check_cloning(self._engine.spec, field="voice")
        named = self._named.find(voice) if self._named is not None else None
        reference = named or self._made.get(voice)
        if reference is None:
            known = ", ".join(self.names) or "none"
            raise RequestError(
                f"voice must be the id of one that was made here, or one of those with a name ({known}), got "
                f"{shown(voice)}; make it again, if it is long ago",
                "voice",
            )
        return reference

    def has(self, voice: str) -> bool:
        """Whether it reads like an id or a name of one, rather than a speaker's."""
        return voice.startswith(PREFIX) or voice in self.names

    async def make(self, data: bytes, text: str) -> Made:
        """A voice from the bytes of a file in which `text` is said. Cancelled, it is given up whatever is being done.

        Raises RequestError for what is no recording of that text, VoicesBusy, and RuntimeError where PyAV is missing.
        """
        if len(self._attempts) >= AT_ONCE + MAX_WAITING:
            raise VoicesBusy(
                "too many recordings are being worked on: send it again later", ErrorCode.BUSY, RETRY_AFTER
            )
        attempt = Attempt()
        self._attempts.add(attempt)
        try:
            async with self._turn:
                attempt.check()
                loop = asyncio.get_running_loop()
                reference = await loop.run_in_executor(self._threads, self._engine.clone, data, text, attempt)
        except CloneFailed as failed:
            raise VoicesBusy(str(failed), failed.code, failed.retry_after) from failed
        except GivenUp as error:  # by close()
            raise VoicesBusy("the server ends", ErrorCode.CLOSED, None) from error
        except asyncio.CancelledError:
            attempt.give_up()
            raise
        finally:
            self._attempts.discard(attempt)
        return self._keep(reference)

    def _keep(self, reference: Reference) -> Made:
        made = Made(PREFIX + secrets.token_urlsafe(16), len(reference.frames) * self._engine.spec.frame_seconds)
        self._made.put(made.id, reference, num_bytes(reference))
        return made

    def forget(self, voice: str) -> bool:
        """One that a client made; whether it was there."""
        return self._made.remove(voice)

    async def close(self) -> None:
        """Gives up what is being worked on, and returns when that has ended."""
        if self._named is not None:
            self._named.close()
        for attempt in self._attempts:
            attempt.give_up()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


def in_their_words(error: RequestError) -> tuple[str, str | None]:
    """What a client who sent a recording is told, and the field's name."""
    named = FIELDS.get(error.field or "")
    return str(error) if named is None else str(error).replace(str(error.field), named, 1), named


def found(voices: Voices | None, voice: str | None) -> Reference | None:
    """Whom to speak like, if anybody. Raises RequestError for a voice that is not there."""
    if not voice:
        return None
    if voices is None:
        raise RequestError(f"voice must be left out, since there is none here, got {shown(voice)}", "voice")
    return voices.find(voice)
