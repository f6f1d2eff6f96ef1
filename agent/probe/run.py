"""Makes calls, several at once, and has each judged: while others go on, or once all are over. It does not know what
comes of that."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from agent.probe.call import Stay, Target, call, reply_key
from agent.probe.judging import Judges, JudgingError, reply_seconds, unpacked
from agent.probe.network import Network
from agent.probe.outcome import Outcome
from agent.probe.recording import Pcm, Recording
from agent.probe.scenario import Scenario
from agent.probe.sounds import sound

log = logging.getLogger(__name__)

STAGGER_SECONDS = 0.35
"""Between the beginnings of two calls: the handshake costs more than talking, on both sides."""
MOST_WAITING, MOST_KEPT = 24, 2_000
"""Recordings that wait to be judged, and those that are kept for later, some 300 MB: then no new call is made until one
is judged."""
BUSY_TIMES, BUSY_SECONDS, LEAST_SECONDS = 10, 10.0, 0.5
"""How often a call is made again that a server has no room for, and how long that waits, as the server asks."""

LOOK_SECONDS, LOOKS = 0.02, 180_000
"""Those of the last hour count."""
LATE_MS = 20.0
"""What calls that this process makes at a time may be late by, in 1 of 100 cases, before their figures are its own: a
packet."""

CALLED, JUDGED = "called", "judged"
Tell = Callable[[str], None]
"""Told that a call is over, or that it was judged."""


class ProbeError(Exception):
    """Nothing can be probed there; the text says why."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Each scenario so many times, as many calls at once as `parallel`."""

    scenarios: tuple[Scenario, ...]
    trials: int
    parallel: int
    seed: int

    @property
    def rehearsed(self) -> bool:
        """Some scenario needs to know how long a reply is."""
        return any(rehearsal for scenario in self.scenarios for rehearsal in rehearsals(scenario))

    @property
    def calls(self) -> Iterator[tuple[Scenario, int]]:
        """All of them, scenario by scenario in turn: what changes with time touches all alike."""
        return ((scenario, trial) for trial in range(self.trials) for scenario in self.scenarios)


class Run:
    """All calls to one agent. To be used on the event loop; what was judged is in `outcomes`, also after a cancel."""

    def __init__(
        self,
        target: Target,
        judges: Judges,
        *,
        network: Network | None = None,
        sounds: Callable[[str], Pcm] = sound,
        reference: Pcm | None = None,
        ended: Callable[[], None] = lambda: None,
        later: bool = False,
    ) -> None:
        """ended: told of every call that is over. later: nothing is judged until `settle`: an agent on this machine is
        not to miss what judging takes."""
        self.target = target
        self.judges = judges
        self.outcomes = list[Outcome]()
        self.busy = 0
        """How often the server had no room for a call, which was made again."""
        self._network, self._sounds, self._reference, self._ended = network, sounds, reference, ended
        self._lengths = dict[str, dict[str, float]]()
        """Of replies, by scenario; see prompter.reply_key."""
        self._reached = False
        self._next_at = 0.0
        """When the next call may begin."""
        self._judging = set[asyncio.Task[None]]()
        self._most_waiting = MOST_KEPT if later else MOST_WAITING
        self._may_judge = asyncio.Event()
        if not later:
            self._may_judge.set()

    @property
    def turned_away(self) -> str:
        """Empty where there was always room."""
        return f"the server had no room {self.busy} times, and was called again" if self.busy else ""

    async def rehearse(self, scenario: Scenario, seed: int) -> None:
        """Finds out how long the replies are before whose ends a step is to come: a call without it and later steps.
        Raises ProbeError where the agent cannot be called."""
        for part, key in rehearsals(scenario):
            recording = await self.call(part, 0, seed)
            seconds = None
            with suppress(TimeoutError):  # what was sent cannot be listened to: the step is never said then
                seconds = await self.judges.run(reply_seconds, recording)
            if seconds is not None:
                self._lengths.setdefault(scenario.name, {})[key] = seconds

    async def call(self, scenario: Scenario, trial: int, seed: int, stay: Stay | None = None) -> Recording:
        """One call, not before it is its turn, and again where the server had no room.

        Raises ProbeError where the agent has never answered yet."""
        for patience in (*(BUSY_SECONDS,) * BUSY_TIMES, 0.0):
            recording = await self._called(scenario, trial, seed, stay)
            if recording.busy_for is None or not patience:
                break
            self.busy += 1
            self._reached = True
            await asyncio.sleep(min(max(LEAST_SECONDS, recording.busy_for), patience))
        if recording.answered_at is None and not self._reached:
            raise ProbeError(recording.failure or f"{self.target.url} does not answer")
        self._reached = True
        return recording

    async def _called(self, scenario: Scenario, trial: int, seed: int, stay: Stay | None) -> Recording:
        await self._turn()
        try:
            return await call(
                self.target,
                scenario,
                trial,
                seed,
                sounds=self._sounds,
                network=self._network,
                lengths=self._lengths.get(scenario.name, {}),
                stay=stay,
            )
        finally:
            self._ended()

    async def attempt(self, scenario: Scenario, trial: int, seed: int, tell: Tell, stay: Stay | None = None) -> None:
        """One trial. Returns when the call is over; its recording waits to be judged, which is told of, too."""
        while len(self._judging) >= self._most_waiting:
            self._may_judge.set()
            await asyncio.wait(self._judging, return_when=asyncio.FIRST_COMPLETED)
        recording = await self.call(scenario, trial, seed, stay)
        packed = pickle.dumps(recording)  # thousands of packets, through which no collection of garbage has to go
        task = asyncio.create_task(self._judge(packed, scenario, tell))
        self._judging.add(task)
        task.add_done_callback(self._judging.discard)
        tell(CALLED)

    async def settle(self) -> None:
        """Returns when every recording that there is was judged."""
        self._may_judge.set()
        while self._judging:
            await asyncio.wait(self._judging)

    async def _turn(self) -> None:
        now = time.monotonic()
        begins_at = max(now, self._next_at)
        self._next_at = begins_at + STAGGER_SECONDS
        await asyncio.sleep(begins_at - now)

    async def _judge(self, packed: bytes, scenario: Scenario, tell: Tell) -> None:
        await self._may_judge.wait()
        try:
            outcome = await self.judges.run(unpacked, packed, scenario, self._reference)
        except JudgingError as error:
            outcome = unjudged(pickle.loads(packed), str(error))
        except Exception as error:  # a fault of ours must not lose what an hour of calls came to
            outcome = unjudged(pickle.loads(packed), f"it could not be judged: {type(error).__name__}: {error}")
            log.exception("trial %d of %s", outcome.trial, outcome.scenario)
        self.outcomes.append(outcome)
        tell(JUDGED)


