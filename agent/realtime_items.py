"""A conversation as the Realtime protocol sees it: items in order, and how far one of the agent's was heard. It knows
neither how events are read nor calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agent.heard import spoken_ends, words
from agent.realtime import EventError, Item

ROOT = "root"
"""What a client calls the place before all items."""
DONE, OPEN, CUT = "completed", "in_progress", "incomplete"
"""States of an item."""


@dataclass(slots=True)
class Piece:
    """One utterance of an agent's item."""

    text: str
    heard: str = ""
    """What was heard of it, once it is over."""
    heard_ms: float = 0.0
    sent_ms: float = 0.0
    """Of its audio."""

    def until(self, end_ms: float) -> str:
        """What was heard of it in so much of its audio."""
        if end_ms >= self.sent_ms:
            return self.heard
        said, end = words(self.heard), 0
        for word, ends in zip(said, spoken_ends(said, (), self.sent_ms / 1000, complete=True), strict=True):
            if 1000 * ends > end_ms + 1e-6:
                break
            end = word.end
        return self.heard[:end]


@dataclass(slots=True, eq=False)
class Entry:
    """An item: who said it, and the message of the conversation's history that it is."""

    id: str
    role: str
    kind: str
    """Of its only part: input_text, input_audio, output_text or output_audio."""
    message: str
    text: str | None = None
    """None where nobody knows it."""
    status: str = DONE
    pieces: dict[str, Piece] = field(default_factory=dict)
    """By utterance; only of what the agent has spoken."""

    @property
    def spoken(self) -> str:
        """Everything that the agent says, heard or not."""
        return " ".join(piece.text for piece in self.pieces.values())

    @property
    def heard(self) -> str:
        return " ".join(filter(None, (piece.heard for piece in self.pieces.values())))

    @property
    def heard_ms(self) -> float:
        return sum(piece.heard_ms for piece in self.pieces.values())

    @property
    def audio_ms(self) -> float:
        """Of the audio that was sent."""
        return sum(piece.sent_ms for piece in self.pieces.values())

    def until(self, end_ms: float) -> str:
        """What was heard of it in so much of its audio, by whole words."""
        heard = list[str]()
        for piece in self.pieces.values():
            if end_ms > 0:
                heard.append(piece.until(end_ms))
            end_ms -= piece.sent_ms
        return " ".join(filter(None, heard))

    def shown(self, empty: bool = False) -> Item:
        """As the client is told; `empty`: before anything of it is there."""
        key = "text" if self.kind.endswith("text") else "transcript"
        part: dict[str, Any] = {"type": self.kind, key: self.text}
        return Item(id=self.id, role=self.role, status=self.status, content=() if empty else (part,))


class Items:
    """All items of a call, oldest first."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def added(self) -> int:
        """Those that the client has added."""
        return sum(entry.kind.endswith("text") for entry in self._entries)

    def __contains__(self, item_id: str) -> bool:
        return any(entry.id == item_id for entry in self._entries)

    def find(self, item_id: str) -> Entry:
        """Raises EventError."""
        return self._entries[self._place(item_id, "item_id")]

    def of(self, message: str) -> Entry | None:
        """The item that this message is."""
        return next((entry for entry in self._entries if entry.message == message), None)

    def add(self, entry: Entry, after: str | None = None) -> None:
        """Behind another item, in front of all (ROOT) or at the end. Raises EventError."""
        if after is None:
            self._entries.append(entry)
        else:
            self._entries.insert(0 if after == ROOT else self._place(after, "previous_item_id") + 1, entry)

    def remove(self, entry: Entry) -> None:
        self._entries.remove(entry)

    def before(self, entry: Entry) -> str | None:
        """The id of the item in front of it."""
        place = self._entries.index(entry)
        return self._entries[place - 1].id if place else None

    def behind(self, entry: Entry) -> set[str]:
        """The messages of what comes after it."""
        return {other.message for other in self._entries[self._entries.index(entry) + 1 :]}

    def _place(self, item_id: str, param: str) -> int:
        for place, entry in enumerate(self._entries):
            if entry.id == item_id:
                return place
        raise EventError("item_not_found", f"there is no item {item_id!r:.150}", param)
