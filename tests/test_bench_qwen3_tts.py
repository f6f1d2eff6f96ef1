"""tests/bench/qwen3_tts/: what is a stub says so, and figures are those of the requests that waited for others, too."""

from __future__ import annotations

import importlib.util
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "bench" / "qwen3_tts"


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield importlib.import_module("stubs")
    for name in ("stubs", "peers", "surely_missing", "surely_missing.below"):
        sys.modules.pop(name, None)


def test_what_is_missing_can_be_imported_and_not_called(stubs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stubs, "UNUSED", ("json", "surely_missing"))
    assert stubs.install() == ("surely_missing",)
    below: Any = importlib.import_module("surely_missing.below")
    with pytest.raises(RuntimeError, match=r"surely_missing\.below\.mel is a stub"):
        below.mel(16)


def test_who_waits_for_others_waits_for_all_of_theirs(stubs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four utterances of 25 frames, a second each, 0.2 s to first audio: two at a time, one after the other."""
    spec = importlib.util.spec_from_file_location("side_by_side", FOLDER / "__main__.py")
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "side_by_side", bench)
    spec.loader.exec_module(bench)
    monkeypatch.setattr(bench, "version", lambda name: "1.0")
    monkeypatch.setattr(bench.peers, "streamed", lambda *args: iter([0.2, 0.7, 1.0]))
    asked = Namespace(frames=25, slow_rounds=4)
    row = bench.faster_row(None, 2, 12, asked)
    assert (row.requests, row.how) == (2, "one after the other, chunks of 12")
    assert (row.ttfa_ms_p50, row.ttfa_ms_p95) == (1200.0, 1200.0)
    assert row.rtf == pytest.approx(2.0 / (2 * 25 * 0.08))
    assert bench.faster_row(None, 1, 12, asked).ttfa_ms_p95 == 200.0
