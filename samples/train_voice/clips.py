"""Clips of speech on disk and on the device. It does not know who spoke or what is learned from them.

A shard is an .npz: `pcm` int16, all clips one after the other, each a whole number of frames; `frames`, `held` and
`seconds` a clip; `texts` and `phonemes`, a line a clip.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Clip:
    """What was said, its sound as phonemes, and the sound: whole frames of samples, int16."""

    text: str
    phonemes: str
    pcm: NDArray[np.int16]
    frames: int
    held: bool
    """Whether nothing may be trained on it."""


def write_shard(file: Path, clips: Sequence[Clip]) -> None:
    """Whole or not at all."""
    aside = file.with_suffix(".part.npz")
    np.savez(
        aside,
        pcm=np.concatenate([clip.pcm for clip in clips]),
        frames=np.array([clip.frames for clip in clips], np.int32),
        held=np.array([clip.held for clip in clips]),
        texts=np.array("\n".join(clip.text for clip in clips)),
        phonemes=np.array("\n".join(clip.phonemes for clip in clips)),
    )
    aside.rename(file)


def read_shard(file: Path, samples_per_frame: int) -> Iterator[Clip]:
    with np.load(file) as shard:
        pcm, frames, held = shard["pcm"], shard["frames"], shard["held"]
        lines = zip(str(shard["texts"]).split("\n"), str(shard["phonemes"]).split("\n"), strict=True)
    ends = np.cumsum(frames, dtype=np.int64) * samples_per_frame
    for (text, phonemes), end, count, kept in zip(lines, ends, frames, held, strict=True):
        yield Clip(text, phonemes, pcm[end - count * samples_per_frame : end], int(count), bool(kept))


def shard_files(folder: Path) -> list[Path]:
    """Finished ones. Raises FileNotFoundError if there is none."""
    files = sorted(file for file in folder.glob("*.npz") if not file.name.endswith(".part.npz"))
    if not files:
        raise FileNotFoundError(f"{folder}: expected shards of clips, found none; run prepare.py first")
    return files


def read_clips(folder: Path, samples_per_frame: int) -> Iterator[Clip]:
    """All clips of a folder's shards."""
    for file in shard_files(folder):
        yield from read_shard(file, samples_per_frame)


@dataclass(slots=True)
class Pool:
    """Clips one after the other on the device: pcm [N * samples_per_frame] int16; codes [N, K] int16, if any;
    starts [clips] int64, each clip's first frame."""

    pcm: Tensor
    starts: Tensor
    samples_per_frame: int
    codes: Tensor | None = None

    @classmethod
    def of(cls, clips: Sequence[Clip], samples_per_frame: int, device: torch.device) -> Pool:
        pcm = torch.from_numpy(np.concatenate([clip.pcm for clip in clips])).to(device)
        frames = torch.tensor([clip.frames for clip in clips])
        return cls(pcm, (frames.cumsum(0) - frames).to(device), samples_per_frame)

    @property
    def frames(self) -> int:
        return len(self.pcm) // self.samples_per_frame

    def anywhere(self, batch: int, length: int, chance: torch.Generator) -> Tensor:
        """Random first frames [batch] of stretches of `length` frames, across clips too."""
        return torch.randint(self.frames - length + 1, (batch,), generator=chance, device=self.pcm.device)

    def beginnings(self, batch: int, length: int, chance: torch.Generator) -> Tensor:
        """First frames of random clips."""
        chosen = torch.randint(len(self.starts), (batch,), generator=chance, device=self.pcm.device)
        return self.starts[chosen].clamp(max=self.frames - length)

    def samples(self, first: Tensor, length: int) -> Tensor:
        """first [B] -> [B, length * samples_per_frame] float32."""
        size = self.samples_per_frame
        places = first[:, None] * size + torch.arange(length * size, device=first.device)
        return self.pcm[places].float() / 32768

    def coded(self, first: Tensor, length: int) -> Tensor:
        """first [B] -> codes [B, K, length] int64."""
        assert self.codes is not None, "the pool was not encoded"
        places = first[:, None] + torch.arange(length, device=first.device)
        return self.codes[places].long().transpose(1, 2)


def batches(clips: Sequence[Clip], size: int) -> Iterator[tuple[list[int], Tensor]]:
    """Clips of about equal length together: their indexes, and samples [n, longest] float32 with silence behind."""
    order = sorted(range(len(clips)), key=lambda index: clips[index].frames)
    for begin in range(0, len(order), size):
        indexes = order[begin : begin + size]
        longest = max(len(clips[index].pcm) for index in indexes)
        samples = torch.zeros(len(indexes), longest)
        for row, index in enumerate(indexes):
            samples[row, : len(clips[index].pcm)] = torch.from_numpy(clips[index].pcm).float() / 32768
        yield indexes, samples
