"""The engine's command line: what each command writes, and that every mistake is one line and exit status 2."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.__main__ import main
from engine.core import Stage
from engine.machine import check_writable, write_json
from engine.profile import Profile

GOLDEN = Path(__file__).parent / "golden" / "breeze"
TINY = ("--voice", str(GOLDEN / "checkpoint"), "--device", "cpu")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `calibrate` wrote."""
    path = tmp_path_factory.mktemp("calibrated") / "profile.json"
    assert main(["calibrate", "-o", str(path), "--runs", "1", *TINY]) == 0
    return path


def read(path: Path) -> dict[str, Any]:
    """Strict JSON: NaN is none."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    data: dict[str, Any] = json.loads(path.read_text(), parse_constant=refuse)
    return data


def test_calibrate_measures_every_stage_at_every_batch_size(calibrated: Path) -> None:
    data = read(calibrated)
    assert data["device"] == "cpu"
    assert data["voice"] == "checkpoint"
    assert data["command"].startswith("breezert calibrate -o")
    profile = Profile.from_dict(data)
    assert {(stage, batch) for stage, batch, _ in profile.samples} == {(s, b) for s in Stage for b in (1, 2, 4, 8)}
    assert {length for stage, batch, length in profile.samples if (stage, batch) == (Stage.CODEC, 1)} == {
        1,
        2,
        4,
        8,
        16,
    }
    assert len(profile.samples[Stage.CODEC, 1, 1]) == 1
    assert len(profile.samples[Stage.DECODE, 1, 1]) == 5, "one of each chunk"


def test_simulate_reads_what_calibrate_wrote(calibrated: Path, tmp_path: Path) -> None:
    path, device = tmp_path / "out.json", []
    for options in ((), ("--profile", str(calibrated))):
        argv = ["simulate", "--requests", "20", "--load", "0.5", "--seed", "3", "--json", str(path), *options]
        assert main(argv) == 0
        figures = read(path)
        assert (figures["requests"], figures["load"], figures["seed"], figures["finished"]) == (20, 0.5, 3, 20)
        device.append(figures["device_seconds_per_audio_second"])
    assert device[0] != device[1], "the built-in device, and the one that was measured"


def test_bench_speech_writes_a_row_for_each_number_of_streams(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    argv = ["bench", "speech", "--rounds", "1", "--streams", "1", "2", "--json", str(path), "--in-process", *TINY]
    assert main(argv) == 0
    data = read(path)
    assert data["device"] == "cpu"
    assert [(row["streams"], row["utterances"]) for row in data["rows"]] == [(1, 1), (2, 2)]
    for row in data["rows"]:
        assert row["audio_seconds"] > 0
        assert row["rtf"] > 0
        assert 0 < row["ttfa_ms_p50"] <= row["ttfa_ms_p95"]
        assert 0 <= row["underruns"] <= row["utterances"]
        assert row["largest_gap_ms"] >= 0


def test_bench_determinism_writes_null_where_nothing_parted(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert main(["bench", "determinism", "--shapes", "1", "--json", str(path), *TINY]) == 0
    assert read(path)["rows"] == [{"shape": 1, "requests": 5, "equal_share": 1.0, "largest_margin": None}]


def test_verify_by_its_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0: all agree, 1: some differ, 2: it cannot be told."""
    folder = shutil.copytree(GOLDEN, tmp_path / "golden")
    assert main(["verify", str(folder)]) == 0
    assert "groups agree" in capsys.readouterr().err
    file = folder / "expected_model.safetensors"
    good = load_file(file)
    frames = good["greedy.eos.frames"].clone()
    frames[0, 0] += 1
    save_file(good | {"greedy.eos.frames": frames}, file)
    assert main(["verify", str(folder)]) == 1
    assert "1 of" in capsys.readouterr().err
    save_file(good | {"tf.frames": good["tf.frames"].float()}, file)
    assert one_line(capsys, "verify", str(folder)).endswith("make the expected tensors again")


