"""A reply as it is written, in utterances that can be said while they are. It does not know who writes or speaks.

Each goes on for a few sentences, since a voice speaks best in one breath; then it ends where a sentence does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from agent.sentences import speakable

SOFT_CHARS = 300
"""After so many, an utterance ends with its sentence: about 20 s, of which an interruption leaves what was heard."""
MAX_CHARS = 1000
SENTENCE_END = re.compile(r"[.!?…][\"')\]]*(?=\s)|[。！？]|\n")
MARKS = tuple(".!?…\"')]")


class Flow:
    """Takes what is written, and says which utterance it belongs to."""

    def __init__(self, max_chars: int = MAX_CHARS) -> None:
        self._max_chars = min(MAX_CHARS, max_chars)
        self._chars = 0
        self._last = ""
        self._held = ""
        """The beginning of an utterance in which nothing can be said yet, such as the sign before a number."""

    def push(self, delta: str) -> Iterator[tuple[str, bool]]:
        """Pieces of it, and whether an utterance ends with each, the first of which has something to say. White space
        before that is left out."""
        delta, self._held = self._held + delta, ""
        while delta := delta if self._chars else delta.lstrip():
            if not self._chars and len(delta) < self._max_chars and not speakable(delta):
                self._held = delta
                return
            cut = self._cut(delta)
            piece, delta = (delta, "") if cut is None else (delta[:cut], delta[cut:])
            self._chars = self._chars + len(piece) if cut is None else 0
            self._last = piece[-1:] or self._last
            yield piece, cut is not None

    def _cut(self, delta: str) -> int | None:
        """Where in it the utterance ends, if it does."""
        room = self._max_chars - self._chars
        if self._chars >= SOFT_CHARS and delta[0].isspace() and self._last in MARKS:
            return 0
        for mark in SENTENCE_END.finditer(delta, 0, room):
            if self._chars + mark.end() >= SOFT_CHARS:
                return mark.end()
        if len(delta) <= room:
            return None
        space = delta.rfind(" ", 1, room)
        return space if space > 0 else room
