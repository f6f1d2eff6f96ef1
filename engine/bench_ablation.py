"""The command `bench ablation`: time to first audio of one request, as each part of the engine is taken in use.

It knows no model. Each step is an engine of its own; requests come one at a time, and each is cancelled when its first
audio is there. The ladder is the one that BreezeRT's authors published for theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from engine import device as devices
from engine.bench import SENTENCES, first_audio, fixed, p50_p95_ms
from engine.clock import MonotonicClock
from engine.core import SPEAKING, Request, Stage
from engine.messages import RuntimeConfig
from engine.policies import PREDICTOR
from engine.runtime import Runtime

STEPS: Mapping[str, tuple[frozenset[Stage], str]] = {
    "eager-16": (frozenset(), "fixed-chunks"),
    "progressive": (frozenset(), PREDICTOR),
    "depth-compiled": (frozenset({Stage.DEPTH}), PREDICTOR),
    "graphs": (frozenset(SPEAKING), PREDICTOR),
}
"""Stages that are captured graphs, and the policy: the one of eager-16 has 16 frames in its first chunk."""
WORDS: Mapping[str, str] = {
    "eager-16": "op by op, 16 frames before the first chunk",
    "progressive": "op by op, chunks of 1, 2, 4, 8, 16 frames",
    "depth-compiled": "and the depth decoder as a graph of fused kernels",
    "graphs": "and every stage",
}
"""What people read."""
MODEL = "breeze-tts-2"
"""Of which it was published; a voice of it has this in its name."""
PUBLISHED: Mapping[str, object] = {
    "runtime": "BreezeRT",
    "gpu": "H100",
    "source": "BreezeRT's published latency results, https://breezeblue.ai",
    "ttfa_ms": dict(zip(STEPS, (2500.0, 150.0, 100.0, 35.0), strict=True)),
}
"""On another GPU than ours may be: an H200 has 1.43 times the H100's memory bandwidth (4.8 and 3.35 TB/s, NVIDIA)."""
FASTER: Mapping[str, float] = {"eager-16": 15.0, "progressive": 6.0}
"""Times that graphs shall be faster than these steps (p50)."""
TARGET_MS = 20.0
"""What they shall take (p50)."""
FRAMES = 32
"""Of a request: more than the largest first chunk, so that none is cut short."""
WARM = 2
"""Requests of each engine that do not count."""
LEAST, MOST_SECONDS = 5, 20.0
"""A step that has had so many runs ends after so many seconds: an eager one takes seconds each time."""


@dataclass(frozen=True, slots=True)
class Row:
    """One step of the ladder."""

    step: str
    ttfa_ms_p50: float
    ttfa_ms_p95: float
    runs: int
    first_chunk_frames: int
    start_seconds: float
    """Until the engine could speak."""


@dataclass(frozen=True, slots=True)
class Ablation:
    """All steps, on one device."""

    device: str
    voice: str
    rows: tuple[Row, ...]
    captures: bool = True
    """Whether the device captures graphs."""

    @property
    def compares(self) -> bool:
        """Whether there are targets, and what was published is of such a device and this model."""
        return self.captures and MODEL in self.voice.lower()

    def ratios(self) -> dict[str, float]:
        """How many times faster graphs are, by the step that is compared (p50)."""
        p50 = {row.step: row.ttfa_ms_p50 for row in self.rows}
        return {step: round(p50[step] / p50["graphs"], 2) for step in FASTER}

    def to_dict(self) -> dict[str, object]:
        """JSON data, without the device."""
        rows = [asdict(row) for row in self.rows]
        published = {"published": PUBLISHED} if self.compares else {}
        return {"voice": self.voice, "rows": rows, "graphs_faster_than": self.ratios(), **published}

    def verdicts(self) -> list[str]:
        """A line for each figure that has a target, or why there is none."""
        if not self.captures:
            same = "from the second step on all run the same operations and differ by chance"
            return [f"no graphs are captured on {self.device}: {same}"]
        graphs = self.rows[-1].ttfa_ms_p50
        took = f"all stages as graphs: {graphs:.1f} ms to first audio (p50)"
        lines = [(took, graphs <= TARGET_MS, f"{TARGET_MS:.0f} ms")]
        for step, ratio in self.ratios().items():
            took = f"{ratio:.1f} times as fast as {WORDS[step]}"
            lines.append((took, ratio >= FASTER[step], f"{FASTER[step]:.0f} times"))
        return [f"{took}, {_met(met)} {target}" if self.compares else took for took, met, target in lines]


