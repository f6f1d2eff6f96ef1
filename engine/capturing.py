"""Shows a person how the capture of graphs goes, and what it took. It does not know what a graph does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.progress import track

from engine.shapes import Shape, Work


def watched(shapes: Sequence[Shape]) -> Iterable[Shape]:
    """The shapes, with a bar on standard error that moves as they are captured."""
    return track(shapes, "capturing graphs", console=Console(stderr=True), transient=True)


def summary(memory: Mapping[Shape, int]) -> str:
    """One line: how many graphs of what there are, and the bytes that they took."""
    graphs, taken = Counter[Work](), Counter[Work]()
    for shape, size in memory.items():
        graphs[shape.work] += 1
        taken[shape.work] += size
    parts = (f"{work} {number} ({taken[work] / 2**20:.0f} MiB)" for work, number in sorted(graphs.items()))
    return f"captured {graphs.total()} graphs in {taken.total() / 2**20:.0f} MiB: {', '.join(parts)}"
