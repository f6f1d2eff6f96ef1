"""agent/conversation.py: turns, replies, interruptions and what the brain is told of them, with a scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from scripted_call import Call
from scripted_runtime import SPEC
from scripted_talk import SORRY, Talk, Thinker, saying
from stand_in import DONE, StandIn, chunk, hang, plain, stream

from agent.brain import BrainConfig, ReplyLimits, make_brain
from agent.conversation import INTERRUPTED, Conversation, Watcher
from agent.dialogue import Audio, Message, Role
from agent.transcribe import TranscriberConfig, make_transcriber
from agent.trouble import OutsideError, Trouble
from agent.turn import AgentState, Interrupt, Pause, Resume, SpeechStarted, SpeechStopped, TurnEnded
from engine.core import ErrorCode

PATIENCE = 3.0
"""Seconds for which an endpoint that says nothing is waited for."""


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def test_a_typed_turn_is_answered_sentence_by_sentence(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Good mor", "ning. How", " are you?"))
    talk.client(type="say", text="Hello!")
    await talk.settle()
    assert talk.asked_for == ["Good morning.", "How are you?"]
    assert talk.turn_types == ["turn.ended", "turn.text", "reply.started", "reply.text", "reply.text"]
    await talk.speak_on(1)
    await talk.speak_on(2)
    assert talk.told("reply.ended") == [
        {"type": "reply.ended", "id": "reply1", "reason": "end", "heard": "Good morning. How are you?"}
    ]
    assert talk.conversation.history == [
        Message(Role.USER, "Hello!"),
        Message(Role.AGENT, "Good morning. How are you?"),
    ]
    assert talk.brain.turns[0].history == (), "what was said before it"


async def test_speech_begins_before_the_reply_is_written(executor: ThreadPoolExecutor) -> None:
    more = asyncio.Event()
    talk = Talk(executor, Thinker("One. Two", more.wait, " and three."))
    talk.client(type="say", text="Count!")
    await talk.settle()
    assert talk.asked_for == ["One."]
    more.set()
    await talk.settle()
    assert talk.asked_for == ["One.", "Two and three."]


async def test_a_spoken_turn_is_transcribed(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Yes."), lambda audio: f"{len(audio)} samples")
    for action in (SpeechStarted(9.0, 9.1), SpeechStopped(10.0, 10.3), TurnEnded(9.0, 10.0, 10.5)):
        talk.conversation.act(action)
    await asyncio.sleep(0.05)  # justified: a function of the app runs in a thread
    assert talk.turn_types[:4] == ["turn.started", "turn.stopped", "turn.ended", "turn.text"]
    assert talk.told("turn.ended") == [{"type": "turn.ended", "seconds": 1.0}]
    assert talk.told("turn.text") == [{"type": "turn.text", "text": "8000 samples"}]
    assert talk.microphone.asked == [(9.0, 10.0)]
    assert talk.brain.turns[0].text == "8000 samples"
    assert talk.asked_for == ["Yes."]


async def test_an_interruption_ends_the_reply_with_what_was_heard_of_it(executor: ThreadPoolExecutor) -> None:
    never = asyncio.Event()
    talk = Talk(executor, Thinker("Here is a long story. ", never.wait))
    talk.client(type="say", text="Tell me.")
    await talk.settle()
    assert talk.conversation.agent is AgentState.SPEAKING
    talk.engine.say(1, frames=10)
    await talk.packets(20)
    talk.conversation.act(Interrupt(50.0, 50.5))
    await talk.settle()
    (ended,) = talk.told("reply.ended")
    (stopped,) = talk.told("speech.stopped")
    assert (ended["reason"], stopped["reason"]) == ("interrupted", "cancelled")
    assert stopped["sent_ms"] - stopped["heard_ms"] == pytest.approx(35.0, abs=1.0), "the listener's jitter buffer"
    assert ended["heard"] == stopped["heard"]
    assert "Here is a long story.".startswith(ended["heard"])
    assert talk.brain.closed == 1, "the brain is not asked for more"
    assert talk.engine.cancelled == [1]
    assert talk.conversation.agent is AgentState.SILENT


async def test_the_brain_is_told_what_was_heard_and_no_more(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Alpha beta gamma delta epsilon zeta eta theta iota kappa."))
    talk.client(type="say", text="Letters?")
    await talk.settle()
    talk.engine.say(1, frames=40, final=True)
    talk.engine.finish(1)
    await talk.packets(80)
    talk.client(type="say", text="Stop that.")
    await talk.settle()
    first, heard = talk.brain.turns[1].history
    assert first == Message(Role.USER, "Letters?")
    assert heard.interrupted
    assert heard.text.startswith("Alpha beta")
    assert "kappa" not in heard.text


async def test_a_stop_of_the_clients_ends_the_reply_too(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("A story. ", asyncio.Event().wait))
    talk.client(type="say", text="Go on.")
    await talk.settle()
    talk.client(type="stop")
    await talk.settle()
    assert [message["reason"] for message in talk.told("reply.ended")] == ["interrupted"]
    assert talk.brain.closed == 1


async def test_who_goes_on_speaking_is_not_answered_yet(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker(asyncio.Event().wait))
    talk.conversation.act(TurnEnded(1.0, 2.0, 2.5))
    await talk.settle()
    talk.conversation.act(SpeechStarted(2.7, 2.8))
    await talk.settle()
    assert talk.brain.closed == 1
    assert talk.turn_types == ["turn.ended", "turn.started"]


async def test_a_turn_whose_words_are_not_known_yet_goes_on_with_what_is_said_next(
    executor: ThreadPoolExecutor,
) -> None:
    async def slowly(audio: Audio) -> str:
        await asyncio.Event().wait()
        return ""

    talk = Talk(executor, Thinker("Yes."), slowly)
    talk.conversation.act(TurnEnded(1.0, 2.0, 2.5))
    await talk.settle()
    talk.conversation.act(SpeechStarted(2.7, 2.8))
    talk.conversation.act(TurnEnded(2.7, 4.0, 4.5))
    await talk.settle()
    assert talk.microphone.asked == [(1.0, 2.0), (1.0, 4.0)]
    talk.session.close()


async def test_a_pause_that_is_over_before_the_next_packet_silenced_nothing(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Here is a long story."))
    talk.client(type="say", text="Tell me.")
    await talk.settle()
    talk.engine.say(1, frames=20)
    await talk.packets(5)
    talk.conversation.act(Pause(50.0, 50.1))
    talk.conversation.act(Resume(50.2))
    await talk.packets(3)
    assert talk.told("speech.silenced") == []


async def test_a_cough_only_pauses(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Here is a long story."))
    talk.client(type="say", text="Tell me.")
    await talk.settle()
    talk.engine.say(1, frames=20, final=True)
    talk.engine.finish(1)
    await talk.packets(5)
    noticed_at, asked_at = 50.1, talk.time.time + 0.004
    talk.time.time = asked_at
    talk.conversation.act(Pause(noticed_at - talk.microphone.frame_seconds, asked_at))
    talk.time.time += 0.009
    await talk.packets(10)
    (paused,) = talk.told("speech.paused")
    (silenced,) = talk.told("speech.silenced")
    assert silenced["turn_ms"] == pytest.approx(1000 * (asked_at - noticed_at))
    assert silenced["wire_ms"] == pytest.approx(9.0)
    assert not talk.engine.playheads[-1].running
    talk.conversation.act(Resume(50.3))
    await talk.packets(90)
    (continued,) = talk.told("speech.continued")
    assert continued["heard_ms"] == paused["heard_ms"], "at the very sample"
    assert talk.told("reply.ended")[0]["heard"] == "Here is a long story."
    assert "underruns" not in talk.told("speech.stopped")[0], "a pause is none"


@pytest.mark.parametrize("trouble", list(Trouble))
async def test_trouble_outside_is_said_and_told_and_the_next_turn_works(
    executor: ThreadPoolExecutor, trouble: Trouble
) -> None:
    talk = Talk(executor, Thinker("Well, ", OutsideError(trouble, "the key is sesame")))
    talk.client(type="say", text="What?")
    await talk.settle()
    assert talk.asked_for == ["Well,", SORRY]
    (error,) = talk.told("error")
    assert (error["code"], error["id"]) == (str(trouble), "reply1")
    assert "sesame" not in str(talk.said)
    for request in list(talk.engine.jobs):
        await talk.speak_on(request)
    assert talk.told("reply.ended")[0]["reason"] == "failed"
    talk.brain.deltas = ("All is well.",)
    talk.client(type="say", text="And now?")
    await talk.settle()
    assert talk.asked_for[-1] == "All is well."


HEARD, REPLIED = plain(body='{"text": "What is the time?"}'), stream(chunk("It is noon."), chunk(finish="stop"), DONE)
DOWN = plain(500)
"""With a server that is not there at all test_brain.py has to do."""


@pytest.mark.parametrize(
    ("hearing", "thinking", "said", "code"),
    [
        (DOWN, REPLIED, [SORRY], "broken"),
        (hang, REPLIED, [SORRY], "timeout"),
        (stream(b'{"text": "What', then="cut"), REPLIED, [SORRY], "broken"),
        (HEARD, DOWN, [SORRY], "broken"),
        (HEARD, hang, [SORRY], "timeout"),
        (HEARD, stream(chunk("It is "), then="cut"), ["It is", SORRY], "broken"),
        (HEARD, stream(chunk("It is "), then="hang"), ["It is", SORRY], "timeout"),
    ],
    ids=["deaf", "hard of hearing", "deaf halfway", "down", "slow", "cut", "slow halfway"],
)
async def test_an_endpoint_that_is_down_or_slow_or_breaks_off_is_told_in_every_way(
    executor: ThreadPoolExecutor,
    hearing: Any,
    thinking: Any,
    said: list[str],
    code: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From a spoken turn on: the user hears a sentence, an event and the log carry the reason, the next turn works."""
    async with StandIn() as ears, StandIn() as mind:
        limits = ReplyLimits(first_seconds=PATIENCE, between_seconds=PATIENCE)
        brain = make_brain(BrainConfig("openai", url=mind.url, model="m", apology=SORRY, limits=limits))
        transcriber = make_transcriber(TranscriberConfig("openai", url=ears.url, model="w", seconds=PATIENCE))
        talk = Talk(executor, Thinker())
        talk.conversation = Conversation(talk.session, brain, transcriber)
        talk.conversation.ears = talk.microphone
        ears.answers, mind.answers = [hearing], [thinking]
        talk.conversation.act(TurnEnded(9.0, 10.0, 10.5))
        await talk.until(lambda: SORRY in talk.asked_for)
        assert talk.asked_for == said
        assert [error["code"] for error in talk.told("error")] == [code]
        assert [record.levelname for record in caplog.records if record.name.startswith("agent.")] == ["WARNING"]
        for request in list(talk.engine.jobs):
            await talk.speak_on(request)
        ears.answers, mind.answers = [HEARD], [REPLIED]
        talk.conversation.act(TurnEnded(19.0, 20.0, 20.5))
        await talk.until(lambda: talk.asked_for[-1] == "It is noon.")
        await brain.close()
        await transcriber.close()


