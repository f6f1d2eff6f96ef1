"""What a server is shown with (`serve --demo`): synthetic listeners, another policy, a bad network to a client, and a
record of what was said, to be simulated.

It does not know routes or pages. None of it can be reached on a server that was not started for show.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from aiortc.mediastreams import MediaStreamError

from agent.protocol import Demo, DemoState, Error, Speak
from agent.session import Engine, Session
from engine.core import ErrorCode, Finished, FinishReason, Request

log = logging.getLogger(__name__)

MAX_LOAD = 64
POLICIES = ("predictor", "newest-first")
"""That can be heard: the one that serves callers, and the one that many systems have."""
REMEMBERED_SECONDS = 600.0
REMEMBERED = 10_000
"""Utterances."""
TELL_SECONDS = 0.2
"""Between two messages of how the server is shown: a slider that is moved, or somebody who floods it, floods nobody."""
PAUSE_SECONDS = 0.3, 1.5
"""Between two utterances of a synthetic listener."""
SENTENCES = (
    "Good morning, how can I help you today?",
    "The train to the coast leaves from platform nine in about twelve minutes.",
    "I have found three free tables for tonight, the first of them at half past seven.",
    "Of course. Could you tell me the number on the back of the card once more?",
    "It will rain in the afternoon, so take a coat with you when you go out.",
    "Please hold the line while I look that up for you in the big book on the shelf.",
)


class Switchable(Engine, Protocol):
    """An engine whose policy can be changed."""

    def use_policy(self, name: str) -> None: ...


class Demonstration:
    """Of one server; all of it on the event loop. `new` makes a session that nobody is connected to; `sessions` are
    those of the callers."""

    def __init__(self, engine: Switchable, new: Callable[[], Session], sessions: Callable[[], list[Session]]) -> None:
        self._engine, self._new, self._sessions = engine, new, sessions
        self._policy = POLICIES[0]
        self._listeners: list[asyncio.Task[None]] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._said: deque[tuple[int, Request, Finished]] = deque(maxlen=REMEMBERED)
        self._changed = False
        """Since the calls were told."""
        self._telling: asyncio.Task[None] | None = None

    def state(self, session: Session) -> DemoState:
        """As this call is to be told."""
        return DemoState(
            load=len(self._listeners),
            max_load=MAX_LOAD,
            policy=self._policy,
            policies=POLICIES,
            loss=session.loss,
            jitter_ms=1000 * session.jitter,
        )

    def change(self, session: Session, wanted: Demo) -> None:
        """Each thing that is named; all calls are told soon, or this one at once what is wrong."""
        if wanted.load is not None and wanted.load > MAX_LOAD:
            self._refuse(session, "load", f"at most {MAX_LOAD} synthetic listeners can be had, not {wanted.load}")
            return
        if wanted.policy is not None and wanted.policy not in POLICIES:
            self._refuse(session, "policy", f"there are {' and '.join(POLICIES)}, not {wanted.policy!r:.40}")
            return
        if wanted.policy is not None:
            self._policy = wanted.policy
            self._engine.use_policy(wanted.policy)
        if wanted.load is not None:
            self._load(wanted.load)
        session.spoil(
            session.loss if wanted.loss is None else wanted.loss,
            session.jitter if wanted.jitter_ms is None else wanted.jitter_ms / 1000,
        )
        self._changed = True
        if self._telling is None:
            self._telling = asyncio.create_task(self._tell())

    def record(self, request_id: int, request: Request, end: Finished) -> None:
        """An utterance of any call is over."""
        self._said.append((request_id, request, end))

    def trace(self) -> str:
        """What was said lately, as `breezert simulate --trace` reads it."""
        latest = max((end.stats.submitted_at for _, _, end in self._said), default=0.0)
        said = [each for each in self._said if each[2].stats.submitted_at >= latest - REMEMBERED_SECONDS]
        said.sort(key=lambda each: (each[2].stats.submitted_at, each[0]))
        places = {request_id: place for place, (request_id, _, _) in enumerate(said)}
        start = said[0][2].stats.submitted_at if said else 0.0
        return "".join(json.dumps(line(request, end, start, places)) + "\n" for _, request, end in said)

    def rest(self) -> None:
        """Without synthetic listeners from now on."""
        self._load(0)

    async def close(self) -> None:
        """Ends what it has begun, and returns when it is over."""
        self.rest()
        ending = list(self._ending)
        if self._telling is not None:
            self._telling.cancel()
            ending.append(self._telling)
        await asyncio.gather(*ending, return_exceptions=True)

    def _refuse(self, session: Session, field: str, message: str) -> None:
        session.report(Error(code=ErrorCode.BAD_REQUEST, message=message, field=field))

    async def _tell(self) -> None:
        """All calls, as long as something changes: the first change at once, the others together."""
        try:
            while self._changed:
                self._changed = False
                for each in self._sessions():
                    each.send(self.state(each))
                await asyncio.sleep(TELL_SECONDS)
        finally:
            self._telling = None

    def _load(self, count: int) -> None:
        while len(self._listeners) < count:
            self._listeners.append(asyncio.create_task(listen(self._new, random.Random())))
        while len(self._listeners) > count:
            listener = self._listeners.pop()
            listener.cancel()
            self._ending.add(listener)
            listener.add_done_callback(self._ending.discard)


def line(request: Request, end: Finished, start: float, places: dict[int, int]) -> dict[str, float]:
    """One utterance; what was cut is as long as what was made of it."""
    stats = end.stats
    row: dict[str, float] = {
        "at": round(stats.submitted_at - start, 3),
        "frames": max(1, stats.num_frames),
        "text_tokens": max(1, stats.text_tokens),
    }
    if request.follows in places:
        row["follows"] = places[request.follows]
    if end.reason is FinishReason.CANCELLED:
        row["cancel_at"] = round(stats.finished_at - start, 3)
    return row


async def listen(new: Callable[[], Session], chance: random.Random) -> None:
    """A listener who is not there: packets are taken as they are due and thrown away, until this is cancelled."""
    session = new()
    session.synthetic = True
    pulling = asyncio.create_task(pull(session))
    try:
        for count in range(1_000_000):
            session.speak(Speak(id=f"load{count}", text=chance.choice(SENTENCES)))
            await session.idle()
            await asyncio.sleep(chance.uniform(*PAUSE_SECONDS))
    finally:
        session.close()
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)


async def pull(session: Session) -> None:
    """Packets, until the track ends."""
    with suppress(MediaStreamError):
        while True:
            await session.track.recv()
