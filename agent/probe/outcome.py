"""What became of one trial, small enough to keep thousands of: figures, expectations, findings, and its picture.

It does not know how any of it was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PEAK_SECONDS = 0.01
"""Of a picture: one peak for so much sound."""
FULL = 100
"""A peak at full scale."""
ABSOLUTE = re.compile(r"(?<![\w.:/~<-])/(?:[\w.+@-]+/)+(?=[\w.+-])")
"""The folders of an absolute path, which a URL's path is not."""


@dataclass(frozen=True, slots=True)
class Checked:
    """One expectation of the scenario in this trial."""

    expects: str
    """In words; the same in every trial of the scenario."""
    held: bool | None
    """None where it could not be judged."""
    says: str = ""
    """What was measured."""
    assumed: bool = False
    """It holds if the agent went on with the same reply, which could not be checked."""


@dataclass(frozen=True, slots=True)
class Found:
    """One finding in this trial."""

    name: str
    says: str = ""
    at: float | None = None
    """Seconds since the picture's beginning."""
    network: bool = False
    """It was the network's doing, and counts for nothing against the agent."""
    size: float | None = None
    """In `unit`."""
    unit: str = ""

    def data(self) -> dict[str, Any]:
        """As JSON has it."""
        found: dict[str, Any] = {"name": self.name, "says": self.says}
        if self.size is not None:
            found |= {"size": round(self.size, 1), "unit": self.unit}
        return found


@dataclass(frozen=True, slots=True)
class Mark:
    """An instant of the picture. kind: onset, end, stop, response, claim."""

    kind: str
    at: float
    says: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Who was how loud when: of each PEAK_SECONDS the largest amplitude, 0 to FULL, on one time axis from 0 on."""

    user: bytes
    agent: bytes
    marks: tuple[Mark, ...] = ()
    gaps: tuple[tuple[float, float], ...] = ()
    """Begin and end, in seconds, of what broke the agent's speech."""

    @property
    def seconds(self) -> float:
        return PEAK_SECONDS * max(len(self.user), len(self.agent))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One trial. figures: by name, each as often as it was measured in this trial; the name's last word is the unit
    (see report.UNITS)."""

    scenario: str
    trial: int
    seed: int
    protocol: str
    seconds: float
    """From dialling to the end."""
    figures: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    checks: tuple[Checked, ...] = ()
    findings: tuple[Found, ...] = ()
    missed: tuple[str, ...] = ()
    failure: str | None = None
    takeovers: Mapping[str, bool] = field(default_factory=dict)
    """By step: whether the agent took the turn after it."""
    picture: Picture | None = None

    @property
    def held(self) -> bool:
        """Every step was said, and no expectation was broken."""
        return self.failure is None and not self.missed and not self.broken

    @property
    def broken(self) -> list[Checked]:
        return [check for check in self.checks if check.held is False]

    @property
    def faults(self) -> list[Found]:
        """Findings that are not the network's doing."""
        return [each for each in self.findings if not each.network]

    @property
    def badness(self) -> tuple[float, ...]:
        """The larger, the worse, in this order: what did not hold, findings, the slowest stop, the slowest response."""
        broken = len(self.broken) + len(self.missed) + (self.failure is not None)
        slowest = (max(self.figures.get(name, ()), default=0.0) for name in ("stop_ms", "response_ms"))
        return (broken, len(self.faults), *slowest)

    def data(self) -> dict[str, Any]:
        """As JSON has it: without picture and without what is empty."""
        found: dict[str, Any] = {"scenario": self.scenario, "trial": self.trial, "seed": self.seed, "held": self.held}
        found["seconds"] = round(self.seconds, 2)
        found["figures"] = {name: [round(value, 1) for value in values] for name, values in self.figures.items()}
        found["takeovers"] = dict(self.takeovers)
        found["broken"] = [f"{check.expects}: {check.says}" for check in self.broken]
        found["unjudged"] = [f"{check.expects}: {check.says}" for check in self.checks if check.held is None]
        found["findings"] = [each.data() for each in self.faults]
        found["network"] = [each.data() for each in self.findings if each.network]
        found |= {"missed": list(self.missed), "failure": self.failure}
        return {name: value for name, value in found.items() if value not in ([], {}, None)}


