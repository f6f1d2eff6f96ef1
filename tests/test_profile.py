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
        "max_step_seconds": 0.05,
        "max_batch": {"text": 1, "prefill": 2, "decode": 3, "depth": 4, "codec": 5},
    },
    "load": 2.5,
    "rated_load": 4.5,
    "overhead": {"submit": 0.003, "step": 0.0002, "deliver": 0.001},
    "costs": [
        {"stage": "depth", "batch": 1, "length": 1, "source": "measured", "seconds": [0.012, 0.012, 0.013]},
        {"stage": "codec", "batch": 8, "length": 16, "source": "estimated", "seconds": [0.5]},
    ],
}
COST = {"stage": "depth", "batch": 1, "length": 1, "seconds": [0.012]}


def test_what_was_measured_where_and_for_which_engine() -> None:
    profile = Profile.from_dict(DATA)
    assert (profile.name, profile.load, profile.rated_load) == ("small", 2.5, 4.5)
    assert profile.samples == {(Stage.DEPTH, 1, 1): (0.012, 0.012, 0.013), (Stage.CODEC, 8, 16): (0.5,)}
    assert profile.sources == {(Stage.DEPTH, 1, 1): "measured", (Stage.CODEC, 8, 16): "estimated"}
    most = dict(zip(Stage, (1, 2, 3, 4, 5, 5), strict=True))  # what a profile does not say of ENCODE, CODEC does
    assert profile.overhead == Overhead(submit=0.003, step=0.0002, deliver=0.001)
    assert profile.limits == Limits(4, 100, 8, max_prefill_tokens=64, max_batch=most, max_step_seconds=0.05)


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
    assert (profile.rated_load, profile.order) == (None, ())
    assert profile.sources == {(Stage.DEPTH, 1, 1): "measured"}
    assert profile.to_dict() == {"voice": "small", "costs": [COST | {"source": "measured"}]}


def test_a_text_step_may_have_no_length() -> None:
    assert (Stage.TEXT, 1, 0) in Profile.from_dict(
        {"voice": "x", "costs": [COST | {"stage": "text", "length": 0}]}
    ).samples


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in DATA.items() if key != name}


def cost(**fields: Any) -> dict[str, Any]:
    """Data with one cost, in which these fields are other ones."""
    return {"voice": "small", "costs": [COST | fields]}


def limits(**fields: Any) -> dict[str, Any]:
    return DATA | {"limits": DATA["limits"] | fields}


