"""How long an engine takes to start: its parts, and what is left in the environment."""

import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from engine.bench_start import CACHED, COLD, EAGER, KERNELS, Row, Starts, no_kernels, run, started, table
from engine.messages import RuntimeConfig

TINY = RuntimeConfig(device="cpu", random_weights="tiny")


def test_the_parts_of_a_start_add_up_to_it() -> None:
    runtime, row = started(TINY, EAGER)
    parts = row.process_s + row.weights_s + row.graphs_s + row.warm_up_s
    assert row.seconds == pytest.approx(parts, abs=0.03), "each is rounded"
    assert min(row.process_s, row.weights_s, row.warm_up_s) > 0, "a process that imports PyTorch, and the rest"
    assert (row.graphs, row.graph_mib) == (0, 0.0), "the CPU has none"
    assert runtime.spec.name == "random-tiny"


def test_a_cpu_starts_in_one_way_only() -> None:
    told = io.StringIO()
    starts = run(TINY, Console(file=told, width=100))
    assert [row.start for row in starts.rows] == [EAGER]
    assert starts.device == "cpu"
    assert "until random-tiny can speak on cpu" in told.getvalue()
    assert starts.to_dict()["voice"] == "random-tiny"


@pytest.mark.parametrize("before", [None, "/somewhere"])
def test_kernels_that_were_compiled_before_are_not_seen_for_a_while(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KERNELS, raising=False)
    if before:
        monkeypatch.setenv(KERNELS, before)
    with no_kernels():
        folder = Path(os.environ[KERNELS])
        assert not list(folder.iterdir())
    assert os.environ.get(KERNELS) == before
    assert not folder.exists()


def test_a_table_has_a_row_a_start() -> None:
    rows = (Row(COLD, 130.0, 6.5, 110.2, 4.0, 9.3, 133, 1500.0), Row(CACHED, 22.0, 6.0, 4.0, 4.0, 8.0, 133, 1500.0))
    told = io.StringIO()
    Console(file=told, width=100).print(table(Starts("H200", "random-breeze-tts-2", rows)))
    assert [line.split()[:3] for line in told.getvalue().splitlines()[-3:-1]] == [
        ["cold", "130.0", "6.5"],
        ["cached", "22.0", "6.0"],
    ]
