"""On a CUDA device: the codes of the CPU under greedy in float32, and audio in bfloat16."""

from dataclasses import replace

import pytest
import torch
from lockstep import lockstep, wave

from engine import models
from engine.core import Limits, Request
from engine.executor import Executor
from engine.messages import EMBEDDED_VOICE
from engine.sampling import Filter, draw

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device"),
]
LIMITS = Limits(num_slots=4, num_pages=4 * 64)
TEXTS = ("Good morning.", "The same words on another device.", "And a third sentence, of some length.")


def spoken(device: str, dtype: torch.dtype) -> list[tuple[list[list[int]], torch.Tensor]]:
    model = models.load(EMBEDDED_VOICE, device=torch.device(device), dtype=dtype)
    sampling = replace(model.spec.sampling, temperature=0.0, depth_temperature=0.0)
    asks = [(model.prompt(Request(text, sampling)), sampling) for text in TEXTS]
    said = lockstep(Executor(model, LIMITS), LIMITS, asks, frames=20)
    return [(one.codes, torch.from_numpy(wave(one))) for one in said]


def test_greedy_codes_in_float32_are_the_cpus() -> None:
    for (codes, audio), (theirs, their_audio) in zip(
        spoken("cuda", torch.float32), spoken("cpu", torch.float32), strict=True
    ):
        assert codes == theirs
        assert (audio - their_audio).abs().max() < 2e-3  # cuDNN's float32 convolutions may use TF32


def test_bfloat16_speaks() -> None:
    for codes, audio in spoken("cuda", torch.bfloat16):
        assert len({tuple(frame) for frame in codes}) > 10
        assert 0.01 < audio.square().mean().sqrt() < 0.5


def test_a_broken_row_draws_0_there_too() -> None:
    """The search for a NaN must end where it ends on the CPU."""
    logits = torch.zeros(2, 500)
    logits[0, 7] = torch.nan
    logits[1, 3] = 50.0
    filter = Filter.of([1.0] * 2, [0] * 2, [1.0] * 2)
    rows = replace(filter, **{name: getattr(filter, name).cuda() for name in ("temperature", "last", "top_p")})
    assert draw(logits.cuda(), rows, torch.full((2,), 0.9, dtype=torch.float64).cuda()).tolist() == [0, 3]
