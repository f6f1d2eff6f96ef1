"""The door in front of aiohttp: how many come in, and who asks for nothing is shown out. And what is not logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from agent.door import SILENT_SECONDS, Door, NoFaultFilter, noting
from agent.serve import AccessLog


class Time:
    """A clock that is set by hand."""

    time = 100.0

    def now(self) -> float:
        return self.time


async def hello(request: web.Request) -> web.Response:
    return web.Response(text="hello")


class House:
    """A server behind a door, on a real socket."""

    def __init__(self, max_connections: int) -> None:
        self.time = Time()
        self.door = Door(self.time, max_connections)
        self.app = web.Application(middlewares=[noting(self.door)])
        self.app.router.add_get("/", hello)
        log = logging.getLogger("test.access")
        self.runner = web.AppRunner(self.app, access_log_class=AccessLog, access_log=log)

    async def __aenter__(self) -> House:
        await self.runner.setup()
        self.door.server = self.runner.server
        self.server = await asyncio.get_running_loop().create_server(self.door, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        await self.runner.cleanup()

    async def connect(self, head: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers = [*getattr(self, "writers", []), writer]
        writer.write(head)
        await writer.drain()
        return reader


WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
PART = b"GET / HTTP/1.1\r\nHost: local"


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with House(max_connections=2) as opened:
        yield opened
        for writer in getattr(opened, "writers", []):
            writer.close()


@pytest.mark.parametrize("head", [b"", PART])
async def test_who_asks_for_nothing_is_shown_out(house: House, head: bytes) -> None:
    silent, asks = await house.connect(head), await house.connect(WHOLE)
    assert (await asks.readline()).startswith(b"HTTP/1.1 200")
    house.door.close_silent(house.time.now())
    house.time.time += SILENT_SECONDS - 0.1
    house.door.close_silent(house.time.now())
    assert not silent.at_eof()
    house.time.time += 0.2
    house.door.close_silent(house.time.now())
    assert await silent.read() == b""
    assert b"hello" in await asks.readuntil(b"hello"), "who asked stays"


async def test_so_many_come_in_and_no_more(house: House) -> None:
    for _ in range(2):
        assert (await (await house.connect(WHOLE)).readline()).startswith(b"HTTP/1.1 200")
    assert await (await house.connect(WHOLE)).read() == b""


async def test_a_malformed_request_leaves_no_secret_in_the_log(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logger, dropped = logging.getLogger("aiohttp.server"), NoFaultFilter()
    logger.addFilter(dropped)
    try:
        answer = await house.connect(b"GET / HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer s3cret\x01\r\n\r\n")
        assert (await answer.readline()).startswith(b"HTTP/1.0 400")
    finally:
        logger.removeFilter(dropped)
    assert "s3cret" not in caplog.text
    assert "Traceback" not in caplog.text


def test_a_client_that_is_gone_is_no_fault() -> None:
    """As aiohttp reports who leaves between a request's head and its body, which curl announces (Expect)."""
    filter_ = NoFaultFilter()

    def reported(error: Exception) -> bool:
        record = logging.LogRecord("aiohttp.server", logging.ERROR, "", 0, "Error handling request", None, None)
        record.exc_info = (type(error), error, None)
        return filter_.filter(record)

    assert not reported(aiohttp.ClientConnectionResetError("Cannot write to closing transport"))
    assert reported(ConnectionError("of our own"))
