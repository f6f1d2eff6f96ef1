"""POST /voices: a recording in, the id of a voice out, which calls and speeches may then speak like.

    POST    /voices       multipart/form-data: audio, text -> 201 {id, seconds, licence}    token
                          or 503 and Retry-After while busy
    DELETE  /voices/{id}                                                                    token
    OPTIONS /voices       for pages of other origins                                        open

It does not know what a recording sounds like. The form is read as it comes: at most 10 MiB, within a minute. Who hangs
up is given up, whatever is being done with the recording.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from typing import Any, cast

from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from agent.guard import AddRoute, Guard, Refusal, busy
from agent.protocol import MAX_REASON_CHARS
from agent.speech_http import while_connected
from agent.voices import RETRY_AFTER, Made, Voices, VoicesBusy, in_their_words
from engine.checks import RequestError
from engine.core import ErrorCode, ModelSpec
from engine.reference import MAX_BYTES, check_cloning

PATH = "voices"
UPLOAD_SECONDS = 60.0
MAX_UPLOADS = 4
"""At once, from the first byte of a recording until it is a voice: each is held that long, 10 MiB of it, whether it is
still being sent or waits for its turn. Beside these there are only recordings of calls, which are small."""
UNREADABLE = ValueError, RuntimeError, AssertionError, HttpProcessingError, web.RequestPayloadError
"""How aiohttp says that a form cannot be read."""
LIMITS = {"audio": MAX_BYTES, "text": 8 * 1024}
"""Bytes of the form's parts."""


def add_routes(add: AddRoute, guard: Guard, voices: Voices, spec: ModelSpec) -> None:
    """Enters the routes."""
    routes = VoiceRoutes(voices, spec)
    add("POST", PATH, routes.make, needs_token=True)
    add("OPTIONS", PATH, guard.preflight)
    add("DELETE", f"{PATH}/{{id}}", routes.forget, needs_token=True)
    add("OPTIONS", f"{PATH}/{{id}}", guard.preflight)


class VoiceRoutes:
    """What the routes answer."""

    def __init__(self, voices: Voices, spec: ModelSpec) -> None:
        self._voices, self._spec = voices, spec
        self._uploads = 0

    async def make(self, request: web.Request) -> web.StreamResponse:
        """One voice. Raises Refusal."""
        with refusals():
            check_cloning(self._spec, recorded=True)
        if self._uploads >= MAX_UPLOADS:
            raise busy(VoicesBusy("too many recordings are being sent or worked on", ErrorCode.BUSY, None), RETRY_AFTER)
        self._uploads += 1
        try:
            made = await while_connected(request, self._made(request))
        except ConnectionError:
            return web.Response()  # which nobody gets
        finally:
            self._uploads -= 1
        told = {"id": made.id, "seconds": round(made.seconds, 2), "licence": self._spec.licence}
        return web.json_response(told, status=201)

    async def _made(self, request: web.Request) -> Made:
        form = await read_form(request)
        with refusals():
            return await self._voices.make(form.get("audio", b""), words(form.get("text", b"")))

    async def forget(self, request: web.Request) -> web.StreamResponse:
        if not self._voices.forget(request.match_info["id"]):
            raise Refusal(404, "not_found", "there is no such voice")
        return web.Response(status=204)


@contextmanager
def refusals() -> Iterator[None]:
    """Around work on a recording: what it raises, as an answer over HTTP. Raises Refusal."""
    try:
        yield
    except RequestError as error:
        raise Refusal(400, "bad_request", in_their_words(error)[0][:MAX_REASON_CHARS]) from error
    except VoicesBusy as error:
        raise busy(error, error.retry_after or RETRY_AFTER) from error


def words(text: bytes) -> str:
    """Raises RequestError."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        got = error.object[error.start : error.start + 1]
        raise RequestError(f"text must be UTF-8, got {got!r}", "text") from error


async def read_form(request: web.Request) -> dict[str, bytes]:
    """The form's parts by name, each within its limit. Raises Refusal."""
    if request.content_type != "multipart/form-data":
        raise Refusal(415, "bad_request", "the body must be multipart/form-data, with the parts audio and text")
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            body = cast(StreamReader, Body(request.content, boundary_of(request)))
            return await _parts(MultipartReader(request.headers, body))
    except TimeoutError as error:
        raise Refusal(408, "too_slow", f"the recording must be there within {UPLOAD_SECONDS:g} s") from error
    except UNREADABLE as error:
        raise Refusal(
            400, "bad_request", f"the body must be a form that can be read: {error}"[:MAX_REASON_CHARS]
        ) from error


class Body:
    """A form's body, which has to begin with its boundary: aiohttp looks for that line after line (RFC 2046, section
    5.1.1, allows a preamble), and nothing else goes on while there are lines. Otherwise it is what it is given."""

    def __init__(self, content: StreamReader, boundary: bytes) -> None:
        self._content, self._first = content, b"--" + boundary

    async def readline(self, **limits: int) -> bytes:
        """Raises ValueError for a first line that is not the boundary."""
        line = await self._content.readline(**limits)
        if self._first and line.rstrip() not in (self._first, self._first + b"--"):
            raise ValueError("it must begin with its boundary")
        self._first = b""
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)


def boundary_of(request: web.Request) -> bytes:
    """What parts the form."""
    header = Message()
    header["Content-Type"] = request.headers["Content-Type"]
    return (header.get_boundary() or "").encode()


async def _parts(reader: MultipartReader) -> dict[str, bytes]:
    parts: dict[str, bytes] = {}
    while (part := await reader.next()) is not None:
        name = part.name if isinstance(part, BodyPartReader) else None
        if not isinstance(part, BodyPartReader) or name not in LIMITS or name in parts:
            raise Refusal(400, "bad_request", f"the form must have the parts audio and text, once each, got {name!r}")
        parts[name] = await _read(part, LIMITS[name])
    return parts


async def _read(part: BodyPartReader, most: int) -> bytes:
    data = bytearray()
    while chunk := await part.read_chunk():
        data += chunk
        if len(data) > most:
            raise Refusal(413, "too_long", f"{part.name} has at most {most} bytes")
    return bytes(data)
