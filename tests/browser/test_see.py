"""What the page shows of the server's work in a real Chromium: the timeline, the waterfall, and what is for show only.

The pictures' model is tested on literal views as well: that is arithmetic, and nothing of it is measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from conftest import require_browser
from states import SENT, WRITTEN, arrive
from test_manners import MIN_CONTRAST, contrast

from agent import bench_policies
from agent.bench_page import drawing, weighed
from agent.bench_policies import compared
from agent.browser import Listener, Served, serve, tab
from agent.demo import POLICIES
from agent.page import FOLDER
from agent.protocol import Stats
from engine.__main__ import main as command

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

SENTENCE = "Please hold the line while I look that up for you."
LONG = "The train to the coast leaves from platform nine in about twelve minutes, and it stops at every station."
STAGES = {"text", "prefill", "decode", "depth", "codec"}
SCHEMES: tuple[Literal["light"], Literal["dark"]] = "light", "dark"


@pytest.fixture(scope="module")
def show() -> Iterator[Served]:
    """A server that was started for show."""
    require_browser()
    with serve("--device", "cpu", "--demo") as served:
        yield served


INK = """(name) => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d");
  canvas.fillStyle = getComputedStyle(document.getElementById("timeline")).getPropertyValue(`--${name}`);
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data.subarray(0, 3)];
}"""
"""A colour of the timeline."""


async def inked(listener: Listener, top: int, height: int, colour: str = "") -> int:
    """How many pixels of the timeline's tiles, between these heights, have this colour, or one at all: grey is the
    grid."""
    count: int = await listener.page.evaluate(
        """([top, height, ink]) => [...document.querySelectorAll(".strip canvas")].reduce((sum, canvas) => {
          const copy = new OffscreenCanvas(canvas.width, height).getContext("2d", { willReadFrequently: true });
          copy.drawImage(canvas, 0, -top);
          const { data } = copy.getImageData(0, 0, canvas.width, height);
          for (let at = 0; at < data.length; at += 4) {
            const colour = data.subarray(at, at + 3);
            const near = (each, index) => Math.abs(each - colour[index]) < 8;
            const fits = ink ? ink.every(near) : Math.max(...colour) - Math.min(...colour) > 40;
            sum += data[at + 3] > 150 && fits;
          }
          return sum;
        }, 0)""",
        [top, height, await listener.page.evaluate(INK, colour) if colour else None],
    )
    return count


async def lanes(listener: Listener) -> dict[str, dict[str, int]]:
    tops: dict[str, dict[str, int]] = await listener.page.evaluate("async () => (await import('./painter.js')).LANES")
    return tops


# ---- in a call ----------------------------------------------------------------------------------------------------


async def test_a_call_shows_what_was_made_and_what_the_engine_did(listener: Listener) -> None:
    assert await listener.page.is_visible("#example")
    await listener.connect()
    assert not await listener.page.is_visible("#example")
    where = await lanes(listener)
    await listener.page.wait_for_function("probe.messages.filter(({ type }) => type === 'view').length > 2")
    assert not any([await inked(listener, **where[lane]) for lane in ("made", "played", "engine")]), (
        "the example is gone"
    )
    await listener.speak(SENTENCE)
    await listener.page.wait_for_selector("[data-reading=depth] >> text=×1")
    await listener.until_silent()
    heard = await listener.gather()
    views = heard.of_type("view")
    chunks = [chunk for view in views for chunk in view.get("chunks", [])]
    steps = [step for view in views for step in view.get("steps", [])]
    assert {chunk[0] for chunk in chunks} == {"u1"}
    assert chunks[0][2] == 1, "the first piece is the smallest"
    assert {step[0] for step in steps} == STAGES
    (stopped,) = heard.of_type("speech.stopped")
    assert 80 * sum(chunk[2] for chunk in chunks) == pytest.approx(stopped["heard_ms"], abs=80)
    for lane in ("made", "played", "ahead", "engine"):
        assert await inked(listener, **where[lane]) > 100, lane
    assert views[-1]["at"] > views[0]["at"]
    assert len(views) <= 6 * (views[-1]["at"] - views[0]["at"]) / 1000 + 2, "about five a second"


async def test_each_reply_adds_a_waterfall_with_the_network_around_it(listener: Listener) -> None:
    """What is spoken at once, and what answers: the listener's own parts come as soon as the browser has measured."""
    page = listener.page
    await page.click("#speak")  # connects, so that nothing is measured yet
    await page.wait_for_selector("#waterfall > li")
    await listener.stop()
    await listener.until_silent()
    await page.fill("#text", "Good morning.")
    await page.click("#say")
    await page.wait_for_selector("#waterfall > li >> nth=1")
    both = page.locator("#waterfall > li:has([data-part=network]):has([data-part=jitter])")
    await both.nth(1).wait_for()
    told = (await listener.gather()).of_type("speech.waterfall")
    assert [each["id"] for each in told] == ["u1", "reply1.1"]
    for row, own in zip(await both.all(), reversed(told), strict=True):
        words = {
            word.rsplit(" ", 2)[0]: word.rsplit(" ", 2)[1:] for word in await row.locator("ul li").all_inner_texts()
        }
        assert {"network", "text", "prefill", "depth", "codec", "playout", "jitter buffer"} <= words.keys()
        assert words["codec"][1] == "ms" and float(words["codec"][0]) == pytest.approx(own["codec_ms"], abs=0.5)
        total = int((await row.locator("strong").inner_text()).split()[0])
        added = sum(float(words[part][0]) for part in ("network", "jitter buffer"))
        assert total == pytest.approx(sum(ms for name, ms in own.items() if name.endswith("_ms")) + added, abs=2)


