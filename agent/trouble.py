"""What may go wrong with what answers or transcribes: kinds of trouble, and the errors that carry them.

It does not know what was asked. The text of an error is for the log of whoever runs the agent, never for its caller.
"""

from __future__ import annotations

from enum import StrEnum


class Trouble(StrEnum):
    """Why there was no answer."""

    TIMEOUT = "timeout"
    BUSY = "busy"
    """Asked too often: `retry_after` may say when to come back."""
    REFUSED = "refused"
    """A wrong key, model or address: it helps only to change something."""
    UNREACHABLE = "unreachable"
    BROKEN = "broken"
    """What came back was no answer, or ended in its middle."""


class SettingsError(ValueError):
    """Settings that cannot work; the text says what was expected and what to change, and repeats no secret."""


class OutsideError(Exception):
    """Something that the agent asked gave no answer. `retry_after` in seconds."""

    def __init__(self, trouble: Trouble, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.trouble, self.retry_after = trouble, retry_after


class BrainError(OutsideError):
    """There is no reply, or none beyond what was given out. `apology` is what to say instead; empty for silence."""

    def __init__(self, trouble: Trouble, reason: str, retry_after: float | None = None, apology: str = "") -> None:
        super().__init__(trouble, reason, retry_after)
        self.apology = apology


class TranscribeError(OutsideError):
    """Nobody knows what was said in a turn."""
