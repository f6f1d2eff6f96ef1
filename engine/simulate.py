"""The command `simulate`: runs races on all cores, prints what came of them, and has it drawn. It neither schedules nor
counts.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from engine import capacity
from engine.capacity import Capacity, Runner, Sweep
from engine.contest import Figures, Race, Result, counted, figures, result, run, speed
from engine.lanes import scene
from engine.policies import NAMES, PREDICTOR, SOURCES, newest_first
from engine.policy import Explain
from engine.profile import Profile

LANES = 24
"""Callers in a picture of one run."""
DRAWN = (newest_first.POLICY.name, PREDICTOR)
"""Policies in it, unless others are asked for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command is to do."""

    profile: Profile
    base: Race
    """What all runs have in common."""
    policies: Sequence[str]
    """Empty: all of them, or two in a picture."""
    seeds: Sequence[int]
    plot: Path | None = None

    @property
    def raced(self) -> Sequence[str]:
        return self.policies or NAMES

    @property
    def drawn(self) -> Sequence[str]:
        return self.policies or DRAWN

    @property
    def bound(self) -> float:
        """Streams, for the callers of all seeds; how fast they come does not matter."""
        races = (replace(self.base, load=self.base.load or 1.0, seed=seed) for seed in self.seeds)
        return capacity.bound(self.profile, list(chain.from_iterable(race.script for race in races)))

    @property
    def title(self) -> str:
        seeds = f"seeds {self.seeds[0]} to {self.seeds[-1]}" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
        return f"{self.profile.name}, {self.base.requests} requests, {seeds}"

    @property
    def mean_speed(self) -> float:
        """Of the runs' devices, by that of the profile."""
        return fmean(map(speed, self.seeds))

    @property
    def device(self) -> str:
        """What the bound does not count."""
        mean = " in the mean" if len(self.seeds) > 1 else ""
        drawn = f"each run draws its device's speed, {self.mean_speed:.2f} times the profile's{mean}"
        return f"bound: streams that the profile's steps can keep playing at most; {drawn}, and no policy knows it."


COLUMNS = (
    "gaps: requests with a gap; worst run: the most of them in one; extra buffer: what would have avoided all; never "
    "heard: audio made for those who interrupted; "
)
"""What the table's headings mean."""


def _offered(race: Race) -> str:
    return "a trace" if race.load is None else f"load {race.load:g}"


def check_plots(path: Path) -> None:
    """Raises ValueError or RuntimeError if no such file can be drawn, so that nobody finds out after minutes of
    simulating."""
    if path.suffix.lower() != ".png":
        raise ValueError(f"--plot draws PNG files: expected a name that ends in .png, got {path}")
    import_module("engine.plot")


def compare(asked: Asked, console: Console, explain: Explain | None = None) -> dict[str, Any]:
    """Prints a table of what each policy does, and gives it as JSON data. `explain` is told every decision."""
    found = _explained(asked, explain) if explain else _raced(asked, console)
    rows, bound = {policy: figures(results) for policy, results in found.items()}, asked.bound
    title = f"{asked.title}, {_offered(asked.base)}: bound {bound:.1f} streams; ms"
    console.print(table(rows, title, COLUMNS + asked.device))
    print_sources(rows, console)
    if asked.plot:
        draw(asked.plot, asked, found)
    return {
        "load": asked.base.load,
        **_common(asked, bound),
        "policies": {policy: {**_label(policy), **_data(row)} for policy, row in rows.items()},
    }


def _explained(asked: Asked, explain: Explain) -> dict[str, Sequence[Result]]:
    """One run of one policy, here."""
    (policy,), (seed,) = asked.raced, asked.seeds
    return {policy: [result(replace(asked.base, policy=policy, seed=seed), asked.profile, explain)]}


def _raced(asked: Asked, console: Console) -> dict[str, Sequence[Result]]:
    """Every policy's results, a run a seed."""
    races = [replace(asked.base, policy=policy, seed=seed) for policy in asked.raced for seed in asked.seeds]
    with on_all_cores(asked.profile, console) as runner:
        results, count = runner(races, "simulating"), len(asked.seeds)
    return {policy: results[i * count : (i + 1) * count] for i, policy in enumerate(asked.raced)}


def sweep(asked: Asked, console: Console) -> dict[str, Any]:
    """Prints each policy's capacity under both limits, and gives it as JSON data, with the curves."""
    bound = asked.bound
    with on_all_cores(asked.profile, console) as runner:
        found = capacity.sweep(asked.raced, asked.seeds, asked.base, bound, runner)
    limit, unloaded = f"TTFA p95 at most {capacity.SLOWER:g} times", number(found.unloaded_ms[PREDICTOR])
    title = f"{asked.title}: bound {found.bound:.1f} streams, L {found.load:g}"
    common = f"{title}\nCommon limit: {limit} the Predictor's unloaded one ({unloaded} ms)"
    console.print(capacity_table(found.common, found.bound, common))
    own = f"Own limit: {limit} the policy's own unloaded one"
    console.print(capacity_table(found.own, found.bound, own, f"L: the load of the comparison; {asked.device}"))
    print_sources(found.own, console)
    if asked.plot:
        from engine import plot

        plot.curves(asked.plot, asked.title, found)
    return {"load": found.load, "rated_load": found.rated_load, **_common(asked, bound), **sweep_data(found)}


def _common(asked: Asked, bound: float) -> dict[str, Any]:
    common = {"profile": asked.profile.name, "requests": asked.base.requests, "burst": asked.base.burst}
    if asked.base.text_rate is not None:
        common["text_rate"] = asked.base.text_rate
    speeds = {"seeds": list(asked.seeds), "mean_speed": round(asked.mean_speed, 4)}
    return {**common, **asdict(asked.base.moods), **speeds, "bound": round(bound, 3)}


