"""The comparison behind `bench determinism`: where runs part, and how clear that draw was."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from engine import models
from engine.core import Limits
from engine.determinism import MAX_MARGIN, Run, compare, contrast, parting, run_all
from engine.models import Model

GOLDEN = Path(__file__).parent / "golden" / "breeze"
TEXTS = ["hello there", "see you soon, my friend"]
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
    assert contrast(2, alone, alone).largest_margin is None
    assert contrast(2, alone[:1], [Run([1, 3], [CLEAR] * 2)]).ok, f"{NARROW} is below {MAX_MARGIN}"


@pytest.fixture(scope="module")
def tiny() -> Model:
    return models.load(GOLDEN / "checkpoint", device=torch.device("cpu"), dtype=torch.float32)


def runs(model: Model, shape: int) -> list[Run]:
    return run_all(model, Limits(num_slots=2, num_pages=32, batches=(shape,)), TEXTS)


def test_margins_are_those_of_another_implementations_logits(tiny: Model) -> None:
    """A frame's first code, then the other fifteen; reserved ids do not compete."""
    expected = load_file(GOLDEN / "expected_model.safetensors")
    name = "greedy.plain.cfg1.rp1.1"
    first = expected[f"{name}.code0_processed"].topk(2).values
    depth = expected[f"{name}.depth_guided_logits"][..., :32].topk(2).values
    margins = torch.cat(((first[:, 0] - first[:, 1])[:, None], depth[..., 0] - depth[..., 1]), 1).flatten()
    run = runs(tiny, 2)[0]
    assert run.codes[: 8 * 16] == expected[f"{name}.frames"].flatten().tolist()
    torch.testing.assert_close(torch.tensor(run.margins[: 8 * 16]), margins, rtol=0, atol=4e-4)


def test_shapes_of_one_model_part_at_narrow_draws_at_most(tiny: Model) -> None:
    (row,) = compare(tiny, Limits(num_slots=2, num_pages=32), TEXTS, shapes=[2])
    assert (row.shape, row.requests, row.ok) == (2, 2, True)


def test_a_shape_that_computed_something_else_is_not_ok(tiny: Model) -> None:
    """Noise of a tenth of each weight, as a broken kernel would add, tips clear draws."""
    noisy, generator = deepcopy(tiny), torch.Generator().manual_seed(1)
    assert isinstance(noisy, nn.Module)
    with torch.no_grad():
        for parameter in noisy.parameters():
            parameter.mul_(1 + 0.1 * torch.randn(parameter.shape, generator=generator))
    noisy.eval()
    row = contrast(2, runs(tiny, 1), runs(noisy, 2))
    assert row.equal_share == 0
    assert row.largest_margin is not None
    assert row.largest_margin > MAX_MARGIN
    assert not row.ok