def draw(path: Path, ablation: Ablation) -> None:
    """The steps, as a PNG file. Raises RuntimeError without matplotlib, and OSError."""
    from engine import plot

    title = f"Time to first audio, step by step: {ablation.voice}"
    rows = [{"words": WORDS[row.step], **asdict(row)} for row in ablation.rows]
    plot.ladder(path, title, rows, f"this engine on {ablation.device}", PUBLISHED if ablation.compares else None)


def _met(met: bool) -> str:
    return "which meets the target of" if met else "short of the target of"


def run(
    config: RuntimeConfig, runs: int, console: Console, start: Callable[[RuntimeConfig], Runtime] = Runtime.start
) -> Ablation:
    """Every step, up to `runs` times each, printed at the end. Raises EngineError when an engine cannot start, and
    RuntimeError when a request fails."""
    rows, clock = list[Row](), MonotonicClock()
    device = voice = ""
    for step, (graphs, policy) in STEPS.items():
        started_at = clock.now()
        with console.status(f"{WORDS[step]}: starting the engine"):
            runtime = start(replace(config, graphs=graphs, policy=policy, max_wait=inf))
        with runtime:
            started = clock.now() - started_at
            rows.append(measured(runtime, step, runs, started, console))
            device, voice = runtime.device, runtime.spec.name
    ablation = Ablation(device, voice, tuple(rows), devices.captures(devices.choose(config.device)))
    console.print(table(ablation))
    for line in ablation.verdicts():
        console.print(line)
    return ablation


def measured(runtime: Runtime, step: str, runs: int, started: float, console: Console) -> Row:
    """One step's row, of an engine that took `started` seconds to start."""
    sampling, heard, clock = fixed(runtime.spec.sampling, FRAMES), list[tuple[float, int]](), MonotonicClock()
    until = clock.now() + MOST_SECONDS
    for i in track(range(WARM + runs), description=WORDS[step], console=console, transient=True):
        if i >= WARM + LEAST and clock.now() > until:
            break
        heard.append(first_audio(runtime, Request(SENTENCES[i % len(SENTENCES)], sampling)))
    counted = heard[WARM:]
    p50, p95 = p50_p95_ms(seconds for seconds, _ in counted)
    return Row(step, p50, p95, len(counted), max(frames for _, frames in counted), round(started, 1))


def table(ablation: Ablation) -> Table:
    """The rows as a person reads them in 80 columns, beside the published ones where these compare."""
    published = PUBLISHED["ttfa_ms"]
    assert isinstance(published, dict)
    out = Table(box=SIMPLE_HEAD, padding=0)
    out.add_column("step", width=28)
    names = ["TTFA p50\nms", "TTFA p95\nms", "runs", "frames,\n1st chunk", "start\ns"]
    for name in [*names, *[f"published,\n{PUBLISHED['gpu']}, ms"] * ablation.compares]:
        out.add_column(name, justify="right")
    for row in ablation.rows:
        times = (f"{row.ttfa_ms_p50:.1f}", f"{row.ttfa_ms_p95:.1f}")
        theirs = [f"{published[row.step]:.0f}"] * ablation.compares
        start = f"{row.start_seconds:.0f}"
        out.add_row(WORDS[row.step], *times, str(row.runs), str(row.first_chunk_frames), start, *theirs)
    if ablation.compares:
        out.caption = f"published: {PUBLISHED['runtime']} of its authors, another program than this"
    return out
