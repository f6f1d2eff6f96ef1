"""The profiles that come with the engine: found by name, and the synthetic one equal to what writes it."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from engine import estimate, profiles, worker
from engine.__main__ import main
from engine.core import Stage
from engine.messages import RuntimeConfig
from engine.models import Model


def test_the_synthetic_profile_is_what_calibrate_writes(tmp_path: Path) -> None:
    written = tmp_path / "estimate.json"
    assert main(["calibrate", "--estimate", "-o", str(written)]) == 0
    shipped = profiles.find("h200-estimate").read_text()
    assert json.loads(shipped) | {"load": None} == json.loads(written.read_text()) | {"load": None}
    assert len(shipped) < 400_000
    assert profiles.read(written) == estimate.profile()


def test_a_profile_is_found_by_its_name_or_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "h200-estimate" in profiles.names()
    assert profiles.find("h200-estimate") == profiles.FOLDER / "h200-estimate.json"
    monkeypatch.chdir(tmp_path)
    Path("here").write_text("{}")
    assert profiles.find("here") == Path("here")
    assert profiles.find("some/where") == Path("some/where")
    with pytest.raises(FileNotFoundError, match=r"expected a profile out of .*h200-estimate.*, got 'h100'"):
        profiles.find("h100")


def test_a_load_is_stored_before_the_costs_and_changes_nothing_else(tmp_path: Path) -> None:
    path = Path(shutil.copy(profiles.find("h200-estimate"), tmp_path))
    old = json.loads(path.read_text())
    for load in (31.5, 30.25):
        profiles.store_load(path, load)
        new = json.loads(path.read_text())
        assert new == old | {"load": load}
        assert list(new)[-2:] == ["load", "costs"]
        assert profiles.read(path).load == load
    profiles.store_load(path, 29.0, 61.5)
    profiles.store_load(path, 28.0)
    assert (profiles.read(path).load, profiles.read(path).rated_load) == (28.0, 61.5), "the last that was found"
    assert list(json.loads(path.read_text()))[-3:] == ["load", "rated_load", "costs"]
    assert len(path.read_text().splitlines()) < 10 * len(old["costs"]), "samples stay on one line"


EVERY_STAGE = [{"stage": stage, "batch": 1, "length": 1, "seconds": [0.01]} for stage in Stage]


class TestRead:
    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ("[" * 100_000, "expected a profile that calibrate wrote, got JSON nested too deeply"),
            ('{"a":' * 100_000, "expected a profile that calibrate wrote, got JSON nested too deeply"),
            ("", "expected a profile that calibrate wrote (Expecting value: line 1 column 1 (char 0))"),
            ('{"voice": "x", "costs": []}', "expected costs of every stage, got none of text, prefill, decode"),
            (
                json.dumps({"voice": "x", "costs": EVERY_STAGE[:-2]}),
                "expected costs of every stage, got none of codec; calibrate all stages",
            ),
        ],
    )
    def test_what_is_no_whole_profile_is_named(self, tmp_path: Path, text: str, says: str) -> None:
        path = tmp_path / "mine.json"
        path.write_text(text)
        with pytest.raises(ValueError) as raised:
            profiles.read(path)
        assert str(raised.value).startswith(f"{path}: {says}")

    def test_all_that_come_with_the_engine_are_whole(self) -> None:
        for name in profiles.names():
            assert profiles.read(profiles.find(name)).missing == []


class TestOwn:
    def test_the_embedded_voice_has_one_on_the_cpu(self) -> None:
        profile = profiles.own("breeze-mini", "cpu")
        assert profile is not None
        assert profile.name == "breeze-mini"

    def test_another_device_has_none(self) -> None:
        assert profiles.name_of("breeze-tts-2", "NVIDIA H200") == "breeze-tts-2-nvidia-h200"
        assert profiles.own("breeze-mini", "NVIDIA H200") is None

    def test_the_engine_starts_from_it_or_from_the_one_it_is_given(self, tmp_path: Path) -> None:
        given = tmp_path / "mine.json"
        given.write_text(json.dumps({"voice": "mine", "costs": EVERY_STAGE}))
        model = cast(Model, SimpleNamespace(spec=SimpleNamespace(name="breeze-mini"), device=torch.device("cpu")))
        for config, name in ((RuntimeConfig(), "breeze-mini"), (RuntimeConfig(profile=given), "mine")):
            profile = worker.prior(config, model)
            assert profile is not None
            assert profile.name == name
