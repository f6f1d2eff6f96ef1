"""Pictures: PNG files of the promised width that change with what they show, and the error without matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from engine import plot
from engine.capacity import Capacity, Sweep
from engine.contest import Figures
from engine.lanes import Lane, Scene, lane
from engine.listener import Listener
from engine.traffic import Utterance


def crowd(late: float) -> list[Lane]:
    """Six callers; the last chunk of the third comes `late` after what it had was played."""
    listeners = [Listener(number, Utterance(0.5 * number, 25)) for number in range(6)]
    for number, listener in enumerate(listeners):
        listener.hear(0.08, 0.5 * number + 0.2)
        listener.hear(1.92, 0.5 * number + 0.28 + (late if number == 2 else 0.0))
    return [lane(listener) for listener in listeners]


def drawn(path: Path, runs: Mapping[str, Sequence[Lane]]) -> Image.Image:
    notes = dict.fromkeys(runs, "1 of 6 requests with gaps")
    plot.lanes(path, "a profile, load 3, seed 0", Scene(0, 6, -0.3, 5.0), runs, notes)
    with Image.open(path) as image:
        assert image.format == "PNG"
        return image.convert("RGB")


def count(image: Image.Image, color: str) -> int:
    """Pixels of the colour."""
    wanted = tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))
    return sum(number for number, seen in image.getcolors(1 << 24) or [] if seen == wanted)


def test_lanes_show_gaps_in_red(tmp_path: Path) -> None:
    one = drawn(tmp_path / "one.png", {"predictor": crowd(0.0)})
    late = drawn(tmp_path / "late.png", {"newest-first": crowd(0.5)})
    both = drawn(tmp_path / "both.png", {"newest-first": crowd(0.5), "predictor": crowd(1.0)})
    assert one.size == late.size == (1800, one.height)
    assert (both.width, both.height > 1.5 * one.height) == (1800, True)
    legend = count(one, plot.GAP)
    red = count(late, plot.GAP) - legend
    assert red > 5 * legend > 1000
    assert count(both, plot.GAP) - legend == pytest.approx(3 * red, rel=0.1)
    assert count(late, plot.PLAYED) == pytest.approx(count(one, plot.PLAYED), rel=0.05)
    assert count(one, plot.BUFFERED) > 5 * count(one, plot.WAIT) > 5000


def figures(gaps: int, ttfa_ms: float | None) -> Figures:
    return Figures(300, 0, gaps, gaps, 10.0 * gaps, ttfa_ms, ttfa_ms, ttfa_ms, 0.03, 30.0, 0.1, 1500.0, 0.0)


def test_curves_have_a_line_a_policy(tmp_path: Path) -> None:
    curves = {
        "newest-first": {10.0: figures(0, 20.0), 20.0: figures(14, 25.0), 40.0: figures(200, 30.0)},
        "predictor": {10.0: figures(0, 20.0), 20.0: figures(0, 25.0), 40.0: figures(50, None)},
    }
    capacities = {name: Capacity((20.0,), {"gaps": 1}) for name in curves}
    path = tmp_path / "sweep.png"
    plot.curves(path, "a profile, 300 requests, seeds 0 to 19", Sweep(38.0, 20.0, {}, curves, capacities, capacities))
    with Image.open(path) as image:
        assert (image.format, image.size) == ("PNG", (1800, 1000))
        assert count(image.convert("RGB"), plot.PLAYED) > 1000
        assert count(image.convert("RGB"), plot.STYLES[0][0]) > 500


def test_every_policy_looks_different() -> None:
    looks = plot.styles(["a", "b", "c", "d", "e", "f", "predictor"])
    assert len({look["color"] for look in looks.values()}) == 7
    assert looks["predictor"]["color"] == plot.PLAYED


def requests(number: int, arrival: str, p50: float) -> dict[str, Any]:
    return {
        "requests": number,
        "arrival": arrival,
        "ttfa_ms_p50": p50,
        "ttfa_ms_p95": 1.5 * p50,
        "baseline_ttfa_ms_p50": 2400.0 + number,
    }


def test_first_audio_has_a_line_for_each_arrival_and_the_baseline(tmp_path: Path) -> None:
    rows = [requests(n, arrival, ms + n) for arrival, ms in (("together", 10.0), ("poisson", 30.0)) for n in (1, 4, 16)]
    peer = {"runtime": "BreezeRT", "gpu": "H100", "requests": 16, "ttfa_ms_p50": 38.0, "ttfa_ms_p95": 52.0}
    one = {**peer, "requests": 1, "ttfa_ms_p95": None}
    for name, published in (("without", []), ("with", [one, peer])):
        plot.concurrency(tmp_path / f"{name}.png", "an H200", rows, published)
    pictures = {name: picture(tmp_path / f"{name}.png") for name in ("without", "with")}
    assert {image.size for image in pictures.values()} == {(1800, 1040)}
    for color in (plot.PLAYED, plot.THEIRS, plot.ARRIVALS[2][3]["color"]):
        assert count(pictures["without"], color) > 1000
    assert count(pictures["with"], plot.INK) > count(pictures["without"], plot.INK) + 100, "three crosses"


def test_crosses_outside_the_rows_do_not_stretch_the_axis(tmp_path: Path) -> None:
    rows = [requests(n, arrival, 10.0 + n) for arrival in ("together", "poisson") for n in (1, 2)]
    far = {"runtime": "BreezeRT", "gpu": "H100", "requests": 16, "ttfa_ms_p50": 38.0, "ttfa_ms_p95": None}
    for name, published in (("without", []), ("far", [far])):
        plot.concurrency(tmp_path / f"{name}.png", "an H200", rows, published)
    without, far_away = (picture(tmp_path / f"{name}.png") for name in ("without", "far"))
    assert without.tobytes() == far_away.tobytes()


def test_the_ladder_has_a_point_a_step(tmp_path: Path) -> None:
    steps = ("eager-16", "progressive", "depth-compiled", "graphs")
    theirs = {"runtime": "BreezeRT", "gpu": "H100", "ttfa_ms": dict(zip(steps, (2500, 150, 100, 35), strict=True))}
    rows = [
        {"step": step, "words": f"step {step}", "ttfa_ms_p50": ms}
        for step, ms in zip(steps, (1600.0, 120.0, 80.0, 11.0), strict=True)
    ]
    for name, published in (("alone", None), ("beside", theirs)):
        plot.ladder(tmp_path / f"{name}.png", "step by step", rows, "this engine on an H200", published)
    alone, beside = (picture(tmp_path / f"{name}.png") for name in ("alone", "beside"))
    assert alone.size == beside.size == (1800, 640)
    assert count(alone, plot.PLAYED) > 1000 < count(beside, plot.PLAYED)
    assert count(alone, plot.THEIRS) < 100 < 1000 < count(beside, plot.THEIRS)


def picture(path: Path) -> Image.Image:
    with Image.open(path) as image:
        assert image.format == "PNG"
        return image.convert("RGB")
