"""A call with somebody who answers: a brain and ears that do what a test has them do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from scripted_call import Call
from scripted_runtime import SPEC
from stand_in import WITHIN

from agent.brain import BoundedBrain, ReplyLimits
from agent.conversation import Conversation
from agent.dialogue import Audio, UserTurn
from agent.transcribe import TranscriberConfig, make_transcriber
from agent.turn import Heard, Settings, TurnTaking

SORRY = "Sorry, not now."


class Thinker:
    """A brain that says what a test has it say; it remembers the turns."""

    def __init__(self, *deltas: str | Exception | Callable[[], Any]) -> None:
        self.turns: list[UserTurn] = []
        self.deltas, self.closed = deltas, 0

    async def reply(self, turn: UserTurn) -> AsyncGenerator[str, None]:
        self.turns.append(turn)
        try:
            for delta in self.deltas:
                if isinstance(delta, Exception):
                    raise delta
                if callable(delta):
                    await delta()
                else:
                    yield delta
        finally:
            self.closed += 1

    async def close(self) -> None:
        pass


def saying(text: str) -> Callable[[Audio], Awaitable[str]]:
    """A transcriber that always hears this, without a thread: `settle` is enough."""

    async def transcribe(audio: Audio) -> str:
        return text

    return transcribe


class Microphone:
    """Ears that have kept a turn."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []
        self.tuned: list[tuple[Settings | None, float]] = []
        self.settings, self.frame_seconds, self.samples = Settings(), 0.032, 8000
        self.echoes = self.closed = 0

    def audio(self, onset_at: float, ended_at: float) -> Audio:
        self.asked.append((onset_at, ended_at))
        return np.ones(self.samples, np.int16)

    def retune(self, settings: Settings | None, before: float) -> None:
        self.tuned.append((settings, before))

    def sent(self, samples: Audio, at: float) -> None:
        self.echoes += 1

    def close(self) -> None:
        self.closed += 1


class Talk(Call):
    """A call with somebody who answers."""

    def __init__(
        self, executor: ThreadPoolExecutor, brain: Thinker, transcript: Any = None, greeting: str = "", **options: Any
    ) -> None:
        super().__init__(executor, spec=options.pop("spec", SPEC))
        self.brain, self.microphone = brain, Microphone()
        transcriber = make_transcriber(TranscriberConfig("function" if transcript else "none"), transcript)
        limited = BoundedBrain(brain, ReplyLimits(), greeting, SORRY)
        self.conversation = Conversation(self.session, limited, transcriber, **options)
        self.conversation.ears = self.microphone
        self.turns: TurnTaking | None = None
        self.heard: list[str] = []
        """The actions of turns that were heard, by their names."""

    async def settle(self) -> None:
        """What can go on goes on."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Returns once it does: whoever is asked over a socket answers in their own time."""
        async with asyncio.timeout(WITHIN):
            while not holds():  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.005)

    async def speak_on(self, request: int, frames: int = 4) -> None:
        """The engine says the whole request, and it is played."""
        self.engine.say(request, frames=frames, final=True)
        self.engine.finish(request)
        await self.packets(4 * frames + 4)
        await self.settle()

    async def hear(self, seconds: float, probability: float) -> None:
        """So much of equal sound on the microphone, frame by frame; between two of them goes on what can."""
        frame = self.microphone.frame_seconds
        for _ in range(round(seconds / frame)):
            self.time.time += frame
            self.listen_once(probability)
            await self.settle()

    def listen_once(self, probability: float) -> None:
        """One frame that ends now."""
        if self.turns is None:
            judge = self.conversation.understanding
            self.turns = TurnTaking(self.microphone.frame_seconds, self.microphone.settings, judge)
        for action in self.turns.hear(Heard(probability, self.time.time), self.conversation.agent):
            self.heard.append(type(action).__name__)
            self.conversation.act(action)

    @property
    def turn_types(self) -> list[str]:
        return [kind for kind in self.types if kind.startswith(("turn", "reply", "error"))]

    @property
    def asked_for(self) -> list[str]:
        """The texts that the engine got."""
        return [job.request.text for job in self.engine.jobs.values()]
