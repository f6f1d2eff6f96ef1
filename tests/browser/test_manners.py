"""How the page treats people in a real Chromium: languages, keyboard, screen readers, small screens, no microphone, a
server that goes and comes back.

npm fetches axe-core, which looks for what keeps people out (https://github.com/dequelabs/axe-core).
"""

from __future__ import annotations

import asyncio
import json
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
from conftest import require_browser
from npm import taken
from sounds import noise
from states import ASKING, SENT, arrive, lose, refusing, walk
from test_cloning import wav
from test_talk import write
from voices import KINDS

from agent.browser import Array, Listener, Served, chromium, serve, tab

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

MAX_PAGE_BYTES = 150_000
SCHEMES: tuple[Literal["light"], Literal["dark"]] = "light", "dark"
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


async def test_axe_finds_no_violation_with_any_note_open(browser: Browser, server: Served, axe: Path) -> None:
    async with tab(browser, server.url, reduced_motion="reduce") as listener:  # a colour half-way is none to judge
        page = listener.page

        async def judge(note: str) -> None:
            await page.wait_for_selector(f"{note}:visible")
            for scheme in SCHEMES:
                await page.emulate_media(color_scheme=scheme)
                assert await violations(listener, axe) == [], f"{note}, {scheme}"

        await page.route("**/offer", lambda route: route.fulfill(status=401, json={"error": "no"}), times=1)
        await page.click("#connect")
        await judge("#token-form")
        await page.check("#microphone")  # which this browser has not
        await page.fill("#token", "not needed")
        await page.press("#token", "Enter")
        await page.wait_for_selector("#status[data-phase=ready]")
        await judge("#hint")
        await lose(listener)
        await judge("#give-up")


WORDS = {
    "idle": "Not connected",
    "asking": "Waiting for your microphone…",
    "connecting": "Connecting…",
    "listening": "Listening: say something",
    "ready": "Connected, your microphone is muted",
    "hearing": "Hearing you…",
    "thinking": "Thinking…",
    "speaking": "Speaking",
    "paused": "Paused: was that you?",
    "interrupted": "Interrupted, silent after 46 ms",
    "lost": "Connection lost, trying again…",
}
INKS = """() => ["#status", ".talk"].map((selector, index) => {
  const { color, backgroundColor } = getComputedStyle(document.querySelector(selector));
  return [color, backgroundColor][index].match(/\\d+/g).map(Number);
})"""
"""Of the words, and of what they stand on."""
MIN_CONTRAST = 4.5
"""AA, https://www.w3.org/TR/WCAG22/#contrast-minimum"""
MIN_DIFFERENCE = 15
"""In CIELAB, where 2.3 can just be seen: colours that one tells apart without having both in sight."""


def luminance(ink: list[int]) -> float:
    """Relative, as WCAG defines it."""
    return float(np.dot(linear(ink), (0.2126, 0.7152, 0.0722)))


