"""agent/probe/dialect.py: what is sent over HTTP and how answers are read, against servers that answer in every way."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from stand_in import cut, hang, no_task

from agent.dial import BusyError, ClientError, RefusedError, UnreachableError
from agent.probe.dialect import Claim, Exchange, Farewell, Target, claims
from agent.probe.recording import Told

SDP = "v=0\r\no=- 1 1 IN IP4 0.0.0.0\r\n"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers every POST that offers with the same, every other request with 200, and keeps what was asked."""

    def __init__(self, answer: Answer) -> None:
        self.answer, self.asked, self.came = answer, list[tuple[str, str, str]](), asyncio.Event()
        """Method, path with query, body."""
        self.headers = list[Any]()
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._take)
        self.http = TestServer(app)

    async def _take(self, request: web.Request) -> web.StreamResponse:
        self.headers.append(request.headers)
        self.asked.append((request.method, request.path_qs, await request.text()))
        self.came.set()
        return await self.answer(request) if len(self.asked) == 1 else web.Response()

    def target(self, protocol: str = "offer", path: str = "", **options: Any) -> Target:
        return Target(str(self.http.make_url("/")).rstrip("/") + path, protocol, **options)


def plain(status: int = 200, body: str | dict[str, Any] = "", **headers: str) -> Answer:
    text, kind = (json.dumps(body), "application/json") if isinstance(body, dict) else (body, "text/plain")

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, content_type=kind, headers=headers)

    return answer


async def called(answer: Answer, protocol: str, path: str = "", **options: Any) -> tuple[Server, str]:
    """The server after a call that was ended again, and the SDP that came."""
    server = Server(answer)
    async with server.http:
        exchange = Exchange(server.target(protocol, path, **options))
        try:
            found = await exchange.offer("v=0 offer")
        finally:
            await exchange.hang_up()
        return server, found.sdp


async def refused(answer: Answer, protocol: str = "offer") -> str:
    with pytest.raises(ClientError) as caught:
        await called(answer, protocol)
    return str(caught.value)


# ---- dialling and hanging up ----------------------------------------------------------------------------------


async def test_an_offer_goes_as_json_and_ends_by_its_id() -> None:
    server, sdp = await called(plain(200, {"sdp": SDP, "type": "answer", "id": "c1"}), "offer", token="secret")
    assert sdp == SDP
    assert [asked[:2] for asked in server.asked] == [("POST", "/offer"), ("DELETE", "/calls/c1")]
    assert json.loads(server.asked[0][2]) == {"sdp": "v=0 offer", "type": "offer"}
    assert [headers["Authorization"] for headers in server.headers] == ["Bearer secret"] * 2


async def test_an_address_with_a_path_is_the_route_itself() -> None:
    for path in ("/api/offer", "/api/offer?bot=a%20b", "/webrtc"):
        server, _ = await called(plain(200, {"sdp": SDP, "type": "answer"}), "offer", path)
        assert [asked[:2] for asked in server.asked] == [("POST", path)], "without an id, it ends with its connection"
    server, _ = await called(plain(200, {"sdp": SDP, "id": "c1"}), "offer", "/voice/offer")
    assert server.asked[1][:2] == ("DELETE", "/voice/calls/c1")
    server, _ = await called(plain(200, {"sdp": SDP, "id": "c1"}), "offer", "/webrtc")
    assert len(server.asked) == 1


async def test_realtime_takes_sdp_and_ends_by_its_location() -> None:
    answer = plain(201, SDP, Location="/v1/realtime/calls/rtc_1")
    server, sdp = await called(answer, "openai", "?model=gpt-realtime", token="ek_1")
    assert sdp == SDP
    assert server.asked[0] == ("POST", "/v1/realtime/calls?model=gpt-realtime", "v=0 offer")
    assert server.asked[1][:2] == ("POST", "/v1/realtime/calls/rtc_1/hangup")
    assert server.headers[0]["Content-Type"] == "application/sdp"
    assert server.headers[0]["Authorization"] == "Bearer ek_1"
    server, _ = await called(plain(201, SDP), "openai")
    assert len(server.asked) == 1, "without a Location, it ends with its connection"


