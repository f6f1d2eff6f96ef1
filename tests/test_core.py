"""The plain data at the boundary: whatever is no such value is refused where it is made, with a word about it."""

from __future__ import annotations

import pickle
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from engine.checks import RequestError, shown
from engine.core import (
    Cancel,
    Playhead,
    Prompt,
    PromptRow,
    Reference,
    ReferenceSegment,
    Request,
    SamplingParams,
    TextSegment,
)

HUGE = 10**400
LONGER = 10**5000
"""Python prints no integer of so many digits."""


class Unshowable:
    def __repr__(self) -> str:
        raise OSError("no word about me")


def request(**given: Any) -> Request:
    return Request(**{"text": "Hello.", "sampling": SamplingParams()} | given)


def playhead(**given: Any) -> Playhead:
    return replace(Playhead(request_id=1, played_samples=480, at=2.0), **given)


@pytest.mark.parametrize("name", ["top_k", "depth_top_k", "seed", "min_frames", "max_frames"])
@pytest.mark.parametrize("value", [2.5, 20.0, nan, inf, True, "2", None, [1]])
def test_counts_of_sampling_are_whole(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as raised:
        SamplingParams(**{name: value})
    assert str(raised.value) == f"{name} must be a whole number, got {value!r}"


NUMBERS = ["temperature", "depth_temperature", "top_p", "depth_top_p", "repetition_penalty"]


@pytest.mark.parametrize("name", [*NUMBERS, "cfg_scale"])
@pytest.mark.parametrize("value", [True, "2", [1], 1j])
def test_settings_of_sampling_are_numbers(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as raised:
        SamplingParams(**{name: value})
    assert str(raised.value) == f"{name} must be a number, got {value!r}"


@pytest.mark.parametrize("name", [*NUMBERS, "cfg_scale", "top_k", "seed", "max_frames", "min_frames"])
@pytest.mark.parametrize("value", [-1, HUGE, LONGER, -LONGER], ids=["negative", "huge", "longer", "-longer"])
def test_settings_of_sampling_are_in_their_range(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{name} must be from .* to .*, got "):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_no_setting_is_nan_or_infinite(value: float) -> None:
    for name in NUMBERS:
        with pytest.raises(RequestError, match=f"^{name} must be from .* got {value}"):
            SamplingParams(**{name: value})


def test_a_whole_number_is_a_number_too() -> None:
    assert SamplingParams(temperature=1, cfg_scale=2, top_p=1).temperature == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"text": 5}, "text must be text, got 5"),
        ({"text": b"Hi"}, "text must be text, got b'Hi'"),
        ({"text": None}, "text must be text, got None"),
        ({"speaker": 0}, "speaker must be text, got 0"),
        ({"instruction": None}, "instruction must be text, got None"),
        ({"language": None}, "language must be text, got None"),
        ({"sampling": None}, "sampling must be SamplingParams, got None"),
        ({"sampling": {"seed": 1}}, "sampling must be SamplingParams, got {'seed': 1}"),
        ({"reference": "x.wav"}, "reference must be a Reference or None, got 'x.wav'"),
        ({"epoch": None}, "epoch must be a whole number, got None"),
        ({"epoch": 1.0}, "epoch must be a whole number, got 1.0"),
        ({"epoch": HUGE}, "epoch must be from 0 to 9223372036854775807, got 1000"),
        ({"follows": [1]}, "follows must be a whole number, got [1]"),
        ({"follows": "1"}, "follows must be a whole number, got '1'"),
        ({"follows": nan}, "follows must be a whole number, got nan"),
        ({"follows": -1}, "follows must be from 0 to 9223372036854775807, got -1"),
        ({"text": Unshowable()}, "text must be text, got <Unshowable instance at 0x"),
    ],
)
def test_a_request_is_of_plain_values(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as raised:
        request(**given)
    assert str(raised.value).startswith(says)
    assert len(str(raised.value)) < 200, "whatever came"


@pytest.mark.parametrize(
    ("text", "frames", "says"),
    [
        (None, ((1,),), "reference text must be text, got None"),
        ("b", [[1]], "reference frames must be a tuple of frames, got [[1]]"),
        ("b", None, "reference frames must be a tuple of frames, got None"),
        ("b", ((1,), [2]), "reference frame 1 must be a tuple of whole numbers, got [2]"),
        ("b", ((1,), (1, 2.5)), "reference frame 1 must be a tuple of whole numbers, got (1, 2.5)"),
        ("b", (1,), "reference frame 0 must be a tuple of whole numbers, got 1"),
    ],
)
def test_a_reference_is_of_plain_values(text: Any, frames: Any, says: str) -> None:
    with pytest.raises(RequestError) as raised:
        Reference(text, frames)
    assert str(raised.value) == says


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"request_id": [1]}, "request_id must be a whole number, got [1]"),
        ({"request_id": 1.0}, "request_id must be a whole number, got 1.0"),
        ({"request_id": -1}, "request_id must be from 0 to 9223372036854775807, got -1"),
        ({"played_samples": None}, "played_samples must be a whole number, got None"),
        ({"played_samples": 1.5}, "played_samples must be a whole number, got 1.5"),
        ({"played_samples": nan}, "played_samples must be a whole number, got nan"),
        ({"played_samples": -1}, "played_samples must be from 0 to 9007199254740992, got -1"),
        ({"played_samples": HUGE}, "played_samples must be from 0 to 9007199254740992, got 1000"),
        ({"at": None}, "at must be a number, got None"),
        ({"at": "now"}, "at must be a number, got 'now'"),
        ({"at": nan}, "at must be from -1000000000000000.0 to 1000000000000000.0, got nan"),
        ({"at": inf}, "at must be from -1000000000000000.0 to 1000000000000000.0, got inf"),
        ({"at": HUGE}, "at must be from -1000000000000000.0 to 1000000000000000.0, got 1000"),
        ({"running": None}, "running must be true or false, got None"),
        ({"running": 1}, "running must be true or false, got 1"),
        ({"jitter": None}, "jitter must be a number, got None"),
        ({"jitter": nan}, "jitter must be from 0.0 to 1000000000000000.0, got nan"),
        ({"jitter": -0.1}, "jitter must be from 0.0 to 1000000000000000.0, got -0.1"),
    ],
)
def test_a_playhead_is_of_plain_values(given: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError) as raised:
        playhead(**given)
    assert str(raised.value).startswith(says)