def linear(ink: list[int]) -> Array:
    share = np.asarray(ink) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def contrast(one: list[int], other: list[int]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def lab(ink: list[int]) -> Array:
    """CIELAB (CIE 15) of an sRGB colour."""
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear(ink)
    x, y, z = np.cbrt(xyz / (0.9505, 1.0, 1.089))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


async def test_every_state_has_its_own_words_and_a_colour_that_can_be_read(server: Served, tmp_path: Path) -> None:
    words: dict[str, str] = {}
    inks: dict[str, dict[str, list[int]]] = {scheme: {} for scheme in SCHEMES}
    async with (
        chromium(microphone=write(tmp_path / "quiet.wav", noise(0.1))) as browser,
        tab(browser, server.url) as listener,
    ):
        async for state in walk(listener):
            words[state] = await shown(listener, "status")
            for scheme in SCHEMES:
                await listener.page.emulate_media(color_scheme=scheme)
                inks[scheme][state], ground = await listener.page.evaluate(INKS)
                assert contrast(inks[scheme][state], ground) >= MIN_CONTRAST, f"{state}, {scheme}"
    assert words == WORDS
    for own in inks.values():
        assert own.pop("asking") == own["connecting"]
        for one, other in combinations(own, 2):
            assert np.linalg.norm(lab(own[one]) - lab(own[other])) >= MIN_DIFFERENCE, f"{one} and {other}"


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
    log = listener.page.get_by_role("log", name="Conversation")
    assert await log.count() == 1, "before anything is said: else nothing of it would be told"
    await listener.connect()
    assert await listener.page.get_attribute("#status", "role") == "status"
    await listener.speak(SENTENCE)
    assert SENTENCE in await log.inner_text()
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


@pytest.mark.parametrize(
    ("without", "words"),
    [
        (
            "navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('', 'NotReadableError'))",
            "Another program holds your microphone. You can listen and type all the same. Close that program",
        ),
        (
            "Object.defineProperty(navigator, 'mediaDevices', { value: undefined })",
            "Browsers lend the microphone to https pages and to localhost only. You can listen and type",
        ),
    ],
    ids=["taken", "insecure"],
)
async def test_a_microphone_that_cannot_be_had_is_no_fault(listener: Listener, without: str, words: str) -> None:
    await listener.page.evaluate(f"() => {{ {without} }}")
    await listener.page.check("#microphone")
    await listener.connect()
    assert words in await shown(listener, "hint")
    assert not await listener.page.is_visible("#problem")
    assert await shown(listener, "status") == "Connected, ready to speak"


async def test_who_is_asked_for_the_microphone_can_still_cancel(server: Served, tmp_path: Path) -> None:
    async with (
        chromium(microphone=write(tmp_path / "quiet.wav", noise(0.1))) as browser,
        tab(browser, server.url) as listener,
    ):
        page = listener.page
        await page.evaluate(ASKING)
        await page.check("#microphone")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.click("#connect")
        await page.wait_for_function("globalThis.agree !== undefined")
        assert await shown(listener, "connect-words") == "Cancel"
        await page.click("#connect")
        assert [await shown(listener, words) for words in ("connect-words", "status")] == ["Connect", "Not connected"]
        await page.evaluate("agree()")
        await page.wait_for_timeout(500)  # in which it would have called
        assert asked == []
        await page.evaluate("agree = undefined")
        await page.click("#connect")
        await page.wait_for_function("globalThis.agree !== undefined")
        await page.evaluate("agree()")
        await page.wait_for_selector("#status[data-phase=ready]")


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

        assert await page.evaluate("document.getElementById('sound').sinkId") == ""
        await page.select_option("#output", index=1)
        chosen = await page.input_value("#output")
        await page.wait_for_function(f"document.getElementById('sound').sinkId === {json.dumps(chosen)}")


# ---- voice --------------------------------------------------------------------------------------------------------


async def test_seed_and_temperature_are_asked_for_only_where_they_differ(listener: Listener) -> None:
    await listener.page.evaluate(SENT)
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


async def test_who_speaks_and_how_is_asked_for_where_there_is_a_choice(listener: Listener) -> None:
    await listener.page.evaluate(SENT)
    await listener.connect()
    await listener.page.click("summary")
    assert not await listener.page.is_visible("#speaker"), "this voice has one"
    created = (await listener.gather()).of_type("session.created")[0]
    await arrive(listener, **created | {"speakers": ["Ada", "Bo"], "modes": ["design", "plain"]})
    assert await listener.page.locator("#speaker option").all_inner_texts() == ["Ada", "Bo"]
    await listener.speak(SENTENCE)
    await listener.page.select_option("#speaker", "Bo")
    await listener.page.wait_for_selector("#problem:visible")
    assert "Speaker must be one of" in await shown(listener, "problem-what"), "the server knows better here"
    await listener.page.fill("#instruction", "as if it were raining")
    await listener.page.click("#speak")
    second, third = await manners(listener)
    assert second == {"type": "session.update", "speaker": "Bo"}
    assert third == {"type": "session.update", "speaker": "Bo", "instruction": "as if it were raining"}
    last = await listener.page.evaluate("sent.findLast(({ type }) => type !== 'stats' && type !== 'ping')")
    assert last["type"] == "speak", "it is said so already"


async def test_a_voice_with_a_name_and_a_language_can_be_chosen(listener: Listener) -> None:
    """In the words of the page's own language, which may change."""
    await listener.page.evaluate(SENT)
    await listener.connect()
    await listener.page.click("summary")
    assert not await listener.page.is_visible("#spoken"), "this voice speaks as it does"
    created = (await listener.gather()).of_type("session.created")[0]
    assert created.pop("speakers") == ["S0"]
    await arrive(listener, **created | {"voices": ["cleo"], "languages": ["auto", "german"]})
    assert await listener.page.locator("#speaker option").all_inner_texts() == ["the voice's own", "cleo"]
    assert await listener.page.locator("#spoken option").all_inner_texts() == ["auto", "german"]
    await listener.speak(SENTENCE)
    await listener.page.select_option("#speaker", "cleo")
    await listener.page.select_option("#spoken", "german")
    await listener.page.select_option("#language", "de")
    assert await listener.page.locator("#speaker option").all_inner_texts() == ["wie die Stimme", "cleo"]
    assert (await manners(listener))[-1] == {"type": "session.update", "voice": "cleo", "language": "german"}


async def test_where_a_voice_only_clones_nobody_else_is_offered(listener: Listener) -> None:
    await listener.page.evaluate(SENT)
    await listener.connect()
    await listener.page.click("summary")
    created = (await listener.gather()).of_type("session.created")[0]
    assert created.pop("speakers") == ["S0"]
    await arrive(listener, **created | {"modes": ["clone"], "voices": ["bo", "cleo"]})
    assert await listener.page.locator("#speaker option").all_inner_texts() == ["bo", "cleo"]
    assert (await manners(listener))[-1] == {"type": "session.update", "voice": "bo"}


async def test_a_recording_becomes_a_voice_and_speaks_replies_too(browser: Browser, tmp_path: Path) -> None:
    """With a voice that clones, of random weights, and the brain that says again what it is asked."""
    recording = tmp_path / "anna.wav"
    recording.write_bytes(wav(2.0))
    with serve("--device", "cpu", "--voice", str(KINDS["breeze_tts_2"]), "--brain", "echo") as served:
        async with tab(browser, served.url) as listener:
            page = listener.page
            await page.evaluate(SENT)
            await page.click("summary")
            assert not await page.is_visible("#clone"), "nobody knows yet whether the voice can"
            await listener.connect()
            await page.wait_for_selector("#clone:visible")
            await page.click("#clone-it")
            assert await page.evaluate("document.querySelector('#clone :invalid').name") == "audio"
            await page.set_input_files("#clone [name=audio]", recording)
            await page.fill("#clone [name=text]", "x" * 500)
            await page.click("#clone-it")
            await page.wait_for_selector("#problem:visible")
            assert await shown(listener, "problem-what") == "This recording cannot be used."
            assert "Text must have at most 127 characters, got 500" in await shown(listener, "problem-advice")
            await page.fill("#clone [name=text]", "good day to you")
            await page.click("#clone-it")
            await page.wait_for_selector("#problem", state="hidden")
            names = await page.locator("#speaker option").all_inner_texts()
            assert names == [*(f"S{i}" for i in range(10)), "anna.wav"]
            *_, told = await manners(listener)
            assert told["voice"] == await page.input_value("#speaker") != ""
            await page.fill("#text", "hello there")
            await page.click("#say")
            await listener.until_speaking()
            assert (await listener.gather()).of_type("error") == []


async def manners(listener: Listener) -> list[dict[str, Any]]:
    """How the server was told to say everything, from the first time on."""
    found: list[dict[str, Any]] = await listener.page.evaluate("sent.filter(({ type }) => type === 'session.update')")
    return found


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
