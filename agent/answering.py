"""Who answers in every call and how callers are heard, as the command line says it. It knows no call."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from agent import vad
from agent.brain import APOLOGY, BoundedBrain, BrainConfig, make_brain
from agent.transcribe import BoundedTranscriber, TranscriberConfig, make_transcriber
from agent.trouble import SettingsError
from agent.turn import Settings
from agent.turn_end import SentenceEnd, TurnEnd

NONE, OFF = "none", "off"
BRAINS = ("echo", "script", "openai", NONE)
TRANSCRIBERS = (NONE, "openai", "faster-whisper")
SILENCE, WORDS = "silence", "words"


@dataclass(frozen=True, slots=True)
class Answering:
    """Who answers in every call, and how the callers are heard."""

    brain: BoundedBrain
    transcriber: BoundedTranscriber
    vad: str | None = field(default_factory=vad.usual)
    """None: nobody listens, turns are typed."""
    turns: Settings = field(default_factory=Settings)
    interruptible: bool = True
    turn_end: TurnEnd | None = None
    """Makes each call's model of when a turn is over; None: after a silence."""
    backchannels: Collection[str] = ()
    """Words and phrases that do not interrupt the agent, beside those of words.py."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of `serve`."""
    add = parser.add_argument_group(
        "conversation", "who answers what callers say or type; keys are read from the environment or a file"
    ).add_argument
    add("--brain", choices=BRAINS, default="echo", help="who answers; none: only what is asked for is spoken (echo)")
    add("--script", type=Path, metavar="FILE", help="YAML of replies, for --brain script")
    add("--llm-url", default="", metavar="URL", help="of an OpenAI-compatible server, such as http://localhost:8000/v1")
    add("--llm-model", default="", metavar="NAME")
    add("--llm-key-env", metavar="NAME", help="the environment variable with that server's key")
    add("--llm-key-file", type=Path, metavar="FILE")
    add("--system", metavar="TEXT", help="the model's instructions")
    add("--greeting", default="", metavar="TEXT", help="what the agent says first")
    text = "what it says where its reply cannot be had; empty for silence (default: %(default)s)"
    add("--apology", default=APOLOGY, metavar="TEXT", help=text)
    add("--transcriber", choices=TRANSCRIBERS, default=NONE, help="who tells what was said (default: %(default)s)")
    add("--stt-url", default="", metavar="URL", help="of an OpenAI-compatible server that transcribes")
    add("--stt-model", default="", metavar="NAME", help="its model; of faster-whisper a name or a folder")
    add("--stt-key-env", metavar="NAME")
    add("--stt-key-file", type=Path, metavar="FILE")
    add("--language", default="", metavar="CODE", help="of what is said, such as en: transcribing takes less time then")
    usual = vad.usual()
    add("--vad", choices=(*vad.VADS, OFF), default=usual, help="who notices speech; off: nobody (default: %(default)s)")
    add(
        "--turn-end",
        choices=(SILENCE, WORDS),
        default=SILENCE,
        help="when a turn is over: after a silence, or sooner behind a complete sentence and later behind an open one, "
        "which takes a transcriber (default: %(default)s)",
    )
    add("--uninterruptible", action="store_true", help="what the agent says is said to its end")


def answering(args: argparse.Namespace) -> Answering | None:
    """What the options ask for; None where nobody answers. Raises SettingsError, ValueError and ImportError."""
    if args.brain == NONE:
        return None
    system = {} if args.system is None else {"system": args.system}
    brain = BrainConfig(
        args.brain,
        greeting=args.greeting,
        apology=args.apology,
        script=args.script,
        url=args.llm_url,
        model=args.llm_model,
        key_env=args.llm_key_env,
        key_file=args.llm_key_file,
        **system,
    )
    transcriber = TranscriberConfig(
        args.transcriber,
        url=args.stt_url,
        model=args.stt_model,
        key_env=args.stt_key_env,
        key_file=args.stt_key_file,
        language=args.language,
    )
    heard_by = None if args.vad == OFF else args.vad
    if heard_by:
        vad.check(heard_by)
    turn_end = SentenceEnd if args.turn_end == WORDS else None
    check_turn_end(turn_end, words=transcriber.kind != NONE, listens=heard_by is not None)
    made = make_brain(brain), make_transcriber(transcriber)
    return Answering(*made, heard_by, interruptible=not args.uninterruptible, turn_end=turn_end)


def check_turn_end(turn_end: TurnEnd | None, words: bool, listens: bool) -> None:
    """Raises SettingsError for a model of when a turn is over that has nothing to go by."""
    if turn_end is not None and not listens:
        raise SettingsError("nobody listens, so no turn's end can be judged: name a VAD, or leave the turn end out")
    if turn_end is SentenceEnd and not words:
        raise SettingsError("a turn's end cannot be told by its words without a transcriber: name one, or use silence")
