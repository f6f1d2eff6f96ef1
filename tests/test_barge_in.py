"""From sound to what the agent does: VAD, echo guard and turn taking together, in simulated time.

The agent speaks its clip, stands still at Pause, goes on at Resume and is silent after Interrupt, so that its echo also
depends on what was decided. What the clips are is said in sounds.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sounds import PCM, SAMPLE_RATE, Call, Wave, clip, cough, final, int16, kinds, level, noise, onset, placed
from test_transcribe import model

from agent.ears import AFTER, BEFORE
from agent.transcribe import BoundedTranscriber, TranscriberConfig, make_transcriber
from agent.turn import Interrupt, Pause, Resume, SpeechStarted, TurnEnded
from agent.understanding import Understanding
from agent.vad import EARSHOT, SILERO, make

VADS = pytest.mark.parametrize("name", [SILERO, EARSHOT])
USERS = pytest.mark.parametrize("words", ["user", "other"])
SPEAKS_AT = 3.0
ECHO_DB = -12.0


def first(call: Call, kind: type[Pause | Resume | Interrupt], speaks_at: float = SPEAKS_AT) -> float:
    """The instant of the first such action after the user began."""
    return next(action.at for action in call.actions if isinstance(action, kind) and action.at >= speaks_at)


@VADS
@USERS
def test_a_user_interrupts_while_they_still_speak_and_their_turn_ends(name: str, words: str) -> None:
    user = clip(words)
    call = Call(make(name), placed(SPEAKS_AT + 5, (SPEAKS_AT, user)))
    assert kinds(call.run()) == ["Pause", "Interrupt", "SpeechStarted", "SpeechStopped", "TurnEnded"]
    starts_at, ends_at = SPEAKS_AT + onset(user), SPEAKS_AT + user.size / 16_000
    assert first(call, Pause) - starts_at < 0.1
    assert first(call, Interrupt) < ends_at - 0.5
    ended = call.actions[-1]
    assert isinstance(ended, TurnEnded)
    assert ended.onset_at == pytest.approx(starts_at, abs=0.1)
    assert ended.ended_at == pytest.approx(ends_at, abs=0.2)


@VADS
@pytest.mark.parametrize("seed", range(3))
def test_a_cough_does_not_end_the_reply(name: str, seed: int) -> None:
    call = Call(make(name), placed(SPEAKS_AT + 2, (SPEAKS_AT, cough(0.15, seed=seed))))
    call.run()
    assert final(call.actions) in {"untouched", "Resume"}
    assert "SpeechStarted" not in kinds(call.actions)


@VADS
@pytest.mark.parametrize("words", ["mhm", "yeah", "uh_huh"])
def test_a_backchannel_does_not_end_the_reply_and_is_no_turn(name: str, words: str) -> None:
    call = Call(make(name), placed(SPEAKS_AT + 2, (SPEAKS_AT, clip(words))))
    assert kinds(call.run()) == ["Pause", "Resume"]
    assert first(call, Resume) - first(call, Pause) < 0.9


@VADS
@pytest.mark.parametrize("delay", [0.05, 0.2, 0.4])
def test_the_agents_own_echo_does_not_end_the_reply(name: str, delay: float) -> None:
    """It may pause it in the first second of the first reply, before there is a delay; later it leaves it alone."""
    call = Call(make(name), noise(12.0), echo_db=ECHO_DB, delay=delay)
    call.run()
    assert set(kinds(call.actions)) <= {"Pause", "Resume"}
    assert final(call.actions) in {"untouched", "Resume"}
    assert all(action.at < 2.0 for action in call.actions)


@VADS
@USERS
@pytest.mark.parametrize(("speaks_at", "relative"), [(SPEAKS_AT, 0.0), (SPEAKS_AT, -6.0), (1.5, 0.0)])
def test_a_user_interrupts_over_the_echo(name: str, words: str, speaks_at: float, relative: float) -> None:
    """Also in the first seconds: nobody is deaf for three of them."""
    user = clip(words) * level(clip("agent")) / level(clip(words)) * 10 ** ((ECHO_DB + relative) / 20)
    call = Call(make(name), placed(speaks_at + 5, (speaks_at, user)), echo_db=ECHO_DB)
    call.run()
    assert not any(isinstance(action, Interrupt | SpeechStarted) and action.at < speaks_at for action in call.actions)
    starts_at = speaks_at + onset(user)
    assert first(call, Pause, speaks_at) - starts_at < (0.2 if speaks_at == SPEAKS_AT else 0.5)
    assert first(call, Interrupt, speaks_at) < speaks_at + user.size / 16_000
    assert kinds(call.actions)[-1] == "TurnEnded"


@VADS
@pytest.mark.parametrize("words", ["mhm", "yeah"])
def test_a_backchannel_over_the_echo_does_not_end_the_reply(name: str, words: str) -> None:
    call = Call(make(name), placed(SPEAKS_AT + 3, (SPEAKS_AT, clip(words))), echo_db=ECHO_DB)
    call.run()
    assert final(call.actions) == "Resume"
    assert "SpeechStarted" not in kinds(call.actions)


__all__ = ["model"]
"""The fixture of a real Whisper."""


@pytest.fixture
async def whisper(model: Path) -> AsyncIterator[BoundedTranscriber]:
    transcriber = make_transcriber(TranscriberConfig("faster-whisper", model=str(model), language="en", seconds=120))
    await transcriber.start()
    yield transcriber
    await transcriber.close()


async def judged(call_for: Wave, transcriber: BoundedTranscriber) -> list[str]:
    """What becomes of a reply over which this is said, with time standing still while it is transcribed."""
    user = placed(SPEAKS_AT + 2, (SPEAKS_AT, call_for))

    def audio(onset_at: float, ended_at: float) -> PCM:
        return int16(user[round((onset_at - BEFORE) * SAMPLE_RATE) : round((ended_at + AFTER) * SAMPLE_RATE)])

    understanding = Understanding(transcriber, audio)
    call = Call(make(SILERO), user, judge=understanding)
    for start in call.starts:
        call.hear(start)
        while understanding.asking:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
    understanding.close()
    return kinds(call.actions)


async def test_a_short_word_interrupts_where_whisper_knows_it_and_a_backchannel_does_not(
    whisper: BoundedTranscriber,
) -> None:
    for words in ("stop", "no"):
        assert await judged(clip(words), whisper) == [
            "Pause",
            "Interrupt",
            "SpeechStarted",
            "SpeechStopped",
            "TurnEnded",
        ]
    for words in ("mhm", "yeah", "uh_huh"):
        assert await judged(clip(words), whisper) == ["Pause", "Resume"]


@pytest.mark.parametrize("words", ["stop", "no"])
def test_without_words_the_same_does_not(words: str) -> None:
    assert kinds(Call(make(SILERO), placed(SPEAKS_AT + 2, (SPEAKS_AT, clip(words)))).run()) == ["Pause", "Resume"]


@VADS
@USERS
def test_a_turn_while_the_agent_is_silent(name: str, words: str) -> None:
    call = Call(make(name), placed(6.0, (1.0, clip(words))), speaks=False)
    call.run()
    assert kinds(call.actions)[0] == "SpeechStarted"
    assert kinds(call.actions)[-1] == "TurnEnded"
    assert kinds(call.actions).count("TurnEnded") == 1