def unjudged(recording: Recording, failure: str) -> Outcome:
    seconds = recording.ended_at - recording.dialled_at
    return Outcome(recording.scenario, recording.trial, recording.seed, recording.protocol, seconds, failure=failure)


def rehearsals(scenario: Scenario) -> Iterator[tuple[Scenario, str]]:
    """For each step that begins before a reply's end: the scenario without it and later steps, and under which name the
    reply's length is kept."""
    for n, step in enumerate(scenario.steps):
        if step.cue.after == "agent_end":
            yield replace(scenario, steps=scenario.steps[:n]), reply_key(scenario, step)


async def probe(run: Run, plan: Plan, tell: Tell) -> None:
    """All trials of the plan. Cancelled, it hangs up first. Raises ProbeError."""
    await at_once([partial(run.rehearse, scenario, plan.seed) for scenario in plan.scenarios], plan.parallel)
    await at_once([partial(run.attempt, *each, plan.seed, tell) for each in plan.calls], plan.parallel)
    await run.settle()


class Lateness:
    """How late this process itself was, as its event loop shows: an agent is not to blame for that."""

    def __init__(self) -> None:
        self._late_ms = deque[float](maxlen=LOOKS)

    async def watch(self) -> None:
        """For ever."""
        while True:
            due = time.monotonic() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self._late_ms.append(1000 * (time.monotonic() - due))

    @property
    def p99_ms(self) -> float:
        return round(float(np.quantile(self._late_ms, 0.99)), 1) if self._late_ms else 0.0

    @property
    def warning(self) -> str:
        """Empty where it was in time."""
        if self.p99_ms <= LATE_MS:
            return ""
        return (
            f"the probe itself was late by {self.p99_ms:.0f} ms (p99): what it found may be this machine's doing, "
            "and not the agent's; make fewer calls at once, or call from another machine"
        )


async def at_once(jobs: Iterable[Callable[[], Awaitable[None]]], most: int) -> None:
    """All of them in their order, so many at a time. The first error ends the others, which are waited for."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await job()

    tasks = [asyncio.create_task(work()) for _ in range(most)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
