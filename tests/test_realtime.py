"""agent/realtime*.py: events as literal JSON, what they do to a call, and what a call makes of them, with a scripted
engine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_runtime import SPEC
from scripted_talk import Talk, Thinker, saying

from agent import realtime
from agent.dialogue import Message, Role, Terms
from agent.protocol import EVENTS
from agent.realtime import EventError
from agent.realtime_dialect import MAX_CREATED, MAX_NOTING, RealtimeDialect
from agent.realtime_items import Entry, Items, Piece
from agent.realtime_keys import KEY_SECONDS, MAX_KEYS, ClientKeys, KeysExhausted
from agent.realtime_session import MAX_BYTES, SessionSettings, TurnDetection, turns
from agent.trouble import OutsideError, Trouble
from agent.turn import Interrupt, Pause, Resume, Settings, SpeechStarted, SpeechStopped, TurnEnded
from engine.core import ErrorCode

STORY = "Alpha beta gamma delta epsilon zeta eta theta iota kappa."


class Client(Talk):
    """A client of the Realtime protocol; its call's ids end with `t` and a number."""

    def __init__(self, executor: ThreadPoolExecutor, brain: Thinker, *args: Any, **options: Any) -> None:
        terms, deaf = options.pop("terms", Terms()), options.pop("deaf", False)
        super().__init__(executor, brain, *args, **options)
        self.conversation.terms = terms
        if deaf:
            self.conversation.ears = None
        self.events: list[dict[str, Any]] = []
        self.dialect = RealtimeDialect(self.session, self.conversation, self.time, self.hear)
        self.dialect._tag = "t"
        self.dialect.open()

    def hear(self, text: str) -> None:
        self.events.append(json.loads(text))

    def send(self, kind: str, **event: Any) -> None:
        self.dialect.receive(json.dumps({"type": kind, **event}))

    def write(self, text: str, **event: Any) -> None:
        """A typed message that nobody answers yet."""
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        self.send("conversation.item.create", item=item, **event)

    def got(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["type"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        (event,) = self.got(kind)
        return event

    def new(self) -> list[str]:
        """The types of what came since the last time."""
        kinds = [event["type"] for event in self.events]
        self.events.clear()
        return kinds

    async def ask(self, text: str = "Tell me.") -> None:
        self.write(text)
        self.send("response.create")
        await self.settle()

    async def hear_story(self) -> None:
        """The agent tells its story, 40 frames of 80 ms, and 0.8 s of it are sent."""
        await self.ask()
        self.engine.say(1, frames=40, final=True)
        self.engine.finish(1)
        await self.packets(41)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


# ---- sequences ------------------------------------------------------------------------------------------------------


async def test_the_session_is_told_first_with_what_the_server_does_on_its_own(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker())
    (created,) = client.events
    assert created["type"] == "session.created"
    assert created["event_id"] == "event_t_1"
    session = created["session"]
    assert (session["id"], session["type"], session["object"]) == ("call", "realtime", "realtime.session")
    assert session["audio"]["output"]["voice"] == "scripted"
    assert session["audio"]["input"]["turn_detection"] == {
        "type": "server_vad",
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
        "create_response": True,
        "interrupt_response": True,
        "idle_timeout_ms": None,
    }
    assert session["tracing"] is None


async def test_a_typed_turn(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker("Good mor", "ning. How", " are you?"))
    client.new()
    client.write("Hello!")
    item = {
        "id": "item_t_1",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_text", "text": "Hello!"}],
        "type": "message",
        "object": "realtime.item",
    }
    assert client.events == [
        {"type": "conversation.item.added", "event_id": "event_t_2", "previous_item_id": None, "item": item},
        {"type": "conversation.item.created", "event_id": "event_t_3", "previous_item_id": None, "item": item},
        {"type": "conversation.item.done", "event_id": "event_t_4", "previous_item_id": None, "item": item},
    ]
    assert not client.conversation.answering, "an item alone only adds to the history"
    client.new()
    client.send("response.create", response={"metadata": {"topic": "greeting"}})
    assert client.one("response.created")["response"] == {
        "id": "resp_t_2",
        "status": "in_progress",
        "conversation_id": "conv_t",
        "status_details": None,
        "output": [],
        "output_modalities": ["audio"],
        "audio": {"output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "scripted", "speed": 1.0}},
        "max_output_tokens": "inf",
        "metadata": {"topic": "greeting"},
        "usage": None,
        "object": "realtime.response",
    }
    await client.settle()
    assert client.asked_for == ["Good morning.", "How are you?"]
    assert [event["delta"] for event in client.got("response.output_audio_transcript.delta")] == [
        "Good morning.",
        " How are you?",
    ]
    assert client.one("conversation.item.added")["previous_item_id"] == "item_t_1"
    assert client.new() == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "conversation.item.created",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio_transcript.delta",
    ]
    await client.speak_on(1)
    assert client.new() == ["output_audio_buffer.started"]
    await client.speak_on(2)
    done = client.one("response.done")["response"]
    answer = {
        "id": "item_t_3",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_audio", "transcript": "Good morning. How are you?"}],
        "type": "message",
        "object": "realtime.item",
    }
    assert (done["status"], done["status_details"], done["output"]) == ("completed", None, [answer])
    part = {"response_id": "resp_t_2", "item_id": "item_t_3", "output_index": 0, "content_index": 0}
    said = {"type": "audio", "transcript": "Good morning. How are you?"}
    for event in client.events:
        event.pop("event_id")
    assert client.events == [
        {"type": "response.output_audio.done", **part},
        {"type": "response.output_audio_transcript.done", **part, "transcript": "Good morning. How are you?"},
        {"type": "response.content_part.done", **part, "part": said},
        {"type": "response.output_item.done", "response_id": "resp_t_2", "item": answer, "output_index": 0},
        {"type": "conversation.item.done", "previous_item_id": "item_t_1", "item": answer},
        {"type": "response.done", "response": done},
        {"type": "output_audio_buffer.stopped", "response_id": "resp_t_2"},
    ]
    assert client.conversation.history == [
        Message(Role.USER, "Hello!"),
        Message(Role.AGENT, "Good morning. How are you?"),
    ]


async def test_a_spoken_turn(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker("Yes."), saying("Is it so?"))
    client.new()
    client.conversation.act(SpeechStarted(59.0, 59.2))
    client.conversation.act(SpeechStopped(59.5, 59.8))
    client.conversation.act(SpeechStarted(59.9, 60.0))  # the same turn goes on
    client.conversation.act(TurnEnded(59.0, 61.0, 61.5))
    await client.settle()
    item = {
        "id": "item_t_1",
        "role": "user",
        "status": "completed",
        "content": [{"type": "input_audio", "transcript": None}],
        "type": "message",
        "object": "realtime.item",
    }
    for event in client.events:
        event.pop("event_id")
    assert client.events[:5] == [
        {"type": "input_audio_buffer.speech_started", "audio_start_ms": 8700, "item_id": "item_t_1"},
        {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 11000, "item_id": "item_t_1"},
        {"type": "input_audio_buffer.committed", "previous_item_id": None, "item_id": "item_t_1"},
        {"type": "conversation.item.added", "previous_item_id": None, "item": item},
        {"type": "conversation.item.created", "previous_item_id": None, "item": item},
    ]
    of = {"item_id": "item_t_1"}
    (delta,) = client.got("conversation.item.input_audio_transcription.delta")
    assert delta == {"type": delta["type"], **of, "delta": "Is it so?", "content_index": 0}
    (text,) = client.got("conversation.item.input_audio_transcription.completed")
    usage = {"type": "duration", "seconds": 2.0}
    assert text == {"type": text["type"], **of, "transcript": "Is it so?", "usage": usage, "content_index": 0}
    assert client.new()[5:10] == [
        "conversation.item.done",
        "response.created",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
        "response.output_item.added",
    ]
    client.send("conversation.item.retrieve", item_id="item_t_1")
    item["content"] = [{"type": "input_audio", "transcript": "Is it so?"}]
    assert client.one("conversation.item.retrieved")["item"] == item
    assert client.brain.turns[0].text == "Is it so?"


async def test_who_speaks_over_the_agent_cancels_the_response(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker(STORY))
    await client.hear_story()
    client.new()
    client.conversation.act(Interrupt(50.5, 51.0))
    client.conversation.act(SpeechStarted(50.5, 51.0))
    done = client.one("response.done")["response"]
    assert (done["status"], done["status_details"]) == (
        "cancelled",
        {"type": "cancelled", "reason": "turn_detected"},
    )
    assert done["output"][0]["status"] == "incomplete"
    truncated = client.one("conversation.item.truncated")
    assert 700 < truncated["audio_end_ms"] < 820
    assert client.new() == [
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
        "output_audio_buffer.cleared",
        "conversation.item.truncated",
        "input_audio_buffer.speech_started",
    ]
    client.send("conversation.item.retrieve", item_id=truncated["item_id"])
    heard = client.one("conversation.item.retrieved")["item"]["content"][0]["transcript"]
    assert heard == client.conversation.history[-1].text
    assert STORY.startswith(heard)
    assert 0 < len(heard) < len(STORY)


async def test_interrupt_as_the_stock_client_does(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker(STORY))
    await client.hear_story()
    client.new()
    client.send("response.cancel")
    assert client.one("response.done")["response"]["status_details"]["reason"] == "client_cancelled"
    assert len(client.got("output_audio_buffer.cleared")) == 1
    assert client.session.quiet, "it is silent at once"
    client.new()
    client.send("output_audio_buffer.clear")
    assert client.new() == ["output_audio_buffer.cleared"]
    client.send("response.cancel", event_id="mine")
    error = client.one("error")["error"]
    assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "mine")
    client.new()
    await client.ask("And now?")
    assert client.new()[3] == "response.created", "the call goes on"


async def test_clearing_the_output_alone_silences_too(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker(STORY))
    await client.hear_story()
    client.send("output_audio_buffer.clear")
    assert client.one("response.done")["response"]["status_details"]["reason"] == "client_cancelled"
    assert client.one("output_audio_buffer.cleared")["response_id"] == "resp_t_2"
    assert client.session.quiet


async def test_cancelling_while_it_is_thought_about(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker(asyncio.Event().wait))
    await client.ask()
    client.new()
    client.send("response.cancel", response_id="another")
    assert client.one("error")["error"]["param"] == "response_id"
    client.send("response.cancel", response_id="resp_t_2")
    await client.settle()
    assert client.new() == ["error", "response.done"]
    assert client.brain.closed == 1


async def test_a_response_that_says_nothing_is_over_all_the_same(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker())
    await client.ask()
    assert client.one("response.done")["response"]["output"] == []
    assert client.one("response.done")["response"]["status"] == "completed"


async def test_a_second_response_waits_for_the_first(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker(STORY))
    await client.ask()
    client.send("response.create", event_id="second")
    error = client.one("error")["error"]
    assert error["code"] == "conversation_already_has_active_response"
    assert error["event_id"] == "second"
    assert error["message"].startswith("response.create: ")


async def test_what_fails_outside_is_told_and_the_call_goes_on(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker(OutsideError(Trouble.BUSY, "the key is sesame")))
    await client.ask()
    await client.speak_on(1)
    done = client.one("response.done")["response"]
    assert done["status"] == "failed"
    assert done["status_details"] == {"type": "failed", "error": {"type": "server_error", "code": "busy"}}
    assert client.one("error")["error"]["type"] == "server_error"
    assert "sesame" not in json.dumps(client.events)
    assert client.one("output_audio_buffer.stopped"), "the apology was said"


async def test_words_that_cannot_be_found_out_are_told(executor: ThreadPoolExecutor) -> None:
    async def deaf(audio: Any) -> str:
        raise RuntimeError("no ear")

    client = Client(executor, Thinker("Yes."), deaf)
    client.conversation.act(TurnEnded(51.0, 52.0, 52.5))
    await client.settle()
    failed = client.one("conversation.item.input_audio_transcription.failed")
    assert (failed["item_id"], failed["error"]["code"]) == ("item_t_1", "broken")
    assert "no ear" not in json.dumps(client.events)
    assert client.asked_for == ["Sorry, not now."]


async def test_what_the_engine_fails_at_is_told(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker("Hello."))
    await client.ask()
    client.engine.fail(1, ErrorCode.BUSY, "all voices are busy")
    await client.packets(2)
    await client.settle()
    assert client.one("response.done")["response"]["status"] == "failed"


async def test_the_greeting_is_a_response_that_nobody_asked_for(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker(), greeting="Welcome.")
    await client.settle()
    assert client.new()[:3] == ["session.created", "response.created", "response.output_item.added"]


async def test_a_turn_whose_words_are_not_known_yet_becomes_part_of_the_next(executor: ThreadPoolExecutor) -> None:
    async def slowly(audio: Any) -> str:
        await asyncio.Event().wait()
        return ""

    client = Client(executor, Thinker("Yes."), slowly)
    client.conversation.act(SpeechStarted(51.0, 51.1))
    client.conversation.act(TurnEnded(51.0, 52.0, 52.5))
    client.conversation.act(SpeechStarted(52.7, 52.8))
    client.conversation.act(TurnEnded(52.7, 54.0, 54.5))
    await client.settle()
    assert client.one("conversation.item.deleted")["item_id"] == "item_t_1"
    assert [event["item_id"] for event in client.got("input_audio_buffer.committed")] == ["item_t_1", "item_t_3"]
    client.session.close()


# ---- settings -------------------------------------------------------------------------------------------------------


def detecting(detection: Any) -> dict[str, Any]:
    return {"type": "realtime", "audio": {"input": {"turn_detection": detection}}}


async def test_settings_are_merged_and_told(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker("Arr."))
    client.send("session.update", session={"type": "realtime", "instructions": "Talk like a pirate."})
    client.send("session.update", session={"audio": {"output": {"voice": "marin"}}, "tools": [{"name": "f"}], "new": 1})
    session = client.events[-1]["session"]
    assert client.events[-1]["type"] == "session.updated"
    assert session["instructions"] == "Talk like a pirate."
    assert session["audio"]["output"]["voice"] == "marin"
    assert session["audio"]["output"]["speed"] == 1.0
    assert session["audio"]["input"]["turn_detection"]["threshold"] == 0.5
    assert (session["tools"], session["new"]) == ([{"name": "f"}], 1)
    await client.ask()
    assert client.brain.turns[0].instructions == "Talk like a pirate."


@pytest.mark.parametrize(("voice", "speaker"), [("bo", "bo"), ("marin", "S0"), ({"id": "bo"}, "S0")])
async def test_a_speaker_is_chosen_by_name_where_there_is_one(
    executor: ThreadPoolExecutor, voice: Any, speaker: str
) -> None:
    """Clients name some voice in any case, so that one that is not here is no error."""
    client = Client(executor, Thinker("Arr."), spec=replace(SPEC, speakers=("ada", "bo")))
    client.send("session.update", session={"audio": {"output": {"voice": voice}}})
    await client.ask()
    assert client.engine.jobs[1].request.speaker == speaker
    assert client.got("error") == []


async def test_instructions_of_one_response_and_of_system_items(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker())
    client.send("session.update", session={"instructions": "Be kind."})
    item = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "It rains."}]}
    client.send("conversation.item.create", item={**item, "id": "weather"})
    await client.ask()
    client.send("response.create", response={"instructions": "Be brief."})
    await client.settle()
    client.send("conversation.item.delete", item_id="weather")
    client.send("response.create")
    await client.settle()
    assert [turn.instructions for turn in client.brain.turns] == [
        "Be kind.\n\nIt rains.",
        "Be brief.\n\nIt rains.",
        "Be kind.",
    ]


