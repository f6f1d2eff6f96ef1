"""Callers in real time: what they ask for, what the engine is told, and the simulation of the same callers."""

import io
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from engine.bench_gaps import (
    SENTENCES,
    Comparison,
    Outcome,
    Steps,
    asked,
    compare,
    offered,
    rated_load,
    ratios,
    script,
    table,
    text,
    to_json,
    unrefusing_config,
)
from engine.clock import MonotonicClock
from engine.contest import Figures
from engine.core import (
    Chunk,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    Limits,
    Output,
    Playhead,
    Queued,
    Request,
    RequestStats,
    Stage,
)
from engine.live import Agenda, Live
from engine.profile import Profile
from engine.runtime import Runtime, RuntimeConfig
from engine.simulator import Simulation, simulate
from engine.traffic import SPEC, Utterance, poisson, read_trace, write_trace

VOICE = replace(SPEC, max_text_chars=360)
FAST = Profile("fast", {(stage, batch, 16): (0.002, 0.003) for stage in Stage for batch in (1, 8)})


class Instant:
    """An engine that says everything before submit returns: each text one frame a character, in chunks of two."""

    spec = VOICE

    def __init__(self, refuses: str = "", cut: str = "", submitting: float = 0.0) -> None:
        """`cut` is interrupted when it was said; a submit takes some seconds."""
        self.asked: list[Request] = []
        self.told: list[Playhead] = []
        self.cancelled: list[int] = []
        self.written: list[str] = []
        self._refuses, self._cut, self._submitting = refuses, cut, submitting
        self._ended = 3

    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int:
        self.asked.append(request)
        request_id = 70 + len(self.asked)
        time.sleep(self._submitting)  # justified: a busy process hands in late, in real time, which live.py measures
        for output in self.says(request_id, request.text):
            deliver(output)
        self._ended += 1
        return request_id

    def says(self, request_id: int, words: str) -> list[Output]:
        if words == self._refuses:
            return [Failed(request_id, 0, ErrorCode.BUSY, "no more today")]
        pcm, codes = np.zeros(2 * 1920, np.int16), np.zeros((2, 16), np.int16)
        chunks = [Chunk(request_id, 0, first, pcm, codes, 1.0) for first in range(0, len(words), 2)]
        stats = RequestStats(0.0, 0.0, 0.0, len(words), 0.08 * len(words), {}, len(words) + 2)
        return [Queued(request_id, 0, 0.1), *chunks, Finished(request_id, 0, self._reason(words), stats)]

    def _reason(self, words: str) -> FinishReason:
        return FinishReason.CANCELLED if words == self._cut else FinishReason.END

    def append_text(self, request_id: int, text: str) -> None:
        self.written.append(text)

    def end_text(self, request_id: int, text: str = "") -> None:
        self.written.append(f"{text}|")

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)

    def playhead(self, event: Playhead) -> None:
        self.told.append(event)

    def snapshot(self) -> Mapping[str, float]:
        return {"requests_finished_total": self._ended, "device_busy_seconds_total": 5.0 + self._ended, "slots_free": 1}


def ask(*words: str) -> list[Request]:
    return [Request(word, VOICE.sampling) for word in words]


class TestCallers:
    def test_texts_are_sentences_cut_between_words(self) -> None:
        assert text(0, 69) == "Good morning, this is the voice runtime speaking to you in real time."
        assert text(0, 68) == "Good morning, this is the voice runtime speaking to you in real."
        assert text(2, 80) == "Please hold the line while I look that up for you. I have found three free."
        assert text(0, 2) == "G."
        assert text(12, 69) == text(0, 69), "the list begins again"

    def test_no_text_is_longer_than_it_may_be_nor_much_shorter(self) -> None:
        for number in range(len(SENTENCES)):
            for chars in range(20, 200):
                assert chars - 12 <= len(text(number, chars)) <= chars

    def test_each_asks_for_as_much_as_he_is_to_hear(self) -> None:
        requests = asked([Utterance(0.0, 50), Utterance(1.0, 25), Utterance(2.0, 400)], VOICE)
        assert [len(request.text) for request in requests] == [69, 35, 360], "72, 36 and at most 360 characters"
        assert {request.sampling for request in requests} == {VOICE.sampling}

    def test_a_voice_that_ends_nothing_by_itself_is_told_how_long(self) -> None:
        requests = asked([Utterance(0.0, 50), Utterance(1.0, 25)], VOICE, exact=True)
        assert [(r.sampling.min_frames, r.sampling.max_frames) for r in requests] == [(50, 50), (25, 25)]

    def test_guided_callers_cannot_be_played(self) -> None:
        with pytest.raises(ValueError, match="rows above 1"):
            asked([Utterance(0.0, 50, rows=2)], VOICE)

    def test_they_are_those_of_the_simulator_no_longer_than_the_voice_speaks_well(self) -> None:
        whole, short = poisson(300, 2.0, 4), script(300, 2.0, 4, VOICE)
        assert max(said.frames for said in whole) > 200
        assert max(said.frames for said in short) == 100, "144 characters: 8 s"
        kept = [(a, b) for a, b in zip(whole, short, strict=True) if a.frames <= 100]
        assert all(a.frames == b.frames for a, b in kept)
        assert offered(short, VOICE) == pytest.approx(offered(whole, VOICE)), "the load is what was asked for"
        assert script(300, 2.0, 4, replace(VOICE, max_text_chars=2000)) == whole

    def test_the_load_of_one_caller_is_unbounded(self) -> None:
        assert offered([Utterance(0.0, 25)], VOICE) == inf


