"""The routes: offer, calls, health, metrics, page. It does not know WebRTC, or what is said.

    POST   /offer        {sdp, type, session?} -> {sdp, type, id},    token
                         or 503 and Retry-After while busy
    DELETE /calls/{id}                                        token
    POST   /whep         an offer's SDP -> the answer's       token
    PATCH, DELETE        the call that its Location names     token
    POST   /v1/audio/speech     JSON -> wav, pcm or Ogg Opus  token
    POST   /voices       a recording -> a voice's id          token
    DELETE /voices/{id}                                       token
    POST   /v1/realtime/calls   an offer's SDP -> the answer's, where somebody answers; token or a client's key
    POST   /v1/realtime/calls/{id}/hangup, DELETE /v1/realtime/calls/{id}    token
    POST   /v1/realtime/client_secrets    a key for one call  token
    GET    /metrics      Prometheus                           token
    GET    /demo/trace   what was said, to be simulated; where it is for show    token
    GET    /healthz      200, or 503 while draining or down   open
    GET    /             the page and its files               open: nothing secret is in them

"token" means the Bearer token where one is set; without one these are served to this machine only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from agent import page, realtime_routes, speech_http, voices_http, whep
from agent.answering import Answering
from agent.calls import USUAL, CallLimits, Calls
from agent.demo import Switchable
from agent.guard import Access, Guard, Handler, Refusal, read_body
from agent.manner import Manner
from agent.opening import refusals
from agent.protocol import MAX_REASON_CHARS
from agent.session import Engine, Session
from agent.voices import Voices
from engine.clock import MonotonicClock


def attach(
    app: web.Application,
    engine: Engine,
    *,
    prefix: str = "",
    access: Access | None = None,
    limits: CallLimits | None = None,
    opened: Callable[[Session], None] = lambda session: None,
    answering: Answering | None = None,
    show: Switchable | None = None,
    voices: Voices | None = None,
    ice_servers: Iterable[whep.IceServer] = (),
    manner: Manner = USUAL,
) -> Calls:
    """Adds the routes to an application below `prefix`, and returns its calls; they end with the application.

    `opened` is told of every new session. `answering` says who listens and answers in every call; brain and transcriber
    are started and closed with the application. `show`, the engine itself, lets callers change what it is shown with,
    see agent.demo. `voices` lets them make voices of recordings, and speak like these; they are closed with the
    application, too. Players that call by WHEP are told of `ice_servers`. All is said in the `manner`, unless a call
    says otherwise. Raises ValueError for a voice whose sample rate Opus does not take, and for a manner that cannot be.
    """
    clock = MonotonicClock()
    calls = Calls(engine, limits, clock, opened, answering, voices, manner)
    if show is not None:
        calls.demonstrate(show)
    guard = Guard(access or Access(), clock, lambda status: calls.metrics.refused.labels(status).inc())
    routes = Routes(calls)

    def add(method: str, path: str, handler: Handler, needs_token: bool = False) -> None:
        app.router.add_route(method, f"{prefix}/{path}", guard.wrap(handler, needs_token=needs_token))

    add("POST", "offer", routes.offer, needs_token=True)
    add("OPTIONS", "offer", guard.preflight)
    add("DELETE", "calls/{id}", routes.hang_up, needs_token=True)
    add("OPTIONS", "calls/{id}", guard.preflight)
    add("GET", "metrics", routes.metrics, needs_token=True)
    add("GET", "healthz", routes.healthz)
    if show is not None:
        add("GET", "demo/trace", routes.trace, needs_token=True)
    if answering:
        realtime_routes.add_routes(add, guard, calls)
    whep.add_routes(add, guard, calls, ice_servers)
    speech_http.add_routes(add, guard, calls, engine)
    if voices is not None:
        voices_http.add_routes(add, guard, voices, engine.spec)
    for path, handler in page.files():
        add("GET", path, handler)
    app.middlewares.append(guard.wrap_unmatched(prefix))
    if prefix:
        app.router.add_get(prefix, guard.wrap(routes.to_page))

    async def life(app: web.Application) -> AsyncIterator[None]:
        try:
            if answering:
                await answering.transcriber.start()
            yield
        finally:
            try:
                await calls.close()
            finally:
                if answering:
                    await asyncio.gather(answering.brain.close(), answering.transcriber.close())

    app.cleanup_ctx.append(life)
    return calls


class Routes:
    """What each route answers."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def offer(self, request: web.Request) -> web.StreamResponse:
        sdp, manner = offered(await read_body(request))
        with refusals():
            call_id, answer = await self._calls.open(sdp, manner)
        return web.json_response({"sdp": answer, "type": "answer", "id": call_id})

    async def hang_up(self, request: web.Request) -> web.StreamResponse:
        if not await self._calls.hang_up(request.match_info["id"]):
            raise Refusal(404, "not_found", "there is no call of that id: it may be over already")
        return web.Response(status=204)

    async def to_page(self, request: web.Request) -> web.StreamResponse:
        """The page's files are named relative to its folder."""
        return web.Response(status=302, headers={"Location": f"{request.path}/"})

    async def healthz(self, request: web.Request) -> web.StreamResponse:
        status = self._calls.status
        return web.json_response({"status": status}, status=200 if status == "ok" else 503)

    async def trace(self, request: web.Request) -> web.StreamResponse:
        assert self._calls.demo is not None
        name = "attachment; filename=breezert-trace.jsonl"
        headers = {"Content-Type": "application/jsonl", "Content-Disposition": name}
        return web.Response(text=self._calls.demo.trace(), headers=headers)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._calls.metrics.render(), headers={"Content-Type": CONTENT_TYPE_LATEST})


def offered(body: bytes) -> tuple[str, Manner]:
    """The SDP in the JSON of an offer, and how all is to be said. Raises Refusal that says what was expected."""
    try:
        message: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "bad_request", f"the body must be JSON: {error}") from error
    if not isinstance(message, dict) or not isinstance(message.get("sdp"), str) or message.get("type") != "offer":
        raise Refusal(400, "bad_request", 'the body must be {"sdp": "...", "type": "offer"}')
    try:
        return str(message["sdp"]), msgspec.convert(message.get("session", {}), Manner)
    except msgspec.ValidationError as error:
        raise Refusal(400, "bad_request", f"session: {error}"[:MAX_REASON_CHARS]) from error
