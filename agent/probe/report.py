"""Writes what all trials came to: as JSON data, and as one HTML page that loads nothing from anywhere.

It does not know how trials are made. What came from the server is text to it: nothing of it is ever markup.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil, log10
from pathlib import Path
from typing import Any

from agent.probe.books import Entry, Growth, cpu_percent
from agent.probe.outcome import (
    PEAK_SECONDS,
    Mark,
    Outcome,
    Picture,
    Spread,
    Summary,
    counted,
    plain,
    plainly,
    worst,
)

STYLE = Path(__file__).with_suffix(".css")
WORST, LEAST_SHOWN = 12, 4
"""Trials of which the page has a picture: at most, and of those in which all was well, at least."""
A_SCENARIO = 2
"""Of them, at most so many of one scenario while others have any to show."""
PIXELS_A_SECOND = 44
"""That a picture has at least; where the screen is narrower, it scrolls."""
SPREADS = (
    ("stop_ms", "Falling silent", "From the user's first sample to the agent's last audible one, at the listener."),
    (
        "response_ms",
        "Answering",
        "From the user's last sample to the first audible one of the agent's, at the listener.",
    ),
)
"""Figures that the page shows trial by trial."""
FIGURES = {
    "stop_ms": "from a user's first sample to the agent's last audible one",
    "response_ms": "from a user's last sample to the first audible one of the answer",
    "resumed_ms": "from the end of what was no interruption to the first audible sample of the same reply",
    "silent_ms": "silence in a reply that was to go on",
    "audible_ms": "sound in a pause that was to be waited for",
    "after_stop_ms": "sound between a stop and the user's end",
    "concealed_ms": "gaps for which the listener's buffer had to guess, each",
    "padded_ms": "gaps that were sent as digital silence, each",
    "answered_ms": "from dialling to the server's answer",
    "connected_ms": "from dialling to the call's being up",
    "first_packet_ms": "from dialling to the first packet",
    "first_audio_ms": "from dialling to the first audible sample",
    "buffer_ms": "what the listener's buffer held back, the median of a call",
    "packet_ms": "what most packets of a call hold",
    "timestamp_ms": "from one packet's timestamp to the next's, of most packets of a call",
    "between_p99_ms": "from one packet's arrival to the next's, 99 of 100 of a call",
    "between_max_ms": "the same, the longest of a call",
    "spread_ms": "how much later than the earliest packets of a call the latest come",
    "rate_percent": "sound that comes in a second, where the sender does not pause; 100 % is paced",
    "drift_ppm": "by how much packets come slower than their timestamps say; below 0, faster",
    "wrongly_stamped_packets": "of a call, whose timestamp is not the one before and its length",
    "lost_packets": "of a call, that the network lost",
    "reordered_packets": "of a call, that came behind a later one",
    "claimed_over_ms": "what the server says was heard, less what came out at the listener",
}
"""All that is measured, and what it is. A name's last word is the figure's unit."""
UNITS = {"ms": "{:.0f} ms", "percent": "{:.1f} %", "ppm": "{:.0f} ppm", "packets": "{:.0f}"}
"""How a figure is written, by its unit."""


@dataclass(frozen=True, slots=True)
class Cycles:
    """Connect and close, over and over."""

    cycles: int
    failed: int
    first: Entry | None
    last: Entry | None
    left: tuple[str, ...]
    """What the server has more of than before, in words; see books.left."""
    grown_mb: float | None = None
    """What memory grew by in the second half of them, by the median slope as in books.Growth; None: not known."""
    bound_mb: float = 0.0
    """That it may be."""


@dataclass(frozen=True, slots=True)
class Killed:
    """The server's engine was killed while calls spoke. Seconds since then, of each call that was up; None: never."""

    at: float
    """Seconds since the beginning."""
    calls: int
    told: tuple[float | None, ...]
    """The call got an error event."""
    spoke: tuple[float | None, ...]
    """The agent was audible again, after a turn of the user's that ended after the kill."""
    within: float
    """What is expected of `spoke`."""