async def test_a_reply_longer_than_the_queue_waits_for_room(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker(*(f"Sentence number {n}. " for n in range(20))))
    talk.client(type="say", text="All of them!")
    await talk.settle()
    assert len(talk.told("reply.text")) == 7, "one place is left to the client"
    for request in range(1, 21):
        await talk.speak_on(request, frames=1)
    assert len(talk.told("reply.text")) == 20
    assert not talk.told("error")
    assert talk.told("reply.ended")[0]["reason"] == "end"


async def test_an_uninterruptible_reply_is_said_to_its_end_and_then_the_next(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("This call is recorded."), interruptible=False)
    talk.client(type="say", text="Hello?")
    await talk.settle()
    assert talk.conversation.agent is AgentState.UNINTERRUPTIBLE
    talk.client(type="say", text="Wait!")
    await talk.settle()
    assert talk.asked_for == ["This call is recorded."]
    await talk.speak_on(1)
    assert [message["reason"] for message in talk.told("reply.ended")] == ["end"]
    assert len(talk.asked_for) == 2


async def test_the_greeting_is_said_once_when_the_client_is_there(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker(), greeting="Welcome.")
    talk.session.listen(talk.take)
    talk.session.listen(talk.take)
    await talk.settle()
    assert talk.asked_for == ["Welcome."]