async def test_turn_detection_is_applied(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker())
    wanted = {
        "type": "server_vad",
        "threshold": 0.7,
        "prefix_padding_ms": 200,
        "silence_duration_ms": 900,
        "create_response": False,
        "interrupt_response": False,
    }
    client.send("session.update", session=detecting(wanted))
    assert client.events[-1]["session"]["audio"]["input"]["turn_detection"] == wanted
    settings, before = client.microphone.tuned[-1]
    assert settings is not None
    assert (settings.enter, round(settings.leave, 9), settings.silence) == (0.7, 0.55, 0.9)
    assert before == 0.2
    assert not client.conversation.automatic
    assert not client.conversation.interruptible


async def test_semantic_turn_detection_is_the_servers_own(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker())
    client.send("session.update", session=detecting({"type": "semantic_vad", "eagerness": "low"}))
    assert client.microphone.tuned[-1] == (Settings(), 0.3)
    assert client.conversation.automatic


async def test_without_turn_detection_the_client_commits(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker("Yes."), saying("Now?"))
    client.send("session.update", session=detecting(None))
    assert client.microphone.tuned[-1] == (None, 0.0)
    client.new()
    client.time.time = 60.0
    client.send("input_audio_buffer.clear")
    client.time.time = 62.0
    client.send("input_audio_buffer.commit")
    await client.settle()
    assert client.microphone.asked[-1] == (60.0, 62.0)
    assert client.new() == [
        "input_audio_buffer.cleared",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.created",
        "conversation.item.done",
        "conversation.item.input_audio_transcription.delta",
        "conversation.item.input_audio_transcription.completed",
    ]
    assert client.conversation.noting == 0
    client.send("response.create")
    await client.settle()
    (turn,) = client.brain.turns
    assert (turn.text, turn.history) == ("Now?", ())
    assert turn.audio is not None


