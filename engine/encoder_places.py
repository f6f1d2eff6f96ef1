"""Runs pieces of recordings through the codec's encoder: several at once where they stand at the same frame.

It keeps what each recording's past is, by its place, until the next one begins there. A speaker encoder hears the whole
recording when it ends. It does not know who plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import torch

from engine.codec_encoder import CodecEncoder, EncoderState
from engine.core import Codes, Row, Samples, StepResult
from engine.speaker import SpeakerEncoder

MAX_RECORDINGS = 16
"""Whose past is kept at once: half a minute of the published encoder's is 25 MB, by its dimensions (keys and values of
750 positions in 8 layers, 512 wide, in float32)."""
MAX_FRAMES = 256
"""Of all rows that are run at once: 126 MB for each thing that the first layers make of them (1920 samples a frame, 64
wide, in float32)."""


class EncoderPlaces:
    """The encoders, and their memory of every recording that has begun."""

    def __init__(self, encoder: CodecEncoder, device: torch.device, speaker: SpeakerEncoder | None = None) -> None:
        self._encoder, self._speaker, self._device = encoder, speaker, device
        self._states: dict[int, EncoderState] = {}

    @property
    def held(self) -> int:
        """Recordings that have begun: they may go on, or were given up, until their place is another's."""
        return len(self._states)

    def run(self, rows: Sequence[Row]) -> StepResult:
        """The codes of each row's samples, and who speaks in those that end. A row with start 0 begins anew in its
        place."""
        codes: dict[int, Codes] = {}
        for part in parts(rows):
            codes |= dict(self._together(part))
        vectors = () if self._speaker is None else tuple(self._vector(self._speaker, row) for row in rows)
        return StepResult(codes=tuple(codes[row.request_id] for row in rows), vectors=vectors)

    def _vector(self, speaker: SpeakerEncoder, row: Row) -> tuple[float, ...]:
        """With the row that ends a recording; what is shorter than the encoder can hear goes on as silence."""
        if not row.final:
            return ()
        assert row.recording is not None, f"the row that ends a recording carries all of it, got {row}"
        padded = np.pad(row.recording, (0, max(0, speaker.config.least_samples - row.recording.size)))
        numbers: list[float] = speaker.hear(torch.from_numpy(padded).to(self._device)).tolist()
        return tuple(numbers)

    def _together(self, rows: Sequence[Row]) -> Iterator[tuple[int, Codes]]:
        state = EncoderState.joined([self._state(row) for row in rows])
        size = self._encoder.config.samples_per_frame
        padded = np.zeros((len(rows), max(row.count for row in rows) * size), np.float32)
        lengths = [samples_of(row).size for row in rows]
        assert all(row.final or row.count == rows[0].count for row in rows), f"only the last piece is short, got {rows}"
        for own, row in zip(padded, rows, strict=True):
            own[: samples_of(row).size] = row.samples
        made = self._encoder.piece(torch.from_numpy(padded).to(self._device), lengths, state)
        ids = made.to(torch.int16).cpu().numpy()
        for row, after, own in zip(rows, state.parted(), ids, strict=True):
            if not row.final:
                self._states[row.slots[0]] = after
            yield row.request_id, own[: row.count]

    def _state(self, row: Row) -> EncoderState:
        before = self._states.pop(row.slots[0], None)
        if row.start == 0:
            return self._encoder.init_state(1, self._device)
        assert before is not None, f"a recording goes on where it stood, got {row}"
        return before


def parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Rows that can be run at once: at the same frame, and not too many."""
    for _, same in groupby(sorted(rows, key=lambda row: (row.start, -row.count)), lambda row: row.start):
        part: list[Row] = []
        for row in same:
            if part and (len(part) + 1) * part[0].count > MAX_FRAMES:
                yield part
                part = []
            part.append(row)
        yield part


def samples_of(row: Row) -> Samples:
    assert row.samples is not None, f"a row of a recording carries its samples, got {row}"
    return row.samples
