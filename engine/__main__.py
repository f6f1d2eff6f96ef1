"""The engine's commands: say, voice, verify, simulate, bench, calibrate. They need no WebRTC package."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from engine import __version__, profiles
from engine.bench_commands import add_bench_commands
from engine.command import add_voice_options, command, console, runtime_config, started
from engine.core import Reference, Request, SamplingParams
from engine.machine import check_writable, describe, write_json
from engine.options import number, positive, positive_number, ppm, seed, setting, share, whole
from engine.policies import NAMES as POLICIES
from engine.profile import Profile
from engine.reference import check_cloning, check_transcript
from engine.voice_commands import add_folder_option, add_voice_commands, read_recording
from engine.voice_folder import VoiceFolder

if TYPE_CHECKING:
    from engine.command import Commands
    from engine.contest import Race
    from engine.runtime import Runtime

REQUESTS, SWEEP_SEEDS = 300, 20
"""Of `simulate`, unless it is told otherwise."""
HUNG_UP = 141
"""Exit status when nobody reads standard output any more: that of a program that SIGPIPE ends."""
OVERHEAD_RUNS = 20
"""Of `calibrate`, at most: each takes about a second."""


def say(args: argparse.Namespace) -> int:
    from engine.say import check_output, print_stats, say

    check_output(args.output)
    check_reference_options(args)
    recording = read_recording(args.ref_audio) if args.ref_audio else b""
    with started(runtime_config(args)) as runtime:
        settings = sampling(args, runtime.spec.sampling)
        voice = reference(args, runtime, recording)
        request = Request(args.text, settings, args.speaker, args.instruction, voice, language=args.language)
        stats = say(runtime, request, args.output, console)
        if args.stats:
            print_stats(stats, console)
    return 0


def sampling(args: argparse.Namespace, own: SamplingParams) -> SamplingParams:
    """The voice's own settings with those that were given. Its minimum length yields to a shorter maximum."""
    given = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    least = min(own.min_frames, given.get("max_frames", own.max_frames))
    return replace(own, **{"min_frames": least} | given)


def check_reference_options(args: argparse.Namespace) -> None:
    """Raises ValueError for options that go with others only."""
    if args.ref_audio and args.ref_voice:
        raise ValueError("--ref-audio and --ref-voice are two voices: give one")
    if bool(args.ref_audio) != (args.ref_text is not None):
        raise ValueError("--ref-audio needs --ref-text, which is what the recording says, and the other way round")
    if bool(args.ref_voice) != bool(args.voices):
        raise ValueError("--ref-voice needs --voices, the folder that it is in, and the other way round")
    if args.ref_text is not None:
        check_transcript(args.ref_text)


def reference(args: argparse.Namespace, runtime: Runtime, recording: bytes) -> Reference | None:
    """Whom to speak like, if anybody. Raises RequestError and CloneFailed."""
    if args.ref_audio:
        return runtime.clone(recording, args.ref_text)
    if not args.ref_voice:
        return None
    check_cloning(runtime.spec)
    voice = VoiceFolder(args.voices).read(args.ref_voice)
    voice.check(runtime.spec)
    return voice.reference


def verify(args: argparse.Namespace) -> int:
    from engine.verify import report

    return report(args.folder, console)


def simulate(args: argparse.Namespace) -> int:
    from engine import simulate as command

    check_simulate_options(args)
    if args.plot:
        command.check_plots(args.plot)
        check_writable(str(args.plot))
    path = profiles.find(args.profile)
    profile = replace(profiles.read(path), name=path.stem)
    if args.store:
        check_writable(str(path))
    seeds = range(args.seed, args.seed + (args.seeds or (SWEEP_SEEDS if args.sweep else 1)))
    asked = command.Asked(profile, base_race(args, profile), tuple(args.policy or ()), seeds, args.plot)
    if args.sweep:
        data = command.sweep(asked, console)
    else:
        data = command.compare(asked, console, print if args.explain else None)
    if args.store:
        profiles.store_load(path, data["load"], data["rated_load"])
    if args.json:
        write_json(args.json, {**data, **describe("simulated", args.argv)})
    return 0