@pytest.mark.parametrize("request_id", [None, [1], "1", 1.0, nan, -1, HUGE, True])
def test_what_is_cancelled_has_an_id(request_id: Any) -> None:
    with pytest.raises(RequestError, match=r"^request_id must be "):
        Cancel(request_id)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (20.5, "20.5"),
        ("x" * 1000, "'xxxxxxxxxxxx...xxxxxxxxxxxxx'"),
        (LONGER, "a value of type int that cannot be shown"),
    ],
    ids=["number", "text", "longer"],
)
def test_any_value_can_be_shown(value: object, says: str) -> None:
    assert shown(value) == says


def test_text_behind_a_prompt_is_not_of_the_prompt() -> None:
    row = PromptRow((TextSegment((1, 2, 3)), ReferenceSegment(((1,),)), TextSegment((4, 5))), trailing=2)
    assert (row.length, row.text_end, row.text_tokens) == (5, 7, 5)
    assert Prompt((row, PromptRow((TextSegment((1,)),)))).length == 5


def test_a_reference_is_packed_and_unpacked_once() -> None:
    """Requests that carry it to another process find there the very one that came before."""
    reference = Reference("good day", ((1, 2), (3, 4)), (0.5,))
    first, again = (pickle.loads(pickle.dumps(reference)) for _ in range(2))
    assert first == reference
    assert again is first
    other = pickle.loads(pickle.dumps(Reference("good night", ((1, 2), (3, 4)), (0.5,))))
    assert other.text == "good night"
    assert other.frames is first.frames
