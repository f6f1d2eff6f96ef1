"""Measures a voice on sentences it never saw: word errors, predicted opinion, length, repeats, early ends, speed.

It does not train. It compares with the teacher's own clips of the same sentences, and measures the codec alone, too:
the teacher's clip through encoder and decoder.

    python evaluate.py config.toml --voice FOLDER --of speech codec teacher --output result.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from clips import Clip, read_clips
from recipe import Recipe
from rich.progress import track
from scorers import JUDGES, READERS, Sound

from engine.core import Chunk, Failed, Finished, Request
from engine.messages import RuntimeConfig
from engine.runtime import Runtime

SHORT, LONG = 0.6, 1.6
"""Ratios of lengths, to the teacher's clip, below and above which something was left out or said twice."""
RUN = 3
"""Words in a row that were left out, or are said twice."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One utterance and what was found: words are normalised; errors counts words added, lost and changed."""

    text: str
    seconds: float
    length_ratio: float
    """To the teacher's clip."""
    rtf: float | None
    transcripts: dict[str, str]
    errors: dict[str, int]
    words: dict[str, int]
    opinions: dict[str, float]
    repeat: bool
    dropout: bool
    early_end: bool
    loudness: float
    """dB of full scale, of the samples above -50 dB."""


def normalised(text: str) -> list[str]:
    """Words as Whisper's authors compare them."""
    from whisper_normalizer.english import EnglishTextNormalizer  # type: ignore[import-not-found]

    words: list[str] = EnglishTextNormalizer()(text).split()
    return words


def aligned(wanted: Sequence[str], heard: Sequence[str]) -> Iterator[tuple[str | None, str | None]]:
    """Pairs of words, one None where there is no partner, with the fewest errors (Levenshtein)."""
    cost = np.zeros((len(wanted) + 1, len(heard) + 1), np.int64)
    cost[:, 0], cost[0] = np.arange(len(wanted) + 1), np.arange(len(heard) + 1)
    for i, word in enumerate(wanted, 1):
        for j, other in enumerate(heard, 1):
            cost[i, j] = min(cost[i - 1, j] + 1, cost[i, j - 1] + 1, cost[i - 1, j - 1] + (word != other))
    i, j, pairs = len(wanted), len(heard), list[tuple[str | None, str | None]]()
    while i or j:
        if i and j and cost[i, j] == cost[i - 1, j - 1] + (wanted[i - 1] != heard[j - 1]):
            i, j = i - 1, j - 1
            pairs.append((wanted[i], heard[j]))
        elif i and cost[i, j] == cost[i - 1, j] + 1:
            i -= 1
            pairs.append((wanted[i], None))
        else:
            j -= 1
            pairs.append((None, heard[j]))
    yield from reversed(pairs)


def longest_loss(pairs: Sequence[tuple[str | None, str | None]]) -> int:
    """The most wanted words in a row that were not heard."""
    longest = run = 0
    for wanted, heard in pairs:
        run = run + 1 if heard is None and wanted is not None else 0
        longest = max(longest, run)
    return longest


def repeats(wanted: Sequence[str], heard: Sequence[str]) -> bool:
    """Whether RUN words follow each other more often than they should."""

    def count(words: Sequence[str]) -> dict[tuple[str, ...], int]:
        counts: dict[tuple[str, ...], int] = {}
        for begin in range(len(words) - RUN + 1):
            key = tuple(words[begin : begin + RUN])
            counts[key] = counts.get(key, 0) + 1
        return counts

    due = count(wanted)
    return any(times > max(1, due.get(key, 0)) for key, times in count(heard).items())


def loudness(sound: Sound) -> float:
    audible = sound[np.abs(sound) > 10 ** (-50 / 20)]
    return float(20 * np.log10(np.sqrt(np.mean(np.square(audible))) + 1e-9)) if len(audible) else -90.0