def check_simulate_options(args: argparse.Namespace) -> None:
    """Raises ValueError for options that contradict each other."""
    given = {name for name in ("load", "trace", "requests", "burst", "text_rate") if getattr(args, name) is not None}
    if args.sweep and given & {"load", "trace"}:
        raise ValueError("--sweep tries all loads: leave out --load and --trace")
    if args.trace and len(given) > 1:
        raise ValueError("--trace says who comes when: leave out --load, --requests, --burst and --text-rate")
    if args.explain and (args.sweep or len(args.policy or ()) != 1 or (args.seeds or 1) > 1):
        raise ValueError("--explain tells about one run: give one --policy, and neither --seeds nor --sweep")
    if args.explain and args.json == "-":
        raise ValueError("--explain writes to standard output: give --json a file")
    if args.store and not args.sweep:
        raise ValueError("--store keeps the load that --sweep finds: give both")
    if args.store and (others := [name for name, usual in defined(args).items() if not usual]):
        what = f"{REQUESTS} requests, {SWEEP_SEEDS} seeds, callers who come one by one and listen to the end"
        raise ValueError(f"--store keeps a load that is defined by {what}: leave out {', '.join(others)}")


def defined(args: argparse.Namespace) -> dict[str, bool]:
    """Whether each of the options agrees with the definition of the load that a profile holds."""
    return {
        "--requests": args.requests in (None, REQUESTS),
        "--seeds": args.seeds in (None, SWEEP_SEEDS),
        "--burst": args.burst in (None, 1),
        "--stalls": not args.stalls,
        "--barge-ins": not args.barge_ins,
        "--drift": not args.drift,
        "--text-rate": args.text_rate is None,
    }


def base_race(args: argparse.Namespace, profile: Profile) -> Race:
    """What all runs have in common. Raises OSError and ValueError."""
    from engine.contest import Race
    from engine.traffic import SPEC, Moods, read_trace

    moods = Moods(args.drift, args.stalls, args.barge_ins)
    if args.trace:
        trace = tuple(read_trace(args.trace, SPEC))
        if not trace:
            raise ValueError(f"{args.trace}: expected at least one utterance, got none")
        return Race(seed=args.seed, requests=len(trace), moods=moods, trace=trace)
    load = args.load or profile.load
    if load is None and not args.sweep:
        raise ValueError(f"profile {profile.name!r} holds no load: give --load, or have --sweep --store find one")
    requests, burst = args.requests or REQUESTS, args.burst or 1
    race = Race(load=load, seed=args.seed, requests=requests, burst=burst, moods=moods)
    return replace(race, tokens_per_char=profile.tokens_per_char, text_rate=args.text_rate)


def calibrate(args: argparse.Namespace) -> int:
    if args.estimate:
        from engine import estimate

        write_json(args.json, estimate.profile().to_dict())
        return 0
    from engine import overhead
    from engine.calibrate import calibrate
    from engine.executor import load

    profile = calibrate(*load(runtime_config(args)), args.runs, console)
    with started(runtime_config(args)) as runtime:
        profile = replace(profile, overhead=overhead.measure(runtime, min(args.runs, OVERHEAD_RUNS), console))
    write_json(args.json, {**describe(runtime.device, args.argv), **profile.to_dict()})
    if args.json != "-":
        console.print(f"to use it, give serve, say, simulate or bench: --profile {args.json}", highlight=False)
    return 0


def add_simulate_options(parser: argparse.ArgumentParser) -> None:
    """Of `simulate`."""
    add = parser.add_argument
    add("--requests", type=positive, metavar="N", help=f"of each run (default: {REQUESTS})")
    add("--load", type=positive_number, metavar="X", help="mean number of streams at once (default: the profile's own)")
    add("--seed", type=seed, default=0, metavar="N", help="of the callers and the device (default: %(default)s)")
    add(
        "--seeds",
        type=positive,
        metavar="N",
        help=f"runs, with seeds from --seed on (default: 1, sweeps {SWEEP_SEEDS})",
    )
    add("--profile", default=profiles.MEASURED, metavar="NAME|FILE", help="what steps cost (default: %(default)s)")
    add("--policy", nargs="+", choices=POLICIES, metavar="NAME", help=f"out of {', '.join(POLICIES)} (default: all)")
    add("--burst", type=positive, metavar="N", help="callers who come at once (default: 1)")
    add("--trace", type=Path, metavar="FILE", help="who calls when, in JSON lines, instead of random callers")
    add("--stalls", type=share, default=0.0, metavar="SHARE", help="of the listeners' playback that stalls once")
    add("--barge-ins", type=share, default=0.0, metavar="SHARE", help="of the listeners who interrupt")
    add("--drift", type=ppm, default=0.0, metavar="PPM", help="listeners' clocks are off by at most this")
    add("--text-rate", type=positive_number, metavar="X", help="words a second in which the texts are still written")
    add("--sweep", action="store_true", help="find each policy's capacity, and the load of the comparison")
    add("--store", action="store_true", help="with --sweep: keep that load in the profile's file")
    add("--json", metavar="FILE", help="write all figures there; - is standard output")
    add("--plot", type=Path, metavar="FILE", help="PNG file: lanes of one run, or with --sweep curves over load")
    add("--explain", action="store_true", help="print a line for each decision, of one policy in one run")