async def test_an_interruption_is_a_cut_with_its_milliseconds(listener: Listener) -> None:
    await listener.connect()
    await listener.speak(LONG)
    await listener.until_speaking()
    await listener.page.wait_for_function(
        "(({ heard_ms: heard, buffered_ms: ready }) => heard > 1000 && ready > 300)"
        "(probe.messages.findLast(({ type }) => type === 'view'))"
    )
    await listener.stop()
    await listener.until_silent()
    heard = await listener.gather()
    (stopped,) = heard.of_type("speech.stopped")
    assert stopped["reason"] == "cancelled"
    await listener.page.wait_for_selector("#status[data-state=ready]")
    (silenced,) = heard.of_type("speech.silenced")
    took = int((await listener.page.inner_text("#stopped")).removesuffix(" ms"))
    assert took == pytest.approx(silenced["flush_ms"] + silenced["wire_ms"], abs=0.51)
    text = listener.page.locator("#utterances .text")
    said, struck = await text.locator(".heard").inner_text(), await text.locator(".unheard").inner_text()
    assert said.strip() == stopped["heard"].strip() != ""
    assert LONG.startswith(said) and struck
    assert await text.locator(".unheard").evaluate("(it) => getComputedStyle(it).textDecorationLine") == "line-through"


DELAYS = """() => sent.filter(({ type }) => type === "stats").map((each, index, all) => {
  const grown = (name) => each[name] - (all[index - 1]?.[name] ?? 0);
  return (1000 * grown("jitter_buffer_delay")) / grown("jitter_buffer_emitted_count");
}).filter(Number.isFinite)"""
"""Of the jitter buffer in each second, in ms, from the totals that were sent."""


async def test_the_listeners_own_statistics_are_plotted_and_sent(listener: Listener) -> None:
    await listener.page.evaluate(SENT)
    await listener.connect()
    await listener.page.wait_for_function("document.querySelector('#line-delay polyline').points.numberOfItems > 2")
    await listener.page.wait_for_function("sent.some(({ round_trip_time: trip }) => trip > 0)")
    last = (await listener.page.evaluate("sent.filter(({ round_trip_time: trip }) => trip > 0)"))[-1]
    assert last.keys() - {"type"} == set(Stats.__struct_fields__), "everything that the server takes"
    assert last["total_samples_received"] > 0 and last["jitter_buffer_emitted_count"] > 0
    points = await listener.page.locator(".lines polyline").evaluate_all(
        "(all) => all.map(({ points }) => [...points].map(({ x, y }) => [x, y]))"
    )
    assert len(points) == 4
    for line in points:
        assert len(line) > 2 and line[-1][0] == 120, "the newest stands at the right end"
        assert all(0 <= y <= 32 for _, y in line)
    delays = await listener.page.evaluate(DELAYS)
    assert float((await listener.page.inner_text("#delay")).split()[0]) in [pytest.approx(ms, abs=0.6) for ms in delays]
    assert {"type": "watch", "on": True} in await listener.page.evaluate("sent")
    assert "ms" in await listener.page.inner_text("#trip")
    assert "Round trip: now" in str(await listener.page.get_attribute("#line-trip .plot", "aria-label"))


UNSHOWN = """() => {
  const send = RTCDataChannel.prototype.send;
  RTCDataChannel.prototype.send = function (data) { if (!data.includes('"watch"')) send.call(this, data); };
}"""
"""Keeps the server from showing anything: a test does that."""
PLACES = """() => {
  globalThis.tile ??= document.querySelector(".strip").lastChild;
  const all = [tile, ...document.querySelectorAll(".pin, .spare")];
  const [left, pin, spare] = all.map((each) => each.getBoundingClientRect());
  return { tile: left.x, pin: pin.x, spare: spare.x, width: spare.width };
}"""


