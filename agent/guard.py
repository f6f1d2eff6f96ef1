"""Decides who may ask what: Host, Origin, token, request rate. It does not know what the routes do.

Checked on every route, and where there is none, in this order: the Host header (a foreign name there is DNS rebinding),
the Origin header (a foreign page), the rate, and where the route asks for it the token. Without a token only this
machine is served.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from aiohttp import web
from aiohttp.typedefs import Middleware

from agent.allowance import Allowance
from engine.clock import Clock

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 64 * 1024
BODY_SECONDS = 10.0
MIN_TOKEN_CHARS = 8
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""Sent with every answer: the page loads nothing from elsewhere and nobody frames it."""

EXPOSED = "Accept-Patch, ETag, Link, Location, Retry-After"
"""What a page of an allowed origin may read of an answer's headers, beside what every page may read."""

SCHEMES = ("http", "https")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class AddRoute(Protocol):
    """Enters a handler under a method and a path, behind a guard."""

    def __call__(self, method: str, path: str, handler: Handler, needs_token: bool = False) -> None: ...


class AccessError(ValueError):
    """Rules that cannot hold; the text says what to change."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask. Raises AccessError on rules that would leave the server open."""

    host: str = "127.0.0.1"
    """The address that is bound."""
    token: str | None = None
    allow_hosts: tuple[str, ...] = ()
    """Names under which the server may be asked, beside `host`, localhost and plain IP addresses."""
    allow_origins: tuple[str, ...] = ()
    """Other pages that may use it, as scheme://host[:port]."""
    rate: float = 100.0
    """Requests a second from one address, three times as many at once; the page alone is 20."""

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            raise AccessError(f"{self.host} can be reached from other machines: give --token-file or --token")
        if self.token is not None and not re.fullmatch(rf"[\x21-\x7e]{{{MIN_TOKEN_CHARS},}}", self.token):
            raise AccessError(f"a token has at least {MIN_TOKEN_CHARS} printable ASCII characters and no space")
        if not self.rate > 0:  # also for NaN
            raise AccessError(f"the request rate must be above 0, got {self.rate}")
        for origin in self.allow_origins:
            scheme, _, host = origin.partition("://")
            if scheme not in SCHEMES or not name_of(host):
                raise AccessError(f"an origin reads like https://example.org[:port], got {origin}")