async def test_whep_ends_by_deleting_its_location() -> None:
    server, _ = await called(plain(201, SDP, Location="whep/7"), "whep")
    assert [asked[:2] for asked in server.asked] == [("POST", "/whep"), ("DELETE", "/whep/7")]
    server, _ = await called(plain(201, SDP, Location="../calls/7?a=b"), "whep", "/live/whep", token="secret")
    assert server.asked[1][:2] == ("DELETE", "/calls/7?a=b")
    assert "Authorization" in server.headers[1]


async def test_nobody_else_is_asked_to_end_a_call() -> None:
    other = Server(plain())
    async with other.http:
        answer = plain(201, SDP, Location=str(other.http.make_url("/calls/7")))
        await called(answer, "whep", token="secret")
        assert not other.asked


@pytest.mark.parametrize(
    ("protocol", "answer"),
    [
        ("offer", plain(200, json.dumps({"sdp": SDP, "id": "/x"}))),
        ("whep", plain(201, SDP, Location="mailto:x")),
    ],
)
async def test_what_cannot_be_asked_for_is_not(protocol: str, answer: Answer) -> None:
    server, _ = await called(answer, protocol)
    assert len(server.asked) == 1


@pytest.mark.parametrize("wait", ["9" * 400, "1e999", "-5", '"soon"'])
async def test_a_senseless_wait_is_the_usual_one(wait: str) -> None:
    body = '{"error": {"message": "full \\ud800\\u001b]0;x", "retry_after_ms": ' + wait + "}}"
    with pytest.raises(BusyError, match="full   ]0;x") as caught:
        await called(plain(503, body), "offer")
    assert caught.value.retry_after == 1.0


async def test_a_call_that_nobody_wants_any_more_is_ended_when_its_answer_comes() -> None:
    release = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        await release.wait()
        return web.json_response({"sdp": SDP, "id": "late"})

    server = Server(answer)
    async with server.http:
        before, exchange = asyncio.all_tasks(), Exchange(server.target())
        offering = asyncio.create_task(exchange.offer("v=0"))
        await server.came.wait()
        offering.cancel()
        await asyncio.wait([offering])
        asyncio.get_running_loop().call_later(0.05, release.set)
        await exchange.hang_up()
        assert server.asked[1][:2] == ("DELETE", "/calls/late")
        await no_task(before)


async def test_an_answer_that_never_comes_is_not_waited_for_when_hanging_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.probe.dialect.LATE_SECONDS", 0.05)
    server = Server(hang)
    async with server.http:
        before, exchange = asyncio.all_tasks(), Exchange(server.target())
        offering = asyncio.create_task(exchange.offer("v=0"))
        await server.came.wait()
        offering.cancel()
        await exchange.hang_up()
        await asyncio.wait([offering])
        await no_task(before)


# ---- being refused --------------------------------------------------------------------------------------------


async def test_a_refusal_says_what_the_server_said() -> None:
    assert "answered 500 Internal Server Error: no GPU" in await refused(plain(500, {"error": {"message": "no GPU"}}))
    assert "answered 422 Unprocessable Entity: no sdp" in await refused(plain(422, {"detail": "no sdp"}))
    assert "answered 503 Service Unavailable: 'try later'" in await refused(plain(503, "try  later"))
    assert (await refused(plain(404))).endswith("/offer answered 404 Not Found")
    assert "answered 502 Bad Gateway: an HTML page" in await refused(plain(502, "<!DOCTYPE html><p>x"))
    moved = await refused(plain(308, Location="https://elsewhere.example/offer"))
    assert moved.endswith("answered 308 Permanent Redirect: call https://elsewhere.example/offer")
    assert len(await refused(plain(400, "x" * 100_000))) < 400


async def test_what_answers_something_else_says_what_was_expected() -> None:
    assert "expected JSON with sdp, got an HTML page" in await refused(plain(200, "<html><body>hello"))
    assert "expected JSON with sdp, got nothing" in await refused(plain(200))
    assert "expected JSON with sdp" in await refused(plain(200, {"sdp": 5}))
    assert "expected JSON with sdp" in await refused(plain(200, "[" * 100_000))
    for protocol in ("openai", "whep"):
        assert "expected an SDP (application/sdp), got '{}'" in await refused(plain(201, "{}"), protocol)


