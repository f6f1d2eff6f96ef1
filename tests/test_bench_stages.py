"""Stages against their floors: bytes by hand for a tiny voice, the published ones for the real, and measured rows."""

import io
import json
from typing import Any

import pytest
import torch
from rich.console import Console

from engine import random_weights
from engine.bench_stages import COPIES, Sizes, StageTimes, bandwidth, row, run, table
from engine.clock import MonotonicClock
from engine.core import Row, Stage, Step
from engine.kv_cache import PagedKV
from engine.messages import RuntimeConfig
from engine.models.breeze_tts_2 import Breeze
from engine.models.qwen3_tts import Qwen3TTS
from engine.simulator import FakeClock

TINY = RuntimeConfig(device="cpu", random_weights="tiny")


def pages(model: Breeze | Qwen3TTS) -> PagedKV:
    backbone = model.config.backbone
    return PagedKV.allocate(
        backbone, num_pages=2, page_size=16, num_slots=2, max_positions=16, dtype=torch.float32, device=model.device
    )


@pytest.fixture(scope="module")
def tiny() -> Sizes:
    model = random_weights.load("tiny", device=torch.device("cpu"), dtype=torch.float32)
    return Sizes.of(model, pages(model))


BACKBONE = 4 * (2 * (64 * 32 + 32 * 32 + 2 * 16 + 2 * 32 + 3 * 64 * 32) + 32 + 36 * 32)
DEPTH_LAYERS = 4 * 2 * (32 * 16 + 16 * 16 + 2 * 16 + 3 * 32 * 16)
DEPTH_REST = 4 * (32 * 16 + 16 + 15 * 16 * 35)
TEXT_LAYERS = 4 * (2 * (64 * 24 + 32 * 24 + 2 * 16 + 4 * 24 + 3 * 48 * 24) + 24 + 24 * 32)
POSITION, FRAME, TOKEN = 4 * 2 * 2 * 16, 4 * 16 * 32, 4 * 24


def step(stage: Stage, *rows: Row) -> Step:
    return Step(stage, rows)


class TestBytes:
    """Of float32, 4 bytes a number."""

    def test_text(self, tiny: Sizes) -> None:
        rows = Row(1, (1,), count=10), Row(2, (2,), count=5)
        assert tiny.of_step(step(Stage.TEXT, *rows), {}) == TEXT_LAYERS + 15 * TOKEN

    def test_prefill_reads_what_came_before(self, tiny: Sizes) -> None:
        rows = Row(1, (1,), start=0, count=10), Row(2, (2,), start=256, count=4)
        assert tiny.of_step(step(Stage.PREFILL, *rows), {}) == BACKBONE + 270 * POSITION

    def test_decode_reads_the_context_of_each(self, tiny: Sizes) -> None:
        rows = Row(1, (1,), start=3), Row(2, (2,), start=0)
        assert tiny.of_step(step(Stage.DECODE, *rows), {1: 10, 2: 30}) == BACKBONE + 2 * FRAME + (14 + 31) * POSITION

    def test_depth_reads_its_layers_fifteen_times(self, tiny: Sizes) -> None:
        assert tiny.of_step(step(Stage.DEPTH, Row(1, (1,))), {}) == 15 * DEPTH_LAYERS + DEPTH_REST + FRAME

    def test_codec_does_not_grow_with_the_frames(self, tiny: Sizes) -> None:
        one, many = (tiny.of_step(step(Stage.CODEC, Row(1, (1,), count=count)), {}) for count in (1, 16))
        two = tiny.of_step(step(Stage.CODEC, Row(1, (1,)), Row(2, (2,))), {})
        assert one == many
        assert two - one == tiny.stream


def test_the_real_dimensions_have_the_published_bytes() -> None:
    """In float32, as they stand on meta."""
    model = random_weights.outline("breeze-tts-2")
    sizes = Sizes.of(model, pages(model))
    assert sizes.weights[Stage.DECODE] == 4 * (1_409_410_048 + 4_202_496)
    assert sizes.weights[Stage.DEPTH] == 4 * (15 * (333_472_768 - 1024) + 1024 + 2_097_152 + 31_503_360)
    assert sizes.weights[Stage.TEXT] == 4 * (697_896_064 + 2_359_296)
    assert sizes.weights[Stage.CODEC] == 4 * (105_901_761 - 262_144 - 2 * 512 * 256)
    assert sizes.position == 2 * 114_688
    assert sizes.stream == 2 * 4 * (135_232 + 1_163_264)


