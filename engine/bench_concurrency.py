"""The command `bench concurrency`: what many requests at once hear of the engine, and of plain PyTorch beside it.

It knows no scheduling. Callers and listeners are those of `bench gaps`, in real time; every request speaks the same
number of frames. Callers arrive together, or as a Poisson process with so many utterances playing at once on average.
Plain PyTorch, the baseline, is the eager model in this process, its steps run one after the other: no scheduler, no
pipe, and first audio with the first 16 frames.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from math import ceil, inf
from pathlib import Path
from random import Random
from typing import Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from engine import bench_gaps
from engine import device as devices
from engine.bench import fitting, fixed, p50_p95_ms
from engine.calibrate import OPENING
from engine.calibrate import script as scripted
from engine.clock import Clock, MonotonicClock
from engine.core import Finished, Limits, ModelSpec, Prompt, Request, SamplingParams, Stage, Step, StepResult
from engine.executor import load
from engine.listener import Listener
from engine.live import Live
from engine.messages import RuntimeConfig
from engine.metrics import quantile
from engine.runtime import Runtime
from engine.simulator import Simulation
from engine.traffic import Utterance

REQUESTS = (1, 2, 4, 8, 16, 32, 64)
FRAMES = 50
"""Of each request: 4 s. No stream is then held because it is far ahead of its listener (Limits.max_lead)."""
CHARS = 70
"""Of each request's text, at least: a sentence of some 4 s."""
TOGETHER, POISSON = "together", "poisson"
ARRIVING = {TOGETHER: "together", POISSON: "Poisson"}
"""What people read."""
SERVED = 16
"""Requests that arrive together are so many at least, in rounds."""
LEAST_ROUNDS = 2
SECONDS = 5.0
"""For which Poisson arrivals are counted, after as long a lead-in as an utterance lasts."""
LEAST_CALLERS = 10
"""In that time, on average: where so few play at once that fewer would come, utterances are shorter."""
CHUNK = 16
"""Frames of the baseline's chunks."""
SEED = 0


class Runs(Protocol):
    """An executor."""

    def run(self, step: Step) -> StepResult: ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A figure that somebody published, and the GPU it is from."""

    runtime: str
    model: str
    gpu: str
    requests: int
    ttfa_ms_p50: float | None
    ttfa_ms_p95: float | None
    source: str


BREEZE_RT, BREEZE, QWEN = "BreezeRT", "Breeze TTS 2", "Qwen3-TTS 1.7B"
PEERS = (
    Peer(BREEZE_RT, BREEZE, "H100", 1, 35.0, None, "https://breezeblue.ai"),
    Peer(BREEZE_RT, BREEZE, "H100", 16, 38.0, 52.0, "https://github.com/vllm-project/vllm-omni/pull/7752"),
    Peer(
        "breeze-tts, open code (less than)",
        BREEZE,
        "H100",
        1,
        40.0,
        None,
        "https://github.com/breezeblue-ai/breeze-tts",
    ),
    Peer("faster-qwen3-tts 0.1", QWEN, "H100", 1, 236.0, None, "https://pypi.org/project/faster-qwen3-tts/0.1.0/"),
    *(
        Peer("nano-qwen3tts-vllm", QWEN, "H100", n, ms, None, "https://github.com/tsdocode/nano-qwen3tts-vllm")
        for n, ms in ((1, 176.0), (2, 265.0), (4, 375.0), (8, 547.0))
    ),
)
"""Their texts, lengths and networks differ from ours: no row is to be compared with ours by the millisecond."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Of requests that arrive together, by their number: p50 of the seconds to first audio."""

    batched: dict[int, float]
    """All in one batch, in lockstep; measured once each."""
    first: float
    """Of a request alone."""
    whole: float
    """Until all of its audio is made."""

    def sequential(self, requests: int) -> float:
        """One after the other: each waits until those before it are done."""
        return quantile([number * self.whole + self.first for number in range(requests)], 0.5)

    def figures(self, requests: int) -> dict[str, float]:
        """A row's part of it: the better of the two ways, and both."""
        batched, sequential = (round(1000 * s, 3) for s in (self.batched[requests], self.sequential(requests)))
        return {
            "baseline_ttfa_ms_p50": min(batched, sequential),
            "baseline_batched_ttfa_ms_p50": batched,
            "baseline_sequential_ttfa_ms_p50": sequential,
        }


