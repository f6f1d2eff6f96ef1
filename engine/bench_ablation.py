"""The command `bench ablation`: time to first audio of one request, as each part of the engine is taken in use.

It knows no model. Each step is an engine of its own; requests come one at a time, and each is cancelled when its first
audio is there. The ladder is the one that BreezeRT's authors published for theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from engine.bench import SENTENCES, first_audio, fixed, p50_p95_ms
from engine.clock import MonotonicClock
from engine.core import Request, Stage
from engine.messages import RuntimeConfig
from engine.policies import PREDICTOR
from engine.runtime import Runtime

STEPS: Mapping[str, tuple[frozenset[Stage], str]] = {
    "eager-16": (frozenset(), "fixed-chunks"),
    "progressive": (frozenset(), PREDICTOR),
    "depth-compiled": (frozenset({Stage.DEPTH}), PREDICTOR),
    "graphs": (frozenset(Stage), PREDICTOR),
}
"""Stages that are captured graphs, and the policy: the one of eager-16 has 16 frames in its first chunk."""
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

    def ratios(self) -> dict[str, float]:
        """How many times faster graphs are, by the step that is compared (p50)."""
        p50 = {row.step: row.ttfa_ms_p50 for row in self.rows}
        return {step: round(p50[step] / p50["graphs"], 2) for step in FASTER}

    def to_dict(self) -> dict[str, object]:
        """JSON data, without the device."""
        rows = [asdict(row) for row in self.rows]
        return {"voice": self.voice, "rows": rows, "graphs_faster_than": self.ratios(), "published": PUBLISHED}

    def verdicts(self) -> list[str]:
        """A line a target."""
        graphs = self.rows[-1].ttfa_ms_p50
        lines = [f"graphs: {graphs:.1f} ms to first audio (p50), {_met(graphs <= TARGET_MS)} {TARGET_MS:.0f} ms"]
        for step, ratio in self.ratios().items():
            least = FASTER[step]
            lines.append(f"graphs: {ratio:.1f} times faster than {step}, {_met(ratio >= least)} {least:.0f} times")
        return lines


def draw(path: Path, ablation: Ablation) -> None:
    """The bars, as a PNG file. Raises RuntimeError without matplotlib, and OSError."""
    from engine import plot

    title = f"Time to first audio, step by step: {ablation.voice}"
    plot.ladder(path, title, [asdict(row) for row in ablation.rows], f"this engine on {ablation.device}", PUBLISHED)


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
        with console.status(f"{step}: starting the engine"):
            runtime = start(replace(config, graphs=graphs, policy=policy, max_wait=inf))
        with runtime:
            started = clock.now() - started_at
            rows.append(measured(runtime, step, runs, started, console))
            device, voice = runtime.device, runtime.spec.name
    ablation = Ablation(device, voice, tuple(rows))
    console.print(table(ablation.rows))
    for line in ablation.verdicts():
        console.print(line)
    return ablation


def measured(runtime: Runtime, step: str, runs: int, started: float, console: Console) -> Row:
    """One step's row, of an engine that took `started` seconds to start."""
    sampling, heard, clock = fixed(runtime.spec.sampling, FRAMES), list[tuple[float, int]](), MonotonicClock()
    until = clock.now() + MOST_SECONDS
    for i in track(range(WARM + runs), description=step, console=console, transient=True):
        if i >= WARM + LEAST and clock.now() > until:
            break
        heard.append(first_audio(runtime, Request(SENTENCES[i % len(SENTENCES)], sampling)))
    counted = heard[WARM:]
    p50, p95 = p50_p95_ms(seconds for seconds, _ in counted)
    return Row(step, p50, p95, len(counted), max(frames for _, frames in counted), round(started, 1))


def table(rows: Sequence[Row]) -> Table:
    """The rows as a person reads them, beside the published ones."""
    published = PUBLISHED["ttfa_ms"]
    assert isinstance(published, dict)
    last = f"published,\n{PUBLISHED['gpu']}"
    out = Table("step", "TTFA p50", "TTFA p95", "runs", "first chunk", "start", last, box=SIMPLE_HEAD)
    for row in rows:
        times = [f"{ms:.1f} ms" for ms in (row.ttfa_ms_p50, row.ttfa_ms_p95)]
        frames = f"{row.first_chunk_frames} frame{'s' * (row.first_chunk_frames > 1)}"
        start, theirs = f"{row.start_seconds:.0f} s", f"{published[row.step]:.0f} ms"
        out.add_row(row.step, *times, str(row.runs), frames, start, theirs)
    return out
