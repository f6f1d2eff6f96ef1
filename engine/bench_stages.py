"""The command `bench stages`: the time of each stage by shape, beside the least that reading its memory can take.

It knows no scheduling: steps are those of calibrate's scripts, run on the executor with nobody listening. A step's
floor is its bytes over the device's bandwidth, which a large copy measures in the same run. What fits into a cache is
read faster than that; a model of gigabytes does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

from engine import device as devices
from engine.bench import fitting, p50_p95_ms
from engine.calibrate import lockstep
from engine.clock import Clock, MonotonicClock
from engine.core import SPEAKING, Limits, ModelSpec, Stage, Step
from engine.executor import Executor, load
from engine.kv_cache import PagedKV
from engine.messages import RuntimeConfig
from engine.models import Model

BATCHES = (1, 2, 4, 8, 16, 32, 64)
PROMPTS = (32, 128)
"""Tokens of the prompts: a sentence, and a long reply."""
RUNS = 10
COPY_BYTES = 1 << 29
"""Beyond every cache."""
COPIES, ROUNDS = 8, 5
"""Copies in a row, of which the fastest round counts."""


@dataclass(frozen=True, slots=True)
class Row:
    """One shape."""

    stage: Stage
    batch: int
    length: int
    """Tokens, or frames of audio; else 1."""
    runs: int
    ms_p50: float
    ms_p95: float
    floor_ms: float
    """Mean over the runs, whose contexts differ in length."""
    over_floor: float
    """p50 over the floor."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """All shapes, on one device."""

    device: str
    voice: str
    graphs: tuple[Stage, ...]
    """Stages that ran as captured graphs."""
    bandwidth: float
    """Bytes a second, those that a copy reads and those that it writes together."""
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, object]:
        """JSON data, without the device."""
        return {
            "voice": self.voice,
            "graphs": list(self.graphs),
            "bandwidth_gb_per_s": round(self.bandwidth / 1e9, 1),
            "rows": [asdict(row) for row in self.rows],
        }


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes that the steps of a model move, from its parameters and its state. What is only looked up counts by the
    rows, and what is small beside that (activations, logits) not at all."""

    weights: Mapping[Stage, int]
    """Read in each step, whatever its batch."""
    token: int
    """Of the table of text: one row."""
    frame: int
    """Of the audio tables: what one frame's codes look up."""
    position: int
    """Keys and values of one position, in all layers."""
    stream: int
    """The codec's memory of one stream, read and written."""

    @classmethod
    def of(cls, model: Model, kv: PagedKV) -> Sizes:
        """The depth decoder's layers are read once for each codebook but the first: its passes follow each other,
        the first of which has two positions. Its other parts, heads among them, are read once."""
        parts, books = model.parts, model.spec.num_codebooks
        tables = (parts.tokens, *parts.codes)
        layers, backbone = parameter_bytes(parts.depth_layers), parameter_bytes(*parts.backbone, but=tables)
        codec = parts.codec
        weights = {
            Stage.TEXT: parameter_bytes(*parts.text, but=tables),
            Stage.PREFILL: backbone,
            Stage.DECODE: backbone,
            Stage.DEPTH: (books - 2) * layers + parameter_bytes(parts.depth, but=tables),
            Stage.CODEC: parameter_bytes(codec, but=(codec.quantizer,)),
        }
        return cls(
            weights,
            token=row_bytes(parts.tokens),
            frame=books * row_bytes(parts.codes[0]),
            position=2 * kv.keys[:, 0, 0].nbytes,
            stream=2 * 4 * codec.memory,
        )

    def of_step(self, step: Step, prompts: Mapping[int, int]) -> int:
        """Of one step; `prompts` has the prompt's length by request_id."""
        rows, weights = step.rows, self.weights[step.stage]
        match step.stage:
            case Stage.TEXT:
                return weights + self.token * sum(row.count for row in rows)
            case Stage.PREFILL:
                return weights + self.position * sum(row.start + row.count for row in rows)
            case Stage.DECODE:
                return weights + sum(self.frame + self.position * (prompts[x.request_id] + x.start + 1) for x in rows)
            case Stage.DEPTH:
                return weights + self.frame * len(rows)
        return weights + self.stream * len(rows)


def parameter_bytes(*modules: nn.Module, but: Iterable[nn.Module] = ()) -> int:
    """Of all their parameters, but for those of some."""
    left_out = {parameter for module in but for parameter in module.parameters()}
    mine = {parameter for module in modules for parameter in module.parameters()} - left_out
    return sum(parameter.nbytes for parameter in mine)


