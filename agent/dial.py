"""Asks a server over HTTP for a call, and ends it: the client's half of server.py. It does not know WebRTC.

What goes wrong is a ClientError whose text says what happened and what to do about it.
"""

from __future__ import annotations

import json
import ssl
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientError as HttpError
from aiohttp import ClientResponse, ClientSession, ClientTimeout

MAX_BODY_BYTES = 64 * 1024
"""Of an answer; an SDP has some 2 KiB."""
HANG_UP_SECONDS = 2.0
"""What hanging up may take: a server that does not answer any more notices by itself."""
BUSY = (429, 503)
MAX_WAIT_MS = 86_400_000
RETRY_AFTER = 1.0
"""Seconds, where a server that is busy does not say how long."""
MAX_QUOTED_CHARS = 200


class ClientError(Exception):
    """A call that cannot be made, or one that cannot go on."""


class RefusedError(ClientError):
    """The server does not take this call: `status` is HTTP's, `code` the server's own word where it gives one."""

    def __init__(self, message: str, status: int, code: str = "") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class BusyError(ClientError):
    """There is no room now: ask again after `retry_after` seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnreachableError(ClientError):
    """Nobody answers there, or no packets come through."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server answers to an offer."""

    sdp: str
    call_id: str


class Line:
    """One server's routes. To be closed. Raises ValueError for an address that is not absolute."""

    def __init__(self, url: str, token: str | None, tls: ssl.SSLContext | None) -> None:
        self._url, self._tls = url.rstrip("/") + "/", tls or True
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = ClientSession(base_url=self._url, headers=headers)

    async def offer(self, sdp: str) -> Answer:
        """The answer to an offer's SDP. Raises RefusedError, BusyError and UnreachableError."""
        body = {"sdp": sdp, "type": "offer"}
        try:
            async with self._http.post("offer", json=body, ssl=self._tls, allow_redirects=False) as response:
                found = parsed(await body_of(response))
                if response.status != 200:
                    raise refusal(response, found)
                return answer(found)
        except (HttpError, OSError) as error:  # a TimeoutError, too
            raise UnreachableError(f"{self._url} cannot be reached: {error or type(error).__name__}") from error

    async def hang_up(self, call_id: str) -> None:
        """Ends the call, where that can be told. Raises nothing."""
        try:
            timeout = ClientTimeout(total=HANG_UP_SECONDS)
            async with self._http.delete(f"calls/{call_id}", ssl=self._tls, timeout=timeout):
                pass
        except (HttpError, OSError):
            return

    async def close(self) -> None:
        """Gives the connection back."""
        await self._http.close()


async def body_of(response: ClientResponse, most: int = MAX_BODY_BYTES) -> bytes:
    """All of it, or as much as any answer of ours has."""
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > most:
            break
    return bytes(body)


def parsed(body: bytes) -> dict[str, Any]:
    """The JSON object in it; empty where there is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def answer(found: dict[str, Any]) -> Answer:
    sdp, call_id = found.get("sdp"), found.get("id")
    if not isinstance(sdp, str) or not isinstance(call_id, str):
        raise RefusedError("what answers there is no BreezeRT server: its answer has no sdp and id", 200)
    return Answer(sdp, call_id)


def refusal(response: ClientResponse, found: dict[str, Any]) -> ClientError:
    """What a status other than 200 means, in the server's own words where it has any."""
    error = found.get("error")
    error = error if isinstance(error, dict) else {}
    message = str(error.get("message") or response.reason or "no reason given")[:MAX_QUOTED_CHARS]
    if response.status in BUSY:
        return BusyError(message, retry_after(response, error))
    return RefusedError(f"{response.status}: {message}", response.status, str(error.get("code", "")))


def retry_after(response: ClientResponse, error: dict[str, Any]) -> float:
    """Seconds: the server's milliseconds, else its header."""
    wait = error.get("retry_after_ms")
    if isinstance(wait, int | float) and 0 <= wait < MAX_WAIT_MS:
        return wait / 1000
    header = response.headers.get("Retry-After", "")
    return float(header) if header.isdecimal() and len(header) < 9 else RETRY_AFTER
