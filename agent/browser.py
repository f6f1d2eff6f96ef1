"""A real Chromium as a listener: opens the page, presses its buttons and gathers what was heard.

It knows the page by its buttons and the server by its address, and judges nothing. Whatever is called audible was
measured on samples in the page's audio thread, an arrival on packets in front of the jitter buffer (browser.js).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

AUDIBLE = 0.003
"""-50 dB of full scale: below it lies only what the Opus decoder makes of silence."""
QUANTUM_MS = 128 / 48
"""The audio thread's block of 128 samples, for which browser.js gives one amplitude."""
CONNECTED = "#status:not([data-phase=idle], [data-phase=connecting])"
CALL_WITHIN_MS = 15_000
SPEECH_WITHIN_MS = 60_000
PROBE = Path(__file__).with_suffix(".js")
CHROMIUM_ARGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

Array = NDArray[np.float64]


class BrowserError(RuntimeError):
    """The browser or the server it is to visit did not start; the text says what to do."""


def find_chromium() -> str | None:
    """The path of an installed Chromium or Chrome."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


@asynccontextmanager
async def chromium(path: str | None = None, microphone: Path | None = None) -> AsyncIterator[Browser]:
    """A headless browser; `microphone` is a WAV file that plays, once, from the moment in which a page asks for one.
    Raises BrowserError where playwright or the browser is missing, or either fails."""
    try:
        from playwright.async_api import Error, async_playwright
    except ImportError:
        raise BrowserError("the browser is driven by playwright: pip install playwright") from None
    executable = shutil.which(path) if path else find_chromium()
    if executable is None:
        what = f"there is no browser at {path}" if path else "no Chromium was found"
        raise BrowserError(f"{what}: install Debian's package chromium, or give the path of another")
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()  # Chromium cannot sandbox itself as root
    try:
        async with async_playwright() as playwright:
            args = [*CHROMIUM_ARGS, *sandbox, *(fake_microphone(microphone) if microphone else ())]
            browser = await playwright.chromium.launch(executable_path=executable, args=args)
            try:
                yield browser
            finally:
                await browser.close()
    except Error as error:
        raise BrowserError(str(error).splitlines()[0]) from error


def fake_microphone(file: Path) -> tuple[str, ...]:
    """Chromium's options for a microphone that is a file, and that every page may use."""
    capture = f"--use-file-for-fake-audio-capture={file}%noloop"
    return "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream", capture


@dataclass(frozen=True, slots=True)
class Served:
    """A running `breezert serve`: its address, its process, and the file of what it prints."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def end(self, within: float = 15.0) -> None:
        """Asks it to end, and insists where it does not."""
        self.process.terminate()
        try:
            self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def serve(*options: str, within: float = 120.0) -> Iterator[Served]:
    """`breezert serve` on a free port, ended afterwards. Raises BrowserError if it is not up `within` seconds."""
    command = [sys.executable, "-m", "agent", "serve", "--port", "0", *options]
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        served = Served("", process, Path(log.name))
        try:
            yield replace(served, url=_printed_url(served, within))
        finally:
            served.end()


def _printed_url(served: Served, within: float) -> str:
    give_up_at = time.monotonic() + within
    while time.monotonic() < give_up_at:
        if found := re.search(r"https?://[\w.:\[\]-]+:\d+", served.log.read_text()):
            return found[0]
        if served.process.poll() is not None:
            status, said = served.process.returncode, served.log.read_text().strip()
            raise BrowserError(f"the server ended with status {status}: {said}")
        time.sleep(0.1)  # it is another process: nothing here tells when it has printed
    raise BrowserError(f"the server printed no address within {within:.0f} s: {served.log.read_text().strip()}")


@dataclass(slots=True)
class Heard:
    """What one page's probe gathered; instants are milliseconds since 1970."""

    peaks: list[list[float]] = field(default_factory=list)
    """[instant, largest amplitude] of each 128 samples."""
    spoken: list[list[float]] = field(default_factory=list)
    """[instant, largest amplitude] of each 10 ms of the microphone, where the page has one: of the track that is sent,
    behind the browser's own processing, at the moment in which the sender gets it."""
    packets: list[list[float]] = field(default_factory=list)
    """[arrival in the worker, RTP timestamp, sequence number, arrival at the socket or None]."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The server's messages, each with its instant `at`."""
    clicks: list[tuple[float, str]] = field(default_factory=list)
    """(instant, id of the button)."""
    offers: list[float] = field(default_factory=list)
    """How long each answer to an offer took, in ms."""

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]

    def clicked_at(self, button: str) -> float:
        """The last click on that button."""
        return next(at for at, name in reversed(self.clicks) if name == button)

    def loud_at(self, start: float, end: float = float("inf")) -> Array:
        """The instants from start to end at which something was audible."""
        table = np.array(self.peaks, dtype=np.float64).reshape(-1, 2)
        at = table[:, 0]
        return at[(table[:, 1] > AUDIBLE) & (at >= start) & (at <= end)]

    def voiced_seconds(self, start: float, end: float = float("inf")) -> float:
        """Audible time from start to end; pauses of up to 50 ms inside speech count as speech."""
        gaps = np.diff(self.loud_at(start, end))
        return float(gaps[gaps <= 50].sum()) / 1000


