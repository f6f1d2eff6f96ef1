"""How the page treats people in a real Chromium: languages, keyboard, screen readers, small screens, no microphone, a
server that goes and comes back.

npm fetches axe-core, which looks for what keeps people out (https://github.com/dequelabs/axe-core).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import require_browser
from npm import taken
from sounds import noise
from test_talk import write

from agent.browser import CHROMIUM_ARGS, Listener, Served, chromium, find_chromium, serve, tab

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

MAX_PAGE_BYTES = 150_000
SENTENCE = "Please hold the line while I look that up for you."
LONG = "The train to the coast leaves from platform nine in about twelve minutes, and it stops at every station."
AXE = "axe-core@4.14.1"
SHA512 = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
"""Of the package, as `npm view AXE dist.integrity` says."""


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its script."""
    return taken(AXE, SHA512, "package/axe.min.js", tmp_path_factory.mktemp("npm"))


@pytest.fixture(scope="module")
def show() -> Any:
    """A server that was started for show: its page has everything on it."""
    require_browser()
    with serve("--device", "cpu", "--demo") as served:
        yield served


async def shown(listener: Listener, what: str) -> str:
    return await listener.page.inner_text(f"#{what}")


# ---- accessibility ------------------------------------------------------------------------------------------------


async def violations(listener: Listener, axe: Path) -> list[str]:
    """What keeps people out, a line for each place."""
    if not await listener.page.evaluate("'axe' in globalThis"):
        await listener.page.add_script_tag(path=axe)
    found: list[str] = await listener.page.evaluate(
        """async () => {
          const { violations } = await axe.run(document);
          const line = (id) => ({ target, failureSummary }) => `${id}: ${target} ${failureSummary}`;
          return violations.flatMap(({ id, nodes }) => nodes.map(line(id)));
        }"""
    )
    return found