async def test_the_picture_shows_what_the_server_tells(listener: Listener) -> None:
    """On literal views: 20 s and what is to come, where deadline and slack stand, batches, others, a stutter, a cut."""
    page = listener.page
    await page.evaluate(WRITTEN)
    await page.evaluate(UNSHOWN)
    await listener.connect()

    async def show(at: float, buffered: float, slack: float, **more: Any) -> dict[str, float]:
        chunks = [["u1", at, 4, slack]]
        await arrive(listener, type="view", at=at, heard_ms=0, buffered_ms=buffered, chunks=chunks, **more)
        await page.wait_for_selector(".strip canvas")
        found: dict[str, float] = await page.evaluate(PLACES)
        return found

    first = await show(50_000, 1000, 300)
    left, across, now, tile = await page.evaluate(
        """() => {
          const { left, width } = document.querySelector("#timeline .glass").getBoundingClientRect();
          const now = document.querySelector("#timeline .now").getBoundingClientRect().left;
          return [left, width, now, document.querySelector(".strip canvas").clientWidth];
        }"""
    )
    scale = tile / 5000
    assert (now - left) / scale == pytest.approx(20_000, rel=0.01)
    assert across / scale == pytest.approx(24_500, rel=0.01)
    assert first["width"] == pytest.approx(300 * scale, abs=1)
    assert first["spare"] + first["width"] == pytest.approx(first["pin"], abs=2)

    steps = [["depth", 50_100, 20, 4, 1], ["codec", 50_130, 20, 16, 0]]
    second = await show(50_200, 2000, -40, steps=steps, peers=[[7, 1500, 1], [9, 800, 2]], calls=41)
    moved = (second["pin"] - second["tile"]) - (first["pin"] - first["tile"])
    assert moved == pytest.approx(1200 * scale, abs=2), "the deadline is 1.2 s later, whatever has glided meanwhile"
    assert await page.get_attribute(".spare", "data-late") is not None
    assert await page.inner_text("[data-reading=ready]") == "2000 ms ahead, the next piece 40 ms late"
    for stage, words in (("depth", "×4"), ("codec", "×16"), ("text", "")):
        assert await page.inner_text(f"[data-reading={stage}]") == words
    assert await page.inner_text("[data-reading=calls]") == "41", "more than there are lanes"
    where = await lanes(listener)
    assert await inked(listener, **where["peers"]) > 20
    assert not await inked(listener, **where["played"], colour="stutter")
    await arrive(listener, type="speech.started", id="u1", ttfa_ms=1)
    await arrive(listener, type="speech.underrun", id="u1", heard_ms=400, missed_ms=120, underruns=1)
    for lane in ("played", "ahead"):
        assert await inked(listener, **where[lane], colour="stutter") > 50, lane
    assert not await inked(listener, **where["arrows"], colour="cut")
    await arrive(listener, type="speech.silenced", flush_ms=6, wire_ms=40)
    assert await inked(listener, **where["arrows"], colour="cut") > 10, "it begins above what it cuts"
    assert "silent in 46 ms" in await page.evaluate("written")
    assert await page.inner_text("#stopped") == "46 ms"
    await page.wait_for_function(
        "document.getElementById('summary').textContent.includes('1 stutters, 41 other calls')"
    )


async def test_a_stutter_is_red(listener: Listener) -> None:
    for scheme in SCHEMES:
        await listener.page.emulate_media(color_scheme=scheme)
        red, green, blue = await listener.page.evaluate(INK, "stutter")
        assert red > 200 and red > 2 * max(green, blue) - 20, scheme


MIN_SHAPE_CONTRAST = 3
"""Of what is no text, AA: https://www.w3.org/TR/WCAG22/#non-text-contrast"""


async def test_what_is_written_and_drawn_on_the_timeline_can_be_read(listener: Listener) -> None:
    for scheme in SCHEMES:
        await listener.page.emulate_media(color_scheme=scheme)
        names = ("played", "on-played", "ready", "on-ready", "cut", "field", "made", "stutter", "lost")
        ink = {name: await listener.page.evaluate(INK, name) for name in names}
        for words, ground in (("on-played", "played"), ("on-ready", "ready"), ("cut", "field")):
            assert contrast(ink[words], ink[ground]) >= MIN_CONTRAST, f"{words}, {scheme}"
        for shape in ("played", "made", "stutter", "lost"):  # what is ready has the outline of what is played
            assert contrast(ink[shape], ink["field"]) >= MIN_SHAPE_CONTRAST, f"{shape}, {scheme}"


async def test_no_veil_lies_over_the_numbers_of_what_is_ready(listener: Listener) -> None:
    top, height = (await lanes(listener))["played"].values()
    veil = await listener.page.evaluate("getComputedStyle(document.querySelector('.veil')).backgroundImage")
    assert f"rgba(0, 0, 0, 0) {top}px, rgba(0, 0, 0, 0) {top + height}px" in veil


