"""The engine's command line: what each command writes, and that every mistake is one line and exit status 2."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import estimate, profiles
from engine.__main__ import main, runtime_config, started
from engine.core import SPEAKING, Limits, Stage
from engine.machine import check_writable, write_json
from engine.policies import NAMES
from engine.profile import Profile
from engine.runtime import Runtime, RuntimeConfig
from engine.simulate import Asked
from engine.traffic import read_trace

GOLDEN = Path(__file__).parent / "golden" / "breeze"
TINY = ("--voice", str(GOLDEN / "checkpoint"), "--device", "cpu")


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `calibrate` wrote."""
    path = tmp_path_factory.mktemp("calibrated") / "profile.json"
    assert main(["calibrate", "-o", str(path), "--runs", "1", "--in-process", *TINY]) == 0
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
    shapes = {(stage, batch) for stage, batch, _ in profile.samples}
    assert shapes >= {(s, b) for s in SPEAKING for b in (1, 2, 4, 8)} | {(Stage.ENCODE, 1)}
    assert {length for stage, batch, length in profile.samples if (stage, batch) == (Stage.CODEC, 1)} == {
        1,
        2,
        4,
        8,
        16,
    }
    prompts = sum((stage, batch) == (Stage.TEXT, 1) for stage, batch, _ in profile.samples)
    assert prompts > 1
    assert len(profile.samples[Stage.CODEC, 1, 1]) == prompts, "of each prompt"
    assert len(profile.samples[Stage.CODEC, 1, 16]) == 1, "of one of them"
    assert len(profile.samples[Stage.DECODE, 1, 1]) == prompts - 1 + 5, "one of each chunk"
    assert set(profile.sources.values()) == {"measured"}
    assert profile.limits is not None
    assert (profile.limits.num_slots, profile.limits.max_batch[Stage.CODEC]) == (8, 8)
    assert profile.overhead.deliver > 0, "what passes around the steps of a running engine"


def simulated(path: Path, *options: str) -> dict[str, Any]:
    """What `simulate` wrote of a small run."""
    assert main(["simulate", "--json", str(path), *options]) == 0
    return read(path)


def test_simulate_reads_what_calibrate_wrote(calibrated: Path, tmp_path: Path) -> None:
    few = ("--requests", "5", "--load", "0.5", "--policy", "predictor")
    theirs = simulated(tmp_path / "a.json", *few, "--profile", str(calibrated))
    shipped = simulated(tmp_path / "b.json", *few)
    assert (theirs["profile"], shipped["profile"]) == ("profile", profiles.MEASURED)
    assert theirs["bound"] != shipped["bound"]
    assert theirs["policies"]["predictor"]["rtf"] != shipped["policies"]["predictor"]["rtf"]


def test_simulate_tells_about_every_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = simulated(tmp_path / "out.json", "--requests", "10", "--load", "30", "--seed", "3", "--seeds", "2")
    assert (data["load"], data["profile"], data["requests"], data["seeds"]) == (30.0, profiles.MEASURED, 10, [3, 4])
    assert 400 < data["bound"] < 450
    assert (data["device"], data["command"][:18]) == ("simulated", "breezert simulate ")
    assert list(data["policies"]) == list(NAMES)
    for figures in data["policies"].values():
        assert figures["requests"] == 20
        assert 0 <= figures["worst_requests_with_gaps"] <= figures["requests_with_gaps"] <= 20
        assert (figures["max_extra_buffer_ms"] > 0) == (figures["requests_with_gaps"] > 0)
        assert 0 < figures["ttfa_p50_ms"] <= figures["ttfa_p95_ms"] <= figures["ttfa_p99_ms"]
        assert figures["refused"] == figures["unheard_seconds"] == 0
        assert (figures["rtf"] > 0, figures["throughput"] > 0, 0 <= figures["idle_share"] < 1) == (True, True, True)
    assert len({figures["audio_seconds"] for figures in data["policies"].values()}) == 1, "the same callers"
    table = capsys.readouterr().err
    assert all(name in table for name in NAMES)


