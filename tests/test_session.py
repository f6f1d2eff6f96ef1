"""agent/session.py: order, errors, stop, progress and playheads of one conversation, with a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from scripted_call import Call
from scripted_runtime import SPEC, ScriptedRuntime

from agent.manner import Manner
from agent.session import LOOKAHEAD, Session
from engine.core import ErrorCode, FinishReason, Mode


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
async def call(executor: ThreadPoolExecutor) -> Call:
    return Call(executor)


async def test_it_introduces_the_voice(call: Call) -> None:
    call.session.listen(call.take)
    assert call.said == [
        {
            "type": "session.created",
            "id": "call",
            "voice": "scripted",
            "licence": "Apache-2.0",
            "sample_rate": 24_000,
            "modes": ["plain"],
            "max_text_chars": 200,
            "max_queued": 8,
        }
    ]


async def test_what_was_said_before_the_channel_opened_is_told_after_the_introduction(
    executor: ThreadPoolExecutor,
) -> None:
    call = Call(executor)
    call.session = Session("call", call.engine, executor, call.time, call.metrics)  # nobody listens yet
    call.speak("early")
    call.engine.say(1)
    await call.packets(1)
    assert call.said == []
    call.session.listen(call.take)
    assert call.types == ["session.created", "speech.started"]


async def test_an_utterance_from_speak_to_its_last_word(call: Call) -> None:
    call.speak("a", "Hello.")
    call.time.time += 0.1
    call.engine.say(1, frames=1)
    await call.packets(1)
    call.engine.say(1, frames=1, final=True)
    call.engine.finish(1)
    await call.packets(8)
    assert call.types == ["speech.started", "speech.stopped"]
    assert call.told("speech.started")[0] == {"type": "speech.started", "id": "a", "ttfa_ms": pytest.approx(100.0)}
    assert call.told("speech.stopped")[0] == {
        "type": "speech.stopped",
        "id": "a",
        "reason": "end",
        "heard_ms": pytest.approx(160.0),
        "sent_ms": pytest.approx(160.0),
        "heard": "Hello.",
    }
    assert call.session.quiet
    assert call.count('breezert_utterances_total{reason="end"}') == 1
    assert call.count("breezert_ttfa_seconds_sum") == pytest.approx(0.1)


@pytest.mark.parametrize(("reason", "word"), [(FinishReason.LENGTH, "length"), (FinishReason.END, "end")])
async def test_the_reason_comes_from_the_engine_even_after_everything_was_played(
    call: Call, reason: FinishReason, word: str
) -> None:
    call.speak("a")
    call.engine.say(1, final=True)
    await call.packets(6)
    assert call.types == ["speech.started"]  # played, but the engine has not said its last word
    call.engine.finish(1, reason)
    await call.packets(1)
    assert call.told("speech.stopped")[0]["reason"] == word


async def test_the_request_has_the_voices_defaults_and_what_the_client_chose(call: Call) -> None:
    call.speak("a", "one")
    call.speak("b", "two", seed=99, temperature=0.0, speaker="S1")
    first, second = (job.request for job in call.engine.jobs.values())
    assert (first.text, first.speaker, first.sampling) == ("one", "S0", SPEC.sampling)
    assert (second.speaker, second.sampling) == ("S1", replace(SPEC.sampling, seed=99, temperature=0.0))


async def test_utterances_are_submitted_in_order_each_with_the_one_it_follows(call: Call) -> None:
    for name in "abcd":
        call.speak(name, name)
    assert len(call.engine.jobs) == LOOKAHEAD == 2
    assert [job.request.follows for job in call.engine.jobs.values()] == [None, 1]
    call.engine.say(1, final=True)
    call.engine.finish(1)  # generated, not yet played
    await call.packets(1)
    assert [job.request.text for job in call.engine.jobs.values()] == ["a", "b", "c"]
    assert call.engine.jobs[3].request.follows == 2
    call.engine.finish(2)
    call.engine.finish(3)
    await call.packets(0)
    call.engine.finish(4)
    await call.packets(6)
    assert call.engine.jobs[4].request.follows == 3
    assert [message["id"] for message in call.told("speech.stopped")] == ["a", "b", "c", "d"]
    call.speak("e")
    assert call.engine.jobs[5].request.follows == 4, "in its place, if it is soon enough; the engine knows"


async def test_who_interrupts_is_not_waited_for_though_all_was_made(call: Call) -> None:
    call.speak("a")
    call.engine.say(1, frames=5, final=True)
    call.engine.finish(1)
    await call.packets(2)
    call.client(type="stop")
    assert call.engine.cancelled == [1]
    call.speak("b")
    assert call.engine.jobs[2].request.follows is None


async def test_a_second_utterance_plays_after_the_first_without_a_gap(call: Call) -> None:
    call.speak("a")
    call.speak("b")
    call.engine.say(2, frames=1)  # the engine may be early with the second
    await call.packets(2)
    assert call.types == []
    call.engine.say(1, frames=1, final=True)
    call.engine.finish(1)
    call.engine.say(2, frames=1, final=True)
    call.engine.finish(2)
    await call.packets(12)
    assert [(message["type"], message["id"]) for message in call.said if message["type"] != "speech.progress"] == [
        ("speech.started", "a"),
        ("speech.stopped", "a"),
        ("speech.started", "b"),
        ("speech.stopped", "b"),
    ]
    assert [message["heard_ms"] for message in call.told("speech.stopped")] == pytest.approx([80.0, 160.0])
    assert call.count("breezert_ttfa_seconds_count") == 1  # b had to wait for a


async def test_stop_cancels_everything_and_says_what_was_heard(call: Call) -> None:
    for name in "abc":
        call.speak(name)
    call.engine.say(1, frames=5)
    await call.packets(3)
    call.client(type="stop")
    assert call.engine.cancelled == [1, 2]
    assert [(m["id"], m["reason"], m["sent_ms"]) for m in call.told("speech.stopped")] == [
        ("a", "cancelled", pytest.approx(60.0)),
        ("b", "cancelled", 0.0),
        ("c", "cancelled", 0.0),
    ]
    assert call.session.quiet
    call.engine.say(1, frames=1)  # was on its way
    call.engine.finish(1, FinishReason.CANCELLED)
    said = len(call.said)
    await call.packets(3)
    assert [message["type"] for message in call.said[said:]] == ["speech.silenced"]
    assert not call.session._buffer.pop(480, 60.0).samples.any()


async def test_what_was_heard_is_less_what_the_listeners_buffer_holds_and_half_the_round_trip(call: Call) -> None:
    call.client(type="stats", jitter_buffer_delay=48.0, jitter_buffer_emitted_count=480, round_trip_time=0.04)
    call.speak("a")
    call.engine.say(1, frames=5)
    await call.packets(15)
    call.client(type="stop")
    (stopped,) = call.told("speech.stopped")
    assert stopped["sent_ms"] == pytest.approx(300.0)
    assert stopped["heard_ms"] == pytest.approx(300.0 - 100.0 - 20.0)


async def test_speech_after_a_stop_is_of_a_new_epoch_and_may_use_an_old_name(call: Call) -> None:
    call.speak("a")
    call.engine.say(1)
    await call.packets(1)
    call.client(type="stop")
    call.speak("a")
    assert [job.request.epoch for job in call.engine.jobs.values()] == [0, 1]
    call.engine.say(1, frames=3)  # late audio of the old one
    call.engine.say(2, frames=1, final=True)
    call.engine.finish(2)
    await call.packets(6)
    assert call.told("speech.stopped")[-1]["heard_ms"] == pytest.approx(80.0)


async def test_falling_silent_is_told_link_by_link_with_the_last_audible_packet(call: Call) -> None:
    call.speak("a")
    call.engine.say(1, frames=5)
    await call.packets(3)
    call.client(type="stop")
    assert call.told("speech.silenced") == []
    call.time.time += 0.011
    await call.packets(1)
    (silenced,) = call.told("speech.silenced")
    assert "turn_ms" not in silenced, "nobody spoke"
    assert (silenced["flush_ms"], silenced["wire_ms"]) == (0.0, pytest.approx(11.0))
    await call.packets(3)
    assert len(call.told("speech.silenced")) == 1
    assert call.count("breezert_barge_in_seconds_sum") == pytest.approx(0.011)


async def test_what_had_not_begun_or_stood_still_needs_no_silencing(call: Call) -> None:
    call.speak("a")
    await call.packets(1)
    call.client(type="stop")
    await call.packets(1)
    assert call.told("speech.silenced") == []
    call.speak("b")
    call.engine.say(2, frames=5)
    await call.packets(3)
    call.session.pause()
    await call.packets(3)
    call.client(type="stop")
    await call.packets(3)
    assert len(call.told("speech.silenced")) == 1, "of the pause"


async def test_stop_in_silence_is_no_event(call: Call) -> None:
    call.client(type="stop")
    assert call.said == []


async def test_an_underrun_is_reported_with_its_silence_and_counted(call: Call) -> None:
    call.speak("a")
    call.engine.say(1, frames=1, slack=0.5)
    await call.packets(6)  # 4 of speech, 2 of silence
    call.engine.say(1, frames=1, final=True)
    call.engine.finish(1)
    await call.packets(5)
    assert call.types == ["speech.started", "speech.underrun", "speech.stopped"]
    assert call.told("speech.underrun")[0] == {
        "type": "speech.underrun",
        "id": "a",
        "heard_ms": pytest.approx(80.0),
        "missed_ms": pytest.approx(40.0),
        "underruns": 1,
    }
    assert call.told("speech.stopped")[0]["underruns"] == 1
    assert call.count("breezert_underruns_total") == 1
    assert call.count("breezert_underrun_seconds_total") == pytest.approx(0.04)


async def test_an_end_that_is_known_late_is_no_underrun(call: Call) -> None:
    call.speak("a")
    call.engine.say(1, frames=1)
    await call.packets(6)
    call.engine.finish(1)
    await call.packets(1)
    assert call.types == ["speech.started", "speech.stopped"]
    assert "underruns" not in call.told("speech.stopped")[0]


async def test_a_stop_while_speech_stands_still_counts_the_underrun(call: Call) -> None:
    call.speak("a")
    call.engine.say(1, frames=1)
    await call.packets(6)
    call.client(type="stop")
    assert call.told("speech.stopped")[0]["underruns"] == 1


async def test_progress_at_most_five_times_a_second(call: Call) -> None:
    call.speak("a")
    call.engine.say(1, frames=25)
    await call.packets(100)  # two seconds
    progress = call.told("speech.progress")
    assert 9 <= len(progress) <= 10
    assert progress[0]["heard_ms"] == pytest.approx(40.0)
    assert progress[0]["buffered_ms"] == pytest.approx(1960.0)
    assert progress[0]["underruns"] == 0


async def test_who_watches_is_told_of_progress_by_views_alone(call: Call) -> None:
    call.client(type="watch", on=True)
    call.speak("a")
    call.engine.say(1, frames=25)
    await call.packets(100)
    assert not call.told("speech.progress")


async def test_playheads_are_the_real_playback_clock(call: Call) -> None:
    call.speak("a")
    call.speak("b")
    call.engine.say(1, frames=5, slack=1.0)
    await call.packets(20)
    await call.packets(1)  # stands still
    call.engine.say(1, frames=1, final=True)
    call.engine.finish(1)
    call.engine.say(2, frames=1, final=True)
    call.engine.finish(2)
    await call.packets(10)
    heads = [(h.request_id, h.played_samples, round(h.at - 50.0, 3), h.running) for h in call.engine.playheads]
    assert heads == [
        (1, 0, 0.0, True),
        (1, 3840, 0.16, True),
        (1, 7680, 0.32, True),
        (1, 9600, 0.4, False),
        (1, 9600, 0.42, True),
        (1, 11520, 0.5, False),
        (2, 0, 0.5, True),
        (2, 1920, 0.58, False),
    ]


async def test_playheads_carry_what_chunks_take_to_come_and_the_networks_jitter(call: Call) -> None:
    call.client(type="stats", jitter=0.015, packets_lost=3, jitter_buffer_delay=90.0, jitter_buffer_emitted_count=100)
    call.speak("a")
    call.engine.say(1, frames=1, slack=0.03, made_at=49.98)
    await call.packets(4)
    call.engine.say(1, frames=1, slack=0.03, made_at=50.06)  # 30 ms later than predicted: the engine's own business
    await call.packets(5)
    assert [head.jitter for head in call.engine.playheads] == pytest.approx([0.035] * len(call.engine.playheads))
    call.client(type="stats", jitter=0.001)
    call.engine.finish(1)
    await call.packets(1)
    assert call.engine.playheads[-1].jitter == pytest.approx(0.021)


async def test_a_stalled_clock_is_told_at_once(call: Call) -> None:
    call.speak("a")
    call.engine.say(1, frames=5)
    await call.packets(1)
    call.session.track.pace.next_due(call.time.time)
    await call.packets(1)
    call.time.time += 0.1  # nobody pulled: more than may be caught up with
    call.session.track.pace.next_due(call.time.time)
    await call.packets(1)
    heads = [(h.played_samples, round(h.at - 50.0, 3), h.running) for h in call.engine.playheads]
    assert heads == [(0, 0.0, True), (960, 0.14, True)]
    assert call.count("breezert_pacing_stalls_total") == 1


async def test_a_clock_that_is_behind_counts_from_where_it_will_have_caught_up(call: Call) -> None:
    call.session.track.pace.next_due(50.0)
    call.time.time = 50.05  # the loop was held up: this packet and the next two follow at once
    call.speak("a")
    call.engine.say(1, frames=5)
    await call.packets(1)
    assert [(h.played_samples, h.at) for h in call.engine.playheads] == [(0, pytest.approx(50.0))]


async def test_a_flushed_clock_says_no_more_and_what_it_was_due_for_is_cancelled(call: Call) -> None:
    call.speak("a")
    call.engine.say(1, frames=5)
    await call.packets(2)
    call.client(type="stop")
    heads = len(call.engine.playheads)
    await call.packets(10)
    assert len(call.engine.playheads) == heads
    assert call.engine.cancelled == [1]
    call.speak("b")
    assert call.engine.jobs[2].request.follows is None


@pytest.mark.parametrize("jitter", [-3.0, 1e300])
async def test_what_a_client_claims_about_its_jitter_is_bounded(call: Call, jitter: float) -> None:
    call.client(type="stats", jitter=jitter)
    call.speak("a")
    call.engine.say(1)
    await call.packets(1)
    assert 0.0 <= call.engine.playheads[0].jitter <= 1.0


# ---- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code", "field", "words"),
    [
        ({"id": "a", "text": ""}, "bad_request", "text", "no text"),
        ({"id": "a", "text": " \n\t"}, "bad_request", "text", "no text"),
        ({"id": "a", "text": "x" * 201}, "too_long", "text", "at most 200 characters, this one has 201"),
        (
            {"id": "a", "text": "x", "temperature": -1},
            "bad_request",
            "temperature",
            "temperature must be from 0.0 to 10.0",
        ),
        ({"id": "a", "text": "x", "seed": -1}, "bad_request", "seed", "seed must be from 0"),
    ],
)
async def test_an_utterance_that_cannot_be_said_is_an_error_with_its_id(
    call: Call, message: dict[str, Any], code: str, field: str | None, words: str
) -> None:
    call.client(type="speak", **message)
    (error,) = call.said
    assert (error["type"], error["code"], error.get("field"), error["id"]) == ("error", code, field, "a")
    assert error["event"] == "speak"
    assert words in error["message"]
    assert call.engine.jobs == {}
    assert call.session.quiet


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("not json", "JSON"),
        (b'{"type": "\xff\xfe"}', "utf-8"),
        ("[]", "object"),
        ('{"type": "shout"}', "shout"),
        ('{"type": "speak", "id": "a"}', "text"),
        ('{"type": "speak", "id": "a", "text": "x", "speed": 2}', "speed"),
        ('{"type": "speak", "id": "", "text": "x"}', "id"),
        ('{"type": "speak", "id": "a", "text": 5}', "text"),
        ('{"type": "ping", "t": "' + "x" * 65_536 + '"}', "65536 bytes"),
    ],
)
async def test_a_message_that_cannot_be_taken_is_one_error_event(call: Call, data: str | bytes, words: str) -> None:
    call.session.receive(data)
    (error,) = call.said
    assert error["code"] == "bad_request"
    assert words.lower() in error["message"].lower()
    call.client(type="ping", t=4)
    assert call.said[1] == {"type": "pong", "t": 4.0}


async def test_an_error_names_the_event_and_the_field(call: Call) -> None:
    call.client(type="stop", now=True)
    call.client(type="say", text="Hello.")
    call.speak("a")
    call.engine.fail(1, ErrorCode.BAD_REQUEST, "the engine says this later", field="instruction")
    await asyncio.sleep(0)
    named = [(error.get("event"), error.get("field")) for error in call.told("error")]
    assert named == [("stop", "now"), ("say", "type"), ("speak", "instruction")]


async def test_a_name_that_is_taken_is_refused_and_the_first_goes_on(call: Call) -> None:
    call.speak("a")
    call.speak("a")
    (error,) = call.said
    assert (error["code"], error["field"]) == ("bad_request", "id")
    assert "id" not in error  # a client would take it for the end of the first
    assert len(call.engine.jobs) == 1


async def test_one_utterance_more_than_may_wait_is_busy(executor: ThreadPoolExecutor) -> None:
    call = Call(executor, max_queued=3)
    for name in "abcd":
        call.speak(name)
    (error,) = call.said
    assert (error["code"], error["id"]) == ("busy", "d")
    assert call.engine.jobs.keys() == {1, 2}


async def test_who_has_to_wait_is_told_how_long_and_then_speaks(call: Call) -> None:
    call.speak("a")
    call.engine.queue(1, wait=1.25)
    await call.packets(1)
    assert call.said == [{"type": "speech.queued", "id": "a", "wait_ms": 1250.0}]
    call.time.time += 1.0
    call.engine.say(1, final=True)
    call.engine.finish(1)
    await call.packets(6)
    assert call.types == ["speech.queued", "speech.started", "speech.stopped"]
    assert call.told("speech.started")[0]["ttfa_ms"] == pytest.approx(1020.0)  # the wait counts
    assert call.session.quiet


async def test_who_waits_may_stop_waiting(call: Call) -> None:
    call.speak("a")
    call.speak("b")
    call.engine.queue(1, wait=1.25)
    await call.packets(1)
    call.client(type="stop")
    call.engine.queue(1, wait=0.5)  # was on its way
    call.engine.finish(1, FinishReason.CANCELLED)
    await call.packets(2)
    assert call.engine.cancelled == [1, 2]
    assert [(m["type"], m["id"]) for m in call.said] == [
        ("speech.queued", "a"),
        ("speech.stopped", "a"),
        ("speech.stopped", "b"),
    ]
    assert call.session.quiet


async def test_who_waits_may_be_refused_after_all(call: Call) -> None:
    call.speak("a")
    call.engine.queue(1, wait=1.25)
    await call.packets(1)
    call.engine.fail(1, ErrorCode.BUSY, "all voices are busy", retry_after=3.0)
    await call.packets(1)
    assert call.types == ["speech.queued", "error", "speech.stopped"]
    assert call.told("error")[0]["retry_after_ms"] == 3000.0
    assert call.session.quiet


async def test_a_busy_engine_answers_every_sentence_of_a_reply(call: Call) -> None:
    """As it does: before submit returns, or with the first of them while the others still wait in the session."""
    call.engine.retry_after = 0.4
    for name in "abcd":
        call.speak(name)
    for _ in range(4):
        await call.packets(1)
    assert [(m["id"], m["code"], m["retry_after_ms"]) for m in call.told("error")] == [
        (name, "busy", 400.0) for name in "abcd"
    ]
    assert [(m["id"], m["reason"], m["sent_ms"]) for m in call.told("speech.stopped")] == [
        (name, "failed", 0.0) for name in "abcd"
    ]
    assert call.session.quiet
    call.engine.retry_after = 0.0
    call.speak("e")
    call.engine.say(5, final=True)
    await call.packets(1)
    assert call.types[-1] == "speech.started"
    assert call.engine.jobs[5].request.follows is None


async def test_what_follows_a_refused_utterance_waits_for_its_own_answer(call: Call) -> None:
    for name in "abc":
        call.speak(name)
    call.engine.fail(1, ErrorCode.BUSY, "all voices are busy", retry_after=1.0)
    await call.packets(1)
    assert [job.request.follows for job in call.engine.jobs.values()] == [None, 1, 2]
    call.engine.queue(2, wait=0.7)
    await call.packets(1)
    assert call.told("speech.queued") == [{"type": "speech.queued", "id": "b", "wait_ms": 700.0}]
    for request_id in (2, 3):
        call.engine.say(request_id, final=True)
        call.engine.finish(request_id)
    await call.packets(10)
    assert [(m["id"], m["reason"]) for m in call.told("speech.stopped")] == [
        ("a", "failed"),
        ("b", "end"),
        ("c", "end"),
    ]


async def test_what_was_refused_is_not_followed(call: Call) -> None:
    for name in "abc":
        call.speak(name)
    call.engine.fail(2, ErrorCode.BAD_REQUEST, "no such speaker")
    await call.packets(1)
    assert call.engine.jobs[3].request.follows == 1


async def test_a_failed_utterance_is_an_error_and_the_next_goes_on(call: Call) -> None:
    call.speak("a")
    call.speak("b")
    call.engine.fail(1, ErrorCode.BUSY, "no slot is free", retry_after=1.5)
    call.engine.say(2, final=True)
    call.engine.finish(2)
    await call.packets(6)
    assert call.said[0] == {
        "type": "error",
        "code": "busy",
        "message": "no slot is free",
        "id": "a",
        "retry_after_ms": 1500.0,
    }
    assert [(m["id"], m["reason"]) for m in call.told("speech.stopped")] == [("a", "failed"), ("b", "end")]
    assert call.count('breezert_errors_total{code="busy"}') == 1


async def test_an_engine_that_dies_lets_what_it_made_be_heard(call: Call) -> None:
    call.speak("a")
    call.engine.say(1, frames=2)
    await call.packets(1)
    call.engine.fail(1, ErrorCode.ENGINE_DIED, "the engine ended")
    await call.packets(10)
    assert call.types == ["speech.started", "error", "speech.stopped"]
    assert call.told("speech.stopped")[0]["heard_ms"] == pytest.approx(160.0)


async def test_a_flood_of_messages_is_cut_with_one_error_event(call: Call) -> None:
    for _ in range(300):
        call.client(type="ping")
    assert len(call.told("pong")) == 100
    assert [error["code"] for error in call.told("error")] == ["busy"]
    call.time.time += 1.0
    call.client(type="ping")
    assert call.said[-1]["type"] == "pong"


async def test_a_voice_at_a_rate_that_opus_does_not_take_is_refused(executor: ThreadPoolExecutor) -> None:
    with pytest.raises(ValueError, match="22050"):
        Call(executor, spec=replace(SPEC, sample_rate=22_050))


async def test_modes_are_told_by_name(executor: ThreadPoolExecutor) -> None:
    call = Call(executor, spec=replace(SPEC, modes=frozenset(Mode)))
    call.session.listen(call.take)
    assert call.said[0]["modes"] == ["clone", "design", "direction", "plain"]
    assert "speakers" not in call.said[0], "nobody has a name"


async def test_speakers_are_told_and_taken_by_name(executor: ThreadPoolExecutor) -> None:
    call = Call(executor, spec=replace(SPEC, speakers=("Ada", "Bo")))
    call.session.listen(call.take)
    assert call.said[0]["speakers"] == ["Ada", "Bo"]
    call.speak("a", speaker="Bo")
    assert call.engine.jobs[1].request.speaker == "Bo"


# ---- the end --------------------------------------------------------------------------------------------------


async def test_close_gives_everything_back_and_says_nothing_more(call: Call) -> None:
    for name in "abc":
        call.speak(name)
    call.engine.say(1)
    await call.packets(1)
    said = len(call.said)
    call.session.close()
    call.engine.finish(1, FinishReason.CANCELLED)
    call.speak("d")
    await call.packets(2)
    assert call.engine.cancelled == [1, 2]
    assert len(call.engine.jobs) == 2
    assert len(call.said) == said
    assert call.session.track.readyState == "ended"


async def test_a_session_that_is_told_to_end_finishes_and_takes_nothing_new(call: Call) -> None:
    call.speak("a")
    call.session.refuse("the server is about to end")
    call.speak("b")
    assert [(error["code"], error["id"]) for error in call.told("error")] == [("closed", "b")]
    waiting = asyncio.ensure_future(call.session.idle())
    call.engine.say(1, final=True)
    call.engine.finish(1)
    await call.packets(5)
    await asyncio.sleep(0)
    assert waiting.done()


async def test_a_stop_is_never_dropped_in_a_flood(call: Call) -> None:
    call.speak("a")
    for _ in range(200):
        call.client(type="ping")
    assert call.told("error")[0]["code"] == "busy"
    call.client(type="stop")
    assert [stopped["reason"] for stopped in call.told("speech.stopped")] == ["cancelled"]


async def test_outputs_after_the_loop_has_closed_are_dropped(executor: ThreadPoolExecutor) -> None:
    engine = ScriptedRuntime()

    async def start() -> None:
        call = Call(executor)
        call.engine = engine
        call.session._engine = engine
        call.speak("a")

    await asyncio.to_thread(asyncio.run, start())
    engine.say(1)  # on another thread, as from the reader: must not raise


# ---- how all is said ----


async def test_how_all_is_said_can_be_changed(call: Call) -> None:
    """In the place of what was said before; what it leaves out is the server's own again."""
    call.session.usual = Manner(speaker="S1")
    call.client(type="session.update", speaker="S2", cfg_scale=1.0)
    call.speak("a", "Hello.")
    call.client(type="session.update")
    call.speak("b", "Hello.")
    first, second = (job.request for job in call.engine.jobs.values())
    assert (first.speaker, first.sampling.cfg_scale) == ("S2", 1.0)
    assert (second.speaker, second.sampling.cfg_scale) == ("S1", SPEC.sampling.cfg_scale)
    assert call.told("error") == []