@pytest.mark.parametrize("over", [30.0, 60.0])
async def test_the_words_of_a_cut_are_whole_on_whichever_tiles_they_lie(listener: Listener, over: float) -> None:
    """`over`: so many pixels of them lie on the second, before views go on as they do after a cut."""
    page = listener.page
    await page.evaluate(UNSHOWN)
    await listener.connect()
    rows = {"top": 88, "height": 15}

    async def cut(at: float) -> int:
        await arrive(listener, type="view", at=at, heard_ms=0, buffered_ms=0)
        await page.wait_for_selector(".strip canvas")
        await arrive(listener, type="speech.silenced", flush_ms=6, wire_ms=40)
        for later in range(200, 3000, 200):
            await arrive(listener, type="view", at=at + later, heard_ms=0, buffered_ms=0)
        seen = [-1, 0]
        while seen[-1] != seen[-2] or not seen[-1]:  # until it is painted, which happens when the browser has time
            assert len(seen) < 100, seen
            await page.wait_for_timeout(100)
            seen.append(await inked(listener, **rows, colour="cut"))
        return seen[-1]

    tile = await page.evaluate("document.querySelector('#timeline').clientWidth * 5 / 24.5")
    wide = await page.evaluate(
        """() => {
          const paint = new OffscreenCanvas(1, 1).getContext("2d");
          paint.font = "600 12px system-ui, sans-serif";
          return 5 + paint.measureText("silent in 46 ms").width;
        }"""
    )
    whole = await cut(1_001_000)
    assert whole > 100
    await listener.hang_up()
    await listener.connect()
    assert await cut(1_005_000 - 5_000 * (wide - over) / tile) == pytest.approx(whole, rel=0.2)


async def test_the_picture_can_be_held(listener: Listener) -> None:
    shift = "getComputedStyle(document.querySelector('.strip')).transform"
    await listener.connect()
    await listener.page.wait_for_selector(".strip canvas")
    first = await listener.page.evaluate(shift)
    await listener.page.wait_for_function(f"{shift} !== {json.dumps(first)}")
    await listener.page.click("#freeze")
    assert await listener.page.get_attribute("#freeze", "aria-pressed") == "true"
    held = await listener.page.evaluate(shift)
    await listener.page.wait_for_timeout(400)  # in which it would move by 15 pixels
    assert await listener.page.evaluate(shift) == held
    assert await listener.page.evaluate(GLIDES) == 0
    await listener.page.click("#freeze")
    await listener.page.wait_for_function(f"{shift} !== {json.dumps(held)}")


GLIDES = "document.getAnimations().filter(({ effect }) => effect.target.matches('.strip, .pins')).length"


TILE = """() => {
  globalThis.tile ??= document.querySelector(".strip").lastChild;
  return [document.timeline.currentTime, tile.getBoundingClientRect().left, tile.clientWidth / 5000];
}"""
"""The instant, where a tile is then, and pixels of a ms."""


async def test_the_tiles_glide_as_fast_as_time_goes_by(listener: Listener) -> None:
    """No script moves them from frame to frame. They are counted from another tile every 5 s, and go on as before."""
    await listener.connect()
    await listener.page.wait_for_function(f"{GLIDES} === 2")
    began_at, before, scale = await listener.page.evaluate(TILE)
    await listener.page.wait_for_timeout(6_000)  # that is what is tested
    ended_at, after, _ = await listener.page.evaluate(TILE)
    assert before - after == pytest.approx(scale * (ended_at - began_at), abs=15)


async def test_it_stands_still_for_those_who_want_little_motion(browser: Browser, server: Served) -> None:
    async with tab(browser, server.url, reduced_motion="reduce") as listener:
        await listener.connect()
        await listener.page.wait_for_selector(".strip canvas")
        moves: int = await listener.page.evaluate(
            """() => new Promise((resolve) => {
              const seen = new Set();
              const end = performance.now() + 2000;
              const look = () => {
                seen.add(getComputedStyle(document.querySelector(".strip")).transform);
                performance.now() < end ? requestAnimationFrame(look) : resolve(seen.size);
              };
              look();
            })"""
        )
        assert moves <= 4, "once a second"


# ---- a server for show --------------------------------------------------------------------------------------------


async def test_the_controls_are_there_for_show_only(listener: Listener, browser: Browser, show: Served) -> None:
    await listener.connect()
    await listener.page.wait_for_function("probe.said('view')")
    assert not await listener.page.is_visible("#demo")
    async with tab(browser, show.url) as shown:
        assert not await shown.page.is_visible("#demo"), "nothing is known of the server yet"
        await shown.connect()
        await shown.page.wait_for_selector("#demo:visible")
        await shown.hang_up()
        assert not await shown.page.is_visible("#demo")


async def pressed(listener: Listener, group: str) -> list[str]:
    texts = await listener.page.locator(f"#{group} [aria-pressed=true]").all_inner_texts()
    return [" ".join(text.split()) for text in texts]


