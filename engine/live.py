"""Plays a script to the real engine in real time: everybody calls, listens and interrupts when the script says so.

It knows no model and no scheduling. The listeners are the simulator's own and live by the script's time, so that what
was real and what was simulated is told alike; only the engine hears of instants of its own clock.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Protocol

from engine.checks import RequestError
from engine.clock import Clock, MonotonicClock
from engine.core import Cancel, Chunk, End, Event, Failed, FinishReason, ModelSpec, Output, Playhead, Request
from engine.listener import Listener, listeners
from engine.metrics import Count
from engine.open_text import BEGIN
from engine.simulator import Simulation
from engine.traffic import Utterance

log = logging.getLogger(__name__)

SOON = 0.1
"""Seconds between the start of a run and the script's instant 0."""
SETTLING = 2.0
"""Seconds within which an engine that has nothing to do says so."""
POLL = 0.02
WORD = re.compile(r"\s*\S+")


class Engine(Protocol):
    """What is played to: engine.runtime.Runtime, or a double of it."""

    @property
    def spec(self) -> ModelSpec: ...

    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int: ...

    def append_text(self, request_id: int, text: str) -> None: ...

    def end_text(self, request_id: int, text: str = "") -> None: ...

    def cancel(self, request_id: int) -> None: ...

    def playhead(self, event: Playhead) -> None: ...

    def snapshot(self) -> Mapping[str, float]: ...


