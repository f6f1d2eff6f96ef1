"""Turns that end and replies that are interrupted by what was said: turn taking, transcriber and conversation together,
frame by frame of 32 ms, with a clock that stands still while text is found out."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from scripted_talk import Talk, Thinker, saying

from agent.answering import Answering, add_options, answering
from agent.brain import BrainConfig
from agent.dialogue import Audio
from agent.transcribe import TranscriberConfig
from agent.trouble import OutsideError, SettingsError, Trouble
from agent.turn_end import SentenceEnd
from agent.voice_agent import VoiceAgent

SHORT, LONG = 0.32, 0.96
"""Seconds of speech: less than interrupts by its duration, and more."""


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Scribe:
    """A transcriber that counts, and answers when a test lets it."""

    def __init__(self, text: str) -> None:
        self.text, self.asked, self.cancelled = text, 0, 0
        self.free = asyncio.Event()

    async def transcribe(self, audio: Audio) -> str:
        self.asked += 1
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.text


async def spoken_over(
    executor: ThreadPoolExecutor, transcript: Callable[[Audio], Awaitable[str]] | None, **options: Any
) -> Talk:
    """Somebody says something short over a reply, up to the frame before the gap is over."""
    talk = Talk(executor, Thinker("Here is a long story. ", asyncio.Event().wait), transcript, **options)
    talk.client(type="say", text="Tell me.")
    await talk.settle()
    await talk.hear(SHORT, 0.9)
    await talk.hear(0.288, 0.0)
    return talk


def ended(talk: Talk) -> list[tuple[str, ...]]:
    return [(message["reason"],) for message in talk.told("reply.ended")]


async def ends(talk: Talk) -> None:
    talk.session.close()
    await talk.settle()
    assert len(asyncio.all_tasks()) == 1


async def test_a_short_stop_interrupts_and_is_transcribed_once(executor: ThreadPoolExecutor) -> None:
    scribe = Scribe("Stop!")
    scribe.free.set()
    talk = await spoken_over(executor, scribe.transcribe)
    assert ended(talk) == [("interrupted",)], "before the gap is over"
    await talk.hear(0.32, 0.0)
    assert talk.heard == ["Pause", "Interrupt", "SpeechStarted", "SpeechStopped", "TurnEnded"]
    assert [turn.text for turn in talk.brain.turns] == ["Tell me.", "Stop!"]
    assert scribe.asked == 1
    assert not talk.told("error")
    await ends(talk)


@pytest.mark.parametrize("text", ["Mm-hmm.", ""])
async def test_a_backchannel_or_nothing_lets_the_reply_go_on(executor: ThreadPoolExecutor, text: str) -> None:
    talk = await spoken_over(executor, saying(text))
    await talk.hear(0.64, 0.0)
    assert talk.heard == ["Pause", "Resume"]
    assert ended(talk) == []
    await ends(talk)


async def test_without_a_transcriber_nothing_is_different(executor: ThreadPoolExecutor) -> None:
    talk = await spoken_over(executor, None)
    assert talk.heard == ["Pause"]
    await talk.hear(0.032, 0.0)
    assert talk.heard == ["Pause", "Resume"]
    await ends(talk)


async def test_a_transcriber_that_fails_lets_the_reply_go_on_and_the_user_hears_nothing_of_it(
    executor: ThreadPoolExecutor,
) -> None:
    async def fail(audio: Audio) -> str:
        raise OutsideError(Trouble.BUSY, "too many")

    talk = await spoken_over(executor, fail)
    await talk.hear(0.032, 0.0)
    assert talk.heard == ["Pause", "Resume"]
    assert not talk.told("error")
    await ends(talk)


async def test_a_slow_transcriber_is_waited_for_no_longer_than_that(executor: ThreadPoolExecutor) -> None:
    scribe = Scribe("Stop!")
    talk = await spoken_over(executor, scribe.transcribe)
    await talk.hear(0.48, 0.0)
    assert talk.heard == ["Pause"]
    await talk.hear(0.064, 0.0)
    assert talk.heard == ["Pause", "Resume"]
    assert (scribe.asked, scribe.cancelled) == (1, 1)
    await ends(talk)


async def goes_on(talk: Talk) -> None:
    await talk.hear(0.032, 0.9)


async def stops(talk: Talk) -> None:
    talk.client(type="stop")
    await talk.hear(0.032, 0.0)


async def hangs_up(talk: Talk) -> None:
    talk.session.close()


async def must_be_heard(talk: Talk) -> None:
    talk.conversation.interruptible = False
    await talk.hear(0.032, 0.0)


@pytest.mark.parametrize("happens", [goes_on, stops, hangs_up, must_be_heard])
async def test_what_makes_the_question_idle_cancels_it(
    executor: ThreadPoolExecutor, happens: Callable[[Talk], Awaitable[None]]
) -> None:
    scribe = Scribe("Stop!")
    talk = await spoken_over(executor, scribe.transcribe)
    assert (scribe.asked, scribe.cancelled) == (1, 0)
    await happens(talk)
    await talk.settle()
    assert (scribe.asked, scribe.cancelled) == (1, 1)
    assert "Interrupt" not in talk.heard
    await ends(talk)


async def test_a_reply_that_ends_by_itself_cancels_it_too(executor: ThreadPoolExecutor) -> None:
    scribe = Scribe("Stop!")
    talk = Talk(executor, Thinker("One."), scribe.transcribe)
    talk.client(type="say", text="Count!")
    await talk.settle()
    await talk.hear(SHORT, 0.9)
    await talk.hear(0.128, 0.0)
    assert scribe.asked == 1
    talk.session.resume()  # as another client of the session may
    await talk.speak_on(1)
    assert ended(talk) == [("end",)]
    await talk.hear(0.032, 0.0)
    assert scribe.cancelled == 1
    await ends(talk)


async def test_long_speech_interrupts_without_waiting_for_words(executor: ThreadPoolExecutor) -> None:
    scribe = Scribe("Well, well.")
    talk = Talk(executor, Thinker("A long story. ", asyncio.Event().wait), scribe.transcribe)
    talk.client(type="say", text="Tell me.")
    await talk.settle()
    await talk.hear(0.64, 0.9)
    assert talk.heard == ["Pause", "Interrupt", "SpeechStarted"]
    assert scribe.asked == 0
    await ends(talk)


# ---- the end of a turn by its words -----------------------------------------------------------------------------


async def said_after(executor: ThreadPoolExecutor, scribe: Scribe, silence: float) -> Talk:
    talk = Talk(executor, Thinker("Yes."), scribe.transcribe, turn_end=SentenceEnd())
    await talk.hear(LONG, 0.9)
    await talk.hear(silence, 0.0)
    return talk


async def test_a_complete_sentence_is_answered_after_the_short_silence_with_the_text_that_is_there(
    executor: ThreadPoolExecutor,
) -> None:
    scribe = Scribe("What time is it?")
    scribe.free.set()
    talk = await said_after(executor, scribe, 0.352)
    assert talk.heard[-1] == "TurnEnded"
    assert [turn.text for turn in talk.brain.turns] == ["What time is it?"]
    assert scribe.asked == 1
    await ends(talk)


async def test_an_open_sentence_is_waited_for(executor: ThreadPoolExecutor) -> None:
    scribe = Scribe("I want a ticket and")
    scribe.free.set()
    talk = await said_after(executor, scribe, 1.44)
    assert talk.heard == ["SpeechStarted", "SpeechStopped"]
    await talk.hear(0.128, 0.0)
    assert talk.heard[-1] == "TurnEnded"
    assert (scribe.asked, len(talk.brain.turns)) == (1, 1)
    await ends(talk)


async def test_who_goes_on_is_transcribed_as_a_whole(executor: ThreadPoolExecutor) -> None:
    scribe = Scribe("I want a ticket and")
    scribe.free.set()
    talk = await said_after(executor, scribe, 0.8)
    scribe.text = "I want a ticket and a seat."
    await talk.hear(LONG, 0.9)
    await talk.hear(0.4, 0.0)
    assert [turn.text for turn in talk.brain.turns] == ["I want a ticket and a seat."]
    first, *_, last = talk.microphone.asked
    assert first[0] == last[0]
    assert scribe.asked == 2
    await ends(talk)


async def test_text_that_is_late_ends_the_turn_all_the_same_and_is_awaited(executor: ThreadPoolExecutor) -> None:
    scribe = Scribe("What time is it?")
    talk = await said_after(executor, scribe, 1.056)
    assert talk.heard[-1] == "TurnEnded"
    assert talk.brain.turns == []
    scribe.free.set()
    await talk.settle()
    assert [turn.text for turn in talk.brain.turns] == ["What time is it?"]
    assert (scribe.asked, scribe.cancelled) == (1, 0)
    await ends(talk)


async def test_a_call_that_ends_while_words_are_found_out_leaves_nothing_behind(executor: ThreadPoolExecutor) -> None:
    for silence in (0.32, 0.64, 1.056):
        scribe = Scribe("What time is it?")
        talk = await said_after(executor, scribe, silence)
        assert scribe.asked == 1
        await ends(talk)
        assert scribe.cancelled == 1


# ---- settings ---------------------------------------------------------------------------------------------------


def test_words_need_somebody_who_knows_them_and_a_turn_somebody_who_hears() -> None:
    engine: Any = None
    for transcriber in (None, TranscriberConfig()):
        with pytest.raises(SettingsError, match="without a transcriber"):
            VoiceAgent(engine, brain=BrainConfig(), turn_end=SentenceEnd, transcriber=transcriber)
    with pytest.raises(SettingsError, match="nobody listens"):
        VoiceAgent(engine, brain=BrainConfig(), turn_end=SentenceEnd, transcriber=str, vad=None)
    with pytest.raises(SettingsError, match="needs a brain"):
        VoiceAgent(engine, turn_end=SentenceEnd)
    with pytest.raises(ValueError, match="one to 3 words"):
        VoiceAgent(engine, brain=BrainConfig(), backchannels=["what you say to a listener"])
    VoiceAgent(engine, brain=BrainConfig(), turn_end=lambda: lambda turn: 1.0)


def test_the_command_line_chooses() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)

    def chosen(*args: str) -> Answering | None:
        return answering(parser.parse_args(args))

    whisper = ("--transcriber", "openai", "--stt-url", "http://localhost:1/v1", "--stt-model", "w")
    plain, by_words = chosen(), chosen("--turn-end", "words", *whisper)
    assert plain is not None and by_words is not None
    assert (plain.turn_end, by_words.turn_end) == (None, SentenceEnd)
    with pytest.raises(SettingsError, match="without a transcriber"):
        chosen("--turn-end", "words")
    with pytest.raises(SettingsError, match="nobody listens"):
        chosen("--turn-end", "words", "--vad", "off", *whisper)
