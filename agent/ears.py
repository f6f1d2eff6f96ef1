"""One caller's microphone, from RTP packets to turns: decoded, weighed against the agent's own echo, and judged.

It does not know what is answered: every action of turn.py goes to whoever asked for it, on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

from agent import vad
from agent.dialogue import Audio
from agent.echo import EchoGuard
from agent.near import Near, decibels
from agent.receive import Heard, Receiver
from agent.turn import Action, AgentState, Judge, Settings, TurnTaking
from agent.turn import Heard as Judged
from engine.clock import Clock

log = logging.getLogger(__name__)

MAX_PENDING = 100
"""Packets that wait for the listening thread, of either direction: two seconds, the oldest give way."""
MAX_TURN_SECONDS = 60.0
"""Of a turn's audio that is kept: the last."""
BEFORE, AFTER = 0.3, 0.1
"""Seconds that are kept around a turn, unless a call asks for others: a VAD notices a soft beginning late."""
QUIET_SECONDS = 0.25
"""A microphone that sends nothing for so long is silent, also to an open pause."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What the agent said: int16 samples at the voice's rate, from instant `at` on."""

    samples: Audio
    at: float


class Listening:
    """What may take time: VAD and echo guard of one microphone. One call at a time, from any thread."""

    def __init__(self, vad_name: str, far_rate: int) -> None:
        self._vad = vad.make(vad_name)
        self._framer = vad.Framer(self._vad.frame_samples)
        self._guard = EchoGuard(far_rate)
        self._near = Near(vad.frame_seconds(vad_name))

    def listen(self, pieces: list[Heard | Sent]) -> list[Judged]:
        """Judges the frames that the pieces complete, in their order."""
        judged: list[Judged] = []
        for piece in pieces:
            if isinstance(piece, Sent):
                self._guard.sent(piece.samples, piece.at)
            else:
                frames = self._framer.push(piece.samples, piece.received_at)
                judged += [self._judged(frame) for frame in frames]
        return judged

    def _judged(self, frame: vad.Frame) -> Judged:
        probability = self._vad.probability(frame.samples)
        echo = self._guard.likelihood(frame.samples, frame.at)
        return Judged(self._near.weigh(probability, decibels(frame.samples), echo), frame.at, echo)


