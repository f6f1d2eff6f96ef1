"""Measures what a recording costs until a voice speaks like it: encoding it, and first audio with it the first time and
later. It does not know what it sounds like: recordings are noise, and the encoder's weights may be random.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from engine import device as devices
from engine import random_weights
from engine.calibrate import listening
from engine.clock import Clock, MonotonicClock
from engine.core import (
    Encode,
    Encoded,
    Event,
    Finished,
    Limits,
    Mode,
    ModelSpec,
    Reference,
    Request,
    Samples,
    SamplingParams,
    Stage,
    Step,
    StepResult,
)
from engine.encoder_places import MAX_RECORDINGS, EncoderPlaces
from engine.loop import run as run_loop
from engine.metrics import quantile
from engine.predictor import Predictor
from engine.reference import SAMPLE_RATE as RATE
from engine.runtime import Runtime
from engine.scheduler import Scheduler
from engine.traffic import SPEC
from engine.wav import header

MODEL = "breeze-tts-2"
"""Whose encoder's dimensions are measured."""
LEVEL = 0.1
FRAMES = 16
"""Of each utterance: its first audio counts."""
PLAIN, FIRST, CACHED = "plain", "first", "cached"
ASKED_SECONDS, ASKED_CACHED = 10.0, 1.1
"""Of each recording; times plain first audio, with a known voice."""
ASKED_MS, ASKED_CPU_MS = {1: 15.0, MAX_RECORDINGS: 80.0}, {1: 1500.0}
"""Until so many that come together are codes, at most: on one H200, on two cores."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """Recordings that come together to an engine that does nothing else."""

    together: int
    seconds: float
    """Of each."""
    all_ms_p50: float
    all_ms_p95: float
    """From their coming to the last one's codes."""
    steps: int
    longest_step_ms: float


@dataclass(frozen=True, slots=True)
class FirstAudio:
    """TTFA of one request on an idle engine."""

    voice: str
    """plain: its own; first: of a recording that nobody has spoken like; cached: again."""
    ttfa_ms_p50: float
    ttfa_ms_p95: float


@dataclass(frozen=True, slots=True)
class Voices:
    """What was measured."""

    encoder: str
    encoder_device: str
    threads: int
    encoding: tuple[Encoding, ...]
    voice: str
    recording_seconds: float
    making_ms_p50: float
    """From a file's bytes to a reference: decoded in a process of its own, and encoded."""
    first_audio: tuple[FirstAudio, ...]

    def to_dict(self) -> dict[str, object]:
        """JSON data."""
        return asdict(self)


class Ear:
    """An executor of recordings only."""

    def __init__(self, device: torch.device) -> None:
        self._places = EncoderPlaces(random_weights.encoder(MODEL, device=device), device)
        self._device = device

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        result = self._places.run(step.rows)
        devices.synchronise(self._device)
        return result


class Crowd:
    """All events at once; closed when nobody waits for anything."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.closed = False
        self._events = list(events)

    def drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def wait(self, until: float | None) -> None:
        self.closed = True


def run(runtime: Runtime, text: str, transcript: str, seconds: float, runs: int, console: Console) -> Voices:
    """Measures both, the second with the runtime's own voice. Raises RequestError where that cannot clone."""
    first_audio, making_ms = speaking(runtime, text, transcript, seconds, runs, console)
    device = devices.choose(runtime.config.device)
    devices.set_threads(device, runtime.config.threads)
    encoding = tuple(hearing(device, seconds, runs, console))
    threads = torch.get_num_threads() if device.type == "cpu" else 0
    done = Voices(
        MODEL, devices.name(device), threads, encoding, runtime.spec.name, seconds, making_ms, tuple(first_audio)
    )
    console.print(table(done))
    for words, met in targets(done):
        console.print(f"{words}: {'met' if met else 'missed'}", highlight=False)
    return done


# ---- encoding ----


def hearing(device: torch.device, seconds: float, runs: int, console: Console) -> Iterator[Encoding]:
    """One recording, and as many as an engine listens to at once, by the production loop."""
    clock, ear, spec = MonotonicClock(), Ear(device), replace(SPEC, encodes=True)
    most, longest = dict.fromkeys(Stage, MAX_RECORDINGS), devices.longest_step(device)
    limits = Limits(max_batch=most, max_queued=MAX_RECORDINGS, max_step_seconds=longest)
    predictor = Predictor()
    for step, elapsed in listening(ear, spec, limits, clock):
        predictor.observe(step, elapsed)
    counts = (1, MAX_RECORDINGS) if devices.captures(device) else (1, 2)  # a CPU would take too long
    for together in counts:
        crowd = [noise(seconds, seed) for seed in range(together)]
        heard(ear, spec, limits, predictor, clock, crowd)
        rounds = track(range(runs), description=f"{together} together", console=console, transient=True)
        measured = [heard(ear, spec, limits, predictor, clock, crowd) for _ in rounds]
        times = sorted(elapsed for elapsed, _ in measured)
        steps = [step for _, took in measured for step in took]
        yield Encoding(
            together,
            seconds,
            ms(quantile(times, 0.5)),
            ms(quantile(times, 0.95)),
            len(measured[0][1]),
            ms(max(steps)),
        )


