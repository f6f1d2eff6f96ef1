"""Warm-up and calibration: real steps for any voice, however little it has room for and whatever it can read; and what
passes around the steps of a running engine."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from dataclasses import replace
from io import StringIO
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from tokenizers import Tokenizer, models
from voices import voice

from engine import random_weights
from engine.calibrate import (
    FEW,
    MAX_FRAMES,
    PROMPT_TOKENS,
    PROMPTS,
    Calibration,
    calibrate,
    exercise,
    lockstep,
    tokens_per_char,
    usual,
    warm_up,
)
from engine.chunking import LADDER
from engine.clock import MonotonicClock
from engine.core import SPEAKING, Limits, Mode, ModelSpec, RequestStats, SamplingParams, Stage, Step, StepResult
from engine.costs import ProfileCosts
from engine.executor import Executor, load
from engine.messages import RuntimeConfig
from engine.models import Model
from engine.overhead import Asked, between
from engine.predictor import Predictor
from engine.profile import Overhead, Profile
from engine.reader import reading
from engine.simulator import FakeClock, simulate
from engine.traffic import Utterance

GOLDEN = Path(__file__).parent / "golden" / "breeze" / "checkpoint"


def cramped(folder: Path, max_positions: int) -> tuple[Model, Executor, Limits]:
    """A voice of few positions that reads one letter, which is none of ours."""
    shutil.copytree(GOLDEN, folder)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": max_positions}
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(models.BPE({"字": 0}, [])).save(str(folder / "tokenizer.json"))
    return load(RuntimeConfig(folder, device="cpu"))


def test_the_tokens_of_a_text_are_counted_or_taken_to_be_its_characters(tmp_path: Path) -> None:
    reads, cannot = load(RuntimeConfig(device="cpu"))[0], cramped(tmp_path / "voice", 100)[0]
    coarse = random_weights.outline("tiny")
    kinds = "qwen3_tts", "qwen3_tts.base"
    plain, clones = (load(RuntimeConfig(voice(kind, tmp_path), device="cpu"))[0] for kind in kinds)
    assert (tokens_per_char(reads), tokens_per_char(cannot)) == (1.0, 1.0)
    assert 0.2 < tokens_per_char(coarse) < 0.3
    assert tokens_per_char(clones) == tokens_per_char(plain) != 1.0


@pytest.mark.parametrize("max_positions", [2, 3, 20, 40, 100])
def test_a_voice_with_little_room_and_other_letters_gets_warm(tmp_path: Path, max_positions: int) -> None:
    model, executor, limits = cramped(tmp_path / "voice", max_positions)
    clock, predictor = MonotonicClock(), Predictor()
    warm_up(model, executor, limits, clock, predictor)
    steps = [step for step, _ in exercise(model, executor, limits, 2, clock)]
    assert {step.stage for step in steps} == set(SPEAKING)
    assert all(step.batch == 2 for step in steps)
    prompt = sum(step.length for step in steps if step.stage is Stage.PREFILL)
    frames = sum(step.length for step in steps if step.stage is Stage.CODEC)
    assert prompt == steps[0].length
    assert prompt + frames == min(max_positions, PROMPT_TOKENS + MAX_FRAMES)


def test_calibration_fits_it_too(tmp_path: Path) -> None:
    profile = calibrate(*cramped(tmp_path / "voice", 20), runs=1, console=Console(file=StringIO()))
    assert profile.name == "voice"
    assert profile.limits is not None
    assert {length for stage, _, length in profile.samples if stage is Stage.TEXT} == {10}


def room(max_positions: int, limits: Limits, batch: int = 1) -> tuple[int, int]:
    """Prompt tokens and frames."""
    spec = ModelSpec("", "", 24000, 1920, 16, max_positions, frozenset({Mode.PLAIN}), SamplingParams())
    prompts, frames = usual(spec, limits, batch)
    assert [prompt.length for prompt in prompts] == [prompts[0].length - i for i in range(batch)], (
        "none is encoded twice"
    )
    return prompts[0].length, frames


def test_a_usual_utterance_shrinks_to_the_room_there_is() -> None:
    assert room(1024, Limits()) == (96, 31)
    assert room(100, Limits()) == (69, 31)
    assert room(20, Limits()) == (10, 10)
    assert room(1024, Limits(num_pages=4, page_size=16)) == (33, 31)
    assert room(1024, Limits(num_pages=4, page_size=16), batch=2) == (16, 16)


def test_a_long_prompt_goes_in_in_parts_and_ends_where_its_text_does() -> None:
    limits = Limits(max_prefill_tokens=8)
    spec = ModelSpec("", "", 24000, 1920, 16, 100, frozenset({Mode.PLAIN}), SamplingParams())
    text, *parts = [step for step in lockstep(spec, limits, 2, tokens=17) if step.stage in (Stage.TEXT, Stage.PREFILL)]
    assert [row.count for row in text.rows] == [17, 16]
    assert [[(row.start, row.count, row.final) for row in part.rows] for part in parts] == [
        [(0, 8, False), (0, 8, False)],
        [(8, 8, False), (8, 8, True)],
        [(16, 1, True)],
    ]


class SlowBatches:
    """An executor on a fake clock: a millisecond alone, 50 in company. Every codec step has audio."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def run(self, step: Step) -> StepResult:
        self.clock.advance(0.001 if step.batch == 1 else 0.05)
        pcm, codes = np.zeros(1920, np.int16), np.zeros((1, 16), np.int16)
        return (
            StepResult(pcm=(pcm,) * step.batch, codes=(codes,) * step.batch)
            if step.stage is Stage.CODEC
            else StepResult()
        )


