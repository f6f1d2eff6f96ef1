"""The stages of Qwen3-TTS by fused kernels, where they fit a voice's weights. It does not know graphs or slots.

Backbone, depth decoder and codec are those of Breeze TTS 2. Text is looked up in a table of all projections. A frame is
fed back as a prompt of one position, since what is added up there differs. Code 0 is drawn in PyTorch's own operations:
the kernels know no end of speech among the control ids.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from engine.fused import BackboneChunk, BackboneWeights, DepthWeights, Launch, Places
from engine.fused_breeze import MOST_TOKENS, by_kernels, frames
from engine.kv_cache import PagedKV
from engine.models import Functions
from engine.models.qwen3_tts import Qwen3TTS

VOCAB_PIECE = 4096
"""Of the vocabulary, which is projected piece by piece."""


def fused(model: Qwen3TTS) -> Functions:
    """Every stage whose weights the kernels take; the others in PyTorch's own operations."""
    return by_kernels(model, text, backbone, depth)


def text(model: Qwen3TTS, plain: Functions, launch: Launch) -> Functions:
    """Every token's projection, made at once: so its numbers depend on no pack."""
    talker, size = model.talker, model.config.text_vocab
    with torch.no_grad():
        parts = torch.split(talker.model.text_embedding.weight, VOCAB_PIECE)
        table = torch.cat([talker.text_projection(part) for part in parts])

    def encode(ids: Tensor, lengths: Tensor, longest: int) -> Tensor:
        controls = ids // size
        codes = talker.model.codec_embedding((controls - 1).clamp(min=0))
        return table[ids % size] + torch.where(controls[:, None] > 0, codes, 0)

    return replace(plain, encode_text=encode)


def backbone(model: Qwen3TTS, plain: Functions, launch: Launch) -> Functions:
    """Prefill and decode."""
    talker, spec = model.talker, model.spec
    table, head = talker.code_predictor.model.codec_embedding.weight, talker.codec_head.weight  # neither is read
    weights = BackboneWeights.of(talker.model, table, spec.num_codebooks, head, spec.max_positions)

    @cache
    def chunk(sequences: int, length: int) -> BackboneChunk:
        return BackboneChunk.allocate(weights, sequences, length, launch)

    def prefill(embeds: Tensor, positions: Tensor, valid: Tensor, kv: PagedKV, slots: Tensor, num_pages: int) -> Tensor:
        rows, length, _ = embeds.shape
        if rows * length > MOST_TOKENS:
            return plain.prefill(embeds, positions, valid, kv, slots, num_pages)
        return chunk(rows, length).run(embeds, Places(kv, positions, valid, slots))

    def decode(
        codes: Tensor, text: Tensor | None, positions: Tensor, valid: Tensor, kv: PagedKV, slots: Tensor, num_pages: int
    ) -> Tensor:
        embeds = model.feedback(codes, text)
        return prefill(embeds[:, None], positions[:, None], valid[:, None], kv, slots, num_pages)[:, 0]

    return replace(plain, prefill=prefill, decode=decode)


def depth(model: Qwen3TTS, plain: Functions, launch: Launch) -> Functions:
    decoder, size = model.talker.code_predictor, model.config.codec.codebook_size
    return frames(DepthWeights.of(decoder, size), plain, launch)
