"""agent/understanding.py: what is asked while a user is silent, once, and what becomes of it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from stand_in import no_task

from agent.dialogue import Audio
from agent.transcribe import TranscriberConfig, make_transcriber
from agent.trouble import OutsideError, TranscribeError, Trouble
from agent.turn import Judge
from agent.turn_end import SentenceEnd, TurnEndModel, TurnSoFar
from agent.understanding import Understanding


@dataclass
class Scribe:
    """A transcriber that answers when a test lets it, and counts."""

    text: str | Exception = "Stop!"
    asked: list[int] = field(default_factory=list)
    cancelled: int = 0
    free: asyncio.Event = field(default_factory=asyncio.Event)

    async def transcribe(self, audio: Audio) -> str:
        self.asked.append(audio.size)
        try:
            await self.free.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(self.text, Exception):
            raise self.text
        return self.text


class Asked:
    """An understanding and whom it asks."""

    def __init__(self, model: TurnEndModel | None = None, text: str | Exception = "Stop!", free: bool = False) -> None:
        self.scribe = Scribe(text)
        if free:
            self.scribe.free.set()
        self.transcriber = make_transcriber(TranscriberConfig("function"), self.scribe.transcribe)
        self.understanding = Understanding(self.transcriber, self.audio, model, ["amen"])
        self.judge: Judge = self.understanding

    def audio(self, onset_at: float, ended_at: float) -> Audio:
        return np.zeros(round(16_000 * (ended_at - onset_at)), np.int16)

    async def known(self) -> None:
        async with asyncio.timeout(10):
            while self.judge.asking:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0)


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    yield
    await no_task(before)


async def test_words_interrupt_once_they_are_known() -> None:
    asked = Asked()
    assert not asked.judge.interrupts(1.0, 1.5)
    assert asked.judge.asking
    await asyncio.sleep(0)
    asked.scribe.free.set()
    await asked.known()
    assert asked.judge.interrupts(1.0, 1.5)
    assert asked.scribe.asked == [8000]


@pytest.mark.parametrize("text", ["Yeah.", "", "Amen!"])
async def test_a_listeners_words_do_not(text: str) -> None:
    asked = Asked(text=text, free=True)
    asked.judge.interrupts(1.0, 1.5)
    await asked.known()
    assert not asked.judge.interrupts(1.0, 1.5)


async def test_nobody_who_transcribes_is_no_reason_to_wait() -> None:
    silent = Understanding(make_transcriber(TranscriberConfig()), lambda *span: np.zeros(8000, np.int16))
    assert not silent.interrupts(1.0, 1.5)
    for _ in range(3):
        await asyncio.sleep(0)
    assert not silent.asking
    assert not silent.interrupts(1.0, 1.5)


async def test_what_is_known_is_the_turns_text_and_not_asked_for_twice() -> None:
    asked = Asked(SentenceEnd(), free=True)
    asked.judge.interrupts(1.0, 1.5)
    await asked.known()
    asked.judge.over(1.0, 1.5)
    await asked.known()
    assert asked.judge.over(1.0, 1.5) == 0.9
    assert await asked.understanding.words(asked.audio(1.0, 1.5), 1.0, 1.5) == "Stop!"
    assert asked.scribe.asked == [8000]
    assert await asked.understanding.words(asked.audio(1.0, 1.5), 1.0, 1.5) == "Stop!"
    assert asked.scribe.asked == [8000, 8000], "once"


async def test_what_is_being_found_out_is_waited_for() -> None:
    asked = Asked(SentenceEnd())
    asked.judge.over(1.0, 1.5)
    for _ in range(5):
        await asyncio.sleep(0)
    words = asyncio.create_task(asked.understanding.words(asked.audio(1.0, 1.5), 1.0, 1.5))
    await asyncio.sleep(0)
    asked.scribe.free.set()
    assert await words == "Stop!"
    assert asked.scribe.asked == [8000]


async def test_other_instants_are_another_turn() -> None:
    asked = Asked(free=True)
    asked.judge.interrupts(1.0, 1.5)
    await asked.known()
    assert await asked.understanding.words(asked.audio(0.5, 1.5), 0.5, 1.5) == "Stop!"
    assert asked.scribe.asked == [8000, 16_000]
    asked.understanding.close()


async def test_at_most_one_transcription_is_in_the_making() -> None:
    asked = Asked(SentenceEnd())
    for n in range(5):
        for _ in range(10):  # frames: the first one gives up what was asked before
            asked.judge.interrupts(1.0, 1.5 + n)
            asked.judge.over(1.0, 1.5 + n)
            await asyncio.sleep(0)
        assert len(asked.scribe.asked) - asked.scribe.cancelled == 1
    asked.judge.drop()
    await no_task({asyncio.current_task()})
    assert asked.scribe.cancelled == 5


async def test_no_guess_is_begun_while_the_transcriber_is_busy() -> None:
    asked = Asked(SentenceEnd())
    elsewhere = asyncio.create_task(asked.transcriber.transcribe(np.zeros(4000, np.int16)))
    await asyncio.sleep(0)
    assert not asked.judge.interrupts(1.0, 1.5)
    assert not asked.judge.asking, "no pause waits for it"
    assert await opinion(asked) is None
    words = asyncio.create_task(asked.understanding.words(asked.audio(0.5, 2.5), 0.5, 2.5))
    for _ in range(5):
        await asyncio.sleep(0)
    assert asked.scribe.asked == [4000, 32_000], "a turn that is over is asked for all the same"
    asked.scribe.free.set()
    assert await asyncio.gather(elsewhere, words) == ["Stop!", "Stop!"]
    assert await opinion(asked) == 0.9, "asked again, once the words can be had"
    assert asked.judge.interrupts(1.0, 1.5)
    assert asked.scribe.asked == [4000, 32_000, 8000]
    asked.understanding.close()


async def test_who_waits_for_a_turns_words_may_give_up() -> None:
    asked = Asked()
    asked.judge.interrupts(1.0, 1.5)
    words = asyncio.create_task(asked.understanding.words(asked.audio(1.0, 1.5), 1.0, 1.5))
    for _ in range(5):
        await asyncio.sleep(0)
    words.cancel()
    await asyncio.gather(words, return_exceptions=True)
    assert asked.scribe.cancelled == 1


async def test_after_the_end_nothing_is_asked() -> None:
    asked = Asked(SentenceEnd())
    asked.judge.over(1.0, 1.5)
    asked.understanding.close()
    assert not asked.judge.interrupts(2.0, 2.5)
    assert asked.judge.over(2.0, 2.5) is None
    assert not asked.judge.asking


async def test_a_failure_is_no_answer_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agent.understanding")
    asked = Asked(text=OutsideError(Trouble.BUSY, "too many"), free=True)
    for n in range(3):
        asked.judge.interrupts(1.0, 1.5 + n)
        await asked.known()
        assert not asked.judge.interrupts(1.0, 1.5 + n)
    assert caplog.text.count("the transcriber could not be asked") == 1
    with pytest.raises(TranscribeError, match="too many"):  # the turn itself is tried once more, and told
        await asked.understanding.words(asked.audio(1.0, 3.5), 1.0, 3.5)
    assert len(asked.scribe.asked) == 4


# ---- models ---------------------------------------------------------------------------------------------------


async def opinion(asked: Asked) -> float | None:
    asked.judge.over(1.0, 1.5)
    await asked.known()
    return asked.judge.over(1.0, 1.5)


async def test_a_model_that_blocks_gets_the_sound_in_a_thread_of_its_own() -> None:
    seen = list[tuple[int, bool]]()

    def by_sound(turn: TurnSoFar) -> np.float32:
        seen.append((turn.audio.size, threading.current_thread() is threading.main_thread()))
        return np.float32(0.75)

    asked = Asked(by_sound)
    assert await opinion(asked) == 0.75
    assert seen == [(8000, False)]
    assert asked.scribe.asked == [], "it did not want the words"
    asked.understanding.close()


async def test_the_model_of_the_words_goes_by_them() -> None:
    for text, likely in (("I want to go.", 0.9), ("I want to go and", 0.1), ("", None)):
        asked = Asked(SentenceEnd(), text, free=True)
        assert await opinion(asked) == likely
        asked.understanding.close()


async def test_a_model_is_asked_again_when_the_user_has_gone_on() -> None:
    asked = Asked(SentenceEnd(), free=True)
    assert await opinion(asked) == 0.9
    asked.judge.drop()
    assert await opinion(asked) == 0.9
    assert len(asked.scribe.asked) == 2
    asked.understanding.close()


async def test_words_that_cannot_be_known_are_empty_to_a_model() -> None:
    asked = Asked(SentenceEnd(), OutsideError(Trouble.TIMEOUT, "slow"), free=True)
    assert await opinion(asked) is None


@pytest.mark.parametrize("wrong", [1.5, -0.1, float("nan"), "yes", RuntimeError("oh dear")])
async def test_a_model_that_fails_or_babbles_has_no_opinion(wrong: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "agent.understanding")

    async def model(turn: TurnSoFar) -> Any:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    asked = Asked(model)
    assert await opinion(asked) is None
    asked.judge.drop()
    assert await opinion(asked) is None
    assert caplog.text.count("the turn-end model could not be asked") == 1


async def test_a_model_that_hangs_is_cancelled() -> None:
    ended = list[str]()

    async def hang(turn: TurnSoFar) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(await turn.text())
        return 1.0

    asked = Asked(hang)
    asked.judge.over(1.0, 1.5)
    for _ in range(5):
        await asyncio.sleep(0)
    asked.judge.drop()
    for _ in range(5):
        await asyncio.sleep(0)
    assert ended == [""], "nobody asks any more"
    assert asked.scribe.asked == []


async def test_a_model_that_is_late_three_times_in_a_row_is_asked_no_more() -> None:
    free = asyncio.Event()

    async def model(turn: TurnSoFar) -> float:
        await free.wait()
        return 0.9

    asked, asking = Asked(model, free=True), list[bool]()
    for n, in_time in enumerate([False, False, True, False, False, False, False, True]):
        free.set() if in_time else free.clear()
        asked.judge.over(n, n + 0.5)
        asking.append(asked.judge.asking)
        for _ in range(10):
            await asyncio.sleep(0)
        await asked.understanding.words(asked.audio(n, n + 0.5), n, n + 0.5)
    assert asking == [True] * 6 + [False] * 2


async def test_a_user_who_goes_on_makes_no_model_late() -> None:
    asked = Asked(SentenceEnd())
    for n in range(5):
        asked.judge.over(n, n + 0.5)
        assert asked.judge.asking
        asked.judge.drop()
    asked.understanding.close()
