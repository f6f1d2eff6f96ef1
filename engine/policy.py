"""What a scheduling policy decides, and how a decision is told in one line. It decides nothing itself.

A policy is asked after every step, for the streams that may run. Engine.choice is the one that serves callers;
engine.policies are emulations of others, for comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Protocol

from engine.core import Stage
from engine.predictor import Pace
from engine.stream import Stream

CODEC, ENCODE = Stage.CODEC, Stage.ENCODE
SHOWN = 8
"""Candidates, and streams that wait, that an explanation names."""

Waits = tuple[Stream, str]
"""One who is not among the candidates, and why."""


@dataclass(slots=True)
class Candidate:
    """An admitted stream with the step that it needs next. It is written anew at each plan: to make as many anew takes
    longer than to judge them."""

    stream: Stream
    stage: Stage
    count: int
    """As in Row."""
    slack: float
    """Seconds that it can wait until its listener runs dry: deadline - now - predicted work for the least that it must
    send - margin. Minus infinity for a new caller, who is waiting now."""
    optional: bool = False
    """That work does not contain this step: frames are pending that could be sent without it."""

    def joins(self, leader: Candidate) -> bool:
        """Whether one step can serve both: one stage, chunks of one size, and recordings that stand at one frame."""
        if self.stage is not leader.stage:
            return False
        if self.stage is ENCODE:
            return self.stream.encoded == leader.stream.encoded
        return self.stage is not CODEC or self.count == leader.count


@dataclass(slots=True)
class Decision:
    """The rows of the next step, or none and the instant until which the device is left idle for batch-mates."""

    rows: Sequence[Candidate]
    why: str
    wait_until: float = inf


class Policy(Protocol):
    """What the scheduler asks. An emulation says in `source` where its settings come from."""

    @property
    def name(self) -> str: ...

    @property
    def paced(self) -> bool:
        """It knows where listeners stand: a chunk that would come too late is sent in part, and a stream that is far
        ahead is held. Others finish every chunk, and generate as fast as they can."""
        ...

    @property
    def first_chunk(self) -> int:
        """Frames of the first chunk; the next ones grow up to the largest that pays, but are never smaller."""
        ...

    def decide(self, candidates: Sequence[Candidate], pace: Pace, now: float) -> Decision:
        """About at least one candidate; new callers are given in order of arrival."""
        ...


@dataclass(frozen=True, slots=True)
class UsePolicy:
    """An event: from now on this policy decides, for those too who are being served."""

    policy: Policy


Explain = Callable[[str], None]
"""Takes one line for each decision."""
NO_GOALS: Mapping[int, int] = MappingProxyType({})


def explained(
    decision: Decision,
    candidates: Sequence[Candidate],
    now: float,
    waits: Sequence[Waits] = (),
    goals: Mapping[int, int] = NO_GOALS,
) -> str:
    """The choice, why, what else could have run, by slack, and who could not. `goals`: how many frames a chunk should
    have that is sent in part, by request."""
    if decision.rows:
        leader, size = decision.rows[0], len(decision.rows)
        frames = f" x{leader.count}" if leader.stage is CODEC else ""
        what = f"{leader.stage}{frames} for {_names(decision.rows, goals)} ({size} of {len(candidates)})"
    else:
        until = f"until {decision.wait_until:.4f}" if decision.wait_until < inf else "before the next event"
        what = f"nothing {until}"
    chosen = {id(row) for row in decision.rows}
    others = sorted((c for c in candidates if id(c) not in chosen), key=lambda c: c.slack)
    line = f"{now:.4f} {what}: {decision.why}; not {_names(others, goals) or 'anybody'}"
    return f"{line}; waiting {_list([f'{s.request_id}: {why}' for s, why in waits])}" if waits else line


def _names(candidates: Sequence[Candidate], goals: Mapping[int, int]) -> str:
    return _list([_named(candidate, goals) for candidate in candidates])


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _named(candidate: Candidate, goals: Mapping[int, int]) -> str:
    number = candidate.stream.request_id
    slack = "new" if candidate.slack == -inf else f"{1000 * candidate.slack:.0f} ms"
    partial = f", no time for {goals[number]}" if number in goals else ""
    return f"{number}:{candidate.stage}[{slack}{partial}]"