class Written(Instant):
    """It speaks once it has all of a text."""

    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int:
        self._deliver = deliver
        self.asked.append(request)
        return 71

    def end_text(self, request_id: int, text: str = "") -> None:
        super().end_text(request_id, text)
        for output in self.says(request_id, "".join(self.written)):
            self._deliver(output)
        self._ended += 1


def test_a_text_is_written_word_by_word() -> None:
    engine = Written()
    live = Live(engine, [Utterance(0.0, 25, text_rate=200.0)], ask("One and two and three."))
    happened = live.run()
    (request,) = engine.asked
    assert (request.text, request.open) == ("", True)
    assert engine.written == ["One", " and", " two", " and", " three.|"]
    (really,) = live.trace()
    assert (really.text_tokens, really.text_rate) == (5, 200.0)
    (listener,) = happened.listeners
    assert listener.text_at is not None
    assert listener.text_at >= really.at + 3 / 200.0
    assert listener.ttfa == pytest.approx(listener.arrivals[0][0] - listener.text_at)


class TestAgenda:
    def test_things_are_done_in_order_of_their_instants_until_the_end(self) -> None:
        clock, done = MonotonicClock(), list[str]()
        agenda, now = Agenda(clock), clock.now()
        agenda.add(now + 0.02, lambda: done.append("third"))
        agenda.add(now + 0.02, agenda.end)
        agenda.add(now + 0.02, lambda: done.append("left undone"))
        agenda.add(now + 0.01, lambda: done.append("second"))
        agenda.add(now - 5.0, lambda: done.append("first"))
        agenda.run()
        assert done == ["first", "second", "third"]
        assert clock.now() >= now + 0.02

    def test_it_can_be_ended_from_elsewhere(self) -> None:
        agenda = Agenda(MonotonicClock())
        threading.Timer(0.01, agenda.end).start()
        agenda.run()


