"""Many requests at once: who calls when, what counts as late, the plain loop beside it, and the whole command."""

import io
import json
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from engine.bench import p50_p95_ms
from engine.bench_commands import LEAST_FRAMES, frames
from engine.bench_concurrency import (
    CHUNK,
    PEERS,
    Baseline,
    Concurrency,
    asked,
    callers,
    figures,
    one_by_one,
    peers,
    plain_loop,
    play,
    run,
    table,
    timed,
    together,
)
from engine.core import (
    Chunk,
    Finished,
    FinishReason,
    Limits,
    Output,
    Playhead,
    Prompt,
    PromptRow,
    Request,
    RequestStats,
    SamplingParams,
    Stage,
    Step,
    StepResult,
    TextSegment,
)
from engine.listener import Listener
from engine.messages import RuntimeConfig
from engine.runtime import Runtime
from engine.simulator import FakeClock, Simulation
from engine.traffic import SPEC, Utterance

BASE = Baseline({1: 0.1, 2: 0.11, 4: 0.5}, first=0.1, whole=1.0)


class Instant:
    """An engine that says everything before submit returns, two frames a chunk; `short` frames are not said."""

    spec = SPEC

    def __init__(self, short: int = 0) -> None:
        self.asked: list[Request] = []
        self._short = short

    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int:
        self.asked.append(request)
        request_id, frames = len(self.asked), request.sampling.max_frames - self._short
        pcm, codes = np.zeros(2 * 1920, np.int16), np.zeros((2, 16), np.int16)
        for first in range(0, frames, 2):
            deliver(Chunk(request_id, 0, first, pcm, codes, 1.0))
        stats = RequestStats(0.0, 0.0, 0.0, frames, 0.08 * frames, {Stage.DEPTH: 0.008 * frames})
        deliver(Finished(request_id, 0, FinishReason.LENGTH, stats))
        return request_id

    def append_text(self, request_id: int, text: str) -> None: ...

    def end_text(self, request_id: int, text: str = "") -> None: ...

    def cancel(self, request_id: int) -> None: ...

    def playhead(self, event: Playhead) -> None: ...

    def snapshot(self) -> Mapping[str, float]:
        return {"requests_finished_total": len(self.asked)}


def engine(short: int = 0) -> tuple[Instant, Runtime]:
    double = Instant(short)
    return double, cast("Runtime", double)


# ---- figures ----


def test_quantiles_are_nearest_ranks_in_milliseconds() -> None:
    assert p50_p95_ms(0.001 * (20 - i) for i in range(20)) == (11.0, 20.0)
    assert p50_p95_ms([0.0123456]) == (12.346, 12.346)
    assert p50_p95_ms([0.002, 0.001]) == (2.0, 2.0)


def heard(at: float, *arrivals: tuple[float, float]) -> Listener:
    """One who was served with a tenth of the audio's seconds as work."""
    listener = Listener(0, Utterance(at, 7))
    for instant, seconds in arrivals:
        listener.hear(seconds, instant)
    stats = RequestStats(0.0, 0.0, 0.0, 7, listener.audio, {Stage.DEPTH: 0.06 * listener.audio, Stage.CODEC: 0.02})
    listener.over(Finished(0, 0, FinishReason.LENGTH, stats), arrivals[-1][0])
    return listener


def test_an_underrun_is_a_chunk_after_all_before_it_was_played() -> None:
    good = heard(1.0, (1.02, 0.08), (1.06, 0.16), (1.2, 0.32))
    late = heard(1.0, (1.05, 0.08), (1.12, 0.16), (1.34, 0.32))
    worse = heard(1.0, (1.03, 0.08), (1.21, 0.16), (1.41, 0.32))
    row = figures([Simulation((good, late)), Simulation((worse,))], [good, late, worse])
    assert row["underruns"] == 3, "one at 1.34, after 1.29; two at 1.21, after 1.11, and at 1.41, after 1.37"
    assert row["largest_gap_ms"] == pytest.approx(140.0), "1.41 instead of 1.27"
    assert (row["ttfa_ms_p50"], row["ttfa_ms_p95"]) == (30.0, 50.0)
    assert row["rtf"] == pytest.approx((0.06 * 3 * 0.56 + 3 * 0.02) / (3 * 0.56), abs=1e-4)
    assert row["audio_s_per_s"] == pytest.approx(3 * 0.56 / (0.34 + 0.41), abs=1e-3)


