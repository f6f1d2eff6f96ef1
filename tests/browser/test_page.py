"""The page in a real Chromium against the real server and the embedded voice: what a newcomer sees and hears.

Times are bounded only where another length would mean other words; how fast it is, `breezert bench browser` says.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image
from states import arrive

from agent.bench_browser import stop_ms
from agent.browser import BrowserError, Listener, Served, chromium, serve, tab
from agent.protocol import MAX_MESSAGE_BYTES

if TYPE_CHECKING:
    from playwright.async_api import Browser, Route

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

SHORT = "And this comes after it."
SENTENCE = "Please hold the line while I look that up for you."
LONG = "The train to the coast leaves from platform nine in about twelve minutes, and it stops at every station."
MIN_WORD, MAX_WORD = 0.12, 0.7
"""Seconds: English is spoken at two to five words a second."""


def words(text: str) -> int:
    return len(text.split())


async def shown(listener: Listener, what: str) -> str:
    return await listener.page.inner_text(f"#{what}")


async def states(listener: Listener) -> list[str]:
    """Of the utterances, the oldest first."""
    rows = await listener.page.locator("#utterances li").all()
    return [str(await row.get_attribute("data-state")) for row in reversed(rows)]


async def test_speak_is_heard_and_measured(listener: Listener) -> None:
    assert await shown(listener, "status") == "Not connected"
    await listener.connect()
    assert "apache-2.0" in (await shown(listener, "voice")).lower()
    assert not await listener.page.is_visible("#restricted")
    await listener.speak(SENTENCE)
    await listener.until_speaking()
    assert await shown(listener, "status") == "Speaking"
    await listener.until_silent()
    heard = await listener.gather()
    [started], [stopped] = heard.of_type("speech.started"), heard.of_type("speech.stopped")
    assert stopped["reason"] == "end"

    assert not len(heard.loud_at(0, heard.clicked_at("speak")))
    assert max(peak for _, peak in heard.peaks) > 0.05
    voiced = heard.voiced_seconds(heard.clicked_at("speak"))
    assert MIN_WORD < voiced / words(SENTENCE) < MAX_WORD
    assert 0.4 * stopped["heard_ms"] < 1000 * voiced < stopped["heard_ms"] + 100

    assert await shown(listener, "ttfa") == f"{round(started['ttfa_ms'])} ms"
    assert re.fullmatch(r"\d+ ms", await shown(listener, "first-sound"))
    assert re.fullmatch(r"\d+ ms", await shown(listener, "delay"))
    assert await shown(listener, "buffered") == "0 ms"
    assert await shown(listener, "heard") == f"{stopped['heard_ms'] / 1000:.1f} s"
    assert await shown(listener, "underruns") == str(stopped.get("underruns", 0))
    assert max(message["buffered_ms"] for message in heard.of_type("view")) > 0


async def test_underruns_are_shown(listener: Listener) -> None:
    await listener.connect()
    await arrive(listener, type="speech.started", id="x", ttfa_ms=1)
    await arrive(listener, type="speech.underrun", id="x", heard_ms=400, missed_ms=60, underruns=3)
    assert await shown(listener, "underruns") == "3"


async def test_a_busy_server_is_said_in_plain_words(browser: Browser, server: Served) -> None:
    async with tab(browser, server.url) as listener:

        async def refuse(route: Route) -> None:
            body = {"error": {"code": "busy", "message": "all voices are busy"}}
            await route.fulfill(status=503, headers={"Retry-After": "3"}, json=body)

        await listener.page.route("**/offer", refuse, times=1)
        with pytest.raises(BrowserError, match=r"^All voices are busy\. Try again in 3\ss\."):
            await listener.connect()
        await listener.connect()
        await arrive(listener, type="speech.queued", id="x", wait_ms=1250)
        assert re.fullmatch(r"All voices are busy: about 2\ss to wait", await shown(listener, "status"))
        assert await states(listener) == ["waiting"]
        await arrive(listener, type="speech.started", id="x", ttfa_ms=1300)
        assert await shown(listener, "status") == "Speaking"
        await arrive(listener, type="speech.stopped", id="x", reason="end", heard_ms=400, sent_ms=400)
        await arrive(listener, type="speech.queued", id="y", wait_ms=100)
        await arrive(listener, type="error", id="y", code="busy", message="all voices are busy", retry_after_ms=2500)
        await arrive(listener, type="speech.stopped", id="y", reason="failed", heard_ms=0, sent_ms=0)
        assert await shown(listener, "status") == "Connected, ready to speak"
        assert re.match(r"All voices are busy\. Try again in about 3\ss\.", await shown(listener, "problem"))
        assert await listener.page.inner_text("#utterances li .state >> nth=0") == "not said"


async def test_a_licence_that_restricts_is_shown(listener: Listener) -> None:
    await listener.connect()
    created = (await listener.gather()).of_type("session.created")[0] | {"licence": "Research and non-commercial use"}
    await arrive(listener, **created)
    assert "Non-commercial use only" in await shown(listener, "restricted")


async def test_one_press_connects_and_speaks(listener: Listener) -> None:
    assert await shown(listener, "speak") == "Connect and speak"
    await listener.page.click("#speak")
    await listener.until_speaking()
    await listener.page.wait_for_timeout(1000)  # of speech
    heard = await listener.gather()
    assert heard.voiced_seconds(heard.clicked_at("speak")) > 0.3


async def test_stop_silences(listener: Listener, record_property: Callable[[str, object], None]) -> None:
    await listener.connect()
    await listener.speak(LONG)
    await listener.speak(SENTENCE)
    await listener.until_speaking()
    await listener.page.wait_for_timeout(1200)  # into the middle of the speech
    await listener.stop()
    await listener.until_silent()
    heard = await listener.gather()
    record_property("stop_ms", stop_ms(heard))  # recorded, not judged: None if the click fell into a pause
    clicked_at = heard.clicked_at("stop")
    assert len(heard.loud_at(heard.clicked_at("speak"), clicked_at))
    assert not len(heard.loud_at(clicked_at + 500))  # far beyond what a jitter buffer holds
    assert [message["reason"] for message in heard.of_type("speech.stopped")] == ["cancelled", "cancelled"]
    assert await states(listener) == ["over", "over"]


async def test_speak_after_stop_says_only_the_new_words(listener: Listener) -> None:
    await listener.connect()
    await listener.speak(LONG)
    await listener.until_speaking()
    await listener.stop()
    await listener.until_silent()
    await listener.speak(SHORT)
    await listener.until_silent()
    heard = await listener.gather()
    ends = {message["id"]: message["reason"] for message in heard.of_type("speech.stopped")}
    assert ends == {"u1": "cancelled", "u2": "end"}
    assert MIN_WORD < heard.voiced_seconds(heard.clicked_at("speak")) / words(SHORT) < MAX_WORD


async def test_a_second_speak_is_said_after_the_first(listener: Listener) -> None:
    await listener.connect()
    await listener.speak("This is the first sentence.")
    await listener.speak(SHORT)
    await listener.until_speaking()
    assert await states(listener) == ["speaking", "waiting"]
    assert await shown(listener, "status") == "Speaking, 1 more waiting"
    await listener.until_silent()
    heard = await listener.gather()
    order = [(m["type"], m["id"]) for m in heard.messages if m["type"] in ("speech.started", "speech.stopped")]
    assert order == [(f"speech.{what}", which) for which in ("u1", "u2") for what in ("started", "stopped")]
    assert all(message["reason"] == "end" for message in heard.of_type("speech.stopped"))


BAD_MESSAGES = (
    "{oops",
    "[]",
    '{"type":"dance"}',
    '{"type":"speak","id":"x"}',
    '{"type":"stop","why":1}',
    "x" * (MAX_MESSAGE_BYTES + 1),
)


async def test_bad_messages_are_answered_and_the_call_goes_on(listener: Listener) -> None:
    await listener.connect()
    for message in BAD_MESSAGES:
        await listener.page.evaluate("(text) => probe.channel.send(text)", message)
        await listener.page.wait_for_selector("#problem:visible")
        assert len(await shown(listener, "problem-what")) > 10
        await listener.page.click("#problem-close")
        assert not await listener.page.is_visible("#problem")
    await listener.speak(SHORT)
    await listener.until_speaking()
    heard = await listener.gather()
    assert [error["code"] for error in heard.of_type("error")] == ["bad_request"] * len(BAD_MESSAGES)


async def test_text_without_words_is_refused_in_plain_words(listener: Listener) -> None:
    await listener.connect()
    await listener.speak("   ")
    await listener.page.wait_for_selector("#problem:visible")
    assert await states(listener) == ["failed"]
    assert await shown(listener, "status") == "Connected, ready to speak"


async def test_keys(listener: Listener) -> None:
    await listener.page.fill("#text", LONG)
    await listener.page.press("#text", "Control+Enter")
    await listener.until_speaking()
    await listener.page.press("#text", "Escape")
    await listener.until_silent()
    assert await states(listener) == ["over"]


async def test_refused_play_offers_a_button(browser: Browser, server: Served) -> None:
    async with tab(browser, server.url) as listener:
        await listener.page.evaluate("""() => {
          const play = HTMLMediaElement.prototype.play;
          const again = () => (HTMLMediaElement.prototype.play = play);
          document.getElementById("play").addEventListener("click", again, true);
          HTMLMediaElement.prototype.play = function () {
            return Promise.reject(new DOMException("not allowed", "NotAllowedError"));
          };
        }""")
        await listener.connect()
        await listener.page.click("#play")
        await listener.page.wait_for_selector("#refused", state="hidden")
        await listener.page.wait_for_function("!document.getElementById('sound').paused")


async def test_a_guarded_server_asks_for_its_token_and_its_end_is_said(browser: Browser) -> None:
    with serve("--device", "cpu", "--token", "open-sesame") as guarded:
        async with tab(browser, guarded.url) as listener:
            await listener.page.click("#connect")
            await listener.page.fill("#token", "wrong")
            await listener.page.press("#token", "Enter")
            await listener.page.wait_for_selector("#problem:visible")
            await listener.page.fill("#token", "open-sesame")
            await listener.page.click("#token-form button")
            await listener.page.wait_for_selector("#status[data-phase=ready]")
        async with tab(browser, f"{guarded.url}#token=open-sesame") as listener:
            everything = await listener.page.evaluate("location.href + document.documentElement.outerHTML")
            assert "open-sesame" not in everything
            await listener.connect()
            guarded.end()
            await listener.page.wait_for_selector("#problem:visible", timeout=15_000)
            assert "server" in await shown(listener, "problem-what")
            await listener.page.click("#connect")
            await listener.page.wait_for_selector("#status[data-phase=idle]")
            assert "breezert serve" in await shown(listener, "problem-advice")
        assert "open-sesame" not in guarded.log.read_text()


# ---- nothing is left behind ---------------------------------------------------------------------------------------


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def threads_and_memory(pid: int) -> tuple[int, float]:
    """Threads, and resident memory in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    number = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+)", status, re.MULTILINE)}
    return number["Threads"], number["VmRSS"] / 1024