def row_bytes(table: nn.Module) -> int:
    """Of one of a table's rows."""
    return next(table.parameters())[0].nbytes


def bandwidth(device: torch.device, clock: Clock, size: int = COPY_BYTES) -> float:
    """Bytes a second, read and written, of copies of `size` bytes on the device: the fastest of a few rounds."""
    source, target = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    fastest = min(_copying(source, target, clock) for _ in range(ROUNDS))
    return 2 * COPIES * size / fastest


def _copying(source: torch.Tensor, target: torch.Tensor, clock: Clock) -> float:
    """Seconds for a round."""
    devices.synchronise(source.device)
    started_at = clock.now()
    for _ in range(COPIES):
        target.copy_(source)
    devices.synchronise(source.device)
    return clock.now() - started_at


class Stopwatch:
    """Runs scripts on an executor, and keeps seconds and bytes by shape."""

    def __init__(self, executor: Executor, spec: ModelSpec, limits: Limits, sizes: Sizes, clock: Clock) -> None:
        self._executor, self._spec, self._limits, self._sizes, self._clock = executor, spec, limits, sizes, clock
        self._seconds: dict[tuple[Stage, int, int], list[float]] = {}
        self._bytes: dict[tuple[Stage, int, int], list[int]] = {}

    def run(self, batch: int, tokens: int, counts: bool = True) -> None:
        """One script: prompts of so many tokens and a little less, and a frame before each chunk of audio."""
        prompts: dict[int, int] = {}
        for step in lockstep(self._spec, self._limits, batch, tokens):
            if step.stage is Stage.TEXT:
                prompts = {row.request_id: row.count for row in step.rows}
            started_at = self._clock.now()
            self._executor.run(step)
            seconds = self._clock.now() - started_at
            if counts:
                shape = step.stage, batch, step.length
                self._seconds.setdefault(shape, []).append(seconds)
                self._bytes.setdefault(shape, []).append(self._sizes.of_step(step, prompts))

    def rows(self, bandwidth: float) -> tuple[Row, ...]:
        """In order of stage, length and batch."""
        order = sorted(self._seconds, key=lambda shape: (list(Stage).index(shape[0]), shape[2], shape[1]))
        return tuple(row(*shape, self._seconds[shape], self._bytes[shape], bandwidth) for shape in order)


def row(stage: Stage, batch: int, length: int, seconds: Sequence[float], moved: Sequence[int], bandwidth: float) -> Row:
    """One shape, of its runs' seconds and bytes."""
    p50, p95 = p50_p95_ms(seconds)
    floor = 1000 * sum(moved) / len(moved) / bandwidth
    return Row(stage, batch, length, len(seconds), p50, p95, round(floor, 4), round(p50 / floor, 2))


def run(config: RuntimeConfig, batches: Sequence[int] | None, runs: int, console: Console) -> StageTimes:
    """A row for each shape, printed at the end; None are those of BATCHES that the engine has slots for. Raises
    ValueError for larger ones, and what engine.executor.load raises."""
    clock = MonotonicClock()
    with console.status("loading the voice"):
        model, executor, limits = load(config)
    most = min(limits.num_slots, *(limits.max_batch[stage] for stage in SPEAKING))
    chosen, speed = fitting("--batches", batches, BATCHES, most), bandwidth(model.device, clock)
    watch = Stopwatch(executor, model.spec, limits, Sizes.of(model, executor.state.kv), clock)
    plan = [(batch, tokens, i) for batch in chosen for tokens in PROMPTS for i in range(runs + 1)]
    for batch, tokens, i in track(plan, description="measuring stages", console=console, transient=True):
        watch.run(batch, tokens, counts=i > 0)  # the first steps of a shape are not warm
    graphs = tuple(sorted(config.graphs)) if devices.captures(model.device) else ()
    done = StageTimes(devices.name(model.device), model.spec.name, graphs, speed, watch.rows(speed))
    console.print(table(done))
    return done


def table(stages: StageTimes) -> Table:
    """The rows as a person reads them; milliseconds."""
    title = f"{stages.device}, {stages.bandwidth / 1e9:.0f} GB/s"
    names = ("stage", "batch", "length", "p50", "p95", "floor", "over floor")
    out = Table(*names, title=title, box=SIMPLE_HEAD, padding=0)
    for row in stages.rows:
        times = (f"{ms:.3f}" for ms in (row.ms_p50, row.ms_p95, row.floor_ms))
        out.add_row(row.stage, str(row.batch), str(row.length), *times, f"{row.over_floor:.1f}")
    return out
