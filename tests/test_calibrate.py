"""Warm-up and calibration: real steps for any voice, however little it has room for and whatever it can read."""

from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer, models

from engine.calibrate import MAX_FRAMES, PROMPT_TOKENS, calibrate, exercise, usual, warm_up
from engine.clock import MonotonicClock
from engine.core import Limits, Mode, ModelSpec, SamplingParams, Stage
from engine.executor import Executor, load
from engine.messages import RuntimeConfig
from engine.models import Model
from engine.predictor import Predictor

GOLDEN = Path(__file__).parent / "golden" / "breeze" / "checkpoint"


def cramped(folder: Path, max_positions: int) -> tuple[Model, Executor, Limits]:
    """A voice of few positions that reads one letter, which is none of ours."""
    shutil.copytree(GOLDEN, folder)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": max_positions}
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(models.BPE({"字": 0}, [])).save(str(folder / "tokenizer.json"))
    return load(RuntimeConfig(folder, device="cpu"))


@pytest.mark.parametrize("max_positions", [2, 3, 20, 40, 100])
def test_a_voice_with_little_room_and_other_letters_gets_warm(tmp_path: Path, max_positions: int) -> None:
    model, executor, limits = cramped(tmp_path / "voice", max_positions)
    clock, predictor = MonotonicClock(), Predictor()
    warm_up(model, executor, limits, clock, predictor)
    steps = [step for step, _ in exercise(model, executor, limits, 2, clock)]
    assert {step.stage for step in steps} == set(Stage)
    prompt = sum(step.length for step in steps if step.stage is Stage.PREFILL)
    frames = sum(step.length for step in steps if step.stage is Stage.CODEC)
    assert prompt == steps[0].length
    assert prompt + frames == min(max_positions, PROMPT_TOKENS + MAX_FRAMES)


def test_calibration_fits_it_too(tmp_path: Path) -> None:
    profile = calibrate(*cramped(tmp_path / "voice", 20), runs=1, console=Console(file=StringIO()))
    assert profile["voice"] == "voice"


def room(max_positions: int, limits: Limits, batch: int = 1) -> tuple[int, int]:
    """Prompt tokens and frames."""
    spec = ModelSpec("", "", 24000, 1920, 16, max_positions, frozenset({Mode.PLAIN}), SamplingParams())
    prompt, frames = usual(spec, limits, batch)
    return prompt.length, frames


def test_a_usual_utterance_shrinks_to_the_room_there_is() -> None:
    assert room(1024, Limits()) == (96, 31)
    assert room(100, Limits()) == (69, 31)
    assert room(20, Limits()) == (10, 10)
    assert room(1024, Limits(num_pages=4, page_size=16)) == (33, 31)
    assert room(1024, Limits(num_pages=4, page_size=16), batch=2) == (16, 16)
