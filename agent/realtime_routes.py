"""The routes of the OpenAI Realtime protocol: calls and client keys. It does not know WebRTC, or what is said.

    POST   v1/realtime/calls              SDP, or multipart sdp + session -> 201, SDP, Location   token or client key
    POST   v1/realtime/calls/{id}/hangup                                  -> 200                  token
    DELETE v1/realtime/calls/{id}                                         -> 204                  token
    POST   v1/realtime/client_secrets     {session, expires_after} -> {value, expires_at, session}   token

A client key opens one call, in which the settings that it was made with hold whatever the client asks for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Annotated, Any

import msgspec
from aiohttp import web
from msgspec import Meta

from agent.calls import Calls
from agent.conversation import Conversation
from agent.dialogue import Terms
from agent.fault import field_of
from agent.guard import AddRoute, Guard, Refusal, busy, read_body
from agent.opening import refusals
from agent.realtime import EventError, Json
from agent.realtime_keys import KEY_SECONDS, PREFIX, ClientKeys, Key, KeysExhausted
from agent.realtime_session import check, defaults, merged
from engine.clock import Clock, MonotonicClock

SDP, MULTIPART = "application/sdp", "multipart/form-data"
MAX_PARTS = 16
"""Of a form; two are asked for."""


def add_routes(add: AddRoute, guard: Guard, calls: Calls, clock: Clock | None = None) -> None:
    """Adds the routes; somebody is to answer in these calls."""
    routes = RealtimeRoutes(guard, calls, ClientKeys(clock or MonotonicClock()))
    add("POST", "v1/realtime/calls", routes.open)  # a client key is as good as the token: it looks itself
    add("POST", "v1/realtime/calls/{id}/hangup", routes.hang_up, needs_token=True)
    add("DELETE", "v1/realtime/calls/{id}", routes.delete, needs_token=True)
    add("POST", "v1/realtime/client_secrets", routes.make_key, needs_token=True)
    for path in ("calls", "calls/{id}/hangup", "calls/{id}", "client_secrets"):
        add("OPTIONS", f"v1/realtime/{path}", guard.preflight)


@dataclass(frozen=True, slots=True)
class Opening:
    """What is asked for with an offer."""

    sdp: str
    session: Json = field(default_factory=dict)


class Lifetime(msgspec.Struct, frozen=True):
    """Of a key."""

    seconds: Annotated[float, Meta(gt=0)] = KEY_SECONDS


class Secret(msgspec.Struct, frozen=True):
    """What a key is asked for with."""

    session: dict[str, Any] = {}
    expires_after: Lifetime = Lifetime()


class RealtimeRoutes:
    """What each route answers."""

    def __init__(self, guard: Guard, calls: Calls, keys: ClientKeys) -> None:
        self._guard, self._calls, self._keys = guard, calls, keys

    async def open(self, request: web.Request) -> web.StreamResponse:
        key = self._key(request)
        try:
            opening = opened(request.headers.get("Content-Type", ""), await read_body(request))
            call_id, answer = await self._open(opening, key)
        except BaseException:
            if key:
                self._keys.give_back(key)
            raise
        headers = {"Location": f"{request.path}/{call_id}"}
        return web.Response(status=201, text=answer, content_type=SDP, headers=headers)

    def _key(self, request: web.Request) -> Key | None:
        """The client key that the request comes with, None for the token. Raises Refusal."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.startswith(PREFIX):
            self._guard.check_token(request)
            return None
        if key := self._keys.take(given):
            return key
        reason = f"the client key is void: it opens one call, within {KEY_SECONDS:.0f} s"
        raise Refusal(401, "needs_token", reason, WWW_Authenticate="Bearer")

    async def _open(self, opening: Opening, key: Key | None) -> tuple[str, str]:
        """Raises Refusal."""
        with refusals():
            call_id, answer = await self._calls.open(opening.sdp)
        terms = Terms(asked=opening.session, fixed=key.fixed if key else {})
        for session in self._calls.sessions:
            if session.id == call_id and isinstance(session.partner, Conversation):
                session.partner.terms = terms
                if terms.fixed:  # nothing is answered before the client's channel has brought them into force
                    session.partner.automatic = False
        return call_id, answer

    async def hang_up(self, request: web.Request) -> web.StreamResponse:
        await self._end(request)
        return web.Response(status=200)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        await self._end(request)
        return web.Response(status=204)

    async def _end(self, request: web.Request) -> None:
        if not await self._calls.hang_up(request.match_info["id"]):
            raise Refusal(404, "not_found", "there is no call of that id: it may be over already")

    async def make_key(self, request: web.Request) -> web.StreamResponse:
        asked = secret(await read_body(request))
        seconds = min(asked.expires_after.seconds, KEY_SECONDS)
        try:
            value = self._keys.make(asked.session, seconds)
        except KeysExhausted as error:
            raise busy(error, error.retry_after) from error
        session = merged(defaults("", "", None), asked.session)
        answer = {"value": value, "expires_at": int(time.time() + seconds), "session": session}
        return web.json_response(answer)


def secret(body: bytes) -> Secret:
    """What a key is asked for with. Raises Refusal that names the field."""
    try:
        asked = msgspec.json.decode(body or b"{}", type=Secret)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        where = field_of(str(error))
        raise Refusal(400, "bad_request", f"the body is JSON: {error}" + (f" ({where})" if where else "")) from error
    checked(asked.session)
    return asked


def checked(session: Json) -> Json:
    """Raises Refusal."""
    try:
        check(session)
    except EventError as error:
        raise Refusal(400, "bad_request", f"{error.param}: {error}") from error
    return session


def opened(content_type: str, body: bytes) -> Opening:
    """What an offer asks for. Raises Refusal that says what was expected."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == SDP:
        return Opening(_text(body))
    if kind != MULTIPART:
        raise Refusal(415, "bad_request", f"an offer comes as {SDP}, or as {MULTIPART} with sdp and session")
    parts = fields(content_type, body)
    if "sdp" not in parts:
        raise Refusal(400, "bad_request", "the form needs a field sdp, and may have session")
    try:
        session = msgspec.json.decode(parts.get("session", b"{}"), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, "bad_request", f"the field session is a JSON object: {error}") from error
    return Opening(_text(parts["sdp"]), checked(session))


def fields(content_type: str, body: bytes) -> dict[str, bytes]:
    """The fields of a form (RFC 7578), which is flat: a parser of mail would follow forms inside of forms. What is no
    form has none."""
    boundary = _headers(f"Content-Type: {content_type}".encode(errors="replace")).get_boundary()
    if not boundary:
        return {}
    found = {}
    for part in (b"\r\n" + body).split(f"\r\n--{boundary}".encode(errors="replace"), MAX_PARTS)[1:]:
        head, there, value = part.partition(b"\r\n\r\n")
        name = _headers(head.lstrip()).get_param("name", header="Content-Disposition")
        if there and isinstance(name, str):
            found[name] = value
    return found


def _headers(head: bytes) -> Message:
    return BytesHeaderParser().parsebytes(head)


def _text(sdp: bytes) -> str:
    try:
        return sdp.decode()
    except UnicodeDecodeError as error:
        raise Refusal(400, "bad_request", "the SDP is not in UTF-8") from error