@dataclass(frozen=True, slots=True)
class Load:
    """Many calls at once, for a while."""

    peers: int
    talking: int
    """Of the peers, at a time: the others stay on the line."""
    seconds: float
    calls: int
    gaps_a_call: float
    entries: tuple[Entry, ...] = ()
    growths: tuple[Growth, ...] = ()
    left: tuple[str, ...] = ()
    """After the last call, what the server has more of than before the first."""
    killed: Killed | None = None
    cycles: Cycles | None = None

    @property
    def broken(self) -> list[str]:
        """What is not as it should be, in words."""
        found = [f"{each.what} grows by {each.an_hour:g} {each.unit} an hour" for each in self.growths if not each.flat]
        found += [f"left after the last call: {words}" for words in self.left]
        return [*found, *_broken_by_kill(self.killed), *_broken_by_cycles(self.cycles)]

    @property
    def unknown(self) -> str:
        """What the books say nothing of, in words; empty where they say all."""
        if not any(entry.processes for entry in self.entries):
            return "what the server holds could not be read: give its process as --server-pid, on its own machine"
        if self.peers and not (self.growths and all(each.judged for each in self.growths)):
            return "it was not judged whether memory grows: that takes eight minutes"
        return ""


def _broken_by_kill(killed: Killed | None) -> Iterator[str]:
    if killed is None:
        return
    if not killed.calls:
        yield "no call was up when the engine was killed"
    if untold := sum(at is None for at in killed.told):
        yield f"{untold} of {killed.calls} calls got no error event when the engine was killed"
    if silent := sum(at is None or at > killed.within for at in killed.spoke):
        yield f"{silent} of {killed.calls} calls heard no answer within {killed.within:g} s of the engine's death"