SAMPLING: dict[str, tuple[Callable[[str], float], str]] = {
    "seed": (seed, "the same seed gives the same codes, and audio within one step of 16 bits; default 42"),
    "temperature": (number, "0 is greedy"),
    "depth_temperature": (number, "of codes 1 to 15"),
    "top_k": (whole, "0 is off"),
    "depth_top_k": (whole, "of codes 1 to 15"),
    "top_p": (number, "1 is off"),
    "depth_top_p": (number, "of codes 1 to 15"),
    "repetition_penalty": (number, "1 is off"),
    "cfg_scale": (number, "guidance; 1 is off"),
    "min_frames": (whole, "speech does not end before"),
    "max_frames": (positive, "of 80 ms each, with most voices"),
}
"""Options of `say` that replace the voice's own SamplingParams."""


Others = Mapping[str, str]
"""Commands that somebody else runs, such as `bench browser`, and what they are for: listed here, not run."""


def parser(program: str, others: Others) -> argparse.ArgumentParser:
    """The command line. Unknown options are errors."""
    first = "`serve`, and open the address that it prints; or" if "serve" in others else ""
    how = (
        f"Streaming text to speech. First {first} `say`. Then `simulate` and `bench` compare and measure; `calibrate` "
    )
    how += "tells the engine what steps cost on this machine."
    top = argparse.ArgumentParser(prog=program, allow_abbrev=False, description=" ".join(how.split()))
    top.add_argument("--version", action="version", version=f"{program} {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    kinds = add_engine_commands(commands)
    for name, text in others.items():
        *group, last = name.split()
        (kinds if group else commands).add_parser(last, help=text)
    return top


def add_engine_commands(commands: Commands) -> Commands:
    """Every command of this file; returns the kinds of `bench`."""
    add_say_options(command(commands, "say", say, "speak a text into a WAV file"))
    p = command(commands, "verify", verify, "compare a checkpoint with its expected tensors")
    p.add_argument("folder", type=Path, help="holds checkpoint/ and expected*.safetensors")
    add_simulate_options(command(commands, "simulate", simulate, "compare scheduling policies on a fake clock"))
    add_voice_commands(commands)
    kinds = add_bench_commands(commands.add_parser("bench", help="measure the real engine", allow_abbrev=False))
    p = command(commands, "calibrate", calibrate, "measure stage costs for the Predictor")
    p.add_argument("-o", "--output", dest="json", required=True, metavar="FILE", help="JSON file for --profile, or -")
    p.add_argument(
        "--runs",
        type=positive,
        default=60,
        metavar="N",
        help="rounds of one utterance; of n at once an n-th of them (default: %(default)s)",
    )
    p.add_argument("--estimate", action="store_true", help="measure nothing: write the synthetic profile h200-estimate")
    add_voice_options(p)
    return kinds


def add_say_options(p: argparse.ArgumentParser) -> None:
    """Of `say`."""
    p.add_argument("text", help="what is said")
    p.add_argument("-o", "--output", required=True, metavar="FILE", help="WAV file, or - for standard output")
    p.add_argument("--stats", action="store_true", help="print TTFA, RTF and stage times")
    p.add_argument(
        "--speaker",
        default="S0",
        help="who speaks, of a voice that knows several: a name, or S1 for its second (default: %(default)s)",
    )
    p.add_argument("--instruction", default="", help="how to speak, where the voice understands instructions")
    p.add_argument(
        "--ref-audio",
        type=Path,
        metavar="FILE",
        help="speak like this recording: 1 to 30 seconds as WAV, FLAC, Ogg, MP3 or M4A, where the voice clones",
    )
    p.add_argument("--ref-text", metavar="TEXT", help="what is said in it, word by word")
    p.add_argument("--ref-voice", metavar="NAME", help="speak like this one of --voices")
    add_folder_option(p)
    p.add_argument("--language", default="", help="of the text, where the voice knows several (default: it tells)")
    for name, (kind, text) in SAMPLING.items():
        p.add_argument(f"--{name.replace('_', '-')}", type=setting(name, kind), help=text)
    add_voice_options(p)


def main(
    argv: Sequence[str] | None = None, program: str = "python -m engine", others: Others = MappingProxyType({})
) -> int:
    """Runs one command. A user's mistake is one line on standard error and exit status 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser(program, others).parse_args(argv, argparse.Namespace(argv=argv))
    try:
        if getattr(args, "json", None) is not None:
            check_writable(args.json)
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads what is printed has enough, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return HUNG_UP
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
