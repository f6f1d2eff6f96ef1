"""The command `simulate` below its options: races on all cores, and what its tables say."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from engine import estimate, simulate
from engine.capacity import Capacity, Sweep
from engine.contest import Figures, Race, result
from engine.simulate import Asked, capacity_table, on_all_cores, table

SOUND = Figures(6000, 0, 0, 0, 0.0, 22.6, 35.2, 42.0, 0.0281, 32.72, 0.09, 31996.8, 0.0)
POOR = Figures(6000, 0, 1048, 222, 2275.4, None, None, None, None, 37.6, 0.0, 0.0, 120.4)


def lines(out: Table) -> list[list[str]]:
    """The words of each line, as printed on a terminal of 80 columns."""
    console = Console(file=StringIO(), width=80)
    console.print(out)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in printed, printed
    return [line.split() for line in printed.splitlines() if line.strip()]


def test_the_table_fits_a_terminal() -> None:
    printed = lines(table({"run-to-completion": SOUND, "newest-first": POOR}, "a title"))
    assert printed[0] == ["a", "title"]
    assert printed[-2] == ["run-to-completion", "0", "0", "0", "23", "35", "42", "0.028", "32.7", "9%", "0"]
    assert printed[-1] == ["newest-first", "1048", "222", "2275", "-", "-", "-", "-", "37.6", "0%", "120"]


def test_so_does_the_one_of_a_sweep() -> None:
    capacities = {
        "run-to-completion": Capacity((0.0, 0.0, 0.0), {"first audio": 3}),
        "newest-first": Capacity((20.0, 30.0, 25.0), {"gaps": 3}),
        "predictor": Capacity((60.0, 50.0, 70.0), {"gaps": 1, "first audio": 2}),
    }
    printed = lines(capacity_table(Sweep(80.0, 33.0, 25.0, {}, capacities), "a title"))
    words = " ".join(" ".join(line) for line in printed)
    assert "run-to-completion 0.0 0.0 0.0 0.00 0% first audio 3" in words
    assert "newest-first 25.0 20.0 30.0 1.00 31% gaps 3" in words
    assert "predictor 60.0 50.0 70.0 2.40 75% gaps 1," in words


def test_all_cores_give_what_one_gives_in_the_order_of_the_races() -> None:
    profile = estimate.profile()
    races = [Race("newest-first", 20.0, seed, requests=5) for seed in (1, 0, 2)]
    with on_all_cores(profile, Console(file=StringIO())) as runner:
        assert list(runner(races, "racing")) == [result(race, profile) for race in races]


def test_what_is_asked_for() -> None:
    profile = estimate.profile()
    asked = Asked(profile, Race(requests=50), (), range(3, 5))
    assert (len(asked.raced), asked.drawn) == (7, ("newest-first", "predictor"))
    assert asked.title == "h200-estimate, 50 requests, seeds 3 to 4"
    assert 65.0 < asked.bound < 80.0
    faster = Asked(profile, Race(requests=50, load=9.0), ("round-robin",), (7,))
    assert faster.raced == faster.drawn == ("round-robin",)
    assert faster.title == "h200-estimate, 50 requests, seed 7"
    assert Asked(profile, Race(requests=50, load=9.0), (), range(3, 5)).bound == asked.bound


def test_a_sweep_draws_and_tells_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a search that is over at once."""
    curve = {20.0: SOUND, 40.0: POOR}
    capacities = {"newest-first": Capacity((20.0, 30.0), {"gaps": 2}), "predictor": Capacity((60.0, 64.0), {"gaps": 2})}
    found = Sweep(80.0, 33.25, 25.0, dict.fromkeys(capacities, curve), capacities)
    monkeypatch.setattr("engine.capacity.sweep", lambda *_: found)
    asked = Asked(estimate.profile(), Race(requests=20), (), range(2), tmp_path / "sweep.png")
    data = simulate.sweep(asked, Console(file=StringIO()))
    assert (data["load"], data["profile"], data["requests"], data["seeds"]) == (33.25, "h200-estimate", 20, [0, 1])
    assert data["unloaded_ttfa_p95_ms"] == 25.0
    ours = data["policies"]["predictor"]
    assert (ours["capacity"], ours["capacity_min"], ours["capacity_max"], ours["of_newest_first"]) == (62, 60, 64, 2.48)
    assert ours["capacity_by_seed"] == (60.0, 64.0)
    assert ours["limited_by"] == {"gaps": 2}
    assert [(one["load"], one["requests_with_gaps"]) for one in ours["curve"]] == [(20.0, 0), (40.0, 1048)]
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