def test_who_does_not_count_is_heard_all_the_same() -> None:
    lead_in, counted = heard(0.0, (0.5, 0.08), (0.7, 0.08)), heard(1.0, (1.01, 0.16))
    row = figures([Simulation((lead_in, counted))], [counted])
    assert (row["ttfa_ms_p50"], row["underruns"]) == (10.0, 1)


# ---- callers ----


def test_so_many_play_at_once_on_average() -> None:
    script = callers(16, 50, 500.0, SPEC)
    assert {said.frames for said in script} == {50}
    assert script[-1].at == pytest.approx(504.0, abs=2.0)
    assert 4.0 * len(script) / script[-1].at == pytest.approx(16.0, rel=0.1)
    gaps = np.diff([said.at for said in script])
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1), "as Poisson arrivals are"


def test_few_at_once_speak_shorter_so_that_enough_call() -> None:
    assert {number: callers(number, 50, 5.0, SPEC)[0].frames for number in (1, 2, 4, 8)} == {1: 6, 2: 12, 4: 25, 8: 50}
    assert callers(1, 50, 0.001, SPEC)[0].frames == 1


def test_somebody_always_counts() -> None:
    script = callers(1, 50, 0.01, SPEC)
    assert script[-1].at >= 0.08


def test_everybody_is_asked_for_the_same_length_with_another_text() -> None:
    requests = asked(5, 50, SPEC)
    assert {(x.sampling.min_frames, x.sampling.max_frames) for x in requests} == {(50, 50)}
    assert len({request.text for request in requests}) == 5
    assert all(40 < len(request.text) <= 70 for request in requests)
    assert all(len(request.text) <= 20 for request in asked(5, 50, replace(SPEC, max_text_chars=20)))


# ---- runs ----


def test_those_who_come_together_come_in_rounds() -> None:
    double, runtime = engine()
    row = together(runtime, 4, 18, BASE)
    assert (row.requests, row.arrival, row.served, row.frames) == (4, "together", 16, 18)
    assert len(double.asked) == 16
    assert row.underruns == 0
    assert row.rtf == pytest.approx(0.1)
    assert row.baseline_ttfa_ms_p50 == 500.0


def test_the_lead_in_of_those_who_come_one_by_one_does_not_count() -> None:
    double, runtime = engine()
    row = one_by_one(runtime, 2, 4, 0.4, BASE)
    script = callers(2, 4, 0.4, SPEC)
    lead_in = 0.08 * script[0].frames
    assert (row.requests, row.arrival, row.frames) == (2, "poisson", script[0].frames)
    assert len(double.asked) == len(script)
    assert row.served == sum(said.at >= lead_in for said in script) >= 1


def test_speech_of_another_length_is_an_error() -> None:
    _, runtime = engine(short=2)
    with pytest.raises(RuntimeError, match="was to speak 18 frames, one spoke 16"):
        play(runtime, [Utterance(0.0, 18)])


# ---- the baseline ----


def prompts(*lengths: int) -> list[Prompt]:
    return [Prompt((PromptRow((TextSegment((0,) * length),)),)) for length in lengths]


def test_a_plain_loop_makes_all_in_lockstep() -> None:
    sampling = SamplingParams(min_frames=18, max_frames=18)
    steps = list(plain_loop(prompts(20, 10), sampling, Limits()))
    assert all(step.batch == 2 for step in steps)
    opening, frames = steps[:2], steps[2:]
    assert [step.stage for step in opening] == [Stage.TEXT, Stage.PREFILL]
    assert opening[0].rows[0].admission is not None
    depth, decode = ([s.rows[0].start for s in frames if s.stage is stage] for stage in (Stage.DEPTH, Stage.DECODE))
    assert (depth, decode) == (list(range(18)), list(range(17)))
    codec = [(i, step.rows[0].start, step.length) for i, step in enumerate(frames) if step.stage is Stage.CODEC]
    assert codec == [(31, 0, 16), (36, 16, 2)], "audio comes before the next step of the backbone"
    assert [step.stage for step in frames[:3]] == [Stage.DEPTH, Stage.DECODE, Stage.DEPTH]
    assert all(row.admission is None for step in frames for row in step.rows)


class Slow:
    """Steps of 1 ms, codec steps of 10."""

    def __init__(self, clock: FakeClock) -> None:
        self.steps: list[Step] = []
        self._clock = clock

    def run(self, step: Step) -> StepResult:
        self.steps.append(step)
        self._clock.advance(0.010 if step.stage is Stage.CODEC else 0.001)
        return StepResult()


