"""How a call is asked for and ended over HTTP, in each of the protocols that are spoken, and what a server says in it
about its own speech. It does not know WebRTC.

    offer    POST JSON {sdp, type}       -> JSON {sdp, type}; with an `id`, as BreezeRT's, DELETE calls/{id} ends it
    openai   POST application/sdp        -> SDP; with a Location, POST {Location}/hangup ends it
    whep     POST application/sdp        -> SDP, Location; DELETE it (draft-ietf-wish-whep-03, section 4)

Where an address has a path, it is the route as it is; else it is /offer, /v1/realtime/calls or /whep. So aiortc-style
servers of others are called too: http://127.0.0.1:7860/api/offer. Without a way to end it, a call ends with its
connection. What goes wrong is a ClientError whose text says what happened.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import ClientError as HttpError
from aiohttp import ClientResponse, ClientSession, ClientTimeout
from yarl import URL

from agent.dial import BUSY, BusyError, ClientError, RefusedError, UnreachableError, body_of, parsed, retry_after
from agent.probe.recording import Told

SDP = "application/sdp"
HANG_UP_SECONDS = 2.0
"""What ending a call may take: a server that does not answer any more notices by itself."""
LATE_SECONDS = 1.0
"""How long an answer is waited for that nobody wants any more, so that the call can be ended which it is about."""
MAX_QUOTED_CHARS = 200


@dataclass(frozen=True, slots=True)
class Dialect:
    """What tells one protocol from another."""

    path: str
    """The route, where an address has none."""
    channel: str | None
    """The data channel's label; None where there is none."""
    needs_channel: bool
    """Nothing is done for a client without it."""
    speaks: bool
    """The client has a microphone."""


DIALECTS = {
    "offer": Dialect("/offer", "breezert", needs_channel=False, speaks=True),
    "openai": Dialect("/v1/realtime/calls", "oai-events", needs_channel=True, speaks=True),
    "whep": Dialect("/whep", None, needs_channel=False, speaks=False),
}


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to call: `url` is a server's, or a route's, see above; `protocol` one of DIALECTS; `token` is sent as a
    bearer's; `tls` is for a server whose certificate is not publicly known; within so many seconds the call is up.

    Raises ValueError.
    """

    url: str
    protocol: str = "offer"
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    within: float = 15.0

    def __post_init__(self) -> None:
        if self.protocol not in DIALECTS:
            raise ValueError(f"a protocol is one of {', '.join(DIALECTS)}, got {self.protocol!r}")
        url = URL(self.url)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"an agent's address reads like http://127.0.0.1:8080, got {self.url!r}")
        if not self.within > 0:
            raise ValueError(f"a call needs some seconds to be connected, got within={self.within:g}")

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.protocol]

    @property
    def route(self) -> URL:
        """To which the offer goes."""
        url = URL(self.url)
        return url if url.path not in ("", "/") else url.with_path(self.dialect.path).with_query(url.query)


@dataclass(frozen=True, slots=True)
class Farewell:
    """The request that ends a call."""

    method: str
    url: URL


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answers to an offer."""

    sdp: str
    farewell: Farewell | None


class Exchange:
    """One call's way to its server. `hang_up` ends the call, and what this holds, in every case."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._http = ClientSession()
        self._asking: asyncio.Task[Answer] | None = None

    async def offer(self, sdp: str) -> Answer:
        """The answer to an offer's SDP; to be asked once. Raises ClientError. Cancelled, it goes on until `hang_up`."""
        self._asking = asyncio.create_task(self._ask(sdp))
        return await asyncio.shield(self._asking)

    async def hang_up(self) -> None:
        """Ends the call, where there is one and it can be told. Raises nothing."""
        try:
            answer = await self._late()
            if answer is not None and answer.farewell is not None:
                await self._say(answer.farewell)
        finally:
            await self._http.close()

    async def _late(self) -> Answer | None:
        """The answer, which may come only now."""
        if self._asking is None:
            return None
        if not self._asking.done():
            await asyncio.wait([self._asking], timeout=LATE_SECONDS)
        if not self._asking.done():
            self._asking.cancel()
            await asyncio.wait([self._asking])
        return None if self._asking.cancelled() or self._asking.exception() else self._asking.result()

    async def _say(self, farewell: Farewell) -> None:
        headers = self._headers if farewell.url.origin() == self._target.route.origin() else {}
        timeout = ClientTimeout(total=HANG_UP_SECONDS)
        try:
            async with self._http.request(
                farewell.method, farewell.url, headers=headers, ssl=self._tls, timeout=timeout, allow_redirects=False
            ):
                pass
        except (HttpError, OSError, ValueError):
            return

    async def _ask(self, sdp: str) -> Answer:
        route, json = self._target.route, self._target.protocol == "offer"
        body: dict[str, Any] = {"json": {"sdp": sdp, "type": "offer"}} if json else {"data": sdp.encode()}
        headers = self._headers if json else {**self._headers, "Content-Type": SDP, "Accept": SDP}
        try:
            async with self._http.post(
                route, headers=headers, ssl=self._tls, timeout=ClientTimeout(), allow_redirects=False, **body
            ) as response:
                body_bytes = await body_of(response)
        except (HttpError, OSError, ValueError) as error:  # a TimeoutError, too; ValueError: a header that is none
            raise UnreachableError(f"{route} cannot be reached: {error or type(error).__name__}") from error
        if response.status not in (200, 201):
            raise refusal(response, body_bytes)
        return from_json(route, body_bytes) if json else from_sdp(self._target.protocol, response, body_bytes)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._target.token}"} if self._target.token else {}

    @property
    def _tls(self) -> ssl.SSLContext | bool:
        return self._target.tls or True


