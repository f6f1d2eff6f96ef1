"""Loads an agent: calls for as long as one wants, connects and closes over and over, kills the engine in the middle.

It does not judge what was heard; what the server holds meanwhile is written down by books.py.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import ceil

from agent.probe.books import Books, BooksError, Entry, engine_pid, growths, left, theil_sen
from agent.probe.call import Stay
from agent.probe.judging import audible_at
from agent.probe.outcome import Outcome
from agent.probe.recording import Recording
from agent.probe.report import Cycles, Killed, Load
from agent.probe.run import CALLED, ProbeError, Run, Tell, at_once
from agent.probe.scenario import Cue, Scenario, Step

CONNECT = Scenario("connect", "continuity", "A call that is ended as soon as it is up.", (), (), (), 0.1, 0.3)
WARM_CYCLES = 8
"""Before the first entry: what is filled on use, as thread pools and caches, is full then."""
CYCLE_MB, CYCLES_MB = 0.05, 24.0
"""What memory may grow by with each cycle, and in all of the second half, whichever is more: a sound server with a VAD
went up and down by 17 MB after its first fifty calls (measured), until every thread's share of the heap was filled."""
ENTRIES = 20
"""Of the books, while calls are made and closed."""
SETTLE_SECONDS = 15.0
"""In which a server has given back what its last calls held: a peer that vanished is noticed after 10 s."""
LOOK_SECONDS = 0.5
SPEAKS_AGAIN_SECONDS = 10.0
"""After the engine's death, in which a turn is to be answered."""
ASK = "no"
"""The sound of whoever waits for an answer: 1.4 s."""
ASKS_EVERY = 3.2
"""Seconds between the beginnings of two of them after the engine's death: long enough to notice the end, and answer."""
WATCHED_SECONDS = 16.0
"""For so long after it a call goes on."""
GAPS = ("concealed_ms", "padded_ms")
"""Figures of an outcome that hold a value for each gap."""
AHEAD_SECONDS = 30.0
"""Before it no other call is begun any more: it might end too early to see anything of it."""
REPLIES_BEFORE = 12
"""That are asked for until then, one after the other; so that the agent speaks when its engine dies."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of the load. kill_at: seconds after its beginning."""

    peers: int = 0
    talking: int = 0
    """Of the peers, at a time; the others stay on the line until it is their turn. 0: all of them."""
    seconds: float = 0.0
    cycles: int = 0
    parallel: int = 1
    kill_at: float | None = None
    growth_mb: float = 10.0
    seed: int = 1


@dataclass(slots=True)
class Loading:
    """What there is of a load so far: also after it was cancelled."""

    books: Books
    began_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None
    left: list[str] = field(default_factory=list)
    cycles: Cycles | None = None
    killed_at: float | None = None
    watched: list[tuple[float | None, float | None]] = field(default_factory=list)
    """Of each call that was up when the engine was killed: seconds to the error event, and to speech again."""

    @property
    def seconds(self) -> float:
        """That the load has lasted."""
        return (self.ended_at or time.monotonic()) - self.began_at

    def load(self, wanted: Wanted, outcomes: Sequence[Outcome]) -> Load:
        """All of it."""
        gaps = sum(len(outcome.figures.get(name, ())) for outcome in outcomes for name in GAPS)
        entries = tuple(entry for entry in self.books.entries if entry.at >= self.began_at)
        return Load(
            peers=wanted.peers,
            talking=wanted.talking or wanted.peers,
            seconds=self.seconds if wanted.peers else 0.0,
            calls=len(outcomes) + len(self.watched),
            gaps_a_call=round(gaps / max(1, len(outcomes)), 3),
            entries=entries,
            growths=tuple(growths(entries, wanted.growth_mb)) if wanted.peers else (),
            left=tuple(self.left),
            killed=self._killed(),
            cycles=self.cycles,
        )

    def _killed(self) -> Killed | None:
        if self.killed_at is None:
            return None
        told, spoke = (tuple(each[n] for each in self.watched) for n in (0, 1))
        return Killed(self.killed_at - self.began_at, len(self.watched), told, spoke, SPEAKS_AGAIN_SECONDS)


# ---- connecting and closing ---------------------------------------------------------------------------------------