def _broken_by_cycles(cycles: Cycles | None) -> Iterator[str]:
    if cycles is None:
        return
    if cycles.failed:
        yield f"{cycles.failed} of {cycles.cycles} connect/close cycles failed"
    yield from (f"left after {cycles.cycles} connect/close cycles: {words}" for words in cycles.left)
    if cycles.grown_mb is not None and cycles.grown_mb > cycles.bound_mb:
        yield f"memory grew by {cycles.grown_mb:g} MB in the second half of {cycles.cycles} connect/close cycles"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was probed."""

    url: str
    protocol: str
    network: str
    """As it was asked for; empty for the plain one."""
    command: str
    machine: Mapping[str, object]
    """Also versions and date."""
    seed: int
    seconds: float
    """That all of it took."""
    summaries: tuple[Summary, ...]
    meanings: Mapping[str, str] = field(default_factory=dict)
    """What each finding is."""
    load: Load | None = None
    warning: str = ""
    """Why the figures are to be taken with care."""
    interrupted: bool = False

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for summary in self.summaries for outcome in summary.outcomes]

    @property
    def notes(self) -> list[str]:
        """What is not known of what held, in words."""
        return [*self._assumed(), *self._unjudged(), *([self.load.unknown] if self.load and self.load.unknown else [])]

    def _assumed(self) -> Iterator[str]:
        assumed = sum(check.assumed for outcome in self.outcomes for check in outcome.checks)
        if assumed:
            words = f"{assumed} time{'s' * (assumed != 1)} it was not checked that the agent went on with the same "
            yield words + "reply, and not with another: that takes --reference, with that reply in it"

    def _unjudged(self) -> Iterator[str]:
        for summary in self.summaries:
            open_ones = [check for outcome in summary.outcomes for check in outcome.checks if check.held is None]
            for words, times in Counter(check.expects for check in open_ones).items():
                says = next(check.says for check in open_ones if check.expects == words)
                yield f"{summary.name}: {words}: {times} of {len(summary.outcomes)} not judged, for example: {says}"

    @property
    def good(self) -> bool:
        """All expectations held, nothing was found, and the server holds nothing that it should not."""
        calm = not (self.load and self.load.broken) and not any(summary.unjudged for summary in self.summaries)
        return calm and all(outcome.held and not outcome.faults for outcome in self.outcomes)


# ---- JSON ---------------------------------------------------------------------------------------------------------


def data(report: Report) -> dict[str, Any]:
    """As JSON has it; folders of this machine are left out."""
    found: dict[str, Any] = {"command": report.command, "machine": dict(report.machine), "url": report.url}
    found |= {"protocol": report.protocol, "network": report.network, "seed": report.seed, "seconds": report.seconds}
    found |= {"good": report.good, "interrupted": report.interrupted, "warning": report.warning}
    found["notes"] = report.notes
    found["scenarios"] = {summary.name: _scenario(summary) for summary in report.summaries}
    found["findings"] = counted(report.outcomes)
    if report.load:
        found["load"] = {**asdict(report.load), "broken": report.load.broken}
    found["trials"] = [outcome.data() for outcome in report.outcomes]
    clean: dict[str, Any] = plainly(found)
    return clean


def _scenario(summary: Summary) -> dict[str, Any]:
    return {
        "kind": summary.kind,
        "about": summary.about,
        "trials": len(summary.outcomes),
        "held": summary.held,
        "expectations": {words: {"held": held, "of": of} for words, (held, of) in summary.expectations.items()},
        "figures": {name: asdict(spread) for name, spread in summary.figures.items()},
        "takeovers": {step: {"taken": taken, "of": of} for step, (taken, of) in summary.takeovers.items()},
        "findings": summary.findings,
    }


# ---- markup -------------------------------------------------------------------------------------------------------


class Markup(str):
    """Text that is HTML already: only `tag` makes it."""

    __slots__ = ()


Inside = str | Markup | None


def tag(element: str, *inside: Inside, **attributes: object) -> Markup:
    """One element. Whatever inside of it is no Markup is escaped, and so are the attributes: `class_`, `data_name`."""
    pairs = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    head = "".join(f' {key}="{html.escape(plain(str(value)))}"' for key, value in pairs.items())
    return Markup(f"<{element}{head}>{joined(inside)}{'' if element in VOID else f'</{element}>'}")


VOID = {"meta", "br"}


def joined(parts: Iterable[Inside]) -> Markup:
    """One after another; what is no Markup is escaped."""
    return Markup("".join(part if isinstance(part, Markup) else html.escape(plain(part or "")) for part in parts))


# ---- the page -----------------------------------------------------------------------------------------------------


def page(report: Report) -> str:
    """The whole report: inline style and SVG, no script, nothing loaded."""
    title = f"Probe of {report.url}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(STYLE.read_text())),
    )
    parts = [_header(report), _summary(report), _table(report), _expectations(report), _spreads(report)]
    parts += [_figures(report), _findings(report), _pictures(report), _load(report), _conditions(report)]
    return f"<!doctype html>\n{tag('html', head, tag('body', *parts), lang='en')}\n"


def _header(report: Report) -> Markup:
    what = [report.url, f"over {report.protocol}", f"network {report.network}" if report.network else ""]
    what += [str(report.machine.get("date", ""))]
    words = tag("div", tag("h1", "How the agent treats who speaks"), tag("p", " · ".join(filter(None, what))))
    return tag("header", words, tag("p", _verdict(report)))


def _verdict(report: Report) -> Markup:
    if not report.outcomes:
        return _verdict_without_trials(report)
    held, of = _held(report)
    words = f"All {of} expectations held" if held == of else f"{of - held} of {of} expectations did not hold"
    unsaid = sum(bool(outcome.failure or outcome.missed) for outcome in report.outcomes)
    words += f", {unsaid} trial{'s' * (unsaid != 1)} could not be finished" if unsaid else ""
    unjudged = sum(len(summary.unjudged) for summary in report.summaries)
    words += f", {unjudged} could never be judged" if unjudged else ""
    found = sum(counted(report.outcomes).values())
    words += f", {found} finding{'s' * (found != 1)}" if found else ", nothing was found"
    words += f", {len(report.load.broken)} under load" if report.load and report.load.broken else ""
    words += "; interrupted" if report.interrupted else ""
    return tag("span", words, class_=f"word verdict {'good' if report.good else 'bad'}")


def _verdict_without_trials(report: Report) -> Markup:
    """Who only connects and closes asks for none."""
    load = report.load
    if load is None or load.cycles is None or load.peers:
        return tag("span", "No trial was finished", class_="word verdict bad")
    words = f"{load.cycles.cycles - load.cycles.failed} of {load.cycles.cycles} calls connected and closed"
    words += ", not all is as it should be" if load.broken else ", nothing was found"
    return tag("span", words, class_=f"word verdict {'good' if report.good else 'bad'}")


def _held(report: Report) -> tuple[int, int]:
    pairs = [pair for summary in report.summaries for pair in summary.expectations.values()]
    return sum(held for held, _ in pairs), sum(of for _, of in pairs)


def _summary(report: Report) -> Markup | None:
    held, of = _held(report)
    outcomes = report.outcomes
    warning = tag("p", f"Take care: {report.warning}.", class_="warning") if report.warning else None
    notes = [tag("p", f"Not known: {words}.", class_="soft") for words in report.notes]
    if not outcomes:
        return joined((warning, *notes))
    tiles = [
        _tile("Expectations held", f"{held} of {of}", f"in {len(outcomes)} trials"),
        *(_spread_tile(words, report.summaries, figure) for figure, words, _ in SPREADS),
        _tile("Findings", str(sum(counted(outcomes).values())), ", ".join(counted(outcomes)) or "none"),
    ]
    return tag("section", tag("h2", "In short"), tag("dl", *tiles, class_="tiles"), warning, *notes)


def _tile(words: str, value: str, small: str) -> Markup:
    return tag("div", tag("dt", words), tag("dd", value, tag("small", small)))


def _spread_tile(words: str, summaries: Sequence[Summary], figure: str) -> Markup:
    values = [value for summary in summaries for value in summary.values(figure)]
    if not values:
        return _tile(words, "–", "never measured")
    spread = Spread.of(values)
    small = f"p50 of {spread.count}; p95 {spread.p95:.0f}, longest {spread.max:.0f} ms"
    return _tile(words, f"{spread.p50:.0f} ms", small)


def _table(report: Report) -> Markup | None:
    if not report.summaries:
        return None
    names = ("Scenario", "Trials", "Held", "Silent after, p50 / p95", "Answers after, p50 / p95", "Findings")
    head = tag("tr", *(tag("th", name, scope="col", class_=_side(name)) for name in names))
    rows = [_row(summary, names) for summary in report.summaries]
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="stacked")
    return tag("section", tag("h2", "Scenarios"), table)


NUMBERS = {"Trials", "Silent after, p50 / p95", "Answers after, p50 / p95"}


def _side(name: str) -> str | None:
    return "number" if name in NUMBERS else "wide" if name == "Findings" else None


def _row(summary: Summary, names: Sequence[str]) -> Markup:
    trials = len(summary.outcomes)
    all_held = _word(f"{summary.held} of {trials}", summary.held == trials)
    found = ", ".join(f"{name.replace('_', ' ')} ({count})" for name, count in summary.findings.items())
    cells: list[Inside] = [str(trials), all_held, *(_pair(summary.spread(figure)) for figure, _, _ in SPREADS), found]
    tds = [tag("td", cell, class_=_side(name), data_name=name) for name, cell in zip(names[1:], cells, strict=True)]
    return tag("tr", tag("th", summary.name.replace("_", " "), tag("p", summary.about), scope="row"), *tds)


def _pair(spread: Spread | None) -> str:
    return f"{spread.p50:.0f} / {spread.p95:.0f} ms" if spread else "–"


def _word(words: str, good: bool) -> Markup:
    return tag("span", f"{'✓' if good else '✗'} {words}", class_=f"word {'good' if good else 'bad'}")


def _expectations(report: Report) -> Markup | None:
    if not report.summaries:
        return None
    rows = []
    for summary in report.summaries:
        for words, (held, of) in summary.expectations.items():
            broken = [_said(outcome, words) for outcome in summary.outcomes]
            worst_words = next(filter(None, broken), "")
            cells = [
                tag("td", words, class_="wide"),
                tag("td", _held_word(held, of, len(summary.outcomes)), data_name="Held"),
                tag("td", worst_words, class_="wide", data_name="Where it did not"),
            ]
            rows.append(tag("tr", tag("th", summary.name.replace("_", " "), scope="row"), *cells))
    names = ("Scenario", "What is expected", "Held", "Where it did not, for example")
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="stacked")
    return tag("section", tag("h2", "Expectations"), table)


def _held_word(held: int, of: int, trials: int) -> Markup:
    """How often it held, and in how many trials nothing can be said about it."""
    rest = f", {trials - of} not judged" if of < trials else ""
    return _word(f"{held} of {of}{rest}" if of else "never judged", held == of > 0)


def _said(outcome: Outcome, expects: str) -> str:
    """What was measured where it did not hold, or could not be judged, in that trial."""
    for check in outcome.checks:
        if check.expects == expects and not check.held:
            return f"trial {outcome.trial}: {check.says}"
    return ""


# ---- distributions ------------------------------------------------------------------------------------------------


def _spreads(report: Report) -> Markup | None:
    parts = [part for figure, words, about in SPREADS if (part := _strips(report.summaries, figure, words, about))]
    if not parts:
        return None
    legend = [("dot", "one trial", ""), ("middle", "p50", "line"), ("tail", "p95", "line")]
    return tag("section", tag("h2", "Trial by trial"), _legend(legend), *parts)


def _legend(entries: Sequence[tuple[str, str, str]]) -> Markup:
    items = [tag("li", tag("i", class_=shape or None), words, class_=kind) for kind, words, shape in entries]
    return tag("ul", *items, class_="legend")


def _strips(summaries: Sequence[Summary], figure: str, words: str, about: str) -> Markup | None:
    rows = [(summary.name, values) for summary in summaries if (values := summary.values(figure))]
    if not rows:
        return None
    top = ceiling(max(value for _, values in rows for value in values))
    strips = [_strip(name, values, top) for name, values in rows]
    return joined(
        [tag("h3", words), tag("p", about, class_="soft"), *strips, tag("div", _axis(top), class_="strip axis")]
    )


def _strip(name: str, values: Sequence[float], top: float) -> Markup:
    spread = Spread.of(values)
    dots = [tag("circle", cx=_share(value, top), cy=9 + 4 * (n % 4), r=3.2) for n, value in enumerate(values)]
    lines = [_upright(_share(at, top), 3, 27, kind) for at, kind in ((spread.p50, "middle"), (spread.p95, "tail"))]
    grid = _upright("0%", 0, 30, "grid"), _upright("100%", 0, 30, "grid")
    words = f"{name}: {spread.count} values, p50 {spread.p50:.0f} ms, p95 {spread.p95:.0f} ms, max {spread.max:.0f} ms"
    strip = tag("svg", *grid, tag("g", *dots, class_="dot"), *lines, height=30, role="img", aria_label=words)
    figures = f"p50 {spread.p50:.0f}, p95 {spread.p95:.0f} ms"
    cells = [(name.replace("_", " "), "name"), (strip, "plot"), (figures, "figures")]
    return tag("div", *(tag("div", inside, class_=kind) for inside, kind in cells), class_="strip")


def _axis(top: float) -> Markup:
    texts = []
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        texts.append(
            tag("text", f"{share * top:g}{' ms' * (share == 1)}", x=f"{100 * share}%", y=13, text_anchor=anchor)
        )
    return tag("div", tag("svg", *texts, height=18, aria_hidden="true"), class_="plot")


def _upright(x: str, y1: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=x, x2=x, y1=y1, y2=y2, class_=kind)


def _share(value: float, top: float) -> str:
    return f"{100 * max(0.0, min(1.0, value / top)):.2f}%"


def ceiling(value: float) -> float:
    """The next of 1, 2, 3, 4, 5, 6, 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** ceil(log10(value) - 1)
    return next(step * power for step in (1, 2, 3, 4, 5, 6, 8, 10, 20) if step * power >= value)