def from_json(route: URL, body: bytes) -> Answer:
    """Raises RefusedError."""
    found = parsed(body)
    sdp, call_id = found.get("sdp"), found.get("id")
    if not isinstance(sdp, str):
        raise RefusedError(f"{route} answers no WebRTC offers: expected JSON with sdp, got {quoted(body)}", 200)
    if not isinstance(call_id, str) or not call_id or route.name != "offer":
        return Answer(sdp, None)
    with suppress(ValueError):  # an id that is no part of a path
        return Answer(sdp, Farewell("DELETE", route.with_query(None).parent / "calls" / call_id))
    return Answer(sdp, None)


def from_sdp(protocol: str, response: ClientResponse, body: bytes) -> Answer:
    """Raises RefusedError."""
    sdp = body.decode(errors="replace")
    if not sdp.startswith("v="):
        expected = f"expected an SDP ({SDP}), got {quoted(body)}"
        raise RefusedError(f"{response.url} answers no WebRTC offers: {expected}", response.status)
    return Answer(sdp, farewell_of(protocol, response))


def farewell_of(protocol: str, response: ClientResponse) -> Farewell | None:
    """By its Location, which may be relative. One of another server's is not asked: who answers there is a stranger."""
    try:
        location = response.url.join(URL(response.headers["Location"])).with_fragment(None)
        if location.origin() != response.url.origin():
            return None
    except (KeyError, ValueError):
        return None
    return Farewell("DELETE", location) if protocol == "whep" else Farewell("POST", location / "hangup")


def refusal(response: ClientResponse, body: bytes) -> ClientError:
    """What a status other than 200 and 201 means, in the server's own words where it has any."""
    text = f"{response.url} answered {response.status} {response.reason or ''}".rstrip()
    if response.status in BUSY:
        error = parsed(body).get("error")
        return BusyError(f"{text}: {words(body)}", retry_after(response, error if isinstance(error, dict) else {}))
    if "Location" in response.headers:
        return RefusedError(f"{text}: call {response.headers['Location'][:MAX_QUOTED_CHARS]}", response.status)
    return RefusedError(f"{text}: {words(body)}" if body.strip() else text, response.status)


def words(body: bytes) -> str:
    """An error's message: BreezeRT's and OpenAI's {error: {message}}, FastAPI's {detail}; else what is there."""
    found = parsed(body)
    error = found.get("error", found)
    for message in (error.get("message"), error.get("detail")) if isinstance(error, dict) else (error,):
        if isinstance(message, str) and message:
            return printable(message)[:MAX_QUOTED_CHARS]
    return quoted(body)


def printable(text: str) -> str:
    """What a terminal and a file can take: no control codes, no halves of characters."""
    return "".join(char if char.isprintable() else " " for char in text)


def quoted(body: bytes) -> str:
    """A body's beginning, in one line."""
    text = " ".join(body.decode(errors="replace").split())
    if text[:15].lower().startswith(("<!doctype html", "<html")):
        return "an HTML page"
    return repr(text[:MAX_QUOTED_CHARS]) if text else "nothing"


# ---- what a server says of its speech -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """What the server said of its own speech at `at`.

    kind: started, it is audible from here on; stopped, nothing more of it comes; heard, so much of it was heard.
    heard_ms and text, where it says them: the ms of the audio and the part of the text that a listener has heard.
    """

    at: float
    kind: str
    heard_ms: float | None = None
    text: str | None = None


KINDS = {
    "speech.started": "started",
    "speech.continued": "started",
    "speech.paused": "stopped",
    "speech.stopped": "stopped",
    "reply.ended": "heard",
    "output_audio_buffer.started": "started",
    "output_audio_buffer.stopped": "stopped",
    "output_audio_buffer.cleared": "stopped",
    "conversation.item.truncated": "heard",
}
"""Messages by their type, which is no other's in another protocol: BreezeRT's (agent/protocol.py), and the server
events of OpenAI's Realtime API. WHEP has none. speech.paused and .continued: it stands still while it is in doubt."""


def claims(told: Iterable[Told]) -> list[Claim]:
    """What a server's messages say of its speech, in their order; a pure function of them."""
    return [claim(message) for message in told if message.type in KINDS]


def claim(message: Told) -> Claim:
    heard_ms = message.body.get("heard_ms", message.body.get("audio_end_ms"))
    text = message.body.get("heard")
    number = isinstance(heard_ms, int | float) and not isinstance(heard_ms, bool)
    return Claim(
        message.at,
        KINDS[message.type],
        float(heard_ms) if number and heard_ms is not None else None,
        text if isinstance(text, str) else None,
    )