def test_simulate_takes_the_load_of_the_profile_and_moods(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps(estimate.profile().to_dict() | {"load": 12.5}))
    few = ("--requests", "10", "--policy", "predictor")
    data = simulated(tmp_path / "out.json", *few, "--profile", str(own))
    assert data["load"] == 12.5
    options = ("--barge-ins", "1", "--stalls", "0.5", "--drift", "100", "--burst", "5", "--load", "12.5")
    moody = simulated(tmp_path / "out.json", *few, *options, "--profile", str(own))
    assert [moody[name] for name in ("barge_ins", "stalls", "drift_ppm", "burst")] == [1.0, 0.5, 100.0, 5]
    calm, hasty = data["policies"]["predictor"], moody["policies"]["predictor"]
    assert calm["unheard_seconds"] == 0 < hasty["unheard_seconds"] < hasty["audio_seconds"] < calm["audio_seconds"]


def test_simulate_plays_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 0, "frames": 25}\n\n{"at": 0.5, "frames": 1550, "text_tokens": 60}\n')
    data = simulated(tmp_path / "out.json", "--trace", str(trace), "--policy", "predictor")
    assert (data["load"], data["requests"]) == (None, 2)
    assert data["policies"]["predictor"]["audio_seconds"] == 126.0
    assert data["policies"]["predictor"]["emulation"] is False


def test_simulate_refuses_a_trace_that_nobody_could_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 0, "frames": 25}\n{"at": 0.5, "frames": 2500}\n')
    assert "line 2: text_tokens (40) and frames together must be at most 2047" in one_line(
        capsys, "simulate", "--trace", str(trace)
    )


def test_simulate_explains_every_decision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 0.5, "frames": 2}\n')
    assert main(["simulate", "--trace", str(trace), "--policy", "predictor", "--explain"]) == 0
    said = capsys.readouterr()
    stages = [line.split()[1] for line in said.out.splitlines()]
    assert stages == ["text", "prefill", "depth", "codec", "decode", "depth", "decode", "codec"]
    assert said.out.startswith("0.5013 text for 0:text[new] (1 of 1): start priority; not anybody\n")
    assert "predictor" in said.err


def test_simulate_draws_the_chosen_policies(tmp_path: Path) -> None:
    path = tmp_path / "lanes.png"
    few = ("--requests", "6", "--load", "30", "--policy", "round-robin", "--plot", str(path))
    assert main(["simulate", *few]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    monkeypatch.delitem(sys.modules, "engine.plot", raising=False)
    line = one_line(capsys, "simulate", "--load", "9", "--plot", str(tmp_path / "x.png"))
    assert line.endswith("plots need matplotlib, which is not installed: pip install 'breezert[plot]'")


def test_a_sweep_stores_the_load_that_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps(estimate.profile().to_dict()))
    asked: list[Asked] = []
    monkeypatch.setattr(
        "engine.simulate.sweep", lambda what, _: asked.append(what) or {"load": 31.25, "rated_load": 28.5}
    )
    data = simulated(tmp_path / "out.json", "--sweep", "--store", "--profile", str(own), "--requests", "300")
    stored = json.loads(own.read_text())
    assert (data["load"], stored["load"], stored["rated_load"]) == (31.25, 31.25, 28.5)
    assert (asked[0].seeds, asked[0].base.requests, asked[0].profile.name) == (range(20), 300, "own")