async def test_a_server_that_does_not_listen_says_so(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker(), deaf=True)
    client.send("session.update", session=detecting({"type": "server_vad"}))
    assert client.events[-1]["session"]["audio"]["input"]["turn_detection"] is None
    client.send("input_audio_buffer.commit")
    assert "nobody listens" in client.one("error")["error"]["message"]


async def test_what_a_key_has_fixed_stays(executor: ThreadPoolExecutor) -> None:
    fixed = {"instructions": "Only of trains.", "audio": {"input": {"turn_detection": {"type": "server_vad"}}}}
    terms = Terms(asked={"instructions": "Of all.", "model": "a", "id": "b"}, fixed=fixed)
    client = Client(executor, Thinker(), terms=terms)
    client.send("session.update", session={**detecting(None), "instructions": "Of cats.", "model": "c"})
    for event, model in zip(client.events, ("a", "c"), strict=True):
        assert event["session"]["instructions"] == "Only of trains."
        assert event["session"]["audio"]["input"]["turn_detection"] == {"type": "server_vad"}
        assert (event["session"]["model"], event["session"]["id"]) == (model, "call")
    client.send("response.create", response={"instructions": "Of cats."})
    await client.settle()
    assert client.brain.turns[0].instructions == "Only of trains."
    client.send("conversation.item.create", item=message(role="system"))
    assert client.one("error")["error"]["code"] == "not_allowed"


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("silence", [0, 50, 300, 500, 2000, 10_000])
def test_every_setting_that_is_allowed_is_one_that_turn_taking_takes(threshold: float, silence: int) -> None:
    settings = turns(TurnDetection(threshold=threshold, silence_duration_ms=silence), Settings())
    assert settings.enter == max(threshold, 0.01)
    assert settings.silence == max(silence / 1000, 0.01)