def _label(policy: str) -> dict[str, Any]:
    """Whether it only stands for another system, and where its settings come from."""
    return {"emulation": True, "source": SOURCES[policy]} if policy in SOURCES else {"emulation": False}


def print_sources(policies: Iterable[str], console: Console) -> None:
    """The same for people: a line for each emulation."""
    lines = [f"  {policy}: {SOURCES[policy]}" for policy in policies if policy in SOURCES]
    if lines:
        console.print("Emulations, and where their settings come from:", *lines, sep="\n", highlight=False)


def _data(row: Figures) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(row).items()}


@contextmanager
def on_all_cores(profile: Profile, console: Console) -> Iterator[Runner]:
    """Runs each race in one of as many processes as there are cores, while a bar grows; a single one right here."""
    pool = ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=_leave_interrupts_to_the_parent)

    def runner(races: Sequence[Race], what: str) -> Sequence[Result]:
        if len(races) == 1:
            return [result(races[0], profile)]
        results = pool.map(partial(result, profile=profile), races)
        return list(track(results, what, len(races), console=console, transient=True, disable=not console.is_terminal))

    try:
        yield runner
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _table(title: str, columns: Sequence[str], caption: str) -> Table:
    """Narrow enough for 80 columns."""
    out = Table(title=title, title_justify="left", caption=caption, caption_justify="left", box=SIMPLE_HEAD, padding=0)
    out.add_column("policy", no_wrap=True)
    for name in columns:
        out.add_column(name, justify="right")
    return out


def table(found: Mapping[str, Figures], title: str, caption: str = "") -> Table:
    """A row a policy; milliseconds, except where it says otherwise. If anybody was refused, or failed, that takes the
    place of the worst run."""
    refused = any(row.refused for row in found.values())
    gaps = "gaps", "refused" if refused else "worst\nrun", "extra\nbuffer"
    ttfa = "TTFA\np50", "TTFA\np95", "TTFA\np99"
    out = _table(title, (*gaps, *ttfa, "RTF", "audio\ns/s", "idle", "never\nheard s"), caption)
    for policy, row in found.items():
        out.add_row(
            policy,
            str(row.requests_with_gaps),
            str(row.refused if refused else row.worst_requests_with_gaps),
            number(row.max_extra_buffer_ms),
            number(row.ttfa_p50_ms),
            number(row.ttfa_p95_ms),
            number(row.ttfa_p99_ms),
            number(row.rtf, 3),
            number(row.throughput, 1),
            f"{row.idle_share:.0%}",
            number(row.unheard_seconds),
        )
    return out


def capacity_table(found: Mapping[str, Capacity], bound: float, title: str, caption: str = "") -> Table:
    """A row a policy."""
    columns = ("capacity", "lowest", "highest", f"to {DRAWN[0]}", "of bound", "limited by (seeds)")
    out = _table(title, columns, caption)
    for policy, one in found.items():
        out.add_row(
            policy,
            number(one.median, 1),
            number(min(one.loads), 1),
            number(max(one.loads), 1),
            number(capacity.ratio(found, policy), 2),
            f"{one.median / bound:.0%}",
            ", ".join(f"{why} {count}" for why, count in one.limited_by.items()),
        )
    return out


def sweep_data(found: Sweep) -> dict[str, Any]:
    """For JSON."""
    return {
        "first_audio_at_most": capacity.SLOWER,
        "predictor_unloaded_ttfa_p95_ms": found.unloaded_ms[PREDICTOR],
        "policies": {policy: {**_label(policy), **_sweep_data(found, policy)} for policy in found.common},
    }


def _sweep_data(found: Sweep, policy: str) -> dict[str, Any]:
    return {
        "unloaded_ttfa_p95_ms": found.unloaded_ms[policy],
        "common_limit": _capacity_data(found.common, policy),
        "own_limit": _capacity_data(found.own, policy),
        "curve": [{"load": load, **_data(row)} for load, row in found.curves[policy].items()],
    }


def _capacity_data(found: Mapping[str, Capacity], policy: str) -> dict[str, Any]:
    one = found[policy]
    return {
        "capacity": one.median,
        "capacity_min": min(one.loads),
        "capacity_max": max(one.loads),
        "capacity_by_seed": one.loads,
        "limited_by": one.limited_by,
        "of_newest_first": capacity.ratio(found, policy),
    }


def draw(path: Path, asked: Asked, found: Mapping[str, Sequence[Result]]) -> None:
    """Lanes of one run of each policy, with the seed with which the first needs the largest extra buffer."""
    from engine import plot

    first = found.get(asked.drawn[0]) or next(iter(found.values()))
    worst = max(first, key=lambda one: one.max_extra_buffer).race
    runs = {policy: run(replace(worst, policy=policy), asked.profile) for policy in asked.drawn}
    part = scene(runs[asked.drawn[0]].listeners, LANES)
    lanes = {policy: part.lanes(simulation.listeners) for policy, simulation in runs.items()}
    notes = {policy: _note(figures([counted(worst, simulation)])) for policy, simulation in runs.items()}
    where = f"{asked.profile.name}, {_offered(worst)}, seed {worst.seed} (device {speed(worst.seed):.2f} times as fast)"
    plot.lanes(path, where, part, lanes, notes)


def _note(figures: Figures) -> str:
    gaps = f"{figures.requests_with_gaps} of {figures.requests} requests with gaps"
    return f"{gaps}, extra buffer {number(figures.max_extra_buffer_ms)} ms, TTFA p95 {number(figures.ttfa_p95_ms)} ms"
