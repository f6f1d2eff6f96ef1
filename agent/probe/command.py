"""The command `breezert probe`: options, progress, a table and files. It does not know how anything is measured.

Its exit status is 0 where all expectations held and nothing was found, 1 where not, 2 where there was nothing to probe
or an option was wrong, and 130 where it was interrupted; what was judged until then is reported all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TaskID
from rich.table import Column, Table

from agent.probe.findings import FINDINGS
from agent.probe.outcome import Outcome, Spread, Summary, plain
from agent.trouble import SettingsError
from engine.machine import check_writable, describe, write_json
from engine.options import positive, positive_number, seed

if TYPE_CHECKING:
    from agent.probe.load import Loading, Wanted
    from agent.probe.network import Network
    from agent.probe.recording import Pcm
    from agent.probe.report import Load, Report
    from agent.probe.run import Run
    from agent.probe.scenario import Scenario

PROGRAM = "breezert probe"
MAX_TOKEN_BYTES = 4096
TRIALS = 5
MINUTES = 5.0
"""Of a load, where nothing is said about it."""
GROWTH_MB = 10.0
AFTER_KILL_SECONDS = 20.0
"""That a load goes on after its engine was killed."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class UsageError(Exception):
    """Options that do not go together, or name nothing; the text says what was expected."""


# ---- options ------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """The command line. Unknown options are errors."""
    how = "Calls a voice agent over WebRTC, speaks over it in all the ways that people do, and reports what a listener "
    how += "heard: how fast it fell silent and answered, and what was wrong with its audio."
    p = argparse.ArgumentParser(prog=PROGRAM, allow_abbrev=False, description=how)
    add = p.add_argument
    add("url", metavar="URL", nargs="?", help="of the agent's server, or of its route for offers")
    add("--list", action="store_true", help="show the scenarios that come with the probe, and end")
    text = "compare the model of a listener's buffer with a real libwebrtc (needs node and npm), and end"
    add("--self-check", action="store_true", help=text)
    text = "how calls are made (default: %(default)s)"
    add("--protocol", choices=("offer", "openai", "whep"), default="offer", help=text)
    text = "one of --list, or a YAML file; repeatable (default: all of --list)"
    add("--scenario", action="append", metavar="NAME|FILE", help=text)
    add("--trials", type=positive, metavar="N", help=f"of each scenario (default: {TRIALS})")
    add("--parallel", type=positive, default=2, metavar="K", help="calls at once (default: %(default)s)")
    add("--seed", type=seed, default=1, metavar="S", help="of everything that is drawn (default: %(default)s)")
    add("--token-file", type=Path, metavar="FILE", help="holds what is sent as a Bearer token, and nothing else")
    text = "trouble on the way, such as loss=5,burst=2,jitter=30 or up:loss=5;down:jitter=30 (default: none)"
    add("--network", metavar="SPEC", help=text)
    text = "what the agent is known to say, in a WAV file: it is looked for in what was heard"
    add("--reference", type=Path, metavar="WAV", help=text)
    add("--json", metavar="OUT", help="write all figures there; - is standard output")
    add("--html", metavar="OUT", help="write a page with the figures and the worst trials' waveforms there")
    add("--quiet", action="store_true", help="show no progress")
    _add_load(p.add_argument_group("load, instead of trials"))
    return p