def test_settings_do_not_grow_without_end() -> None:
    settings = SessionSettings("id", "voice", Settings(), Terms())
    with pytest.raises(EventError, match="at most"):
        for n in range(10):
            settings.update({f"key{n}": "x" * 20_000})
    assert len(json.dumps(settings.shown)) < MAX_BYTES
    settings.update({"instructions": "Still works."})


def test_a_change_that_cannot_be_changes_nothing() -> None:
    settings = SessionSettings("id", "voice", Settings(), Terms())
    before = settings.shown
    with pytest.raises(EventError):
        settings.update({"instructions": "x", **detecting({"type": "server_vad", "threshold": 2})})
    assert settings.shown == before


# ---- items ----------------------------------------------------------------------------------------------------------


async def test_items_are_put_where_they_belong(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker())
    client.write("two")
    client.write("one", previous_item_id="root")
    client.write("three", previous_item_id="item_t_1")
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "four"}]}
    client.send("conversation.item.create", item=answer)
    added = [event["previous_item_id"] for event in client.got("conversation.item.added")]
    assert added == [None, None, "item_t_1", "item_t_3"]
    assert [message.text for message in client.conversation.history] == ["one", "two", "three", "four"]
    assert client.conversation.history[3].role is Role.AGENT
    client.send("conversation.item.delete", item_id="item_t_1")
    assert client.one("conversation.item.deleted")["item_id"] == "item_t_1"
    assert [message.text for message in client.conversation.history] == ["one", "three", "four"]