async def test_ears_are_told_what_is_sent_and_that_the_call_is_over(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Hello there."))
    talk.client(type="say", text="Hi.")
    await talk.settle()
    talk.engine.say(1, frames=5)
    await talk.packets(10)
    assert 0 < talk.microphone.echoes <= 10, "silence is no echo"
    talk.session.close()
    await talk.settle()
    assert talk.microphone.closed == 1


async def test_nothing_is_left_behind_by_a_call_that_ends_at_any_moment(executor: ThreadPoolExecutor) -> None:
    for steps in range(30):
        talk = Talk(executor, Thinker("One. ", "Two. ", "Three."))
        talk.client(type="say", text="Hi.")
        for _ in range(steps):
            await asyncio.sleep(0)
        talk.session.close()
        await talk.settle()
        assert len(asyncio.all_tasks()) == 1
        assert talk.brain.closed == len(talk.brain.turns)


async def test_without_a_brain_a_typed_turn_is_an_error(executor: ThreadPoolExecutor) -> None:
    call = Call(executor)
    call.client(type="say", text="Hello?")
    assert call.told("error")[0]["field"] == "type"


@pytest.mark.parametrize("text", ["", "  ", "x" * 4001])
async def test_a_turn_without_words_or_with_too_many_is_an_error(executor: ThreadPoolExecutor, text: str) -> None:
    talk = Talk(executor, Thinker("Yes."))
    talk.client(type="say", text=text)
    assert talk.told("error")[0]["field"] == "text"
    assert not talk.brain.turns


async def test_the_echo_brain_answers_in_the_callers_words(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker())
    transcriber = make_transcriber(TranscriberConfig())
    talk.conversation = Conversation(talk.session, make_brain(BrainConfig()), transcriber)
    talk.client(type="say", text="Good morning.")
    await talk.settle()
    assert talk.asked_for == ["Good morning."]


class Diary(Watcher):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ...]] = []

    def turn_ended(self, turn: str) -> None:
        self.lines.append(("ended", turn))

    def turn_text(self, turn: str, text: str) -> None:
        self.lines.append(("text", turn, text))

    def turn_dropped(self, turn: str) -> None:
        self.lines.append(("dropped", turn))

    def reply_begun(self, reply: str) -> None:
        self.lines.append(("begun", reply))

    def reply_over(self, reply: str, reason: str) -> None:
        self.lines.append(("over", reply, reason))