STAGES = "expected one of text, prefill, decode, depth, codec, encode"
BATCH = "expected a whole number from 1 to 1024"
COUNT = "expected a whole number from 1 to 1000000"
SLOTS = "expected a whole number from 1 to 4096"
LOAD = "expected a number from 0.001 to 1000000"
TOKENS = "expected a number from 0.001 to 4"
STEP = "expected seconds from 1e-09 to 1000"
BATCHES = DATA["limits"]["max_batch"]
SECONDS = "expected a list of seconds from 1e-09 to 1000, at least one"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ([], "data: expected an object, got []"),
        (None, "data: expected an object, got None"),
        ({}, "costs: expected a list, got nothing"),
        (without("voice"), "voice: expected text, got nothing"),
        (DATA | {"voice": 7}, "voice: expected text, got 7"),
        (without("costs"), "costs: expected a list, got nothing"),
        (DATA | {"costs": 7}, "costs: expected a list, got 7"),
        (DATA | {"costs": [COST, 7]}, "costs[1]: expected an object, got 7"),
        (DATA | {"costs": [{"batch": 1}]}, f"costs[0].stage: {STAGES}, got nothing"),
        (cost(stage="nonsense"), f"costs[0].stage: {STAGES}, got 'nonsense'"),
        (cost(stage=["depth"]), f"costs[0].stage: {STAGES}, got ['depth']"),
        (cost(batch="two"), "costs[0].batch: expected a whole number from 1 to 1024, got 'two'"),
        (cost(batch=0), "costs[0].batch: expected a whole number from 1 to 1024, got 0"),
        (cost(batch=1.5), "costs[0].batch: expected a whole number from 1 to 1024, got 1.5"),
        (cost(batch=True), "costs[0].batch: expected a whole number from 1 to 1024, got True"),
        (cost(batch=inf), "costs[0].batch: expected a whole number from 1 to 1024, got inf"),
        (cost(length=-1), "costs[0].length: expected a whole number from 0 to 1000000, got -1"),
        (cost(source=1), "costs[0].source: expected text, got 1"),
        (cost(seconds=0.1), f"costs[0].seconds: {SECONDS}, got 0.1"),
        (cost(seconds=[]), f"costs[0].seconds: {SECONDS}, got []"),
        (cost(seconds=[None]), f"costs[0].seconds: {SECONDS}, got [None]"),
        (
            cost(seconds=[0.1, 0.0]),
            f"costs[0].seconds: {SECONDS}, got [0.1, 0.0]",
        ),
        (cost(seconds=[-0.1]), f"costs[0].seconds: {SECONDS}, got [-0.1]"),
        (cost(seconds=[nan]), f"costs[0].seconds: {SECONDS}, got [nan]"),
        (cost(seconds=[10**400]), f"costs[0].seconds: {SECONDS}, got [1000"),
        (DATA | {"costs": [COST, COST]}, "costs[1]: expected each shape once, got depth, 1, 1 again"),
        (DATA | {"limits": []}, "limits: expected an object, got []"),
        (
            DATA | {"limits": {"num_slots": 4}},
            "limits.num_pages: expected a whole number from 1 to 1000000, got nothing",
        ),
        (limits(page_size=None), "limits.page_size: expected a whole number from 1 to 1000000, got None"),
        (limits(max_batch=[8]), "limits.max_batch: expected an object, got [8]"),
        (limits(max_batch={"nonsense": 8}), f"limits.max_batch: {STAGES}, got 'nonsense'"),
        (limits(max_batch=BATCHES | {"depth": 0}), f"limits.max_batch.depth: {BATCH}, got 0"),
        (limits(max_batch={"text": 8}), f"limits.max_batch.prefill: {BATCH}, got nothing"),
        *((limits(max_batch=BATCHES | {"text": n}), f"limits.max_batch.text: {BATCH}, got {n}") for n in (1025, 1e300)),
        *((limits(num_slots=n), f"limits.num_slots: {SLOTS}, got {n}") for n in (0, 4097, 1e300)),
        *((limits(**{name: 1e300}), f"limits.{name}: {COUNT}, got 1e+300") for name in ("num_pages", "page_size")),
        *((limits(max_step_seconds=n), f"limits.max_step_seconds: {STEP}, got {n!r}") for n in (0, -1, "60 ms")),
        (limits(max_prefill_tokens=1_000_001), f"limits.max_prefill_tokens: {COUNT}, got 1000001"),
        (cost(batch=1025), f"costs[0].batch: {BATCH}, got 1025"),
        (cost(length=1.7e308), "costs[0].length: expected a whole number from 0 to 1000000, got 1.7e+308"),
        *((cost(seconds=[s]), f"costs[0].seconds: {SECONDS}, got [{s}]") for s in (5e-324, 9e-10, 1000.5, 1e308)),
        *((DATA | {"load": n}, f"load: {LOAD}, got {n}") for n in (5e-324, 0.0009, 1e7, 1e308)),
        *((DATA | {"rated_load": n}, f"rated_load: {LOAD}, got {n}") for n in (5e-324, 1e308)),
        *((DATA | {"tokens_per_char": n}, f"tokens_per_char: {TOKENS}, got {n}") for n in (5e-324, 4.5, 1e308)),
        (DATA | {"overhead": {"step": 1e308}}, "overhead.step: expected seconds from 0 to 1000, got 1e+308"),
        (DATA | {"load": "high"}, "load: expected a number from 0.001 to 1000000, got 'high'"),
        *(
            (DATA | {"load": load}, f"load: expected a number from 0.001 to 1000000, got {load}")
            for load in (0.0, -1.0, inf, nan)
        ),
        (DATA | {"rated_load": 0}, "rated_load: expected a number from 0.001 to 1000000, got 0"),
        (DATA | {"overhead": 0.1}, "overhead: expected an object, got 0.1"),
        (DATA | {"overhead": {"step": -0.1}}, "overhead.step: expected seconds from 0 to 1000, got -0.1"),
        (DATA | {"overhead": {"step": inf}}, "overhead.step: expected seconds from 0 to 1000, got inf"),
        (DATA | {"overhead": {"pause": 0.1}}, "overhead: expected some of submit, step, deliver, got 'pause'"),
        (DATA | {"tokens_per_char": 0}, "tokens_per_char: expected a number from 0.001 to 4, got 0"),
        (DATA | {"order": 1}, "order: expected a list, got 1"),
        (DATA | {"order": [0, 0, 1, 2]}, "order[3]: expected the number of one of the 2 costs, from 0 on, got 2"),
        (DATA | {"order": [0, -1]}, "order[1]: expected the number of one of the 2 costs, from 0 on, got -1"),
        (DATA | {"order": [0, "1"]}, "order[1]: expected the number of one of the 2 costs, from 0 on, got '1'"),
        (
            DATA | {"order": [0, 1, 0]},
            "order: expected 0 as often as costs[0] has seconds, 3 times, got it 2 times",
        ),
        (DATA | {"order": [0, 1, 0, 0, 1]}, "order: expected 1 as often as costs[1] has seconds, 1 times, got it 2"),
        (DATA | {"order": []}, "order: expected 0 as often as costs[0] has seconds, 3 times, got it 0 times"),
    ],
)
def test_what_is_no_profile(data: Any, error: str) -> None:
    """The field, what was expected there, and what came."""
    with pytest.raises(ValueError) as raised:
        Profile.from_dict(data)
    text = str(raised.value)
    assert text.startswith(f"not a cost profile: {error}")
    assert text.endswith("; write one with calibrate")
    assert len(text) < 200, "whatever came"


