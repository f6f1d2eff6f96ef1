"""The engine's commands: say, verify, simulate, bench, calibrate. They need no WebRTC package."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from engine import __version__
from engine.core import Request, SamplingParams
from engine.machine import check_writable, describe, write_json
from engine.messages import EMBEDDED_VOICE, RuntimeConfig
from engine.profile import Profile
from engine.runtime import Runtime

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

console = Console(stderr=True)


def positive(text: str) -> int:
    """An argparse type."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def positive_number(text: str) -> float:
    """An argparse type."""
    value = float(text)
    if not 0 < value < inf:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return value


def add_voice_options(parser: argparse.ArgumentParser) -> None:
    """The options that choose what speaks and where, the same for every command that loads a voice."""
    add = parser.add_argument
    add(
        "--voice",
        type=Path,
        metavar="FOLDER",
        default=EMBEDDED_VOICE,
        help="checkpoint folder of the official layout (default: the embedded voice)",
    )
    add("--device", default="auto", metavar="auto|cpu|cuda", help="where the stages run (default: %(default)s)")
    add("--dtype", choices=("fp32", "bf16"), help="default: bf16 on CUDA, fp32 on the CPU")
    add("--threads", type=positive, metavar="N", help="CPU threads of one operation (default: 1)")
    add(
        "--in-process",
        action="store_true",
        help="the engine in a thread of this process: for debuggers; media then shares its interpreter",
    )


def runtime_config(args: argparse.Namespace) -> RuntimeConfig:
    """What add_voice_options understood."""
    return RuntimeConfig(args.voice, args.device, args.dtype, args.in_process, threads=args.threads)


def started(args: argparse.Namespace) -> Runtime:
    """The engine, loaded while a spinner turns. Raises EngineError."""
    with console.status(f"loading the voice {args.voice.name}"):
        return Runtime.start(runtime_config(args))


def say(args: argparse.Namespace) -> int:
    from engine.say import print_stats, say

    with started(args) as runtime:
        request = Request(args.text, sampling(args, runtime.spec.sampling), args.speaker, args.instruction)
        stats = say(runtime, request, args.output, console)
        if args.stats:
            print_stats(stats, console)
    return 0


def sampling(args: argparse.Namespace, own: SamplingParams) -> SamplingParams:
    """The voice's own settings with those that were given. Its minimum length yields to a shorter maximum."""
    given = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    least = min(own.min_frames, given.get("max_frames", own.max_frames))
    return replace(own, **{"min_frames": least} | given)


def verify(args: argparse.Namespace) -> int:
    from engine.verify import report

    return report(args.folder, console)


def simulate(args: argparse.Namespace) -> int:
    from engine.contest import Race, result

    profile = read_profile(args.profile) if args.profile else None
    assert profile is not None
    console.print(result(Race("predictor", args.load, args.seed, args.requests), profile))
    return 0


def read_profile(path: Path) -> Profile:
    """What `calibrate` wrote. Raises OSError and ValueError."""
    try:
        return Profile.from_dict(json.loads(path.read_text()))
    except ValueError as error:
        raise ValueError(f"{path}: expected a profile that calibrate wrote ({error})") from error


def bench(args: argparse.Namespace) -> int:
    from engine.bench import run

    with started(args) as runtime:
        rows = run(runtime, args.streams, args.rounds, console)
        if args.json:
            write_json(args.json, {**describe(runtime.device, args.argv), "rows": [asdict(row) for row in rows]})
    return 0


def determinism(args: argparse.Namespace) -> int:
    from engine import bench, determinism
    from engine import device as devices
    from engine.executor import load

    model, _, limits = load(runtime_config(args))
    rows = determinism.compare(model, limits, bench.SENTENCES, args.shapes)
    if args.json:
        device = devices.name(model.device)
        write_json(args.json, {**describe(device, args.argv), "rows": [asdict(row) for row in rows]})
    table = Table("shape", "requests", "equal to shape 1", "largest margin where they part")
    for row in rows:
        margin = "-" if row.largest_margin is None else f"{row.largest_margin:.1e}"
        table.add_row(str(row.shape), str(row.requests), f"{row.equal_share:.0%}", margin)
    console.print(table)
    return 0 if all(row.ok for row in rows) else 1


def calibrate(args: argparse.Namespace) -> int:
    from engine import device as devices
    from engine.calibrate import calibrate
    from engine.executor import load

    model, executor, limits = load(runtime_config(args))
    profile = calibrate(model, executor, limits, args.runs, console)
    write_json(args.json, {**profile, **describe(devices.name(model.device), args.argv)})
    return 0


