"""Brings the page into its states: by what a server says, where nothing else brings them about when one wants them.

It knows the page by its buttons, and neither looks at it nor judges it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from conftest import require_browser

from agent.browser import CHROMIUM_ARGS, Listener, find_chromium, tab

if TYPE_CHECKING:
    from playwright.async_api import Route

SENT = """() => {
  const send = RTCDataChannel.prototype.send;
  globalThis.sent = [];
  RTCDataChannel.prototype.send = function (data) { sent.push(JSON.parse(data)); send.call(this, data); };
}"""
"""Notes what the page tells the server."""
WRITTEN = """() => {
  const write = CanvasRenderingContext2D.prototype.fillText;
  globalThis.written = [];
  CanvasRenderingContext2D.prototype.fillText = function (words, ...rest) {
    written.push(words);
    write.call(this, words, ...rest);
  };
}"""
"""Notes what is written on the timeline."""
PASSED = """() => {
  globalThis.passed = [];
  const status = document.getElementById("status");
  new MutationObserver(() => passed.push(status.dataset.state)).observe(status, { attributes: true });
}"""
"""Notes through which states the page goes."""


async def arrive(listener: Listener, **message: object) -> None:
    """The page takes this for a message of its server."""
    script = "(data) => probe.channel.dispatchEvent(new MessageEvent('message', { data }))"
    await listener.page.evaluate(script, json.dumps(message))


LONG = "The train to the coast leaves from platform nine in about twelve minutes, and it stops at every station."
ASKING = """() => {
  const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
  navigator.mediaDevices.getUserMedia = async (wish) => {
    await new Promise((resolve) => (globalThis.agree = resolve));
    return ask(wish);
  };
  const later = setTimeout;
  globalThis.setTimeout = (then, ms) => later(then, ms === 2_500 ? 3_600_000 : ms);
}"""
"""The question for the microphone waits for agree(), and "interrupted" stands until one has looked."""


async def walk(listener: Listener) -> AsyncIterator[str]:
    """A page that is not connected, whose browser has a microphone, through its states: the name of each."""
    page, held = listener.page, asyncio.Event()

    async def hold(route: Route) -> None:
        await held.wait()
        await route.continue_()

    yield "idle"
    await page.evaluate(ASKING)
    await page.route("**/offer", hold)
    await page.check("#microphone")
    await page.click("#connect")
    await page.wait_for_function("globalThis.agree !== undefined")
    yield "asking"
    await page.evaluate("agree()")
    await page.wait_for_selector("#status[data-phase=connecting]")
    yield "connecting"
    held.set()
    await page.wait_for_selector("#status[data-state=listening]")
    yield "listening"
    await page.click("#mute")
    yield "ready"
    await page.click("#mute")
    await arrive(listener, type="turn.started")
    yield "hearing"
    await arrive(listener, type="turn.ended", seconds=1.5)
    yield "thinking"
    await listener.speak(LONG)
    await listener.until_speaking()
    yield "speaking"
    await arrive(listener, type="speech.paused", id="u1", heard_ms=600)
    yield "paused"
    await listener.stop()
    await listener.until_silent()
    await arrive(listener, type="speech.silenced", flush_ms=6, wire_ms=40)
    yield "interrupted"
    await lose(listener)
    yield "lost"


async def lose(listener: Listener) -> None:
    """The call's server seems to be gone, and does not come back."""
    await listener.page.route("**/healthz", lambda route: route.abort())
    await listener.page.evaluate("probe.channel.dispatchEvent(new Event('close'))")
    await listener.page.wait_for_selector("#status[data-state=lost]")


async def interrupt(listener: Listener) -> None:
    """A page whose user is about to speak, and does so over the agent: until the agent answers that."""
    await listener.speak(LONG)
    await listener.until_speaking()
    await listener.page.wait_for_function("probe.said('turn.ended')", timeout=60_000)
    await listener.page.wait_for_selector("#status[data-state=speaking]", timeout=60_000)


@asynccontextmanager
async def refusing(url: str) -> AsyncIterator[Listener]:
    """A Chromium that has a microphone, and whose user does not lend it: headless, the answer to a question is no."""
    from playwright.async_api import async_playwright

    require_browser()
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    args = [*CHROMIUM_ARGS, *sandbox, "--use-fake-device-for-media-stream"]
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=find_chromium(), args=args)
        try:
            async with tab(browser, url) as listener:
                yield listener
        finally:
            await browser.close()
