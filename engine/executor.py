"""Runs a Step on the model: gathers slots into a batch, calls one of the model's functions, scatters what it made.

It does not know why a step was chosen, what a deadline is, or who listens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine import device as devices
from engine import models
from engine.batch import PAGES, TOKENS, Batch, bucket
from engine.core import Limits, ModelSpec, PromptRow, Row, Stage, Step, StepResult, TextSegment
from engine.messages import RuntimeConfig
from engine.models import Model


class Executor:
    """Runs steps one after the other. What outlives a step stands in tensors with a leading slots dimension."""

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model = model
        self.device = model.device
        self._page_size, self._ladder = limits.page_size, limits.batches
        self.state = model.new_state(limits)
        slots, spec = limits.num_slots + 1, model.spec
        self._hidden = torch.zeros(slots, model.width, device=self.device, dtype=model.dtype)
        self._code0 = torch.zeros(slots, dtype=torch.int64, device=self.device)
        frames = (slots, spec.max_positions, spec.num_codebooks)
        self._codes = torch.zeros(frames, dtype=torch.int64, device=self.device)
        self._prompts: dict[int, Tensor] = {}
        self._lengths = [0] * slots
        self._stages: dict[Stage, Callable[[tuple[Row, ...]], StepResult]] = {
            Stage.TEXT: self._text,
            Stage.PREFILL: self._prefill,
            Stage.DECODE: self._decode,
            Stage.DEPTH: self._depth,
            Stage.CODEC: self._codec,
        }

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Runs the step to its end on the device.

        A slot's state starts anew with the TEXT step that carries its admission, and nothing that an earlier request
        left in it is read after that.
        """
        result = self._stages[step.stage](step.rows)
        devices.synchronise(self.device)
        return result

    # ---- text ----

    def _text(self, rows: tuple[Row, ...]) -> StepResult:
        prompts: dict[int, PromptRow] = {}
        for row in rows:
            prompts.update(self._admit(row))
        segments = [s for p in prompts.values() for s in p.segments if isinstance(s, TextSegment)]
        states = self._encode(list(dict.fromkeys(segments)))
        for slot, prompt in prompts.items():
            self._lengths[slot] = prompt.length
            self._prompts[slot] = self._embed(prompt, states)
        return StepResult()

    def _admit(self, row: Row) -> dict[int, PromptRow]:
        """Gives the row's slots a fresh state and their pages; returns each slot's prompt."""
        assert row.admission is not None, f"a text row carries its admission, got {row}"
        admission = row.admission
        for slot, pages in zip(row.slots, admission.pages, strict=True):
            self.state.kv.assign(slot, pages)
        self.state.sampling.set(row.slots[0], admission.sampling, admission.prompt.cfg_scale)
        self.state.codec.reset(self._tensor([row.slots[0]]))
        return dict(zip(row.slots, admission.prompt.rows, strict=True))

    def _encode(self, segments: list[TextSegment]) -> dict[TextSegment, Tensor]:
        """The text states [tokens, width] of each segment, all encoded in one padded batch."""
        shape = bucket(len(segments), self._ladder), bucket(max(s.length for s in segments), TOKENS)
        ids = np.zeros(shape, dtype=np.int64)
        lengths = np.ones(shape[0], dtype=np.int64)  # an empty place attends to one token rather than to none
        for place, segment in enumerate(segments):
            ids[place, : segment.length] = segment.ids
            lengths[place] = segment.length
        states = self.model.encode_text(self._tensor(ids), self._tensor(lengths))
        return {segment: states[place, : segment.length] for place, segment in enumerate(segments)}

    def _embed(self, prompt: PromptRow, states: dict[TextSegment, Tensor]) -> Tensor:
        """What the backbone receives, [length, width]: text states, reference frames, audio-EOS (a frame of zeros)."""
        end = (0,) * self.model.spec.num_codebooks
        return torch.cat(
            [
                states[segment]
                if isinstance(segment, TextSegment)
                else self.model.embed_frames(self._tensor([*segment.frames, end]))
                for segment in prompt.segments
            ]
        )

    # ---- backbone ----

    def _prefill(self, rows: tuple[Row, ...]) -> StepResult:
        batch = Batch.of(rows, self._ladder)
        spans = [self._span(row, slot) for row, slot in batch.sequences]
        tokens = bucket(max(map(len, spans)), TOKENS)
        embeds = torch.zeros(len(spans), tokens, self.model.width, device=self.device, dtype=self.model.dtype)
        for place, (span, slot) in enumerate(zip(spans, batch.slots, strict=True)):
            if span:
                embeds[place, : len(span)] = self._prompts[slot][span.start : span.stop]
        offsets = np.arange(tokens)
        positions = np.array([[span.start] for span in spans]) + offsets
        valid = offsets < np.array([[len(span)] for span in spans])
        hidden = self._advance(embeds, positions, valid, batch.slots)
        self._keep_last(hidden, spans, batch.slots)
        return self._start_frames(rows)

    def _span(self, row: Row | None, slot: int) -> range:
        """The positions of the row's chunk that this sequence's own prompt has: guided prompts differ in length."""
        if row is None:
            return range(0)
        length = self._lengths[slot]
        return range(min(row.start, length), min(row.start + row.count, length))

    def _keep_last(self, hidden: Tensor, spans: list[range], slots: list[int]) -> None:
        """Stores the state of each prompt's last position when it comes by; the others' go to slot 0."""
        ends = [
            slot if span and span.stop == self._lengths[slot] else 0 for span, slot in zip(spans, slots, strict=True)
        ]
        last = self._tensor([max(len(span), 1) - 1 for span in spans])
        self._hidden[self._tensor(ends)] = hidden[torch.arange(len(spans), device=self.device), last]

    def _start_frames(self, rows: tuple[Row, ...]) -> StepResult:
        """Draws code 0 for the prompts that end here, and only for those."""
        final = tuple(row for row in rows if row.final)
        drawn = dict(zip(final, self._first_code(Batch.of(final, self._ladder), 0), strict=True)) if final else {}
        for slot in (slot for row in final for slot in row.slots):
            del self._prompts[slot]
        return StepResult(ended=tuple(drawn.get(row, False) for row in rows))

    def _decode(self, rows: tuple[Row, ...]) -> StepResult:
        batch = Batch.of(rows, self._ladder)
        codes = self._codes[self._tensor(batch.first_slots), self._tensor(batch.starts())]
        embeds = self.model.embed_frames(codes)
        if batch.paired:
            embeds = torch.cat((embeds, embeds))  # both sequences of a guided request hear the same frame
        positions = np.array([[self._lengths[slot] + row.start if row else 0] for row, slot in batch.sequences])
        valid = np.array([[row is not None] for row, _ in batch.sequences])
        self._hidden[self._tensor(batch.slots)] = self._advance(embeds[:, None], positions, valid, batch.slots)[:, 0]
        return StepResult(ended=self._first_code(batch, np.array(batch.starts()) + 1))

    def _advance(self, embeds: Tensor, positions: Any, valid: Any, slots: list[int]) -> Tensor:
        pages = bucket(int(positions.max(where=valid, initial=0)) // self._page_size + 1, PAGES)
        return self.model.backbone(
            embeds,
            self._tensor(positions),
            self._tensor(valid),
            self.state.kv,
            self._tensor(slots),
            min(pages, self.state.kv.page_table.shape[1]),
        )

    def _first_code(self, batch: Batch, frames: Any) -> tuple[bool, ...]:
        """Draws code 0 of each request's frame ([size], or one number for all); True where speech ends."""
        slots = self._tensor(batch.first_slots)
        frames = self._tensor(np.full(batch.size, frames))
        sampling = self.state.sampling.rows(batch.first_slots)
        code0 = self.model.first_code(self._hidden[self._tensor(batch.slots)], sampling, frames)
        ended = self.model.is_end(code0)
        self._code0[slots] = code0.masked_fill(ended, 0)  # the end is no code: nobody's row must not look it up
        self.state.sampling.seen[slots, code0] = True
        return tuple(ended.tolist()[: len(batch.rows)])

    # ---- depth and codec ----

    def _depth(self, rows: tuple[Row, ...]) -> StepResult:
        batch = Batch.of(rows, self._ladder)
        slots, frames = self._tensor(batch.first_slots), self._tensor(batch.starts())
        hidden = self._hidden[self._tensor(batch.slots)]
        sampling = self.state.sampling.rows(batch.first_slots)
        self._codes[slots, frames] = self.model.frame(hidden, self._code0[slots], sampling, frames)
        return StepResult()

    def _codec(self, rows: tuple[Row, ...]) -> StepResult:
        batch, count = Batch.of(rows, self._ladder), rows[0].count
        assert all(row.count == count for row in rows), f"codec rows share one frame count, got {rows}"
        slots = self._tensor(batch.first_slots)
        frames = self._tensor(batch.starts())[:, None] + torch.arange(count, device=self.device)
        codes = self._codes[slots[:, None], frames]
        pcm = self.model.codec.step(codes, self.state.codec, slots)
        samples, ids = to_pcm16(pcm).cpu().numpy(), codes.to(torch.int16).cpu().numpy()
        return StepResult(pcm=tuple(samples[: len(rows)]), codes=tuple(ids[: len(rows)]))

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(np.asarray(values)).to(self.device)


def load(config: RuntimeConfig) -> tuple[Model, Executor, Limits]:
    """Loads the voice onto its device. Raises ValueError (also CheckpointError), OSError, or RuntimeError (memory)."""
    device = devices.choose(config.device)
    devices.set_threads(device, config.threads)
    devices.keep_freed_memory(device)
    model = models.load(config.voice, device=device, dtype=devices.choose_dtype(config.dtype, device))
    limits = config.limits or default_limits(model.spec)
    with torch.inference_mode():
        return model, Executor(model, limits), limits


def default_limits(spec: ModelSpec) -> Limits:
    """Room for every slot to reach the model's last position."""
    limits = Limits()
    pages = -(-spec.max_positions // limits.page_size)
    return Limits(num_pages=limits.num_slots * pages)


def to_pcm16(pcm: Tensor) -> Tensor:
    """Float samples as 16-bit: clipped to [-1, 1], times 32767, truncated toward zero (as the official code does)."""
    return (pcm.clamp(-1, 1) * 32767).to(torch.int16)
