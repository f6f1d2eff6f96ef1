"""What users of other voice agents complain of and only a real browser shows; the others are in test_complaints.py."""

from __future__ import annotations

import pytest

from agent.browser import Listener

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

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
