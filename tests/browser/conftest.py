"""Fixtures of the tests in a real Chromium: a session has one browser and one server with the embedded voice."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from agent.browser import Listener, Served, chromium, find_chromium, serve, tab

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page


def require_browser() -> None:
    """With CI set a missing browser is a failure, elsewhere a skip."""
    needed = {"playwright": find_spec("playwright"), "Chromium": find_chromium()}
    missing = [name for name, found in needed.items() if not found]
    if missing:
        reason = f"not installed: {', '.join(missing)} (pip install '.[test]'; Debian: apt-get install chromium)"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    require_browser()
    async with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    require_browser()
    with serve("--device", "cpu") as served:
        yield served


@dataclass(slots=True)
class Complaints:
    """What the console of a page said, and where the page asked for something outside its server."""

    lines: list[str] = field(default_factory=list)

    def watch(self, page: Page, url: str) -> None:
        page.on("console", lambda message: self.add(message.type, message.text, message.type in ("error", "warning")))
        page.on("pageerror", lambda error: self.add("uncaught", str(error)))
        page.on("request", lambda request: self.add("foreign", request.url, not self.is_own(request.url, url)))

    def add(self, kind: str, text: str, wrong: bool = True) -> None:
        if wrong:
            self.lines.append(f"{kind}: {text}")

    @staticmethod
    def is_own(address: str, url: str) -> bool:
        return address.startswith((url, "blob:"))  # the probe's worklet is a blob


@pytest_asyncio.fixture(loop_scope="session")
async def listener(browser: Browser, server: Served) -> AsyncIterator[Listener]:
    """The page, opened and not connected; it must have complained of nothing and asked nobody else."""
    complaints = Complaints()
    async with tab(browser, server.url, before=lambda page: complaints.watch(page, server.url)) as opened:
        yield opened
    assert complaints.lines == []