async def test_load_policy_and_trouble_go_to_the_server_and_come_back(browser: Browser, show: Served) -> None:
    async with tab(browser, show.url) as listener, tab(browser, show.url) as other:
        for each in (listener, other):
            await each.connect()
            await each.page.wait_for_selector("#demo:visible")
        assert await pressed(listener, "policies") == ["Predictor whose deadline is nearest"]
        await listener.page.click("#policies button >> nth=1")
        await listener.page.click("#troubles button >> nth=2")
        await listener.page.wait_for_selector("#troubles button[aria-pressed=true] >> text=10 % loss")
        await other.page.wait_for_selector("#policies button[aria-pressed=true] >> text=Newest first")
        assert await pressed(other, "troubles") == ["None"], "that is this call's own"
        await listener.page.focus("#load")
        await listener.page.keyboard.press("ArrowRight")
        await other.page.wait_for_selector("#load-value >> text=1 of")
        await other.page.wait_for_function(
            "probe.messages.some(({ type, peers }) => type === 'view' && peers?.some(([, , kind]) => kind === 2))"
        )
        where = await lanes(other)
        await other.page.wait_for_selector("#timeline[data-peers]")
        assert where["peers"]["top"] < await other.page.locator("#timeline").evaluate(
            "({ clientHeight }) => clientHeight"
        )
        await listener.page.keyboard.press("ArrowLeft")
        await listener.page.click("#policies button >> nth=0")
        await other.page.wait_for_selector("#load-value >> text=0 of")
        await other.page.wait_for_selector("#policies button[aria-pressed=true] >> text=Predictor")


LOST = "sent.filter(({ type }) => type === 'stats').map(({ packets_lost: lost }) => lost ?? 0)"
"""Packets, up to each second of the call: the totals that were sent."""
MADE_UP = """() => {
  const all = sent.filter(({ type }) => type === "stats");
  const made = all.map((each) => (each.concealed_samples ?? 0) - (each.silent_concealed_samples ?? 0));
  const grown = made.slice(1).map((each, index) => (each - made[index]) / 48);
  const label = document.querySelector("#line-concealed .plot").ariaLabel;
  return [Math.max(...grown), parseFloat(label.split("at most ")[1])];
}"""
"""Most audible concealment in a second, in ms: as sent, and as plotted."""


async def test_trouble_on_the_line_is_real(browser: Browser, show: Served) -> None:
    """Loss is counted by the browser and ends; jitter makes its buffer longer."""
    async with tab(browser, show.url) as listener:
        page = listener.page
        await page.evaluate(SENT)
        await listener.connect()
        await page.wait_for_selector("#demo:visible")
        await page.wait_for_function(f"{LOST}.length > 3")
        assert set(await page.evaluate(LOST)) == {0}
        before = sorted(await page.evaluate(DELAYS))[1]
        await page.click("#troubles button >> text=10 % loss")
        await page.wait_for_function(f"{LOST}.at(-1) > 5 && Number(document.getElementById('lost').textContent) > 0")
        await page.click("#troubles button >> nth=0")
        await page.wait_for_function(f"new Set({LOST}.slice(-3)).size === 1")  # 10 % of 100 packets are hardly none
        assert await page.inner_text("#lost") == "0"
        await page.click("#troubles button >> text=120 ms jitter")
        await listener.speak(LONG)
        await page.wait_for_function(f"parseFloat(document.getElementById('delay').textContent) > {before + 20}")
        await page.wait_for_function(f"({MADE_UP})()[1] > 0")
        most, plotted = await page.evaluate(MADE_UP)
        assert plotted == pytest.approx(most, abs=0.6)


async def test_stops_are_practised_and_counted(browser: Browser, show: Served) -> None:
    async with tab(browser, show.url) as listener:
        await listener.connect()
        await listener.page.wait_for_selector("#demo:visible")
        assert await listener.page.inner_text("#presses") == "No stop yet"
        for _ in range(20):  # a press in a pause of the speech does not count
            await listener.page.click("#talk:enabled")
            await listener.page.wait_for_selector("#interrupt:enabled")
            await listener.page.wait_for_function(
                "getComputedStyle(document.getElementById('level-agent')).getPropertyValue('--level') > 0.4"
            )
            await listener.page.evaluate("document.getElementById('presses').textContent = ''")
            await listener.page.click("#interrupt")
            await listener.page.wait_for_function("document.getElementById('presses').textContent")
            if "Stops: 1" in await listener.page.inner_text("#presses"):
                break
        assert "Stops: 1, median" in await listener.page.inner_text("#presses")
        heights = await listener.page.locator("#stops .bar").evaluate_all(
            "(all) => all.map(({ style }) => style.height)"
        )
        assert sorted(set(heights)) == ["0%", "100%"]


PRESSES = 10
BIN_MS, BINS = 20, 16
DRAWN = """() => {
  const send = RTCDataChannel.prototype.send;
  globalThis.sent = [];
  RTCDataChannel.prototype.send = function (data) {
    sent.push({ at: performance.timeOrigin + performance.now(), ...JSON.parse(data) });
    send.call(this, data);
  };
  globalThis.drawn = [];
  Math.random = () => drawn[drawn.push([0, 0.25, 0.05, 0.4, 0.15][drawn.length % 5]) - 1];
}"""
"""Notes what the page sends and when, and what it draws by chance: known numbers now, small ones, to wait for less."""