@pytest.mark.parametrize(
    "option", ["--requests 50", "--seeds 3", "--burst 2", "--stalls 0.1", "--barge-ins 0.1", "--drift 5"]
)
def test_only_a_load_by_its_definition_is_stored(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.simulate.sweep", lambda *_: pytest.fail("it was to be refused before"))
    line = one_line(capsys, "simulate", "--sweep", "--store", *option.split())
    what = "300 requests, 20 seeds, callers who come one by one and listen to the end"
    assert line.endswith(f"--store keeps a load that is defined by {what}: leave out {option.split()[0]}")


def test_a_load_is_not_searched_for_in_vain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.json"
    own.write_text(json.dumps(estimate.profile().to_dict()))

    def check(path: str) -> None:
        if path == str(own):
            raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("engine.__main__.check_writable", check)  # a superuser may write everywhere
    monkeypatch.setattr("engine.simulate.sweep", lambda *_: pytest.fail("it was to be refused before"))
    assert one_line(capsys, "simulate", "--sweep", "--store", "--profile", str(own)).endswith(
        f"{own}: Permission denied"
    )


def test_whoever_stops_reading_is_told_nothing(tmp_path: Path) -> None:
    """As `head` does: the pipe's other end is closed before the first line."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"at": 0.5, "frames": 2}\n')
    theirs, ours = os.pipe()
    os.close(theirs)
    argv = [sys.executable, "-m", "engine", "simulate", "--trace", str(trace), "--policy", "predictor", "--explain"]
    done = subprocess.run(argv, stdout=ours, stderr=subprocess.PIPE, text=True, check=False)
    os.close(ours)
    assert done.returncode == 141
    assert "pipe" not in done.stderr.lower()


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[Limits]:
    """Of the engines that a command starts."""
    seen: list[Limits] = []

    def noted(config: RuntimeConfig) -> Runtime:
        runtime = started(config)
        seen.append(runtime.limits)
        return runtime

    monkeypatch.setattr("engine.bench_commands.started", noted)
    return seen


def test_bench_speech_writes_a_row_for_each_number_of_streams(tmp_path: Path, limits: list[Limits]) -> None:
    path = tmp_path / "out.json"
    argv = ["bench", "speech", "--rounds", "1", "--streams", "1", "2", "--json", str(path), "--in-process", *TINY]
    assert main(argv) == 0
    data = read(path)
    assert limits[0].max_wait == inf, "nobody is refused because he would be late"
    assert data["device"] == "cpu"
    assert [(row["streams"], row["utterances"]) for row in data["rows"]] == [(1, 1), (2, 2)]
    for row in data["rows"]:
        assert row["audio_seconds"] > 0
        assert row["rtf"] > 0
        assert 0 < row["ttfa_ms_p50"] <= row["ttfa_ms_p95"]
        assert 0 <= row["underruns"] <= row["utterances"]
        assert row["largest_gap_ms"] >= 0


def test_bench_gaps_writes_what_was_real_and_what_was_simulated(
    calibrated: Path, tmp_path: Path, limits: list[Limits]
) -> None:
    path, trace = tmp_path / "out.json", tmp_path / "trace.jsonl"
    common = ["bench", "gaps", "--profile", str(calibrated), "--in-process", *TINY]
    options = ["--requests", "3", "--load", "20", "--seed", "5", "--policy", "newest-first"]
    assert main([*common, *options, "--json", str(path), "--save-trace", str(trace)]) == 0
    data = read(path)
    assert (limits[0].max_wait, limits[0].max_queued) == (inf, 1_000_000), "as simulated"
    assert (data["device"], data["load"], data["seed"]) == ("cpu", 20.0, 5)
    real, simulated = data["policies"]["newest-first"], data["simulated"]["newest-first"]
    assert real["requests"] == simulated["requests"] == 3
    assert real["ttfa_p50_ms"] > 0 < simulated["ttfa_p50_ms"]
    said = read_trace(trace)
    assert len(said) == 3
    assert sum(x.frames for x in said) * 0.08 == pytest.approx(real["audio_seconds"])
    assert main([*common, "--trace", str(trace), "--json", str(path), "--policy", "newest-first", "predictor"]) == 0
    assert (read(path)["load"], list(read(path)["policies"])) == (None, ["newest-first", "predictor"])


def test_bench_plan_writes_a_row_for_each_number_of_streams(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    argv = ["bench", "plan", "--streams", "2", "4", "--steps", "20", "--callers", "2", "--json", str(path)]
    assert main(argv) == 0
    data = read(path)
    kinds = [(row["streams"], row["admission"], row["steps"]) for row in data["rows"]]
    assert kinds == [(2, False, 20), (2, True, 20), (4, False, 20), (4, True, 20)]
    assert data["growth_over_n_log_n"] > 0
    assert data["simulated"]["requests"] == 2


def test_an_engine_explains_its_decisions_when_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["say", "hi", "-o", str(tmp_path / "x.wav"), "--max-frames", "1", "--min-frames", "1", "--in-process", *TINY]
    assert main([*argv, "--explain"]) == 0
    explained = [line for line in capsys.readouterr().err.splitlines() if "start priority" in line]
    assert [line.split()[1] for line in explained] == ["text", "prefill", "depth", "codec"]
    assert main(argv) == 0
    assert "start priority" not in capsys.readouterr().err


def test_serve_takes_what_every_engine_takes() -> None:
    from agent.__main__ import serve_parser

    assert runtime_config(serve_parser().parse_args(["--explain"])).explain
    assert not runtime_config(serve_parser().parse_args([])).explain


def test_serve_tells_of_the_ice_servers_that_it_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agent import __main__, serve

    asked = list[serve.ServeConfig]()
    monkeypatch.setattr(serve, "run", asked.append)
    servers = ["stun:stun.example.net", "turn:turn.example.net"]
    assert __main__.main(["serve", "--ice-server", servers[0], "--ice-server", servers[1]]) == 0
    assert [server.url for server in asked[0].ice_servers] == servers
    with pytest.raises(SystemExit):
        __main__.main(["serve", "--ice-server", "http://example.net"])
    assert "an ICE server reads like stun:host[:port] or turn:host[:port]" in capsys.readouterr().err


def test_texts_are_written_out_as_asked() -> None:
    from agent.__main__ import serve_parser

    asked = [runtime_config(serve_parser().parse_args(argv)).normalise for argv in ([], ["--normalise", "off"])]
    assert asked == [None, False]
    assert runtime_config(serve_parser().parse_args(["--normalise", "on"])).normalise is True


def test_bench_determinism_writes_null_where_nothing_parted(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    assert main(["bench", "determinism", "--shapes", "1", "--json", str(path), *TINY]) == 0
    assert read(path)["rows"] == [
        {"shape": 1, "requests": 5, "equal_share": 1.0, "largest_margin": None, "allowed": 1e-4}
    ]


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
        (("bench", "gaps", "--voice", "/nowhere", "--in-process"), "/nowhere/config.json: cannot be read"),
        (("bench", "gaps", "--in-process", *TINY), "no profile 'checkpoint-cpu' comes with the engine"),
        (("bench", "gaps", "--trace", "/nowhere"), "/nowhere: No such file or directory"),
        (("bench", "gaps", "--save-trace", "x", "--policy", "predictor", "round-robin"), "give one --policy"),
        (("bench", "gaps", "--trace", "x", "--load", "2"), "leave out --load, --requests and --text-rate"),
        (("bench", "gaps", "--save-trace", "/nowhere/x", "--voice", "/y"), "/nowhere/x: No such file or directory"),
        (("bench", "plan", "--streams", "1", "2"), "--streams must be at least 2, got 1"),
        pytest.param(("calibrate", "-o", "OUT", "--device", "cuda"), "finds no CUDA device", marks=NO_CUDA),
        (("bench", "determinism", "--device", "tpu"), "--device must be auto, cpu or cuda, got 'tpu'"),
        (("bench", "speech", "--device", "tpu", "--in-process"), "--device must be auto, cpu or cuda, got 'tpu'"),
        (("bench", "speech", "--streams", "90", "--in-process", *TINY), "--streams must be at most 72"),
        (("verify", "/nowhere"), "/nowhere: expected expected*.safetensors beside checkpoint/, found none"),
        (("simulate", "--profile", "/nowhere"), "/nowhere: No such file or directory"),
        (("simulate", "--profile", "h100"), "expected a profile out of "),
        (("simulate", "--trace", "/nowhere"), "/nowhere: No such file or directory"),
        (("simulate", "--trace", __file__), "test_commands.py, line 1: expected a JSON object with at, frames"),
        (("simulate", "--trace", os.devnull), "/dev/null: expected at least one utterance, got none"),
        (("simulate", "--trace", "x", "--load", "3"), "leave out --load, --requests, --burst and --text-rate"),
        (("simulate", "--sweep", "--load", "3"), "--sweep tries all loads: leave out --load and --trace"),
        (("simulate", "--load", "3", "--plot", "x.xyz"), "expected a name that ends in .png, got x.xyz"),
        (("simulate", "--store"), "--store keeps the load that --sweep finds: give both"),
        (("simulate", "--load", "3", "--explain"), "--explain tells about one run: give one --policy"),
        (("simulate", "--explain", "--policy", "predictor", "--seeds", "2"), "--explain tells about one run"),
        (("simulate", "--explain", "--policy", "predictor", "--json", "-"), "--explain writes to standard output"),
        (("simulate", "--load", "3", "--plot", "/nowhere/x.png"), "/nowhere/x.png: No such file or directory"),
        (
            ("simulate", "--requests", "2", "--profile", "LOADLESS"),
            "holds no load: give --load, or have --sweep --store",
        ),
        (
            ("simulate", "--profile", str(GOLDEN / "checkpoint" / "config.json")),
            "config.json: expected a profile that calibrate wrote (not a cost",
        ),
        (("simulate", "--profile", __file__), "test_commands.py: expected a profile that calibrate wrote (Extra data"),
        (("simulate", "--json", ""), "expected the name of a file to write, or - for standard output, got ''"),
        (("calibrate", "--estimate", "-o", ""), "expected the name of a file to write, or - for standard output"),
        (("bench", "speech", "--json", "", "--voice", "/y"), "expected the name of a file to write"),
        (
            ("bench", "speech", "--profile", "STAGELESS", "--in-process"),
            "expected costs of every stage, got none of text",
        ),
        (("simulate", "--json", "/nowhere/out.json"), "/nowhere/out.json: No such file or directory"),
        (("bench", "determinism", "--json", "/nowhere/x", "--voice", "/y"), "/nowhere/x: No such file or directory"),
        (("bench", "speech", "--json", "/nowhere/x", "--voice", "/y"), "/nowhere/x: No such file or directory"),
        (("calibrate", "-o", "/", "--voice", "/y"), "/: Is a directory"),
    ],
)
def test_a_mistake_is_one_line(
    argv: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, loadless, stageless = (tmp_path / name for name in ("out.json", "loadless.json", "stageless.json"))
    stageless.write_text('{"voice": "x", "costs": []}')
    if "LOADLESS" in argv:
        loadless.write_text(json.dumps(estimate.profile().to_dict()))
    words = {"OUT": str(path), "LOADLESS": str(loadless), "STAGELESS": str(stageless)}
    assert says in one_line(capsys, *(words.get(word, word) for word in argv))
    assert not path.exists()


COSTS = [{"stage": stage, "batch": 1, "length": 1, "seconds": [0.001]} for stage in Stage]
LIMITS = {
    **{"num_slots": 16, "num_pages": 2048, "page_size": 16, "max_prefill_tokens": 256},
    "max_batch": dict.fromkeys(Stage, 8),
}


def profile(path: Path, **fields: Any) -> str:
    """A file that holds one with these fields."""
    path.write_text(json.dumps({"voice": "x", "load": 1, "costs": COSTS} | fields))
    return str(path)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"costs": COSTS[:-2]}, "expected costs of every stage, got none of codec"),
        ({"limits": LIMITS | {"max_batch": {"text": 1}}}, "limits.max_batch.prefill: expected a whole number"),
        ({"limits": LIMITS | {"max_batch": dict.fromkeys(Stage, 10**6)}}, "limits.max_batch.text: expected"),
        ({"limits": LIMITS | {"num_slots": 10**12}}, "limits.num_slots: expected a whole number from 1 to 4096"),
        ({"limits": LIMITS | {"num_slots": 1e300}}, "limits.num_slots: expected a whole number from 1 to 4096"),
        ({"tokens_per_char": 1e308}, "tokens_per_char: expected a number from 0.001 to 4, got 1e+308"),
        ({"load": 5e-324}, "load: expected a number from 0.001 to 1000000, got 5e-324"),
        ({"load": 1e308}, "load: expected a number from 0.001 to 1000000, got 1e+308"),
        ({"costs": [COSTS[0] | {"seconds": [1e308] * 4}]}, "costs[0].seconds: expected a list of seconds from 1e-09"),
        ({"costs": [COSTS[0] | {"seconds": [5e-324] * 4}]}, "costs[0].seconds: expected a list of seconds from 1e-09"),
        ({"costs": [COSTS[0] | {"length": 1.7e308}]}, "costs[0].length: expected a whole number from 0 to 1000000"),
        ({"costs": [COSTS[0] | {"batch": 1e300, "length": 1e300}]}, "costs[0].batch: expected a whole number from 1"),
        ({"overhead": {"step": 1e308}}, "overhead.step: expected seconds from 0 to 1000, got 1e+308"),
    ],
)
def test_a_profile_of_impossible_values_is_one_line(
    fields: dict[str, Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = profile(tmp_path / "own.json", **fields)
    line = one_line(capsys, "simulate", "--requests", "5", "--policy", "predictor", "--profile", path)
    assert line.startswith(f"python -m engine: {path}: expected ")
    assert says in line


def test_a_profile_of_the_largest_values_is_simulated(tmp_path: Path) -> None:
    most = {"num_slots": 4096, "num_pages": 10**6, "page_size": 1, "max_prefill_tokens": 10**6}
    costs = [cost | {"batch": b, "seconds": [1000]} for cost in COSTS for b in (1, 1024)]
    limits = most | {"max_batch": dict.fromkeys(Stage, 1024)}
    path = profile(tmp_path / "own.json", costs=costs, limits=limits, load=0.001, tokens_per_char=4)
    few = ("--requests", "5", "--policy", "predictor")
    assert simulated(tmp_path / "out.json", *few, "--profile", path)["load"] == 0.001


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000])
def test_json_that_is_nested_too_deeply_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "deep.json"
    path.write_text(text)
    assert f"{path}: expected a profile" in one_line(capsys, "simulate", "--profile", str(path))
    line = one_line(capsys, "simulate", "--trace", str(path))
    assert f"{path}, line 1: expected a JSON object" in line
    assert len(line) < 600


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ("simulate --load 5e-324 --requests 1", "--load: must be at least 0.001, got 5e-324"),
        ("bench gaps --load 5e-324", "--load: must be at least 0.001, got 5e-324"),
        ("simulate --requests 0", "--requests: must be at least 1, got 0"),
        ("simulate --requests -3", "--requests: must be at least 1, got -3"),
        ("simulate --requests 2.5", "--requests: expected a whole number, got '2.5'"),
        ("simulate --seed x", "--seed: expected a whole number, got 'x'"),
        ("simulate --load high", "--load: expected a number, got 'high'"),
        ("simulate --stalls some", "--stalls: expected a number, got 'some'"),
        ("simulate --drift much", "--drift: expected a number, got 'much'"),
        ("simulate --load 0", "--load: must be above 0, got 0"),
        ("simulate --load nan", "--load: must be above 0, got nan"),
        ("simulate --load inf", "--load: must be above 0, got inf"),
        ("simulate --seeds 0", "--seeds: must be at least 1, got 0"),
        ("simulate --stalls 1.1", "--stalls: must be from 0 to 1, got 1.1"),
        ("simulate --barge-ins nan", "--barge-ins: must be from 0 to 1, got nan"),
        ("simulate --drift 1e6", "--drift: must be from 0 to below a million, got 1e6"),
        ("simulate --policy fastest", "--policy: invalid choice: 'fastest' (choose from"),
        ("bench speech --rounds 0", "--rounds: must be at least 1, got 0"),
        ("bench speech --streams 2 0", "--streams: must be at least 1, got 0"),
        ("bench gaps --requests 0", "--requests: must be at least 1, got 0"),
        ("bench gaps --load 0", "--load: must be above 0, got 0"),
        ("bench gaps --policy best", "--policy: invalid choice: 'best'"),
        ("bench plan --steps 0", "--steps: must be at least 1, got 0"),
        ("bench determinism --shapes 0", "--shapes: must be at least 1, got 0"),
        ("calibrate -o x --runs 0", "--runs: must be at least 1, got 0"),
        ("say hello -o x --threads 0", "--threads: must be at least 1, got 0"),
        ("say hello -o x --max-frames 0", "--max-frames: must be at least 1, got 0"),
        ("say hello -o x --max-frames many", "--max-frames: expected a whole number, got 'many'"),
        ("say hello -o x --temperature warm", "--temperature: expected a number, got 'warm'"),
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


def test_numbers_of_a_list_share_a_line(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_json(str(path), {"a": [1.5, 2], "b": [], "c": ["[1,  2]", "x"], "d": [{"e": [3]}]})
    lines = ["{", ' "a": [1.5, 2],', ' "b": [],', ' "c": [', '  "[1,  2]",', '  "x"', " ],"]
    assert path.read_text().splitlines()[:7] == lines
    assert read(path) == {"a": [1.5, 2], "b": [], "c": ["[1,  2]", "x"], "d": [{"e": [3]}]}


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