SAMPLING: dict[str, tuple[Callable[[str], float], str]] = {
    "seed": (int, "the same seed gives the same codes, and audio within one step of 16 bits; default 42"),
    "temperature": (float, "0 is greedy"),
    "depth_temperature": (float, "of codes 1 to 15"),
    "top_k": (int, "0 is off"),
    "depth_top_k": (int, "of codes 1 to 15"),
    "top_p": (float, "1 is off"),
    "depth_top_p": (float, "of codes 1 to 15"),
    "repetition_penalty": (float, "1 is off"),
    "cfg_scale": (float, "guidance; 1 is off"),
    "min_frames": (int, "speech does not end before"),
    "max_frames": (positive, "of 80 ms each, with most voices"),
}
"""Options of `say` that replace the voice's own SamplingParams."""


Others = Mapping[str, str]
"""Commands that somebody else runs, such as `bench browser`, and what they are for: listed here, not run."""


def parser(program: str, others: Others) -> argparse.ArgumentParser:
    """The command line. Unknown options are errors."""
    top = argparse.ArgumentParser(prog=program, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"{program} {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    kinds = add_engine_commands(commands)
    for name, text in others.items():
        *group, last = name.split()
        (kinds if group else commands).add_parser(last, help=text)
    return top


def add_engine_commands(commands: Commands) -> Commands:
    """Every command of this file; returns the kinds of `bench`."""
    p = commands.add_parser("say", help="speak a text into a WAV file", allow_abbrev=False)
    p.set_defaults(run=say)
    p.add_argument("text")
    p.add_argument("-o", "--output", required=True, metavar="FILE", help="WAV file, or - for standard output")
    p.add_argument("--stats", action="store_true", help="print TTFA, RTF and stage times")
    p.add_argument("--speaker", default="S0")
    p.add_argument("--instruction", default="", help="how to speak, where the voice understands instructions")
    for name, (kind, text) in SAMPLING.items():
        p.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    add_voice_options(p)

    p = commands.add_parser("verify", help="compare a checkpoint with its expected tensors", allow_abbrev=False)
    p.set_defaults(run=verify)
    p.add_argument("folder", type=Path, help="holds checkpoint/ and expected_*.safetensors")

    p = commands.add_parser("simulate", help="the scheduler on a fake clock", allow_abbrev=False)
    p.set_defaults(run=simulate)
    p.add_argument("--requests", type=positive, default=300)
    p.add_argument("--load", type=positive_number, default=1.0, metavar="X", help="mean number of streams at once")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--profile", type=Path, metavar="FILE", help="the device that calibrate measured")
    p.add_argument("--json", metavar="FILE")

    p = commands.add_parser("bench", help="measure the real engine", allow_abbrev=False)
    kinds = p.add_subparsers(required=True, metavar="WHAT")
    p = kinds.add_parser("speech", help="TTFA, RTF and gaps by number of streams", allow_abbrev=False)
    p.set_defaults(run=bench)
    p.add_argument("--streams", type=positive, nargs="+", default=[1, 2])
    p.add_argument("--rounds", type=positive, default=10, help="utterances a stream")
    p.add_argument("--json", metavar="FILE")
    add_voice_options(p)

    p = kinds.add_parser("determinism", help="codes by the shape of the batch", allow_abbrev=False)
    p.set_defaults(run=determinism)
    p.add_argument("--shapes", type=positive, nargs="+", default=[2, 4, 8])
    p.add_argument("--json", metavar="FILE")
    add_voice_options(p)

    p = commands.add_parser("calibrate", help="measure stage costs for the Predictor", allow_abbrev=False)
    p.set_defaults(run=calibrate)
    p.add_argument("-o", "--output", dest="json", required=True, metavar="FILE")
    p.add_argument("--runs", type=positive, default=5, help="utterances a batch size")
    add_voice_options(p)
    return kinds


def main(
    argv: Sequence[str] | None = None, program: str = "python -m engine", others: Others = MappingProxyType({})
) -> int:
    """Runs one command. A user's mistake is one line on standard error and exit status 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser(program, others).parse_args(argv, argparse.Namespace(argv=argv))
    try:
        if getattr(args, "json", None):
            check_writable(args.json)
        return int(args.run(args))
    except OSError as error:
        problem = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    except (ValueError, RuntimeError) as error:  # RequestError and CheckpointError; EngineError and the device's errors
        problem = str(error)
    except KeyboardInterrupt:
        problem = "interrupted"
    print(f"{program}: {problem}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