@pytest.mark.parametrize(
    ("fields", "field", "why"),
    [
        ({"voice": "bert"}, "voice", "voice must be left out, since there is none here, got 'bert'"),
        ({"cfg_scale": 21}, "cfg_scale", "cfg_scale must be from 0.0 to 20.0, got 21"),
        ({"cfg_scale": 2.0}, "cfg_scale", "cfg_scale must be left out: voice"),
        ({"language": "x" * 201}, "language", "language must have at most 200 characters, got 201"),
        ({"language": "klingon"}, "language", "language must be one of those that voice"),
        ({"instruction": "slowly"}, "instruction", "instruction must be left out: the voice"),
        ({"seed": 3}, "seed", "unknown field `seed`"),
    ],
)
async def test_what_cannot_be_is_one_error_and_changes_nothing(
    call: Call, fields: dict[str, Any], field: str | None, why: str
) -> None:
    call.client(type="session.update", speaker="S1")
    call.client(type="session.update", **fields)
    (error,) = call.told("error")
    assert (error["code"], error["event"], error.get("field")) == ("bad_request", "session.update", field)
    assert why in error["message"]
    assert call.session.manner == Manner(speaker="S1")


# ---- text that is still being written ----


@pytest.fixture
async def open_call(executor: ThreadPoolExecutor) -> Call:
    call = Call(executor, spec=replace(SPEC, open_text=True, languages=("auto", "english")))
    call.session.listen(call.take)
    return call


