"""Who calls when, for how long, and how they listen: scripts for the simulator and for real runs. It runs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from engine.checks import is_number
from engine.core import Mode, ModelSpec, Prompt, PromptRow, SamplingParams, Submit, Text, TextSegment
from engine.open_text import BEGIN

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
CHARS_PER_SECOND = 14.0
"""Of English speech."""
BEFORE_TEXT = 8
"""Prompt positions before the first token of a text that is still being written, as Qwen3-TTS has them."""
NEVER = (inf, 0.0)
MOST = 1_000_000
"""Of frames, tokens, and seconds in a trace: more is a slip of the keyboard."""
SLOWEST, FASTEST = 0.01, 100.0
"""Rates of a listener's clock in a trace."""
MAX_RECORDED = 30
"""Seconds of a recording, in a trace."""
SLOWEST_TEXT, FASTEST_TEXT = 0.1, 10_000.0
"""Words a second in a trace."""
QUOTED = 200
"""Characters of a line, in an error about it."""


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
    recording: float = 0.0
    """Seconds of a recording to speak like, which has to become codes first."""
    text_rate: float | None = None
    """Words a second in which its text is written, a token each, the first one at `at`; None: it is there, whole."""

    def submit(self, request_id: int) -> Submit:
        """With the usual limit of frames, or one that lets it be said in full."""
        row = PromptRow((TextSegment((0,) * self.text_tokens),))
        if self.text_rate is not None:
            row = PromptRow((TextSegment((0,) * BEFORE_TEXT),), trailing=-1, open=True)
        sampling = SamplingParams()
        sampling = replace(sampling, max_frames=max(sampling.max_frames, self.frames + 1))
        return Submit(request_id, Prompt((row,) * self.rows), sampling, follows=self.follows, submitted_at=self.at)

    @property
    def begins_at(self) -> float:
        """When there is text enough to begin with; a word is certain with the next one, or with the end."""
        return self.at if self.text_rate is None else self.at + min(BEGIN, self.text_tokens - 1) / self.text_rate

    def texts(self, request_id: int) -> Iterator[tuple[float, Text]]:
        """What comes of its text, and when: with each word the one before it, with the last one also that and the two
        tokens of its end."""
        if self.text_rate is not None:
            last = self.text_tokens - 1
            for word in range(last):
                at = self.at + (word + 1) / self.text_rate
                yield at, Text(request_id, (0,), came_at=at)
            at = self.at + last / self.text_rate
            yield at, Text(request_id, (0,) * 3, True, at)


@dataclass(frozen=True, slots=True)
class Moods:
    """How listeners behave, by the share of them."""

    drift_ppm: float = 0.0
    """Clocks are off by up to so many millionths, either way."""
    stalls: float = 0.0
    barge_ins: float = 0.0


def poisson(
    requests: int, load: float, seed: int, spec: ModelSpec = SPEC, burst: int = 1, tokens_per_char: float = 1.0
) -> list[Utterance]:
    """Callers who come independently (or `burst` at once), each for one utterance of 2 to 20 s (log-normal, median
    4.5 s); `load` is the number of utterances that would play at once on average."""
    random = Random(seed)
    seconds = [min(20.0, max(2.0, random.lognormvariate(1.5, 0.6))) for _ in range(requests)]
    rate = load * requests / sum(seconds) / burst
    script, at = [], 0.0
    for number, length in enumerate(seconds):
        if number % burst == 0:
            at += random.expovariate(rate)
        tokens = max(1, round(length * CHARS_PER_SECOND * tokens_per_char))
        script.append(Utterance(at, round(length / spec.frame_seconds), tokens))
    return script


def moody(script: Sequence[Utterance], moods: Moods, seed: int, spec: ModelSpec = SPEC) -> list[Utterance]:
    """The same callers, with clocks that drift, playback that stalls for 0.1 to 2 s, and interruptions. Whoever is not
    drawn for one of these stays as he is."""
    random, out = Random(seed), []
    for said in script:
        seconds = said.frames * spec.frame_seconds
        rate = said.rate * (1 + random.uniform(-1, 1) * moods.drift_ppm * 1e-6)
        stalls, where, pause = random.random() < moods.stalls, random.random() * seconds, random.uniform(0.1, 2.0)
        cut, heard = random.random() < moods.barge_ins, random.uniform(0.1, 0.9) * seconds
        stall = (where, pause) if stalls else said.stall
        out.append(replace(said, rate=rate, stall=stall, hears=heard if cut else said.hears))
    return out


def written(script: Sequence[Utterance], text_rate: float | None) -> list[Utterance]:
    """The same callers, whose texts are written so many words a second; None: as they were."""
    return [said if text_rate is None else replace(said, text_rate=text_rate) for said in script]