def heard(
    ear: Ear, spec: ModelSpec, limits: Limits, predictor: Predictor, clock: Clock, crowd: Sequence[Samples]
) -> tuple[float, list[float]]:
    """Seconds until all of the crowd are codes, and those of each step."""
    steps, codes = list[float](), list[Encoded]()

    class Timed:
        def run(self, step: Step) -> StepResult:
            began = clock.now()
            result = ear.run(step)
            steps.append(clock.now() - began)
            return result

    scheduler = Scheduler(spec, limits, predictor)
    came_at = clock.now()
    events = [Encode(number, samples, came_at) for number, samples in enumerate(crowd)]
    run_loop(
        Crowd(events),
        scheduler,
        Timed(),
        predictor,
        clock,
        lambda output: codes.append(output) if isinstance(output, Encoded) else None,
    )
    assert len(codes) == len(crowd), f"all are to be encoded, got {len(codes)} of {len(crowd)}"
    return clock.now() - came_at, steps


# ---- first audio ----


def speaking(
    runtime: Runtime, text: str, transcript: str, seconds: float, runs: int, console: Console
) -> tuple[list[FirstAudio], float]:
    """Of each kind, with another recording in each run, as itself only where it speaks so; and the ms until a
    reference is made."""
    plain = Mode.PLAIN in runtime.spec.modes
    kinds = (PLAIN, FIRST, CACHED) if plain else (FIRST, CACHED)
    clock, times, making = MonotonicClock(), {kind: list[float]() for kind in kinds}, list[float]()
    for seed in track(range(runs + 1), description="speaking", console=console, transient=True):
        data, began = wav(noise(seconds, seed)), clock.now()
        reference = runtime.clone(data, transcript)
        took = clock.now() - began
        ttfa = {PLAIN: spoken(runtime, text, None)} if plain else {}
        ttfa[FIRST] = spoken(runtime, text, reference)
        began = clock.now()
        again = runtime.clone(data, transcript)
        found = clock.now() - began  # whoever sends the file again waits for its hash, too
        ttfa[CACHED] = found + spoken(runtime, text, again)
        if seed == 0:
            continue  # its first calls are not warm
        making.append(took)
        for kind, elapsed in ttfa.items():
            times[kind].append(elapsed)
    rows = ((kind, ms(quantile(sorted(each), 0.5)), ms(quantile(sorted(each), 0.95))) for kind, each in times.items())
    return [FirstAudio(*row) for row in rows], ms(quantile(sorted(making), 0.5))


def spoken(runtime: Runtime, text: str, reference: Reference | None) -> float:
    """TTFA. Raises ValueError for what the voice cannot say."""
    sampling: SamplingParams = replace(runtime.spec.sampling, min_frames=FRAMES, max_frames=FRAMES)
    *_, end = runtime.stream(Request(text, sampling, reference=reference))
    if not isinstance(end, Finished) or end.stats.ttfa is None:
        raise ValueError(f"expected speech, got {end}")
    return end.stats.ttfa


def noise(seconds: float, seed: int) -> Samples:
    """A recording."""
    samples = np.random.default_rng(seed).standard_normal(round(seconds * RATE), np.float32) * np.float32(LEVEL)
    return samples.clip(-1, 1)


def wav(samples: Samples) -> bytes:
    """The same as a file."""
    pcm = (samples * 32767).astype("<i2").tobytes()
    return header(RATE, len(pcm)) + pcm


def ms(seconds: float) -> float:
    return round(1000 * seconds, 2)


def table(done: Voices) -> Table:
    """What was measured, a row each."""
    title = f"Recordings of {done.recording_seconds:g} s; encoder {done.encoder} on {done.encoder_device}"
    out = Table("what", "p50 ms", "p95 ms", title=title, title_justify="left", box=SIMPLE_HEAD)
    for row in done.encoding:
        out.add_row(f"{row.together} encoded together", f"{row.all_ms_p50:.1f}", f"{row.all_ms_p95:.1f}")
    for audio in done.first_audio:
        name = f"first audio of {done.voice}, {audio.voice}"
        out.add_row(name, f"{audio.ttfa_ms_p50:.1f}", f"{audio.ttfa_ms_p95:.1f}")
    out.add_row("from a file to a reference", f"{done.making_ms_p50:.1f}", "")
    return out


def targets(done: Voices) -> Iterator[tuple[str, bool]]:
    """What was asked of these figures (p50), in words, and whether it is met."""
    asked = ASKED_CPU_MS if done.threads else ASKED_MS
    for row in done.encoding:
        if done.recording_seconds == ASKED_SECONDS and row.together in asked:
            took, most = row.all_ms_p50, asked[row.together]
            yield f"{row.together} encoded together: {took:.1f} ms of at most {most:g}", took <= most
    p50 = {audio.voice: audio.ttfa_ms_p50 for audio in done.first_audio}
    if PLAIN not in p50:
        return  # it only clones
    ratio = p50[CACHED] / p50[PLAIN]
    yield f"a known voice's first audio: {ratio:.2f} times plain, at most {ASKED_CACHED:g}", ratio <= ASKED_CACHED