async def heap(listener: Listener) -> float:
    """The page's JavaScript heap after a collection, in MiB."""
    session = await listener.page.context.new_cdp_session(listener.page)
    await session.send("HeapProfiler.collectGarbage")
    usage = await session.send("Runtime.getHeapUsage")
    await session.detach()
    return float(usage["usedSize"]) / 2**20


async def settled(listener: Listener, server: Served) -> tuple[int, int, float, float]:
    """(descriptors, threads, server's MiB, page's MiB) once the server has no call."""
    for _ in range(50):
        if not await listener.metric("breezert_peers"):
            break
        await listener.page.wait_for_timeout(100)
    assert await listener.metric("breezert_peers") == 0
    await listener.gather()
    return descriptors(server.process.pid), *threads_and_memory(server.process.pid), await heap(listener)


async def test_fifty_calls_leave_nothing_behind(listener: Listener, server: Served) -> None:
    for _ in range(10):  # what is allocated once is there
        await listener.connect()
        await listener.hang_up()
    before = await settled(listener, server)
    for _ in range(50):
        await listener.connect()
        await listener.hang_up()
    after = await settled(listener, server)
    assert after[0] <= before[0] + 2  # descriptors
    assert after[1] < before[1] + 25  # threads: an encoder has some, and ended calls wait for Python's collector
    assert after[2] < before[2] + 15  # MiB of the server
    assert after[3] < before[3] + 2  # MiB of the page


