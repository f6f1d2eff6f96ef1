"""What the commands share: the options that choose a voice, and the engine that they start."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from engine import profiles
from engine.core import SPEAKING
from engine.dimensions import DIMENSIONS
from engine.messages import EMBEDDED_VOICE, RuntimeConfig
from engine.options import positive
from engine.runtime import Runtime

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

console = Console(stderr=True)


def command(
    commands: Commands, name: str, run: Callable[[argparse.Namespace], int], text: str, description: str | None = None
) -> argparse.ArgumentParser:
    """One command, which `run` carries out."""
    p = commands.add_parser(name, help=text, description=description, allow_abbrev=False)
    p.set_defaults(run=run)
    return p


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
    add(
        "--slots",
        type=positive,
        metavar="N",
        help="requests at once; with guidance, one is two (default: 8, CUDA 256)",
    )
    add("--threads", type=positive, metavar="N", help="CPU threads of one operation (default: 1)")
    add(
        "--in-process",
        action="store_true",
        help="the engine in a thread of this process: for debuggers; media then shares its interpreter",
    )
    add("--profile", metavar="NAME|FILE", help="what steps cost, by calibrate (default: for this voice and device)")
    add("--eager", action="store_true", help="on CUDA, run every operation by itself: starts at once, and is slow")
    names = ", ".join(DIMENSIONS)
    add("--random-weights", metavar="MODEL", help=f"instead of a voice, noise at a model's size: {names}")
    add(
        "--normalise",
        choices=("on", "off"),
        help="write numbers, dates, symbols and markup out as words before they are read (default: as the voice says)",
    )
    add("--explain", action="store_true", help="print a line for each decision of the scheduler on standard error")


def runtime_config(args: argparse.Namespace) -> RuntimeConfig:
    """What add_voice_options understood. Raises FileNotFoundError."""
    return RuntimeConfig(
        args.voice,
        args.device,
        args.dtype,
        args.in_process,
        slots=args.slots,
        threads=args.threads,
        random_weights=args.random_weights,
        graphs=frozenset() if args.eager else frozenset(SPEAKING),
        profile=profiles.find(args.profile) if args.profile else None,
        explain=args.explain,
        normalise=None if args.normalise is None else args.normalise == "on",
    )


def started(config: RuntimeConfig) -> Runtime:
    """The engine, loaded while a spinner turns. Raises EngineError."""
    with console.status(f"loading the voice {config.random_weights or config.voice.name}"):
        return Runtime.start(config)