class Listener:
    """All scorers that were asked for."""

    def __init__(self, names: Sequence[str], whisper_folder: str) -> None:
        if unknown := set(names) - READERS.keys() - JUDGES.keys():
            raise ValueError(f"scorers must be of {[*READERS, *JUDGES]}, got {sorted(unknown)}")
        self._readers = {name: READERS[name](whisper_folder) for name in READERS if name in names}
        self._judges = {name: JUDGES[name](whisper_folder) for name in JUDGES if name in names}

    def hear(self, text: str, sound: Sound, rate: int, teachers: float, rtf: float | None) -> Heard:
        """teachers: seconds of the teacher's clip."""
        transcripts = {name: read(sound) for name, read in self._readers.items()}
        wanted, errors, words = normalised(text) if transcripts else [], dict[str, int](), dict[str, int]()
        repeat, losses = bool(transcripts), [RUN]
        for name, transcript in transcripts.items():
            heard = normalised(transcript)
            pairs = list(aligned(wanted, heard))
            errors[name], words[name] = sum(a != b for a, b in pairs), len(wanted)
            repeat = repeat and repeats(wanted, heard)
            losses.append(longest_loss(pairs))
        ratio = len(sound) / rate / teachers
        lost = bool(transcripts) and min(losses[1:]) >= RUN  # every scorer missed them
        opinions = {name: judge(sound) for name, judge in self._judges.items()}
        return Heard(
            text, len(sound) / rate, ratio, rtf, transcripts, errors, words, opinions,
            repeat or (ratio > LONG and len(wanted) > 2), lost and ratio >= SHORT, ratio < SHORT, loudness(sound),
        )  # fmt: skip


def speak(runtime: Runtime, text: str, seed: int) -> tuple[Sound, float | None]:
    """What the voice says, and its real-time factor. Raises RuntimeError if it cannot."""
    parts, rtf = list[Sound](), None
    for output in runtime.stream(Request(text, replace(runtime.spec.sampling, seed=seed))):
        if isinstance(output, Failed):
            raise RuntimeError(output.message)
        if isinstance(output, Finished):
            rtf = output.stats.rtf
        elif isinstance(output, Chunk):
            parts.append(as_sound(output.pcm))
    return np.concatenate(parts), rtf


def as_sound(pcm: np.ndarray) -> Sound:
    """int16 or float32 samples as float32 in -1 to 1."""
    return (pcm / 32768).astype(np.float32) if pcm.dtype == np.int16 else pcm.astype(np.float32)


def summary(all_heard: Sequence[Heard]) -> dict[str, float]:
    """Shares and means of many utterances."""
    count = len(all_heard)
    told: dict[str, float] = {"utterances": count}
    for name in all_heard[0].errors:
        told[f"wer_{name}"] = sum(h.errors[name] for h in all_heard) / max(1, sum(h.words[name] for h in all_heard))
    for name in all_heard[0].opinions:
        values = [h.opinions[name] for h in all_heard]
        told |= {name: float(np.mean(values)), f"{name}_p10": float(np.percentile(values, 10))}
    told |= {what: sum(getattr(h, what) for h in all_heard) / count for what in ("repeat", "dropout", "early_end")}
    told["length_ratio"] = float(np.mean([h.length_ratio for h in all_heard]))
    told["loudness_spread_db"] = float(np.std([h.loudness for h in all_heard]))
    if rtfs := [h.rtf for h in all_heard if h.rtf is not None]:
        told["rtf"] = float(np.median(rtfs))
    return told


def held_out(recipe: Recipe, count: int) -> list[Clip]:
    """The teacher's clips of sentences that nothing was trained on."""
    clips = [clip for clip in read_clips(recipe.clips, recipe.codec_config.samples_per_frame) if clip.held]
    if not clips:
        raise ValueError(f"{recipe.clips}: expected held-out clips, found none; prepare more or hold out more")
    return clips[:count]


def spoken_by(
    kind: str, recipe: Recipe, voice: Path, opened: ExitStack
) -> Callable[[Clip, int], tuple[Sound, float | None]]:
    """Who speaks a clip's sentence: the voice, the teacher, or the teacher through the voice's codec."""
    if kind == "teacher":
        return lambda clip, _: (as_sound(clip.pcm), None)
    if kind == "codec":
        return through_codec(recipe, voice)
    runtime = opened.enter_context(Runtime.start(RuntimeConfig(voice=voice, device=recipe.device)))
    return lambda clip, seed: speak(runtime, clip.text, seed)


