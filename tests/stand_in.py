"""A stand-in for an OpenAI-compatible server on this machine: every request is answered by what a test gave it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import BodyPartReader, web
from aiohttp.test_utils import TestServer

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
WITHIN = 20.0


class StandIn:
    """Keeps what it was sent; `answers` are used up one by one, the last one stays."""

    def __init__(self) -> None:
        self.answers, self.bodies, self.headers = list[Answer](), list[Any](), list[Any]()
        app = web.Application()
        app.router.add_post("/v1/{path:.*}", self._answer)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return f"http://{self.server.host}:{self.server.port}/v1"

    @property
    def connections(self) -> int:
        """Those that the server sees open."""
        assert self.server.runner is not None and self.server.runner.server is not None
        return sum(connection.transport is not None for connection in self.server.runner.server.connections)

    async def no_connection(self) -> None:
        """Returns when the server sees none any more."""
        async with asyncio.timeout(WITHIN):
            while self.connections:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.005)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(dict(request.headers))
        self.bodies.append(await (request.json() if request.content_type == "application/json" else fields(request)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request)

    async def __aenter__(self) -> StandIn:
        await self.server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()


async def fields(request: web.Request) -> dict[str, Any]:
    """A form's fields; of files their bytes."""
    found = dict[str, Any]()
    async for part in await request.multipart():
        assert isinstance(part, BodyPartReader)
        data = bytes(await part.read())
        found[str(part.name)] = data if part.filename else data.decode()
    return found


def plain(status: int = 200, body: str | bytes = "", content_type: str = "application/json", **headers: str) -> Answer:
    """The same answer to everybody."""

    async def answer(request: web.Request) -> web.StreamResponse:
        data = body.encode() if isinstance(body, str) else body
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(status=status, body=data, content_type=content_type, headers=named)

    return answer


def stream(*parts: bytes, then: str = "end", after: float = 0.0) -> Answer:
    """Sends these parts, `after` seconds before each; then the end, nothing more (hang), the last part for ever
    (repeat), or a connection that is cut (cut)."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for part in parts:
            await asyncio.sleep(after)
            await response.write(part)
        await go_on(request, response, parts, then)
        return response

    return answer


async def go_on(request: web.Request, response: web.StreamResponse, parts: tuple[bytes, ...], then: str) -> None:
    if then == "cut":
        assert request.transport is not None
        await asyncio.sleep(0.02)  # what was written leaves first
        request.transport.abort()
    while then in ("hang", "repeat") and request.transport is not None and not request.transport.is_closing():
        await asyncio.sleep(0.001)
        if then == "repeat":
            await response.write(parts[-1])


async def hang(request: web.Request) -> web.StreamResponse:
    """Answers nothing, not even a status."""
    while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110 - nothing else tells
        await asyncio.sleep(0.001)
    raise ConnectionResetError


async def cut(request: web.Request) -> web.StreamResponse:
    """Cuts the connection before any status."""
    assert request.transport is not None
    request.transport.abort()
    raise ConnectionResetError


def chunk(content: str | None = None, finish: str | None = None, **delta: Any) -> bytes:
    """One event of a stream."""
    found = {"content": content} if content is not None else {}
    choice = {"index": 0, "delta": {**found, **delta}, "finish_reason": finish}
    return f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n".encode()


DONE = b"data: [DONE]\n\n"


async def no_task(before: set[asyncio.Task[Any]]) -> None:
    """Returns when no task is there that was not there before; the server's, on the same event loop, do not count."""
    before = before | {task for task in [asyncio.current_task()] if task is not None}
    async with asyncio.timeout(WITHIN):
        while {task for task in asyncio.all_tasks() - before if "RequestHandler" not in repr(task)}:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