class Refusal(Exception):
    """A request that is not served."""

    def __init__(
        self, status: int, code: str, message: str, retry_after_ms: float | None = None, **headers: str
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.retry_after_ms = status, code, retry_after_ms
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> web.Response:
        wait = {} if self.retry_after_ms is None else {"retry_after_ms": self.retry_after_ms}
        error = {"code": self.code, "message": str(self), **wait}
        return web.json_response({"error": error}, status=self.status, headers=self.headers)


def busy(error: Exception, retry_after: float) -> Refusal:
    """To come back in so many seconds, which a header tells as whole ones (RFC 9110, section 10.2.3)."""
    return Refusal(503, "busy", str(error), 1000 * retry_after, Retry_After=str(max(1, ceil(retry_after))))


class Guard:
    """Wraps handlers in the rules. `refused` is told the status of every refusal."""

    def __init__(self, access: Access, clock: Clock, refused: Callable[[int], None]) -> None:
        self._access, self._clock, self._refused = access, clock, refused
        self._allowance = Allowance(access.rate, 3 * access.rate)

    def wrap(self, handler: Handler, *, needs_token: bool = False) -> Handler:
        """The handler behind the rules. What either raises becomes a JSON answer: nothing leaves without HEADERS."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                self.check(request, needs_token)
                response = await handler(request)
            except ConnectionError:  # nobody is left to be answered
                raise
            except Exception as error:
                refusal = _as_refusal(error)
                self._refused(refusal.status)
                response = refusal.response()
            if not response.prepared:
                response.headers.update(self.headers(request))
            return response

        return guarded

    def headers(self, request: web.Request) -> dict[str, str]:
        """What is sent with every answer; for a handler that begins to send before it returns."""
        return HEADERS | self._cors(request)

    def wrap_unmatched(self, prefix: str) -> Middleware:
        """A middleware that holds the rules below `prefix` where no route is; requests that have a route pass."""
        refuse = self.wrap(_no_route)

        @web.middleware
        async def unmatched(request: web.Request, handler: Handler) -> web.StreamResponse:
            ours = not prefix or f"{request.path}/".startswith(f"{prefix}/")
            return await (refuse if ours and request.match_info.http_exception else handler)(request)

        return unmatched

    def check(self, request: web.Request, needs_token: bool) -> None:
        """Raises Refusal."""
        self._check_host(request)
        self._check_origin(request)
        wait = self._allowance.take(network(request.remote), self._clock.now())
        if wait:
            seconds = str(int(wait) + 1)
            raise Refusal(
                429, "busy", f"too many requests: at most {self._access.rate:g} a second", Retry_After=seconds
            )
        if needs_token:
            self.check_token(request)

    async def preflight(self, request: web.Request) -> web.StreamResponse:
        """The answer to a browser that asks whether another origin's page may ask (Fetch, section 3.2.2)."""
        return web.Response(
            status=204,
            headers={
                "Access-Control-Allow-Methods": "POST, PATCH, DELETE",
                "Access-Control-Allow-Headers": "Authorization, Content-Type, If-Match, X-OpenAI-Agents-SDK",
                "Access-Control-Max-Age": "600",
            },
        )

    def _check_host(self, request: web.Request) -> None:
        name = name_of(request.headers.get("Host", ""))
        if name in ("localhost", self._access.host.lower()) or is_address(name):
            return
        if name not in (allowed.lower() for allowed in self._access.allow_hosts):
            raise Refusal(421, "wrong_host", "this server is not known by that name: see --allow-host")

    def _check_origin(self, request: web.Request) -> None:
        origin = request.headers.get("Origin")
        if origin is None or self._is_allowed(origin):
            return
        host = request.headers["Host"].lower()
        if origin.lower() not in (f"{scheme}://{host}" for scheme in SCHEMES):  # either: TLS may end at a proxy
            raise Refusal(403, "wrong_origin", "pages of this origin may not use the server: see --allow-origin")

    def check_token(self, request: web.Request) -> None:
        """Raises Refusal."""
        token = self._access.token
        if token is None:
            if not is_local(request.remote):
                raise Refusal(403, "needs_token", "without a token only this machine is served: see --token-file")
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        same = hmac.compare_digest(given.encode(errors="surrogateescape"), token.encode())
        if scheme.lower() != "bearer" or not same:
            raise Refusal(401, "needs_token", "a valid Bearer token is needed", WWW_Authenticate="Bearer")

    def _is_allowed(self, origin: str) -> bool:
        return origin.lower() in (allowed.lower() for allowed in self._access.allow_origins)

    def _cors(self, request: web.Request) -> dict[str, str]:
        origin = request.headers.get("Origin", "")
        if not self._is_allowed(origin):
            return {"Vary": "Origin"}
        return {
            "Vary": "Origin",
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Expose-Headers": EXPOSED,
        }


async def read_body(request: web.Request) -> bytes:
    """The body, of at most MAX_BODY_BYTES whatever the application's own limit is. Raises Refusal."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.content.iter_any():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise Refusal(413, "too_long", f"a body has at most {MAX_BODY_BYTES} bytes")
    except TimeoutError as error:
        raise Refusal(408, "too_slow", f"the body must be there within {BODY_SECONDS:g} s") from error
    except web.RequestPayloadError as error:
        raise Refusal(400, "bad_request", "the body is not in the encoding that its headers say") from error
    return bytes(body)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that binds to it."""
    return host.lower() == "localhost" or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_local(remote: str | None) -> bool:
    """Whether a request came from this machine; one without an address came through a Unix socket."""
    return not remote or is_loopback(remote)


def is_address(name: str) -> bool:
    """Whether it is a plain IP address, which no DNS answer can move."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def network(remote: str | None) -> str:
    """Whose requests are counted together: an IPv4 address, or the /64 that a client of IPv6 usually owns."""
    if not remote or not is_address(remote):
        return remote or ""
    address = ipaddress.ip_address(remote.partition("%")[0])
    if address.version == 6 and address.ipv4_mapped is None:
        return str(ipaddress.ip_network(f"{address}/64", strict=False))
    return remote


def name_of(host: str) -> str:
    """The name or address in host[:port], in lower case and without brackets; empty where it reads otherwise."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?", host)
    if match is None or (match[1] and not is_address(match[1])):
        return ""
    return (match[1] or match[2]).lower()


async def _no_route(request: web.Request) -> web.StreamResponse:
    error = request.match_info.http_exception
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        raise Refusal(405, "wrong_method", f"this route takes {allowed}", Allow=allowed)
    raise Refusal(404, "not_found", "there is no such route")


def _as_refusal(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    log.error("a request could not be answered", exc_info=error)
    return Refusal(500, "internal", "the server failed: its log says why")
