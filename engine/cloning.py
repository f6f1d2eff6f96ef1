"""From a file and what is said in it to a Reference that requests can carry: decoded, encoded by the engine, kept.

It does not know how files come here, nor who speaks like them. A file that was heard is known by the hash of its bytes
for as long as there is room. All of it blocks, and can be given up from another thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from queue import Empty, SimpleQueue
from typing import Protocol

from engine.byte_cache import ByteCache
from engine.checks import RequestError, check, check_written
from engine.core import Encoded, End, ErrorCode, Failed, ModelSpec, Output, Reference, Samples, same_reference
from engine.reference import FIELD, SAMPLE_RATE, TRANSCRIPT, check_cloning, check_transcript, decode_apart

CACHE_BYTES = 64 * 2**20
"""Of what files became: half a minute takes 240 kB."""
BYTES_A_NUMBER = 40
"""A place in a tuple, a number of its own, and a share of the frame's tuple (CPython of 64 bits)."""
PATIENCE = 60.0
"""Seconds after which a recording that has not become codes is given up: in the engine everybody who is to hear
something goes before it, and under load that may be for ever."""
RETRY_AFTER = 10.0

Frames = tuple[tuple[int, ...], ...]


class Engine(Protocol):
    """What is needed of engine.runtime.Runtime."""

    @property
    def spec(self) -> ModelSpec: ...
    def encode(self, samples: Samples, deliver: Callable[[Output], None]) -> int: ...
    def cancel(self, request_id: int) -> None: ...


class CloneFailed(RuntimeError):
    """The engine could not encode a recording that is none the worse for it; `retry_after` in seconds."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.code, self.retry_after = failed.code, failed.retry_after


class GivenUp(Exception):
    """Nobody waits for it any more."""


class Attempt:
    """One file on its way, which may be given up from another thread, whatever is being done with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given_up = False
        self._stop: Callable[[], None] | None = None

    def give_up(self) -> None:
        """Ends what is being done, and keeps anything else from being begun."""
        with self._lock:
            self._given_up = True
            if self._stop is not None:
                self._stop()

    @contextmanager
    def doing(self, stop: Callable[[], None]) -> Iterator[None]:
        """Around work that `stop`, from another thread, ends. Raises GivenUp where that has been asked for."""
        with self._lock:
            self._stop = stop
            if self._given_up:
                stop()
        try:
            yield
        except Exception:
            self.check()
            raise
        finally:
            with self._lock:
                self._stop = None
        self.check()

    def check(self) -> None:
        """Raises GivenUp."""
        if self._given_up:
            raise GivenUp


@dataclass(frozen=True, slots=True)
class Heard:
    """What a file became."""

    frames: Frames
    vector: tuple[float, ...]
    seconds: float
    """Of speech in it."""


class Cloning:
    """Makes references with one engine, for any thread. Of what it has heard, `max_bytes` are kept, and the latest few
    references (core.KNOWN_VOICES)."""

    def __init__(self, engine: Engine, max_bytes: int = CACHE_BYTES) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._cache = ByteCache[bytes, Heard](max_bytes)

    def snapshot(self) -> dict[str, float]:
        """Of the cache, by name."""
        with self._lock:
            return self._cache.snapshot("reference_cache")

    def reference(self, data: bytes, text: str, attempt: Attempt | None = None) -> Reference:
        """The voice in the bytes of a file, in which `text` is said.

        Raises RequestError for what is no recording of that text, or where the voice has no reference mode; CloneFailed
        where the engine is busy for too long or dies; GivenUp; and RuntimeError where PyAV is missing.
        """
        check_cloning(self._engine.spec, recorded=True)
        check(isinstance(data, bytes), FIELD, "the bytes of a file", data)
        check(isinstance(text, str), TRANSCRIPT, "text", text)
        check_written(TRANSCRIPT, text, self._engine.spec.max_text_chars)
        check_transcript(text)
        heard = self._heard(data, attempt or Attempt())
        check_transcript(text, heard.seconds)
        return same_reference(text.strip(), heard.frames, heard.vector)

    def _heard(self, data: bytes, attempt: Attempt) -> Heard:
        key = sha256(data).digest()
        with self._lock:
            heard = self._cache.get(key)
        if heard is not None:
            return heard
        samples = decode_apart(data, attempt.doing)
        encoded = self._encoded(samples, attempt)
        heard = Heard(tuple(map(tuple, encoded.codes.tolist())), encoded.vector, samples.size / SAMPLE_RATE)
        with self._lock:
            self._cache.put(key, heard, num_bytes(heard))
        return heard

    def _encoded(self, samples: Samples, attempt: Attempt) -> Encoded:
        outputs = SimpleQueue[Output]()
        request_id = self._engine.encode(samples, outputs.put)
        encoded: Encoded | None = None
        with attempt.doing(lambda: self._engine.cancel(request_id)):
            while not isinstance(output := self._next(outputs, request_id), End):
                if isinstance(output, Encoded):
                    encoded = output
            if isinstance(output, Failed):
                raise failure(output)
        assert encoded is not None, f"a recording that is encoded to its end became something, got {output}"
        return encoded

    def _next(self, outputs: SimpleQueue[Output], request_id: int) -> Output:
        """What the engine says next; where it says nothing for too long, it need not any more."""
        try:
            return outputs.get(timeout=PATIENCE)
        except Empty:
            self._engine.cancel(request_id)
            why = f"the recording waited {PATIENCE:g} s for its turn, behind who is spoken to: send it again later"
            return Failed(request_id, 0, ErrorCode.BUSY, why, RETRY_AFTER)


def num_bytes(made: Reference | Heard) -> int:
    """That it takes in memory."""
    return (sum(map(len, made.frames)) + len(made.vector)) * BYTES_A_NUMBER


def failure(failed: Failed) -> Exception:
    """What a refusal by the engine is to whoever sent the file."""
    return RequestError(failed.message, failed.field) if failed.code is ErrorCode.BAD_REQUEST else CloneFailed(failed)
