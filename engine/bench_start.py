"""The command `bench start`: how long an engine takes until it can speak, and with what. It does not know what it does
meanwhile.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from engine import device as devices
from engine.clock import Clock, MonotonicClock
from engine.messages import RuntimeConfig
from engine.runtime import Runtime

COLD, CACHED, EAGER = "cold", "cached", "eager"
KERNELS = "TRITON_CACHE_DIR"
"""Where Triton keeps what it compiled (triton.knobs)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One start."""

    start: str
    """cold: no kernel was compiled before; cached: all were; eager: op by op, without graphs."""
    seconds: float
    """Until the engine can speak."""
    process_s: float
    """Of these, for the process and what it imports. The first row reads more from disk."""
    weights_s: float
    """For weights and compiled kernels."""
    graphs_s: float
    warm_up_s: float
    graphs: int
    graph_mib: float


@dataclass(frozen=True, slots=True)
class Starts:
    """All of them, on one device."""

    device: str
    voice: str
    rows: tuple[Row, ...]

    def to_dict(self) -> dict[str, object]:
        """JSON data, without the device."""
        return {"voice": self.voice, "rows": [asdict(row) for row in self.rows]}


def run(config: RuntimeConfig, console: Console) -> Starts:
    """Starts the engine as often as there are ways to. Raises EngineError and ValueError."""
    kinds = (COLD, CACHED, EAGER) if devices.captures(devices.choose(config.device)) else (EAGER,)
    with no_kernels():
        done = [started(config, kind) for kind in kinds]
    out = Starts(done[0][0].device, done[0][0].spec.name, tuple(row for _, row in done))
    console.print(table(out))
    return out


def started(config: RuntimeConfig, kind: str, clock: Clock | None = None) -> tuple[Runtime, Row]:
    """An engine that has ended again, and what its start took."""
    clock = clock or MonotonicClock()
    graphs = frozenset() if kind == EAGER else config.graphs
    began = clock.now()
    with Runtime.start(replace(config, graphs=graphs)) as runtime:
        return runtime, row(kind, clock.now() - began, runtime)


def row(kind: str, seconds: float, runtime: Runtime) -> Row:
    did = runtime.start_up
    return Row(
        start=kind,
        seconds=round(seconds, 2),
        process_s=round(seconds - did.weights - did.graphs - did.warm_up, 2),
        weights_s=round(did.weights, 2),
        graphs_s=round(did.graphs, 2),
        warm_up_s=round(did.warm_up, 2),
        graphs=did.num_graphs,
        graph_mib=round(did.graph_bytes / 2**20, 1),
    )


@contextmanager
def no_kernels() -> Iterator[None]:
    """For processes that are started meanwhile: as if none had ever been compiled here."""
    before = os.environ.get(KERNELS)
    with tempfile.TemporaryDirectory() as empty:
        os.environ[KERNELS] = empty
        try:
            yield
        finally:
            os.environ.pop(KERNELS)
            if before is not None:
                os.environ[KERNELS] = before


def table(starts: Starts) -> Table:
    """A row a start."""
    title = f"Seconds until {starts.voice} can speak on {starts.device}"
    out = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for heading in ("start", "all", "process", "weights, kernels", "graphs", "warm-up", "graphs", "MiB"):
        out.add_column(heading, justify="left" if heading == "start" else "right")
    for row in starts.rows:
        times = (row.seconds, row.process_s, row.weights_s, row.graphs_s, row.warm_up_s)
        out.add_row(row.start, *(f"{seconds:.1f}" for seconds in times), str(row.graphs), f"{row.graph_mib:.0f}")
    return out
