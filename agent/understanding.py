"""Finds out while a user is silent what they have said and whether they are done, before anybody has to know: what is
found is a Judge's opinion, and the turn's text. It knows neither durations nor what is answered.

At most one transcription and one opinion of a call are in the making, and no transcription is begun while the
transcriber is busy: one that may serve all calls must not make a turn that is over wait for a guess. Its failures are
nobody's trouble: a turn that is to be answered is then transcribed as if nobody had asked before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from numbers import Real
from typing import Any, TypeGuard, TypeVar

from agent.called import Called
from agent.dialogue import Audio
from agent.transcribe import BoundedTranscriber
from agent.trouble import OutsideError
from agent.turn import MAX_LATE
from agent.turn_end import TurnEndModel, TurnSoFar
from agent.words import Backchannels

log = logging.getLogger(__name__)

T = TypeVar("T")
Span = tuple[float, float]
"""From when to when somebody spoke, on the clock of the ears."""


class Understanding:
    """Of one user. To be used on the event loop; a Judge (see turn.py) for their turns.

    audio: what was heard between two instants, as Ears.audio gives it.
    model: judges whether a turn is over; None: silence alone does.
    backchannels: words and short phrases that stop no agent, beside those of words.py.
    """

    def __init__(
        self,
        transcriber: BoundedTranscriber,
        audio: Callable[[float, float], Audio],
        model: TurnEndModel | None = None,
        backchannels: Iterable[str] = (),
    ) -> None:
        self._transcriber, self._audio = transcriber, audio
        self._model = None if model is None else Called(model)
        self._backchannels = Backchannels(backchannels)
        self._span: Span | None = None
        self._text: asyncio.Task[str] | None = None
        self._opinion: asyncio.Task[float | None] | None = None
        self._asked: asyncio.Task[Any] | None = None
        self._wordless = False
        """The model wanted the words while the transcriber was busy."""
        self._late = 0
        """Opinions in a row that came too late for their turn."""
        self._complained: set[str] = set()
        self._closed = False

    # ---- a Judge ----------------------------------------------------------------------------------------------

    @property
    def asking(self) -> bool:
        """See Judge."""
        return self._asked is not None and not self._asked.done()

    def interrupts(self, onset_at: float, ended_at: float) -> bool:
        """See Judge: whatever has words, and others than a listener's."""
        if self._closed:
            return False
        self._turn_to((onset_at, ended_at))
        self._asked = text = self._transcription((onset_at, ended_at))
        return succeeded(text) and not self._backchannels.cover(text.result())

    def over(self, onset_at: float, ended_at: float) -> float | None:
        """See Judge: what the model says. After MAX_LATE opinions in a row that came too late no more are asked for."""
        if self._model is None or self._closed or self._late >= MAX_LATE:
            self._asked = None
            return None
        self._turn_to((onset_at, ended_at))
        if self._opinion is None or self._worth_another():
            self._wordless = False
            self._opinion = self._begin(self._judged(self._model, (onset_at, ended_at)), "the turn-end model")
        self._asked = self._opinion
        return self._opinion.result() if succeeded(self._opinion) else None

    def drop(self) -> None:
        """See Judge."""
        for task in (self._text, self._opinion):
            if task is not None:
                task.cancel()
        self._span = self._text = self._opinion = self._asked = None

    # ---- a turn's words ---------------------------------------------------------------------------------------

    async def words(self, audio: Audio, onset_at: float, ended_at: float) -> str:
        """What was said in a turn that is over. `audio` is all of it. Raises OutsideError.

        What is known, or being found out, of the very same instants is not asked for again.
        """
        self._note_late((onset_at, ended_at))
        known = self._take((onset_at, ended_at))
        return await (known or self._transcriber.transcribe(audio))

    def close(self) -> None:
        """Finds out nothing any more."""
        self._closed = True
        self.drop()

    def _worth_another(self) -> bool:
        """The model had no opinion for want of words, which can be had now."""
        known = self._opinion
        return self._wordless and not self._transcriber.busy and succeeded(known) and known.result() is None

    def _note_late(self, span: Span) -> None:
        """The turn is over: an opinion that is still being formed is of no use to it."""
        if self._opinion is not None and span == self._span:
            self._late = 0 if self._opinion.done() else self._late + 1

    def _take(self, span: Span) -> asyncio.Task[str] | None:
        """Gives the text to whoever waits for it, and may cancel it by being cancelled."""
        text = self._text if span == self._span else None
        if text is None or (text.done() and not succeeded(text)):
            return None
        self._text = None
        self.drop()
        return text

    # ---- the asking -------------------------------------------------------------------------------------------

    def _turn_to(self, span: Span) -> None:
        if span != self._span:
            self.drop()
            self._span = span

    def _transcription(self, span: Span) -> asyncio.Task[str] | None:
        """None while the transcriber is busy, and nothing was asked of it before."""
        if self._text is None and not self._transcriber.busy:
            self._text = self._begin(self._transcriber.transcribe(self._audio(*span)), "the transcriber")
        return self._text

    async def _text_of(self, span: Span) -> str:
        """For the model; empty once nobody asks for it any more, and where it cannot be known."""
        if span != self._span:
            return ""
        text = self._transcription(span)
        self._wordless = text is None
        if text is None:
            return ""
        try:
            return await asyncio.shield(text)  # the turn may want it when no model does
        except OutsideError:
            return ""

    async def _judged(self, model: Called, span: Span) -> float | None:
        """Raises what the model raises, and ValueError for what is no opinion."""
        turn = TurnSoFar(self._audio(*span), partial(self._text_of, span))
        opinion = [each async for each in model.outputs(turn)][-1]
        if opinion is None:
            return None
        if isinstance(opinion, Real) and 0 <= float(opinion) <= 1:  # NumPy's are real, too
            return float(opinion)
        raise ValueError(f"a turn-end model must return 0 to 1 or None, got {opinion!r:.80}")

    def _begin(self, finding: Coroutine[Any, Any, T], who: str) -> asyncio.Task[T]:
        task = asyncio.create_task(finding)
        task.add_done_callback(partial(self._complain, who))
        return task

    def _complain(self, who: str, task: asyncio.Task[Any]) -> None:
        """Once a call: its failing costs nothing but time."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        if who not in self._complained:
            self._complained.add(who)
            log.info("%s could not be asked while the user was silent: %s: %s", who, type(error).__name__, error)


def succeeded(task: asyncio.Task[T] | None) -> TypeGuard[asyncio.Task[T]]:
    return task is not None and task.done() and not task.cancelled() and task.exception() is None
