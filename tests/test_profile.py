"""Samples of steps, written and read again, and cut in two."""

import json
from collections import Counter
from math import inf, nan
from typing import Any

import pytest

from engine import estimate
from engine.core import Limits, Stage
from engine.profile import Overhead, Profile

DATA: dict[str, Any] = {
    "voice": "small",
    "limits": {
        "num_slots": 4,
        "num_pages": 100,
        "page_size": 8,
        "max_prefill_tokens": 64,
        "max_batch": {"text": 1, "prefill": 2, "decode": 3, "depth": 4, "codec": 5},
    },
    "load": 2.5,
    "overhead": {"submit": 0.003, "step": 0.0002, "deliver": 0.001},
    "costs": [
        {"stage": "depth", "batch": 1, "length": 1, "source": "measured", "seconds": [0.012, 0.012, 0.013]},
        {"stage": "codec", "batch": 8, "length": 16, "source": "estimated", "seconds": [0.5]},
    ],
}
COST = {"stage": "depth", "batch": 1, "length": 1, "seconds": [0.012]}


def test_what_was_measured_where_and_for_which_engine() -> None:
    profile = Profile.from_dict(DATA)
    assert (profile.name, profile.load) == ("small", 2.5)
    assert profile.samples == {(Stage.DEPTH, 1, 1): (0.012, 0.012, 0.013), (Stage.CODEC, 8, 16): (0.5,)}
    assert profile.sources == {(Stage.DEPTH, 1, 1): "measured", (Stage.CODEC, 8, 16): "estimated"}
    most = dict(zip(Stage, (1, 2, 3, 4, 5), strict=True))
    assert profile.overhead == Overhead(submit=0.003, step=0.0002, deliver=0.001)
    assert profile.limits == Limits(4, 100, 8, max_prefill_tokens=64, max_batch=most)


def test_it_survives_json() -> None:
    profile = Profile.from_dict(DATA)
    assert profile.to_dict() == DATA
    assert Profile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile


def test_the_large_one_survives_json_too() -> None:
    profile = estimate.profile()
    assert Profile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile


def test_all_but_costs_may_be_missing_and_a_source_is_a_measurement() -> None:
    profile = Profile.from_dict({"voice": "small", "costs": [COST], "machine": "mine"})
    assert (profile.limits, profile.load, profile.overhead) == (None, None, Overhead(0.0, 0.0, 0.0))
    assert profile.sources == {(Stage.DEPTH, 1, 1): "measured"}
    assert profile.to_dict() == {"voice": "small", "costs": [COST | {"source": "measured"}]}


def test_a_text_step_may_have_no_length() -> None:
    assert (Stage.TEXT, 1, 0) in Profile.from_dict(
        {"voice": "x", "costs": [COST | {"stage": "text", "length": 0}]}
    ).samples


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in DATA.items() if key != name}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({}, "KeyError('costs')"),
        (without("voice"), "KeyError('voice')"),
        (without("costs"), "KeyError('costs')"),
        ([], "TypeError"),
        (DATA | {"costs": 7}, "TypeError"),
        (DATA | {"costs": [7]}, "TypeError"),
        (DATA | {"costs": [{"batch": 1}]}, "KeyError('stage')"),
        (DATA | {"costs": [COST | {"stage": "nonsense"}]}, "ValueError(\"'nonsense' is not a valid Stage\")"),
        (DATA | {"costs": [COST | {"batch": "two"}]}, "ValueError"),
        (DATA | {"costs": [COST | {"batch": inf}]}, "OverflowError"),
        (DATA | {"costs": [COST | {"seconds": [None]}]}, "TypeError"),
        (DATA | {"limits": []}, "TypeError"),
        (DATA | {"limits": {"num_slots": 4}}, "KeyError('num_pages')"),
        (DATA | {"limits": DATA["limits"] | {"max_batch": [8]}}, "AttributeError"),
        (DATA | {"limits": DATA["limits"] | {"max_batch": {"nonsense": 8}}}, "ValueError"),
        (DATA | {"load": "high"}, "ValueError"),
        (DATA | {"overhead": 0.1}, "AttributeError"),
        (DATA | {"overhead": {"step": -0.1}}, "ValueError('an overhead of seconds from 0 on expected, got Overhead("),
        (DATA | {"overhead": {"step": inf}}, "ValueError('an overhead of seconds from 0 on expected"),
        (DATA | {"overhead": {"pause": 0.1}}, "TypeError"),
    ],
)
def test_what_is_no_profile(data: Any, error: str) -> None:
    with pytest.raises(ValueError) as raised:
        Profile.from_dict(data)
    text = str(raised.value)
    assert text.startswith(f"not a cost profile: {error}")
    assert text.endswith("; write one with calibrate")