async def test_truncating_is_clamped_and_shortens_the_history(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker(STORY))
    await client.ask()
    await client.speak_on(1, frames=40)
    assert client.conversation.history[-1].text == STORY
    client.send("conversation.item.truncate", item_id="item_t_3", content_index=0, audio_end_ms=10_000_000)
    assert client.one("conversation.item.truncated")["audio_end_ms"] == 3200
    assert client.conversation.history[-1] == Message(Role.AGENT, STORY), "all of it was heard"
    client.new()
    client.send("conversation.item.truncate", item_id="item_t_3", content_index=0, audio_end_ms=1600)
    assert client.one("conversation.item.truncated")["audio_end_ms"] == 1600
    heard = client.conversation.history[-1]
    assert heard.interrupted
    assert heard.text.startswith("Alpha beta gamma")
    assert "kappa" not in heard.text
    client.send("conversation.item.retrieve", item_id="item_t_3")
    assert client.one("conversation.item.retrieved")["item"]["content"][0]["transcript"] == heard.text
    client.send("conversation.item.truncate", item_id="item_t_3", content_index=0, audio_end_ms=0)
    assert client.conversation.history == [Message(Role.USER, "Tell me.")], "nothing was heard"
    assert not client.got("error")


async def test_truncating_what_is_being_said_stops_it(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker(STORY))
    await client.hear_story()
    client.send("conversation.item.truncate", item_id="item_t_3", content_index=0, audio_end_ms=400)
    assert client.session.quiet
    assert [event["audio_end_ms"] for event in client.got("conversation.item.truncated")][-1] == 400


async def test_a_client_cannot_fill_the_memory(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker())
    for n in range(MAX_CREATED + 1):
        client.time.time += 1.0
        client.write(str(n))
    assert client.one("error")["error"]["code"] == "too_many_items"
    assert len(client.conversation.history) == MAX_CREATED
    client.new()
    client.send("conversation.item.delete", item_id="item_t_1")
    client.write("There is room again.")
    assert not client.got("error")


async def test_a_flood_is_told_once_and_silence_is_still_to_be_had(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker(STORY))
    await client.hear_story()
    for _ in range(500):
        client.send("conversation.item.retrieve", item_id="item_t_1")
    client.dialect.receive("nonsense")
    assert len(client.got("conversation.item.retrieved")) < 150
    assert client.one("error")["error"]["code"] == "rate_limit_exceeded"
    client.send("response.cancel")
    assert client.session.quiet


def test_a_piece_ends_with_a_word_that_was_heard() -> None:
    piece = Piece("one two three four", "one two three four", 1000.0, 1000.0)
    cuts = [piece.until(ms) for ms in range(0, 1001, 50)]
    assert cuts[0] == ""
    assert cuts[-1] == "one two three four"
    assert all("one two three four".startswith(cut) for cut in cuts)
    assert sorted(map(len, cuts)) == [len(cut) for cut in cuts]
    entry = Entry("i", "assistant", "output_audio", "m", pieces={"a": piece, "b": Piece("five", "five", 300.0, 300.0)})
    assert entry.until(1300) == "one two three four five"
    assert entry.until(1000) == "one two three four"
    assert entry.audio_ms == 1300


def test_items_know_their_neighbours() -> None:
    items = Items()
    for name in "abc":
        items.add(Entry(name, "user", "input_text", f"m{name}"))
    items.add(Entry("d", "user", "input_text", "md"), after="a")
    assert [entry.id for entry in items] == ["a", "d", "b", "c"]
    assert items.before(items.find("a")) is None
    assert items.behind(items.find("d")) == {"mb", "mc"}
    with pytest.raises(EventError, match="no item 'x'"):
        items.find("x")