async def test_who_cannot_be_reached_is_named() -> None:
    with pytest.raises(UnreachableError, match="/offer cannot be reached"):
        await called(cut, "offer")
    exchange = Exchange(Target("http://127.0.0.1:9"))
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:9/offer cannot be reached"):
        await exchange.offer("v=0")
    await exchange.hang_up()


async def test_a_token_that_no_header_takes_is_a_failure_and_not_shown() -> None:
    target = Target("http://127.0.0.1:9", token="a\r\nb")
    assert "a\r" not in repr(target)
    exchange = Exchange(target)
    with pytest.raises(ClientError):
        await exchange.offer("v=0")
    await exchange.hang_up()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "127.0.0.1:8080"}, "an agent's address reads like http://127.0.0.1:8080, got"),
        ({"url": "ftp://a"}, "an agent's address"),
        ({"url": "http://a", "protocol": "sip"}, "a protocol is one of offer, openai, whep, got 'sip'"),
        ({"url": "http://a", "within": 0.0}, "within=0"),
    ],
)
def test_a_target_that_nobody_can_call_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Target(**options)


def test_refusals_are_what_clients_know() -> None:
    assert issubclass(RefusedError, ClientError)
    assert Farewell("DELETE", Target("http://a/b").route).url.path == "/b"


# ---- what a server says of its speech -------------------------------------------------------------------------


def test_claims_of_a_breezert_server() -> None:
    told = [
        Told(1.0, "speech.started", {"type": "speech.started", "id": "a", "ttfa_ms": 80.0}),
        Told(1.5, "speech.progress", {"id": "a", "heard_ms": 200.0}),
        Told(2.0, "speech.paused", {"id": "a", "heard_ms": 900.0}),
        Told(2.1, "speech.continued", {"id": "a", "heard_ms": 900.0}),
        Told(3.0, "speech.stopped", {"id": "a", "heard_ms": 1200, "sent_ms": 1300.0, "heard": "Good mor"}),
        Told(3.1, "reply.ended", {"id": "r", "heard": "Good mor"}),
    ]
    assert claims(told) == [
        Claim(1.0, "started"),
        Claim(2.0, "stopped", 900.0),
        Claim(2.1, "started", 900.0),
        Claim(3.0, "stopped", 1200.0, "Good mor"),
        Claim(3.1, "heard", None, "Good mor"),
    ]


def test_claims_of_a_realtime_server() -> None:
    told = [
        Told(1.0, "output_audio_buffer.started", {"response_id": "r"}),
        Told(2.0, "response.done", {}),
        Told(2.5, "output_audio_buffer.cleared", {"response_id": "r"}),
        Told(2.6, "conversation.item.truncated", {"item_id": "i", "content_index": 0, "audio_end_ms": 1480}),
        Told(5.0, "output_audio_buffer.stopped", {"response_id": "s"}),
    ]
    kinds = ["started", "stopped", "heard", "stopped"]
    assert [claim.kind for claim in claims(told)] == kinds
    assert claims(told)[2] == Claim(2.6, "heard", 1480.0)


def test_a_claim_of_nonsense_has_no_figure() -> None:
    told = [Told(1.0, "speech.stopped", {"heard_ms": "much", "heard": 5}), Told(1.0, "", {"data": "x"})]
    assert claims(told) == [Claim(1.0, "stopped")]
    assert claims([Told(1.0, "speech.stopped", {"heard_ms": True})]) == [Claim(1.0, "stopped")]


async def test_a_server_without_room_says_when_to_call_again() -> None:
    async def full(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "all lines are taken", "retry_after_ms": 2500}}, status=503)

    app = web.Application()
    app.router.add_post("/offer", full)
    async with TestServer(app) as server:
        exchange = Exchange(Target(str(server.make_url("/"))))
        try:
            with pytest.raises(BusyError, match="503 Service Unavailable: all lines are taken") as caught:
                await exchange.offer("v=0")
        finally:
            await exchange.hang_up()
    assert caught.value.retry_after == 2.5
