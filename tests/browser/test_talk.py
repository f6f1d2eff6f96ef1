"""Talking to the agent in a real Chromium with a wav as microphone: turns, an interruption, a cough, none at all.

How fast that is, a bench says; here is what happens.
"""

from __future__ import annotations

import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from conftest import require_browser
from sounds import Wave, clip, cough, int16, noise
from states import LONG, PASSED, WRITTEN, interrupt

from agent.browser import Heard, Listener, Served, chromium, tab

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

BEFORE = 4.0
"""Seconds of quiet before somebody speaks: connecting and the agent's first words take one or two."""

YOURS = "Number(getComputedStyle(document.getElementById('level-you')).getPropertyValue('--level'))"
"""What the user's meter shows, 0 to 1."""


def write(file: Path, sound: Wave) -> Path:
    """A quiet room, then the sound at 16 kHz, then a quiet room, as a wav file of 48 kHz."""
    samples = int16(np.concatenate([noise(BEFORE), sound + noise(sound.size / 16_000)[: sound.size], noise(30.0)]))
    with wave.open(str(file), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(48_000)
        out.writeframes(np.repeat(samples, 3).tobytes())
    return file


@asynccontextmanager
async def talking(server: Served, file: Path, sound: Wave) -> AsyncIterator[Listener]:
    """A page whose microphone hears the sound."""
    require_browser()
    async with chromium(microphone=write(file, sound)) as browser, tab(browser, server.url) as listener:
        await listener.page.check("#microphone")
        await listener.connect()
        yield listener


async def over_a_reply(server: Served, file: Path, sound: Wave) -> Heard:
    """What is heard of a reply over which the sound comes; where a slow machine spoke after it, once more."""
    for _ in range(3):
        async with talking(server, file, sound) as listener:
            await listener.speak(LONG)
            await listener.until_speaking()
            await listener.until_silent()
            heard = await listener.gather()
        began_at = heard.of_type("speech.started")[0]["at"]
        if all(turn["at"] > began_at for turn in heard.of_type("turn.started")):
            return heard
    raise AssertionError("three times the sound came before the reply")


async def test_a_spoken_turn_is_answered(server: Served, tmp_path: Path) -> None:
    async with talking(server, tmp_path / "user.wav", clip("user")) as listener:
        assert await listener.page.evaluate(f"{YOURS} < 0.3")
        await listener.page.wait_for_function(f"{YOURS} > 0.5", timeout=20_000)
        await listener.page.wait_for_selector("#status[data-phase=speaking]", timeout=20_000)
        await listener.until_silent()
        heard = await listener.gather()
    (ended,) = heard.of_type("turn.ended")
    assert 1.5 < ended["seconds"] < 4.0
    assert heard.of_type("turn.started")[0]["at"] < ended["at"] < heard.of_type("reply.started")[0]["at"]
    (reply,) = heard.of_type("reply.ended")
    assert reply["reason"] == "end"
    assert "seconds of speech" in reply["heard"], "the echo brain without a transcriber"
    assert heard.voiced_seconds(ended["at"]) > 0.5


async def test_who_speaks_over_the_agent_interrupts_it_while_still_speaking(server: Served, tmp_path: Path) -> None:
    async with talking(server, tmp_path / "user.wav", clip("user")) as listener:
        for noting in (PASSED, WRITTEN):
            await listener.page.evaluate(noting)
        await interrupt(listener)
        passed, written = await listener.page.evaluate("[passed, written]")
        shown = await listener.page.inner_text("#stopped")
        heard = await listener.gather()
    (silenced,) = heard.of_type("speech.silenced")
    took = int(shown.removesuffix(" ms"))
    assert took == pytest.approx(sum(silenced[part] for part in ("flush_ms", "wire_ms", "turn_ms")), abs=0.51)
    assert "interrupted" in passed, "it is told in words and in colour"
    assert f"silent in {took} ms" in written, "and on the timeline"
    stopped = heard.of_type("speech.stopped")[0]
    assert (stopped["id"], stopped["reason"]) == ("u1", "cancelled")
    (paused,), (ended,) = heard.of_type("speech.paused"), heard.of_type("turn.ended")
    assert paused["at"] < stopped["at"] < ended["at"] - 500, "the user goes on for some seconds"
    assert LONG.startswith(stopped["heard"])
    assert stopped["heard"] != LONG
    assert stopped["heard_ms"] < stopped["sent_ms"]
    assert not len(heard.loud_at(stopped["at"] + 300, ended["at"])), "it stays silent"


@pytest.mark.parametrize(("sound", "pauses"), [(cough(), 0), (clip("mhm"), 1)], ids=["cough", "mhm"])
async def test_a_cough_or_a_backchannel_does_not_end_the_reply(
    server: Served, tmp_path: Path, sound: Wave, pauses: int
) -> None:
    """A cough may be too short to be taken for the beginning of speech; a backchannel is not."""
    heard = await over_a_reply(server, tmp_path / "short.wav", sound)
    (stopped,) = heard.of_type("speech.stopped")
    assert (stopped["reason"], stopped["heard"]) == ("end", LONG)
    paused = [message["heard_ms"] for message in heard.of_type("speech.paused")]
    assert len(paused) >= pauses
    assert paused == [message["heard_ms"] for message in heard.of_type("speech.continued")], "at the very sample"
    assert not heard.of_type("turn.started")


async def test_without_a_microphone_one_can_listen_and_type(browser: Browser, server: Served) -> None:
    """This Chromium has none."""
    async with tab(browser, server.url) as listener:
        await listener.page.check("#microphone")
        await listener.page.click("#connect")
        await listener.page.wait_for_selector("#status[data-phase=ready]", timeout=20_000)
        assert "No microphone was found. You can listen and type" in await listener.page.inner_text("#hint")
        assert not await listener.page.is_visible("#problem"), "it is a way to call, not a fault"
        await listener.page.fill("#text", "Good morning.")
        await listener.page.click("#say")
        await listener.page.wait_for_selector("#status[data-phase=speaking]", timeout=20_000)
        await listener.until_silent()
        heard = await listener.gather()
        said = [await row.inner_text() for row in await listener.page.locator("#utterances .text").all()]
    assert said == ["Good morning.", "Good morning."], "typed, and answered by the echo brain"
    assert heard.of_type("reply.ended")[0]["heard"] == "Good morning."