# ---- all figures --------------------------------------------------------------------------------------------------


def _figures(report: Report) -> Markup | None:
    rows = []
    for name, about in FIGURES.items():
        if values := [value for summary in report.summaries for value in summary.values(name)]:
            spread, (label, _, unit) = Spread.of(values), name.rpartition("_")
            written = map(UNITS[unit].format, (spread.p50, spread.p95, spread.p99, spread.max))
            ends = (str(spread.count), *written)
            cells = [tag("td", end, class_="number", data_name=head) for head, end in zip(ENDS, ends, strict=True)]
            words = f"{label.replace('_', ' ')}{' packets' * (unit == 'packets')}"
            rows.append(tag("tr", tag("th", words, tag("p", about), scope="row"), *cells))
    if not rows:
        return None
    head = tag("tr", tag("th", "Figure", scope="col"), *(tag("th", end, scope="col", class_="number") for end in ENDS))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="stacked")
    return tag("section", tag("h2", "All figures"), table, _takeovers(report))


ENDS = ("Values", "p50", "p95", "p99", "Largest")


def _takeovers(report: Report) -> Markup | None:
    rows = [
        tag("tr", tag("th", summary.name.replace("_", " "), scope="row"), tag("td", words, class_="wide"))
        for summary in report.summaries
        if (words := ", ".join(f"{step}: {taken} of {of}" for step, (taken, of) in summary.takeovers.items()))
    ]
    if not rows:
        return None
    about = "After how many of the user's sounds the agent spoke for a second or more before the next one: "
    about += "the more the better where an answer is expected and the next sound leaves it that second, "
    about += "and none in a pause."
    names = (tag("th", name, scope="col") for name in ("Scenario", "Turns taken"))
    table = tag("table", tag("thead", tag("tr", *names)), tag("tbody", *rows), class_="stacked")
    return joined([tag("h3", "Takeover"), tag("p", about, class_="soft"), table])


