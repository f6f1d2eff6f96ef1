"""Who judges whether a silent user has said all: a model of the application's, or the words.

It does not know how long the silence lasts, nor who is asked for the words.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agent.dialogue import Audio
from agent.words import completeness


@dataclass(frozen=True, slots=True, eq=False)
class TurnSoFar:
    """What a user has said in a turn up to now, when they fall silent."""

    audio: Audio
    """int16 [samples] at AUDIO_RATE, with a little around the speech. Not to be written to."""
    text: Callable[[], Awaitable[str]]
    """`await turn.text()`: what was said, empty where nobody knows. It is transcribed once, for the turn itself too."""


TurnEndModel = Callable[[TurnSoFar], object]
"""Asked whenever a user falls silent: how likely the turn is over, 0 to 1, or None without an opinion.

A plain function runs in a thread of its own, a coroutine function on the event loop. Nobody waits for either: until
there is an opinion, the turn is over after `Settings.silence + Settings.words_wait`. When the user speaks on, or the
turn ends, a coroutine is cancelled, and what a thread still returns is dropped.
"""
TurnEnd = Callable[[], TurnEndModel]
"""Makes the model of one call, so that it may remember something of it."""


class SentenceEnd:
    """Judges by the words: a complete sentence is answered soon, an open one is waited for.

    Where nobody transcribes it never has an opinion.
    """

    async def __call__(self, turn: TurnSoFar) -> float | None:
        return completeness(await turn.text())