def read_trace(path: Path, spec: ModelSpec | None = None) -> list[Utterance]:
    """A script from JSON lines, an utterance each, in order of arrival. With a spec, each must fit into its positions.
    Raises OSError and ValueError."""
    script: list[Utterance] = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: expected JSON lines in UTF-8, got other bytes: give a trace") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                script.append(_utterance(line, script, spec))
            except ValueError as error:
                quoted = line if len(line) <= QUOTED else f"{line[:QUOTED]}..."
                raise ValueError(f"{path}, line {number}: {error}, got {quoted}") from error
    return script


def _utterance(line: str, script: Sequence[Utterance], spec: ModelSpec | None) -> Utterance:
    """The one that comes after those of the script. Raises ValueError, which says what was expected."""
    try:
        data = json.loads(line)
    except (RecursionError, ValueError):  # of JSON that is nested too deeply, or none
        data = None
    if not isinstance(data, dict) or not {"at", "frames"} <= data.keys() <= KINDS.keys():
        raise ValueError(f"expected a JSON object with at, frames and others of {', '.join(KINDS)}")
    said = Utterance(**{name: _field(name, value) for name, value in data.items()})
    if wrong := _wrong(said, script) or (spec and _unservable(said, spec)):
        raise ValueError(wrong)
    return said


def _wrong(said: Utterance, script: Sequence[Utterance]) -> str | None:
    """The first rule that an utterance breaks, which comes after those of a script."""
    (stalls_at, pause), cut, heard, before = said.stall, said.cancel_at, said.hears, said.follows
    last, rate = script[-1].at if script else 0.0, said.text_rate
    rules = (
        (0 <= said.at <= MOST, f"at must be from 0 to {MOST}"),
        (said.at >= last, f"at must not be before that of the line above ({last}): put the lines in order of arrival"),
        (0 < said.frames <= MOST >= said.text_tokens > 0, f"frames and text_tokens must be from 1 to {MOST}"),
        (said.rows in (1, 2), "rows must be 1, or 2 for guidance"),
        (SLOWEST <= said.rate <= FASTEST, f"rate must be from {SLOWEST} to {FASTEST}"),
        (
            stalls_at > 0 <= pause <= MOST,
            f"stall must be [seconds of audio above 0, seconds of pause from 0 to {MOST}]",
        ),
        (heard is None or heard > 0, "hears must be above 0"),
        (0 <= said.recording <= MAX_RECORDED, f"recording must be seconds from 0 to {MAX_RECORDED}"),
        (
            rate is None or (SLOWEST_TEXT <= rate <= FASTEST_TEXT and said.rows == 1),
            f"text_rate must be from {SLOWEST_TEXT} to {FASTEST_TEXT}, with one row",
        ),
        (cut is None or said.at <= cut <= 2 * MOST, f"cancel_at must be from at to {2 * MOST}"),
        (before is None or 0 <= before < len(script), "follows must be the place of an earlier utterance, from 0 on"),
    )
    return next((rule for holds, rule in rules if not holds), None)


def _unservable(said: Utterance, spec: ModelSpec) -> str | None:
    """Why a model could not say all of it: one position is left for the end."""
    most = spec.max_positions - 1
    if said.text_tokens + said.frames <= most:
        return None
    return f"text_tokens ({said.text_tokens}) and frames together must be at most {most}: make it shorter"


def _field(name: str, value: object) -> Any:
    read, what = KINDS[name]
    try:
        return read(value)
    except (OverflowError, TypeError, ValueError):
        raise ValueError(f"{name} must be {what}") from None


def _number(value: object) -> float:
    if not is_number(value):
        raise TypeError
    return float(value)  # type: ignore[arg-type]  # it is one


def _whole(value: object) -> int:
    number = _number(value)
    if not number.is_integer():
        raise ValueError
    return int(number)


def _pair(value: Any) -> tuple[float, float]:
    first, second = value
    return _number(first), _number(second)


WHOLE, NUMBER = (_whole, "a whole number"), (_number, "a number")
KINDS: Mapping[str, tuple[Callable[[object], Any], str]] = {
    "at": NUMBER,
    "frames": WHOLE,
    "text_tokens": WHOLE,
    "rows": WHOLE,
    "follows": WHOLE,
    "cancel_at": NUMBER,
    "rate": NUMBER,
    "stall": (_pair, "two numbers"),
    "hears": NUMBER,
    "recording": NUMBER,
    "text_rate": NUMBER,
}
"""Fields of a line: what reads them, and what they are."""


def write_trace(path: Path, script: Iterable[Utterance]) -> None:
    """What read_trace reads: fields that have their default are left out."""
    with path.open("w") as file:
        for said in script:
            default = Utterance(said.at, said.frames)
            data = {k: v for k, v in asdict(said).items() if k in ("at", "frames") or v != getattr(default, k)}
            file.write(json.dumps(data) + "\n")
