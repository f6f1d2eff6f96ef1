"""agent/bench_transport.py: the arithmetic on made-up packets, and one short run with real processes over loopback."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_runtime import SPEC, tone

from agent import bench_transport
from agent.bench_arrivals import (
    WARM_SECONDS,
    BenchError,
    Spoken,
    backs,
    due,
    judged_ms,
    missing,
    occurred,
    of_microphone,
    of_packets,
    places,
)
from agent.bench_transport import LOST, Recording, Speech, main, spoken_rows, written
from agent.probe.outcome import Spread
from engine.core import Chunk, Finished, Output, Request

SPEECH = Speech(SPEC, (tone(0, 24_000), tone(0, 36_000)))


def test_places_go_on_beyond_the_wrap_around_in_order_of_arrival() -> None:
    assert places([65_534, 0, 65_535, 1]).tolist() == [0, 2, 1, 3]
    assert missing([65_534, 1, 0, 4]) == [1, 4, 5]
    assert missing([7]) == []


def test_packets_are_counted_over_all_calls_and_the_worst_is_named() -> None:
    even = ([0.00, 0.02, 0.04], [2**32 - 960, 0, 960], [1, 2, 3])
    late = ([0.00, 0.02, 0.07], [0, 960, 2880], [1, 2, 4])
    found = of_packets([even, late])
    assert (found["packets"], found["packets_lost"]) == (6, 1)
    assert (found["inter_arrival_ms"].count, found["inter_arrival_ms"].max) == (4, 50.0)
    assert found["worst_peer_p99_ms"] == pytest.approx(49.7)
    assert found["share_of_960_steps"] == 0.75


def test_a_call_that_hears_nothing_is_an_error() -> None:
    with pytest.raises(BenchError, match="heard nothing"):
        of_packets([([], [], [])])


def test_a_lost_packet_is_due_after_the_one_before_it() -> None:
    assert due([1.0, 1.02, 1.1], [5, 6, 9]) == {2: pytest.approx(1.04), 3: pytest.approx(1.06)}


def test_a_judged_frame_covers_the_packets_that_end_in_it() -> None:
    frames = [(0.0, 1.0, 320, False), (0.0, 1.02, 640, False), (0.0, 1.04, 960, False)]
    assert [*judged_ms(frames, [(1.03, 512), (1.05, 768)])] == [pytest.approx(30), pytest.approx(30)]


def found_back(lost: dict[int, float], delays_ms: dict[int, float]) -> dict[int, float]:
    """Packet n comes at 0.02 n; the frame is handed over at once, and judged after so many ms."""
    frames = [(0.02 * place, 0.02 * place, 320 * (place + 1), False) for place in delays_ms]
    judged = [(0.02 * place + delay / 1000, 320 * (place + 1)) for place, delay in delays_ms.items()]
    return dict(backs(lost, frames, judged))


def test_back_is_when_what_comes_is_judged_in_time_and_stays_so() -> None:
    delays = {6: 70.0, 7: 5.0, 8: 61.0, 9: 60.0, 10: 5.0}
    assert found_back({5: 0.1}, delays) == {5: pytest.approx(0.14)}
    assert found_back({5: 0.1, 6: 0.12}, {7: 40.0, 8: 20.0}) == {5: pytest.approx(0.08), 6: pytest.approx(0.06)}


def test_back_is_looked_for_behind_later_losses() -> None:
    delays = {6: 80.0, 7: 80.0, 9: 80.0, 10: 40.0, 11: 20.0}
    assert found_back({5: 0.1, 8: 0.16}, {4: 5.0, **delays}) == {5: pytest.approx(0.14), 8: pytest.approx(0.08)}


def test_what_waits_for_a_lost_packet_is_not_late_for_the_loss_before() -> None:
    delays = {6: 20.0, 7: 20.0, 8: 70.0, 9: 90.0, 11: 20.0}
    assert found_back({5: 0.1, 10: 0.2}, delays) == {5: pytest.approx(0.04), 10: pytest.approx(0.04)}


def test_a_loss_that_is_never_in_time_again_is_infinite_and_missed() -> None:
    lost = {10: 0.2, 40: 0.8, 41: 0.82, 42: 0.84, 75: 1.5}
    never = {place: 70.0 for place in range(100) if place not in lost}
    infinity = float("inf")
    assert found_back(lost, never) == {10: infinity, 40: infinity, 41: infinity, 42: infinity}  # 75: looked at 0.55 s
    assert found_back(lost, {**never, 99: 20.0})[10] == pytest.approx(1.8)
    back = occurred([100.0, 120.0, infinity, infinity])
    assert back == Spread(4, infinity, infinity, infinity, infinity)
    mic = Spoken(5, 95, 5, back, back, back, 0.0, 0, "silero")
    assert [*spoken_rows(mic)][-1][3] is False
    assert [*spoken_rows(replace(mic, back_ms=occurred([100.0, 1000.0])))][-1][3] is True
    assert json.dumps(written([{"back_ms": {"count": 4, "max": infinity}}]), allow_nan=False) == (
        '[{"back_ms": {"count": 4, "max": null}}]'
    )


def journal(lost: set[int], delay: float, count: int = 100) -> dict[str, Any]:
    there = [number for number in range(count) if number not in lost]
    ends = [(number, 10 + 0.02 * number) for number in range(count)]
    return {
        "arrivals": [(10 + 0.02 * number, number) for number in there],
        "frames": [(at + delay, at, 320 * (number + 1), number in lost) for number, at in ends],
        "judged": [(at + 2 * delay, 320 * (number + 1)) for number, at in ends],
    }


def test_a_microphones_journal_is_read_after_its_first_second() -> None:
    warm = round(WARM_SECONDS / 0.02)
    found = of_microphone(journal({10, 70}, 0.003))
    assert (found["packets"], found["packets_lost"]) == (100 - warm - 1, 1)
    assert (found["frame_ms"].p50, found["judged_ms"].p50) == (3.0, 6.0)
    assert (found["back_ms"].count, found["back_ms"].max) == (1, 26.0)
    assert (found["first_ms"], found["guesses_of_packets_that_came"]) == (3.0, 0)
    assert of_microphone(journal(set(), 0.003))["back_ms"] is None


def test_a_guess_of_a_packet_that_came_is_counted() -> None:
    made = journal({70}, 0.003)
    made["frames"][80] = (*made["frames"][80][:3], True)
    assert of_microphone(made)["guesses_of_packets_that_came"] == 1


def test_a_silent_microphone_is_an_error() -> None:
    with pytest.raises(BenchError, match="nothing was heard"):
        of_microphone({"arrivals": [], "frames": [], "judged": []})


def test_the_recording_is_there_at_once_and_whole() -> None:
    engine, outputs = Recording(SPEECH), list[Output]()
    engine.submit(Request("a", SPEC.sampling), outputs.append)
    engine.submit(Request("b", SPEC.sampling), outputs.append)
    chunks = [output for output in outputs if isinstance(output, Chunk)]
    assert [sum(chunk.pcm.size for chunk in chunks if chunk.request_id == number) for number in (1, 2)] == [
        36_000,
        24_000,
    ]
    assert [chunk.final for chunk in chunks] == [False, True, True]
    assert [type(output) for output in outputs].count(Finished) == 2


def test_the_loss_is_as_much_as_it_says() -> None:
    assert all(len(set(places)) == percent for percent, places in LOST.items())


def test_a_short_run_measures_every_call_and_writes_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_transport, "recorded", lambda: SPEECH)
    monkeypatch.setattr(bench_transport, "SETTLE_SECONDS", 0.1)
    monkeypatch.setattr(bench_transport, "LOST", {5: LOST[5]})
    assert main(["--peers", "2", "--seconds", "1.5", "--json", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    (calls,), (microphone,) = found["listened"], found["spoken"]
    assert calls["peers"] == 2
    assert calls["packets"] > 20  # 150 on a machine that has time
    assert (calls["packets_lost"], calls["share_of_960_steps"], calls["underruns"]) == (0, 1.0, 0)
    assert 0 < calls["server_cpu_percent"] < 200
    assert microphone["loss_percent"] == 5
    assert microphone["packets_lost"] > 0
    assert microphone["frame_ms"]["count"] > 20
    assert found["command"].startswith("breezert bench transport --peers 2")


def test_a_server_that_does_not_begin_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_transport, "recorded", lambda: Speech(SPEC, ()))  # nothing to say: no call ever speaks
    monkeypatch.setattr(bench_transport, "serve", ends)
    assert main(["--peers", "1", "--seconds", "1"]) == 2
    assert "breezert bench transport: a process ended early" in capsys.readouterr().err


def ends(*arguments: object) -> None:
    """A process that does nothing."""


def test_too_few_peers_name_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--peers", "0"])
    assert "--peers" in capsys.readouterr().err
