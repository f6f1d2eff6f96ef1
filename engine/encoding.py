"""Recordings on their way to codes: one of them, piece by piece, and the line in which they wait for a place.

It knows neither the encoder nor when a piece is run. A recording makes no audio and takes no backbone sequence, so that
it waits for nobody's slots; it has a place of its own kind, where the encoder keeps what it has heard so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engine.core import Codes, Encode, Encoded, FinishReason, Limits, ModelSpec, Prompt, Row, Samples, Stage, Submit
from engine.pages import PageAllocator
from engine.stream import Stream

ENCODE = Stage.ENCODE
PIECES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Frames that one step may have of a recording: the last is ten seconds of it."""


@dataclass(slots=True, eq=False)
class Encoding(Stream):
    """A recording that was accepted: a stream of one stage, without prompt or audio."""

    samples: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    samples_per_frame: int = 1
    parts: list[Codes] = field(default_factory=list)

    @classmethod
    def of(cls, encode: Encode, spec: ModelSpec, now: float) -> Encoding:
        came_at = now if encode.submitted_at is None else encode.submitted_at
        return cls(
            Submit(encode.request_id, Prompt(()), spec.sampling),
            came_at,
            came_at,
            max_frames=0,
            pages_needed=(),
            guided=False,
            prompt_length=0,
            text_tokens=0,
            to_read=0,
            frame_seconds=spec.frame_seconds,
            stage=ENCODE,
            served_at=came_at,
            samples=encode.samples,
            samples_per_frame=spec.samples_per_frame,
        )

    @property
    def num_frames(self) -> int:
        """Of the recording: the last may be partial."""
        return -(-self.samples.size // self.samples_per_frame)

    @property
    def missing(self) -> int:
        """Frames that are not encoded yet."""
        return self.num_frames - self.encoded

    def row(self, stage: Stage, count: int) -> Row:
        """Its next frames, and their samples."""
        size, last = self.samples_per_frame, self.encoded + count
        samples = self.samples[self.encoded * size : last * size]
        final = last == self.num_frames
        whole = self.samples if final else None
        return Row(self.request_id, self.slots, self.encoded, count, final, samples=samples, recording=whole)

    def take(self, row: Row, codes: Codes, vector: tuple[float, ...]) -> Encoded | None:
        """What a step made of the row; all of it, with the last, whose vector is that of the whole."""
        self.encoded += row.count
        self.parts.append(codes)
        if not row.final:
            return None
        self.reason = FinishReason.END
        return Encoded(self.request_id, np.concatenate(self.parts), vector)


class Encodings:
    """All recordings that wait, and the places that are free for them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._places = PageAllocator(limits.max_batch[ENCODE])  # numbers that are given out, like pages
        self._waiting: dict[int, Encoding] = {}

    @property
    def full(self) -> bool:
        """As many as may wait for a place."""
        return len(self._waiting) - self._places.num_free >= self._limits.max_queued

    @property
    def missing(self) -> int:
        """Frames of those that wait."""
        return sum(encoding.missing for encoding in self._waiting.values())

    def snapshot(self) -> dict[str, float]:
        """Who waits and what is free, by name."""
        return {"recordings_queued": float(len(self._waiting)), "recording_places_free": float(self._places.num_free)}

    def find(self, request_id: int) -> Encoding | None:
        """Who waits under that number."""
        return self._waiting.get(request_id)

    def enqueue(self, encoding: Encoding) -> None:
        self._waiting[encoding.request_id] = encoding

    def admit(self) -> list[Encoding]:
        """Those that get a place now, first come first."""
        entered = list(self._waiting.values())[: self._places.num_free]
        for encoding in entered:
            place = self._places.allocate(1)
            assert place is not None, "there is one for each that enters"
            encoding.slots = place
            del self._waiting[encoding.request_id]
        return entered

    def remove(self, encoding: Encoding) -> bool:
        """It does not wait any longer; whether it did."""
        return self._waiting.pop(encoding.request_id, None) is not None

    def free(self, encoding: Encoding) -> None:
        """Take back the place of one that has ended."""
        self._places.free(encoding.slots)
