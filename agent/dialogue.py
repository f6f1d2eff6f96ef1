"""What passes between a conversation and whoever answers in it: messages, a user's turn, a brain. It does not know how
speech is heard or spoken, nor how an answer is found.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

AUDIO_RATE = 16_000
"""Samples a second of what a user said."""
Audio = npt.NDArray[np.int16]
"""What was said in one turn: int16 [samples] at AUDIO_RATE, mono."""


class Role(StrEnum):
    USER = "user"
    AGENT = "assistant"
    """As OpenAI calls it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One thing that was said. Of the agent's: what was really heard, `interrupted` where there was more to it."""

    role: Role
    text: str
    interrupted: bool = False
    id: str = field(default="", compare=False)
    """Of the turn or the reply that it is; the same words are the same message."""


@dataclass(frozen=True, slots=True, eq=False)
class UserTurn:
    """What the user said or typed, after `history`: everything before it, oldest first, however long ago."""

    text: str
    """Empty where nobody knows what was said."""
    history: tuple[Message, ...] = ()
    audio: Audio | None = None
    """The speech itself; None where it was typed."""
    instructions: str = ""
    """Of this conversation, for whoever answers; empty: their own."""
    max_chars: int | None = None
    """Of the reply, where this conversation may have less than others."""

    @property
    def seconds(self) -> float:
        """Of speech."""
        return 0.0 if self.audio is None else len(self.audio) / AUDIO_RATE


@dataclass(frozen=True, slots=True)
class Terms:
    """What a call was opened with, in the words of its client's protocol: `fixed` holds to its end, whatever the client
    asks for later; `asked` until then."""

    asked: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)


class Brain(Protocol):
    """Answers. One brain serves all conversations at once and keeps nothing of them: what it needs is in the turn."""

    def reply(self, turn: UserTurn) -> AsyncGenerator[str, Any]:
        """The reply as it is written. Raises OutsideError.

        May be cancelled at any await, and closed between two deltas, as by `async with aclosing(brain.reply(turn))`:
        nothing of it goes on then.
        """
        ...

    async def close(self) -> None:
        """Gives back what it holds; no reply is being written any more."""
        ...
