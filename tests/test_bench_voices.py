"""The bench of voices: what it measures is what an engine does, and each figure is where its name says."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from voices import KINDS, voice

from engine import bench_voices
from engine import device as devices
from engine.__main__ import main
from engine.bench_voices import (
    CACHED,
    FIRST,
    PLAIN,
    Ear,
    Encoding,
    FirstAudio,
    Voices,
    hearing,
    noise,
    targets,
    wav,
)
from engine.core import Limits, ModelSpec, Row, Stage, Step
from engine.predictor import Predictor
from engine.reference import decode
from engine.scheduler import Scheduler

CPU = torch.device("cpu")
QUIET = Console(file=io.StringIO())
TINY = KINDS["breeze_tts_2"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_voices, "MODEL", "tiny")


def test_recordings_are_encoded_alone_and_together() -> None:
    alone, together = hearing(CPU, 1.0, 2, QUIET)
    assert (alone.together, together.together) == (1, 2)
    for row in (alone, together):
        assert row.seconds == 1.0
        assert 0 < row.all_ms_p50 <= row.all_ms_p95
        assert 0 < row.longest_step_ms <= row.all_ms_p95
        assert row.steps >= 1


def test_its_steps_are_as_long_as_an_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set[float]()

    class Noted(Scheduler):
        def __init__(self, spec: ModelSpec, limits: Limits, predictor: Predictor) -> None:
            seen.add(limits.max_step_seconds)
            super().__init__(spec, limits, predictor)

    monkeypatch.setattr(bench_voices, "Scheduler", Noted)
    list(hearing(CPU, 1.0, 1, QUIET))
    assert seen == {devices.longest_step(CPU)}


def test_figures_stand_beside_what_was_asked() -> None:
    rows = tuple(Encoding(n, 10.0, ms, ms, 1, ms) for n, ms in ((1, 14.0), (16, 81.0)))
    audio = tuple(FirstAudio(kind, ms, ms) for kind, ms in ((PLAIN, 10.0), (FIRST, 30.0), (CACHED, 10.9)))
    done = Voices("e", "H200", 0, rows, "v", 10.0, 90.0, audio)
    assert [met for _, met in targets(done)] == [True, False, True]
    slow = (replace(rows[0], all_ms_p50=1501.0),)
    assert [met for _, met in targets(replace(done, threads=1, encoding=slow))] == [False, True]
    assert [met for _, met in targets(replace(done, recording_seconds=2.0))] == [True]
    assert [met for _, met in targets(replace(done, first_audio=audio[1:]))] == [True, False]


def test_its_ear_is_the_encoder() -> None:
    samples = noise(0.5, 1)
    row = Row(1, (1,), 0, 7, True, samples=samples)
    (codes,) = Ear(CPU).run(Step(Stage.ENCODE, (row,))).codes
    assert codes.shape == (7, 16)


def test_its_recordings_are_speech_enough_to_be_taken() -> None:
    samples = noise(2.0, 3)
    assert decode(wav(samples)) == pytest.approx(samples, abs=1e-4)


def test_the_command_writes_all_figures(tmp_path: Path) -> None:
    path = tmp_path / "voices.json"
    said = "--text", "hello there", "--ref-text", "good day to you", "--seconds", "2", "--runs", "2"
    assert main(["bench", "voices", "--voice", str(TINY), "--device", "cpu", *said, "--json", str(path)]) == 0
    data = json.loads(path.read_text())
    assert [row["voice"] for row in data["first_audio"]] == [PLAIN, FIRST, CACHED]
    assert all(0 < row["ttfa_ms_p50"] <= row["ttfa_ms_p95"] for row in data["first_audio"])
    assert [row["together"] for row in data["encoding"]] == [1, 2]
    assert (data["recording_seconds"], data["encoder"], data["voice"]) == (2.0, "tiny", "checkpoint")
    assert data["making_ms_p50"] > 0


def test_a_voice_that_only_clones_has_no_plain_first_audio(tmp_path: Path) -> None:
    said = "--text", "hello there", "--ref-text", "good day to you", "--seconds", "1", "--runs", "1"
    folder, path = voice("qwen3_tts.base", tmp_path), tmp_path / "voices.json"
    shutil.copytree(TINY / "audio_tokenizer", folder / "speech_tokenizer", dirs_exist_ok=True)  # it has an encoder
    assert main(["bench", "voices", "--voice", str(folder), "--device", "cpu", *said, "--json", str(path)]) == 0
    data = json.loads(path.read_text())
    assert [row["voice"] for row in data["first_audio"]] == [FIRST, CACHED]


def test_a_voice_that_does_not_clone_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "voices", "--device", "cpu", "--runs", "1"]) == 2
    assert "speaks as itself only" in capsys.readouterr().err