# ---- findings -----------------------------------------------------------------------------------------------------


def _findings(report: Report) -> Markup | None:
    rows = [
        tag("tr", *cells)
        for name, count in counted(report.outcomes).items()
        for cells in [_finding(report, name, count)]
    ]
    if not rows:
        return None
    names = ("Finding", "Trials", "What it is", "For example")
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="stacked")
    return tag("section", tag("h2", "Findings"), table)


def _finding(report: Report, name: str, count: int) -> list[Markup]:
    example = next(
        f"{outcome.scenario.replace('_', ' ')}, trial {outcome.trial}: {found.says}"
        for outcome in report.outcomes
        for found in outcome.faults
        if found.name == name
    )
    return [
        tag("th", name.replace("_", " "), scope="row"),
        tag("td", f"{count} of {len(report.outcomes)}", data_name="Trials"),
        tag("td", report.meanings.get(name, ""), class_="wide"),
        tag("td", example, class_="wide", data_name="For example"),
    ]


# ---- pictures -----------------------------------------------------------------------------------------------------


def shown(summaries: Sequence[Summary]) -> list[Outcome]:
    """The worst trials, first of all scenarios alike, then whatever is worst of the rest."""
    first = worst((each for summary in summaries for each in worst(summary.outcomes, A_SCENARIO)), WORST)
    chosen = {id(each) for each in first}
    rest = (each for summary in summaries for each in summary.outcomes if id(each) not in chosen)
    found = sorted([*first, *worst(rest, WORST - len(first))], key=lambda each: each.badness, reverse=True)
    wrong = sum(not each.held or bool(each.faults) for each in found)
    return found[: max(wrong, LEAST_SHOWN)]