async def test_ten_presses_at_drawn_times_become_a_histogram(browser: Browser, show: Served) -> None:
    async with tab(browser, show.url) as listener:
        await listener.page.evaluate(DRAWN)
        await listener.connect()
        await listener.page.wait_for_selector("#demo:visible")
        await listener.page.click("#auto")
        await listener.page.wait_for_selector("#auto >> text=Enough")
        await listener.page.wait_for_selector("#auto >> text=Ten times for me", timeout=240_000)
        await listener.until_silent()
        messages = (await listener.gather()).messages
        sent, drawn = await listener.page.evaluate("[sent, drawn]")
        bars = await listener.page.locator("#stops .hidden-words").all_inner_texts()
        words = await listener.page.inner_text("#presses")
    assert_pressed(sent, drawn, messages)
    assert_counted([int(bar.split()[0]) for bar in bars], words, messages)


def assert_pressed(sent: list[dict[str, Any]], drawn: list[float], messages: list[dict[str, Any]]) -> None:
    """So long after the speech began, or after a press that fell into a pause of it, as chance had it."""
    presses = [message["at"] for message in sent if message["type"] == "stop"]
    started = [message for message in messages if message["type"] == "speech.started"]
    assert len(presses) == len(drawn) >= PRESSES
    for index, (at, chance) in enumerate(zip(presses, drawn, strict=True)):
        begins = [message["at"] for message in started if message["at"] < at] + presses[:index]
        assert at - max(begins) >= 600 + 1800 * chance - 5
    stopped = [message for message in messages if message["type"] == "speech.stopped"]
    assert [message["id"] for message in stopped] == [message["id"] for message in started]
    assert {message["reason"] for message in stopped} == {"cancelled"}


def assert_counted(counts: list[int], words: str, messages: list[dict[str, Any]]) -> None:
    """Bars, words and the server's own messages agree."""
    found = re.fullmatch(r"Stops: (\d+), median (\d+) ms, slowest (\d+) ms", words)
    assert found, words
    count, median, slowest = map(int, found.groups())
    assert count == sum(counts) == PRESSES, "a press in a pause does not count, and is made again"
    assert len(counts) == BINS
    filled = [index for index, each in enumerate(counts) if each]
    assert bar_of(slowest - 1) <= filled[-1] <= bar_of(slowest + 1)
    assert sum(counts[: bar_of(median + 1) + 1]) >= PRESSES / 2 <= sum(counts[bar_of(median - 1) :])
    silenced = [each["flush_ms"] + each["wire_ms"] for each in messages if each["type"] == "speech.silenced"]
    assert slowest > min(silenced), "a listener hears it later than the server falls silent"