async def test_replies_like_a_recording_are_not_opened(open_call: Call) -> None:
    """Speech would wait for as much text as the recording has frames."""
    assert open_call.session.speaks_while_written
    open_call.session.manner = Manner(voice="anna")
    assert not open_call.session.speaks_while_written
    assert open_call.session.open_text


async def test_a_voice_says_that_it_reads_open_texts_and_in_which_languages(open_call: Call) -> None:
    created = open_call.told("session.created")[0]
    assert (created["open_text"], created["languages"]) == (True, ["auto", "english"])


async def test_text_goes_to_the_engine_as_it_comes(open_call: Call) -> None:
    open_call.speak("a", "Hel", open=True, language="english")
    assert open_call.engine.jobs[1].request.open
    assert (open_call.engine.jobs[1].request.text, open_call.engine.jobs[1].request.language) == ("Hel", "english")
    for message in ({"type": "text.append", "id": "a", "text": "lo."}, {"type": "text.done", "id": "a"}):
        open_call.client(**message)
    assert open_call.engine.written == [(1, "lo."), (1, None)]
    open_call.engine.say(1, final=True)
    open_call.engine.finish(1)
    await open_call.packets(6)
    assert open_call.told("speech.stopped")[0]["heard"] == "Hello."
    assert open_call.told("error") == []