@pytest.mark.parametrize(
    ("cost", "key", "seconds"),
    [
        (COST | {"seconds": []}, "1, 1", "()"),
        (COST | {"seconds": [0.1, 0.0]}, "1, 1", "(0.1, 0.0)"),
        (COST | {"seconds": [-0.1]}, "1, 1", "(-0.1,)"),
        (COST | {"seconds": [inf]}, "1, 1", "(inf,)"),
        (COST | {"seconds": [nan]}, "1, 1", "(nan,)"),
        (COST | {"batch": 0}, "0, 1", "(0.012,)"),
        (COST | {"length": -1}, "1, -1", "(0.012,)"),
    ],
)
def test_seconds_and_shapes_that_cannot_be(cost: dict[str, Any], key: str, seconds: str) -> None:
    with pytest.raises(ValueError) as raised:
        Profile.from_dict({"voice": "small", "costs": [cost]})
    expected = f"cost profile 'small', (<Stage.DEPTH: 'depth'>, {key}): positive seconds expected, got {seconds}"
    assert str(raised.value) == expected


@pytest.mark.parametrize("load", [0.0, -1.0, inf, nan])
def test_a_load_that_cannot_be(load: float) -> None:
    with pytest.raises(ValueError) as raised:
        Profile.from_dict(DATA | {"load": load})
    assert str(raised.value) == f"cost profile 'small': a positive load expected, got {load}"


class TestHalves:
    PROFILE = Profile(
        "numbered",
        {
            (Stage.DEPTH, 1, 1): tuple(float(i) for i in range(1, 65)),
            (Stage.DEPTH, 2, 1): tuple(float(i) for i in range(101, 108)),
            (Stage.TEXT, 1, 16): (1.0, 1.0, 1.0, 2.0),
            (Stage.CODEC, 1, 1): (0.5,),
        },
        {(Stage.CODEC, 1, 1): "estimated"},
        Limits(num_slots=3),
        2.5,
        Overhead(submit=0.1),
    )

    @pytest.mark.parametrize("seed", range(5))
    def test_they_share_no_sample_and_leave_none_out(self, seed: int) -> None:
        first, second = self.PROFILE.halves(seed)
        for key, seconds in self.PROFILE.samples.items():
            if len(seconds) > 1:
                assert Counter(first.samples[key]) + Counter(second.samples[key]) == Counter(seconds)
                assert len(second.samples[key]) - len(first.samples[key]) == len(seconds) % 2
        assert list(first.samples) == list(second.samples) == list(self.PROFILE.samples)

    def test_a_single_sample_is_in_both(self) -> None:
        assert [half.samples[Stage.CODEC, 1, 1] for half in self.PROFILE.halves(0)] == [(0.5,), (0.5,)]

    def test_a_seed_is_a_cut(self) -> None:
        key = Stage.DEPTH, 1, 1
        cuts = [self.PROFILE.halves(seed)[0].samples[key] for seed in (1, 1, 2)]
        assert cuts[0] == cuts[1]
        assert set(cuts[0]) != set(cuts[2])

    def test_neither_has_the_early_samples_only(self) -> None:
        """A warm-up at the beginning must not be all that one of them knows."""
        first, second = self.PROFILE.halves(0)
        for half in (first, second):
            early = sum(seconds <= 32 for seconds in half.samples[Stage.DEPTH, 1, 1])
            assert 8 <= early <= 24

    def test_all_else_is_the_same(self) -> None:
        for half in self.PROFILE.halves(0):
            assert (half.name, half.limits, half.load) == ("numbered", Limits(num_slots=3), 2.5)
            assert (half.sources, half.overhead) == (self.PROFILE.sources, Overhead(submit=0.1))
