"""Drives an executor without a scheduler: some requests, in lockstep, for a number of frames."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from engine.core import Admission, Limits, Prompt, Row, SamplingParams, Stage, Step
from engine.executor import Executor

Ask = tuple[Prompt, SamplingParams]


@dataclass
class Said:
    """What one request got."""

    codes: list[list[int]] = field(default_factory=list)
    pcm: list[int] = field(default_factory=list)
    ended_at: int | None = None


def lockstep(
    executor: Executor, limits: Limits, asks: Sequence[Ask], frames: int, first_slot: int = 1, chunk: int = 256
) -> list[Said]:
    """Runs the requests together for `frames` frames, whatever the model says of the end; prompts in chunks of
    `chunk` positions. Slots from `first_slot` on; the first pages."""
    rows, said = admitted(limits, asks, first_slot), [Said() for _ in asks]
    executor.run(Step(Stage.TEXT, tuple(rows)))
    lengths = [prompt.length for prompt, _ in asks]
    rows = [replace(row, admission=None) for row in rows]
    for start in range(0, max(lengths), chunk):
        spans = [(row, min(chunk, length - start)) for row, length in zip(rows, lengths, strict=True) if length > start]
        step = [replace(row, start=start, count=n, final=start + n == lengths[rows.index(row)]) for row, n in spans]
        told = executor.run(Step(Stage.PREFILL, tuple(step))).ended
        note(said, rows, step, told, 0)
    for frame in range(frames):
        at = tuple(replace(row, start=frame, count=1) for row in rows)
        executor.run(Step(Stage.DEPTH, at))
        result = executor.run(Step(Stage.CODEC, at))
        for one, pcm, codes in zip(said, result.pcm, result.codes, strict=True):
            one.pcm += pcm.tolist()
            one.codes += codes.tolist()
        note(said, rows, at, executor.run(Step(Stage.DECODE, at)).ended, frame + 1)
    return said


def admitted(limits: Limits, asks: Sequence[Ask], slot: int) -> list[Row]:
    """Text rows with consecutive slots, and pages for the whole context."""
    rows, page = [], 1
    pages = limits.num_pages // limits.num_slots
    for i, (prompt, sampling) in enumerate(asks):
        slots = tuple(range(slot, slot + len(prompt.rows)))
        own = []
        for _ in slots:
            own.append(tuple(range(page, page + pages)))
            page += pages
        admission = Admission(prompt, sampling, tuple(own))
        rows.append(Row(i, slots, count=prompt.text_tokens, admission=admission))
        slot += len(slots)
    return rows


def note(said: list[Said], rows: Sequence[Row], at: Sequence[Row], ended: Sequence[bool], frame: int) -> None:
    """Remembers the first frame at which the model wanted to end."""
    ids = [row.request_id for row in rows]
    for row, end in zip(at, ended, strict=True):
        one = said[ids.index(row.request_id)]
        if end and one.ended_at is None:
            one.ended_at = frame


def wave(said: Said) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The samples as floats in [-1, 1]."""
    return np.array(said.pcm) / 32767
