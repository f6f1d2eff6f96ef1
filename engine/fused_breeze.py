"""The stages of Breeze TTS 2 by fused kernels, where they fit a voice's weights. It does not know graphs or slots.

Memory for each shape is made at its first call and kept, since a graph that was captured goes on using it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from engine.codec import CodecState
from engine.device import launches_overlap
from engine.fused import (
    BackboneChunk,
    BackboneStep,
    BackboneWeights,
    DepthFrame,
    DepthWeights,
    FirstCode,
    Launch,
    Places,
    TextPack,
    TextWeights,
)
from engine.fused_codec import CodecStep, CodecWeights
from engine.kv_cache import PagedKV
from engine.models import Functions
from engine.models.breeze_tts_2 import Breeze
from engine.models.qwen3_tts import Qwen3TTS
from engine.sampling import SamplingRows

log = logging.getLogger(__name__)
Voice = TypeVar("Voice", Breeze, Qwen3TTS)

MOST_TOKENS = 1024
"""Of one part, a pack of text or padded prompts: for more, whose products are bound by arithmetic, PyTorch's own
operations are taken."""


def fused(model: Breeze) -> Functions:
    """Every stage whose weights the kernels take; the others in PyTorch's own operations."""
    return by_kernels(model, text, backbone, depth)


def by_kernels(model: Voice, *in_bf16: Callable[[Voice, Functions, Launch], Functions]) -> Functions:
    """These stages of a model in bfloat16, and its codec, as far as the kernels take their weights."""
    launch, functions = Launch(overlap=launches_overlap(model.device)), model.plain()
    stages: list[Callable[[Voice, Functions, Launch], Functions]] = [codec]
    if model.dtype is torch.bfloat16:  # their tiles hold no float32 weights
        stages += in_bf16
    for stage in stages:
        try:
            functions = stage(model, functions, launch)
        except ValueError as error:
            log.info("%s runs unfused: %s", stage.__name__, error)
    return functions


def text(model: Breeze, plain: Functions, launch: Launch) -> Functions:
    weights = TextWeights.of(model.text_encoder, model.text_encoder_proj.weight, MOST_TOKENS)

    @cache
    def pack(segments: int, tokens: int, longest: int) -> TextPack:
        return TextPack.allocate(weights, segments, tokens, longest, launch)

    def encode(ids: Tensor, lengths: Tensor, longest: int) -> Tensor:
        if len(ids) > MOST_TOKENS:
            return plain.encode_text(ids, lengths, longest)
        return pack(len(lengths), len(ids), longest).run(ids, lengths)

    return replace(plain, encode_text=encode)


def backbone(model: Breeze, plain: Functions, launch: Launch) -> Functions:
    """Prefill, decode and code 0."""
    config = model.config
    table, books = model.depth_decoder.model.embed_tokens.weight, config.depth.num_codebooks
    head, positions = model.lm_head.weight, model.spec.max_positions
    weights = BackboneWeights.of(model.backbone_model, table, books, head, positions)

    @cache
    def chunk(sequences: int, length: int) -> BackboneChunk:
        return BackboneChunk.allocate(weights, sequences, length, launch)

    @cache
    def position(rows: int) -> BackboneStep:
        return BackboneStep.allocate(weights, rows, launch)

    @cache
    def first(rows: int) -> FirstCode:
        return FirstCode.allocate(weights, rows, launch)

    def prefill(embeds: Tensor, positions: Tensor, valid: Tensor, kv: PagedKV, slots: Tensor, num_pages: int) -> Tensor:
        rows, length, _ = embeds.shape
        if rows * length > MOST_TOKENS:
            return plain.prefill(embeds, positions, valid, kv, slots, num_pages)
        return chunk(rows, length).run(embeds, Places(kv, positions, valid, slots))

    def decode(
        codes: Tensor, text: Tensor | None, positions: Tensor, valid: Tensor, kv: PagedKV, slots: Tensor, num_pages: int
    ) -> Tensor:
        places = Places(kv, positions[:, None], valid[:, None], slots)
        return position(len(slots)).run(codes, places)

    def first_code(hidden: Tensor, rows: SamplingRows, frame: Tensor) -> Tensor:
        memory = first(len(hidden))
        codes = memory.run(hidden, rows, frame, config.codec.codebook_size)
        rows.first.note(lambda: model.first_scores(memory.logits[: len(hidden), : model.end_id + 1], rows, frame))
        return codes

    return replace(plain, prefill=prefill, decode=decode, first_code=first_code)


def depth(model: Breeze, plain: Functions, launch: Launch) -> Functions:
    return frames(DepthWeights.of(model.depth_decoder, model.config.codec.codebook_size), plain, launch)


def frames(weights: DepthWeights, plain: Functions, launch: Launch) -> Functions:
    """A depth decoder's frames."""

    @cache
    def memory(rows: int) -> DepthFrame:
        return DepthFrame.allocate(weights, rows, launch)

    def frame(hidden: Tensor, code0: Tensor, rows: SamplingRows, frame: Tensor) -> Tensor:
        return memory(len(hidden)).run(hidden, code0, rows, frame)

    return replace(plain, frame=frame)


def codec(model: Breeze | Qwen3TTS, plain: Functions, launch: Launch) -> Functions:
    weights = CodecWeights.of(model.codec, model.spec.max_positions)

    @cache
    def memory(streams: int, frames: int) -> CodecStep:
        return CodecStep.allocate(weights, streams, frames, launch)

    def step(codes: Tensor, state: CodecState, slots: Tensor) -> Tensor:
        return memory(*codes.shape[:2]).run(codes, state, slots)

    return replace(plain, codec=step)
