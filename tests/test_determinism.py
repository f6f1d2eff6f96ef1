"""The comparison behind `bench determinism`: where runs part, and how clear that draw was."""

from math import isnan

import torch

from engine import models
from engine.core import Limits
from engine.determinism import MAX_MARGIN, Run, compare, contrast, parting
from engine.messages import EMBEDDED_VOICE

CLEAR, NARROW = 0.5, 2e-5


def test_equal_runs_do_not_part() -> None:
    assert parting(Run([1, 2], [CLEAR] * 2), Run([1, 2], [CLEAR] * 2)) is None


def test_the_margin_is_that_of_the_first_difference() -> None:
    assert parting(Run([1, 2, 3], [CLEAR, NARROW, CLEAR]), Run([1, 9, 9], [CLEAR] * 3)) == NARROW


def test_an_end_of_speech_is_a_draw_too() -> None:
    assert parting(Run([1, 2], [CLEAR, CLEAR, NARROW]), Run([1, 2, 3], [CLEAR] * 4)) == NARROW


def test_a_row_counts_equal_runs_and_keeps_the_largest_margin() -> None:
    alone = [Run([1, 2], [CLEAR, NARROW]), Run([1, 2], [CLEAR, CLEAR]), Run([5], [CLEAR])]
    row = contrast(4, alone, [Run([1, 3], [CLEAR] * 2), Run([4, 2], [CLEAR] * 2), Run([5], [CLEAR])])
    assert (row.shape, row.requests, row.equal_share, row.largest_margin) == (4, 3, 1 - 2 / 3, CLEAR)
    assert not row.ok
    assert contrast(2, alone, alone).ok
    assert contrast(2, alone[:1], [Run([1, 3], [CLEAR] * 2)]).ok, f"{NARROW} is below {MAX_MARGIN}"


def test_margins_of_the_embedded_voice_are_those_of_its_draws() -> None:
    model = models.load(EMBEDDED_VOICE, device=torch.device("cpu"), dtype=torch.float32)
    limits = Limits(num_slots=1, num_pages=64)
    (row,) = compare(model, limits, ["Yes."], shapes=[2])
    assert row.requests == 1
    assert row.ok
    assert row.equal_share == 1 or not isnan(row.largest_margin)