# ---- what cannot be taken -------------------------------------------------------------------------------------------

TRUNCATE = {"type": "conversation.item.truncate", "item_id": "item_t_3", "content_index": 0, "audio_end_ms": 0}
CREATE = "conversation.item.create"


def message(**changes: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi."}], **changes}


@pytest.mark.parametrize(
    ("event", "code", "param"),
    [
        ({"type": "tell.me"}, "unknown_event", "type"),
        ({"type": 7}, "unknown_event", "type"),
        ({}, "unknown_event", "type"),
        ({"type": "session.update"}, "invalid_value", "session"),
        ({"type": "session.update", "session": []}, "invalid_value", "session"),
        ({"type": "session.update", "session": {"type": "transcription"}}, "invalid_value", "session.type"),
        ({"type": "session.update", "session": {"instructions": 1}}, "invalid_value", "session.instructions"),
        (
            {"type": "session.update", "session": detecting({"type": "server_vad", "threshold": "high"})},
            "invalid_value",
            "session.audio.input.turn_detection.threshold",
        ),
        (
            {"type": "session.update", "session": detecting({"type": "server_vad", "silence_duration_ms": -1})},
            "invalid_value",
            "session.audio.input.turn_detection.silence_duration_ms",
        ),
        (
            {"type": "session.update", "session": detecting({"type": "psychic"})},
            "invalid_value",
            "session.audio.input.turn_detection.type",
        ),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "unsupported", None),
        ({"type": "input_audio_buffer.commit"}, "unsupported", None),
        ({"type": CREATE}, "invalid_value", "item"),
        ({"type": CREATE, "item": {}}, "invalid_value", "item.type"),
        ({"type": CREATE, "item": {"type": "message"}}, "invalid_value", "item.role"),
        ({"type": CREATE, "item": message(role="robot")}, "invalid_value", "item.role"),
        ({"type": CREATE, "item": message(content=[])}, "invalid_value", "item.content"),
        ({"type": CREATE, "item": message(content=[{"text": "Hi."}])}, "invalid_value", "item.content[0].type"),
        ({"type": CREATE, "item": message(content=[{"type": "input_image"}])}, "unsupported", "item.content[0].type"),
        (
            {"type": CREATE, "item": message(content=[{"type": "input_text", "text": " "}])},
            "invalid_value",
            "item.content",
        ),
        (
            {"type": CREATE, "item": message(content=[{"type": "input_text", "text": "x" * 4001}])},
            "invalid_value",
            "item.content",
        ),
        ({"type": CREATE, "item": message(id="item_t_1")}, "item_exists", "item.id"),
        ({"type": CREATE, "item": message(id="")}, "invalid_value", "item.id"),
        ({"type": CREATE, "item": message(), "previous_item_id": "x"}, "item_not_found", "previous_item_id"),
        ({"type": CREATE, "item": {"type": "function_call_output", "output": ""}}, "unsupported", "item.type"),
        ({"type": "conversation.item.delete"}, "invalid_value", "item_id"),
        ({"type": "conversation.item.delete", "item_id": "x"}, "item_not_found", "item_id"),
        ({"type": "conversation.item.delete", "item_id": "item_t_3"}, "item_in_progress", "item_id"),
        ({"type": "conversation.item.retrieve", "item_id": "x"}, "item_not_found", "item_id"),
        ({**TRUNCATE, "item_id": "item_t_1"}, "invalid_value", "item_id"),
        ({**TRUNCATE, "item_id": "x"}, "item_not_found", "item_id"),
        ({**TRUNCATE, "content_index": 1}, "invalid_value", "content_index"),
        ({**TRUNCATE, "audio_end_ms": -1}, "invalid_value", "audio_end_ms"),
        ({**TRUNCATE, "audio_end_ms": "all"}, "invalid_value", "audio_end_ms"),
        ({"type": "response.create", "response": 1}, "invalid_value", "response"),
        ({"type": "response.create"}, "conversation_already_has_active_response", None),
        ({"type": "response.cancel", "response_id": "x"}, "response_cancel_not_active", "response_id"),
        ({"type": "response.cancel", "response_id": 1}, "invalid_value", "response_id"),
    ],
)
async def test_an_event_that_cannot_be_taken_is_named_with_its_field(
    executor: ThreadPoolExecutor, event: dict[str, Any], code: str, param: str | None
) -> None:
    client = Client(executor, Thinker(STORY))
    await client.ask()
    client.new()
    client.dialect.receive(json.dumps({**event, "event_id": "mine"}))
    (said,) = client.events
    assert said["type"] == "error"
    error = said["error"]
    assert (error["code"], error["param"], error["event_id"]) == (code, param, "mine")
    assert error["type"] == "invalid_request_error"
    assert str(event.get("type")) in error["message"] or param == "type"
    client.new()
    client.send("conversation.item.retrieve", item_id="item_t_1", event_id="next")
    assert client.new() == ["conversation.item.retrieved"], "the call goes on"


