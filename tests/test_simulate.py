"""The command `simulate` below its options: races on all cores, and what its tables say."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from engine import estimate, simulate
from engine.capacity import Capacity, Sweep
from engine.contest import Figures, Race, result, speed
from engine.policies import NAMES, SOURCES
from engine.simulate import Asked, capacity_table, compare, on_all_cores, print_sources, table
from engine.traffic import Utterance

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


def test_who_was_refused_has_a_column_and_it_still_fits() -> None:
    rows = {"run-to-completion": replace(SOUND, refused=6000), "newest-first": POOR}
    printed = lines(table(rows, "a title", "a caption"))
    assert sum("refused" in line for line in printed) == 1
    assert printed[-3][:4] == ["run-to-completion", "0", "6000", "0"]
    assert printed[-2][:4] == ["newest-first", "1048", "0", "2275"]
    assert printed[-1] == ["a", "caption"]
    assert not any("refused" in line for line in lines(table({"predictor": SOUND}, "a title")))


def test_emulations_have_a_line_each() -> None:
    console = Console(file=StringIO(), width=80)
    print_sources(NAMES, console)
    printed = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert printed[1:] == [f"  {policy}: {source}" for policy, source in SOURCES.items()]
    assert max(map(len, printed)) <= 80
    print_sources(["predictor"], quiet := Console(file=StringIO()))
    assert quiet.file.getvalue() == ""  # type: ignore[attr-defined]


def test_a_comparison_says_what_is_an_emulation_and_how_fast_the_devices_were() -> None:
    console = Console(file=StringIO(), width=80)
    script = (Utterance(0.0, 30), Utterance(0.5, 30, text_tokens=2047))  # longer than the voice has positions
    asked = Asked(estimate.profile(), Race(requests=2, trace=script), ("round-robin", "predictor"), range(2))
    data = compare(asked, console)
    mean = (speed(0) + speed(1)) / 2
    assert data["mean_speed"] == pytest.approx(mean, abs=1e-4)
    robin, ours = data["policies"].values()
    assert (robin["emulation"], robin["source"]) == (True, SOURCES["round-robin"])
    assert ours["emulation"] is False
    assert "source" not in ours
    assert robin["refused"] == ours["refused"] == 2
    said = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert f"its device's speed, {mean:.2f} times the profile's in the mean, and no policy knows it." in said
    assert all(f"{heading}: " in said for heading in ("gaps", "worst run", "extra buffer", "never heard", "bound"))
    assert "round-robin: processor sharing" in said
    assert "gaps refused" in said


def test_so_does_the_one_of_a_sweep() -> None:
    capacities = {
        "run-to-completion": Capacity((0.0, 0.0, 0.0), {"first audio": 3}),
        "newest-first": Capacity((20.0, 30.0, 25.0), {"gaps": 3}),
        "predictor": Capacity((60.0, 50.0, 70.0), {"gaps": 1, "first audio": 2}),
    }
    printed = lines(capacity_table(capacities, 80.0, "a title"))
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
    own = capacities | {"newest-first": Capacity((24.0, 34.0), {"first audio": 2})}
    unloaded: dict[str, float | None] = {"newest-first": 27.0, "predictor": 25.0}
    found = Sweep(80.0, 33.25, unloaded, dict.fromkeys(capacities, curve), capacities, own)
    monkeypatch.setattr("engine.capacity.sweep", lambda *_: found)
    asked = Asked(estimate.profile(), Race(requests=20), (), range(2), tmp_path / "sweep.png")
    data = simulate.sweep(asked, console := Console(file=StringIO(), width=80))
    assert (data["load"], data["rated_load"]) == (33.25, 60.0)
    assert (data["profile"], data["requests"], data["seeds"]) == ("h200-estimate", 20, [0, 1])
    assert (data["first_audio_at_most"], data["predictor_unloaded_ttfa_p95_ms"]) == (5.0, 25.0)
    assert data["mean_speed"] == pytest.approx((speed(0) + speed(1)) / 2, abs=1e-4)
    ours, first = data["policies"]["predictor"], data["policies"]["newest-first"]
    one = ours["common_limit"]
    assert (one["capacity"], one["capacity_min"], one["capacity_max"], one["of_newest_first"]) == (62, 60, 64, 2.48)
    assert one["capacity_by_seed"] == (60.0, 64.0)
    assert (first["common_limit"]["limited_by"], first["own_limit"]["limited_by"]) == ({"gaps": 2}, {"first audio": 2})
    assert (first["own_limit"]["capacity"], ours["own_limit"]["of_newest_first"]) == (29.0, pytest.approx(62 / 29))
    assert (first["unloaded_ttfa_p95_ms"], first["emulation"], ours["emulation"]) == (27.0, True, False)
    assert [(one["load"], one["requests_with_gaps"]) for one in ours["curve"]] == [(20.0, 0), (40.0, 1048)]
    said = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert "Common limit: TTFA p95 at most 5 times the Predictor's unloaded one (25 ms)" in said
    assert "Own limit: TTFA p95 at most 5 times the policy's own unloaded one" in said
    assert "newest-first 25.0 20.0 30.0 1.00 31% gaps 2" in said
    assert "newest-first 29.0 24.0 34.0 1.00 36% first audio 2" in said
    assert "times the profile's in the mean, and no policy knows it" in said
    assert f"newest-first: {SOURCES['newest-first']}" in said
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