def _pictures(report: Report) -> Markup | None:
    figures = [_figure(outcome) for outcome in shown(report.summaries)]
    if not figures:
        return None
    legend = [("user", "user", ""), ("agent", "agent; how long after the user it began", "")]
    legend += [("stop", "falls silent, how long after the user began", "line")]
    legend += [("claim", "what the server says of its speech", "line"), ("gap", "gap in the agent's speech", "")]
    about = tag(
        "p", "User and agent on one time axis, as a listener heard them; the worst trials first.", class_="soft"
    )
    return tag("section", tag("h2", "The worst trials"), about, _legend(legend), *figures)


def _figure(outcome: Outcome) -> Markup:
    assert outcome.picture is not None, "only trials with a picture are shown"
    name = f"{outcome.scenario.replace('_', ' ')}, trial {outcome.trial} "
    words = tag("h3", name, _word("held" if outcome.held else "did not hold", outcome.held))
    scroll = tag("div", wave(outcome.picture, name), class_="scroll", tabindex=0, role="region", aria_label=name)
    return tag("figure", words, tag("figcaption", " · ".join(_caption(outcome))), scroll)


def _caption(outcome: Outcome) -> Iterator[str]:
    if outcome.failure:
        yield outcome.failure
    if outcome.missed:
        yield f"never said: {', '.join(outcome.missed)}"
    yield from (f"{check.expects}: {check.says}" for check in outcome.broken)
    yield from (f"{found.name.replace('_', ' ')}: {found.says}" for found in outcome.findings)
    for figure, words, _ in SPREADS:
        if values := outcome.figures.get(figure):
            yield f"{words.lower()} after {', '.join(f'{value:.0f}' for value in values)} ms"
    yield f"seed {outcome.seed}"


ROWS = {"onset": 14, "end": 14, "response": 29, "stop": 44, "claim": 59}
"""Where the words of a mark stand, by its kind."""
LETTER_PIXELS = 6.5
USER_TOP, USER_HEIGHT, AGENT_TOP, AGENT_HEIGHT, AXIS_TOP = 67, 52, 125, 72, 215


def wave(picture: Picture, label: str) -> Markup:
    """The picture as SVG: as wide as there is room, or PIXELS_A_SECOND."""
    seconds = max(picture.seconds, 1.0)
    parts = [
        *_ticks(seconds),
        _lane("user", picture.user, USER_TOP, USER_HEIGHT, seconds),
        _lane("agent", picture.agent, AGENT_TOP, AGENT_HEIGHT, seconds),
        *(part for begin, end in picture.gaps for part in _gap(begin, end, seconds)),
        *_marks(picture.marks, seconds),
    ]
    style = f"min-width: {round(PIXELS_A_SECOND * seconds)}px"
    return tag("svg", *parts, class_="wave", role="img", aria_label=f"{label}: {seconds:.1f} s", style=style)


