"""Takes pictures of the page, for somebody to look at: `PYTHONPATH=tests python tests/browser/pictures.py FOLDER`.

README.png is the README's: a real call, in which the user speaks over the agent, which falls silent and then answers.
The others are the page's states, wide and narrow, dark and light, and in each language. It judges nothing.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from sounds import clip, noise
from states import interrupt, refusing, walk
from test_talk import write

from agent.browser import Listener, chromium, serve, tab

if TYPE_CHECKING:
    from playwright.async_api import Browser

WIDE, NARROW = {"width": 1440, "height": 984}, {"width": 360, "height": 2600}
"""So high that the timeline is in view: it stands still elsewhere."""


async def taken(listener: Listener, file: Path) -> None:
    await listener.page.screenshot(path=file, full_page=True)


async def readme(url: str, file: Path, sound: Path) -> None:
    async with chromium(microphone=write(sound, clip("user"))) as browser, tab(browser, url, viewport=WIDE) as listener:
        await listener.page.check("#microphone")
        await listener.connect()
        await interrupt(listener)
        await listener.page.wait_for_selector("#waterfall > li >> nth=1")
        await taken(listener, file)


async def states(url: str, folder: Path, sound: Path) -> None:
    for size, scheme in product((WIDE, NARROW), ("light", "dark")):
        async with (
            chromium(microphone=write(sound, noise(0.1))) as browser,
            tab(browser, url, viewport=size, color_scheme=scheme) as listener,
        ):
            async for state in walk(listener):
                await taken(listener, folder / f"{state}-{size['width']}-{scheme}.png")


async def languages(browser: Browser, url: str, folder: Path) -> None:
    for size, locale in product((WIDE, NARROW), ("de-DE", "ja-JP")):
        async with tab(browser, url, viewport=size, locale=locale) as listener:
            await listener.page.click("summary")
            await listener.page.click("#speak")
            await listener.page.wait_for_selector("#waterfall > li")
            await taken(listener, folder / f"{locale}-{size['width']}.png")


async def notes(browser: Browser, url: str, folder: Path) -> None:
    async with tab(browser, url, viewport=WIDE) as listener:
        await listener.page.route("**/offer", lambda route: route.fulfill(status=401, json={"error": "no"}))
        await listener.page.click("#connect")
        await listener.page.wait_for_selector("#token-form:visible")
        await taken(listener, folder / "token.png")
    async with refusing(url) as listener:
        await listener.page.wait_for_selector("#microphone:checked")
        await listener.connect()
        await taken(listener, folder / "denied.png")


async def all_pictures(folder: Path) -> None:
    with tempfile.TemporaryDirectory() as there:
        sound = Path(there) / "user.wav"
        with serve("--device", "cpu") as served:
            await readme(served.url, folder / "README.png", sound)
        with serve("--device", "cpu", "--demo") as served:
            await shown(served.url, folder, sound)


async def shown(url: str, folder: Path, sound: Path) -> None:
    await states(url, folder, sound)
    async with chromium() as browser:
        await languages(browser, url, folder)
        await notes(browser, url, folder)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: PYTHONPATH=tests python tests/browser/pictures.py FOLDER")
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(all_pictures(Path(sys.argv[1])))