def bar_of(ms: int) -> int:
    return min(BINS - 1, max(0, ms) // BIN_MS)


async def test_the_run_can_be_taken_home(browser: Browser, show: Served, tmp_path: Path) -> None:
    async with tab(browser, show.url) as listener:
        await listener.connect()
        await listener.speak("One.")
        await listener.until_speaking()
        await listener.until_silent()
        async with listener.page.expect_download() as waiting:
            await listener.page.click("#download")
        file = tmp_path / "run.jsonl"
        await (await waiting.value).save_as(file)
    rows = [json.loads(row) for row in file.read_text().splitlines()]
    assert rows and all(row["frames"] > 0 and row["at"] >= 0 for row in rows)
    again = tmp_path / "again.json"
    assert command(["simulate", "--trace", str(file), "--policy", "predictor", "--json", str(again)]) == 0
    assert json.loads(again.read_text())["requests"] == len(rows), "each of them is said again"


# ---- what it costs ------------------------------------------------------------------------------------------------


async def test_opening_the_page_transfers_its_files_once_and_asks_nobody_else(browser: Browser, show: Served) -> None:
    found = await weighed(browser, show.url)
    sizes = {file.name: file.stat().st_size for file in FOLDER.iterdir()}
    again = found.bytes - sum(sizes.values())
    assert again in (0, sizes["icon.svg"]), "the picture in the heading is the page's icon, too"
    assert found.files - len(sizes) in (0, 1)
    assert (found.foreign, found.first_paint_ms > 0) == ((), True)


async def test_what_the_picture_costs_can_be_measured(browser: Browser, show: Served) -> None:
    found = await drawing(browser, show.url, load=0, rounds=1, seconds=1.0)
    assert found.frame_ms.count > 10  # 60 on a machine that has time
    assert found.moves_a_second > 0
    assert found.renderer.drawn > 0
    assert found.chromium.drawn >= found.renderer.drawn


async def test_what_is_heard_of_each_policy_can_be_measured(
    browser: Browser, show: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("REPLIES", 1), ("SETTLE_SECONDS", 0.1), ("SENTENCES", ("Hello there.",))):
        monkeypatch.setattr(bench_policies, name, value)
    found = await compared(browser, show.url, load=1, order=reversed(POLICIES))
    assert [each.policy for each in found.policies] == [*POLICIES]
    assert all((each.replies, each.refused) == (1, 0) and each.first_audio_ms > 0 for each in found.policies)


# ---- what is painted, on literal views -----------------------------------------------------------------------------

PAINTED = """async ([from, actions]) => {
  const [{ History }, { Painter }] = await Promise.all([import("./history.js"), import("./painter.js")]);
  const history = new History();
  for (const [name, ...given] of actions) history[name](...given);
  const painted = [];
  const ink = { globalAlpha: 1 };
  const note = (what) => {
    ink[what] = (...given) => painted.push({ what, given, colour: ink.fillStyle, alpha: ink.globalAlpha });
  };
  ["fillRect", "roundRect", "fillText"].forEach(note);
  const canvas = new Proxy(ink, { get: (_, name) => ink[name] ?? (() => {}) });
  const names = new Proxy({}, { get: (_, name) => name });
  new Painter(0.1, names, (ms) => `${ms} ms`, 4_000).paint(canvas, 0, history, from, 60_000);
  return painted;
}"""
"""Boxes and words, each with the name of its colour: at 100 pixels a second."""


async def painted(listener: Listener, *actions: list[Any], begin: float = 0) -> dict[str, list[dict[str, Any]]]:
    """By colour, what is painted of a History after these calls, from an instant on."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in await listener.page.evaluate(PAINTED, [begin, list(actions)]):
        found.setdefault(each["colour"], []).append(each)
    return found


def boxes(painted: list[dict[str, Any]]) -> list[tuple[float, ...]]:
    """Left, top, width, height."""
    return [tuple(each["given"][:4]) for each in painted if each["what"] != "fillText"]


async def test_pieces_grow_before_ones_eyes(listener: Listener) -> None:
    where = await lanes(listener)
    sizes = (1, 2, 4, 8, 16)
    chunks = [["u1", 1000 * (1 + index), frames, 50] for index, frames in enumerate(sizes)]
    found = await painted(listener, view(900, 0), view(5_100, 80 * sum(sizes), chunks=chunks))
    bars = boxes(found["made"])
    heights = [height for _, _, _, height in bars]
    assert heights == [pytest.approx(share * where["made"]["height"] / 5) for share in (1, 2, 3, 4, 5)]
    assert {round(top + height) for _, top, _, height in bars} == {where["made"]["top"] + where["made"]["height"]}
    widths = [width for _, _, width, _ in boxes(found["ready"])]
    assert [width + 2 for width in widths] == [pytest.approx(8 * frames) for frames in sizes], "as long as they play"
    assert [each["given"][0] for each in found["on-ready"]] == ["2", "4", "8", "16"], "where there is room"


async def test_a_stutter_and_a_cut_are_painted_where_they_were(listener: Listener) -> None:
    where = await lanes(listener)
    found = await painted(listener, view(1000, 0), ["stutter", 1000, 60], ["cut", 2000, 46], view(3000, 0))
    assert [box[0:3:2] for box in boxes(found["stutter"])] == [(pytest.approx(94), pytest.approx(6))] * 2
    assert [box[1] for box in boxes(found["stutter"])] == [where["played"]["top"] - 4, where["ahead"]["top"]]
    ((left, top, _, height),) = boxes(found["cut"])
    assert left == pytest.approx(198.5)
    assert top < where["played"]["top"] and top + height > where["played"]["top"] + where["played"]["height"]
    assert [each["given"][0] for each in found["cut"] if each["what"] == "fillText"] == ["46 ms"]
    beside = await painted(listener, ["cut", 2000, 46], view(2100, 0), begin=3400)
    assert len(beside["cut"]) == 2, "its words reach 140 pixels beyond it, whatever is painted anew there"


async def test_batches_are_taller_and_what_is_others_is_faint(listener: Listener) -> None:
    steps = [["depth", 1000, 30, 1, 1], ["depth", 1100, 30, 4, 1], ["depth", 1200, 30, 16, 0]]
    peers = [[3, 1500, 1], [7, 300, 2]]
    found = await painted(listener, view(900, 0), view(1300, 0, steps=steps, peers=peers))
    heights = [height for _, _, _, height in boxes(found["depth"])]
    assert heights == sorted(heights) and len(set(heights)) == 3
    assert [each["alpha"] for each in found["depth"]] == [1, 1, 0.4]
    (peer,), (synthetic,) = found["peer"], found["synthetic"]
    assert synthetic["alpha"] < peer["alpha"] < 0.8, "fainter where less is ready"
    assert peer["given"][1] < synthetic["given"][1], "each has its lane"


# ---- the model behind the pictures, on literal views ----------------------------------------------------------------

VIEW = {"heard_ms": 0, "chunks": [], "steps": [], "peers": []}


async def after(listener: Listener, *actions: list[Any]) -> dict[str, Any]:
    """A History after these calls, as plain data."""
    found: dict[str, Any] = await listener.page.evaluate(
        """async (actions) => {
          const { History } = await import("./history.js");
          const history = new History();
          for (const [name, ...given] of actions) history[name](...given);
          const plain = ({ from, to, chunk }) => [from, to, chunk.frames];
          const { played, coming, dropped, gaps, cuts, chunks, deadline, slack, levels, numbers } = history;
          return {
            played: played.map(plain), coming: coming.map(plain), dropped: dropped.map(plain),
            due: chunks.map(({ due }) => due), depth: history.rows("depth"),
            gaps, cuts, deadline, slack, levels, numbers,
          };
        }""",
        list(actions),
    )
    return found


def view(at: float, buffered: float, **more: Any) -> list[Any]:
    return ["take", VIEW | {"at": at, "buffered_ms": buffered} | more]


async def test_chunks_lie_where_they_play(listener: Listener) -> None:
    """The first plays from 1020 on; what is ready lies behind the now, up to the deadline."""
    history = await after(
        listener,
        view(1000, 0),
        view(1100, 160, chunks=[["u1", 1020, 1, 10], ["u1", 1050, 2, 40]]),
        view(1200, 60),
    )
    assert history["played"] == [[1020, 1100, 1], [1100, 1200, 2]]
    assert history["coming"] == [[1200, 1260, 2]]
    assert history["due"] == [1020, 1100]
    assert history["deadline"] == 1260
    assert history["slack"] == 40


async def test_the_level_falls_with_playing_and_jumps_with_each_chunk(listener: Listener) -> None:
    history = await after(
        listener, view(1000, 200, chunks=[["u1", 990, 3, 0]]), view(1100, 260, chunks=[["u1", 1040, 2, None]])
    )
    assert history["levels"][-3:] == [[1040, 160], [1040, 320], [1100, 260]]
    assert history["slack"] is None, "none is to come"


async def test_what_is_not_played_is_dropped_where_it_lay(listener: Listener) -> None:
    history = await after(
        listener, view(1000, 320, chunks=[["u1", 1000, 4, 0]]), ["drop", "u1", 1080], ["cut", 1080, 46], view(1100, 0)
    )
    assert history["played"] == [[1000, 1080, 4]]
    assert history["dropped"] == [[1080, 1320, 4]]
    assert (history["coming"], history["cuts"]) == ([], [{"at": 1080, "ms": 46}])


async def test_of_a_reply_that_stands_still_nothing_is_played_when_it_is_dropped(listener: Listener) -> None:
    """A user who speaks over it pauses it first; it is over only after more speech."""
    paused = view(1000, 320, chunks=[["u1", 1000, 4, 0]]), view(1100, 320)
    history = await after(listener, *paused, ["drop", "u1", 1180])
    assert (history["played"], history["coming"]) == ([], [])
    assert history["dropped"] == [[1180, 1500, 4]]
    history = await after(listener, *paused, view(1200, 220), ["drop", "u1", 1250])
    assert history["played"] == [[1100, 1250, 4]], "it had gone on"


async def test_another_utterance_stays_when_one_is_dropped(listener: Listener) -> None:
    chunks = [["u1", 1000, 1, 0], ["u2", 1000, 2, 0]]
    history = await after(listener, view(1000, 240, chunks=chunks), ["drop", "u1", 1040])
    assert history["dropped"] == [[1040, 1080, 1]]
    assert history["coming"] == [[1040, 1200, 2]]


async def test_a_pause_moves_what_is_ready(listener: Listener) -> None:
    history = await after(listener, view(1000, 160, chunks=[["u1", 1000, 2, 0]]), view(1100, 160), view(1200, 60))
    assert history["played"] == [[1100, 1200, 2]]
    assert history["coming"] == [[1200, 1260, 2]]


async def test_a_view_from_within_speech_shows_what_is_ready_all_the_same(listener: Listener) -> None:
    assert (await after(listener, view(1000, 400)))["coming"] == [[1000, 1400, 5]]


async def test_stutters_steps_and_other_calls_are_kept(listener: Listener) -> None:
    history = await after(
        listener,
        view(1000, 0, steps=[["depth", 950, 20, 4, 1]], peers=[[7, 500, 1], [3, 0, 2]]),
        ["stutter", 1000, 60],
        view(1100, 0, peers=[[3, 0, 2]]),
    )
    assert history["gaps"] == [{"from": 940, "to": 1000}]
    assert history["depth"] == 4
    assert history["numbers"] == [3]


async def test_what_is_old_is_forgotten(listener: Listener) -> None:
    history = await after(listener, view(1000, 0, chunks=[["u1", 1000, 1, 0]]), view(60_000, 0))
    assert history["due"] == []
    assert history["levels"][0][0] > 1000
