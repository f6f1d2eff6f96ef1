"""What users of other voice agents complain of and only a real browser shows; the others are in test_complaints.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.bench_browser import ASKS_DEAD_STUN, DEAD_STUN, connects
from agent.browser import Listener, Served, tab

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

GATHERING = 5.0
"""Seconds that others wait for a server that does not answer."""
SPY = """() => {
  window.asked = [];
  const note = (what) => asked.push(what);
  HTMLMediaElement.prototype.play = function () { note(`play ${this.id}`); return new Promise(() => {}); };
  const resume = AudioContext.prototype.resume;
  AudioContext.prototype.resume = function () { note("resume"); return resume.call(this); };
}"""
CLICK = "(id) => { document.getElementById(id).click(); return [...asked]; }"
"""What was asked for before the click's handlers had returned: a script is running, so no promise goes on meanwhile."""


@pytest.mark.parametrize("button", ["connect", "speak"])
async def test_sound_is_asked_for_inside_of_the_click(listener: Listener, button: str) -> None:
    """Safari and autoplay: no sound (livekit/client-sdk-js#21). Safari plays sound that a click asks for, and nothing
    else: play() may not wait for the server, for the call or for any promise. Nor may the meter's audio context."""
    await listener.page.fill("#text", "Good morning.")
    await listener.page.evaluate(SPY)
    asked = await listener.page.evaluate(CLICK, button)
    assert "play sound" in asked
    assert "resume" in asked
    assert await listener.page.evaluate("document.getElementById('sound').srcObject?.getAudioTracks().length") == 1
    await listener.page.wait_for_selector("#status[data-phase=ready]")
    await listener.hang_up()


async def test_the_button_of_a_refused_play_asks_again_inside_of_its_click(listener: Listener) -> None:
    """Safari and autoplay: the button that a refusal shows must itself be the click that is asked for."""
    await listener.page.evaluate("""() => {
      HTMLMediaElement.prototype.play = () => Promise.reject(new DOMException("not allowed", "NotAllowedError"));
    }""")
    await listener.connect()
    await listener.page.wait_for_selector("#refused:visible")
    await listener.page.evaluate(SPY)
    assert await listener.page.evaluate(CLICK, "play") == ["resume", "play sound"]
    await listener.hang_up()


async def test_a_browser_whose_stun_server_is_dead_is_answered_and_connects(browser: Browser, server: Served) -> None:
    """The answer takes 5 to 6 s (aiortc#1183): the page's own connection asks a server that nobody has, as `bench
    browser` has it; neither its offer nor the answer waits for that."""
    calls = await connects(browser, server.url, 2, lambda done: None, ASKS_DEAD_STUN)
    assert (calls.answer_ms.count, calls.ready_ms.count) == (2, 2)
    assert calls.answer_ms.p50 < 1000.0 * GATHERING
    async with tab(browser, server.url) as listener:
        await listener.page.evaluate(f"{ASKS_DEAD_STUN}; null")  # else Playwright would call what it evaluates to
        config = await listener.page.evaluate("new RTCPeerConnection({ iceServers: [] }).getConfiguration()")
    assert config["iceServers"][0]["urls"] == [DEAD_STUN]
