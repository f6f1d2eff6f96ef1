"""Runs a Step on the model: deals its rows to shapes, packs what the device has to know, and reads back what it made.

It does not know why a step was chosen, what a deadline is, or who listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine import device as devices
from engine import models, random_weights
from engine.batch import PAGES, Batch, bucket
from engine.chunking import fitting
from engine.core import (
    KNOWN_VOICES,
    PCM,
    Admission,
    Codes,
    Limits,
    Overlay,
    ReferenceSegment,
    Row,
    Stage,
    Step,
    StepResult,
    TextSegment,
)
from engine.encoder_places import MAX_RECORDINGS, EncoderPlaces
from engine.messages import RuntimeConfig
from engine.models import Model, State
from engine.sampling import ANY, GREEDY, settings
from engine.shapes import Pack, Shape, Work, codec_parts, dealt, ladder, pack_shapes, packed, token_shape
from engine.stages import Stages

Progress = Callable[[Sequence[Shape]], Iterable[Shape]]
Parts = list[Any]
"""What a shape's integers are, see Stages.fields."""


@dataclass(frozen=True, slots=True)
class Place:
    """A text segment's place in a slot's prompt."""

    slot: int
    start: int
    segment: TextSegment
    admission: Admission | None
    """None: the slot has begun, and this is more of its text."""
    pages: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """The positions of a prompt that one prefill step enters into one sequence."""

    slot: int
    start: int
    length: int
    ends: bool