@dataclass(frozen=True, slots=True)
class Row:
    """What one kind of arrival gave."""

    requests: int
    """That arrive together; of Poisson arrivals, utterances that play at once on average."""
    arrival: str
    served: int
    """Requests whose first audio counts: all that arrived together, or those after the lead-in."""
    frames: int
    """Of each."""
    ttfa_ms_p50: float
    ttfa_ms_p95: float
    underruns: int
    """Chunks that came when all before them had been played, in all requests, those of the lead-in among them."""
    largest_gap_ms: float
    """The extra buffer that would have avoided every gap."""
    rtf: float
    audio_s_per_s: float
    """Seconds of audio made in a second, from the first request to the last chunk. Of Poisson arrivals it is what was
    asked for, and not what could have been made."""
    baseline_ttfa_ms_p50: float
    """For so many requests together, whatever the row's arrivals; the better of the next two."""
    baseline_batched_ttfa_ms_p50: float
    baseline_sequential_ttfa_ms_p50: float


@dataclass(frozen=True, slots=True)
class Concurrency:
    """All rows, on one device."""

    device: str
    voice: str
    rows: tuple[Row, ...]
    baseline: Baseline
    captures: bool = True
    """Whether the device captures graphs: what others published of GPUs does not compare with one that does not."""

    def to_dict(self) -> dict[str, object]:
        """JSON data, without the device."""
        baseline = {
            "how": "eager model, no scheduler, first audio after 16 frames; batched: measured once a number of "
            "requests; sequential: computed from one request, the k-th starts when those before it are done",
            "first_chunk_seconds": round(self.baseline.first, 4),
            "whole_request_seconds": round(self.baseline.whole, 4),
        }
        rows, peers = [asdict(row) for row in self.rows], [asdict(peer) for peer in PEERS]
        return {"voice": self.voice, "rows": rows, "baseline": baseline, "published": peers}


# ---- the baseline ----


def plain_loop(prompts: Sequence[Prompt], sampling: SamplingParams, limits: Limits) -> Iterator[Step]:
    """The steps of a loop without a scheduler: all prompts in lockstep up to sampling.max_frames, 16 frames a chunk."""
    opening = list(takewhile(lambda step: step.stage in OPENING, scripted(prompts, sampling, limits)))
    rows = tuple(replace(row, count=1, admission=None) for row in opening[0].rows)

    def step(stage: Stage, start: int, count: int = 1) -> Step:
        return Step(stage, tuple(replace(row, start=start, count=count) for row in rows))

    yield from opening
    for frame in range(sampling.max_frames):
        if frame:
            yield step(Stage.DECODE, frame - 1)
        yield step(Stage.DEPTH, frame)
        made = frame + 1
        if made % CHUNK == 0 or made == sampling.max_frames:
            count = (made - 1) % CHUNK + 1
            yield step(Stage.CODEC, made - count, count)


def timed(executor: Runs, steps: Iterable[Step], clock: Clock) -> Iterator[float]:
    """Seconds since the start, after each chunk of audio."""
    started_at = clock.now()
    for step in steps:
        executor.run(step)
        if step.stage is Stage.CODEC:
            yield clock.now() - started_at


def baseline(
    config: RuntimeConfig, numbers: Sequence[int] | None, frames: int, console: Console
) -> tuple[Baseline, tuple[int, ...]]:
    """What the eager model does, and the numbers of requests that were asked for: None are those of REQUESTS that have
    a slot each. Raises ValueError for more than that."""
    with console.status("plain PyTorch: loading the voice"):
        model, executor, limits = load(replace(config, graphs=frozenset()))
    chosen = fitting("--requests", numbers, REQUESTS, limits.num_slots)
    clock, sampling = MonotonicClock(), fixed(model.spec.sampling, frames)
    prompts = [model.prompt(request) for request in asked(max(chosen), frames, model.spec)]

    def first(number: int) -> float:
        return next(timed(executor, plain_loop(prompts[:number], sampling, limits), clock))

    with bench_gaps.progress(console) as bar:
        task = bar.add_task("plain PyTorch", total=len(chosen) + 2)
        first(1)  # the first steps of a process are not warm
        bar.advance(task)
        alone = list(timed(executor, plain_loop(prompts[:1], sampling, limits), clock))
        batched = {}
        for number in chosen:
            bar.advance(task)
            batched[number] = alone[0] if number == 1 else first(number)
    return Baseline(batched, alone[0], alone[-1]), chosen


