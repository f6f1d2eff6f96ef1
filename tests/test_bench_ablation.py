"""The ladder of an ablation: an engine a step, one request at a time, and what is said about the targets."""

import io
from collections.abc import Callable
from typing import Any, cast

import pytest
import readme
from rich.console import Console
from scripted_runtime import ScriptedRuntime

from engine import bench_ablation
from engine.bench_ablation import FRAMES, PUBLISHED, STEPS, WARM, WORDS, Ablation, Row, run, table
from engine.core import SPEAKING, Output, Request, Stage
from engine.messages import RuntimeConfig
from engine.runtime import Runtime

QUIET = Console(quiet=True)


class OneAtATime(ScriptedRuntime):
    """Refuses company."""

    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int:
        assert set(self.jobs) == set(self.cancelled), "the one before is over"
        assert (request.sampling.min_frames, request.sampling.max_frames) == (FRAMES, FRAMES)
        return super().submit(request, deliver)


class Started:
    """Starts engines and keeps what they were asked for."""

    def __init__(self, pace: float = 0.001) -> None:
        self.configs: list[RuntimeConfig] = []
        self.engines: list[ScriptedRuntime] = []
        self._pace = pace

    def __call__(self, config: RuntimeConfig) -> Runtime:
        assert all(engine.closed for engine in self.engines), "one engine at a time"
        self.configs.append(config)
        self.engines.append(OneAtATime(pace=self._pace, chunk_frames=16 if config.policy == "fixed-chunks" else 1))
        return cast("Runtime", self.engines[-1])


def rows(*p50: float) -> tuple[Row, ...]:
    return tuple(Row(step, ms, 2 * ms, 20, 1, 3.2) for step, ms in zip(STEPS, p50, strict=True))


def test_each_step_is_an_engine_of_its_own() -> None:
    start = Started()
    ablation = run(RuntimeConfig(device="cpu", random_weights="tiny"), 3, QUIET, start)
    assert [(config.graphs, config.policy) for config in start.configs] == [
        (frozenset(), "fixed-chunks"),
        (frozenset(), "predictor"),
        (frozenset({Stage.DEPTH}), "predictor"),
        (frozenset(SPEAKING), "predictor"),
    ]
    assert {config.random_weights for config in start.configs} == {"tiny"}
    assert all(engine.closed and len(engine.jobs) == WARM + 3 for engine in start.engines)
    assert [row.step for row in ablation.rows] == ["eager-16", "progressive", "depth-compiled", "graphs"]
    assert [row.first_chunk_frames for row in ablation.rows] == [16, 1, 1, 1]
    assert all(row.runs == 3 and 0.5 < row.ttfa_ms_p50 <= row.ttfa_ms_p95 for row in ablation.rows)


def test_a_slow_step_has_fewer_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_ablation, "MOST_SECONDS", 0.0)
    ablation = run(RuntimeConfig(), 30, QUIET, Started())
    assert [row.runs for row in ablation.rows] == [5, 5, 5, 5]


def test_a_refusal_is_an_error() -> None:
    class Refusing(Started):
        def __call__(self, config: RuntimeConfig) -> Runtime:
            engine = super().__call__(config)
            self.engines[-1].retry_after = 1.0
            return engine

    with pytest.raises(RuntimeError, match="all voices are busy"):
        run(RuntimeConfig(), 1, QUIET, Refusing())


def test_json_has_ratios_and_what_was_published_apart() -> None:
    data: dict[str, Any] = Ablation("NVIDIA H200", "random-breeze-tts-2", rows(2400.0, 150.0, 66.0, 12.0)).to_dict()
    assert set(data) == {"voice", "rows", "graphs_faster_than", "published"}
    assert {"step", "ttfa_ms_p50", "ttfa_ms_p95", "runs"} <= set(data["rows"][0])
    assert data["graphs_faster_than"] == {"eager-16": 200.0, "progressive": 12.5}
    assert data["published"]["gpu"] == "H100"
    assert list(data["published"]["ttfa_ms"].items()) == [
        ("eager-16", 2500.0),
        ("progressive", 150.0),
        ("depth-compiled", 100.0),
        ("graphs", 35.0),
    ]


def test_targets_are_judged() -> None:
    good = Ablation("", "random-breeze-tts-2", rows(300.0, 120.0, 66.0, 20.0)).verdicts()
    assert good == [
        "all stages as graphs: 20.0 ms to first audio (p50), which meets the target of 20 ms",
        "15.0 times as fast as op by op, 16 frames before the first chunk, which meets the target of 15 times",
        "6.0 times as fast as op by op, chunks of 1, 2, 4, 8, 16 frames, which meets the target of 6 times",
    ]
    bad = Ablation("", "random-breeze-tts-2", rows(300.0, 120.0, 66.0, 21.0)).verdicts()
    assert all("short of the target of" in line for line in bad)


def printed(ablation: Ablation) -> str:
    written = io.StringIO()
    Console(file=written, width=80).print(table(ablation))
    assert "…" not in written.getvalue()
    return written.getvalue()


def test_the_table_fits_a_terminal_and_names_the_gpu_of_what_was_published() -> None:
    said = printed(Ablation("NVIDIA H200", "breeze-tts-2", rows(2400.0, 150.0, 66.0, 12.04)))
    assert f"{PUBLISHED['gpu']}, ms" in said
    (last,) = [line.split() for line in said.splitlines() if "every stage" in line]
    assert last == ["and", "every", "stage", "12.0", "24.1", "20", "1", "3", "35"]


def test_where_nothing_is_captured_there_is_nothing_to_compare() -> None:
    ablation = Ablation("cpu", "", rows(300.0, 120.0, 120.0, 120.0), captures=False)
    assert "H100" not in printed(ablation)
    (line,) = ablation.verdicts()
    assert line.startswith("no graphs are captured on cpu: from the second step on")
    written = io.StringIO()
    done = run(RuntimeConfig(device="cpu"), 1, Console(file=written, width=80), Started())
    assert not done.captures
    assert "H100" not in written.getvalue()
    assert "target" not in written.getvalue()


def test_what_was_published_of_one_model_does_not_stand_beside_another() -> None:
    ablation = Ablation("NVIDIA H200", "random-qwen3-tts-1.7b", rows(2400.0, 150.0, 66.0, 12.0))
    assert "H100" not in printed(ablation)
    assert "published" not in ablation.to_dict()
    assert ablation.verdicts() == [
        "all stages as graphs: 12.0 ms to first audio (p50)",
        "200.0 times as fast as op by op, 16 frames before the first chunk",
        "12.5 times as fast as op by op, chunks of 1, 2, 4, 8, 16 frames",
    ]


def test_steps_have_the_names_of_the_readme() -> None:
    assert dict(WORDS) == readme.STEPS