def _lane(who: str, peaks: bytes, top: int, height: int, seconds: float) -> Markup:
    bars = "".join(f"M{n} {100 - peak}v{2 * peak}" for n, peak in enumerate(loudest(peaks)) if peak)
    box = f"0 0 {seconds / PEAK_SECONDS:.0f} 200"
    place = {"y": top, "width": "100%", "height": height, "viewBox": box, "preserveAspectRatio": "none"}
    return joined(
        [
            tag("svg", tag("path", d=bars), class_=who, **place),
            tag("text", who, x=6, y=top + 12, class_=f"who-{who}"),
        ]
    )


def loudest(peaks: bytes) -> list[int]:
    """0 to 100 of the loudest: a quiet agent is seen as well."""
    top = max(max(peaks, default=0), 10)
    return [ceil(100 * peak / top) for peak in peaks]


def _ticks(seconds: float) -> Iterator[Markup]:
    every = 1 if seconds <= 40 else 5
    for second in range(0, int(seconds) + 1, every):
        x = _share(second, seconds)
        yield _upright(x, USER_TOP, AXIS_TOP - 14, "grid")
        anchor = "start" if second == 0 else "end" if second > seconds - 0.4 else "middle"
        yield tag("text", f"{second} s" if second == 0 else str(second), x=x, y=AXIS_TOP, text_anchor=anchor)


def _gap(begin: float, end: float, seconds: float) -> Iterator[Markup]:
    x, width = _share(begin, seconds), _share(max(0.0, end - begin), seconds)
    yield tag("rect", x=x, width=width, y=AGENT_TOP, height=AGENT_HEIGHT, class_="gap")
    yield _upright(x, AGENT_TOP, AGENT_TOP + AGENT_HEIGHT, "gap")


def _marks(marks: Iterable[Mark], seconds: float) -> Iterator[Markup]:
    """Each in the row of its kind; words that would run into others of their row are left out, their line is not."""
    free = dict[str, float]()
    for mark in sorted(marks, key=lambda mark: mark.at):
        kind = mark.kind if mark.kind in ROWS else "claim"
        x, y = _share(mark.at, seconds), ROWS[kind]
        yield _upright(x, y + 3, AGENT_TOP + AGENT_HEIGHT, kind)
        if mark.says and mark.at >= free.get(kind, 0.0):
            free[kind] = mark.at + LETTER_PIXELS * (len(mark.says) + 1) / PIXELS_A_SECOND
            side = (-4, "end") if free[kind] > seconds else (4, "start")
            yield tag("text", mark.says, x=x, y=y, dx=side[0], text_anchor=side[1], class_=kind)


# ---- load ---------------------------------------------------------------------------------------------------------


def _load(report: Report) -> Markup | None:
    load = report.load
    if load is None:
        return None
    words = [_word(words, False) for words in load.broken]
    if not words and not load.unknown:
        words = [_word("nothing grows, nothing is left behind", True)]
    lines = [tag("p", word) for word in words]
    return tag(
        "section",
        tag("h2", "Under load"),
        *lines,
        tag("dl", *_loaded(load), class_="tiles"),
        _course(load),
        _grown(load),
    )


def _loaded(load: Load) -> Iterator[Markup]:
    if load.calls:
        turns = f", {load.talking} of them talking" if load.talking < load.peers else ""
        yield _tile("Calls", str(load.calls), f"{load.peers} at once{turns}, {load.seconds / 60:.1f} minutes")
        yield _tile("Gaps in a call", f"{load.gaps_a_call:.2f}", "on average")
    cpu = cpu_percent(load.entries)
    if cpu is not None:
        yield _tile("CPU of the server", f"{cpu:.0f} %", "of one core, its children too")
    if load.killed:
        yield _tile("Engine killed", f"at {load.killed.at:.0f} s", f"{load.killed.calls} calls were up")
        spoke = [at for at in load.killed.spoke if at is not None]
        yield _tile("Spoke again", f"{max(spoke):.1f} s later" if spoke else "never", "the last of them")
    if load.cycles:
        grown = load.cycles.grown_mb
        small = "memory not known" if grown is None else f"{grown:+.1f} MB, at most {load.cycles.bound_mb:g} expected"
        yield _tile("Connect and close", f"{load.cycles.cycles} times", small)