async def test_a_watcher_is_told_of_turns_and_of_replies_that_say_nothing(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker(), saying("Hello?"))
    talk.conversation.watcher = diary = Diary()
    talk.conversation.act(TurnEnded(9.0, 10.0, 10.5))
    await talk.settle()
    assert diary.lines == [
        ("ended", "turn1"),
        ("begun", "reply1"),
        ("text", "turn1", "Hello?"),
        ("over", "reply1", "end"),
    ]
    assert talk.conversation.history[0].id == "turn1"


async def test_a_watcher_is_told_of_a_turn_that_is_part_of_the_next(executor: ThreadPoolExecutor) -> None:
    async def slowly(audio: Audio) -> str:
        await asyncio.Event().wait()
        return ""

    talk = Talk(executor, Thinker("Yes."), slowly)
    talk.conversation.watcher = diary = Diary()
    talk.conversation.act(TurnEnded(1.0, 2.0, 2.5))
    talk.conversation.act(SpeechStarted(2.7, 2.8))
    talk.conversation.act(TurnEnded(2.7, 4.0, 4.5))
    await talk.settle()
    assert ("over", "reply1", INTERRUPTED) in diary.lines
    assert diary.lines.index(("dropped", "turn1")) < diary.lines.index(("ended", "turn2"))
    talk.session.close()


async def test_replies_that_wait_are_told_of_when_they_begin(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("This call is recorded."), interruptible=False)
    talk.conversation.watcher = diary = Diary()
    talk.client(type="say", text="Hello?")
    talk.client(type="say", text="Wait!")
    await talk.settle()
    assert diary.lines == [("begun", "reply1")]
    await talk.speak_on(1)
    assert diary.lines == [("begun", "reply1"), ("over", "reply1", "end"), ("begun", "reply2")]


async def test_a_turn_that_is_not_answered_on_its_own_is_noted_and_answered_when_asked(
    executor: ThreadPoolExecutor,
) -> None:
    talk = Talk(executor, Thinker("Yes."), saying("And?"))
    talk.conversation.automatic = False
    talk.conversation.instructions = "Be kind."
    talk.conversation.act(TurnEnded(9.0, 10.0, 10.5))
    talk.conversation.respond()  # at once: it waits for the words
    await talk.settle()
    (turn,) = talk.brain.turns
    assert (turn.text, turn.history, turn.instructions) == ("And?", (), "Be kind.")
    assert turn.audio is not None and turn.seconds == 0.5
    assert talk.conversation.history == [Message(Role.USER, "And?")]