class Ears:
    """Hears one caller. `act` is called with every action on the event loop that this was made on; `agent` says what
    the agent does at that moment; `judge` is asked on that loop what the user means. The VAD is loaded in a thread of
    `loader`, which takes as long as many frames: best not in the one that all microphones share.

    Raises ImportError and ValueError for a VAD that cannot be had, and LibraryMissing where there is no libopus.
    """

    def __init__(
        self,
        executor: Executor,
        clock: Clock,
        far_rate: int,
        act: Callable[[Action], None],
        agent: Callable[[], AgentState],
        *,
        vad_name: str = vad.SILERO,
        settings: Settings | None = None,
        judge: Judge | None = None,
        loader: Executor | None = None,
    ) -> None:
        vad.check(vad_name)
        self.receiver = Receiver(executor, clock, self._hear)
        self._executor, self._clock, self._act, self._agent = executor, clock, act, agent
        self._loop = asyncio.get_running_loop()
        self._listening: Listening | None = None
        self._make: Callable[[], Listening] | None = partial(Listening, vad_name, far_rate)
        """Until the first sound: who only listens to the agent needs no VAD."""
        self._loader = loader or executor
        self.settings = settings or Settings()
        """That this was made with."""
        self.frame_seconds, self._judge = vad.frame_seconds(vad_name), judge
        """Of the frames that are judged."""
        self._turns: TurnTaking | None = TurnTaking(self.frame_seconds, settings, judge)
        self._wanted: list[TurnTaking | None] = []
        """What judges from the next moment on in which nothing is open."""
        self._before = BEFORE
        self._pending: deque[Heard | Sent] = deque(maxlen=MAX_PENDING)
        self._busy: asyncio.Future[list[Judged]] | None = None
        self._closed = False
        self._kept: deque[Heard] = deque()
        self._last_at = float("-inf")
        self._quiet: asyncio.TimerHandle | None = None

    @property
    def user_speaks(self) -> bool:
        """The user speaks and has the turn."""
        return self._turns is not None and self._turns.user_speaks

    def retune(self, settings: Settings | None, before: float = BEFORE) -> None:
        """Takes turns by other settings, once nobody speaks and nothing is open; None: none at all, only `audio` is
        asked for. `before`: seconds that are kept in front of a turn, from now on."""
        self._before = before
        self._wanted = [TurnTaking(self.frame_seconds, settings, self._judge) if settings else None]
        self._change()

    def _change(self) -> None:
        if self._wanted and not (self._turns and self._turns.waiting):
            self._turns = self._wanted.pop()

    def sent(self, samples: Audio, at: float) -> None:
        """Is told what the agent says, so that its echo is known: int16 samples at the voice's rate, from `at` on."""
        self._pending.append(Sent(samples, at))

    def audio(self, onset_at: float, ended_at: float) -> Audio:
        """What was heard between these instants and a little around, int16 [samples] at AUDIO_RATE."""
        first, last = onset_at - self._before, ended_at + AFTER
        parts = [heard.samples for heard in self._kept if first <= heard.received_at <= last]
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)

    def close(self) -> None:
        """Hears nothing any more; may be called again."""
        self._closed = True
        self.receiver.close()
        # A closed call may wait long for the garbage collector, which does not know what a VAD weighs: some 7 MB. To
        # give these back takes 4 ms, for which nobody's packets are to wait.
        held, self._listening, self._make = [self._listening], None, None
        if held != [None]:
            with suppress(RuntimeError):  # the server ends, and its threads with it
                self._loader.submit(held.clear)
        self._pending.clear()
        self._kept.clear()
        if self._quiet is not None:
            self._quiet.cancel()
        self._act = lambda action: None

    def _hear(self, heard: Heard) -> None:
        self._kept.append(heard)
        while self._kept[0].received_at < heard.received_at - MAX_TURN_SECONDS:
            self._kept.popleft()
        self._pending.append(heard)
        self._listen()

    def _made(self, done: asyncio.Future[Listening]) -> None:
        if done.cancelled() or self._closed:
            return
        if error := done.exception():
            log.error("a microphone cannot be listened to", exc_info=error)
            self.close()
            return
        self._listening = done.result()
        self._listen()

    def _listen(self) -> None:
        if self._make is not None:
            making, self._make = self._loop.run_in_executor(self._loader, self._make), None
            making.add_done_callback(self._made)
        if self._listening is not None and self._busy is None and self._pending:
            pieces = list(self._pending)
            self._pending.clear()
            self._busy = self._loop.run_in_executor(self._executor, self._listening.listen, pieces)
            self._busy.add_done_callback(self._listened)

    def _listened(self, done: asyncio.Future[list[Judged]]) -> None:
        self._busy = None
        if done.cancelled() or self._closed:
            return
        if error := done.exception():
            log.error("a microphone cannot be listened to any more", exc_info=error)
            self.close()
            return
        for judged in done.result():
            self._take(judged)
        if any(isinstance(piece, Heard) for piece in self._pending):
            self._listen()
        self._expect()

    def _take(self, judged: Judged) -> None:
        """Instants never go back, though silence that was assumed may reach beyond the next frame."""
        self._last_at = at = max(judged.at, self._last_at)
        self._change()
        if self._turns is None:
            return
        for action in self._turns.hear(Judged(judged.probability, at, judged.echo), self._agent()):
            self._act(action)

    def _expect(self) -> None:
        """Takes a microphone that says nothing any more for silent."""
        if self._quiet is not None:
            self._quiet.cancel()
        waiting = self._turns is not None and self._turns.waiting
        self._quiet = self._loop.call_later(QUIET_SECONDS, self._assume_silence) if waiting else None

    def _assume_silence(self) -> None:
        self._take(Judged(0.0, self._clock.now()))
        self._expect()