class Listener:
    """One tab on the page, driven as a person would drive it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.heard = Heard()

    async def connect(self) -> None:
        """Returns once the call is ready. Raises BrowserError with what the page says where there is none."""
        await self.page.click("#connect")
        await self.page.wait_for_selector(f"{CONNECTED}, #problem:visible, #token-form:visible", timeout=CALL_WITHIN_MS)
        if not await self.page.is_visible(CONNECTED):  # ready, or speaking already
            raise BrowserError(await self.page.inner_text("#problem:visible, #token-form:visible"))

    async def hang_up(self) -> None:
        await self.page.click("#connect")
        await self.page.wait_for_selector("#status[data-phase=idle]")

    async def speak(self, text: str) -> None:
        await self.page.fill("#text", text)
        await self.page.click("#speak")

    async def stop(self) -> None:
        await self.page.click("#stop")

    async def until_speaking(self) -> None:
        await self.page.wait_for_selector("#status[data-phase=speaking]", timeout=SPEECH_WITHIN_MS)

    async def until_silent(self) -> None:
        """Until everything asked for is over, and the jitter buffer has been emptied."""
        await self.page.wait_for_selector("#stop:disabled", timeout=SPEECH_WITHIN_MS)
        await self.page.wait_for_timeout(600)  # nothing tells when the last sample has been heard

    async def gather(self) -> Heard:
        """Everything heard since the page was opened."""
        for name, rows in (await self.page.evaluate("probe.take()")).items():
            getattr(self.heard, name).extend(rows)
        return self.heard

    async def stats(self) -> dict[str, float]:
        """The browser's own totals of the received audio (https://www.w3.org/TR/webrtc-stats/)."""
        stats: dict[str, float] = await self.page.evaluate("probe.stats()")
        return stats

    async def metric(self, name: str) -> float:
        """One unlabelled number of the server's /metrics. Raises BrowserError where it has none of that name."""
        text = await self.page.evaluate("fetch('metrics').then((answer) => answer.text())")
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        if found is None:
            raise BrowserError(f"the server's /metrics has no {name}")
        return float(found[1])


@asynccontextmanager
async def tab(
    browser: Browser,
    url: str,
    *,
    watch_packets: bool = False,
    before: Callable[[Page], None] = lambda page: None,
    **options: Any,
) -> AsyncIterator[Listener]:
    """The page in a profile of its own. `watch_packets` leads every packet through a worker in front of the jitter
    buffer, which costs the listener a little; `before` gets the page before it loads; the options are Playwright's for
    a context."""
    # The probe's worker and worklet are blobs, which the page's own Content-Security-Policy rightly forbids.
    context = await browser.new_context(bypass_csp=True, **options)
    try:
        page = await context.new_page()
        before(page)
        await page.add_init_script(path=PROBE)
        await page.goto(url)
        await page.evaluate("(on) => { probe.watchPackets = on }", watch_packets)
        yield Listener(page)
    finally:
        await context.close()
