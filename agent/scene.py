"""Shows those who watch how the server works: collects the engine's steps and who else is there, five times a second.

It does not know how a call is served: a call says what there is to say of it, and tells its client itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from agent.sight import REMEMBERED_STEPS, Peer, Steps, ms
from engine.recorder import Ran

log = logging.getLogger(__name__)

SECONDS = 0.2
"""Between two views: what streams change is seen, and the messages stay few."""


class Shown(Protocol):
    """A call, as far as others may see it."""

    number: int
    synthetic: bool
    """Nobody listens there: it is load."""

    @property
    def watched(self) -> bool:
        """Its client wants to be shown."""
        ...

    @property
    def buffered(self) -> float:
        """Seconds of speech that are ready."""
        ...

    @property
    def quiet(self) -> bool: ...
    def show(self, steps: Steps, peers: Sequence[Peer]) -> None: ...


class Scene:
    """Of one server; it runs while somebody watches. `take` may be called from any thread, the rest on the loop."""

    def __init__(self) -> None:
        self._calls: dict[int, Shown] = {}
        self._count = 0
        self._ran: deque[Ran] = deque(maxlen=REMEMBERED_STEPS)
        self._showing: asyncio.Task[None] | None = None

    def take(self, steps: Iterable[Ran]) -> None:
        """The engine ran these."""
        self._ran.extend(steps)

    def enter(self, call: Shown) -> None:
        """A call is there."""
        self._count += 1
        call.number = self._count
        self._calls[call.number] = call

    def leave(self, call: Shown) -> None:
        """It is over; may be told again."""
        self._calls.pop(call.number, None)

    def watch(self) -> None:
        """Somebody watches from now on."""
        if self._showing is None:
            self._showing = asyncio.create_task(self._show())

    def close(self) -> None:
        """Shows nothing any more."""
        if self._showing is not None:
            self._showing.cancel()

    async def _show(self) -> None:
        try:
            while watching := [call for call in self._calls.values() if call.watched]:
                steps = Steps.of([self._ran.popleft() for _ in range(len(self._ran))])
                people_first = sorted(self._calls.values(), key=lambda call: call.synthetic)
                peers = {call.number: seen(call) for call in people_first}
                for call in watching:
                    if call.watched and call.number in self._calls:
                        self._show_one(call, steps, [peer for other, peer in peers.items() if other != call.number])
                    await asyncio.sleep(SECONDS / len(watching))  # all at once they would hold up everybody's packets
        finally:
            self._showing = None

    def _show_one(self, call: Shown, steps: Steps, peers: Sequence[Peer]) -> None:
        try:
            call.show(steps, peers)
        except Exception:  # one that cannot be shown must not keep the others in the dark
            log.exception("a call cannot be shown")


def seen(call: Shown) -> Peer:
    """As in protocol.View."""
    return call.number, ms(call.buffered), 2 if call.synthetic else int(not call.quiet)