@dataclass(frozen=True, slots=True)
class Spread:
    """Percentiles of one figure over all trials in which it was measured."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        assert values, "there is no percentile of nothing"
        return cls(len(values), *(round(float(np.quantile(values, q)), 1) for q in (0.5, 0.95, 0.99, 1.0)))


@dataclass(frozen=True, slots=True)
class Summary:
    """All trials of one scenario."""

    name: str
    kind: str
    about: str
    sources: tuple[str, ...]
    outcomes: tuple[Outcome, ...]

    @property
    def held(self) -> int:
        return sum(outcome.held for outcome in self.outcomes)

    def values(self, figure: str) -> list[float]:
        return [value for outcome in self.outcomes for value in outcome.figures.get(figure, ())]

    def spread(self, figure: str) -> Spread | None:
        """None where it was never measured."""
        values = self.values(figure)
        return Spread.of(values) if values else None

    @property
    def figures(self) -> dict[str, Spread]:
        names = dict.fromkeys(name for outcome in self.outcomes for name in outcome.figures)
        return {name: spread for name in names if (spread := self.spread(name)) is not None}

    @property
    def expectations(self) -> dict[str, tuple[int, int]]:
        """In words: in how many trials it held, of how many in which it could be judged."""
        found = dict[str, tuple[int, int]]()
        for check in (check for outcome in self.outcomes for check in outcome.checks):
            held, of = found.get(check.expects, (0, 0))
            found[check.expects] = (held + bool(check.held), of + (check.held is not None))
        return found

    @property
    def takeovers(self) -> dict[str, tuple[int, int]]:
        """By step: after how many of how many times that it was said the agent took the turn."""
        found = dict[str, tuple[int, int]]()
        for step, taken in (pair for outcome in self.outcomes for pair in outcome.takeovers.items()):
            times, of = found.get(step, (0, 0))
            found[step] = (times + taken, of + 1)
        return found

    @property
    def unjudged(self) -> list[str]:
        """Expectations, in words, of which nothing could be said in any trial."""
        return [words for words, (_, of) in self.expectations.items() if not of]

    @property
    def findings(self) -> dict[str, int]:
        """By name, in how many trials."""
        return counted(self.outcomes)


def counted(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Findings by name, in how many trials, the most frequent first."""
    found = dict[str, int]()
    for outcome in outcomes:
        for name in {finding.name for finding in outcome.faults}:
            found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def worst(outcomes: Iterable[Outcome], most: int) -> list[Outcome]:
    """Those of which a picture is shown: the worst first, as many as `most`, of which something was heard."""
    seen = [outcome for outcome in outcomes if outcome.picture is not None]
    return sorted(seen, key=lambda outcome: outcome.badness, reverse=True)[:most]


def peaks(samples: np.ndarray[Any, np.dtype[np.int16]], rate: int) -> bytes:
    """Of each PEAK_SECONDS the largest amplitude, 0 to FULL; int16 [samples]. What is audible at all is at least 1."""
    step = round(PEAK_SECONDS * rate)
    loud = np.abs(samples[: samples.size // step * step].astype(np.int32)).reshape(-1, step).max(axis=1, initial=0)
    return bytes(np.ceil(loud * (FULL / 32768) - 0.1).clip(0, FULL).astype(np.uint8))


def plain(text: str) -> str:
    """Without the folders of absolute paths: where something lies on this machine is nobody else's."""
    return ABSOLUTE.sub("", text)


def plainly(data: Any) -> Any:
    """The same of every text in JSON data."""
    if isinstance(data, str):
        return plain(data)
    if isinstance(data, dict):
        return {plain(name): plainly(value) for name, value in data.items()}
    return [plainly(each) for each in data] if isinstance(data, list | tuple) else data