# ---- the engine ----


def asked(number: int, frames: int, spec: ModelSpec) -> list[Request]:
    """So many requests with texts of their own, each of exactly so many frames."""
    sampling = fixed(spec.sampling, frames)
    chars = min(CHARS, spec.max_text_chars)
    return [Request(bench_gaps.text(i, chars), sampling) for i in range(number)]


def callers(number: int, frames: int, seconds: float, spec: ModelSpec) -> list[Utterance]:
    """Poisson arrivals with `number` utterances playing at once on average: a lead-in of an utterance's length, then
    as many seconds as count, in which somebody calls."""
    frames = max(1, min(frames, int(number * seconds / LEAST_CALLERS / spec.frame_seconds)))
    length = frames * spec.frame_seconds
    random, script, at = Random(SEED), list[Utterance](), 0.0
    while (at := at + random.expovariate(number / length)) < length + seconds or not _counted(script, length):
        script.append(Utterance(at, frames))
    return script


def _counted(script: Sequence[Utterance], since: float) -> bool:
    return bool(script) and script[-1].at >= since


def play(runtime: Runtime, script: Sequence[Utterance]) -> Simulation:
    """What happened. Raises RuntimeError when a request fails, or is not as long as it was to be."""
    frames = script[0].frames
    happened = Live(runtime, script, asked(len(script), frames, runtime.spec)).run()
    for listener in happened.listeners:
        end = listener.end
        assert isinstance(end, Finished), f"a live run ends when all were served, got {end}"
        if end.stats.num_frames != frames:
            raise RuntimeError(
                f"every request was to speak {frames} frames, one spoke {end.stats.num_frames}: ask for fewer"
            )
    return happened


def figures(runs: Sequence[Simulation], counted: Sequence[Listener]) -> dict[str, float]:
    """A row's part of one or more runs; first audio is that of the counted listeners."""
    heard = [listener for run in runs for listener in run.listeners]
    audio = sum(listener.audio for listener in heard)
    compute = sum(sum(x.end.stats.stage_seconds.values()) for x in heard if isinstance(x.end, Finished))
    p50, p95 = p50_p95_ms(listener.ttfa for listener in counted if listener.ttfa is not None)
    return {
        "ttfa_ms_p50": p50,
        "ttfa_ms_p95": p95,
        "underruns": sum(listener.underruns for listener in heard),
        "largest_gap_ms": round(1000 * max(listener.extra_buffer for listener in heard), 3),
        "rtf": round(compute / audio, 4),
        "audio_s_per_s": round(audio / sum(map(lasted, runs)), 3),
    }


def lasted(run: Simulation) -> float:
    """Seconds from the first request to the last chunk."""
    arrivals = [listener.arrivals[-1][0] for listener in run.listeners]
    return max(arrivals) - min(listener.said.at for listener in run.listeners)


def together(runtime: Runtime, number: int, frames: int, base: Baseline) -> Row:
    """One row."""
    rounds = max(LEAST_ROUNDS, ceil(SERVED / number))
    runs = [play(runtime, [Utterance(0.0, frames)] * number) for _ in range(rounds)]
    heard = [listener for run in runs for listener in run.listeners]
    return _row(number, TOGETHER, frames, runs, heard, base)


def one_by_one(runtime: Runtime, number: int, frames: int, seconds: float, base: Baseline) -> Row:
    """One row."""
    script = callers(number, frames, seconds, runtime.spec)
    run = play(runtime, script)
    lead_in = script[0].frames * runtime.spec.frame_seconds
    heard = [x for x, said in zip(run.listeners, script, strict=True) if said.at >= lead_in]
    return _row(number, POISSON, script[0].frames, [run], heard, base)