def _add_load(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--peers", type=positive, metavar="N", help="so many calls at once, each one scenario after the other")
    text = "only so many of them speak at a time, the others stay on the line: peers who take turns (default: all)"
    add("--talking", type=positive, metavar="K", help=text)
    add("--minutes", type=positive_number, metavar="M", help=f"for so long (default: {MINUTES:g})")
    text = "connect and close so many times, and compare what the server holds before and after"
    add("--cycles", type=positive, metavar="N", help=text)
    text = "the server's process, to write down its memory, descriptors, threads and CPU (default: who listens at URL)"
    add("--server-pid", type=positive, metavar="PID", help=text)
    text = f"MB an hour that the server's memory may grow by in the second half (default: {GROWTH_MB:g})"
    add("--growth", type=positive_number, metavar="MB", help=text)
    text = "kill the engine of a server on this machine so many seconds after the beginning; calls must go on"
    add("--kill-engine", type=positive_number, metavar="SECONDS", help=text)


@dataclass(frozen=True, slots=True)
class Asked:
    """The options, read."""

    scenarios: tuple[Scenario, ...]
    network: Network | None
    token: str | None
    reference: Pcm | None


def asked(args: argparse.Namespace) -> Asked:
    """Raises UsageError, SettingsError, OSError and ValueError."""
    from agent.probe.network import parse

    for path in filter(None, (args.json, args.html)):
        check_writable(path)
    _check_load(args)
    return Asked(
        scenarios(args.scenario, args.protocol),
        parse(args.network) if args.network is not None else None,
        token(args.token_file) if args.token_file else None,
        reference(args.reference) if args.reference else None,
    )


def _check_load(args: argparse.Namespace) -> None:
    """Raises UsageError for options that do nothing without others."""
    if args.html == "-":
        raise UsageError("--html needs a file; - is for --json only")
    for name in ("minutes", "talking", "growth", "kill_engine"):
        if getattr(args, name) is not None and args.peers is None:
            raise UsageError(f"--{name.replace('_', '-')} needs --peers: it is for a load")
    for name in ("peers", "cycles"):
        if getattr(args, name) is not None and args.trials is not None:
            raise UsageError(f"--trials does not go with --{name}: a load is made instead of trials")
    if args.server_pid is not None and args.peers is None and args.cycles is None:
        raise UsageError("--server-pid needs --peers or --cycles: books are kept under load")
    if args.talking is not None and args.talking > args.peers:
        raise UsageError(f"--talking {args.talking} of --peers {args.peers}: expected no more than there are")
    least = AFTER_KILL_SECONDS + (args.kill_engine or 0.0)
    if args.kill_engine is not None and 60 * (args.minutes or MINUTES) < least:
        raise UsageError(
            f"--kill-engine {args.kill_engine:g} needs --minutes {least / 60:.2g} or more: calls go on then"
        )


def scenarios(wanted: Sequence[str] | None, protocol: str) -> tuple[Scenario, ...]:
    """Those that are named, or all that come with the probe and that the protocol can do. Raises UsageError and
    SettingsError."""
    from agent.probe.dialect import DIALECTS
    from agent.probe.scenario import built_in, load

    known, speaks = built_in(), DIALECTS[protocol].speaks
    if wanted is None:
        return tuple(one for one in known.values() if speaks != one.listens_only)
    found: dict[str, Scenario] = {}
    for name in wanted:
        one = known[name] if name in known else load(_file(name, known))
        if one.name in found:
            raise UsageError(f"the scenario {one.name} is named twice")
        if not speaks and not one.listens_only:
            raise UsageError(f"the scenario {name} speaks, and {protocol} has no microphone")
        found[one.name] = one
    return tuple(found.values())


def _file(name: str, known: Iterable[str]) -> Path:
    if name.endswith((".yaml", ".yml")) or Path(name).is_file():
        return Path(name)
    raise UsageError(f"there is no scenario {name}: expected one of {', '.join(known)}, or a YAML file")


def token(path: Path) -> str:
    """Without its line end. Raises UsageError and OSError."""
    with path.open("rb") as file:
        data = file.read(MAX_TOKEN_BYTES + 1)
    found = data.decode(errors="replace").strip()
    if not found or len(data) > MAX_TOKEN_BYTES or not found.isprintable() or not found.isascii():
        raise UsageError(f"{path} holds no token: expected one line of printable ASCII")
    return found


def reference(path: Path) -> Pcm:
    """int16 [samples] at 48 kHz. Raises OSError and ValueError."""
    from agent.probe.sounds import sound

    return sound(str(path.resolve(strict=True)))


# ---- what is done -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run came to, however it ended."""

    outcomes: list[Outcome]
    load: Load | None
    seconds: float = 0.0
    """That it took."""
    late_ms: float = 0.0
    """By which the probe itself was late, in 1 of 100 cases."""
    warning: str = ""
    """What is to be known of the figures."""
    interrupted: bool = False
    error: str | None = None
    """That ended it before its time."""


async def run(args: argparse.Namespace, wanted: Asked, progress: Progress) -> Ended:
    """Trials or a load. A signal ends it early; whatever was judged until then is there."""
    from agent.leftovers import Leftovers
    from agent.probe.books import server_pid
    from agent.probe.call import Target
    from agent.probe.judging import Judges, JudgingError
    from agent.probe.run import Lateness, ProbeError, Run

    late, began_at = Lateness(), time.monotonic()
    watching = asyncio.create_task(late.watch())
    loading = _loading(args, wanted)
    # A load lasts for as long as one wants: what it records is not kept to its end.
    later = loading is None and server_pid(args.url) is not None
    target, judges = Target(args.url, args.protocol, wanted.token), Judges(os.cpu_count() if later else None)
    leftovers = Leftovers()  # while much is collected, nothing that the user says is sent
    probing = Run(
        target,
        judges,
        network=wanted.network,
        reference=wanted.reference,
        ended=leftovers.free_soon,
        later=later,
    )
    interrupted, error = False, None
    try:
        interrupted = await until_signal(_work(args, wanted, probing, loading, progress))
    except (ProbeError, JudgingError) as found:
        error = str(found)
    finally:
        await probing.settle()
        watching.cancel()
        leftovers.close()
        judges.close()
    load = loading.load(_load_wanted(args), probing.outcomes) if loading else None
    warning = "; ".join(filter(None, (late.warning, probing.turned_away)))
    seconds = time.monotonic() - began_at
    return Ended(probing.outcomes, load, seconds, late.p99_ms, warning, interrupted, error)


async def until_signal(work: Coroutine[Any, Any, None]) -> bool:
    """Whether the first SIGINT or SIGTERM ended the work, which is waited for; a second one ends the program as ever.
    Raises what the work raises."""
    loop, task = asyncio.get_running_loop(), asyncio.create_task(work)

    def restore() -> None:
        for number in SIGNALS:
            loop.remove_signal_handler(number)

    def interrupt() -> None:
        restore()
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        await asyncio.wait([task])
    finally:
        restore()
        task.cancel()
    if task.cancelled():
        return True
    task.result()
    return False


async def _work(
    args: argparse.Namespace, wanted: Asked, probing: Run, loading: Loading | None, progress: Progress
) -> None:
    from agent.probe.load import cycle, soak
    from agent.probe.run import CALLED, JUDGED, Plan, probe

    if loading is None:
        plan = Plan(wanted.scenarios, args.trials or TRIALS, args.parallel, args.seed)
        rehearsing = progress.add_task("rehearsals", total=None) if plan.rehearsed else None
        total = plan.trials * len(wanted.scenarios)
        bars = {word: progress.add_task(f"trials {word}", total=total) for word in (CALLED, JUDGED)}
        await probe(probing, plan, partial(_advance, progress, bars, rehearsing))
        return
    load = _load_wanted(args)
    if load.cycles:
        bar = progress.add_task("cycles", total=load.cycles)
        await cycle(probing, loading, load, lambda _: progress.advance(bar))
    if load.peers:
        bar = progress.add_task("seconds of load", total=load.seconds)
        ticking = asyncio.create_task(_tick(progress, bar, loading))
        try:
            await soak(probing, wanted.scenarios, loading, load, lambda _: None)
        finally:
            ticking.cancel()


def _advance(progress: Progress, bars: dict[str, TaskID], rehearsing: TaskID | None, word: str) -> None:
    if rehearsing is not None:
        progress.update(rehearsing, visible=False)
    progress.advance(bars[word])


async def _tick(progress: Progress, bar: TaskID, loading: Loading) -> None:
    while True:
        progress.update(bar, completed=loading.seconds)
        await asyncio.sleep(1.0)


def _load_wanted(args: argparse.Namespace) -> Wanted:
    from agent.probe.load import Wanted

    return Wanted(
        peers=args.peers or 0,
        talking=args.talking or 0,
        seconds=60 * (args.minutes or MINUTES) if args.peers else 0.0,
        cycles=args.cycles or 0,
        parallel=args.parallel,
        kill_at=args.kill_engine,
        growth_mb=args.growth or GROWTH_MB,
        seed=args.seed,
    )


def _loading(args: argparse.Namespace, wanted: Asked) -> Loading | None:
    """None where no load is asked for."""
    from agent.probe.books import Books, server_pid
    from agent.probe.load import Loading

    if args.peers is None and args.cycles is None:
        return None
    return Loading(Books(origin(args.url), args.server_pid or server_pid(args.url), wanted.token))


def origin(url: str) -> str:
    """The server's own address, of a route's too."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


# ---- what comes of it ---------------------------------------------------------------------------------------------


def report(args: argparse.Namespace, argv: Sequence[str], wanted: Asked, ended: Ended) -> Report:
    from agent.probe.report import Report

    by_name: dict[str, list[Outcome]] = {}
    for outcome in ended.outcomes:
        by_name.setdefault(outcome.scenario, []).append(outcome)
    summaries = [
        Summary(
            one.name, one.kind, one.about, one.sources, tuple(sorted(by_name[one.name], key=lambda each: each.trial))
        )
        for one in wanted.scenarios
        if one.name in by_name
    ]
    return Report(
        url=shown(args.url),
        protocol=args.protocol,
        network=args.network or "",
        command=" ".join((PROGRAM, *map(shown, argv))),
        machine={**machine(), "probe_late_ms_p99": ended.late_ms},
        seed=args.seed,
        seconds=round(ended.seconds, 1),
        summaries=tuple(summaries),
        meanings=FINDINGS,
        load=ended.load,
        warning=ended.warning,
        interrupted=ended.interrupted or ended.error is not None,
    )


def summed_up(scenario: Scenario, outcomes: Iterable[Outcome]) -> Summary:
    """Of the outcomes those of this scenario, in the order of their trials."""
    own = sorted((each for each in outcomes if each.scenario == scenario.name), key=lambda each: each.trial)
    return Summary(scenario.name, scenario.kind, scenario.about, scenario.sources, tuple(own))


def shown(word: str) -> str:
    """A word of the command line as others may read it: of a file its name, of an address neither user nor query."""
    if "://" in word:
        parts = urlsplit(word)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    option, given, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{given}{Path(value).name if '/' in value else value}"


def machine() -> dict[str, object]:
    """Machine, versions and date."""
    found = describe("", [])
    kept = {name: found[name] for name in ("cpu", "cores", "system", "python", "numpy", "date")}
    versions = {name: version(name) for name in ("breezert", "aiortc", "av")}
    return {**kept, **versions, "load_average": round(os.getloadavg()[0], 2)}


def table(summaries: Sequence[Summary]) -> Table:
    """The figures as a person reads them."""
    out = Table(Column("scenario", no_wrap=True), "trials", "held", "stop, ms", "response, ms", "findings")
    out.caption = "p50 / p95"
    for each in summaries:
        trials = len(each.outcomes)
        held = f"[{'green' if each.held == trials else 'red'}]{each.held}[/]"
        found = ", ".join(f"{name} ({times})" for name, times in each.findings.items())
        pairs = [_pair(each.spread(figure)) for figure in ("stop_ms", "response_ms")]
        out.add_row(escape(each.name), str(trials), held, *pairs, f"[red]{escape(found)}")
    return out


def _pair(spread: Spread | None) -> str:
    return f"{spread.p50:.0f} / {spread.p95:.0f}" if spread else ""


def print_all(console: Console, found: Report) -> None:
    """The table, what did not hold and why, and what the load came to."""
    console.print(table(found.summaries))
    if found.warning:
        console.print(f"[yellow]{escape(found.warning)}", highlight=False)
    for summary in found.summaries:
        for words, (held, of) in summary.expectations.items():
            if held < of:
                console.print(
                    f"[red]{escape(summary.name)}[/]: {escape(plain(words))}: {held} of {of}", highlight=False
                )
    for reason, times in failures(found.outcomes).items():
        console.print(f"[red]{times} x[/] {escape(plain(reason))}", highlight=False)
    for words in found.load.broken if found.load else ():
        console.print(f"[red]load[/]: {escape(words)}", highlight=False)
    for words in found.notes:
        console.print(f"[yellow]not known[/]: {escape(plain(words))}", highlight=False)
    for growth in found.load.growths if found.load else ():
        words = f"{growth.what}: {growth.median:g} {growth.unit}, {growth.an_hour:+g} an hour over the second half; "
        console.print(f"{words}flat up to {growth.bound:g}, seen from {growth.seen_from:g}", highlight=False)


def failures(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Why calls could not be finished, and how often."""
    return dict(Counter(outcome.failure for outcome in outcomes if outcome.failure is not None))


def print_list(console: Console) -> None:
    from agent.probe.scenario import built_in

    out = Table("scenario", "what happens")
    for one in built_in().values():
        out.add_row(escape(one.name), escape(one.about))
    console.print(out)


def write(args: argparse.Namespace, found: Report) -> None:
    """Raises OSError."""
    from agent.probe.report import data, page

    if args.json:
        write_json(args.json, data(found))
    if args.html:
        Path(args.html).write_text(page(found), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Probes, prints a table, writes the files. A mistake is one line on standard error and exit status 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    options = parser()
    args = options.parse_args(argv)
    console = Console(stderr=True)
    if args.list:
        print_list(Console())
        return 0
    if args.self_check:
        from agent.probe.self_check import main as self_check

        if args.url is not None:
            options.error("--self-check calls no agent: leave URL out")
        if args.html is not None:
            options.error("--self-check makes no page: leave --html out, it has --json")
        return self_check(args.json, args.quiet)
    if args.url is None:
        options.error("expected the URL of an agent, such as http://127.0.0.1:8080, or --list or --self-check")
    try:
        wanted = asked(args)
        with Progress(console=console, disable=args.quiet, transient=True) as progress:
            ended = asyncio.run(run(args, wanted, progress))
        if ended.error is not None and not ended.outcomes:
            raise UsageError(ended.error)
        found = report(args, argv, wanted, ended)
        print_all(console, found)
        write(args, found)
    except (UsageError, SettingsError, OSError, ValueError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if ended.error is not None:
        print(f"{PROGRAM}: ended early: {ended.error}", file=sys.stderr)
        return 2
    return 130 if ended.interrupted else int(not found.good)


if __name__ == "__main__":
    sys.exit(main())
