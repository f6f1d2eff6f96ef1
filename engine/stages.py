"""What each shape of work does on the device, from one flat tensor of integers to what goes back to the host.

It keeps what outlives a step in tensors with a leading slots dimension, allocated once and updated in place, so that a
captured graph finds everything where it was. It does not know requests, nor who captures it. Rows that are padding have
slot 0, which belongs to nobody: what stands there means nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import torch
from torch import Tensor

from engine.core import Limits, Stage
from engine.models import Functions, Model
from engine.sampling import ANY, Flags
from engine.shapes import Shape, Work

Outputs = tuple[Tensor, ...]
SETTINGS = (6, 4)
"""Columns of SamplingState's floats and ints."""


class Stages:
    """The model's functions on the slots' state. `functions` says which ones each stage calls."""

    def __init__(self, model: Model, functions: Mapping[Stage, Functions], limits: Limits) -> None:
        self._model, self._functions, device = model, functions, model.device
        self.state = model.new_state(limits)
        slots, spec = limits.num_slots + 1, model.spec
        positions = slots, spec.max_positions
        self.prompts = torch.zeros(*positions, model.width, device=device, dtype=model.dtype)
        """What the backbone receives, by slot and position; behind the prompt, the text that goes with its frames."""
        self.hidden = torch.zeros(slots, model.width, device=device, dtype=model.dtype)
        """The backbone's state at each slot's last position."""
        self.code0 = torch.zeros(slots, dtype=torch.int64, device=device)
        self.codes = torch.zeros(*positions, spec.num_codebooks, dtype=torch.int64, device=device)
        """Frames by slot and index."""
        self._bodies: dict[Work, Callable[[Shape, Functions, list[Tensor], Flags], Outputs]] = {
            Work.TEXT: self._text,
            Work.PREFILL: self._prefill,
            Work.START: self._start,
            Work.DECODE: self._decode,
            Work.DEPTH: self._depth,
            Work.CODEC: self._codec,
        }

    def fields(self, shape: Shape) -> tuple[tuple[int, ...], ...]:
        """The shapes of the integers that the work takes, in order; see the functions below."""
        rows, sequences = (shape.rows,), (shape.sequences,)
        match shape.work:
            case Work.TEXT:
                pages = self.state.kv.page_table.shape[1]
                settings = ((shape.rows, columns) for columns in SETTINGS)
                return rows, rows, rows, (shape.length,), rows, (shape.rows, pages), *settings
            case Work.PREFILL:
                return rows, rows, rows, rows
            case Work.START:
                return sequences, rows
            case Work.DECODE:
                return sequences, sequences, sequences, sequences, rows
            case Work.DEPTH:
                return sequences, rows
            case Work.CODEC:
                return rows, rows

    def size(self, shape: Shape) -> int:
        """Integers altogether."""
        return sum(map(prod, self.fields(shape)))

    def run(self, shape: Shape, values: Tensor, flags: Flags = ANY) -> Outputs:
        """values [size] int64 on the device -> what the host is to know, each with a leading rows dimension."""
        parts, first = [], 0
        for field in self.fields(shape):
            parts.append(values[first : first + prod(field)].view(field))
            first += prod(field)
        return self._bodies[shape.work](shape, self._functions[shape.work.stage], parts, flags)

    def _text(self, shape: Shape, call: Functions, values: list[Tensor], flags: Flags) -> Outputs:
        """Segments [B]: slot, place in the prompt, length; ids [T]; the slot again if a request begins there, else 0,
        and its pages and settings (bits of float64).

        Every segment of a prompt brings its slot's admission, so that a slot may have several.
        """
        slots, starts, lengths, ids, begun, pages, floats, ints = values
        self.state.kv.page_table[begun] = pages
        self.state.sampling.write(begun, floats.view(torch.float64).float(), ints)
        self.state.codec.reset(begun)
        states = call.encode_text(ids, lengths, shape.longest)
        tokens, ends = torch.arange(shape.length, device=ids.device), lengths.cumsum(0)
        segments = torch.searchsorted(ends, tokens, right=True)  # one too many for padding, which goes to nobody
        real, segments = segments < shape.rows, segments.clamp(max=shape.rows - 1)
        places = (starts - (ends - lengths))[segments] + tokens
        self.prompts[torch.where(real, slots[segments], 0), torch.where(real, places, 0)] = states
        return ()

    def _prefill(self, shape: Shape, call: Functions, values: list[Tensor], flags: Flags) -> Outputs:
        """Sequences [R]: slot, first position, positions, and the slot again if the prompt ends here, else 0."""
        slots, starts, lengths, ends = values
        offsets = torch.arange(shape.length, device=slots.device)
        valid = offsets < lengths[:, None]
        positions = torch.where(valid, starts[:, None] + offsets, 0)
        embeds = self.prompts[slots[:, None], positions].masked_fill(~valid[..., None], 0)
        states = call.prefill(embeds, positions, valid, self.state.kv, slots, shape.pages)
        rows = torch.arange(shape.rows, device=slots.device)
        self.hidden[ends] = states[rows, (lengths - 1).clamp(min=0)]
        return ()

    def _start(self, shape: Shape, call: Functions, values: list[Tensor], flags: Flags) -> Outputs:
        """Sequences' slots [R] and requests' [B], whose prompts have ended."""
        slots, requests = values
        return self._first_code(call, slots, requests, torch.zeros_like(requests), flags)

    def _decode(self, shape: Shape, call: Functions, values: list[Tensor], flags: Flags) -> Outputs:
        """Sequences [R]: slot, position, whether it is one, where the text stands that goes with the frame; requests
        [B]: the frame that is fed back."""
        slots, positions, valid, places, frames = values
        requests = slots[: shape.rows]
        codes = self.codes[requests, frames]
        text = self.prompts[slots, places] if self._model.reads_on else None
        self.hidden[slots] = call.decode(codes, text, positions, valid != 0, self.state.kv, slots, shape.pages)
        return self._first_code(call, slots, requests, frames + 1, flags)

    def _first_code(self, call: Functions, slots: Tensor, requests: Tensor, frames: Tensor, flags: Flags) -> Outputs:
        """Draws code 0 of each request's frame [B]; true where speech ends."""
        sampling = self.state.sampling
        code0 = call.first_code(self.hidden[slots], sampling.rows(requests, flags), frames)
        ended = self._model.is_end(code0)
        self.code0[requests] = code0.masked_fill(ended, 0)  # the end is no code: nobody's row must not look it up
        sampling.seen[requests, code0] = torch.ones_like(ended)
        return (ended,)

    def _depth(self, shape: Shape, call: Functions, values: list[Tensor], flags: Flags) -> Outputs:
        """Sequences' slots [R] and the frame that is made [B]."""
        slots, frames = values
        requests = slots[: shape.rows]
        rows = self.state.sampling.rows(requests, flags)
        self.codes[requests, frames] = call.frame(self.hidden[slots], self.code0[requests], rows, frames)
        return ()

    def _codec(self, shape: Shape, call: Functions, values: list[Tensor], flags: Flags) -> Outputs:
        """Requests [B]: slot and the first frame that becomes audio; 16-bit samples and codes go back."""
        slots, starts = values
        frames = starts[:, None] + torch.arange(shape.length, device=slots.device)
        codes = self.codes[slots[:, None], frames]
        return to_pcm16(call.codec(codes, self.state.codec, slots)), codes.to(torch.int16)


def to_pcm16(pcm: Tensor) -> Tensor:
    """Float samples as 16-bit: clipped to [-1, 1], times 32767, truncated toward zero (as the official code does)."""
    return (pcm.clamp(-1, 1) * 32767).to(torch.int16)
