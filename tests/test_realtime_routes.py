"""agent/realtime_routes.py: calls of the Realtime protocol over HTTP and WebRTC, as a client has them."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, FormData, web
from aiohttp.test_utils import TestServer
from aiortc import RTCSessionDescription
from caller import Caller
from scripted_runtime import ScriptedRuntime
from scripted_talk import Thinker

from agent.answering import Answering
from agent.brain import BoundedBrain, ReplyLimits
from agent.calls import CallLimits, Calls
from agent.conversation import Conversation
from agent.guard import Access, Guard, Handler
from agent.realtime_keys import MAX_KEYS
from agent.realtime_routes import Lifetime, add_routes, fields
from agent.transcribe import TranscriberConfig, make_transcriber
from engine.clock import MonotonicClock

TOKEN = "correct-horse-battery"
ORIGIN = "https://app.example"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
CALLS, SECRETS = "v1/realtime/calls", "v1/realtime/client_secrets"


class Moving:
    """A clock that a test may move on."""

    def __init__(self) -> None:
        self.clock, self.skipped = MonotonicClock(), 0.0

    def now(self) -> float:
        return self.clock.now() + self.skipped


class Site:
    """The routes with a scripted engine and a scripted brain, and a client that speaks HTTP to them."""

    def __init__(self, *deltas: str, token: str | None = TOKEN, limits: CallLimits | None = None) -> None:
        self.engine, self.brain, self.time = ScriptedRuntime(pace=0.02), Thinker(*deltas), Moving()
        limited = BoundedBrain(self.brain, ReplyLimits())
        answering = Answering(limited, make_transcriber(TranscriberConfig()), vad="earshot")
        app, clock = web.Application(), MonotonicClock()
        self.calls = Calls(self.engine, limits, clock, answering=answering)
        access = Access(token=token, allow_origins=(ORIGIN,), rate=1000.0)
        guard = Guard(access, clock, lambda status: None)

        def add(method: str, path: str, handler: Handler, needs_token: bool = False) -> None:
            app.router.add_route(method, f"/{path}", guard.wrap(handler, needs_token=needs_token))

        add_routes(add, guard, self.calls, self.time)
        self.server = TestServer(app)
        self.callers: list[Caller] = []

    async def __aenter__(self) -> Site:
        await self.server.start_server()
        self.client = ClientSession(base_url=self.server.make_url("/"))
        return self

    async def __aexit__(self, *_: object) -> None:
        for caller in self.callers:
            await caller.close()
        await self.calls.close()
        await self.client.close()
        await self.server.close()
        self.engine.close()

    def caller(self) -> Caller:
        caller = Caller("oai-events")
        self.callers.append(caller)
        return caller

    async def post(self, path: str, data: Any = None, **headers: str) -> tuple[int, str, dict[str, str]]:
        async with self.client.post(path, data=data, headers={**BEARER, **headers}) as response:
            return response.status, await response.text(), dict(response.headers)

    async def offer(self, sdp: str, **headers: str) -> tuple[int, str, dict[str, str]]:
        return await self.post(CALLS, sdp.encode(), **{"Content-Type": "application/sdp", **headers})

    async def call(self, **headers: str) -> tuple[Caller, str]:
        """A call that is connected, and its address."""
        caller = self.caller()
        status, answer, got = await self.offer(await caller.offer(), **headers)
        assert status == 201, answer
        await caller.accept(answer)
        return caller, got["Location"]

    async def key(self, **body: Any) -> dict[str, Any]:
        status, answer, _ = await self.post(SECRETS, json.dumps(body).encode())
        assert status == 200, answer
        made: dict[str, Any] = json.loads(answer)
        return made


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site("Good morning.") as opened:
        yield opened


def bearer(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}


async def test_a_call_from_offer_to_hangup(site: Site) -> None:
    caller = site.caller()
    status, answer, headers = await site.offer(await caller.offer())
    assert (status, headers["Content-Type"].partition(";")[0]) == (201, "application/sdp")
    assert headers["Location"].startswith("/v1/realtime/calls/")
    await caller.accept(answer)
    assert caller.told("session.created")[0]["session"]["id"] == headers["Location"].rpartition("/")[2]
    caller.send(type="session.update", session={"type": "realtime", "instructions": "Be kind."})
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}
    caller.send(type="conversation.item.create", item=item)
    caller.send(type="response.create")
    await caller.wait(lambda: caller.told("output_audio_buffer.stopped"))
    assert caller.told("session.updated")[0]["session"]["instructions"] == "Be kind."
    assert caller.told("response.done")[0]["response"]["output"][0]["content"][0]["transcript"] == "Good morning."
    assert site.brain.turns[0].instructions == "Be kind."
    assert (await site.post(headers["Location"] + "/hangup"))[0] == 200
    assert (await site.post(headers["Location"] + "/hangup"))[0] == 404
    assert site.calls.sessions == []


async def test_delete_hangs_up_too(site: Site) -> None:
    _, location = await site.call()
    async with site.client.delete(location, headers=BEARER) as response:
        assert response.status == 204
    async with site.client.delete(location, headers=BEARER) as response:
        assert response.status == 404


async def test_a_form_with_offer_and_session(site: Site) -> None:
    caller, form = site.caller(), FormData()
    form.add_field("sdp", await caller.offer(), content_type="application/sdp")
    form.add_field("session", json.dumps({"type": "realtime", "instructions": "Be brief."}))
    async with site.client.post(CALLS, data=form(), headers=BEARER) as response:
        assert response.status == 201, await response.text()
        await caller.accept(await response.text())
    assert caller.told("session.created")[0]["session"]["instructions"] == "Be brief."
    caller.send(type="session.update", session={"instructions": "At length."})
    await caller.wait(lambda: caller.told("session.updated"))
    assert caller.told("session.updated")[0]["session"]["instructions"] == "At length.", "the token may change it"


async def test_a_key_opens_one_call_whose_settings_it_has_fixed(site: Site) -> None:
    made = await site.key(session={"type": "realtime", "instructions": "Only of trains."})
    assert made["value"].startswith("ek_")
    assert made["session"]["instructions"] == "Only of trains."
    caller, _ = await site.call(**bearer(made["value"]))
    caller.send(type="session.update", session={"instructions": "Of cats."})
    await caller.wait(lambda: caller.told("session.updated"))
    assert caller.told("session.updated")[0]["session"]["instructions"] == "Only of trains."
    status, answer, _ = await site.offer(await site.caller().offer(), **bearer(made["value"]))
    assert (status, json.loads(answer)["error"]["code"]) == (401, "needs_token")


async def test_a_key_limits_how_long_replies_are(site: Site) -> None:
    """To 8 characters, whatever its holder asks for."""
    made = await site.key(session={"type": "realtime", "max_output_tokens": 2})
    caller, _ = await site.call(**bearer(made["value"]))
    caller.send(type="session.update", session={"max_output_tokens": "inf"})
    await caller.wait(lambda: caller.told("session.updated"))
    assert caller.told("session.updated")[0]["session"]["max_output_tokens"] == 2
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello!"}]}
    caller.send(type="conversation.item.create", item=item)
    caller.send(type="response.create")
    await caller.wait(lambda: caller.told("response.done"))
    response = caller.told("response.done")[0]["response"]
    assert response["output"][0]["content"][0]["transcript"] == "Good mor"
    assert response["max_output_tokens"] == 2


@pytest.mark.parametrize("tokens", [0, 4097, "many"])
async def test_a_limit_that_cannot_be_is_refused(site: Site, tokens: int | str) -> None:
    body = json.dumps({"session": {"type": "realtime", "max_output_tokens": tokens}}).encode()
    status, answer, _ = await site.post(SECRETS, body)
    assert (status, "max_output_tokens" in answer) == (400, True)


async def test_a_key_that_opened_nothing_is_still_good(site: Site) -> None:
    value = (await site.key())["value"]
    assert (await site.offer("no offer", **bearer(value)))[0] == 400
    await site.call(**bearer(value))


async def test_a_key_expires(site: Site) -> None:
    value = (await site.key(expires_after={"anchor": "created_at", "seconds": 600}))["value"]
    site.time.skipped = 60.0
    assert (await site.offer(await site.caller().offer(), **bearer(value)))[0] == 401


async def test_a_key_is_good_for_nothing_else(site: Site) -> None:
    value = (await site.key())["value"]
    _, location = await site.call()
    for path in (SECRETS, location + "/hangup"):
        assert (await site.post(path, **bearer(value)))[0] == 401
    async with site.client.delete(location, headers=bearer(value)) as response:
        assert response.status == 401


async def test_keys_are_bounded(site: Site) -> None:
    for _ in range(MAX_KEYS):
        await site.key()
    status, _, headers = await site.post(SECRETS)
    assert status == 503
    assert 0 < int(headers["Retry-After"]) <= 60


async def test_no_key_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        value = (await site.key())["value"]
        await site.call(**bearer(value))
        await site.offer("again", **bearer(value))
    assert value not in caplog.text


@pytest.mark.parametrize("given", ["", "Bearer wrong-token", "Bearer ek_invented", f"Basic {TOKEN}"])
async def test_without_token_or_key_there_is_no_call(site: Site, given: str) -> None:
    status, answer, _ = await site.offer(await site.caller().offer(), Authorization=given)
    assert (status, json.loads(answer)["error"]["code"]) == (401, "needs_token")
    assert (await site.post(SECRETS, Authorization=given))[0] == 401
    assert site.calls.sessions == []


async def test_without_a_token_this_machine_is_served() -> None:
    async with Site(token=None) as site:
        await site.call(**bearer("anything"))
        await site.call(**bearer((await site.key())["value"]))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"[]", "Expected `object`"),
        (b"{", "JSON"),
        (b'{"session": {"type": "transcription"}}', "session.type"),
        (b'{"session": {"audio": {"input": {"turn_detection": {"threshold": 3}}}}}', "turn_detection.threshold"),
        (b'{"expires_after": {"seconds": 0}}', "expires_after.seconds"),
    ],
)
async def test_a_key_that_cannot_be_asked_for(site: Site, body: bytes, said: str) -> None:
    status, answer, _ = await site.post(SECRETS, body)
    assert status == 400
    assert said in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "body", "status", "said"),
    [
        ("application/json", b"{}", 415, "application/sdp"),
        ("application/sdp", b"\xff", 400, "UTF-8"),
        ("application/sdp", b"hello", 400, "audio section"),
        ("application/sdp", b"x" * 70_000, 413, "bytes"),
        ("multipart/form-data", b"", 400, "field sdp"),
        ("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--\r\n", 400, "field sdp"),
    ],
)
async def test_what_is_no_offer_is_refused_with_a_reason(
    site: Site, kind: str, body: bytes, status: int, said: str
) -> None:
    got, answer, _ = await site.post(CALLS, body, **{"Content-Type": kind})
    assert got == status
    assert said in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize("session", ["{", "[]", '{"type": "transcription"}'])
async def test_a_session_that_cannot_be_is_refused(site: Site, session: str) -> None:
    form = FormData()
    form.add_field("sdp", await site.caller().offer(), content_type="application/sdp")
    form.add_field("session", session)
    async with site.client.post(CALLS, data=form(), headers=BEARER) as response:
        assert response.status == 400
        assert "session" in (await response.json())["error"]["message"]


async def test_no_room_is_told_with_a_time() -> None:
    async with Site(limits=CallLimits(max_peers=1)) as site:
        await site.call()
        status, _, headers = await site.offer(await site.caller().offer())
        assert (status, headers["Retry-After"]) == (503, "5")


async def test_a_page_of_an_allowed_origin_may_call(site: Site) -> None:
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    for path in (CALLS, SECRETS, f"{CALLS}/x", f"{CALLS}/x/hangup"):
        async with site.client.options(path, headers=asked) as response:
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Origin"] == ORIGIN
            assert "X-OpenAI-Agents-SDK" in response.headers["Access-Control-Allow-Headers"]
    _, _, headers = await site.offer(await site.caller().offer(), Origin=ORIGIN)
    assert "Location" in headers["Access-Control-Expose-Headers"]
    status, _, _ = await site.offer("", Origin="https://evil.example")
    assert status == 403


async def test_malformed_events_do_not_end_the_call(site: Site) -> None:
    caller, _ = await site.call()
    for data in ("", "{}", "x" * 66_000, '{"type": "conversation.item.delete", "item_id": "x", "event_id": "e"}'):
        caller.channel.send(data)
    caller.channel.send(b"\x00\xff")
    await caller.wait(lambda: len(caller.told("error")) == 5)
    assert caller.told("error")[3]["error"]["event_id"] == "e"
    caller.send(type="session.update", session={})
    await caller.wait(lambda: caller.told("session.updated"))


def test_a_form_in_any_encoding_is_read() -> None:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="sdp"\r\n\r\nv=0\r\n\r\n'
        b'--b\r\nContent-Disposition: form-data; name="session"; filename="s"\r\n\r\n{}\r\n--b--\r\n'
    )
    assert fields("multipart/form-data; boundary=b", body) == {"sdp": b"v=0\r\n", "session": b"{}"}
    assert fields('multipart/form-data; boundary="b"', body)["session"] == b"{}"
    assert fields("multipart/form-data; boundary=c", body) == {}
    assert fields("multipart/form-data", body) == {}
    assert len(fields("multipart/form-data; boundary=b", body * 100)) == 2


def test_a_key_lasts_a_minute_unless_told_otherwise() -> None:
    assert Lifetime().seconds == 60.0


async def test_what_a_key_has_fixed_holds_on_every_channel(site: Site) -> None:
    """The channel of our own protocol knows no such settings: it is not opened, first or later."""
    value = (await site.key(session={"type": "realtime", "instructions": "Only of trains."}))["value"]
    caller, _ = await site.call(**bearer(value))
    caller.channel.close()
    await caller.wait(lambda: caller.channel.readyState == "closed")
    for label in ("breezert", "oai-events"):
        again = caller.connection.createDataChannel(label)
        again.on("close", caller._heard.set)
        await caller.wait(lambda channel=again: channel.readyState == "closed")


async def test_a_key_that_fixes_something_opens_no_channel_of_ours(site: Site) -> None:
    value = (await site.key(session={"type": "realtime", "instructions": "Only of trains."}))["value"]
    caller = Caller()
    try:
        caller.channel.on("close", caller._heard.set)
        status, answer, _ = await site.offer(await caller.offer(), **bearer(value))
        assert status == 201
        await caller.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        await caller.wait(lambda: caller.channel.readyState == "closed")
        (session,) = site.calls.sessions
        assert isinstance(session.partner, Conversation)
        assert not session.partner.automatic, "nor is a spoken turn answered without its instructions"
    finally:
        await caller.close()