async def test_an_utterance_that_waits_for_its_turn_keeps_its_text(open_call: Call) -> None:
    for name in "abc":
        open_call.speak(name, "", open=True)
    open_call.client(type="text.append", id="c", text="Last.")
    open_call.client(type="text.done", id="c")
    assert open_call.engine.written == []
    open_call.engine.say(1, final=True)
    open_call.engine.finish(1)
    await open_call.packets(1)
    assert (open_call.engine.jobs[3].request.text, open_call.engine.jobs[3].request.open) == ("Last.", True)
    assert open_call.engine.written == [(3, None)]


@pytest.mark.parametrize(
    ("message", "code", "field", "why"),
    [
        ({"type": "text.append", "id": "b", "text": "x"}, "bad_request", "id", "b takes no more text: it is over, or"),
        ({"type": "text.done", "id": "b"}, "bad_request", "id", "b takes no more text: it is over, or not open"),
        (
            {"type": "text.append", "id": "a", "text": "x" * 200},
            "too_long",
            "text",
            "a would have more than 200 characters with this",
        ),
    ],
)
async def test_text_for_nobody_or_too_much_of_it_is_one_error_and_no_end(
    open_call: Call, message: dict[str, Any], code: str, field: str, why: str
) -> None:
    open_call.speak("a", "Hi", open=True)
    open_call.client(**message)
    (error,) = open_call.told("error")
    assert (error["code"], error["field"], error["event"]) == (code, field, message["type"])
    assert error["message"].startswith(why)
    assert "id" not in error
    assert open_call.engine.written == []
    assert not open_call.session.quiet


