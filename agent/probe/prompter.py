"""Says when each step of a scenario begins, while the call is going on. It knows neither clocks nor sound nor networks.

A step that waits for the agent (`agent`, `agent_end`, `quiet`) has its turn when all steps before it have begun. Then
it waits for what comes after the last of them that was said: the last to begin, backgrounds (longer than
BACKGROUND_SECONDS) and echoes not counted, for during these an agent is to be heard, too. Of that step the end is
waited for: an agent that speaks up meanwhile, and falls silent again, did not answer it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from agent.probe.ear import Ear
from agent.probe.scenario import EVENTS, QUIET_SECONDS, READY_SECONDS, Cue, Scenario, Step

BACKGROUND_SECONDS = 10.0
LATE_SECONDS = 0.5
"""So much longer than it is expected an answer is waited for: it is late then, and not missing."""
OF_AGENT = ("agent", "agent_end", "quiet")


class Prompter:
    """`durations` are the seconds of each step's sound, by its name; an echo has none. `lengths` see `reply_key`.

    Raises ValueError for a cue that names no earlier step, and for two steps of one name.
    """

    def __init__(
        self, scenario: Scenario, trial: int, seed: int, durations: Mapping[str, float], lengths: Mapping[str, float]
    ) -> None:
        check(scenario)
        self._scenario, self._durations, self._lengths = scenario, durations, lengths
        self._waits = {step.name: drawn(step, trial, seed) for step in scenario.steps}
        answers = (each.within_ms / 1000 for each in scenario.expect if each.kind == "answers")
        self._patience = max(answers, default=0.0) + LATE_SECONDS
        self._connected_at = 0.0
        self._anchors = dict[str, float]()
        """When what a step waits for has happened."""
        self._began = dict[str, float]()

    def connected(self, at: float) -> None:
        """The call is up: from now on it has time."""
        self._connected_at = at

    @property
    def missing(self) -> list[str]:
        """Names of steps that have not begun."""
        return [step.name for step in self._scenario.steps if step.name not in self._began]

    def due(self, now: float, ear: Ear) -> list[Step]:
        """Steps that begin at `now`; they are taken to begin then. To be asked at least every 20 ms."""
        begun = list[Step]()
        for step in self._scenario.steps:
            due_at = None if step.name in self._began else self._due_at(step, now, ear)
            if due_at is not None and due_at <= now:
                self._began[step.name] = now
                begun.append(step)
        return begun

    def is_over(self, now: float, ear: Ear, deaf: bool = False) -> bool:
        """Whether the call has come to its end; `deaf`: nothing can be said in it, so no step is waited for."""
        if now - self._connected_at >= self._scenario.limit:
            return True
        if self.missing and not deaf:
            return False
        ends = [self._end(step) for step in self._scenario.steps if step.name in self._began and step.echo_db is None]
        if not ends and ear.last_at is None:
            return False
        said_at = max(ends, default=self._connected_at)
        answered = ear.last_at is not None and ear.last_at > said_at
        patience = self._scenario.seconds if answered else max(self._scenario.seconds, self._patience)
        return now - max(said_at, ear.last_at or 0.0) >= patience

    def _due_at(self, step: Step, now: float, ear: Ear) -> float | None:
        if step.name not in self._anchors:
            anchor = self._anchor(step, now, ear)
            if anchor is None:
                return None
            self._anchors[step.name] = anchor
        wait = self._waits[step.name]
        return self._anchors[step.name] + (-wait if step.cue.after == "agent_end" else wait)

    def _anchor(self, step: Step, now: float, ear: Ear) -> float | None:
        """When that happened after which, or before which, the step is to begin."""
        after = step.cue.after
        if after == "connected":
            return self._connected_at
        if after == "ready":
            return self._ready(now, ear)
        if after in OF_AGENT:
            return self._of_agent(step, now, ear)
        name = after.removesuffix(".end")
        if name not in self._began:
            return None
        return self._began[name] + (0.0 if name == after else self._durations.get(name, 0.0))

    def _ready(self, now: float, ear: Ear) -> float | None:
        silent_at = max(self._connected_at + READY_SECONDS, (ear.last_at or 0.0) + QUIET_SECONDS)
        return silent_at if now >= silent_at else None

    def _of_agent(self, step: Step, now: float, ear: Ear) -> float | None:
        earlier = self._scenario.steps[: self._scenario.steps.index(step)]
        if any(other.name not in self._began for other in earlier) or ear.began_at is None or ear.last_at is None:
            return None
        said = self._last_said(earlier)
        since, ended_at = (self._began[said.name], self._end(said)) if said else (self._connected_at,) * 2
        if now < ended_at or ear.last_at < ended_at:
            return None
        if step.cue.after == "quiet":
            return ear.last_at + QUIET_SECONDS if now - ear.last_at >= QUIET_SECONDS else None
        if ear.began_at < since:
            return None
        length = 0.0 if step.cue.after == "agent" else self._lengths.get(reply_key(self._scenario, step))
        return None if length is None else max(ear.began_at, since) + length

    def _last_said(self, earlier: tuple[Step, ...]) -> Step | None:
        said = [step for step in earlier if self._is_said(step)]
        return max(said, key=lambda step: self._began[step.name], default=None)

    def _is_said(self, step: Step) -> bool:
        return step.echo_db is None and self._durations.get(step.name, 0.0) <= BACKGROUND_SECONDS

    def _end(self, step: Step) -> float:
        return self._began[step.name] + self._durations.get(step.name, 0.0)


def reply_key(scenario: Scenario, step: Step) -> str:
    """Under which `lengths` has the length, in seconds, of the reply that a step with the cue `agent_end` waits for:
    the name of the step before it in the scenario; empty for the agent's first words. A step of which it has no length
    never begins."""
    place = scenario.steps.index(step)
    return scenario.steps[place - 1].name if place else ""


def drawn(step: Step, trial: int, seed: int) -> float:
    """The seconds of its cue in this trial: the same whatever other steps there are, as a rehearsal needs."""
    return random.Random(f"{seed} {trial} {step.name}").uniform(step.cue.least, step.cue.most)


def check(scenario: Scenario) -> None:
    """Raises ValueError."""
    earlier = set[str]()
    for step in scenario.steps:
        if step.name in earlier:
            raise ValueError(f"{scenario.name}: two steps are called {step.name}")
        if not _is_known(step.cue, earlier):
            known = ", ".join([*EVENTS, *sorted(earlier)])
            raise ValueError(f"{scenario.name}: {step.name} waits for {step.cue.after}, which is none of {known}")
        earlier.add(step.name)


def _is_known(cue: Cue, earlier: set[str]) -> bool:
    name = cue.after.removesuffix(".end")
    return cue.after in EVENTS or name in earlier
