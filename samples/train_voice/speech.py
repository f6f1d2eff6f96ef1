"""What the speech model learns from: packed batches of prompts and frames, and what it pays for them.

It does not know optimisers or time. Everything is computed by the engine's own model: its text encoder over packed
texts, its backbone over whole sequences, its depth decoder over whole frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.breeze_tts_2 import Breeze

UNSPOKEN = frozenset(" ˈˌ.,;:!?…—-\"“”()'|")
"""Stress and punctuation: no sounds of their own."""
ROUND = 16
"""Sequences are padded to a multiple of this."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt's ids, the ids of what is to be heard, and the codes, [frames, K]."""

    ids: tuple[int, ...]
    sounds: tuple[int, ...]
    codes: np.ndarray

    @property
    def positions(self) -> int:
        return len(self.ids) + len(self.codes)


@dataclass(frozen=True, slots=True)
class Batch:
    """Examples one after the other: ids [T], texts [B] and frames [B] their lengths; codes [N, K]; sounds [P] of
    `sounding` [B] each; longest text and sequence."""

    ids: Tensor
    texts: Tensor
    codes: Tensor
    frames: Tensor
    sounds: Tensor
    sounding: Tensor
    longest_text: int
    length: int

    @classmethod
    def of(cls, examples: Sequence[Example], device: torch.device) -> Batch:
        def packed(parts: Sequence[Any]) -> Tensor:
            return torch.from_numpy(np.concatenate([np.asarray(part, np.int64) for part in parts])).to(device)

        def lengths(parts: Sequence[Any]) -> Tensor:
            return torch.tensor([len(part) for part in parts], device=device)

        ids, sounds, codes = ([getattr(e, name) for e in examples] for name in ("ids", "sounds", "codes"))
        longest = max(example.positions for example in examples)
        return cls(
            packed(ids), lengths(ids), packed(codes), lengths(codes), packed(sounds), lengths(sounds),
            max(map(len, ids)), -(-longest // ROUND) * ROUND,
        )  # fmt: skip


def batches(examples: Sequence[Example], positions: int, chance: np.random.Generator) -> Iterator[list[Example]]:
    """One epoch: examples of about one length together, at most `positions` with padding, in random order."""
    keys = np.array([example.positions for example in examples]) + chance.random(len(examples)) * 8
    groups: list[list[Example]] = [[]]
    for index in np.argsort(keys):
        longest = max(example.positions for example in [*groups[-1], examples[index]])
        if groups[-1] and (len(groups[-1]) + 1) * (-(-longest // ROUND) * ROUND) > positions:
            groups.append([])
        groups[-1].append(examples[index])
    for number in chance.permutation(len(groups)):
        yield groups[number]


@dataclass(frozen=True, slots=True)
class Sequences:
    """Where everything of a batch stands in its B sequences of `length` positions, text first, then frames."""

    sources: Tensor
    """[B * length]: which row of texts and frames, one after the other, stands there; the first, where nothing does."""
    before: Tensor
    """[N]: the position whose state is to give the frame."""
    last: Tensor
    """[B]: the position whose state is to give the end."""

    @classmethod
    def of(cls, batch: Batch) -> Sequences:
        place = torch.arange(batch.length, device=batch.ids.device)
        texts, frames = batch.texts[:, None], batch.frames[:, None]
        text_starts, frame_starts = (x.cumsum(0)[:, None] - x[:, None] for x in (batch.texts, batch.frames))
        sources = torch.where(place < texts, text_starts + place, len(batch.ids) + frame_starts + place - texts)
        sources = torch.where(place < texts + frames, sources, 0)
        rows = torch.arange(len(batch.texts), device=place.device) * batch.length
        row_of_frame = torch.repeat_interleave(batch.frames)
        number = torch.arange(len(batch.codes), device=place.device) - frame_starts[row_of_frame, 0]
        before = (rows + batch.texts - 1)[row_of_frame] + number
        return cls(sources.flatten(), before, rows + batch.texts + batch.frames - 1)


def losses(
    model: Breeze, ear: nn.Linear, batch: Batch, settings: Mapping[str, Any], chance: torch.Generator
) -> dict[str, Tensor]:
    """Cross-entropy of first codes and the end, of the other codes, and CTC of the text states by `ear`."""
    states = model.text_encoder(batch.ids, batch.texts, batch.longest_text)
    hidden, places = through_backbone(model, batch, states, settings["frame_dropout"], chance)
    first = first_loss(model, batch, hidden, places, settings["end_weight"])
    told = {"first": first, "depth": depth_loss(model, batch, hidden, places, settings["depth_share"], chance)}
    if settings["alignment"]:
        told["alignment"] = alignment_loss(ear, batch, states)
    return told


def through_backbone(
    model: Breeze, batch: Batch, states: Tensor, dropout: float, chance: torch.Generator
) -> tuple[Tensor, Sequences]:
    """States [T, text width] -> hidden [B * length, H]. Some frames are left out, so that text counts."""
    frames = model.embed_frames(batch.codes)
    kept = torch.rand(len(frames), 1, generator=chance, device=frames.device) >= dropout
    texts = model.text_encoder_proj(states)
    places = Sequences.of(batch)
    everything = torch.cat((texts, (frames * kept).to(texts.dtype)))
    embeds = everything.index_select(0, places.sources).view(len(batch.texts), batch.length, -1)
    return model.backbone_model.causal(embeds).flatten(0, 1), places


def first_loss(model: Breeze, batch: Batch, hidden: Tensor, places: Sequences, end_weight: float) -> Tensor:
    with torch.autocast(hidden.device.type, enabled=False):
        logits = model.first_logits(hidden[torch.cat((places.before, places.last))])
    ends = batch.texts.new_full((len(batch.texts),), model.end_id)
    weights = logits.new_ones(model.end_id + 1)
    weights[model.end_id] = end_weight
    return F.cross_entropy(logits, torch.cat((batch.codes[:, 0], ends)), weights)


def depth_loss(
    model: Breeze, batch: Batch, hidden: Tensor, places: Sequences, share: float, chance: torch.Generator
) -> Tensor:
    """Of a random share of the frames; the mean of all codebooks but the first."""
    some = torch.randperm(len(batch.codes), generator=chance, device=hidden.device)
    some = some[: max(1, round(share * len(some)))]
    _, logits = model.depth_decoder.logits(hidden[places.before[some]], batch.codes[some])
    return F.cross_entropy(logits.float().flatten(0, 1), batch.codes[some, 1:].flatten())


def alignment_loss(ear: nn.Linear, batch: Batch, states: Tensor) -> Tensor:
    """CTC (Graves et al. 2006): text states in order are to tell the sounds. 0 is the blank."""
    starts = batch.texts.cumsum(0) - batch.texts
    index = starts[:, None] + torch.arange(batch.longest_text, device=states.device)
    rows = states[index.clamp(max=len(states) - 1)]
    scores = ear(rows).float().log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(scores, batch.sounds, batch.texts, batch.sounding, zero_infinity=True)


def alphabet(phonemes: Sequence[str]) -> dict[str, int]:
    """An id from 1 for every sound."""
    sounds = sorted(set("".join(phonemes)) - UNSPOKEN)
    return {sound: number for number, sound in enumerate(sounds, 1)}