class TestLive:
    def test_every_utterance_is_asked_for_heard_and_counted(self) -> None:
        engine, ended = Instant(), list[int]()
        said = [Utterance(0.01, 8), Utterance(0.03, 6, follows=0)]
        live = Live(engine, said, ask("Good.", "Day."), lambda: ended.append(1))
        happened = live.run()
        first, second = happened.listeners
        assert [request.follows for request in engine.asked] == [None, 71]
        assert [len(listener.arrivals) for listener in (first, second)] == [3, 2]
        assert first.audio == pytest.approx(0.48)
        assert first.ttfa is not None
        assert 0 <= first.ttfa < 5
        assert second.plays_at == first.runs_out_at, "it plays after what it follows"
        assert happened.metrics == {"requests_finished_total": 2, "device_busy_seconds_total": 2}
        assert 0.03 <= happened.elapsed == happened.outputs[-1][0]
        assert len(ended) == 2

    def test_the_trace_is_what_really_happened(self) -> None:
        said = [Utterance(0.0, 8, rate=0.9), Utterance(0.02, 90, hears=0.5), Utterance(0.02, 90, cancel_at=9.0)]
        live = Live(Instant(cut="Day."), said, ask("Good.", "Day.", "Sir."))
        live.run()
        trace = live.trace()
        assert [(x.frames, x.text_tokens) for x in trace] == [(5, 7), (90, 6), (4, 6)], "unless it was cut off"
        assert [x.rate for x in trace] == [0.9, 1.0, 1.0]
        assert [(x.hears, x.cancel_at) for x in trace] == [(None, None), (0.5, None), (None, 9.0)]
        assert all(0 <= was.at - x.at < 5 for was, x in zip(trace, said, strict=True)), "late, where the agenda was"

    def test_listeners_say_where_they_stand_on_the_engines_clock(self) -> None:
        engine, clock = Instant(), MonotonicClock()
        before = clock.now()
        Live(engine, [Utterance(0.0, 8)], ask("Good morning.")).run()
        assert engine.told
        assert {playhead.request_id for playhead in engine.told} == {71}
        assert all(before < playhead.at < clock.now() for playhead in engine.told)
        assert not engine.cancelled

    def test_a_listener_interrupts_when_he_has_heard_enough(self) -> None:
        engine = Instant()
        Live(engine, [Utterance(0.0, 8, hears=0.08), Utterance(0.3, 8)], ask("Good morning.", "Hm.")).run()
        assert engine.cancelled == [71]

    def test_a_caller_hangs_up_when_the_script_says_so(self) -> None:
        engine = Instant()
        Live(engine, [Utterance(0.0, 8, cancel_at=0.01), Utterance(0.05, 8)], ask("Good morning.", "Hm.")).run()
        assert engine.cancelled == [71]

    def test_who_hangs_up_after_the_end_has_heard_all(self) -> None:
        live = Live(Instant(), [Utterance(0.0, 8, cancel_at=9.0)], ask("Good."))
        (listener,) = live.run().listeners
        assert listener.audio == pytest.approx(0.48)
        assert listener.unheard == 0.0

    def test_who_hangs_up_in_the_middle_has_heard_that_much(self) -> None:
        said = [Utterance(0.0, 8, cancel_at=0.1), Utterance(0.2, 8)]
        first = Live(Instant(), said, ask("Good morning.", "Hm.")).run().listeners[0]
        assert first.said.cancel_at is not None
        assert first.said.cancel_at >= 0.1
        assert first.unheard == pytest.approx(first.audio - (first.said.cancel_at - first.plays_at))
        assert 0 < first.unheard < first.audio

    def test_what_follows_an_interruption_does_not_wait_for_what_was_cut_off(self) -> None:
        said = [Utterance(0.0, 8), Utterance(0.05, 8, follows=0)]
        first, second = Live(Instant(cut="Good morning."), said, ask("Good morning.", "Hm.")).run().listeners
        assert first.audio > 1.0
        assert first.runs_out_at < second.said.at, "silent since then"
        assert second.plays_at == second.arrivals[0][0]

    def test_who_is_late_to_call_still_hangs_up_and_his_trace_can_be_read(self, tmp_path: Path) -> None:
        engine = Instant(submitting=0.05)
        said = [Utterance(0.0, 8), Utterance(0.0, 8, cancel_at=0.01), Utterance(0.2, 8, cancel_at=0.2)]
        live = Live(engine, said, ask("One.", "Two.", "Three."))
        live.run()
        assert engine.cancelled == [72]
        write_trace(tmp_path / "trace", live.trace())
        read = read_trace(tmp_path / "trace")
        assert read == live.trace()
        assert read[1].cancel_at is not None
        assert read[1].cancel_at >= read[1].at >= 0.05
        assert read[2].cancel_at == read[2].at, "all was over before he could"

    def test_a_request_that_is_not_served_ends_the_run(self) -> None:
        live = Live(Instant(refuses="Two."), [Utterance(0.0, 8)] * 3, ask("One.", "Two.", "Three."))
        with pytest.raises(RuntimeError, match="one was not: no more today"):
            live.run()


ROW = Figures(20, 0, 3, 3, 41.6, 60.0, 80.0, 90.0, 0.25, 1.4, 0.65, 90.0, 0.0)