def _row(
    number: int, arrival: str, frames: int, runs: Sequence[Simulation], counted: Sequence[Listener], base: Baseline
) -> Row:
    parts = figures(runs, counted)
    underruns = int(parts.pop("underruns"))
    return Row(number, arrival, len(counted), frames, underruns=underruns, **parts, **base.figures(number))


def run(
    config: RuntimeConfig,
    requests: Sequence[int] | None,
    frames: int,
    seconds: float,
    console: Console,
    start: Callable[[RuntimeConfig], Runtime] = Runtime.start,
) -> Concurrency:
    """The baseline, then two rows a number of requests, printed at the end; None are those of REQUESTS that the engine
    has slots for. Raises ValueError for more or too few frames, EngineError when the engine cannot start, and
    RuntimeError when a request fails."""
    if frames < CHUNK:
        raise ValueError(f"--frames must be at least {CHUNK}, the first chunk of plain PyTorch, got {frames}")
    base, numbers = baseline(config, requests, frames, console)
    device = devices.choose(config.device)
    gc.collect()  # the baseline's model, whose memory the engine's process needs
    devices.free_memory(device)
    with console.status("starting the engine"):
        runtime = start(replace(config, max_wait=inf))
    rows = list[Row]()
    with runtime, bench_gaps.progress(console) as bar:
        task = bar.add_task("speaking", total=2 * len(numbers))
        bench_gaps.warm_up(runtime)
        for number in numbers:
            rows.append(together(runtime, number, frames, base))
            bar.advance(task)
        for number in numbers:
            rows.append(one_by_one(runtime, number, frames, seconds, base))
            bar.advance(task)
    done = Concurrency(runtime.device, runtime.spec.name, tuple(rows), base, devices.captures(device))
    console.print(table(done.rows))
    if done.captures:
        console.print(peers())
    return done


def table(rows: Sequence[Row]) -> Table:
    """The rows as a person reads them in 80 columns."""
    names = ("requests", "arriving", "served", "TTFA\np50 ms", "TTFA\np95 ms", "under-\nruns", "RTF", "audio\ns/s")
    plain = ("plain PyTorch\nbatched, ms", "one by\none, ms")
    out = Table(*names, *plain, box=SIMPLE_HEAD, padding=0)
    for row in rows:
        measured = (f"{row.ttfa_ms_p50:.1f}", f"{row.ttfa_ms_p95:.1f}", str(row.underruns), f"{row.rtf:.3f}")
        baselines = (row.baseline_batched_ttfa_ms_p50, row.baseline_sequential_ttfa_ms_p50)
        out.add_row(
            str(row.requests),
            ARRIVING[row.arrival],
            str(row.served),
            *measured,
            f"{row.audio_s_per_s:.1f}",
            *(f"{ms:.0f}" for ms in baselines),
        )
    return out


def draw(path: Path, done: Concurrency) -> None:
    """First audio over the number of requests, as a PNG file. Raises RuntimeError without matplotlib, and OSError."""
    from engine import plot

    rows = [asdict(row) for row in done.rows]
    known = [asdict(peer) for peer in PEERS if peer.runtime == BREEZE_RT and done.captures]
    plot.concurrency(path, f"First audio by the number of requests: {done.voice} on {done.device}", rows, known)


def peers() -> Table:
    """What others published, each on the GPU that is named."""
    title = "as published by others (BreezeRT: its authors), with other texts and lengths"
    names = ("runtime", "model", "GPU", "requests", "TTFA\np50 ms", "TTFA\np95 ms")
    out = Table(*names, title=title, box=SIMPLE_HEAD, padding=0)
    for peer in PEERS:
        cells = ("-" if ms is None else f"{ms:.0f}" for ms in (peer.ttfa_ms_p50, peer.ttfa_ms_p95))
        out.add_row(peer.runtime, peer.model, peer.gpu, str(peer.requests), *cells)
    return out