async def test_a_noted_turn_keeps_its_place_until_its_words_are_known(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Yes."), saying("spoken"))
    talk.conversation.automatic = False
    talk.conversation.act(TurnEnded(9.0, 10.0, 10.5))
    talk.conversation.add(Message(Role.USER, "typed"))
    await talk.settle()
    assert [message.text for message in talk.conversation.history] == ["spoken", "typed"]
    talk.conversation.act(TurnEnded(11.0, 12.0, 12.5))
    talk.conversation.remove("turn2")
    await talk.settle()
    assert len(talk.conversation.history) == 2, "what was deleted meanwhile stays so"


async def test_a_reply_to_nothing_gets_the_history(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Hello."))
    talk.conversation.add(Message(Role.AGENT, "Well."))
    talk.conversation.respond("Greet the user.")
    await talk.settle()
    (turn,) = talk.brain.turns
    assert (turn.text, turn.history, turn.audio) == ("", (Message(Role.AGENT, "Well."),), None)
    assert turn.instructions == "Greet the user."


async def test_a_turn_that_cannot_be_transcribed_is_noted_without_words(executor: ThreadPoolExecutor) -> None:
    async def deaf(audio: Audio) -> str:
        raise RuntimeError("no ear")

    talk = Talk(executor, Thinker("Pardon?"), deaf)
    talk.conversation.automatic = False
    talk.conversation.act(TurnEnded(9.0, 10.0, 10.5))
    await talk.settle()
    assert talk.conversation.history == [Message(Role.USER, "")]
    assert len(talk.told("error")) == 1


async def test_the_history_can_be_edited(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker())
    conversation = talk.conversation
    conversation.add(Message(Role.USER, "one", id="1"))
    conversation.add(Message(Role.AGENT, "two three", id="2"))
    conversation.add(Message(Role.USER, "zero", id="0"), {"1", "2"})
    assert [message.text for message in conversation.history] == ["zero", "one", "two three"]
    conversation.amend("2", "two")
    assert conversation.history[-1] == Message(Role.AGENT, "two", interrupted=True)
    conversation.amend("2", "")
    conversation.remove("0")
    conversation.remove("nobody")
    assert conversation.history == [Message(Role.USER, "one")]


async def test_what_was_forbidden_at_first_is_not_allowed_later(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker(), interruptible=False)
    talk.conversation.interruptible = True
    assert not talk.conversation.interruptible
    other = Talk(executor, Thinker())
    other.conversation.interruptible = False
    assert not other.conversation.interruptible
    other.conversation.interruptible = True
    assert other.conversation.interruptible


async def test_a_pause_in_which_the_reply_fails_does_not_silence_the_next(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Yes."))
    talk.client(type="say", text="Hello?")
    await talk.settle()
    talk.conversation.act(Pause(50.0, 50.1))
    talk.engine.fail(1, ErrorCode.BUSY, "all voices are busy")
    await talk.packets(3)
    assert talk.conversation.agent is AgentState.SILENT
    talk.client(type="speak", id="a", text="And this?")
    await talk.speak_on(2)
    assert talk.told("speech.stopped")[-1]["reason"] == "end"


async def test_a_pause_between_two_sentences_does_not_silence_what_comes_next(executor: ThreadPoolExecutor) -> None:
    more = asyncio.Event()
    talk = Talk(executor, Thinker("One. ", more.wait))
    talk.client(type="say", text="Count!")
    await talk.settle()
    await talk.speak_on(1)
    assert talk.conversation.agent is AgentState.SPEAKING, "between two sentences"
    talk.conversation.act(Pause(50.0, 50.1))
    more.set()
    await talk.settle()
    assert talk.told("reply.ended")[0]["reason"] == "end"
    talk.client(type="speak", id="a", text="And this?")
    await talk.speak_on(2)
    assert talk.told("speech.stopped")[-1]["id"] == "a"


async def test_a_reply_waits_for_room_that_others_leave(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("At last."), interruptible=False)
    for n in range(7):
        talk.speak(f"own{n}")
    talk.client(type="say", text="And you?")
    await talk.settle()
    assert not talk.told("reply.text")
    for request in range(1, 8):
        await talk.speak_on(request, frames=1)
    assert len(talk.told("reply.text")) == 1


async def test_a_queue_of_one_is_enough(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Short."))
    talk.session._max_queued = 1
    talk.client(type="say", text="Hello?")
    await talk.settle()
    assert talk.asked_for == ["Short."]


async def test_turns_that_wait_are_bounded(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("A notice."), interruptible=False)
    for n in range(10):
        talk.client(type="say", text=f"Turn {n}.")
    await talk.settle()
    assert [error["code"] for error in talk.told("error")] == ["busy"] * 6
    talk.session.close()


async def test_a_long_call_is_not_remembered_from_its_beginning(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Yes."))
    talk.conversation.history = [Message(Role.USER, str(n)) for n in range(1000)]
    talk.client(type="say", text="Hello?")
    await talk.settle()
    assert len(talk.brain.turns[0].history) == 500
    assert talk.brain.turns[0].history[-1].text == "999"


async def test_a_piece_that_cannot_be_said_ends_nothing_else(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Half a \ud83d character."))
    talk.client(type="say", text="Hello?")
    await talk.settle()
    assert " ".join(talk.asked_for) == "Half a ? character."


async def test_after_the_end_nobody_is_asked(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("Yes."))
    talk.session.close()
    talk.client(type="say", text="Hello?")
    talk.conversation.respond()
    await talk.settle()
    assert not talk.brain.turns
    assert len(asyncio.all_tasks()) == 1


async def test_numbers_beyond_all_counts_are_refused(executor: ThreadPoolExecutor) -> None:
    call = Call(executor)
    call.session.receive('{"type": "stats", "jitter_buffer_emitted_count": 1' + "0" * 400 + "}")
    assert call.told("error")


# ---- a voice that reads open texts ----

OPEN = replace(SPEC, open_text=True)


async def test_a_reply_is_said_as_its_listener_wants_it(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("One. ", "Two."))
    talk.client(type="session.update", speaker="S1")
    talk.client(type="say", text="Count!")
    await talk.settle()
    assert {job.request.speaker for job in talk.engine.jobs.values()} == {"S1"}
    assert talk.told("error") == []


async def test_a_reply_is_said_while_it_is_written(executor: ThreadPoolExecutor) -> None:
    more = asyncio.Event()
    talk = Talk(executor, Thinker("One. Two", more.wait, " and three."), spec=OPEN)
    talk.client(type="say", text="Count!")
    await talk.settle()
    assert talk.asked_for == ["One. Two"]
    assert talk.engine.jobs[1].request.open
    assert talk.engine.written == []
    more.set()
    await talk.settle()
    assert talk.engine.written == [(1, " and three."), (1, None)]
    assert [message["text"] for message in talk.told("reply.text")] == ["One. Two", " and three."]
    await talk.speak_on(1)
    assert talk.told("reply.ended")[0]["heard"] == "One. Two and three."


async def test_a_long_reply_is_several_utterances(executor: ThreadPoolExecutor) -> None:
    spec = replace(OPEN, max_text_chars=1000)
    talk = Talk(executor, Thinker(*["A sentence of a reply that goes on and on. "] * 12), spec=spec)
    talk.client(type="say", text="Go on!")
    await talk.settle()
    assert len(talk.asked_for) == 2
    await talk.speak_on(1)
    await talk.speak_on(2)
    (ended,) = talk.told("reply.ended")
    assert ended["reason"] == "end"
    assert ended["heard"].split() == ("A sentence of a reply that goes on and on. " * 12).split()


async def test_what_is_written_after_the_voice_has_ended_by_itself_is_said_anew(executor: ThreadPoolExecutor) -> None:
    more = asyncio.Event()
    talk = Talk(executor, Thinker("One.", more.wait, " Two."), spec=OPEN)
    talk.client(type="say", text="Count!")
    await talk.settle()
    talk.engine.ended.add(1)
    more.set()
    await talk.settle()
    assert talk.asked_for == ["One.", " Two."]
    assert [message["id"] for message in talk.told("reply.text")] == ["reply1.1", "reply1.2"]
    assert talk.told("error") == []


async def test_a_reply_that_breaks_off_is_said_as_far_as_it_came(executor: ThreadPoolExecutor) -> None:
    talk = Talk(executor, Thinker("One and", OutsideError(Trouble.BROKEN, "gone")), spec=OPEN)
    talk.client(type="say", text="Count!")
    await talk.settle()
    assert talk.asked_for == ["One and", SORRY]
    assert talk.engine.written == [(1, None)]


async def test_an_interruption_ends_a_reply_that_is_being_written(executor: ThreadPoolExecutor) -> None:
    never = asyncio.Event()
    talk = Talk(executor, Thinker("One and", never.wait, " two."), spec=OPEN)
    talk.client(type="say", text="Count!")
    await talk.settle()
    talk.client(type="stop")
    await talk.settle()
    assert talk.engine.cancelled == [1]
    assert talk.told("reply.ended")[0]["reason"] == "interrupted"
    assert talk.told("error") == []
    assert talk.session.quiet
