"""The synthetic profile: which rows were measured, what the others are estimated from, and how they scatter."""

import pytest

from engine import estimate
from engine.chunking import LADDER
from engine.core import SPEAKING, Stage
from engine.costs import ProfileCosts
from engine.encoding import PIECES
from engine.predictor import Predictor

PROFILE = estimate.profile()
CENTRES = {key: seconds for key, seconds, _ in estimate.costs()}
MEASURED = {
    (Stage.DECODE, 1, 1): 1.9e-3,
    (Stage.DEPTH, 1, 1): 12.0e-3,
    (Stage.DEPTH, 2, 1): 12.0e-3,
    (Stage.DEPTH, 16, 1): 12.6e-3,
    (Stage.DEPTH, 32, 1): 13.4e-3,
}


def test_what_was_measured_says_so_and_all_else_is_estimated() -> None:
    assert PROFILE.sources == {key: "measured" if key in MEASURED else "estimated" for key in PROFILE.samples}
    assert {key: CENTRES[key] for key in MEASURED} == MEASURED


def test_every_shape_that_the_engine_can_run_is_there() -> None:
    batches, tokens = (1, 2, 4, 8, 16, 32), (16, 32, 64, 128, 256, 512)
    lengths = {Stage.TEXT: tokens, Stage.PREFILL: tokens, Stage.DECODE: (1,), Stage.DEPTH: (1,), Stage.CODEC: LADDER}
    shapes = {(stage, batch, length) for stage in SPEAKING for batch in batches for length in lengths[stage]}
    shapes |= {(Stage.ENCODE, batch, length) for batch in (1, 2, 4, 8, 16) for length in PIECES}
    assert set(PROFILE.samples) == shapes
    assert max(batches) == 2 * PROFILE.limits.max_batch[Stage.DECODE]  # guided requests run two sequences
    assert max(tokens) >= PROFILE.limits.max_prefill_tokens


@pytest.mark.parametrize(
    ("key", "seconds"),
    [
        ((Stage.TEXT, 1, 64), 1.5e-3 + 64 * 3.5e-6),
        ((Stage.TEXT, 8, 512), 1.5e-3 + 8 * 512 * 3.5e-6),
        ((Stage.PREFILL, 1, 256), 2.5e-3 + 256 * 7.05e-6),
        ((Stage.PREFILL, 4, 16), 2.5e-3 + 4 * 16 * 7.05e-6),
        ((Stage.DECODE, 2, 1), 1.9e-3 + 13.336e-6),
        ((Stage.DECODE, 32, 1), 1.9e-3 + 31 * 13.336e-6),
        ((Stage.DEPTH, 4, 1), 12.0e-3 + 0.6e-3 * 2 / 14),
        ((Stage.DEPTH, 8, 1), 12.0e-3 + 0.6e-3 * 6 / 14),
        ((Stage.CODEC, 1, 1), 1.6e-3 + 165.37e-6),
        ((Stage.CODEC, 16, 16), 1.6e-3 + 256 * 165.37e-6),
        ((Stage.ENCODE, 1, 128), 3.0e-3 + 128 * 14.667e-6),
        ((Stage.ENCODE, 16, 64), 3.0e-3 + 1024 * 14.667e-6),
    ],
)
def test_estimates(key: tuple[Stage, int, int], seconds: float) -> None:
    assert CENTRES[key] == pytest.approx(seconds, rel=1e-4)


def test_more_never_costs_less() -> None:
    for (stage, batch, length), seconds in CENTRES.items():
        assert seconds <= CENTRES.get((stage, 2 * batch, length), seconds)
        assert seconds <= CENTRES.get((stage, batch, 2 * length), seconds)


def test_samples_scatter_with_a_tail() -> None:
    """2 % either way, up to 10 % more in one of 12, half as long again in one of 100."""
    ratios = [s / CENTRES[key] for key, seconds in PROFILE.samples.items() for s in seconds]
    assert len(ratios) == 64 * len(CENTRES)
    assert 0.9799 < min(ratios) < 0.981
    assert max(ratios) == pytest.approx(1.5, rel=1e-3)
    tail, far = sum(ratio > 1.0201 for ratio in ratios), sum(ratio > 1.2 for ratio in ratios)
    assert 0.05 < (tail - far) / len(ratios) < 0.09
    assert 0.005 < far / len(ratios) < 0.015
    assert not any(1.121 < ratio < 1.499 for ratio in ratios)


def test_the_same_at_every_call() -> None:
    assert estimate.profile() == PROFILE
    assert PROFILE.name == "h200-estimate"


def test_it_can_be_predicted_from_and_simulated() -> None:
    ProfileCosts(PROFILE)
    assert Predictor(PROFILE).cost(Stage.DEPTH, 1) == pytest.approx(12.0e-3, rel=0.06)
