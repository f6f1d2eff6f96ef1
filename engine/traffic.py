"""Who calls when, for how long, and how they listen: scripts for the simulator and for real runs. It runs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from engine.core import Mode, ModelSpec, Prompt, PromptRow, SamplingParams, Submit, TextSegment

SPEC = ModelSpec(
    name="simulated",
    licence="none",
    sample_rate=24000,
    samples_per_frame=1920,
    num_codebooks=16,
    max_positions=2048,
    modes=frozenset(Mode),
    sampling=SamplingParams(),
)
TOKENS_PER_SECOND = 14.0
"""English speech, a token a character."""
NEVER = (inf, 0.0)


@dataclass(frozen=True, slots=True)
class Utterance:
    """What one scripted caller does. Its request_id is its place in the script."""

    at: float
    frames: int
    text_tokens: int = 40
    rows: int = 1
    follows: int | None = None
    cancel_at: float | None = None
    """An instant."""
    rate: float = 1.0
    """Of the listener's clock: seconds of audio that it plays in a second."""
    stall: tuple[float, float] = NEVER
    """Seconds of audio after which its playback stands still, and for how long."""
    hears: float | None = None
    """Seconds of audio after which it interrupts."""

    def submit(self, request_id: int) -> Submit:
        prompt = Prompt((PromptRow((TextSegment((0,) * self.text_tokens),)),) * self.rows)
        return Submit(request_id, prompt, SamplingParams(), follows=self.follows, submitted_at=self.at)


@dataclass(frozen=True, slots=True)
class Moods:
    """How listeners behave, by the share of them."""

    drift_ppm: float = 0.0
    """Clocks are off by up to so many millionths, either way."""
    stalls: float = 0.0
    barge_ins: float = 0.0


def poisson(requests: int, load: float, seed: int, spec: ModelSpec = SPEC, burst: int = 1) -> list[Utterance]:
    """Callers who come independently (or `burst` at once), each for one utterance of 2 to 20 s (log-normal, median
    4.5 s); `load` is the number of utterances that would play at once on average."""
    random = Random(seed)
    seconds = [min(20.0, max(2.0, random.lognormvariate(1.5, 0.6))) for _ in range(requests)]
    rate = load * requests / sum(seconds) / burst
    script, at = [], 0.0
    for number, length in enumerate(seconds):
        if number % burst == 0:
            at += random.expovariate(rate)
        script.append(Utterance(at, round(length / spec.frame_seconds), round(length * TOKENS_PER_SECOND)))
    return script


def moody(script: Sequence[Utterance], moods: Moods, seed: int, spec: ModelSpec = SPEC) -> list[Utterance]:
    """The same callers, with clocks that drift, playback that stalls for 0.1 to 2 s, and interruptions."""
    random, out = Random(seed), []
    for said in script:
        seconds = said.frames * spec.frame_seconds
        rate = 1 + random.uniform(-1, 1) * moods.drift_ppm * 1e-6
        stalls, where, pause = random.random() < moods.stalls, random.random() * seconds, random.uniform(0.1, 2.0)
        cut, heard = random.random() < moods.barge_ins, random.uniform(0.1, 0.9) * seconds
        stall = (where, pause) if stalls else NEVER
        out.append(replace(said, rate=rate, stall=stall, hears=heard if cut else None))
    return out


def read_trace(path: Path) -> list[Utterance]:
    """A script from JSON lines, an utterance each, in order of arrival. Raises OSError and ValueError."""
    lines = path.read_text().splitlines()
    return [_utterance(f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]


def _utterance(where: str, line: str) -> Utterance:
    names = [field.name for field in fields(Utterance)]
    try:
        data = json.loads(line)
        at, frames = float(data.pop("at")), int(data.pop("frames"))
        said = Utterance(at, frames, **{name: CONVERT.get(name, float)(value) for name, value in data.items()})
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"expected a JSON object with at, frames and others of {', '.join(names)}, got {line}: {error!r}"
        raise ValueError(f"{where}: {text}") from error
    if not (0 <= at < inf and min(frames, said.text_tokens, said.rows, said.rate) > 0 <= said.stall[1]):
        raise ValueError(f"{where}: at must be 0 or more, frames, text_tokens, rows and rate above 0, got {line}")
    return said


def _pair(value: Sequence[float]) -> tuple[float, float]:
    first, second = value
    return float(first), float(second)


CONVERT: Mapping[str, Callable[[Any], Any]] = {"text_tokens": int, "rows": int, "follows": int, "stall": _pair}
"""What reads a field; the others are numbers."""


def write_trace(path: Path, script: Iterable[Utterance]) -> None:
    """What read_trace reads: fields that have their default are left out."""
    with path.open("w") as file:
        for said in script:
            default = Utterance(said.at, said.frames)
            data = {k: v for k, v in asdict(said).items() if k in ("at", "frames") or v != getattr(default, k)}
            file.write(json.dumps(data) + "\n")