@pytest.mark.parametrize(
    ("response", "param"), [({"conversation": "none"}, "response.conversation"), ({"input": []}, "response.input")]
)
async def test_a_response_beside_the_conversation_is_refused(
    executor: ThreadPoolExecutor, response: dict[str, Any], param: str
) -> None:
    client = Client(executor, Thinker(STORY))
    client.send("response.create", response=response)
    assert client.one("error")["error"]["param"] == param
    assert not client.conversation.answering


@pytest.mark.parametrize(
    "data",
    [
        "",
        "nonsense",
        "[]",
        "null",
        b"\xff\xfe",
        '"\ud800"',
        '{"type": "response.create"',
        "[" * 60_000,
        '{"type":"session.update","session":' + '{"a":' * 10_000 + "1" + "}" * 10_001,
        '{"type": "conversation.item.create", "item": "' + "x" * 70_000 + '"}',
    ],
    ids=range(10),
)
async def test_what_is_no_event_at_all_is_an_error_too(executor: ThreadPoolExecutor, data: str | bytes) -> None:
    client = Client(executor, Thinker())
    client.new()
    client.dialect.receive(data)
    assert client.one("error")["error"]["code"] in ("invalid_json", "too_long", "invalid_value")
    assert len(client.one("error")["error"]["message"]) <= 300


async def test_an_event_that_is_too_long_is_named_with_the_field_that_makes_it_so(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker())
    client.new()
    event = {"type": "session.update", "event_id": "mine", "session": {"instructions": "x" * realtime.MAX_EVENT_BYTES}}
    client.dialect.receive(json.dumps(event))
    error = client.one("error")["error"]
    assert (error["code"], error["param"], error["event_id"]) == ("too_long", "session", "mine")
    assert error["message"].startswith("session.update: an event has at most 65536 bytes")
    client.new()
    client.send("session.update", session={})
    assert client.new() == ["session.updated"], "the call goes on"


async def test_a_commit_of_nothing_is_refused(executor: ThreadPoolExecutor) -> None:
    client = Client(executor, Thinker())
    client.send("session.update", session=detecting(None))
    client.microphone.samples = 100
    client.send("input_audio_buffer.commit")
    assert client.one("error")["error"]["code"] == "input_audio_buffer_commit_empty"


async def test_commits_wait_for_their_words_only_so_many_at_a_time(executor: ThreadPoolExecutor) -> None:
    async def slowly(audio: Any) -> str:
        await asyncio.Event().wait()
        return ""

    client = Client(executor, Thinker(), slowly)
    client.send("session.update", session=detecting(None))
    for _ in range(MAX_NOTING + 1):
        client.send("input_audio_buffer.commit")
    assert client.one("error")["error"]["code"] == "rate_limit_exceeded"
    client.session.close()
    await client.settle()
    assert len(asyncio.all_tasks()) == 1, "nothing is left behind"


async def test_an_event_before_the_session_is_refused(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker())
    events = list[str]()
    dialect = RealtimeDialect(talk.session, talk.conversation, talk.time, events.append)
    dialect.receive('{"type": "session.update", "session": {}}')
    assert "too_early" in events[0]


def test_unknown_keys_are_passed_over() -> None:
    event = realtime.decode('{"type": "response.create", "extra": 1, "response": {"tools": [], "new": {}}}')
    assert event == realtime.ResponseCreate(response=realtime.Wanted())


# ---- any order ------------------------------------------------------------------------------------------------------

KNOWN = st.sampled_from(["item_t_1", "item_t_3", "resp_t_2", "root", "mine", "", "x"])
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | KNOWN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
TEXTS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["input_text", "output_text"]), "text": st.just("Hi.")})
)
DETECTIONS = st.none() | st.fixed_dictionaries(
    {"type": st.sampled_from(["server_vad", "semantic_vad"])},
    optional={"create_response": st.booleans(), "interrupt_response": st.booleans(), "threshold": st.floats(0, 1)},
)
ITEMS = st.fixed_dictionaries(
    {"type": st.just("message"), "role": st.sampled_from(["user", "assistant", "system"]), "content": TEXTS},
    optional={"id": KNOWN},
)
FIELDS = {
    "session.update": {"session": DETECTIONS.map(lambda found: detecting(found))},
    "input_audio_buffer.append": {"audio": st.text()},
    "input_audio_buffer.commit": {},
    "input_audio_buffer.clear": {},
    "conversation.item.create": {"item": ITEMS, "previous_item_id": KNOWN},
    "conversation.item.truncate": {
        "item_id": KNOWN,
        "content_index": st.just(0),
        "audio_end_ms": st.floats(0, 4000),
    },
    "conversation.item.delete": {"item_id": KNOWN},
    "conversation.item.retrieve": {"item_id": KNOWN},
    "response.create": {"response": st.just({}) | ANY},
    "response.cancel": {"response_id": st.none() | KNOWN},
    "output_audio_buffer.clear": {},
}


