"""The kinds of `bench`: their options, and what writes their results. What is measured stands in a file a kind."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from engine import profiles
from engine.command import add_voice_options, command, console, runtime_config, started
from engine.machine import check_writable, describe, write_json
from engine.options import positive, positive_number, seed, whole
from engine.policies import NAMES as POLICIES
from engine.policies import PREDICTOR
from engine.profile import Profile
from engine.runtime import Runtime
from engine.simulate import check_plots

if TYPE_CHECKING:
    from engine.command import Commands

GAPS_REQUESTS = 60
"""Of `bench gaps`: at a load of 1, about four minutes."""
LEAST_FRAMES = 16
"""Of `bench concurrency`: the first chunk of plain PyTorch."""
TEXT, TRANSCRIPT = "Good morning, how can I help?", "The train to the coast leaves from platform nine."
"""Of `bench voices`."""
JSON = "write all figures there; - is standard output"


def bench(args: argparse.Namespace) -> int:
    from engine.bench import run

    with started(replace(runtime_config(args), max_wait=inf)) as runtime:
        rows = run(runtime, args.streams, args.rounds, console)
        if args.json:
            write_json(args.json, {**describe(runtime.device, args.argv), "rows": [asdict(row) for row in rows]})
    return 0


def gaps(args: argparse.Namespace) -> int:
    from engine import bench_gaps
    from engine.traffic import read_trace, write_trace, written

    if args.trace and {args.load, args.requests, args.text_rate} != {None}:
        raise ValueError("--trace says who comes when: leave out --load, --requests and --text-rate")
    if args.save_trace and len(args.policy) > 1:
        raise ValueError("--save-trace keeps the callers as one policy's run had them: give one --policy")
    trace = read_trace(args.trace) if args.trace else None
    if args.save_trace:
        check_writable(str(args.save_trace))
    done = []
    for policy in dict.fromkeys(args.policy):
        with started(bench_gaps.unrefusing_config(runtime_config(args), policy)) as runtime:
            profile = gaps_profile(args.profile, runtime)
            load = None if trace else args.load or bench_gaps.rated_load(profile)
            callers = trace or bench_gaps.script(args.requests or GAPS_REQUESTS, load or 1.0, args.seed, runtime.spec)
            callers = written(callers, args.text_rate)
            done.append(bench_gaps.compare(runtime, callers, policy, profile, args.seed, console))
        console.print(bench_gaps.table(done[-1]))
    if args.save_trace:
        write_trace(args.save_trace, done[0].trace)
    if args.json:
        asked = {"load": load, "seed": args.seed, "text_rate": args.text_rate}
        write_json(args.json, {**describe(runtime.device, args.argv), **asked, **bench_gaps.to_json(done)})
    return 0


def gaps_profile(name: str | None, runtime: Runtime) -> Profile:
    """The one that was asked for, or the one of this voice on this device. Raises OSError and ValueError."""
    own = profiles.name_of(runtime.spec.name, runtime.device)
    if name is None and own not in profiles.names():
        raise ValueError(f"no profile {own!r} comes with the engine: have calibrate write one and give it as --profile")
    path = profiles.find(name or own)
    return replace(profiles.read(path), name=path.stem)


def plan(args: argparse.Namespace) -> int:
    from engine import bench_plan

    rows, simulated = bench_plan.run(args.streams, args.steps, args.callers, console)
    if args.json:
        figures = {
            "rows": [asdict(row) for row in rows],
            "growth_over_n_log_n": bench_plan.growth(rows),
            "simulated": asdict(simulated),
        }
        write_json(args.json, {**describe("simulated", args.argv), **figures})
    return 0


def determinism(args: argparse.Namespace) -> int:
    from engine import bench, determinism
    from engine import device as devices
    from engine.executor import load

    config = runtime_config(args)
    model, _, limits = load(replace(config, graphs=frozenset()))
    fused = config.graphs if devices.captures(model.device) else frozenset()
    rows = determinism.compare(model, limits, bench.SENTENCES, args.shapes, fused)
    if args.json:
        device = devices.name(model.device)
        write_json(args.json, {**describe(device, args.argv), "rows": [asdict(row) for row in rows]})
    table = Table("shape", "requests", "equal to shape 1", "largest margin where they part")
    for row in rows:
        margin = "-" if row.largest_margin is None else f"{row.largest_margin:.1e}"
        table.add_row(str(row.shape), str(row.requests), f"{row.equal_share:.0%}", margin)
    console.print(table)
    return 0 if all(row.ok for row in rows) else 1


def ablation(args: argparse.Namespace) -> int:
    from engine import bench_ablation

    check_plot(args.plot)
    done = bench_ablation.run(runtime_config(args), args.runs, console)
    if args.json:
        write_json(args.json, {**describe(done.device, args.argv), **done.to_dict()})
    if args.plot:
        bench_ablation.draw(args.plot, done)
    return 0


def concurrency(args: argparse.Namespace) -> int:
    from engine import bench_concurrency

    check_plot(args.plot)
    done = bench_concurrency.run(runtime_config(args), args.requests, args.frames, args.seconds, console)
    if args.json:
        write_json(args.json, {**describe(done.device, args.argv), **done.to_dict()})
    if args.plot:
        bench_concurrency.draw(args.plot, done)
    return 0


def stages(args: argparse.Namespace) -> int:
    from engine import bench_stages

    done = bench_stages.run(runtime_config(args), args.batches, args.runs, console)
    if args.json:
        write_json(args.json, {**describe(done.device, args.argv), **done.to_dict()})
    return 0


def start(args: argparse.Namespace) -> int:
    from engine import bench_start

    done = bench_start.run(runtime_config(args), console)
    if args.json:
        write_json(args.json, {**describe(done.device, args.argv), **done.to_dict()})
    return 0


def check_plot(path: Path | None) -> None:
    """Raises what drawing would raise after a long measurement."""
    if path is not None:
        check_plots(path)
        check_writable(str(path))


def add_gaps_options(parser: argparse.ArgumentParser) -> None:
    """Of `bench gaps`."""
    add = parser.add_argument
    add("--requests", type=positive, metavar="N", help=f"they speak in real time (default: {GAPS_REQUESTS})")
    add(
        "--load",
        type=positive_number,
        metavar="X",
        help="streams at once on average (default: the profile's rated load)",
    )
    add("--seed", type=seed, default=0, metavar="N", help="of the callers (default: %(default)s)")
    rate = "words a second in which the texts are still written, for a voice that reads open texts"
    add("--text-rate", type=positive_number, metavar="X", help=rate)
    names = ", ".join(POLICIES)
    add(
        "--policy",
        nargs="+",
        choices=POLICIES,
        default=[PREDICTOR],
        metavar="NAME",
        help=f"one run each: {names} (default: {PREDICTOR})",
    )
    add("--trace", type=Path, metavar="FILE", help="who calls when, in JSON lines, instead of random callers")
    add(
        "--save-trace",
        type=Path,
        metavar="FILE",
        help="write who really called when, for --trace, here or of simulate: that one draws the speed of its device, "
        "so its figures are others than those of the simulation here",
    )
    add("--json", metavar="FILE", help=JSON)


def voices(args: argparse.Namespace) -> int:
    from engine import bench_voices

    with started(replace(runtime_config(args), max_wait=inf)) as runtime:
        done = bench_voices.run(runtime, args.text, args.ref_text, args.seconds, args.runs, console)
        if args.json:
            write_json(args.json, {**describe(runtime.device, args.argv), **done.to_dict()})
    return 0


def add_bench_commands(p: argparse.ArgumentParser) -> Commands:
    """The kinds of `bench`."""
    kinds = p.add_subparsers(required=True, metavar="WHAT")
    how = "So many utterances begin at once, again and again; admission is off."
    p = command(kinds, "speech", bench, "TTFA, RTF and gaps by number of streams", how)
    p.add_argument("--streams", type=positive, nargs="+", default=[1, 2], metavar="N", help="at once (default: 1 2)")
    p.add_argument(
        "--rounds", type=positive, default=10, metavar="N", help="utterances a stream (default: %(default)s)"
    )
    p.add_argument("--json", metavar="FILE", help=JSON)
    add_voice_options(p)
    how = "Callers come as in simulate and speak in real time; admission is off. Utterances last 2 to 20 s, but no "
    how += "longer than the voice speaks well: 8 s with the embedded one."
    p = command(kinds, "gaps", gaps, "callers in real time, and what the simulator makes of the same ones", how)
    add_gaps_options(p)
    add_voice_options(p)
    how = "Each number of streams is measured twice: with admission off, and at overload, with it on."
    p = command(kinds, "plan", plan, "what the scheduler's planning costs", how)
    p.add_argument(
        "--streams", type=positive, nargs="+", default=[8, 16, 32, 64, 128, 256], metavar="N", help="default: 8 to 256"
    )
    p.add_argument("--steps", type=positive, default=2000, metavar="N", help="measured of each (default: %(default)s)")
    p.add_argument("--json", metavar="FILE", help=JSON)
    p.add_argument(
        "--callers", type=positive, default=2000, metavar="N", help="of a timed simulation (default: %(default)s)"
    )
    how = "The same requests, each padded to batches of these shapes: are all codes those of shape 1?"
    p = command(kinds, "determinism", determinism, "codes by the shape of the batch", how)
    p.add_argument("--shapes", type=positive, nargs="+", default=[2, 4, 8], metavar="N", help="default: 2 4 8")
    p.add_argument("--json", metavar="FILE", help=JSON)
    add_voice_options(p)
    how = "Four engines, one after the other; only a device that captures graphs (CUDA) tells the last three apart."
    p = command(
        kinds, "ablation", ablation, "TTFA of one request: op by op, growing chunks, depth as a graph, all", how
    )
    p.add_argument("--runs", type=positive, default=20, metavar="N", help="of each step (default: %(default)s)")
    add_figures(p)
    how = "Requests arrive together, then as a Poisson process with as many playing at once on average."
    p = command(kinds, "concurrency", concurrency, "TTFA by requests at once, beside plain PyTorch", how)
    p.add_argument(
        "--requests", type=positive, nargs="+", metavar="N", help="default: 1 2 4 8 16 32 64, within the slots"
    )
    text = f"of each request, {LEAST_FRAMES} or more (default: %(default)s)"
    p.add_argument("--frames", type=frames, default=50, metavar="N", help=text)
    text = "of Poisson arrivals that count, a row (default: %(default)s)"
    p.add_argument("--seconds", type=positive_number, default=5.0, metavar="S", help=text)
    add_figures(p)
    p = command(kinds, "stages", stages, "time of each stage by shape, beside its floor")
    p.add_argument("--batches", type=positive, nargs="+", metavar="N", help="default: the ladder, up to the slots")
    p.add_argument("--runs", type=positive, default=10, metavar="N", help="of each shape (default: %(default)s)")
    p.add_argument("--json", metavar="FILE", help=JSON)
    add_voice_options(p)
    how = "Three engines, one after the other: nothing is compiled before the first, the second finds what that one "
    how += "compiled, the third runs everything op by op. A device without graphs (the CPU) has only the last."
    p = command(kinds, "start", start, "how long an engine takes until it can speak", how)
    p.add_argument("--json", metavar="FILE", help=JSON)
    add_voice_options(p)
    how = "Encodes noise by the production loop with random weights of the published encoder's size, then has the "
    how += "voice speak: as itself, like a recording that is new, and like it again. The voice must be able to clone."
    p = command(kinds, "voices", voices, "encoding a recording, and first audio with it", how)
    p.add_argument("--seconds", type=positive_number, default=10.0, metavar="S", help="of it (default: %(default)s)")
    p.add_argument("--runs", type=positive, default=20, metavar="N", help="of each (default: %(default)s)")
    p.add_argument("--text", default=TEXT, help="what is said (default: %(default)s)")
    p.add_argument("--ref-text", default=TRANSCRIPT, help="what the noise is taken to say (default: %(default)s)")
    p.add_argument("--json", metavar="FILE", help=JSON)
    add_voice_options(p)
    return kinds


def frames(text: str) -> int:
    """Of each request of `bench concurrency`."""
    value = whole(text)
    if value < LEAST_FRAMES:
        what = "the first chunk of plain PyTorch"
        raise argparse.ArgumentTypeError(f"must be at least {LEAST_FRAMES}, {what}, got {text}")
    return positive(text)


def add_figures(p: argparse.ArgumentParser) -> None:
    """Of a bench whose result is drawn, too."""
    p.add_argument("--json", metavar="FILE", help=JSON)
    p.add_argument("--plot", type=Path, metavar="FILE", help="PNG file; needs pip install 'breezert[plot]'")
    add_voice_options(p)