def test_those_of_the_second_model_have_theirs() -> None:
    """Tables are not read whole: neither the text's, nor those of codes, though the talker owns the first of them."""
    model = random_weights.outline("qwen3-tts-1.7b")
    sizes = Sizes.of(model, pages(model))
    layer = 2048 * (2 * 2048 + 2 * 1024) + 2 * 128 + 2 * 2048 + 3 * 2048 * 6144
    assert sizes.weights[Stage.DECODE] == 4 * (28 * layer + 2048 + 3072 * 2048)
    layer = 1024 * (2 * 2048 + 2 * 1024) + 2 * 128 + 2 * 1024 + 3 * 1024 * 3072
    rest = 1024 + 15 * 2048 * 1024 + 2048 * 1024 + 1024
    assert sizes.weights[Stage.DEPTH] == 4 * (15 * 5 * layer + rest)
    assert (sizes.weights[Stage.TEXT], sizes.token, sizes.frame) == (0, 4 * 2048, 4 * 16 * 2048)


class Copied(FakeClock):
    """An instant later whenever it is looked at, by less each time."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = iter([0.5, 0.0, 0.4, 0.0, 0.25, 0.0, 0.3, 0.0, 0.5, 0.0])

    def now(self) -> float:
        before = super().now()
        self.advance(next(self._steps))
        return before


def test_bandwidth_counts_both_ways_of_the_fastest_round() -> None:
    assert bandwidth(torch.device("cpu"), Copied(), 1000) == pytest.approx(2 * COPIES * 1000 / 0.25)
    assert bandwidth(torch.device("cpu"), MonotonicClock(), 1 << 20) > 1e8


def test_a_row_is_quantiles_over_the_mean_floor() -> None:
    seconds = [0.001 * (i + 1) for i in range(20)]
    made = row(Stage.DEPTH, 2, 1, seconds, [1_000_000, 3_000_000], bandwidth=1e9)
    assert (made.ms_p50, made.ms_p95, made.floor_ms, made.over_floor) == (11.0, 20.0, 2.0, 5.5)
    assert made.runs == 20


def test_every_stage_is_measured_by_shape() -> None:
    written = io.StringIO()
    times = run(TINY, [1, 2], 1, Console(file=written, width=100))
    shapes = {(x.stage, x.batch, x.length) for x in times.rows}
    assert shapes == {
        *((stage, batch, length) for stage in (Stage.TEXT, Stage.PREFILL) for batch in (1, 2) for length in (32, 128)),
        *((stage, batch, 1) for stage in (Stage.DECODE, Stage.DEPTH) for batch in (1, 2)),
        *((Stage.CODEC, batch, frames) for batch in (1, 2) for frames in (1, 2, 4, 8, 16)),
    }
    assert [x.stage for x in times.rows] == sorted((x.stage for x in times.rows), key=list(Stage).index)
    assert all(0 < x.floor_ms < x.ms_p50 <= x.ms_p95 for x in times.rows)
    assert {x.runs for x in times.rows if x.stage is Stage.DEPTH} == {10}, "5 a script, 2 lengths of prompts"
    data: dict[str, Any] = json.loads(json.dumps(times.to_dict()))
    assert data["graphs"] == [], "the CPU has none"
    assert data["bandwidth_gb_per_s"] > 0.1
    assert set(data["rows"][0]) >= {"stage", "batch", "length", "ms_p50", "ms_p95", "floor_ms", "over_floor"}
    assert "over floor" in written.getvalue()


def test_the_table_has_the_bandwidth() -> None:
    written = io.StringIO()
    times = StageTimes("NVIDIA H200", "", (), 4.3e12, (row(Stage.DEPTH, 1, 1, [0.006], [10_700_000_000], 4.28e12),))
    Console(file=written, width=80).print(table(times))
    assert "NVIDIA H200, 4300 GB/s" in written.getvalue()
    assert written.getvalue().strip().splitlines()[-1].split() == ["depth", "1", "1", "6.000", "6.000", "2.500", "2.4"]