class Agenda:
    """What is to be done at which instant. One thread does it; others may add to it, and end it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._changed = threading.Condition()
        self._over = False

    def add(self, at: float, do: Callable[[], None]) -> None:
        with self._changed:
            heappush(self._heap, (at, next(self._order), do))
            self._changed.notify()

    def end(self) -> None:
        """What is still to be done is left undone."""
        with self._changed:
            self._over = True
            self._changed.notify()

    def run(self) -> None:
        """Returns at the end."""
        while do := self._next():
            do()

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._over:
                left = self._heap[0][0] - self._clock.now() if self._heap else None
                if left is not None and left <= 0:
                    return heappop(self._heap)[2]
                self._changed.wait(left)
        return None


class Live:
    """One run of a script. `ended` is called after each utterance, on the engine's reader thread."""

    def __init__(
        self,
        engine: Engine,
        script: Sequence[Utterance],
        requests: Sequence[Request],
        ended: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        assert len(script) == len(requests), f"a request each, got {len(requests)} for {len(script)} utterances"
        self._engine, self._script, self._requests, self._ended = engine, script, requests, ended
        self._clock = clock or MonotonicClock()
        self._agenda = Agenda(self._clock)
        self._ids: dict[int, int] = {}
        self._left = len(script)
        self._failure: Failed | None = None
        self._start = 0.0
        self._before: Mapping[str, float] = {}
        self._ends: list[tuple[float, Output]] = []
        self.listeners = listeners(script)

    def run(self) -> Simulation:
        """What happened; of the outputs, the ends. Returns when every utterance is over. Raises RuntimeError when one
        fails."""
        self._start = self._clock.now() + SOON
        self._agenda.add(self._start, self._count)
        for number, said in enumerate(self._script):
            self._agenda.add(self._start + said.at, partial(self._submit, number))
        self._agenda.run()
        if self._failure is not None:
            raise RuntimeError(f"every request was to be served, one was not: {self._failure.message}")
        return Simulation(tuple(self.listeners), self._ends, self._ends[-1][0], metrics=self._counted())

    def _count(self) -> None:
        self._before = self._engine.snapshot()

    def _counted(self) -> dict[str, float]:
        """What the engine counted in the meantime. It tells when it has nothing left to do."""
        deadline = self._clock.now() + SETTLING
        while True:
            after = self._engine.snapshot()
            counts = {name: after[name] - self._before.get(name, 0.0) for name in after if name.endswith("_total")}
            ended = sum(counts.get(count, 0.0) for count in (Count.FINISHED, Count.CANCELLED))
            if ended == len(self._script):
                return counts
            if self._clock.now() > deadline:
                raise RuntimeError(f"expected an engine that counts {len(self._script)} ends, got {ended}: run it anew")
            threading.Event().wait(POLL)

    def trace(self) -> list[Utterance]:
        """What was really said, and when: with the lengths that the engine gave it. What it did not make to the end
        would have been as long as the script has it."""
        return [self._really(said, listener) for said, listener in zip(self._script, self.listeners, strict=True)]

    def _really(self, said: Utterance, listener: Listener) -> Utterance:
        end = listener.end
        assert end is not None and not isinstance(end, Failed), f"a trace is of utterances that were served, got {end}"
        frames = max(1, end.stats.num_frames)
        if end.reason is FinishReason.CANCELLED:
            frames = max(frames, said.frames)
        tokens = end.stats.text_tokens if said.text_rate is None else listener.said.text_tokens
        return replace(listener.said, frames=frames, text_tokens=tokens)

    @property
    def started_at(self) -> float:
        """The script's instant 0, on the engine's clock."""
        return self._start

    def _now(self) -> float:
        """In the script's time."""
        return self._clock.now() - self._start

    # ---- the agenda's thread ----

    def _submit(self, number: int) -> None:
        """TTFA counts from now on: the agenda may be late. Nobody hangs up before he has called."""
        listener, request, now = self.listeners[number], self._requests[number], self._now()
        follows, cancel_at = listener.said.follows, listener.said.cancel_at
        if follows is not None:
            request = replace(request, follows=self._ids[follows])
        if cancel_at is not None:
            cancel_at = max(cancel_at, now)
        listener.said = replace(listener.said, at=now, cancel_at=cancel_at)
        words = WORD.findall(request.text) if listener.said.text_rate is not None else []
        if words:
            listener.said = replace(listener.said, text_tokens=len(words))
            request = replace(request, text="", open=True)
        self._ids[number] = self._engine.submit(request, partial(self._deliver, listener))
        for place, word in enumerate(words):
            at = self._start + now + place / (listener.said.text_rate or inf)
            self._agenda.add(at, partial(self._write, number, word, len(words), place))
        if cancel_at is not None:
            self._agenda.add(self._start + cancel_at, partial(self._hang_up, number))

    def _write(self, number: int, word: str, words: int, place: int) -> None:
        """The next word of a text. TTFA counts from the one that makes enough certain to begin with."""
        listener, last = self.listeners[number], place == words - 1
        if place == min(BEGIN, words - 1):
            listener.text_at = self._now()
        if listener.end is not None:
            return  # it has ended before its text
        try:
            (self._engine.end_text if last else self._engine.append_text)(self._ids[number], word)
        except RequestError as error:
            log.debug("it ended just now: %s", error)

    def _hang_up(self, number: int) -> None:
        listener = self.listeners[number]
        listener.said = replace(listener.said, cancel_at=self._now())
        self._engine.cancel(self._ids[number])

    def _tell(self, event: Event) -> None:
        if isinstance(event, Cancel):
            self._engine.cancel(event.request_id)
        elif isinstance(event, Playhead):
            self._engine.playhead(replace(event, at=self._start + event.at))

    # ---- the engine's reader thread ----

    def _deliver(self, listener: Listener, output: Output) -> None:
        if isinstance(output, Chunk):
            self._hear(listener, output)
        elif isinstance(output, End):
            self._end(listener, output)

    def _hear(self, listener: Listener, chunk: Chunk) -> None:
        now, rate = self._now(), self._engine.spec.sample_rate
        listener.request_id = chunk.request_id
        listener.hear(len(chunk.pcm) / rate, now, chunk.text_late)
        for at, event in listener.events(now, rate):
            if at <= now:
                self._tell(event)
            else:
                self._agenda.add(self._start + at, partial(self._tell, event))

    def _end(self, listener: Listener, end: End) -> None:
        now = self._now()
        listener.over(end, now)
        self._ends.append((now, end))
        self._left -= 1
        self._ended()
        if isinstance(end, Failed):
            self._failure = end
        if not self._left or self._failure:
            self._agenda.end()