async def test_a_closed_tab_hangs_up(browser: Browser, server: Served, listener: Listener) -> None:
    async with tab(browser, server.url) as leaving:
        await leaving.connect()
        await leaving.speak(LONG)
        await leaving.until_speaking()
        assert await listener.metric("breezert_peers") == 1
        await leaving.page.goto("about:blank")
        await settled(listener, server)
        assert await listener.metric("breezert_engine_open_requests") == 0


async def test_a_killed_browser_is_noticed_within_its_ping_s_limit(server: Served, listener: Listener) -> None:
    """It dies right after it began to listen, and says no goodbye."""
    from playwright.async_api import Error

    with contextlib.suppress(BrowserError, Error):  # what playwright says of a browser that is dead
        async with chromium() as doomed, tab(doomed, server.url) as leaving:
            await leaving.connect()
            await leaving.speak(LONG)
            await leaving.until_speaking()
            session = await doomed.new_browser_cdp_session()
            processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
            (main,) = [process["id"] for process in processes if process["type"] == "browser"]
            assert await listener.metric("breezert_peers") == 1
            os.kill(main, signal.SIGKILL)
    for _ in range(70):  # 5 s with our ping; without it the server would wait for 9.5 s
        if not await listener.metric("breezert_peers"):
            break
        await listener.page.wait_for_timeout(100)
    assert await listener.metric("breezert_peers") == 0
    assert await listener.metric("breezert_engine_open_requests") == 0