def one_line(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """What a command that must fail says."""
    assert main(list(argv)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    [line] = said.err.strip().splitlines()
    assert line.startswith("python -m engine: ")
    return line


NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is here")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("calibrate", "-o", "OUT", "--voice", "/nowhere"), "/nowhere/config.json: cannot be read"),
        (("bench", "determinism", "--voice", "/nowhere"), "/nowhere/config.json: cannot be read"),
        (("bench", "speech", "--voice", "/nowhere", "--in-process"), "/nowhere/config.json: cannot be read"),
        pytest.param(("calibrate", "-o", "OUT", "--device", "cuda"), "finds no CUDA device", marks=NO_CUDA),
        (("bench", "determinism", "--device", "tpu"), "--device must be auto, cpu or cuda, got 'tpu'"),
        (("bench", "speech", "--device", "tpu", "--in-process"), "--device must be auto, cpu or cuda, got 'tpu'"),
        (("bench", "speech", "--streams", "90", "--in-process", *TINY), "--streams must be at most 72"),
        (("verify", "/nowhere"), "/nowhere: expected expected_*.safetensors beside checkpoint/, found none"),
        (("simulate", "--profile", "/nowhere"), "/nowhere: No such file or directory"),
        (
            ("simulate", "--profile", str(GOLDEN / "checkpoint" / "config.json")),
            "config.json: expected a profile that calibrate wrote (not a cost",
        ),
        (("simulate", "--profile", __file__), "test_commands.py: expected a profile that calibrate wrote (Extra data"),
        (("simulate", "--json", "/nowhere/out.json"), "/nowhere/out.json: No such file or directory"),
        (("bench", "determinism", "--json", "/nowhere/x", "--voice", "/y"), "/nowhere/x: No such file or directory"),
        (("bench", "speech", "--json", "/nowhere/x", "--voice", "/y"), "/nowhere/x: No such file or directory"),
        (("calibrate", "-o", "/", "--voice", "/y"), "/: Is a directory"),
    ],
)
def test_a_mistake_is_one_line(
    argv: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.json"
    assert says in one_line(capsys, *(str(path) if word == "OUT" else word for word in argv))
    assert not path.exists()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("simulate --requests 0", "--requests: must be at least 1, got 0"),
        ("simulate --requests -3", "--requests: must be at least 1, got -3"),
        ("simulate --load 0", "--load: must be above 0, got 0"),
        ("simulate --load nan", "--load: must be above 0, got nan"),
        ("simulate --load inf", "--load: must be above 0, got inf"),
        ("bench speech --rounds 0", "--rounds: must be at least 1, got 0"),
        ("bench speech --streams 2 0", "--streams: must be at least 1, got 0"),
        ("bench determinism --shapes 0", "--shapes: must be at least 1, got 0"),
        ("calibrate -o x --runs 0", "--runs: must be at least 1, got 0"),
        ("say hello -o x --threads 0", "--threads: must be at least 1, got 0"),
        ("say hello -o x --max-frames 0", "--max-frames: must be at least 1, got 0"),
        ("say hello -o x --max-frames many", "--max-frames: invalid positive value: 'many'"),
        ("say hello -o x --sead 3", "unrecognized arguments: --sead 3"),
        ("say hello -o x --dtype fp8", "--dtype: invalid choice: 'fp8'"),
    ],
)
def test_options_say_what_they_take(argv: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(argv.split())
    assert exit_info.value.code == 2
    assert says in capsys.readouterr().err


def test_looking_whether_a_file_can_be_written_changes_nothing(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("[1]")
    for path in (str(old), str(new), "-"):
        check_writable(path)
    assert old.read_text() == "[1]"
    assert not new.exists()


def test_nan_is_not_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(str(tmp_path / "out.json"), {"x": float("nan")})


def test_the_commands_need_no_webrtc_package() -> None:
    code = (
        "import sys; from engine.__main__ import main\n"
        "import engine.say, engine.bench, engine.verify, engine.simulator, engine.calibrate, engine.worker\n"
        "assert not {'aiortc', 'av', 'aiohttp'} & set(sys.modules), 'a WebRTC package was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
