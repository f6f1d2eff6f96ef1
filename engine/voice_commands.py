"""The command `voice`: adds, lists and removes voices with a name. It does not know how they are spoken with."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from engine.checks import RequestError
from engine.command import add_voice_options, command, console, runtime_config, started
from engine.reference import MAX_BYTES, check_transcript
from engine.voice_folder import Card, NamedVoice, VoiceFolder, check_name

if TYPE_CHECKING:
    from engine.command import Commands

SHOWN = 40
"""Characters of a transcript in the list."""


def add_voice_commands(commands: Commands) -> None:
    """`voice` and what it does."""
    parser = commands.add_parser("voice", help="voices with a name: add, list, remove", allow_abbrev=False)
    kinds = parser.add_subparsers(required=True, metavar="WHAT")
    p = command(kinds, "add", add, "make a recording a voice with a name")
    p.add_argument("name", help="of a-z, 0-9 and -")
    p.add_argument("--audio", type=Path, required=True, metavar="FILE", help="1 to 30 seconds of one person's speech")
    p.add_argument("--text", required=True, help="what is said in it, word by word")
    p.add_argument("--consent", required=True, help="whose voice it is, and how that person agreed")
    p.add_argument("--licence", required=True, help="under which others may speak with it")
    add_folder_option(p, required=True)
    add_voice_options(p)
    add_folder_option(command(kinds, "list", list_, "those that are there"), required=True)
    p = command(kinds, "remove", remove, "delete one")
    p.add_argument("name")
    add_folder_option(p, required=True)


def add_folder_option(parser: argparse.ArgumentParser, required: bool = False) -> None:
    """Where voices with a name are."""
    parser.add_argument("--voices", type=Path, required=required, metavar="FOLDER", help="of voices with a name")


def read_recording(path: Path) -> bytes:
    """A file of the user's own. Raises OSError, and RequestError for one that is too large."""
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise RequestError(f"{path} must have at most {MAX_BYTES >> 20} MiB; send less of it")
    return data


def add(args: argparse.Namespace) -> int:
    check_name(args.name)
    check_transcript(args.text)
    folder, data = VoiceFolder(args.voices), read_recording(args.audio)
    if args.name in folder.names():
        raise ValueError(f"{args.name} is there already: choose another name, or remove it first")
    card = Card(args.consent, args.licence, "unknown", "unknown")  # what is missing is told before anything is loaded
    with started(runtime_config(args)) as runtime:
        spec = runtime.spec
        card = Card(card.consent, card.licence, spec.name, spec.licence)
        voice = NamedVoice(args.name, runtime.clone(data, args.text), card, spec.frame_seconds)
    folder.write(voice)
    console.print(f"{voice.name}: {voice.seconds:.1f} s, {len(voice.reference.frames)} frames", highlight=False)
    console.print(f"to be spoken with by {spec.name}, whose licence is: {spec.licence}", highlight=False)
    return 0


def list_(args: argparse.Namespace) -> int:
    table = Table("name", "seconds", "says", "licence", "consent", "model", "its licence")
    if not args.voices.is_dir():
        raise FileNotFoundError(f"{args.voices}: expected a folder of voices, found none; voice add makes one")
    folder, damaged = VoiceFolder(args.voices), []
    for name in folder.names():
        try:
            table.add_row(*row(folder.read(name)))
        except RequestError as error:
            damaged.append(str(error))
    Console().print(table)
    for problem in damaged:
        console.print(problem, highlight=False)
    return 2 if damaged else 0


def row(voice: NamedVoice) -> tuple[str, ...]:
    """Of the list."""
    text, card = voice.reference.text, voice.card
    said = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
    return voice.name, f"{voice.seconds:.1f}", said, card.licence, card.consent, card.model, card.model_licence


def remove(args: argparse.Namespace) -> int:
    VoiceFolder(args.voices).remove(args.name)
    return 0