class Executor:
    """Runs steps one after the other. Stages in `graphs` run as captured graphs of fused kernels, once `capture` was
    called; all others op by op."""

    def __init__(self, model: Model, limits: Limits, graphs: frozenset[Stage] = frozenset()) -> None:
        self.model = model
        self.device = model.device
        self._limits, self._graphs = limits, graphs
        self._packs = pack_shapes(limits, model.spec.max_positions)
        plain = model.plain()
        fused = model.fused() if graphs and devices.captures(model.device) else plain
        self.stages = Stages(model, {stage: fused if stage in graphs else plain for stage in Stage}, limits)
        self._captured: dict[Shape, devices.Graph] = {}
        self._memory: dict[Shape, int] = {}
        self._strays = 0
        self._compiled: Callable[[], int] = lambda: 0
        self._heard = lru_cache(KNOWN_VOICES)(self._embedded)
        """Embedded frames of those that many speak like: half a minute of Breeze TTS 2's is 1.5 MB."""
        self._lengths, self._text_ends = ([0] * (limits.num_slots + 1) for _ in range(2))
        self._runners: dict[Stage, Callable[[tuple[Row, ...]], StepResult]] = {
            Stage.TEXT: self._text,
            Stage.PREFILL: self._prefill,
            Stage.DECODE: self._decode,
            Stage.DEPTH: self._depth,
            Stage.CODEC: self._codec,
            Stage.ENCODE: self._listen,
        }
        self._places: EncoderPlaces | None = None
        if model.encoder is not None:
            self._places = EncoderPlaces(model.encoder, model.device, model.speaker_encoder)

    @property
    def state(self) -> State:
        return self.stages.state

    @torch.inference_mode()
    def run(self, step: Step) -> StepResult:
        """Runs the step to its end on the device.

        A slot's state starts anew with the TEXT step that carries its admission, and nothing that an earlier request
        left in it is read after that.
        """
        result = self._runners[step.stage](step.rows)
        devices.synchronise(self.device)
        return result

    @property
    def memory(self) -> Mapping[Shape, int]:
        """What is captured, and the bytes that each took."""
        return self._memory

    def capture(self, progress: Progress = lambda shapes: shapes) -> None:
        """Captures every shape that a step can have, in the order of `progress`. Whatever runs afterwards is replayed.
        Raises RuntimeError when the device has too little memory."""
        spec = self.model.spec
        shapes = [self._whole(shape) for shape in ladder(self._limits, spec.max_positions, spec.guided)]
        shapes = [shape for shape in shapes if shape.work.stage in self._graphs]
        with torch.inference_mode():
            bodies = {shape: self._body(shape) for shape in shapes}
            devices.compile_all([(bodies[shape], self.stages.size(shape)) for shape in shapes], self.device)
            pool = devices.new_pool(self.device)
            for shape in progress(shapes):
                before = devices.free_memory(self.device)
                self._captured[shape] = devices.Graph(bodies[shape], self.stages.size(shape), self.device, pool)
                self._memory[shape] = before - devices.free_memory(self.device)
        self._compiled = devices.count_compiles(self.device)

    def snapshot(self) -> dict[str, float]:
        """What should never happen once everything is captured: work without a graph, and kernels that are compiled."""
        return {"uncaptured_works_total": float(self._strays), "kernels_compiled_total": float(self._compiled())}

    def _body(self, shape: Shape) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
        return lambda values: self.stages.run(shape, values)

    def _launch(self, shape: Shape, parts: Parts, slots: Sequence[int] = ()) -> Sequence[torch.Tensor]:
        """Starts the work, which draws by the settings of `slots`; `devices.fetch` waits for what it returns."""
        values = np.concatenate([np.asarray(part, np.int64).ravel() for part in parts])
        if (graph := self._captured.get(shape)) is not None:
            return graph(values)
        self._strays += shape.work.stage in self._graphs
        flags = self.state.sampling.flags(slots) if slots else ANY
        return self.stages.run(shape, torch.from_numpy(values).to(self.device), flags)

    def _whole(self, shape: Shape) -> Shape:
        """With all the pages that a sequence may have: what is captured must do for every length."""
        backbone = shape.work in (Work.PREFILL, Work.DECODE)
        return replace(shape, pages=self.state.kv.page_table.shape[1]) if backbone else shape

    def _paged(self, shape: Shape, last: int) -> Shape:
        """With as many pages as attention up to position `last` has to look at."""
        whole = self._whole(shape)
        if whole in self._captured:
            return whole
        return replace(shape, pages=min(bucket(last // self._limits.page_size + 1, PAGES), whole.pages))

    # ---- text ----

    def _text(self, rows: tuple[Row, ...]) -> StepResult:
        places: list[Place] = []
        for row in rows:
            places += [self._go_on(row)] if row.admission is None else self._admit(row, row.admission)
        for pack in packed(places, lambda place: place.segment.length, self._packs):
            self._encode(pack)
        for row in rows:
            if row.admission is not None:
                self._embed_references(row, row.admission)
        return StepResult()

    def _go_on(self, row: Row) -> Place:
        """The place of what has come of the text of one that has begun."""
        (slot,) = row.slots
        assert row.text and row.start == self._text_ends[slot], f"text goes on where it ended, got {row}"
        self._text_ends[slot] += len(row.text)
        return Place(slot, row.start, TextSegment(row.text), None)

    def _admit(self, row: Row, admission: Admission) -> Iterator[Place]:
        """The places of the row's text, slot by slot."""
        for slot, pages, prompt in zip(row.slots, admission.pages, admission.prompt.rows, strict=True):
            self._lengths[slot], self._text_ends[slot] = prompt.length, prompt.text_end
            self.state.sampling.note(slot, admission.sampling)
            for start, segment in prompt.behind(admission.shared):
                if isinstance(segment, TextSegment):
                    yield Place(slot, start, segment, admission, pages)

    def _encode(self, pack: Pack[Place]) -> None:
        """Encodes segments into their slots' prompts and gives those that begin their pages and settings."""
        slots, starts, lengths, ids, begun, pages, floats, ints = blank(self.stages.fields(pack.shape))
        quiet, zeros = settings(GREEDY)
        floats[:], ints[:] = bits(quiet), zeros
        for row, place in enumerate(pack.segments):
            slots[row], starts[row], lengths[row] = place.slot, place.start, place.segment.length
            if place.admission is None:
                continue
            begun[row], pages[row, : len(place.pages)] = place.slot, place.pages
            own = settings(place.admission.sampling, place.admission.prompt.cfg_scale)
            floats[row], ints[row] = bits(own[0]), own[1]
        ids[: pack.tokens] = np.concatenate([place.segment.ids for place in pack.segments])
        self._launch(pack.shape, [slots, starts, lengths, ids, begun, pages, floats, ints])

    def _embed_references(self, row: Row, admission: Admission) -> None:
        """Reference frames and, as a frame of zeros, audio-EOS; or what lies over text: it needs no graph."""
        for slot, prompt in zip(row.slots, admission.prompt.rows, strict=True):
            for start, segment in prompt.behind(admission.shared):
                if isinstance(segment, ReferenceSegment):
                    known = max(0, admission.shared - start)  # frames that are in shared pages
                    places = slice(start + known, start + segment.length)
                    self.stages.prompts[slot, places] = self._heard(segment.frames)[known:]
            for overlay in prompt.overlays:
                self._lay_over(slot, overlay)

    def _embedded(self, frames: tuple[tuple[int, ...], ...]) -> torch.Tensor:
        """Of reference frames, and of the frame of zeros behind them."""
        end = (0,) * self.model.spec.num_codebooks
        return self.model.embed_frames(torch.tensor([*frames, end], device=self.device))

    def _lay_over(self, slot: int, overlay: Overlay) -> None:
        """Adds reference frames, or a vector, to the text of their positions."""
        prompt, start = self.stages.prompts[slot], overlay.start
        if overlay.vector:
            prompt[start] += torch.tensor(overlay.vector, device=self.device, dtype=prompt.dtype)
        if overlay.frames:
            prompt[start : start + len(overlay.frames)] += self._heard(overlay.frames)[:-1]
            self._prime(slot, torch.tensor(overlay.frames, device=self.device))

    def _prime(self, slot: int, codes: torch.Tensor) -> None:
        """Lets the slot's codec hear the reference, so that speech does not begin as if out of silence."""
        self.stages.codes[slot, : len(codes)] = codes
        first, rows = 0, self._limits.batches[0]
        while first < len(codes):
            size = fitting(len(codes) - first)
            places = np.zeros((2, rows), np.int64)
            places[:, 0] = slot, first
            self._launch(Shape(Work.CODEC, rows, size), [places])
            first += size

    # ---- backbone ----

    def _prefill(self, rows: tuple[Row, ...]) -> StepResult:
        spans = [span for row in rows for slot in row.slots if (span := self._span(row, slot)).length]
        longest = min(self._limits.max_prefill_tokens, self.model.spec.max_positions)
        for part in dealt(spans, lambda span: span.length, longest, self._limits):
            self._enter(part, token_shape(part[0].length, longest))
        final = tuple(row for row in rows if row.final)
        drawn = iter(self._start(final) if final else ())
        return StepResult(ended=tuple(row.final and next(drawn) for row in rows))

    def _span(self, row: Row, slot: int) -> Span:
        """The positions of the row's chunk that this sequence's own prompt has: guided prompts differ in length."""
        length = self._lengths[slot]
        start, stop = min(row.start, length), min(row.start + row.count, length)
        return Span(slot, start, stop - start, stop == length)

    def _enter(self, part: Sequence[Span], length: int) -> None:
        shape = Shape(Work.PREFILL, bucket(len(part), self._limits.batches), length)
        slots, starts, lengths, ends = blank(self.stages.fields(shape))
        for row, span in enumerate(part):
            slots[row], starts[row], lengths[row] = span.slot, span.start, span.length
            ends[row] = span.slot if span.ends else 0
        last = max(span.start + span.length - 1 for span in part)
        self._launch(self._paged(shape, last), [slots, starts, lengths, ends])

    def _start(self, rows: tuple[Row, ...]) -> Sequence[bool]:
        """Draws code 0 for the prompts that have ended: whether speech ends with it."""
        batch = Batch.of(rows, self._limits.batches)
        shape = Shape(Work.START, batch.size, paired=batch.paired)
        return self._ended(batch, shape, [batch.slots, batch.first_slots])

    def _decode(self, rows: tuple[Row, ...]) -> StepResult:
        batch = Batch.of(rows, self._limits.batches)
        shape = Shape(Work.DECODE, batch.size, paired=batch.paired)
        positions = [self._lengths[slot] + row.start if row else 0 for row, slot in batch.sequences]
        valid = [row is not None for row, _ in batch.sequences]
        pairs = zip(positions, batch.slots, strict=True)
        texts = [max(0, min(position, self._text_ends[slot] - 1)) for position, slot in pairs]
        parts = [batch.slots, positions, valid, texts, batch.starts()]
        return StepResult(ended=tuple(self._ended(batch, self._paged(shape, max(positions)), parts)))

    def _ended(self, batch: Batch, shape: Shape, parts: Parts) -> Sequence[bool]:
        (ended,) = devices.fetch(self._launch(shape, parts, batch.first_slots))
        told: list[bool] = ended[: len(batch.rows)].tolist()
        return told

    # ---- depth and codec ----

    def _depth(self, rows: tuple[Row, ...]) -> StepResult:
        batch = Batch.of(rows, self._limits.batches)
        shape = Shape(Work.DEPTH, batch.size, paired=batch.paired)
        self._launch(shape, [batch.slots, batch.starts()], batch.first_slots)
        return StepResult()

    def _codec(self, rows: tuple[Row, ...]) -> StepResult:
        count = rows[0].count
        assert all(row.count == count for row in rows), f"codec rows share one frame count, got {rows}"
        pcm: list[PCM] = []
        codes: list[Codes] = []
        for part in codec_parts(rows, count, self._limits.batches):  # one after the other: they may share a graph
            batch = Batch.of(part, self._limits.batches)
            shape = Shape(Work.CODEC, batch.size, count)
            samples, ids = devices.fetch(self._launch(shape, [batch.first_slots, batch.starts()]))
            pcm += list(samples[: len(part)])
            codes += list(ids[: len(part)])
        return StepResult(pcm=tuple(pcm), codes=tuple(codes))

    # ---- recordings ----

    def _listen(self, rows: tuple[Row, ...]) -> StepResult:
        assert self._places is not None, f"{self.model.spec.name} has no encoder"
        return self._places.run(rows)


def blank(fields: Sequence[tuple[int, ...]]) -> list[NDArray[np.int64]]:
    return [np.zeros(field, np.int64) for field in fields]


def bits(values: Sequence[float]) -> NDArray[np.int64]:
    """Floats on their way through a tensor of integers."""
    return np.array(values, np.float64).view(np.int64)


def load(config: RuntimeConfig, progress: Progress = lambda shapes: shapes) -> tuple[Model, Executor, Limits]:
    """Loads the voice onto its device and captures its graphs, in the order of `progress`.

    Raises ValueError (also CheckpointError), OSError, or RuntimeError (memory)."""
    device = devices.choose(config.device)
    devices.set_threads(device, config.threads)
    devices.keep_freed_memory(device)
    try:
        return _loaded(config, device, progress)
    except torch.OutOfMemoryError as error:
        tried = ". ".join(str(error).split(". ")[:2])
        told = f"{devices.memory_told(device)}; lower --slots, or take a device with more"
        raise RuntimeError(f"expected memory for the voice, its slots and their pages, {told} ({tried})") from error


def _loaded(config: RuntimeConfig, device: torch.device, progress: Progress) -> tuple[Model, Executor, Limits]:
    dtype = devices.choose_dtype(config.dtype, device)
    if config.random_weights is None:
        model: Model = models.load(config.voice, device=device, dtype=dtype)
    else:
        model = random_weights.load(config.random_weights, device=device, dtype=dtype)
    limits = config.limits or default_limits(model, config.slots or devices.slots(device))
    with torch.inference_mode():
        executor = Executor(model, limits, config.graphs if devices.captures(device) else frozenset())
    executor.capture(progress)
    return model, executor, limits


def default_limits(model: Model, slots: int) -> Limits:
    """Room for every slot to reach the model's last position, or as many pages as the device has memory for: a request
    holds what it may need at most, and one that finds too little waits. Raises RuntimeError if none fits."""
    limits = Limits(num_slots=slots, max_step_seconds=devices.longest_step(model.device))
    most = dict.fromkeys(Stage, min(slots, limits.batches[-1]))
    limits = replace(limits, max_batch=most | {Stage.ENCODE: min(most[Stage.ENCODE], MAX_RECORDINGS)})
    longest = -(-model.spec.max_positions // limits.page_size)
    fitting = devices.room(model.device) / (model.position_bytes * limits.page_size)
    if fitting < longest:
        told = f"{devices.memory_told(model.device)}: take a device with more, or --dtype bf16"
        raise RuntimeError(f"expected memory for {longest} pages, so that one request fits, {told}")
    return replace(limits, num_pages=int(min(slots * longest, fitting)))
