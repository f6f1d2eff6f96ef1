"""Turns the teacher's clips into codes, by the trained encoder and codebooks. It does not know what learns from them.

python tokenise.py config.toml
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from clips import Clip, batches, read_shard, shard_files
from encoder import Encoder
from numpy.typing import NDArray
from recipe import Recipe
from rich.progress import track
from train_codec import encode, encoder_file, load_decoder, new_encoder

from engine.codec import CodecDecoder
from engine.device import choose


@dataclass(frozen=True, slots=True)
class Utterance:
    """A text, its phonemes, and the codes of its sound, [frames, K] int16."""

    text: str
    phonemes: str
    codes: NDArray[np.int16]


def tokenised(clips: list[Clip], encoder: Encoder, decoder: CodecDecoder, device: torch.device) -> list[Utterance]:
    """In the clips' order. Behind a clip there is silence, as behind an utterance."""
    utterances: list[Utterance | None] = [None] * len(clips)
    for indexes, samples in batches(clips, 32):
        codes = encode(encoder, decoder, samples.to(device)).codes.transpose(1, 2).to(torch.int16).cpu().numpy()
        for row, index in enumerate(indexes):
            clip = clips[index]
            utterances[index] = Utterance(clip.text, clip.phonemes, codes[row, : clip.frames].copy())
    return [utterance for utterance in utterances if utterance]


def write(file: Path, utterances: list[Utterance]) -> None:
    """Whole or not at all."""
    aside = file.with_suffix(".part.npz")
    np.savez_compressed(
        aside,
        codes=np.concatenate([utterance.codes for utterance in utterances]),
        frames=np.array([len(utterance.codes) for utterance in utterances], np.int32),
        texts=np.array("\n".join(utterance.text for utterance in utterances)),
        phonemes=np.array("\n".join(utterance.phonemes for utterance in utterances)),
    )
    aside.rename(file)


def read(folder: Path) -> Iterator[Utterance]:
    """Everything that was tokenised."""
    for file in shard_files(folder):
        with np.load(file) as shard:
            codes = np.split(shard["codes"], np.cumsum(shard["frames"])[:-1])
            texts, phonemes = (str(shard[name]).split("\n") for name in ("texts", "phonemes"))
        for parts in zip(texts, phonemes, codes, strict=True):
            yield Utterance(*parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    recipe = Recipe.read(parser.parse_args().config)
    device = choose(recipe.device)
    if not encoder_file(recipe).exists():
        raise FileNotFoundError(
            f"{encoder_file(recipe)}: expected the trained encoder, found none; run train_codec.py a"
        )
    encoder, decoder = new_encoder(recipe, device).eval(), load_decoder(recipe, device)
    recipe.codes.mkdir(parents=True, exist_ok=True)
    for file in track(shard_files(recipe.clips), description="tokenise"):
        target = recipe.codes / file.name
        if target.exists():  # an earlier start's
            continue
        clips = [clip for clip in read_shard(file, recipe.codec_config.samples_per_frame) if not clip.held]
        if clips:
            write(target, tokenised(clips, encoder, decoder, device))
    print(f"{len(list(recipe.codes.glob('*.npz')))} shards of codes in {recipe.codes}")


if __name__ == "__main__":
    main()
