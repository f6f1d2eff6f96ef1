"""What steps cost on one machine: measured samples, not their means, so that tails survive. It predicts nothing.

The one bridge from the device to the simulator, written by `calibrate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import inf
from random import Random
from typing import Any

from engine.core import Limits, Stage

CostKey = tuple[Stage, int, int]
"""Stage, sequences, length as Step has them."""
LIMITS = ("num_slots", "num_pages", "page_size", "max_prefill_tokens")
"""Those that a profile keeps, beside max_batch."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """Mean seconds that pass around the steps of a running engine."""

    submit: float = 0.0
    """Until the scheduler knows what a caller says."""
    step: float = 0.0
    """Between two steps: planning, bookkeeping, handing over."""
    deliver: float = 0.0
    """From the end of a chunk's step until its caller has it."""

    def __post_init__(self) -> None:
        if not all(0 <= seconds < inf for seconds in (self.submit, self.step, self.deliver)):
            raise ValueError(f"an overhead of seconds from 0 on expected, got {self}")


NO_OVERHEAD = Overhead()


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured seconds of steps on one machine, by stage, batch size and length."""

    name: str
    samples: Mapping[CostKey, tuple[float, ...]]
    sources: Mapping[CostKey, str] = field(default_factory=dict)
    """Whether they were measured or estimated."""
    limits: Limits | None = None
    """Of the engine that they are meant for."""
    load: float | None = None
    """Mean number of streams at once at which newest-first first has gaps (engine.contest)."""
    overhead: Overhead = NO_OVERHEAD

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """From {"voice", "costs": [{"stage", "batch", "length", "source", "seconds": [...]}, ...], "limits", "load",
        "overhead"}, other keys are ignored. Raises ValueError."""
        samples: dict[CostKey, tuple[float, ...]] = {}
        sources: dict[CostKey, str] = {}
        try:
            for cost in data["costs"]:
                key = Stage(cost["stage"]), int(cost["batch"]), int(cost["length"])
                samples[key] = tuple(float(seconds) for seconds in cost["seconds"])
                sources[key] = str(cost.get("source", "measured"))
            name, limits = str(data["voice"]), _limits(data.get("limits"))
            load = None if data.get("load") is None else float(data["load"])
            overhead = Overhead(**{name: float(seconds) for name, seconds in data.get("overhead", {}).items()})
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"not a cost profile: {error!r}; write one with calibrate") from error
        for key, seconds in samples.items():
            if key[1] < 1 or key[2] < 0 or not seconds or not all(0 < value < inf for value in seconds):
                raise ValueError(f"cost profile {name!r}, {key}: positive seconds expected, got {seconds}")
        if load is not None and not 0 < load < inf:
            raise ValueError(f"cost profile {name!r}: a positive load expected, got {load}")
        return cls(name, samples, sources, limits, load, overhead)

    def to_dict(self) -> dict[str, Any]:
        """What from_dict reads."""
        data: dict[str, Any] = {"voice": self.name}
        if self.limits is not None:
            max_batch = {stage.value: most for stage, most in self.limits.max_batch.items()}
            data["limits"] = {name: getattr(self.limits, name) for name in LIMITS} | {"max_batch": max_batch}
        if self.load is not None:
            data["load"] = self.load
        if self.overhead != NO_OVERHEAD:
            data["overhead"] = asdict(self.overhead)
        data["costs"] = [
            {
                "stage": stage.value,
                "batch": batch,
                "length": length,
                "source": self.sources.get((stage, batch, length), "measured"),
                "seconds": list(seconds),
            }
            for (stage, batch, length), seconds in self.samples.items()
        ]
        return data

    def halves(self, seed: int) -> tuple[Profile, Profile]:
        """Two profiles that share no sample (except where there is only one), so that what is fitted on one half can
        be judged by the other."""
        random, first, second = Random(seed), {}, {}
        for key, seconds in self.samples.items():
            shuffled = random.sample(seconds, len(seconds))
            half = len(shuffled) // 2
            first[key], second[key] = tuple(shuffled[:half] or shuffled), tuple(shuffled[half:])
        return replace(self, samples=first), replace(self, samples=second)


def _limits(data: Mapping[str, Any] | None) -> Limits | None:
    if data is None:
        return None
    num_slots, num_pages, page_size, max_prefill_tokens = (int(data[name]) for name in LIMITS)
    max_batch = {Stage(name): int(most) for name, most in data["max_batch"].items()}
    return Limits(num_slots, num_pages, page_size, max_prefill_tokens=max_prefill_tokens, max_batch=max_batch)