async def cycle(run: Run, loading: Loading, wanted: Wanted, tell: Tell) -> None:
    """So many calls that are ended as soon as they are up, with the books before and after. Raises ProbeError."""
    failed, held = 0, list[tuple[float, float]]()

    async def once(number: int) -> None:
        nonlocal failed
        recording = await run.call(CONNECT, number, wanted.seed)
        failed += recording.connected_at is None
        tell(CALLED)

    await _connect(run, max(WARM_CYCLES, wanted.parallel), wanted)
    first = await settled(loading.books, None)
    some = max(wanted.parallel, ceil(wanted.cycles / ENTRIES))
    for begun in range(0, wanted.cycles, some):
        done = min(wanted.cycles, begun + some)
        await at_once([partial(once, number) for number in range(begun, done)], wanted.parallel)
        entry = await noted(loading.books)
        if entry is not None and entry.memory_mb is not None and done >= wanted.cycles / 2:
            held.append((float(done), entry.memory_mb))
    last = await settled(loading.books, first)
    loading.cycles = _cycles(wanted.cycles, failed, first, last, held)


def _cycles(
    count: int, failed: int, first: Entry | None, last: Entry | None, held: Sequence[tuple[float, float]]
) -> Cycles:
    """held: cycles that are done and MB, of the second half."""
    half = held[-1][0] - held[0][0] if held else 0.0
    grown = round(half * theil_sen(held), 2) if len(held) >= 3 else None
    remains = tuple(left(first, last)) if first and last else ()
    return Cycles(count, failed, first, last, remains, grown, round(max(CYCLES_MB, CYCLE_MB * half), 1))


async def noted(books: Books) -> Entry | None:
    """An entry; None where nothing can be read."""
    try:
        return await books.note()
    except BooksError:
        return None


async def _connect(run: Run, calls: int, wanted: Wanted) -> None:
    async def once(number: int) -> None:
        await run.call(CONNECT, number, wanted.seed)

    await at_once([partial(once, -1 - number) for number in range(calls)], max(wanted.parallel, wanted.peers))


async def settled(books: Books, before: Entry | None) -> Entry | None:
    """What is held once it is no more than before, or at last after SETTLE_SECONDS; without `before`, once the server
    has no calls, where it tells. None where nothing can be read."""
    give_up_at = time.monotonic() + SETTLE_SECONDS
    while True:
        entry = await noted(books)
        if entry is None or time.monotonic() >= give_up_at:
            return entry
        if not (left(before, entry) if before else entry.peers):
            return entry
        await asyncio.sleep(LOOK_SECONDS)  # it is another process: nothing here tells


# ---- many calls for a while ---------------------------------------------------------------------------------------


async def soak(run: Run, scenarios: Sequence[Scenario], loading: Loading, wanted: Wanted, tell: Tell) -> None:
    """Calls at once, each peer one scenario after the other, until the time is up; then all end as they would.

    Raises ProbeError where the agent cannot be called, or has no engine that could be killed."""
    engine = _engine(loading.books) if wanted.kill_at is not None else None
    for scenario in scenarios:
        await run.rehearse(scenario, wanted.seed)
    await _connect(run, wanted.peers, wanted)
    before = await settled(loading.books, None)
    loading.began_at = time.monotonic()
    load = _Soak(run, scenarios, loading, wanted, tell)
    async with kept(loading.books), killing(loading, engine, wanted.kill_at):
        await at_once([partial(load.peer, number) for number in range(wanted.peers)], wanted.peers)
    loading.ended_at = time.monotonic()
    await run.settle()
    after = await settled(loading.books, before)
    if before is not None:
        loading.left = left(before, after) if after else ["the server's process has ended"]


def _engine(books: Books) -> int:
    """Raises ProbeError."""
    if books.pid is None:
        raise ProbeError("--kill-engine needs a server of this machine: give its process as --server-pid")
    if (engine := engine_pid(books.pid)) is None:
        raise ProbeError(f"the server {books.pid} has no engine in a process of its own")
    return engine


@asynccontextmanager
async def kept(books: Books) -> AsyncGenerator[None]:
    """The books are kept meanwhile."""
    keeping = asyncio.create_task(books.keep())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


