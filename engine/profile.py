"""What steps cost on one machine: measured samples, not their means, so that tails survive. It predicts nothing.

The one bridge from the device to the simulator, written by `calibrate`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate
from math import inf
from random import Random
from typing import Any

from engine.checks import is_number, shown
from engine.core import SPEAKING, Limits, Stage

CostKey = tuple[Stage, int, int]
"""Stage, sequences, length as Step has them."""
LIMITS = ("num_slots", "num_pages", "page_size", "max_prefill_tokens")
"""Those that a profile keeps, beside max_batch and max_step_seconds."""
MOST = 1_000_000
"""Of whatever a profile counts: more is a slip of the keyboard, and no simulation would come to its end."""
MOST_SLOTS = 4096
"""Each has pages for all positions of a voice, in a simulation."""
MOST_BATCH = 1024
SHORTEST, LONGEST = 1e-9, 1000
"""Seconds of a step, and of what passes around it."""
LEAST_LOAD = 0.001
"""Mean number of streams at once."""
LEAST_TOKENS, MOST_TOKENS = 0.001, 4
"""Of a character of text: four are all of its bytes."""


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
    """Of a shape, in the order in which they were taken."""
    sources: Mapping[CostKey, str] = field(default_factory=dict)
    """Whether they were measured or estimated."""
    limits: Limits | None = None
    """Of the engine that they are meant for."""
    load: float | None = None
    """Mean number of streams at once at which newest-first first has gaps (engine.contest)."""
    overhead: Overhead = NO_OVERHEAD
    order: tuple[CostKey, ...] = ()
    """The shape of each step, in the order in which they were measured, back to back; empty: nobody knows."""
    rated_load: float | None = None
    """Mean number of streams at once up to which the Predictor leaves no gap, on slow devices, too: engine.capacity."""

    tokens_per_char: float = 1.0
    """Of text: what the voice's tokenizer makes of it."""

    @property
    def missing(self) -> list[Stage]:
        """The stages without a sample."""
        measured = {stage for stage, _, _ in self.samples}
        return [stage for stage in SPEAKING if stage not in measured]

    @property
    def timeline(self) -> list[tuple[CostKey, float]]:
        """The steps in their order, each with its seconds."""
        left = {key: iter(seconds) for key, seconds in self.samples.items()}
        return [(key, next(left[key])) for key in self.order]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Profile:
        """From {"voice", "costs": [{"stage", "batch", "length", "source", "seconds": [...]}, ...], "limits", "load",
        "rated_load", "tokens_per_char", "overhead", "order": indices into the costs}; other keys are ignored. Raises
        ValueError, which names the field, what was expected there, and what came."""
        try:
            return _profile(data)
        except ValueError as error:
            raise ValueError(f"not a cost profile: {error}; write one with calibrate") from error

    def to_dict(self) -> dict[str, Any]:
        """What from_dict reads."""
        data: dict[str, Any] = {"voice": self.name}
        if self.limits is not None:
            batches = self.limits.max_batch
            usual = batches[Stage.ENCODE] == batches[Stage.CODEC]
            max_batch = {stage.value: batches[stage] for stage in (SPEAKING if usual else Stage)}
            names = (*LIMITS, "max_step_seconds")
            data["limits"] = {name: getattr(self.limits, name) for name in names} | {"max_batch": max_batch}
        data |= {name: getattr(self, name) for name in ("load", "rated_load") if getattr(self, name) is not None}
        if self.tokens_per_char != 1.0:
            data["tokens_per_char"] = self.tokens_per_char
        if self.overhead != NO_OVERHEAD:
            data["overhead"] = asdict(self.overhead)
        if self.order:
            index = {key: number for number, key in enumerate(self.samples)}
            data["order"] = [index[key] for key in self.order]
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
        """Two profiles that share no sample, so that what is fitted on one half can be judged by the other. With an
        order, the calibration is cut where half of its time had passed, and the seed says which half is the first: what
        slowed the machine in one is unknown in the other. Without, samples are dealt out by the seed. A shape whose
        samples would all be in one half has them in both."""
        return self._cut(seed) if self.order else self._dealt(seed)

    def _dealt(self, seed: int) -> tuple[Profile, Profile]:
        random, first, second = Random(seed), {}, {}
        for key, seconds in self.samples.items():
            shuffled = random.sample(seconds, len(seconds))
            half = len(shuffled) // 2
            first[key], second[key] = tuple(shuffled[:half] or shuffled), tuple(shuffled[half:])
        return replace(self, samples=first), replace(self, samples=second)

    def _cut(self, seed: int) -> tuple[Profile, Profile]:
        timeline = self.timeline
        ends = list(accumulate(seconds for _, seconds in timeline))
        cut = max(1, bisect_right(ends, ends[-1] / 2))
        early, late = self._part(timeline[:cut]), self._part(timeline[cut:])
        return (late, early) if seed % 2 else (early, late)

    def _part(self, timeline: Sequence[tuple[CostKey, float]]) -> Profile:
        """The samples of these steps, and all of the shapes that are not among them: its order leaves those out."""
        own: dict[CostKey, list[float]] = {}
        for key, seconds in timeline:
            own.setdefault(key, []).append(seconds)
        samples = {key: tuple(own.get(key, whole)) for key, whole in self.samples.items()}
        return replace(self, samples=samples, order=tuple(key for key, _ in timeline))


# ---- reading: a kind of value is what holds of it, and what it is called ----

Kind = tuple[Callable[[Any], bool], str]


def _between(least: float, most: float) -> Kind:
    """A number in that range."""
    return lambda value: is_number(value) and least <= value <= most, f"a number from {least} to {most}"