def test_its_first_audio_is_its_first_chunk() -> None:
    """Text and prefill, 16 frames with 15 steps of the backbone between them, and the codec; 2 frames more."""
    clock = FakeClock(5.0)
    executor = Slow(clock)
    steps = plain_loop(prompts(20), SamplingParams(max_frames=18), Limits())
    assert next(timed(executor, steps, clock)) == pytest.approx(0.033 + 0.010)
    assert len(executor.steps) == 34, "what comes afterwards is not run for it"
    steps = plain_loop(prompts(20), SamplingParams(max_frames=18), Limits())
    assert list(timed(executor, steps, clock)) == pytest.approx([0.043, 0.057])


def test_one_after_the_other_waits_for_those_before() -> None:
    assert BASE.sequential(1) == 0.1
    assert BASE.sequential(4) == pytest.approx(2.1), "of 0.1, 1.1, 2.1 and 3.1"
    assert BASE.figures(4) == {
        "baseline_ttfa_ms_p50": 500.0,
        "baseline_batched_ttfa_ms_p50": 500.0,
        "baseline_sequential_ttfa_ms_p50": 2100.0,
    }
    assert Baseline({2: 3.0}, 0.1, 1.0).figures(2)["baseline_ttfa_ms_p50"] == 1100.0


# ---- the command ----


def printed(thing: Any, width: int = 120) -> str:
    written = io.StringIO()
    Console(file=written, width=width).print(thing)
    return written.getvalue()


def test_the_whole_command_measures_a_real_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bench_concurrency.SERVED", 4)
    written = io.StringIO()
    config = RuntimeConfig(device="cpu", random_weights="tiny", in_process=True)
    done = run(config, [2, 1], 16, 0.5, Console(file=written, width=120))
    assert [(row.requests, row.arrival) for row in done.rows] == [
        (1, "together"),
        (2, "together"),
        (1, "poisson"),
        (2, "poisson"),
    ]
    assert (done.device, done.voice) == ("cpu", "random-tiny")
    for row in done.rows:
        assert 0 < row.ttfa_ms_p50 <= row.ttfa_ms_p95
        assert row.rtf > 0
        assert row.audio_s_per_s > 0
    batched = [done.baseline.batched[n] for n in (1, 2)]
    assert batched[0] == done.baseline.first <= done.baseline.whole
    data: dict[str, Any] = json.loads(json.dumps(done.to_dict(), allow_nan=False))
    assert set(data) == {"voice", "rows", "baseline", "published"}
    wanted = "requests arrival ttfa_ms_p50 ttfa_ms_p95 underruns rtf audio_s_per_s baseline_ttfa_ms_p50"
    assert set(data["rows"][0]) >= set(wanted.split())
    assert "H100" not in written.getvalue(), "figures of GPUs do not compare with a CPU's"
    assert not done.captures


def test_fewer_frames_than_plain_pytorchs_chunk_are_refused() -> None:
    with pytest.raises(ValueError, match="--frames must be at least 16, the first chunk of plain PyTorch, got 15"):
        run(RuntimeConfig(device="cpu"), [1], 15, 1.0, Console(quiet=True))


def test_the_command_line_knows_the_least_frames() -> None:
    assert CHUNK == LEAST_FRAMES
    assert frames("16") == 16
    with pytest.raises(ArgumentTypeError, match="must be at least 16, the first chunk of plain PyTorch, got 15"):
        frames("15")


def test_tables_are_read_by_people() -> None:
    _, runtime = engine()
    row = replace(together(runtime, 4, 18, BASE), ttfa_ms_p50=12.04, ttfa_ms_p95=20.06, rtf=0.1, audio_s_per_s=31.2)
    last = printed(table([row])).strip().splitlines()[-1].split()
    assert last == ["4", "together", "16", "12.0", "20.1", "0", "0.100", "31.2", "500", "2100"]
    assert "…" not in printed(table([row]), 80) + printed(peers(), 80)
    lines = printed(peers()).splitlines()
    assert sum("BreezeRT" in line and "H100" in line for line in lines) == 2
    assert all(peer.gpu and peer.source.startswith("https://") for peer in PEERS)
    rows: Sequence[Any] = Concurrency("x", "y", (row,), BASE).to_dict()["rows"]  # type: ignore[assignment]
    assert rows[0]["baseline_sequential_ttfa_ms_p50"] == 2100.0