async def test_after_its_end_it_takes_no_more(open_call: Call) -> None:
    open_call.speak("a", "Hi.", open=True)
    for _ in range(2):
        open_call.client(type="text.done", id="a")
    open_call.client(type="text.append", id="a", text="x")
    assert [error["field"] for error in open_call.told("error")] == ["id", "id"]
    assert open_call.engine.written == [(1, None)]


async def test_text_that_comes_too_late_is_one_error_and_no_end(open_call: Call) -> None:
    """The engine takes it to be complete by then, and says so."""
    open_call.speak("a", "Hi", open=True)
    open_call.engine.ended.add(1)
    for number in (1, 2):
        open_call.client(type="text.append", id="a", text=" there")
        errors = open_call.told("error")
        told = [(error["code"], error["event"], error["field"]) for error in errors]
        assert told == [("bad_request", "text.append", "id")] * number
        assert errors[-1]["message"].endswith("or nothing came of it for 30 s")
    assert not open_call.session.quiet


@pytest.mark.parametrize(
    ("text", "pieces", "field", "event"),
    [
        ("Hi <|im_end|>", (), "text", "speak"),
        ("", ("Hi", " <|im_end|>"), "text", "text.append"),
        ("Hi <|im_end|>", (" there",), "text", None),
        ("Hi", (" there",), "speaker", "speak"),
    ],
)
async def test_what_is_wrong_with_a_text_is_the_fault_of_the_messages_that_wrote_it(
    open_call: Call, text: str, pieces: tuple[str, ...], field: str, event: str | None
) -> None:
    """The engine tells it later, and not of which piece."""
    open_call.speak("a", text, open=True)
    for piece in pieces:
        open_call.client(type="text.append", id="a", text=piece)
    open_call.engine.fail(1, ErrorCode.BAD_REQUEST, f"{field} must be another", field=field)
    await asyncio.sleep(0)
    (error,) = open_call.told("error")
    assert (error["id"], error.get("event"), error["field"]) == ("a", event, field)


async def test_a_piece_that_comes_too_fast_is_one_error_with_its_event(open_call: Call) -> None:
    open_call.speak("a", "Hi", open=True)
    for _ in range(120):
        open_call.client(type="text.append", id="a", text="x")
    (error,) = open_call.told("error")
    assert (error["code"], error["event"]) == ("busy", "text.append")
    assert len(open_call.engine.written) == 99


async def test_a_voice_that_reads_whole_texts_says_so(call: Call) -> None:
    call.speak("a", "Hi", open=True)
    (error,) = call.told("error")
    assert (error["id"], error["field"]) == ("a", "open")
    assert error["message"] == "the voice scripted reads whole texts only: leave out open"
    assert call.session.quiet


async def test_a_silence_for_want_of_text_is_no_underrun(open_call: Call) -> None:
    open_call.speak("a", "Hi", open=True)
    open_call.engine.say(1, slack=float("inf"))
    await open_call.packets(10)
    open_call.engine.say(1, text_late=True, slack=float("inf"))
    await open_call.packets(10)
    open_call.session.stop()
    assert open_call.told("speech.underrun") == []
    (stopped,) = open_call.told("speech.stopped")
    assert "underruns" not in stopped
    assert stopped["sent_ms"] == pytest.approx(160.0)
