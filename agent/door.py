"""Lets connections in: so many at once, and none for long that asks for nothing. It does not know what they ask for."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from engine.clock import Clock

MAX_CONNECTIONS = 128
"""Descriptors are finite, and a call needs some of its own; what comes beyond is closed at once."""
SILENT_SECONDS = 10.0
"""What a connection may take to its first whole request head (the slow loris attack sends it byte by byte)."""
LOOK_SECONDS = 1.0


ROUTE = web.RequestKey("route", str)
"""A request's route by its pattern, for the access log: without what the client put into it."""


class Closed(asyncio.Protocol):
    """The protocol of a connection that is not let in."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


class Door:
    """The protocol factory of a listening socket: aiohttp's own, behind the two limits."""

    def __init__(self, clock: Clock, max_connections: int = MAX_CONNECTIONS) -> None:
        self.server: web.Server | None = None
        """Whoever is let in is its; to be set before the first connection comes."""
        self._clock, self._max_connections = clock, max_connections
        self._silent_since: dict[object, float] = {}
        self._asked: set[object] = set()

    def __call__(self) -> asyncio.Protocol:
        assert self.server is not None, "a door needs a server behind it"
        full = len(self.server.connections) >= self._max_connections
        return Closed() if full else self.server()

    def note(self, request: web.Request) -> None:
        """This connection has asked for something."""
        self._asked.add(request.protocol)

    async def watch(self) -> None:
        """Closes, until cancelled, connections that have not asked for anything in time."""
        while True:
            self.close_silent(self._clock.now())
            await asyncio.sleep(LOOK_SECONDS)

    def close_silent(self, now: float) -> None:
        """One look at all connections; those that have ended are forgotten."""
        connections = list(self.server.connections) if self.server else []
        self._asked.intersection_update(connections)
        silent = [connection for connection in connections if connection not in self._asked]
        self._silent_since = {connection: self._silent_since.get(connection, now) for connection in silent}
        for connection in silent:
            if now - self._silent_since[connection] >= SILENT_SECONDS:
                connection.force_close()


def noting(door: Door) -> Middleware:
    """The middleware that tells the door, and keeps the route's name for the access log."""

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        door.note(request)
        resource = request.match_info.route.resource
        request[ROUTE] = resource.canonical if resource else "(no such route)"
        return await handler(request)

    return noted


class NoFaultFilter(logging.Filter):
    """Drops aiohttp's reports of what is no fault of this server: a request that is no HTTP, which it quotes, and with
    it what may be a token (the client was answered 400); and a client that is gone before it is answered."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        malformed = aiohttp.http_exceptions.HttpProcessingError | web.RequestPayloadError
        return not isinstance(error, malformed | aiohttp.ClientConnectionResetError)