def of_type(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    """An event with the fields that it should have, now and then with others in their place."""
    right = st.fixed_dictionaries({"type": st.just(kind), **FIELDS[kind]}, optional={"event_id": KNOWN})
    wrong = st.dictionaries(st.sampled_from(["event_id", *FIELDS[kind]]), ANY).map(
        lambda found: {"type": kind, **found}
    )
    return right | right | right | wrong


assert set(FIELDS) == set(EVENTS[realtime.CHANNEL].client)
CLIENTS = st.sampled_from(sorted(FIELDS)).flatmap(of_type)
ACTIONS = st.sampled_from(
    [
        Pause(0.0, 0.0),
        Resume(0.0),
        Interrupt(0.0, 0.0),
        SpeechStarted(0.0, 0.0),
        SpeechStopped(0.0, 0.0),
        TurnEnded(0.0, 1.0, 1.5),
    ]
)
MOMENTS = st.sampled_from(["settle", "play"])


@given(steps=st.lists(CLIENTS | ACTIONS | MOMENTS, max_size=25))
@settings(max_examples=150, deadline=None)
def test_whatever_comes_in_whatever_order_the_events_make_sense(steps: list[Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        asyncio.run(make_sense(pool, steps))


async def make_sense(executor: ThreadPoolExecutor, steps: list[Any]) -> None:
    client = Client(executor, Thinker("One. ", "Two."))
    client.write("Hello.")
    client.send("response.create")
    await client.settle()
    for step in steps:
        client.time.time += 0.1
        if isinstance(step, dict):
            client.dialect.receive(json.dumps(step))
        elif step == "play":
            for job in client.engine.jobs.values():
                if not job.frames and not job.cancelled.is_set():
                    client.engine.say(job.request_id, frames=2, final=True)
                    client.engine.finish(job.request_id)
            await client.packets(6)
        elif step == "settle":
            await client.settle()
        else:
            client.conversation.act(step)
    client.send("response.cancel")
    await client.settle()
    client.session.close()
    check_sense(client.events)


def check_sense(events: list[dict[str, Any]]) -> None:
    """Ids are told once, responses begin and end one after the other, and nothing is told of what is unknown."""
    items, active, playing, speaking = set[str](), None, None, None
    assert len({event["event_id"] for event in events}) == len(events)
    for event in events:
        match event["type"]:
            case "conversation.item.added":
                assert event["item"]["id"] not in items
                assert event["previous_item_id"] is None or event["previous_item_id"] in items
                items.add(event["item"]["id"])
            case "conversation.item.deleted":
                items.remove(event["item_id"])
            case "conversation.item.truncated" | "conversation.item.input_audio_transcription.completed":
                assert event["item_id"] in items
            case "response.created":
                assert active is None
                active = event["response"]["id"]
            case "response.done":
                assert event["response"]["id"] == active
                active = None
            case "output_audio_buffer.started":
                assert playing is None
                playing = event["response_id"]
                assert playing == active
            case "output_audio_buffer.stopped":
                assert event["response_id"] == playing
                playing = None
            case "output_audio_buffer.cleared":
                playing = None
            case "input_audio_buffer.speech_started":
                assert speaking is None
                speaking = event["item_id"]
            case "input_audio_buffer.speech_stopped":
                assert event["item_id"] == speaking
                speaking = None
            case "response.output_audio_transcript.delta":
                assert event["response_id"] == active
                assert event["item_id"] in items
    assert active is None
    assert playing is None


# ---- keys -----------------------------------------------------------------------------------------------------------


class Time:
    def __init__(self) -> None:
        self.time = 10.0

    def now(self) -> float:
        return self.time


def test_a_key_opens_one_call() -> None:
    keys = ClientKeys(Time())
    value = keys.make({"instructions": "x"})
    assert value.startswith("ek_") and len(value) > 40
    assert keys.take(value + "x") is None
    key = keys.take(value)
    assert key is not None and key.fixed == {"instructions": "x"}
    assert value not in repr(key)
    assert keys.take(value) is None
    keys.give_back(key)
    assert keys.take(value) == key


def test_a_key_is_void_after_a_minute() -> None:
    clock = Time()
    keys = ClientKeys(clock)
    first, second, third = keys.make({}), keys.make({}, seconds=10), keys.make({}, seconds=7200)
    clock.time += 10
    assert keys.take(second) is None
    clock.time += KEY_SECONDS - 10.1
    key = keys.take(first)
    assert key is not None
    clock.time += 0.2
    assert keys.take(third) is None, "no more than a minute"
    keys.give_back(key)
    assert keys.take(first) is None


def test_keys_are_bounded_in_number() -> None:
    clock = Time()
    keys = ClientKeys(clock)
    for _ in range(MAX_KEYS):
        keys.make({})
    with pytest.raises(KeysExhausted) as refused:
        keys.make({})
    assert refused.value.retry_after == KEY_SECONDS
    clock.time += KEY_SECONDS
    keys.make({})
