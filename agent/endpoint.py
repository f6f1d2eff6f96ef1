"""Asks one OpenAI-compatible server over HTTP, and turns everything that can go wrong into an OutsideError.

It does not know what is asked. The key goes into the Authorization header and nowhere else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite
from urllib.parse import SplitResult, urlsplit

import aiohttp
import msgspec

from agent.guard import is_loopback
from agent.secret import Secret
from agent.trouble import OutsideError, SettingsError, Trouble

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0
REASON_CHARS = 300
REASON_BYTES = 4096
REASON_SECONDS = 2.0
"""What a refusal's body may take: its status has said the most."""

Body = Callable[[], bytes | aiohttp.FormData]
"""Makes the body; called again where the request has to be sent again."""


class Endpoint:
    """One server. It connects when it is first asked, on the event loop that asks, and keeps connections for later."""

    def __init__(self, url: str, key: Secret | None = None) -> None:
        """`url` as the server's documentation gives it, such as https://api.openai.com/v1. Raises SettingsError."""
        parts = checked_url(url)
        self._url, self._key = url.rstrip("/"), key
        self._session: aiohttp.ClientSession | None = None
        if key is not None and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            log.warning("the key for %s crosses the network in the clear: https would hide it", parts.hostname)

    @asynccontextmanager
    async def post(self, path: str, body: Body, accept: str) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response with a status of 200 to 299; its body may be read inside. Raises OutsideError, also for errors of
        aiohttp that are raised inside. Whatever ends it, no connection stays in use."""
        response = None
        try:
            response = await self._send(path, body, accept)
            if response.status // 100 != 2:
                raise await self._refusal(response)
            yield response
        except (aiohttp.ClientError, OSError) as error:
            raise self._outside(error) from None  # the cause would carry the request with its headers
        finally:
            if response is not None:
                response.release()  # closes the connection, unless the body was read to its end

    async def close(self) -> None:
        """Ends all connections. It can be asked again."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def _send(self, path: str, body: Body, accept: str) -> aiohttp.ClientResponse:
        try:
            return await self._send_once(path, body, accept)
        except aiohttp.ServerDisconnectedError:  # it gave up a kept connection in the moment in which we took it
            return await self._send_once(path, body, accept)

    async def _send_once(self, path: str, body: Body, accept: str) -> aiohttp.ClientResponse:
        data, headers = body(), {"Accept": accept}
        if isinstance(data, bytes):
            headers["Content-Type"] = "application/json"
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key.reveal()}"
        return await self._opened().post(self._url + path, data=data, headers=headers, allow_redirects=False)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),  # who asks knows how long
                cookie_jar=aiohttp.DummyCookieJar(),  # one caller's cookies are none of the next one's
            )
        return self._session

    async def _refusal(self, response: aiohttp.ClientResponse) -> OutsideError:
        reason = self.shown(complaint(await head(response)))
        text = f"the server answered {response.status}" + (f": {reason}" if reason else "")
        if response.status // 100 == 3:
            text += ": it has moved, give its new address"
        return OutsideError(trouble_of(response.status), text, retry_after(response.headers.get("Retry-After")))

    def _outside(self, error: Exception) -> OutsideError:
        reason = self.shown(str(error)) or type(error).__name__
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return OutsideError(Trouble.UNREACHABLE, f"the server took no connection in {CONNECT_SECONDS:.0f} s")
        if isinstance(error, aiohttp.ClientConnectorError):
            return OutsideError(Trouble.UNREACHABLE, f"the server cannot be reached: {reason}")
        return OutsideError(Trouble.BROKEN, f"the connection was cut: {reason}")

    def shown(self, text: str) -> str:
        """What somebody else wrote, for a log: one line, short, without the key."""
        text = text if self._key is None else self._key.hide(text)
        line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
        return line if len(line) <= REASON_CHARS else line[:REASON_CHARS] + "..."


def checked_url(url: str) -> SplitResult:
    """Raises SettingsError, without repeating what may hold a password."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - raises where it is none
    except ValueError:
        raise SettingsError("url must be an address such as http://localhost:8000/v1") from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise SettingsError("url has no user, password, query or fragment: a key comes from key_env or key_file")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError("url must be an address such as http://localhost:8000/v1")
    for path in ("/chat/completions", "/audio/transcriptions"):
        if parts.path.rstrip("/").endswith(path):
            raise SettingsError(f"url ends before {path}, as in http://localhost:8000/v1")
    return parts


async def head(response: aiohttp.ClientResponse) -> bytes:
    """The beginning of a body, or what of it came in time."""
    found = b""
    try:
        async with asyncio.timeout(REASON_SECONDS):
            while len(found) < REASON_BYTES and (data := await response.content.read(REASON_BYTES)):
                found += data
    except (TimeoutError, aiohttp.ClientError):
        pass
    return found[:REASON_BYTES]


def complaint(body: bytes) -> str:
    """What an error's body says: that of OpenAI, {"error": {"message"}}, its relatives, or the text as it is."""
    try:
        found: object = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return body.decode(errors="replace")
    for key in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(key):
            found = found[key]
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


def trouble_of(status: int) -> Trouble:
    if status in (429, 503, 529):
        return Trouble.BUSY
    if status in (408, 504):
        return Trouble.TIMEOUT
    return Trouble.BROKEN if status >= 500 else Trouble.REFUSED


def retry_after(header: str | None) -> float | None:
    """Seconds, from seconds or a date (RFC 9110, section 10.2.3); None for anything else."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):  # TypeError: a date without a zone
            return None
    return max(0.0, seconds) if isfinite(seconds) else None
