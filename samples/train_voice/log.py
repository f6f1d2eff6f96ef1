"""A training's log: a JSON object a line, a progress bar on a terminal or lines elsewhere, and a picture of its curves.

It does not know what the numbers mean.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Log:
    """Appends to `file`; the picture is `file` with the ending .png, if matplotlib is there."""

    def __init__(self, file: Path, task: str, total: float) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file
        self._console = Console()
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"))
        self._bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self._console)
        self._task = self._bar.add_task(task, total=total, told="")

    def __enter__(self) -> Log:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def write(self, done: float, **numbers: float) -> None:
        """One line; `done` of the total is behind us."""
        line = {name: round(value, 5) if isinstance(value, float) else value for name, value in numbers.items()}
        with self._file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")
        told = " ".join(f"{name} {value:g}" for name, value in line.items())
        self._bar.update(self._task, completed=done, told=told)
        if not self._console.is_terminal:
            print(told, flush=True)

    def advance(self, done: float, told: str = "") -> None:
        """Moves the bar alone."""
        self._bar.update(self._task, completed=done, told=told)

    def plot(self) -> None:
        """Draws what has been written so far."""
        if self._file.exists():
            plot(self._file)


def read(file: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def plot(file: Path) -> None:
    """A small panel for each number over the steps. Does nothing where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    lines = read(file)
    names = [name for name in dict.fromkeys(key for line in lines for key in line) if name != "step"]
    columns = 3
    rows = max(1, math.ceil(len(names) / columns))
    figure = Figure(figsize=(12, 2.2 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel, name in zip(panels, names, strict=False):
        points = [(line["step"], line[name]) for line in lines if name in line]
        panel.plot(*zip(*points, strict=True), linewidth=1)
        panel.set_title(name, fontsize=8, loc="left")
        panel.tick_params(labelsize=7)
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    figure.savefig(file.with_suffix(".png"), dpi=120)
