"""A turn of the user's and what is answered to it, while that is thought about and spoken. They do not know who thinks
or speaks.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from agent.dialogue import Audio


@dataclass(frozen=True, slots=True, eq=False)
class Said:
    """A turn of the user's: typed, or spoken between these instants."""

    id: str
    text: str = ""
    audio: Audio | None = None
    onset_at: float = 0.0
    ended_at: float = 0.0


@dataclass(slots=True)
class Reply:
    """What is answered to one turn."""

    id: str
    said: Said | None = None
    """The turn, until its words are known: a reply that is cut before leaves them to the next."""
    task: asyncio.Task[None] | None = None
    begun: bool = False
    """The watcher knows of it."""
    started: bool = False
    """reply.started was sent: there is something to say."""
    pieces: int = 0
    open: set[str] = field(default_factory=set)
    """Utterances that are not over."""
    heard: list[str] = field(default_factory=list)
    written: bool = False
    """No more text will come."""
    failed: bool = False
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever an utterance is over."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def heard_text(self) -> str:
        return " ".join(piece for piece in self.heard if piece)

    def cancel(self) -> None:
        """No more text is wanted."""
        if self.task is not None:
            self.task.cancel()
