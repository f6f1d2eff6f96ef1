"""Draws what was simulated and what benches measured, as PNG files: lanes of one run, curves of a sweep, first audio by
the number of requests, and the ladder of an ablation. It computes no figures.

The only file that imports matplotlib, which is the optional extra `plot`. It draws without a display.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import nan
from pathlib import Path
from typing import Any

from engine.capacity import Sweep
from engine.lanes import Lane, Scene
from engine.policies import PREDICTOR

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, NullFormatter
except ImportError as error:
    raise RuntimeError("plots need matplotlib, which is not installed: pip install 'breezert[plot]'") from error

WIDTH, DPI = 9.0, 200
"""Inches, and pixels an inch: 1800 pixels, which are sharp when shown at half of that."""
PLAYED, BUFFERED, GAP, WAIT, INK, GRID = "#0072B2", "#A9D2EC", "#E0201B", "#F0A500", "#222222", "#DDDDDD"
"""Blue and red are told apart with any kind of colour blindness."""
STYLES = (
    ("#E69F00", "s", "--"),
    ("#D55E00", "o", "-"),
    ("#009E73", "^", "--"),
    ("#CC79A7", "D", "--"),
    ("#7A6A00", "v", "--"),
    ("#56B4E9", "P", "-"),
)
"""Colour (of Okabe and Ito, who chose them for the colour-blind), marker and line of each policy but the Predictor."""
LANE = 0.18
"""Inches high."""
BAR, AREA = 0.26, 0.58
"""Shares of a lane: what is played, and above it what is buffered."""
THEIRS = "#8A8A8A"
"""Points that others published, and plain PyTorch."""
FULL = 2.0
"""Seconds buffered that fill a lane; more is cut off."""

ARRIVALS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("arriving together, p50", "together", "ttfa_ms_p50", {"color": PLAYED, "marker": "o", "linestyle": "-"}),
    ("arriving together, p95", "together", "ttfa_ms_p95", {"color": PLAYED, "marker": "o", "linestyle": "--"}),
    ("Poisson, p50", "poisson", "ttfa_ms_p50", {"color": "#D55E00", "marker": "s", "linestyle": "-"}),
    ("Poisson, p95", "poisson", "ttfa_ms_p95", {"color": "#D55E00", "marker": "s", "linestyle": "--"}),
    ("plain PyTorch, p50", "together", "baseline_ttfa_ms_p50", {"color": THEIRS, "marker": "^", "linestyle": "-"}),
)
"""Lines over the number of requests: name, rows, measure and look."""


def lanes(path: Path, title: str, scene: Scene, runs: Mapping[str, Sequence[Lane]], notes: Mapping[str, str]) -> None:
    """One panel a policy, above each other, with the same callers and the same time. Raises OSError and ValueError."""
    rows = max(map(len, runs.values()))
    height = len(runs) * (rows * LANE + 0.55) + 1.1
    figure = Figure(figsize=(WIDTH, height), dpi=DPI, layout="constrained")
    panels = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    for panel, (policy, drawn) in zip(panels, runs.items(), strict=True):
        _panel(panel, drawn, scene)
        panel.set_title(policy, fontsize=9.5, fontweight="bold", loc="left")
        panel.set_title(notes[policy], fontsize=9, loc="right")
    panels[-1].set_xlabel("seconds", fontsize=9)
    handles = [
        Patch(color=WAIT, label="waits for first audio"),
        Patch(color=PLAYED, label="played"),
        Patch(color=GAP, label="gap"),
        Patch(color=BUFFERED, label=f"buffered (full height: {FULL:g} s or more)"),
        Line2D([], [], color=INK, marker="|", markersize=7, linestyle="", label="a chunk is generated"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8.5, frameon=False)
    figure.savefig(path)


def _panel(axes: Axes, lanes: Sequence[Lane], scene: Scene) -> None:
    for row, lane in enumerate(lanes):
        _lane(axes, lane, row)
    axes.set_xlim(scene.start, scene.end)
    axes.set_ylim(len(lanes) - 0.1, -0.15)
    axes.set_yticks(
        [row + 1 - BAR for row in range(len(lanes))], [str(lane.request_id) for lane in lanes], fontsize=6.5
    )
    axes.set_ylabel("caller", fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _lane(axes: Axes, lane: Lane, row: int) -> None:
    """A bar of what is played, over it an area of what is buffered, with a tick where a chunk arrives. A gap has an
    edge, so that the shortest can be seen."""
    bottom = row + 0.92
    bar, top = (bottom - BAR, BAR), bottom - BAR - AREA
    heard = lane.chunks[0] if lane.chunks else lane.submitted_at
    axes.broken_barh([(lane.submitted_at, heard - lane.submitted_at)], bar, color=WAIT, linewidth=0)
    axes.broken_barh([(a, b - a) for a, b in lane.plays], bar, color=PLAYED, linewidth=0)
    axes.broken_barh([(a, b - a) for a, b in lane.gaps], (top, BAR + AREA), color=GAP, linewidth=0.8)
    corners = [(at, bottom - BAR - AREA * min(1.0, seconds / FULL)) for at, seconds in lane.buffered]
    times, tops = [at for at, _ in corners], [y for _, y in corners]
    axes.fill_between(times, tops, bottom - BAR, color=BUFFERED, linewidth=0)
    highest = dict(corners)
    axes.vlines(lane.chunks, bottom, [highest[at] - 0.06 for at in lane.chunks], color=INK, linewidth=0.6)


def curves(path: Path, title: str, sweep: Sweep) -> None:
    """Requests with gaps, and the p95 of first audio, over load: a line a policy. Raises OSError and ValueError."""
    figure = Figure(figsize=(WIDTH, 5.0), dpi=DPI, layout="constrained")
    gaps, first_audio = figure.subplots(1, 2)
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    for policy, style in styles(list(sweep.curves)).items():
        loads, points = list(sweep.curves[policy]), list(sweep.curves[policy].values())
        gaps.plot(loads, [300 * one.requests_with_gaps / one.requests for one in points], label=policy, **style)
        first_audio.plot(loads, [one.ttfa_p95_ms or nan for one in points], **style)
    gaps.set_yscale("symlog", linthresh=1, linscale=0.5)
    gaps.set_yticks([0, 1, 3, 14, 30, 100, 300], minor=False)
    first_audio.set_yscale("log")
    _over_load(gaps, "requests with gaps, of 300 (mean)", sweep)
    _over_load(first_audio, "TTFA p95, ms", sweep)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8.5, frameon=False)
    figure.savefig(path)


def concurrency(
    path: Path, title: str, rows: Sequence[Mapping[str, Any]], published: Sequence[Mapping[str, Any]] = ()
) -> None:
    """First audio over the number of requests, of the rows that `bench concurrency` writes: a line for each kind of
    arrival and quantile, and one for the baseline. Raises OSError and ValueError."""
    figure = Figure(figsize=(WIDTH, 5.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    numbers = sorted({int(row["requests"]) for row in rows})
    for label, arrival, measure, style in ARRIVALS:
        chosen = sorted((row["requests"], row[measure]) for row in rows if row["arrival"] == arrival)
        axes.plot(*zip(*chosen, strict=True), label=label, markersize=5, **style)
    for name, points in _published(published).items():
        known = [point for point in points if numbers[0] <= point[0] <= numbers[-1]]  # the axis is that of the rows
        at, ms = [point[0] for point in known], [point[1] for point in known]
        axes.plot(at, ms, "x", color=INK, markersize=7, label=name if known else None, zorder=4)
        for number, first_audio, quantile in known:
            axes.annotate(quantile, (number, first_audio), (7, 0), textcoords="offset points", fontsize=8, va="center")
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xlabel("requests arriving together, or (Poisson) playing at once on average", fontsize=9)
    _plain(axes, "time to first audio, ms")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8.5, frameon=False)
    figure.savefig(path)


def _published(peers: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float, str]]]:
    """Points by runtime and GPU: every quantile that is known, with its name."""
    points: dict[str, list[tuple[int, float, str]]] = {}
    for peer in peers:
        known = [(name, peer[f"ttfa_ms_{name}"]) for name in ("p50", "p95")]
        found = [(peer["requests"], ms, name) for name, ms in known if ms is not None]
        points.setdefault(_as_published(peer), []).extend(found)
    return points


def _as_published(theirs: Mapping[str, Any]) -> str:
    return f"{theirs['runtime']} as published (its authors, {theirs['gpu']})"


def ladder(
    path: Path, title: str, rows: Sequence[Mapping[str, Any]], ours: str, published: Mapping[str, Any] | None = None
) -> None:
    """First audio of one request, step by step from above, of the rows that `bench ablation` writes, each with its
    `words`: points of `ours`, which names the device, and those that were published. Raises OSError and ValueError."""
    figure = Figure(figsize=(WIDTH, 3.2), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    figure.suptitle(title, fontsize=11, fontweight="bold", x=0.01, ha="left")
    lines = [(ours, PLAYED, "o", 9, [row["ttfa_ms_p50"] for row in rows])]
    if published:
        theirs = [published["ttfa_ms"][row["step"]] for row in rows]
        lines.append((_as_published(published), THEIRS, "D", -15, theirs))
    for label, color, marker, offset, values in lines:
        axes.plot(values, range(len(rows)), color=color, marker=marker, linewidth=1.2, markersize=7, label=label)
        for place, value in enumerate(values):
            style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.5, "ha": "center", "color": INK}
            axes.annotate(f"{value:.0f}" if value >= 10 else f"{value:.1f}", (value, place), (0, offset), **style)
    axes.set_xscale("log")
    axes.margins(x=0.08)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    _plain(axes, "time to first audio of one request (p50), ms")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(rows)), [row["words"] for row in rows])
    figure.legend(loc="outside lower center", ncols=2, fontsize=8.5, frameon=False)
    figure.savefig(path)


def _plain(axes: Axes, title: str, pad: float = 6) -> None:
    """A grid, numbers without exponents, and no frame."""
    axes.set_title(title, fontsize=9.5, loc="left", pad=pad)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=8.5)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def styles(policies: Sequence[str]) -> dict[str, dict[str, Any]]:
    """How each policy's line looks."""
    others = [policy for policy in policies if policy != PREDICTOR]
    looks = dict(zip(others, cycle(STYLES))) | {PREDICTOR: (PLAYED, "o", "-")}
    return {
        policy: {
            "color": color,
            "marker": marker,
            "linestyle": line,
            "linewidth": 2.6 if policy == PREDICTOR else 1.5,
            "markersize": 5,
            "zorder": 3 if policy == PREDICTOR else 2,
        }
        for policy, (color, marker, line) in ((policy, looks[policy]) for policy in policies)
    }


def _over_load(axes: Axes, title: str, sweep: Sweep) -> None:
    _plain(axes, title, pad=18)
    axes.set_xlabel("load: streams at once, on average", fontsize=9)
    for at, name in ((sweep.load, f"L {sweep.load:.3g}"), (sweep.bound, f"bound {sweep.bound:.3g}")):
        axes.axvline(at, color=INK, linewidth=0.9, linestyle=":")
        axes.annotate(name, (at, 1), (0, 3), ("data", "axes fraction"), "offset points", fontsize=8, ha="center")
