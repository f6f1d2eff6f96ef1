"""One text that a client had spoken, and what became of it, as the server tells. It does not know the call."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from agent.dial import BusyError, ClientError
from agent.protocol import Error, ServerMessage, SpeechProgress, SpeechQueued, SpeechStarted, SpeechStopped


class SpeechError(ClientError):
    """An utterance that was refused or has failed; `code` is the server's."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Spoken:
    """What became of an utterance."""

    reason: str
    """end; length, where the text was too long for the voice; cancelled, where it was stopped."""
    heard: str
    """Of its text, what was heard."""
    ttfa: float | None
    """Seconds from the message to the first PCM, as the server tells it; None where it never began."""
    heard_seconds: float
    sent_seconds: float
    underruns: int
    """How often the voice stood still because the engine was late."""


class Utterance:
    """One text that was asked for. Await it for what became of it, which may be done more than once.

    Awaiting it raises SpeechError, BusyError where all voices are busy, and LostError when the call ends first.
    """

    def __init__(self, utterance_id: str, text: str) -> None:
        self.id, self.text = utterance_id, text
        self.wait: float | None = None
        """Seconds that the server predicted until it begins, where it has to wait."""
        self.ttfa: float | None = None
        self.heard_seconds = 0.0
        """So much has been sent until now."""
        self._spoken: Spoken | None = None
        self._error: ClientError | None = None
        self._begun, self._over = asyncio.Event(), asyncio.Event()

    @property
    def over(self) -> bool:
        """Nothing more of it will be heard."""
        return self._over.is_set()

    async def begun(self) -> None:
        """Returns when its first packet was sent, or it is over without one. Raises what awaiting it raises."""
        await self._begun.wait()
        if self._error:
            raise self._error

    def __await__(self) -> Generator[Any, None, Spoken]:
        return self._end().__await__()

    async def _end(self) -> Spoken:
        await self._over.wait()
        if self._error:
            raise self._error
        assert self._spoken is not None
        return self._spoken

    def take(self, message: ServerMessage) -> None:
        """What the server says of it."""
        match message:
            case SpeechQueued():
                self.wait = message.wait_ms / 1000
            case SpeechStarted():
                self.ttfa = message.ttfa_ms / 1000
                self._begun.set()
            case SpeechProgress():
                self.heard_seconds = message.heard_ms / 1000
            case SpeechStopped():
                heard, sent = message.heard_ms / 1000, message.sent_ms / 1000
                self.heard_seconds = heard
                self._spoken = Spoken(message.reason, message.heard, self.ttfa, heard, sent, message.underruns)
                self._finish()
            case Error(retry_after_ms=wait_ms):
                late = None if wait_ms is None else BusyError(message.message, wait_ms / 1000)
                self.fail(late or SpeechError(message.message, message.code))

    def fail(self, error: ClientError) -> None:
        """It is over, for this reason."""
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self._begun.set()
        self._over.set()