def through_codec(recipe: Recipe, voice: Path) -> Callable[[Clip, int], tuple[Sound, float | None]]:
    from train_codec import encode, new_encoder

    from engine.device import choose
    from engine.models.breeze_tts_2 import load

    device = choose(recipe.device)
    decoder = load(voice, device=device, dtype=torch.float32).codec
    encoder = new_encoder(recipe, device).eval()

    def again(clip: Clip, _: int) -> tuple[Sound, float | None]:
        samples = torch.from_numpy(as_sound(clip.pcm))[None].to(device)
        with torch.no_grad():
            return decoder(encode(encoder, decoder, samples).codes)[0].cpu().numpy(), None

    return again


def measured(
    kind: str, recipe: Recipe, voice: Path, listener: Listener, clips: Sequence[Clip]
) -> tuple[list[Heard], Sound]:
    """Every sentence, by every seed where that makes a difference; and how the first one sounds."""
    seeds, heard, first = recipe.evaluate["seeds"] if kind == "speech" else [0], [], np.zeros(0, np.float32)
    with ExitStack() as opened:
        speaker = spoken_by(kind, recipe, voice, opened)
        for seed, clip in track([(seed, clip) for seed in seeds for clip in clips], description=kind):
            sound, rtf = speaker(clip, seed)
            first = first if heard else sound
            heard.append(listener.hear(clip.text, sound, recipe.sample_rate, len(clip.pcm) / recipe.sample_rate, rtf))
    return heard, first


def plot(result: Mapping[str, Mapping[str, Any]], file: Path) -> None:
    """Bars of every figure, by who spoke. Does nothing where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    names = list(dict.fromkeys(name for kind in result.values() for name in kind["summary"] if name != "utterances"))
    figure = Figure(figsize=(12, 2 * -(-len(names) // 4)), layout="constrained")
    panels = figure.subplots(-(-len(names) // 4), 4, squeeze=False).flatten()
    for panel, name in zip(panels, names, strict=False):
        values = {kind: told["summary"][name] for kind, told in result.items() if name in told["summary"]}
        panel.barh(list(values), list(values.values()))
        panel.bar_label(panel.containers[0], fmt="%.3g", fontsize=8)
        panel.set_title(name, fontsize=9, loc="left")
    for panel in panels[len(names) :]:
        panel.set_visible(False)
    figure.savefig(file, dpi=120)


def draw(sounds: Mapping[str, Sound], rate: int, text: str, file: Path) -> None:
    """Spectrograms of one sentence below each other, by who spoke. Does nothing where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(11, 2.3 * len(sounds)), layout="constrained")
    longest = max(map(len, sounds.values())) / rate
    for panel, (kind, sound) in zip(figure.subplots(len(sounds), 1, squeeze=False)[:, 0], sounds.items(), strict=True):
        with np.errstate(divide="ignore"):  # where there is nothing at all
            panel.specgram(sound, NFFT=1024, Fs=rate, noverlap=768, cmap="magma", vmin=-120, vmax=-40)
        panel.set(xlim=(0, longest), ylim=(0, 8000), ylabel="Hz", facecolor="black")
        panel.set_title(f"{kind}: {text}", fontsize=9, loc="left")
    figure.savefig(file, dpi=72)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--voice", type=Path, required=True)
    parser.add_argument(
        "--of", nargs="+", choices=("speech", "codec", "teacher"), default=["speech", "codec", "teacher"]
    )
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    recipe = Recipe.read(given.config)
    listener = Listener(recipe.evaluate["scorers"], recipe.evaluate["whisper"])
    clips = held_out(recipe, recipe.evaluate["sentences"])
    result, firsts = dict[str, dict[str, Any]](), dict[str, Sound]()
    for kind in given.of:
        heard, firsts[kind] = measured(kind, recipe, given.voice, listener, clips)
        result[kind] = {"summary": summary(heard), "utterances": [asdict(h) for h in heard]}
        print(kind, json.dumps(result[kind]["summary"], indent=1))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    told = {"voice": str(given.voice), "date": time.strftime("%Y-%m-%d"), "config": dict(recipe.evaluate)}
    given.output.write_text(json.dumps(told | result, indent=1), encoding="utf-8")
    plot(result, given.output.with_suffix(".png"))
    draw(firsts, recipe.sample_rate, clips[0].text, given.output.with_name(f"{given.output.stem}-spectra.png"))


if __name__ == "__main__":
    main()