# ---- how it looks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 360])
async def test_it_fits(browser: Browser, server: Served, tmp_path: Path, width: int, scheme: str) -> None:
    viewport = {"width": width, "height": 900}
    async with tab(browser, server.url, viewport=viewport, color_scheme=scheme) as listener:
        await listener.connect()
        await listener.speak(SENTENCE)
        await listener.until_speaking()
        await listener.page.wait_for_timeout(800)  # for a meter with something in it
        picture = tmp_path / f"page-{width}-{scheme}.png"
        await listener.page.screenshot(path=picture, full_page=True)
        assert await listener.page.evaluate("document.documentElement.scrollWidth") == width
    with Image.open(picture) as image:
        assert image.width == width
        corner = np.asarray(image.convert("L"))[1, 1]
    assert (corner < 128) == (scheme == "dark")


async def test_every_control_has_a_name_and_a_place_in_the_tab_order(listener: Listener) -> None:
    await listener.connect()
    named = await listener.page.evaluate("""() =>
      [...document.querySelectorAll("button, input, select, textarea, [role=img], [tabindex]")]
        .filter((element) => !(element.textContent.trim() || element.labels?.length || element.ariaLabel
          || element.getAttribute("aria-labelledby")))
        .map((element) => element.outerHTML)""")
    assert named == []
    reached = []
    for _ in range(3):  # from the connect button, which was just pressed
        await listener.page.keyboard.press("Tab")
        reached.append(await listener.page.evaluate("document.activeElement.id"))
    assert reached == ["push", "text", "speak"]
