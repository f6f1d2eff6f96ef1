"""agent/guard.py: who is served. Every rule, against a real aiohttp server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from agent.guard import Access, AccessError, Guard, is_local, is_loopback, network, read_body

Get = Callable[..., Awaitable[tuple[int, dict[str, Any], Any]]]
TOKEN = "correct-horse-battery"


class ScriptedTime:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class Gate:
    """A server with an open route, a token route and an echo, behind one guard."""

    def __init__(self, access: Access) -> None:
        self.time, self.refused = ScriptedTime(), list[int]()
        guard = self.guard = Guard(access, self.time, self.refused.append)
        app = web.Application()
        app.router.add_get("/open", guard.wrap(self.fine))
        app.router.add_get("/secret", guard.wrap(self.fine, needs_token=True))
        app.router.add_post("/echo", guard.wrap(self.echo, needs_token=True))
        app.router.add_get("/broken", guard.wrap(self.broken))
        app.router.add_get("/stream", guard.wrap(self.stream))
        app.router.add_options("/echo", guard.wrap(guard.preflight))
        self.server = TestServer(app)

    async def fine(self, request: web.Request) -> web.Response:
        return web.json_response({"fine": True})

    async def echo(self, request: web.Request) -> web.Response:
        return web.json_response({"size": len(await read_body(request))})

    async def stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"ETag": '"x"', **self.guard.headers(request)})
        await response.prepare(request)
        await response.write(b"some")
        return response

    async def broken(self, request: web.Request) -> web.Response:
        raise LookupError("a secret of the inside")

    async def raw(self, *lines: bytes) -> str:
        """The head and body of the answer to a request as it stands here: no client would send it."""
        reader, writer = await asyncio.open_connection(self.server.host, self.server.port)
        writer.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]))
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer.decode()

    async def ask(self, method: str, path: str, *, data: Any = None, **headers: str) -> tuple[int, dict[str, Any], Any]:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.request(method, self.server.make_url(path), headers=named, data=data) as response:
            body = await response.json() if response.content_type == "application/json" else None
            return response.status, dict(response.headers), body

    async def __aenter__(self) -> Gate:
        await self.server.start_server()
        self.client = ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.server.close()


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    async with Gate(Access()) as opened:
        yield opened


@pytest.fixture
async def locked() -> AsyncIterator[Gate]:
    access = Access("127.0.0.1", TOKEN, allow_hosts=("voice.example.org",), allow_origins=("https://app.example.org",))
    async with Gate(access) as opened:
        yield opened


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "127.0.0.1:8080", "[::1]:8080", "192.168.1.5:80"])
async def test_plain_addresses_and_localhost_are_served(gate: Gate, host: str) -> None:
    assert (await gate.ask("GET", "/open", Host=host))[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.org",
        "127.0.0.1.evil.org",
        "localhost.evil.org",
        "voice.example.org",
        "a@localhost",
        "[",
        "",
        "[1.2.3]",
        "[:::::]",
        "[zz]",
        "[]",
        "[localhost]",
        "localhost:١",
        "\udcff",
    ],
)
@pytest.mark.parametrize("path", ["/open", "/secret"])
async def test_a_name_that_is_not_ours_is_dns_rebinding(gate: Gate, host: str, path: str) -> None:
    status, _, body = await gate.ask("GET", path, Host=host)
    assert status in (400, 421)  # aiohttp itself refuses some
    assert gate.refused == [421] * (status == 421)
    assert status == 400 or body["error"]["code"] == "wrong_host"


async def test_a_name_that_was_allowed_is_served(locked: Gate) -> None:
    assert (await locked.ask("GET", "/open", Host="Voice.example.org:443"))[0] == 200


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example.org", "null", "http://localhost:1", "http://127.0.0.1", "http://[", "http://[zz]", ""],
)
async def test_a_foreign_page_is_refused_on_every_route(gate: Gate, origin: str) -> None:
    for path in ("/open", "/secret"):
        status, headers, body = await gate.ask("GET", path, Origin=origin)
        assert (status, body["error"]["code"]) == (403, "wrong_origin")
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("scheme", ["http", "https"])  # TLS may end at a proxy
async def test_its_own_page_is_served(gate: Gate, scheme: str) -> None:
    assert (await gate.ask("GET", "/secret", Origin=f"{scheme}://localhost:99", Host="localhost:99"))[0] == 200


@pytest.mark.parametrize(
    "origin",
    [
        "//localhost",
        "localhost",
        "http://localhost/x",
        "http://localhost/",
        "http://a@localhost",
        "http://localhost:80",
        "chrome-extension://localhost",
        "ws://localhost",
        "http://localhost#x",
        "http:localhost",
    ],
)
async def test_what_only_resembles_its_own_page_is_refused(gate: Gate, origin: str) -> None:
    assert (await gate.ask("GET", "/open", Host="localhost", Origin=origin))[0] == 403
    assert gate.refused == [403]


async def test_cors_names_an_allowed_origin_and_never_a_star(locked: Gate) -> None:
    status, headers, _ = await locked.ask("OPTIONS", "/echo", Origin="https://app.example.org")
    assert status == 204
    assert headers["Access-Control-Allow-Origin"] == "https://app.example.org"
    assert headers["Access-Control-Allow-Methods"] == "POST, PATCH, DELETE"
    assert {"Authorization", "Content-Type", "If-Match"} <= set(headers["Access-Control-Allow-Headers"].split(", "))
    assert headers["Vary"] == "Origin"
    status, headers, _ = await locked.ask("GET", "/secret", Origin="https://app.example.org")
    assert (status, headers["Access-Control-Allow-Origin"]) == (401, "https://app.example.org")
    status, headers, _ = await locked.ask("OPTIONS", "/echo", Origin="https://other.example.org")
    assert status == 403
    assert "Access-Control-Allow-Origin" not in headers


async def test_an_answer_that_begins_before_its_handler_returns_has_its_headers_too(locked: Gate) -> None:
    status, headers, _ = await locked.ask("GET", "/stream", Origin="https://app.example.org")
    assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://app.example.org")
    assert {"ETag", "Link", "Location", "Retry-After"} <= set(headers["Access-Control-Expose-Headers"].split(", "))
    assert "default-src 'self'" in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer é"]
)
async def test_a_wrong_token_is_refused_and_not_repeated(locked: Gate, given: str) -> None:
    status, headers, body = await locked.ask("GET", "/secret", Authorization=given)
    assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
    assert TOKEN not in str(body)
    assert locked.refused == [401]


async def test_a_token_that_is_no_text_is_a_wrong_one(locked: Gate) -> None:
    answer = await locked.raw(b"GET /secret HTTP/1.1", b"Host: localhost", b"Authorization: Bearer \xff\xfe")
    assert answer.startswith("HTTP/1.1 401 ")
    assert "Content-Security-Policy" in answer


async def test_a_name_that_is_no_text_is_a_wrong_one(gate: Gate) -> None:
    assert (await gate.raw(b"GET /open HTTP/1.1", b"Host: \xff\xfe")).split()[1] in ("400", "421")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])  # RFC 9110, section 11.1
async def test_the_schemes_case_does_not_matter(locked: Gate, scheme: str) -> None:
    assert (await locked.ask("GET", "/secret", Authorization=f"{scheme} {TOKEN}"))[0] == 200
    assert (await locked.ask("GET", "/secret", Authorization=f"{scheme} {TOKEN.upper()}"))[0] == 401


async def test_the_right_token_is_let_in(locked: Gate) -> None:
    assert (await locked.ask("GET", "/secret", Authorization=f"Bearer {TOKEN}"))[0] == 200
    assert (await locked.ask("GET", "/open"))[0] == 200


async def test_every_answer_carries_the_pages_policy(gate: Gate) -> None:
    for headers in ((await gate.ask("GET", "/open"))[1], (await gate.ask("GET", "/open", Origin="null"))[1]):
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("inside", ["handler", "rules"])
async def test_a_mistake_of_ours_is_a_500_that_says_nothing_of_the_inside(
    gate: Gate, inside: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("a secret of the inside")

    if inside == "rules":
        monkeypatch.setattr(Guard, "check", fail)
    status, headers, body = await gate.ask("GET", "/broken")
    assert (status, body["error"]["code"]) == (500, "internal")
    assert "secret" not in str(body)
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert gate.refused == [500]
    assert "a secret of the inside" in caplog.text


async def test_a_body_that_is_not_what_its_headers_say_is_a_400(gate: Gate) -> None:
    status, _, body = await gate.ask("POST", "/echo", data=b"junk", Content_Encoding="gzip")
    assert (status, body["error"]["code"]) == (400, "bad_request")


async def test_a_body_may_have_64_kb_and_not_a_byte_more(gate: Gate) -> None:
    status, _, body = await gate.ask("POST", "/echo", data=b"x" * 65_536)
    assert (status, body) == (200, {"size": 65_536})
    status, _, body = await gate.ask("POST", "/echo", data=b"x" * 65_537)
    assert (status, body["error"]["code"]) == (413, "too_long")


async def test_a_body_that_does_not_come_is_not_waited_for(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.guard.BODY_SECONDS", 0.05)

    async def trickle() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    status, _, body = await gate.ask("POST", "/echo", data=trickle())
    assert (status, body["error"]["code"]) == (408, "too_slow")


async def test_more_requests_than_the_rate_are_told_when_to_come_back(gate: Gate) -> None:
    statuses = [(await gate.ask("GET", "/open"))[0] for _ in range(301)]
    assert statuses == [200] * 300 + [429]
    status, headers, body = await gate.ask("GET", "/secret")
    assert (status, headers["Retry-After"], body["error"]["code"]) == (429, "1", "busy")
    gate.time.time += 1.0
    assert (await gate.ask("GET", "/open"))[0] == 200


# ---- rules that cannot hold -----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "voice.example.org", ""])
def test_a_host_beyond_loopback_needs_a_token(host: str) -> None:
    with pytest.raises(AccessError, match="--token"):
        Access(host)
    Access(host, TOKEN)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_loopback_needs_none(host: str) -> None:
    assert is_loopback(host)
    Access(host)


@pytest.mark.parametrize(
    "token", ["", "short", "with a space in it", "tab\tinside", "line\nbreak-in-it", "ümlaut-token"]
)
def test_a_token_that_protects_nothing_or_fits_no_header_is_refused(token: str) -> None:
    with pytest.raises(AccessError, match="at least 8"):
        Access("127.0.0.1", token)


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "example.org",
        "https://example.org/",
        "ftp://example.org",
        "https://a/b",
        "null",
        "",
        "http://[",
        "http://[zz]",
        "http://[1.2.3]",
        "http://",
        "https://a@example.org",
        "https://example.org:x",
    ],
)
def test_an_origin_is_spelt_as_browsers_spell_it(origin: str) -> None:
    with pytest.raises(AccessError, match="an origin reads like"):
        Access(allow_origins=(origin,))


@pytest.mark.parametrize("origin", ["https://example.org", "http://localhost:8080", "http://[::1]:8080"])
def test_an_origin_may_have_a_port(origin: str) -> None:
    assert Access(allow_origins=(origin,)).allow_origins == (origin,)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan")])
def test_a_rate_is_above_zero(rate: float) -> None:
    with pytest.raises(AccessError, match="rate"):
        Access(rate=rate)


def test_without_a_token_only_this_machine_is_served() -> None:
    assert [is_local(remote) for remote in ("127.0.0.1", "::1", None, "", "192.168.1.9", "2001:db8::1")] == [
        True, True, True, True, False, False,
    ]  # fmt: skip


async def test_a_request_from_elsewhere_without_a_token_is_refused(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web.Request, "remote", property(lambda request: "192.168.1.9"))
    status, _, body = await gate.ask("GET", "/secret")
    assert (status, body["error"]["code"]) == (403, "needs_token")
    assert (await gate.ask("GET", "/open"))[0] == 200


def test_an_ipv6_client_is_counted_with_its_network() -> None:
    assert network("2001:db8:1:2:3:4:5:6") == network("2001:db8:1:2::9") == "2001:db8:1:2::/64"
    assert network("2001:db8:1:3::9") != network("2001:db8:1:2::9")
    assert (network("10.0.0.1"), network(None), network("fe80::1%eth0")) == ("10.0.0.1", "", "fe80::/64")
    assert network("::ffff:10.0.0.1") != network("::ffff:10.0.0.2")  # IPv4 clients of a socket for both