@pytest.mark.parametrize("width", [1440, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_axe_finds_no_violation(browser: Browser, show: Served, axe: Path, scheme: str, width: int) -> None:
    viewport = {"width": width, "height": 900}
    async with tab(browser, show.url, viewport=viewport, color_scheme=scheme) as listener:
        assert await violations(listener, axe) == [], "before a call"
        await listener.connect()
        await listener.page.wait_for_selector("#demo:visible")
        await listener.page.click("summary")
        await listener.speak(SENTENCE)
        await listener.until_speaking()
        assert await violations(listener, axe) == [], "while it speaks"
        await listener.stop()
        await listener.until_silent()
        await listener.speak("   ")  # which is refused
        await listener.page.wait_for_selector("#problem:visible")
        assert await violations(listener, axe) == [], "with a note"


async def test_every_state_has_ink_that_can_be_read(browser: Browser, server: Served, axe: Path) -> None:
    states = (
        "idle",
        "lost",
        "connecting",
        "ready",
        "listening",
        "hearing",
        "thinking",
        "speaking",
        "paused",
        "interrupted",
    )
    for scheme in ("light", "dark"):
        async with tab(browser, server.url, color_scheme=scheme) as listener:
            for state in states:
                await listener.page.evaluate("(state) => { document.body.dataset.state = state }", state)
                assert await violations(listener, axe) == [], f"{state}, {scheme}"


async def test_the_page_can_be_used_by_keyboard_alone(listener: Listener) -> None:
    await listener.page.focus("#connect")
    await listener.page.keyboard.press("Enter")
    await listener.page.wait_for_selector("#status[data-phase=ready]")
    await listener.page.focus("#text")
    await listener.page.keyboard.press("Control+Enter")
    await listener.until_speaking()
    await listener.page.keyboard.press("Escape")
    await listener.until_silent()
    await listener.page.focus("#freeze")
    await listener.page.keyboard.press("Space")
    assert await listener.page.get_attribute("#freeze", "aria-pressed") == "true"
    outline = await listener.page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert outline == "3px", "who uses the keyboard sees where he is"


async def test_the_state_is_told_to_those_who_do_not_see_it(listener: Listener) -> None:
    await listener.connect()
    assert await listener.page.get_attribute("#status", "role") == "status"
    await listener.page.wait_for_function("document.getElementById('summary').textContent.includes('ready ahead')")


# ---- languages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("locale", "connect"), [("en-GB", "Connect"), ("de-AT", "Verbinden"), ("ja-JP", "接続"), ("fr-FR", "Connect")]
)
async def test_it_speaks_the_language_of_the_browser(
    browser: Browser, server: Served, locale: str, connect: str
) -> None:
    async with tab(browser, server.url, locale=locale) as listener:
        assert await shown(listener, "connect-words") == connect
        assert await listener.page.evaluate("document.documentElement.lang") == {"fr": "en"}.get(locale[:2], locale[:2])


async def test_another_language_can_be_chosen_within_a_call_and_is_remembered(listener: Listener) -> None:
    await listener.connect()
    await listener.page.select_option("#language", "de")
    assert await shown(listener, "status") == "Verbunden und bereit"
    assert await shown(listener, "connect-words") == "Auflegen"
    await listener.speak("   ")
    await listener.page.wait_for_selector("#problem:visible")
    assert (await shown(listener, "problem-what")).startswith("Das ging nicht. (")
    await listener.page.reload()
    assert await shown(listener, "connect-words") == "Verbinden"


@pytest.mark.parametrize("locale", ["de-DE", "ja-JP"])
async def test_no_language_is_too_long_for_a_small_screen(browser: Browser, show: Served, locale: str) -> None:
    async with tab(browser, show.url, locale=locale, viewport={"width": 360, "height": 740}) as listener:
        await listener.connect()
        await listener.page.wait_for_selector("#demo:visible")
        await listener.page.click("summary")
        assert await listener.page.evaluate("document.documentElement.scrollWidth") == 360


# ---- weight -------------------------------------------------------------------------------------------------------


async def test_the_page_is_light_and_asks_nobody_else(browser: Browser, server: Served) -> None:
    sizes: dict[str, int] = {}

    async with tab(browser, server.url) as listener:
        listener.page.on("response", lambda response: sizes.__setitem__(response.url, -1))
        await listener.page.reload(wait_until="networkidle")
        for url in sizes:
            sizes[url] = await listener.page.evaluate(
                "async (url) => (await (await fetch(url, { cache: 'no-store' })).arrayBuffer()).byteLength", url
            )
    assert all(url.startswith(server.url) for url in sizes)
    assert 30_000 < sum(sizes.values()) <= MAX_PAGE_BYTES


async def test_it_lives_within_its_own_content_security_policy(browser: Browser, server: Served) -> None:
    """Every other test sets that aside for its probe."""
    context = await browser.new_context()
    try:
        page = await context.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        await page.goto(server.url)
        await page.click("#speak")
        await page.wait_for_selector("#waterfall > li", timeout=30_000)
        assert await page.locator("#waterfall .track").evaluate("({ style }) => style.width") == "100%"
        assert said == []
    finally:
        await context.close()


# ---- the microphone -----------------------------------------------------------------------------------------------


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


async def test_a_microphone_that_is_denied_is_no_fault(server: Served) -> None:
    async with refusing(server.url) as listener:
        await listener.page.wait_for_selector("#microphone:checked")  # there is one, so it is asked for
        await listener.connect()
        assert "blocked for this page. You can listen and type" in await shown(listener, "hint")
        assert not await listener.page.is_visible("#problem")
        assert await shown(listener, "status") == "Connected, ready to speak"
        await listener.speak(SENTENCE)
        await listener.until_speaking()
        await listener.page.click("#hint-close")
        assert not await listener.page.is_visible("#hint")


async def test_push_to_talk_and_mute_and_devices(server: Served, tmp_path: Path) -> None:
    live = "probe.peer.getSenders()[0].track.enabled"
    async with (
        chromium(microphone=write(tmp_path / "quiet.wav", noise(0.1))) as browser,
        tab(browser, server.url) as listener,
    ):
        await listener.page.wait_for_selector("#microphone:checked")
        await listener.connect()
        page = listener.page
        constraints = await page.evaluate("probe.peer.getSenders()[0].track.getConstraints()")
        assert constraints["echoCancellation"] is True
        assert await shown(listener, "status") == "Listening: say something"
        await page.click("#mute")
        assert not await page.evaluate(live)
        assert await shown(listener, "status") == "Connected, your microphone is muted"
        await page.click("#mute")
        assert await page.evaluate(live)

        await page.check("#push")
        assert not await page.evaluate(live)
        await page.focus("#connect")  # which the space bar must not press now
        await page.keyboard.down("Space")
        assert await page.evaluate(live)
        await page.keyboard.up("Space")
        assert not await page.evaluate(live)
        assert await shown(listener, "connect-words") == "Hang up"
        await page.focus("#text")
        await page.keyboard.press("End")
        await page.keyboard.down("Space")
        assert not await page.evaluate(live), "here it writes"
        await page.keyboard.up("Space")
        assert (await page.input_value("#text")).endswith(" ")
        box = await page.locator("#hold").bounding_box()
        assert box is not None
        await page.mouse.move(box["x"] + 5, box["y"] + 5)
        await page.mouse.down()
        assert await page.evaluate(live)
        await page.mouse.up()
        assert not await page.evaluate(live)
        await page.uncheck("#push")
        assert await page.evaluate(live)

        before = await page.evaluate("probe.peer.getSenders()[0].track.id")
        await page.click("summary")
        names = await page.locator("#input option").all_inner_texts()
        assert names[0] == "The system's choice" and len(names) > 1
        await page.select_option("#input", index=1)
        await page.wait_for_function(f"probe.peer.getSenders()[0].track.id !== '{before}'")
        assert await page.evaluate(live)


# ---- voice --------------------------------------------------------------------------------------------------------


async def test_seed_and_temperature_are_asked_for_only_where_they_differ(listener: Listener) -> None:
    sent = """() => {
      const send = RTCDataChannel.prototype.send;
      globalThis.sent = [];
      RTCDataChannel.prototype.send = function (data) { sent.push(JSON.parse(data)); send.call(this, data); };
    }"""
    await listener.page.evaluate(sent)
    await listener.connect()
    await listener.page.click("summary")
    assert not await listener.page.is_visible("#instruction"), "this voice takes none"
    await listener.speak(SENTENCE)
    await listener.page.fill("#seed", "7")
    await listener.page.fill("#temperature", "0.5")
    await listener.speak(SENTENCE)
    first, second = await listener.page.evaluate("sent.filter(({ type }) => type === 'speak')")
    assert first == {"type": "speak", "id": "u1", "text": SENTENCE}
    assert second == {"type": "speak", "id": "u2", "text": SENTENCE, "seed": 7, "temperature": 0.5}
    await listener.page.fill("#speaker", "nobody")
    await listener.speak(SENTENCE)
    await listener.page.wait_for_selector("#problem:visible")
    assert "Speaker must be one of" in await shown(listener, "problem-what")


# ---- a server that goes and comes back ------------------------------------------------------------------------------


async def test_after_a_restart_of_the_server_the_call_comes_back(browser: Browser) -> None:
    with serve("--device", "cpu") as first:
        port = first.url.rsplit(":", 1)[1]
        async with tab(browser, first.url) as listener:
            await listener.connect()
            await listener.speak(LONG)
            await listener.until_speaking()
            first.process.kill()
            await listener.page.wait_for_selector("#status[data-state=lost]", timeout=20_000)
            assert "comes back by itself" in await shown(listener, "problem-advice")
            assert await shown(listener, "status") == "Connection lost, trying again…"
            with serve("--device", "cpu", "--port", port):
                await listener.page.wait_for_selector("#status[data-phase=ready]", timeout=30_000)
                assert "this is a new call" in await shown(listener, "hint")
                assert not await listener.page.is_visible("#problem")
                await listener.speak(SENTENCE)
                await listener.until_speaking()
                await asyncio.sleep(0.7)  # of speech: nothing tells how much was heard in this page
                heard = await listener.gather()
                assert heard.voiced_seconds(heard.clicked_at("speak")) > 0.1, "it is heard again, without another click"


async def test_who_gives_up_is_not_called_again(browser: Browser) -> None:
    with serve("--device", "cpu") as first:
        async with tab(browser, first.url) as listener:
            await listener.connect()
            first.process.kill()
            await listener.page.wait_for_selector("#give-up:visible", timeout=20_000)
            await listener.page.click("#give-up")
            assert await shown(listener, "status") == "Not connected"
            asked: list[str] = []
            listener.page.on("request", lambda request: asked.append(request.url))
            await listener.page.wait_for_timeout(1500)  # in which it would have asked
            assert asked == []