@asynccontextmanager
async def killing(loading: Loading, engine: int | None, at: float | None) -> AsyncGenerator[None]:
    """The engine is killed so many seconds from now."""

    def kill() -> None:
        assert engine is not None
        with suppress(ProcessLookupError):  # it has been started anew since: then nobody is killed
            os.kill(engine, signal.SIGKILL)
            loading.killed_at = time.monotonic()

    timer = None if engine is None or at is None else asyncio.get_running_loop().call_later(at, kill)
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()


class _Soak:
    """The peers' common state."""

    def __init__(self, run: Run, scenarios: Sequence[Scenario], loading: Loading, wanted: Wanted, tell: Tell) -> None:
        self._run, self._scenarios, self._loading, self._wanted, self._tell = run, scenarios, loading, wanted, tell
        self._numbers = count()
        self._floor = asyncio.Semaphore(wanted.talking or wanted.peers)

    async def peer(self, number: int) -> None:
        """One who calls again and again."""
        chance = random.Random(f"{self._wanted.seed} peer {number}")
        stay, line = Stay(), None
        async with asyncio.TaskGroup() as calls:
            while self._lasts < self._wanted.seconds:
                if self._until_kill() is not None:
                    await self._leave(stay, line)
                    if (until_kill := self._until_kill()) is not None:
                        await self._watch(until_kill)
                    continue
                async with self._floor:
                    if self._until_kill() is not None:  # by now: others have spoken meanwhile
                        continue
                    await self._leave(stay, line)
                    stay = Stay()
                    line = calls.create_task(self._talk(chance.choice(self._scenarios), stay))
                    await stay.spoken.wait()
            stay.let_go.set()

    async def _leave(self, stay: Stay, line: asyncio.Task[None] | None) -> None:
        """Ends a peer's last call."""
        stay.let_go.set()
        if line is not None:
            await line

    @property
    def _lasts(self) -> float:
        """Seconds, so far."""
        return time.monotonic() - self._loading.began_at

    def _until_kill(self) -> float | None:
        """Seconds until the engine dies; None where it is none of a call's business that begins now."""
        if self._wanted.kill_at is None:
            return None
        ahead = self._wanted.kill_at - self._lasts
        return ahead if 0.0 < ahead <= AHEAD_SECONDS else None

    async def _talk(self, scenario: Scenario, stay: Stay) -> None:
        try:
            await self._run.attempt(scenario, next(self._numbers), self._wanted.seed, self._tell, stay)
        finally:
            stay.spoken.set()

    async def _watch(self, until_kill: float) -> None:
        """A call that is up when the engine dies, and asks until it is answered again."""
        scenario = dying(until_kill)
        recording = await self._run.call(scenario, next(self._numbers), self._wanted.seed)
        killed_at = self._loading.killed_at
        if killed_at is None or recording.connected_at is None or recording.connected_at > killed_at:
            return
        self._loading.watched.append(await self._run.judges.run(after_death, recording, killed_at))


def dying(until_kill: float) -> Scenario:
    """Somebody who has the agent speak until then, and asks again and again after it."""
    steps = [Step("before", Cue("connected", 0.3, 0.3), ASK)]
    steps += [Step(f"before{n}", Cue("quiet", 0.1, 0.1), ASK) for n in range(2, REPLIES_BEFORE)]
    asks = range(int(WATCHED_SECONDS / ASKS_EVERY))
    after = [until_kill + 0.3 + ASKS_EVERY * n for n in asks]
    steps += [Step(f"after{n}", Cue("connected", at, at), ASK) for n, at in zip(asks, after, strict=True)]
    limit = until_kill + WATCHED_SECONDS
    return Scenario("engine_death", "continuity", "The engine dies.", (), tuple(steps), (), limit, limit)


def after_death(recording: Recording, killed_at: float) -> tuple[float | None, float | None]:
    """Seconds from the kill to the first error event, and to the first speech that begins after a turn of the user's
    which ended after the kill; None where there was none."""
    told = [message.at for message in recording.told if message.type == "error" and message.at >= killed_at]
    turns = [said.ends_at for said in recording.said if said.ends_at > killed_at]
    began = [begin for begin, _ in audible_at(recording) if turns and begin > turns[0]]
    return _since(told, killed_at), _since(began, killed_at)


def _since(instants: list[float], start: float) -> float | None:
    return round(min(instants) - start, 2) if instants else None