def _whole(least: int, most: int) -> Kind:
    """A whole number in that range, which may be written with a point."""
    inside, _ = _between(least, most)
    return lambda value: inside(value) and float(value).is_integer(), f"a whole number from {least} to {most}"


STEP, _ = _between(SHORTEST, LONGEST)
OBJECT: Kind = (lambda value: isinstance(value, Mapping), "an object")
LIST: Kind = (lambda value: isinstance(value, list), "a list")
TEXT: Kind = (lambda value: isinstance(value, str), "text")
STAGE: Kind = (lambda value: value in list(Stage), f"one of {', '.join(Stage)}")
BATCH = _whole(1, MOST_BATCH)
LENGTH = _whole(0, MOST)
COUNTS: Mapping[str, Kind] = dict.fromkeys(LIMITS, _whole(1, MOST)) | {"num_slots": _whole(1, MOST_SLOTS)}
LOAD = _between(LEAST_LOAD, MOST)
TOKENS = _between(LEAST_TOKENS, MOST_TOKENS)
LONGEST_STEP: Kind = (STEP, f"seconds from {SHORTEST} to {LONGEST}")
DURATION: Kind = (_between(0, LONGEST)[0], f"seconds from 0 to {LONGEST}")
SECONDS: Kind = (
    lambda value: isinstance(value, list) and value != [] and all(map(STEP, value)),
    f"a list of seconds from {SHORTEST} to {LONGEST}, at least one",
)


def _checked(value: Any, kind: Kind, where: str) -> Any:
    """The value. Raises ValueError if it is of another kind, as all below do."""
    holds, what = kind
    if not holds(value):
        raise ValueError(f"{where}: expected {what}, got {shown(value)}")
    return value


def _field(data: Mapping[str, Any], name: str, kind: Kind, where: str = "") -> Any:
    if name not in data:
        raise ValueError(f"{where}{name}: expected {kind[1]}, got nothing")
    return _checked(data[name], kind, where + name)


def _optional(data: Mapping[str, Any], name: str, kind: Kind, where: str = "") -> Any:
    """None where there is none."""
    return None if data.get(name) is None else _field(data, name, kind, where)


def _profile(data: Any) -> Profile:
    samples: dict[CostKey, tuple[float, ...]] = {}
    sources: dict[CostKey, str] = {}
    for number, cost in enumerate(_field(_checked(data, OBJECT, "data"), "costs", LIST)):
        where = f"costs[{number}]"
        key = _key(_checked(cost, OBJECT, where), f"{where}.")
        if key in samples:
            raise ValueError(f"{where}: expected each shape once, got {', '.join(map(str, key))} again")
        samples[key] = tuple(map(float, _field(cost, "seconds", SECONDS, f"{where}.")))
        sources[key] = _optional(cost, "source", TEXT, f"{where}.") or "measured"
    return Profile(
        _field(data, "voice", TEXT),
        samples,
        sources,
        _limits(_optional(data, "limits", OBJECT)),
        _optional(data, "load", LOAD),
        _overhead(_optional(data, "overhead", OBJECT) or {}),
        _order(_optional(data, "order", LIST), samples),
        _optional(data, "rated_load", LOAD),
        _optional(data, "tokens_per_char", TOKENS) or 1.0,
    )


def _key(cost: Mapping[str, Any], where: str) -> CostKey:
    stage, batch = _field(cost, "stage", STAGE, where), _field(cost, "batch", BATCH, where)
    return Stage(stage), int(batch), int(_field(cost, "length", LENGTH, where))


def _limits(data: Mapping[str, Any] | None) -> Limits | None:
    if data is None:
        return None
    counts: dict[str, Any] = {name: int(_field(data, name, kind, "limits.")) for name, kind in COUNTS.items()}
    most, where = _field(data, "max_batch", OBJECT, "limits."), "limits.max_batch"
    for name in most:
        _checked(name, STAGE, where)
    batches = {stage: int(_field(most, stage, BATCH, f"{where}.")) for stage in SPEAKING}
    encode = _optional(most, Stage.ENCODE, BATCH, f"{where}.")  # left out where it is the codec's
    longest = _optional(data, "max_step_seconds", LONGEST_STEP, "limits.") or Limits().max_step_seconds
    max_batch = batches | {Stage.ENCODE: int(encode or batches[Stage.CODEC])}
    return Limits(**counts, max_batch=max_batch, max_step_seconds=longest)


def _overhead(data: Mapping[str, Any]) -> Overhead:
    names = [field.name for field in fields(Overhead)]
    known: Kind = (lambda name: name in names, f"some of {', '.join(names)}")
    return Overhead(**{_checked(name, known, "overhead"): _field(data, name, DURATION, "overhead.") for name in data})


def _order(indices: Sequence[Any] | None, samples: Mapping[CostKey, Sequence[float]]) -> tuple[CostKey, ...]:
    """With each cost as often as it has samples."""
    if indices is None:
        return ()
    keys = list(samples)
    index: Kind = (
        _whole(0, len(keys) - 1)[0],
        f"the number of one of the {len(keys)} costs, from 0 on",
    )
    order = tuple(keys[int(_checked(value, index, f"order[{i}]"))] for i, value in enumerate(indices))
    times = Counter(order)
    for number, (key, seconds) in enumerate(samples.items()):
        if times[key] != len(seconds):
            each = f"{number} as often as costs[{number}] has seconds, {len(seconds)} times"
            raise ValueError(f"order: expected {each}, got it {times[key]} times")
    return order
