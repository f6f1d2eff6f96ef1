"""encoder_places.py: recordings that come and go share steps, and each becomes the codes that it becomes alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.codec_encoder import CodecEncoder, load
from engine.core import Row, Samples
from engine.encoder_places import MAX_FRAMES, EncoderPlaces, parts

TINY = Path(__file__).parent / "golden" / "breeze" / "checkpoint"
FRAME = 1920


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def encoder() -> CodecEncoder:
    with torch.inference_mode(False):
        return load(TINY, device="cpu")


def places() -> EncoderPlaces:
    return EncoderPlaces(encoder(), torch.device("cpu"))


@cache
def recording(num_samples: int, seed: int) -> Samples:
    return (np.random.default_rng(seed).standard_normal(num_samples) * 0.3).astype(np.float32)


@cache
def alone(num_samples: int, seed: int) -> list[list[int]]:
    codes: list[list[int]] = encoder()(torch.from_numpy(recording(num_samples, seed))[None])[0].tolist()
    return codes


def row(number: int, place: int, samples: Samples, start: int, count: int) -> Row:
    frames = -(-samples.size // FRAME)
    count = min(count, frames - start)
    own = samples[start * FRAME : (start + count) * FRAME]
    return Row(number, (place,), start, count, start + count == frames, samples=own)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9 * FRAME), min_size=1, max_size=5),
    piece=st.integers(1, 4),
    gone=st.sets(st.tuples(st.integers(0, 4), st.integers(0, 3))),
    apart=st.sets(st.integers(0, 8)),
)
def test_whoever_shares_the_steps_and_leaves_the_codes_are_those_of_the_recording_alone(
    lengths: list[int], piece: int, gone: set[tuple[int, int]], apart: set[int]
) -> None:
    """gone: who is cancelled before which round; apart: rounds in which each is run by itself."""
    device, living = places(), dict(enumerate(lengths))
    codes: dict[int, list[list[int]]] = {number: [] for number in living}
    for round_ in range(9):
        for number, when in gone:
            if when == round_:
                living.pop(number, None)
        going = [number for number, length in living.items() if round_ * piece * FRAME < length]
        rows = [row(i, 1 + i, recording(lengths[i], i), round_ * piece, piece) for i in going]
        steps = [[one] for one in rows] if round_ in apart else [rows] if rows else []
        for step in steps:
            for one, made in zip(step, device.run(step).codes, strict=True):
                codes[one.request_id] += made.tolist()
    for number, length in living.items():
        if -(-length // FRAME) <= 9 * piece:
            assert codes[number] == alone(length, number)


def test_a_place_forgets_its_last_recording() -> None:
    device, samples = places(), recording(6 * FRAME, 1)
    device.run([row(1, 1, recording(5 * FRAME, 0), 0, 3)])
    first, second = (device.run([row(2, 1, samples, start, 3)]).codes[0] for start in (0, 3))
    assert np.concatenate((first, second)).tolist() == alone(6 * FRAME, 1)


def test_nothing_is_kept_of_a_recording_that_has_ended() -> None:
    device = places()
    device.run([row(1, 1, recording(2 * FRAME, 0), 0, 2)])
    assert device.held == 0
    device.run([row(2, 1, recording(2 * FRAME, 0), 0, 1)])
    assert device.held == 1


def test_rows_are_parted_by_where_they_stand_and_by_what_the_device_bears() -> None:
    samples = recording(300 * FRAME, 0)
    rows = [row(i, 1 + i, samples, start, 128) for i, start in enumerate((0, 128, 0, 0))]
    assert [[one.request_id for one in part] for part in parts(rows)] == [[0, 2], [3], [1]]
    assert all(len(part) * part[0].count <= MAX_FRAMES for part in parts(rows))