COURSES: tuple[tuple[str, Callable[[Entry], float | None]], ...] = (
    ("Memory, MB", lambda entry: entry.memory_mb),
    ("Descriptors", lambda entry: entry.descriptors),
    ("Threads", lambda entry: entry.threads or None),
    ("Tasks, as the server says", lambda entry: entry.tasks),
    ("Calls, as the server says", lambda entry: entry.peers),
)


def _course(load: Load) -> Markup | None:
    """What the server held over time, a plot each."""
    plots = [plot for words, value in COURSES if (plot := _plot(words, load.entries, value))]
    return tag("div", *plots, class_="course") if plots else None


def _plot(words: str, entries: Sequence[Entry], value: Callable[[Entry], float | None]) -> Markup | None:
    points = [(entry.at - entries[0].at, known) for entry in entries if (known := value(entry)) is not None]
    if len(points) < 2 or points[-1][0] == 0:
        return None
    seconds, (low, high) = points[-1][0], axis([known for _, known in points])
    line = " ".join(f"{1000 * at / seconds:.1f},{100 * (high - known) / (high - low):.2f}" for at, known in points)
    box = {"y": 4, "height": 70, "width": "100%", "viewBox": "0 0 1000 100", "preserveAspectRatio": "none"}
    grid = [tag("line", x1="0%", x2="100%", y1=y, y2=y, class_="grid") for y in (4, 74)]
    corners = ((f"{high:.4g}", "0%", 16, "start"), (f"{low:.4g}", "0%", 71, "start"))
    ends = (("0", "0%", 90, "start"), (f"{seconds / 60:.1f} min", "100%", 90, "end"))
    texts = [tag("text", text, x=x, y=y, text_anchor=anchor) for text, x, y, anchor in (*corners, *ends)]
    told = f"{words}: {points[0][1]:.4g} at first, {points[-1][1]:.4g} at last"
    drawn = tag("svg", *grid, tag("svg", tag("polyline", points=line), **box), *texts, role="img", aria_label=told)
    return tag("div", tag("p", told, class_="soft"), drawn)


def axis(values: Sequence[float]) -> tuple[float, float]:
    """The least and the largest of a plot: no less than a twentieth of what it shows, so that noise looks like it."""
    low, high = min(values), max(values)
    room = max(0.15 * (high - low), 0.025 * high, 0.5)
    return max(0.0, low - room), high + room


def _grown(load: Load) -> Markup | None:
    if not load.growths:
        return None
    rows = [_growth(each) for each in load.growths]
    names = ("Over the second half", "Median", "An hour", "Flat up to")
    head = tag("tr", *(tag("th", name, scope="col") for name in names))
    return tag("table", tag("thead", head), tag("tbody", *rows), class_="stacked")


def _growth(each: Growth) -> Markup:
    seen = f"; so short a time shows {each.seen_from:g} or more" if each.seen_from > each.bound else ""
    an_hour = f"{each.an_hour:+g} {each.unit}"
    return tag(
        "tr",
        tag("th", each.what, scope="row"),
        tag("td", f"{each.median:g} {each.unit}", data_name="Median"),
        tag("td", _word(an_hour, each.flat) if each.judged else f"{an_hour}, not judged", data_name="An hour"),
        tag("td", f"{each.bound:g} {each.unit}".strip() + seen, class_="wide", data_name="Flat up to"),
    )


# ---- conditions ---------------------------------------------------------------------------------------------------


def _conditions(report: Report) -> Markup:
    facts: dict[str, Inside] = {
        "Command": tag("code", report.command),
        "Agent": report.url,
        "Protocol": report.protocol,
        "Network": report.network or "as it is",
        "Seed": str(report.seed),
        "Took": f"{report.seconds / 60:.1f} minutes",
    }
    facts |= {name.replace("_", " "): str(value) for name, value in report.machine.items()}
    cells = [cell for name, value in facts.items() for cell in (tag("dt", name), tag("dd", value))]
    sources = {source: None for summary in report.summaries for source in summary.sources}
    parts = [tag("h2", "How this was measured"), tag("dl", *cells, class_="facts")]
    if sources:
        parts += [tag("h3", "Where the scenarios come from"), tag("ul", *(tag("li", _link(each)) for each in sources))]
    return tag("section", *parts)


def _link(source: str) -> Markup:
    return tag("a", source, href=source, rel="noreferrer") if source.startswith("https://") else joined([source])