def test_what_no_scheduler_would_choose_is_measured_a_few_times_only() -> None:
    """Steps of two that are longer than the longest step allowed; of one, everything matters."""
    clock, sent = FakeClock(), list[object]()
    spec = ModelSpec("voice", "", 24000, 1920, 16, 1024, frozenset({Mode.PLAIN}), SamplingParams())
    limits, reader = Limits(max_step_seconds=0.03), SimpleNamespace(send=sent.append)
    calibration = Calibration(spec, SlowBatches(clock), limits, reader, clock)  # type: ignore[arg-type]
    for number in range(FEW + 5):
        for batch in (1, 2):
            calibration.round(batch, number)
    samples = calibration.profile.samples
    assert set(samples) == {
        *((Stage.TEXT, batch, length) for batch in (1, 2) for length in PROMPTS),
        *((Stage.PREFILL, batch, length) for batch in (1, 2) for length in PROMPTS if length <= 256),
        *((stage, batch, 1) for stage in (Stage.DECODE, Stage.DEPTH) for batch in (1, 2)),
        *((Stage.CODEC, batch, length) for batch in (1, 2) for length in LADDER),
    }
    assert {len(samples[Stage.TEXT, 1, length]) for length in PROMPTS} == {FEW + 5}
    assert len(samples[Stage.CODEC, 1, 16]) == FEW + 5
    assert len(samples[Stage.DEPTH, 1, 1]) == (len(PROMPTS) - 1 + len(LADDER)) * (FEW + 5)
    assert len(samples[Stage.CODEC, 1, 1]) == len(PROMPTS) * (FEW + 5)
    assert {len(samples[Stage.TEXT, 2, length]) for length in PROMPTS} == {FEW}
    assert len(samples[Stage.CODEC, 2, 16]) == FEW
    assert set(samples[Stage.CODEC, 2, 16]) == {0.05}
    timeline = calibration.profile.timeline
    assert timeline[:2] == [((Stage.TEXT, 1, 16), 0.001), ((Stage.PREFILL, 1, 16), 0.001)]
    assert len(timeline) == sum(map(len, samples.values()))
    assert sum(seconds for _, seconds in timeline) == pytest.approx(clock.now()), "back to back"
    chunks = sum(key[1] * len(seconds) for key, seconds in samples.items() if key[0] is Stage.CODEC)
    assert len(sent) == chunks, "all audio goes to the reader"


# ---- around the steps ----


def asked(frames: int, around: float, *ways_out: float) -> Asked:
    """A request of so many frames, an utterance's chunks, and 50 ms of steps."""
    stats = RequestStats(10.0, 10.1, 10.05 + around, frames, 0.08 * frames, {Stage.DEPTH: 0.03, Stage.CODEC: 0.02})
    return Asked(stats, len(ways_out), ways_out)


def test_what_is_left_over_is_the_way_in_between_and_out() -> None:
    """2 ms until the scheduler knows, 0.1 ms between two steps: of 4 and of 24. One outlier changes nothing."""
    short = [asked(1, 0.0023, 0.0004), asked(1, 0.0023, 0.0006), asked(1, 0.0900, 0.0005)]
    long = [asked(10, 0.0043, *ways_out) for ways_out in ((0.0005, 0.0005, 0.0005), (0.0005, 0.03, 0.0005))]
    long.append(asked(10, 0.09, 0.0005, 0.0005, 0.0005))
    assert (short[0].steps, long[0].steps) == (4, 24)
    assert between(short, long) == Overhead(0.002, 0.0001, 0.0005)


def test_noise_makes_no_negative_overhead() -> None:
    assert between([asked(1, 0.005, 0.001)], [asked(10, 0.004, 0.001, 0.001, 0.001)]) == Overhead(0.005, 0.0, 0.001)
    assert between([asked(1, 0.001, 0.001)], [asked(10, 0.050, 0.001, 0.001, 0.001)]).submit == 0.0


def test_a_profile_keeps_it() -> None:
    profile = Profile("mine", {(Stage.DEPTH, 1, 1): (0.012,)}, overhead=Overhead(0.002, 0.0001, 0.0005))
    data = profile.to_dict()
    assert data["overhead"] == {"submit": 0.002, "step": 0.0001, "deliver": 0.0005}
    assert Profile.from_dict(data).overhead == profile.overhead
    assert Profile.from_dict(data | {"overhead": {"step": 0.001}}).overhead == Overhead(step=0.001)
    assert "overhead" not in replace(profile, overhead=Overhead()).to_dict()


@pytest.mark.parametrize(
    "overhead", [{"step": -0.001}, {"step": nan}, {"submit": inf}, {"way": 0.1}, {"step": "x"}, [1]]
)
def test_what_is_no_overhead_is_refused(overhead: object) -> None:
    data = {"voice": "mine", "costs": [], "overhead": overhead}
    with pytest.raises(ValueError, match="not a cost profile"):
        Profile.from_dict(data)


def test_a_simulation_spends_it() -> None:
    """40 ms of steps; 2 ms on the way in, 1 ms before each of four steps, 3 ms on the way out."""
    costs = ProfileCosts(Profile("flat", {(stage, 1, 64): (0.01,) for stage in Stage}))
    (without,) = simulate([Utterance(1.0, 5)], costs).listeners
    (listener,) = simulate([Utterance(1.0, 5)], costs, overhead=Overhead(0.002, 0.001, 0.003)).listeners
    assert (without.ttfa, listener.ttfa) == (pytest.approx(0.040), pytest.approx(0.049))


def test_what_an_owner_reads_is_gone() -> None:
    with reading() as writer:
        for _ in range(3):
            writer.send(np.zeros(1920, np.int16))
    assert not [child for child in multiprocessing.active_children() if child.name == "breezert-reader"]