class TestComparison:
    def test_all_stand_side_by_side(self) -> None:
        other = replace(ROW, requests_with_gaps=0, max_extra_buffer_ms=0.0, ttfa_p50_ms=51.0, unheard_seconds=2.1)
        paced = replace(ROW, requests_with_gaps=2)
        outcomes = Outcome(ROW, 0.25), Outcome(other, 0.0625), Outcome(paced, 0.125)
        steps = Steps(9.5, 0.25, 0.125, 0.5, 0.75)
        comparison = Comparison("predictor", "mine", 7.25, 1.5, (Utterance(0.0, 25),), *outcomes, steps)
        assert ratios(other, ROW) == {
            "ttfa_p50_ms": 0.85,
            "ttfa_p95_ms": 1.0,
            "rtf": 1.0,
            "requests_with_gaps": 0.0,
        }
        assert ratios(ROW, other)["requests_with_gaps"] is None
        data: Any = comparison.to_dict()
        assert data["simulated_over_real"] == ratios(other, ROW)
        assert data["paced_over_real"]["requests_with_gaps"] == 0.667
        assert (data["real_overruns"], data["simulated_overruns"], data["paced_overruns"]) == (0.25, 0.0625, 0.125)
        assert data["steps"]["between_ms_mean"] == 0.25
        written = io.StringIO()
        Console(file=written, width=80).print(table(comparison))
        lines = [line.split() for line in written.getvalue().splitlines() if line.strip()]
        rows = {tuple(line[:2]): line for line in lines}
        assert rows["real", "3"][1:] == ["3", "3", "42", "60", "80", "90", "0.250", "1.4", "65%", "0"]
        assert rows["simulated", "0"][1:] == ["0", "3", "0", "51", "80", "90", "0.250", "1.4", "65%", "2"]
        assert rows["at", "its"][2:4] == ["pace", "2"]
        told = " ".join(word for line in lines for word in line)
        assert told.endswith("than was predicted: real 25.0%, simulated 6.2%, at its pace 12.5%.")
        assert "0.75 times as fast as the profile's. A step took 9.50 ms, 0.25 passed until the next." in told
        assert "policy" not in written.getvalue()

    def test_where_no_load_is_asked_for_the_profiles_rated_one_is_played(self) -> None:
        assert rated_load(replace(FAST, rated_load=1.9)) == 1.9
        with pytest.raises(ValueError, match="a rated load, 'fast' holds none: give --load, or have simulate --sweep"):
            rated_load(FAST)

    def test_the_real_engine_takes_everybody_as_the_simulated_one_does(self) -> None:
        config = unrefusing_config(RuntimeConfig(device="cpu", in_process=True), "newest-first")
        assert (config.device, config.in_process, config.policy) == ("cpu", True, "newest-first")
        assert (config.max_wait, config.max_queued) == (inf, 1_000_000)
        assert config.record

    def test_the_real_engine_and_its_simulation_say_the_same_words(
        self, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = list[Limits]()

        def simulated(*args: Any, **kwargs: Any) -> Simulation:
            limits.append(kwargs["limits"])
            return simulate(*args, **kwargs)

        monkeypatch.setattr("engine.bench_gaps.simulate", simulated)
        callers = [Utterance(0.0, 8), Utterance(0.1, 12, follows=0)]
        seen = compare(runtime, callers, "predictor", FAST, 0, Console(quiet=True))
        assert limits == [replace(runtime.limits, max_queued=1_000_000)] * 2, "the engine's own, but for the queue"
        assert (seen.policy, seen.profile) == ("predictor", "fast")
        real, simulated_, paced = (one.figures for one in (seen.real, seen.simulated, seen.paced))
        assert real.requests == simulated_.requests == paced.requests == 2
        assert real.audio_seconds == pytest.approx(simulated_.audio_seconds) == pytest.approx(paced.audio_seconds)
        assert 1.0 < real.audio_seconds < 6.0
        texts = [request.text for request in asked(callers, runtime.spec)]
        assert [said.text_tokens for said in seen.trace] == [len(words) + 2 for words in texts], "with begin and end"
        for row in (real, simulated_, paced):
            assert row.ttfa_p50_ms is not None
            assert row.rtf is not None
            assert 0 < row.ttfa_p50_ms <= (row.ttfa_p95_ms or 0)
            assert row.rtf > 0
            assert row.refused == 0
        data: Any = to_json([seen, replace(seen, policy="newest-first")])
        assert data["profile"] == "fast"
        assert list(data["policies"]) == list(data["simulated"]) == ["predictor", "newest-first"]
        assert set(data["comparison"]["predictor"]) >= {"simulated_over_real", "real_load"}
        assert all(0 <= one.overruns < 1 for one in (seen.real, seen.simulated, seen.paced))
        assert data["comparison"]["predictor"]["real_overruns"] == round(seen.real.overruns, 4)
        assert seen.steps.step_ms_mean > seen.steps.between_ms_p50 > 0
        assert seen.steps.pace < 1, "the profile is of a faster machine"
