"""The embedded voice in bfloat16 beside float32 on the CPU: given the same frames, what it makes of them is near.

On the CPU, and on a CUDA device through graphs and fused kernels where there is one.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine import models
from engine.calibrate import script
from engine.core import Limits, Prompt, Request, SamplingParams, Stage, StepResult
from engine.executor import Executor
from engine.messages import EMBEDDED_VOICE

LIMITS = Limits(num_slots=1, num_pages=32)
TEXT = "The train to the coast leaves from platform nine."
FRAMES = 31
NEAR = 0.04
"""Relative error of the backbone's state: bfloat16 has 8 bits, and each layer rounds a few times."""
SLOT = 1


def executor(device: str, dtype: torch.dtype) -> tuple[Executor, Prompt, SamplingParams]:
    model = models.load(EMBEDDED_VOICE, device=torch.device(device), dtype=dtype)
    sampling = replace(
        model.spec.sampling, temperature=0.0, depth_temperature=0.0, min_frames=FRAMES, max_frames=FRAMES
    )
    made = Executor(model, LIMITS, frozenset(Stage) if device == "cuda" else frozenset())
    made.capture()
    return made, model.prompt(Request(TEXT, sampling)), sampling


def hidden(one: Executor) -> torch.Tensor:
    return one.stages.hidden[SLOT].float().cpu()


def until_they_part(ours: list[int], theirs: list[int]) -> list[bool]:
    """Whether each code is equal, up to the first that is not: what comes after it follows from it."""
    equal = [a == b for a, b in zip(ours, theirs, strict=True)]
    return equal[: equal.index(False) + 1] if False in equal else equal


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).norm() / want.norm())


# Skipped where there is no such device: CI has none.
CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")],
)


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_given_the_same_frames_it_thinks_and_sounds_the_same(device: str) -> None:
    exact, prompt, sampling = executor("cpu", torch.float32)
    rough, _, _ = executor(device, torch.bfloat16)
    states, drawn, waves = list[float](), list[bool](), list[tuple[StepResult, StepResult]]()
    for step in script([prompt], sampling, LIMITS):
        want, got = exact.run(step), rough.run(step)
        if step.stage in (Stage.PREFILL, Stage.DECODE):
            states.append(error(hidden(rough), hidden(exact)))
            drawn.append(bool(rough.stages.code0[SLOT].cpu() == exact.stages.code0[SLOT]))
            rough.stages.code0.copy_(exact.stages.code0)
        elif step.stage is Stage.DEPTH:
            ours, theirs = (one.stages.codes[SLOT, step.rows[0].start, 1:].tolist() for one in (rough, exact))
            drawn += until_they_part(ours, theirs)
            rough.stages.codes.copy_(exact.stages.codes)
        elif step.stage is Stage.CODEC:
            waves.append((got, want))
    assert len(states) == FRAMES + 1
    assert max(states) < NEAR, states
    assert sum(drawn) / len(drawn) > 0.9, "the others were nearly ties"
    for got, want in waves:
        ours, theirs = (one.pcm[0].astype(np.float64) for one in (got, want))
        assert np.abs(ours - theirs).max() < 0.002 * 32767, "the codec computes in float32"