def test_what_is_just_possible() -> None:
    most = {"num_slots": 4096, "num_pages": 10**6, "page_size": 10**6, "max_prefill_tokens": 10**6}
    data = {
        **DATA,
        "costs": [COST | {"batch": 1024, "length": 10**6, "seconds": [1e-9, 1000]}],
        "limits": most | {"max_batch": dict.fromkeys(BATCHES, 1024)},
        **{"load": 0.001, "rated_load": 1e6, "tokens_per_char": 4, "overhead": {"step": 1000}},
    }
    profile = Profile.from_dict(data)
    assert profile.samples == {(Stage.DEPTH, 1024, 10**6): (1e-9, 1000.0)}
    assert (profile.load, profile.rated_load, profile.tokens_per_char) == (0.001, 1e6, 4)


def test_which_stages_nobody_measured() -> None:
    assert Profile.from_dict(DATA).missing == [Stage.TEXT, Stage.PREFILL, Stage.DECODE]
    assert estimate.profile().missing == []


class TestOrder:
    """Of the steps, in which a shape's samples stay in theirs."""

    A, B, C = (Stage.DEPTH, 1, 1), (Stage.CODEC, 1, 4), (Stage.TEXT, 1, 16)
    DATA = {  # noqa: RUF012
        "voice": "small",
        "order": [1, 0, 0, 1, 0, 2],
        "costs": [
            COST | {"source": "measured", "seconds": [1.0, 2.0, 3.0]},
            COST | {"stage": "codec", "length": 4, "source": "measured", "seconds": [4.0, 5.0]},
            COST | {"stage": "text", "length": 16, "source": "measured", "seconds": [9.0]},
        ],
    }

    def test_it_and_the_samples_are_the_whole_timeline(self) -> None:
        profile = Profile.from_dict(self.DATA)
        assert profile.order == (self.B, self.A, self.A, self.B, self.A, self.C)
        assert profile.timeline == [
            *((self.B, 4.0), (self.A, 1.0), (self.A, 2.0)),
            *((self.B, 5.0), (self.A, 3.0), (self.C, 9.0)),
        ]

    def test_it_survives_json(self) -> None:
        profile = Profile.from_dict(self.DATA)
        assert profile.to_dict() == self.DATA
        assert Profile.from_dict(json.loads(json.dumps(profile.to_dict()))) == profile

    def test_without_there_is_no_timeline(self) -> None:
        assert Profile.from_dict(DATA).timeline == []


class TestHalvesInTime:
    """Cut where half of the time has passed, however many steps that is."""

    A, B, C, D = TestOrder.A, TestOrder.B, TestOrder.C, (Stage.PREFILL, 1, 16)
    PROFILE = Profile(
        "slow at the end",
        {A: (1.0, 1.5, 2.0, 8.0), B: (2.0, 2.5, 6.0), C: (0.5,), D: (0.25, 0.25)},
        order=(D, A, D, B, A, C, B, A, B, A),
        load=2.5,
    )
    """0.25 + 1 + 0.25 + 2 + 1.5 + 0.5 + 2.5 + 2 s, then 6 + 8."""

    def test_they_share_no_sample_and_keep_their_order(self) -> None:
        early, late = self.PROFILE.halves(0)
        assert early.order == (self.D, self.A, self.D, self.B, self.A, self.C, self.B, self.A)
        assert late.order == (self.B, self.A)
        assert (early.samples[self.A], late.samples[self.A]) == ((1.0, 1.5, 2.0), (8.0,))
        assert (early.samples[self.B], late.samples[self.B]) == ((2.0, 2.5), (6.0,))
        assert early.timeline + late.timeline == self.PROFILE.timeline

    def test_what_was_run_in_one_only_is_known_in_both(self) -> None:
        early, late = self.PROFILE.halves(0)
        assert early.samples[self.C] == late.samples[self.C] == (0.5,)
        assert early.samples[self.D] == late.samples[self.D] == (0.25, 0.25)
        assert {self.C, self.D}.isdisjoint(late.order)

    def test_the_seed_says_which_is_which(self) -> None:
        early, late = self.PROFILE.halves(0)
        assert self.PROFILE.halves(1) == (late, early)
        assert self.PROFILE.halves(2) == (early, late)
        assert (early.load, late.name) == (2.5, "slow at the end")

    def test_a_single_step_is_in_both(self) -> None:
        one = Profile("one", {self.A: (1.0,)}, order=(self.A,))
        first, second = one.halves(0)
        assert first.samples == second.samples == one.samples
        assert (first.order, second.order) == ((self.A,), ())


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
