"""agent/whep.py: a listener without a data channel, from the first POST to DELETE, and every way to be refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from caller import WITHIN, Caller, level
from multidict import CIMultiDict
from scripted_runtime import ScriptedRuntime

from agent import vad, whep
from agent.answering import Answering
from agent.brain import BrainConfig, make_brain
from agent.browser import chromium, find_chromium
from agent.calls import CallLimits, Calls
from agent.guard import Access, Guard, Handler
from agent.offer import OfferError
from agent.protocol import Speak
from agent.session import Session
from agent.transcribe import TranscriberConfig, make_transcriber
from agent.voice_agent import VoiceAgent
from agent.whep import FRAGMENT, SDP, IceServer, accepts, completed, listening
from engine.clock import MonotonicClock

TOKEN = "correct-horse-battery"
PAGE = "https://app.example.org"
Answer = tuple[int, str, CIMultiDict[str]]


class Site:
    """WHEP and nothing else, with a scripted engine, and a client that speaks HTTP to it."""

    def __init__(self, access: Access | None = None, ice_servers: tuple[IceServer, ...] = (), **options: Any) -> None:
        self.engine, self._access, self._ice_servers, self._options = (
            ScriptedRuntime(pace=0.01),
            access,
            ice_servers,
            options,
        )

    async def __aenter__(self) -> Site:
        app, clock = web.Application(), MonotonicClock()
        self.calls = Calls(self.engine, **self._options)
        self.refused: list[int] = []
        guard = Guard(self._access or Access(rate=1000.0), clock, self.refused.append)

        def add(method: str, path: str, handler: Handler, needs_token: bool = False) -> None:
            app.router.add_route(method, f"/voice/{path}", guard.wrap(handler, needs_token=needs_token))

        whep.add_routes(add, guard, self.calls, self._ice_servers)
        self.server = TestServer(app)
        await self.server.start_server()
        self.client = ClientSession(base_url=self.server.make_url("/"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.calls.close()
        await self.server.close()
        self.engine.close()

    async def ask(self, method: str, path: str, body: str | bytes = b"", **headers: str) -> Answer:
        """`Content_Type` is the header Content-Type."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        data = body.encode() if isinstance(body, str) else body
        async with self.client.request(method, path, data=data, headers=named) as response:
            return response.status, await response.text(), response.headers.copy()

    async def call(self, offer: str | bytes, **headers: str) -> Answer:
        return await self.ask("POST", "/voice/whep", offer, **{"Content_Type": SDP, **headers})

    async def patch(self, location: str, fragment: str, **headers: str) -> Answer:
        return await self.ask("PATCH", location, fragment, **{"Content_Type": FRAGMENT, **headers})


class Viewer:
    """A stock client that only listens: no data channel, one audio section."""

    def __init__(self, direction: str = "recvonly") -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.receiver = self.connection.addTransceiver("audio", direction=direction).receiver
        self.loudness: list[float] = []
        self._heard = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    async def offer(self) -> str:
        await self.connection.setLocalDescription()
        return str(self.connection.localDescription.sdp)

    async def accept(self, answer: str) -> None:
        await self.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        with contextlib.suppress(MediaStreamError):  # the call is over
            while True:
                frame: Any = await self.receiver.track.recv()
                self.loudness.append(level(frame.to_ndarray()))
                self._heard.set()

    async def hears(self, packets: int) -> None:
        """Returns once so many packets were loud."""
        async with asyncio.timeout(WITHIN):
            while sum(loudness > 0.05 for loudness in self.loudness) < packets:
                self._heard.clear()
                await self._heard.wait()

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self.connection.close()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as opened:
        yield opened


@pytest.fixture
async def viewer() -> AsyncIterator[Viewer]:
    viewer = Viewer()
    yield viewer
    await viewer.close()


def says(text: str) -> Any:
    def opened(session: Session) -> None:
        session.speak(Speak(id="hello", text=text))

    return opened


def fragment_of(offer: str, *lines: str) -> str:
    """What a client sends when it has found more of its addresses."""
    names = [line for line in offer.splitlines() if line.startswith(("a=ice-ufrag:", "a=ice-pwd:"))][:2]
    return "\r\n".join([*names, "m=audio 9 UDP/TLS/RTP/SAVPF 0", "a=mid:0", *lines, ""])


CANDIDATES = (
    "a=candidate:1387637174 1 udp 2122260223 192.0.2.1 61764 typ host generation 0 ufrag EsAw network-id 1",
    "a=candidate:473322822 1 tcp 1518280447 192.0.2.1 9 typ host tcptype active",
    "a=candidate:5 1 udp 2122260223 1f4712db-ea17-4bcf-a596-105139dfd8bf.local 5000 typ host",
    "a=end-of-candidates",
)


# ---- a call ---------------------------------------------------------------------------------------------------


async def test_a_listener_hears_what_the_application_says_and_hangs_up(viewer: Viewer) -> None:
    async with Site(opened=says("x" * 40)) as site:
        status, answer, headers = await site.call(await viewer.offer(), Accept=SDP)
        assert (status, headers["Content-Type"]) == (201, SDP)
        (session,) = site.calls.sessions
        assert headers["Location"] == f"/voice/whep/{session.id}"
        assert headers["ETag"].startswith('"')
        assert headers["ETag"].endswith('"')
        assert headers["Accept-Patch"] == FRAGMENT
        assert "Link" not in headers, "no ICE servers by default"
        assert "a=sendonly" in answer
        await viewer.accept(answer)
        await viewer.hears(packets=50)  # 1 s
        assert viewer.loudness[0] > 0.05, "from its first syllable on"
        location = headers["Location"]
        assert (await site.patch(location, fragment_of(answer), If_Match='"other"'))[0] == 412
        status, body, _ = await site.ask("DELETE", location, If_Match='"of no interest"')
        assert (status, body) == (200, "")
        assert site.calls.sessions == []
        for method in ("DELETE", "GET"):
            status, body, _ = await site.ask(method, location)
            assert (status, "not_found" in body) == (404, True)


async def test_candidates_are_taken_while_it_plays(viewer: Viewer) -> None:
    async with Site(opened=says("x" * 60)) as site:
        offer = await viewer.offer()
        bare = "\r\n".join(line for line in offer.splitlines() if "candidate" not in line) + "\r\n"
        _, answer, headers = await site.call(bare)
        await viewer.accept(answer)
        location, tag = headers["Location"], headers["ETag"]
        status, body, headers = await site.patch(location, fragment_of(offer, *CANDIDATES), If_Match=tag)
        assert (status, body, "ETag" in headers) == (204, "", False)
        await viewer.hears(packets=20)


async def test_what_is_offered_to_be_sent_is_not_taken(site: Site) -> None:
    viewer = Viewer("sendrecv")
    status, answer, _ = await site.call(await viewer.offer())
    assert status == 201
    assert "a=sendonly" in answer
    assert "a=sendrecv" not in answer
    await viewer.close()


@pytest.mark.parametrize("vad_name", [None, vad.usual()])
async def test_the_agents_first_words_are_said_once(viewer: Viewer, vad_name: str | None) -> None:
    brain = make_brain(BrainConfig(greeting="Good evening, dear listeners."))
    async with Site(answering=Answering(brain, make_transcriber(TranscriberConfig()), vad=vad_name)) as site:
        _, answer, _ = await site.call(await viewer.offer())
        assert "a=sendonly" in answer
        await viewer.accept(answer)
        await viewer.hears(packets=20)
        assert [job.request.text for job in site.engine.jobs.values()] == ["Good evening, dear listeners."]


async def test_whoever_brings_a_data_channel_is_greeted_through_it() -> None:
    brain = make_brain(BrainConfig(greeting="Good evening."))
    async with Site(answering=Answering(brain, make_transcriber(TranscriberConfig()), vad=None)) as site:
        caller = Caller()
        status, answer, _ = await site.call(await caller.offer())
        assert (status, len(site.engine.jobs)) == (201, 0)
        await caller.accept(answer)
        await caller.wait(lambda: caller.told("speech.stopped"))
        assert [job.request.text for job in site.engine.jobs.values()] == ["Good evening."]
        await caller.close()


async def test_a_call_that_ended_by_itself_is_forgotten(viewer: Viewer) -> None:
    async with Site(limits=CallLimits(silence=0.05)) as site:
        _, _, headers = await site.call(await viewer.offer())  # and nothing comes
        async with asyncio.timeout(WITHIN):
            while site.calls.sessions:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.01)
        assert (await site.ask("GET", headers["Location"]))[0] == 404
        assert (await site.patch(headers["Location"], "", If_Match=headers["ETag"]))[0] == 404
        assert (await site.ask("DELETE", headers["Location"]))[0] == 404


async def test_a_call_that_was_opened_otherwise_is_none_of_its(site: Site) -> None:
    caller = Caller()
    call_id, _ = await site.calls.open(await caller.offer())
    assert (await site.ask("DELETE", f"/voice/whep/{call_id}"))[0] == 404
    assert len(site.calls.sessions) == 1
    await caller.close()


# ---- refusals of POST -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["application/json", "text/plain", "application/sdpfrag", "application/octet-stream"])
async def test_a_body_of_another_type_is_a_415_that_says_which(site: Site, given: str) -> None:
    status, body, headers = await site.call("v=0", Content_Type=given)
    assert (status, headers["Accept-Post"]) == (415, SDP)
    assert "wrong_type" in body


async def test_the_types_parameters_and_case_do_not_matter(site: Site, viewer: Viewer) -> None:
    assert (await site.call(await viewer.offer(), Content_Type="Application/SDP; charset=utf-8"))[0] == 201


@pytest.mark.parametrize(
    ("accept", "fits"),
    [
        ("", True),
        ("*/*", True),
        ("application/*;q=0.1", True),
        ("text/html, Application/SDP", True),
        ("text/html, */*;q=0.8", True),
        ("text/html", False),
        ("application/json, text/*", False),
        ("application/sdp;q=0", False),
        ("application/sdp;q=0.000, */*", False),
        ("*/*;q=0", False),
        ("*/*;q=0, application/sdp", True),
    ],
)
async def test_an_answer_is_sent_to_who_accepts_one(accept: str, fits: bool) -> None:
    assert accepts(accept, SDP) is fits


async def test_who_accepts_no_answer_gets_a_406(site: Site, viewer: Viewer) -> None:
    status, body, _ = await site.call(await viewer.offer(), Accept="text/html")
    assert (status, "not_acceptable" in body) == (406, True)
    assert site.calls.sessions == []


@pytest.mark.parametrize("direction", ["sendonly", "inactive"])
async def test_who_would_not_listen_gets_a_400(site: Site, viewer: Viewer, direction: str) -> None:
    status, body, _ = await site.call((await viewer.offer()).replace("a=recvonly", f"a={direction}"))
    assert (status, "must be recvonly" in body) == (400, True)


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        ("", "audio section"),
        ("garbage", "audio section"),
        (b"\xff\xfe", "UTF-8"),
        ("v=0\r\nm=audio\r\n", "a section begins like"),
        ("v=0\r\nm=audio 9\r\n", "a section begins like"),
        ("v=0\r\nm=\r\n", "a section begins like"),
        ("v=0\r\nm=video 9 UDP/TLS/RTP/SAVPF 96\r\na=mid:0\r\n", "audio section"),
    ],
)
async def test_what_is_no_offer_is_a_400_with_its_reason(site: Site, offer: str | bytes, words: str) -> None:
    status, body, _ = await site.call(offer)
    assert status == 400
    assert words in body
    assert site.calls.sessions == []
    assert site.refused == [400]


async def test_a_body_beyond_64_kb_is_a_413(site: Site) -> None:
    assert (await site.call("x" * 70_000))[0] == 413


async def test_one_listener_too_many_is_a_503_with_a_time_to_come_back(viewer: Viewer) -> None:
    async with Site(limits=CallLimits(max_peers=1)) as site:
        offer = await viewer.offer()
        assert (await site.call(offer))[0] == 201
        status, body, headers = await site.call(offer)
        assert (status, headers["Retry-After"], "busy" in body) == (503, "5", True)


async def test_a_busy_engine_and_a_server_that_ends_are_503s(site: Site, viewer: Viewer) -> None:
    offer = await viewer.offer()
    site.engine.retry_after = 2.1
    status, _, headers = await site.call(offer)
    assert (status, headers["Retry-After"]) == (503, "3")
    site.engine.retry_after = 0.0
    await site.calls.drain(0.0)
    status, _, headers = await site.call(offer)
    assert (status, headers["Retry-After"]) == (503, "10")


# ---- PATCH ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def called(site: Site, viewer: Viewer) -> tuple[str, str, str]:
    """A call's Location, ETag, and the offer that it began with."""
    offer = await viewer.offer()
    _, _, headers = await site.call(offer)
    return headers["Location"], headers["ETag"], offer


async def test_a_patch_without_a_tag_is_a_428_and_with_another_a_412(site: Site, called: tuple[str, str, str]) -> None:
    location, tag, offer = called
    fragment = fragment_of(offer, *CANDIDATES)
    for wrong, status in ((None, 428), ("", 428), ('"other"', 412), (f"W/{tag}", 412), (tag.strip('"'), 412)):
        headers = {} if wrong is None else {"If_Match": wrong}
        assert (await site.patch(location, fragment, **headers))[0] == status, wrong
    for right in (tag, f'"other", {tag}', "*", '"*"'):
        assert (await site.patch(location, fragment, If_Match=right))[0] == 204, right


async def test_an_ice_restart_is_a_422_and_the_call_goes_on(site: Site, called: tuple[str, str, str]) -> None:
    location, tag, _ = called
    fragment = "a=ice-ufrag:ysXw\r\na=ice-pwd:vw5LmwG4y/e6dPP/zAP9Gp5k\r\nm=audio 9 UDP/TLS/RTP/SAVPF 0\r\na=mid:0\r\n"
    for given in ("*", tag):
        status, body, _ = await site.patch(location, fragment, If_Match=given)
        assert (status, "hang up and call again" in body) == (422, True)
    assert len(site.calls.sessions) == 1
    assert (await site.ask("DELETE", location))[0] == 200


async def test_a_patch_of_another_type_is_a_415_that_says_which(site: Site, called: tuple[str, str, str]) -> None:
    location, tag, offer = called
    status, _, headers = await site.patch(location, offer, Content_Type=SDP, If_Match=tag)
    assert (status, headers["Accept-Patch"]) == (415, FRAGMENT)


@pytest.mark.parametrize(
    "spoilt",
    ["", "no SDP", "a=candidate:1 1 udp", "a=candidate:1 1 udp x 192.0.2.1 1 typ host", "A=mid:0", "ice-ufrag"],
)
async def test_a_fragment_that_is_none_is_a_400(site: Site, called: tuple[str, str, str], spoilt: str) -> None:
    location, tag, offer = called
    whole = fragment_of(offer)
    fragment = {
        "": "",
        "ice-ufrag": "\r\n".join(line for line in whole.splitlines() if "ice-ufrag" not in line),
    }.get(spoilt, f"{whole}{spoilt}\r\n")
    status, body, _ = await site.patch(location, fragment, If_Match=tag)
    assert (status, "bad_request" in body) == (400, True)
    assert (await site.patch(location, "\xff" if not spoilt else whole, If_Match=tag))[0] == (204 if spoilt else 400)


async def test_a_patch_of_nobodys_call_is_a_404(site: Site) -> None:
    assert (await site.patch("/voice/whep/nobody", "", If_Match='"x"'))[0] == 404


# ---- GET, OPTIONS, tokens -------------------------------------------------------------------------------------


async def test_there_is_nothing_to_be_read(site: Site, called: tuple[str, str, str]) -> None:
    for path in ("/voice/whep", called[0]):
        for method in ("GET", "HEAD"):
            assert (await site.ask(method, path))[:2] == (204, "")


async def test_a_page_of_an_allowed_origin_may_call_patch_and_hang_up(viewer: Viewer) -> None:
    async with Site(Access(allow_origins=(PAGE,))) as site:
        for path in ("/voice/whep", "/voice/whep/x"):
            status, _, headers = await site.ask("OPTIONS", path, Origin=PAGE)
            assert (status, headers["Accept-Post"]) == (200, SDP)
            assert headers["Access-Control-Allow-Origin"] == PAGE
            assert {"POST", "PATCH", "DELETE"} <= set(headers["Access-Control-Allow-Methods"].split(", "))
            allowed = set(headers["Access-Control-Allow-Headers"].split(", "))
            assert {"Authorization", "Content-Type", "If-Match"} <= allowed
        status, _, headers = await site.call(await viewer.offer(), Origin=PAGE)
        assert status == 201
        assert {"Location", "Link", "ETag"} <= set(headers["Access-Control-Expose-Headers"].split(", "))
        assert (await site.ask("OPTIONS", "/voice/whep", Origin="https://evil.example.org"))[0] == 403


async def test_a_token_guards_all_but_preflights(viewer: Viewer) -> None:
    async with Site(Access(token=TOKEN)) as site:
        offer = await viewer.offer()
        assert (await site.call(offer))[0] == 401
        for method in ("GET", "PATCH", "DELETE"):
            assert (await site.ask(method, "/voice/whep/x"))[0] == 401
        assert (await site.ask("OPTIONS", "/voice/whep"))[0] == 200
        status, _, headers = await site.call(offer, Authorization=f"Bearer {TOKEN}")
        assert status == 201
        assert (await site.ask("DELETE", headers["Location"], Authorization=f"Bearer {TOKEN}"))[0] == 200


# ---- ICE servers ----------------------------------------------------------------------------------------------


async def test_listeners_are_told_of_ice_servers(viewer: Viewer) -> None:
    servers = (
        IceServer("stun:stun.example.net"),
        IceServer("turn:turn.example.net?transport=udp", "user", 'my"pass\\word'),
    )
    async with Site(ice_servers=servers) as site:
        _, _, headers = await site.call(await viewer.offer())
        assert headers.getall("Link") == [
            '<stun:stun.example.net>; rel="ice-server"',
            '<turn:turn.example.net?transport=udp>; rel="ice-server"; username="user"; '
            'credential="my\\"pass\\\\word"; credential-type="password"',
        ]


async def test_an_application_tells_listeners_of_its_ice_servers(viewer: Viewer) -> None:
    engine, app = ScriptedRuntime(pace=0.01), web.Application()
    VoiceAgent(engine, ice_servers=[IceServer("stun:stun.example.net")]).attach(app, prefix="/voice")
    async with TestServer(app) as server, ClientSession() as client:
        offer = await viewer.offer()
        async with client.post(server.make_url("/voice/whep"), data=offer, headers={"Content-Type": SDP}) as response:
            assert response.status == 201
            assert response.headers.getall("Link") == ['<stun:stun.example.net>; rel="ice-server"']
    engine.close()


@pytest.mark.parametrize(
    "fields",
    [
        ("http://example.net",),
        ("stun:",),
        ("stun:a b",),
        ('turn:x>; rel="other',),
        ("stun:x\r\nX: y",),
        ("turn:x", "user"),
        ("turn:x", "", "secret"),
        ("turn:x", "user\r\n", "secret"),
        ("turn:x", "user", "gehëim"),
    ],
)
def test_an_ice_server_that_fits_no_header_is_refused(fields: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match=r"an ICE server reads|belong together|printable ASCII"):
        IceServer(*fields)


# ---- SDP ------------------------------------------------------------------------------------------------------

VIDEO = [
    "m=video 9 UDP/TLS/RTP/SAVPF 96 97",
    "a=ice-ufrag:zjkk",
    "a=mid:v",
    "a=recvonly",
    "a=rtpmap:96 VP8/90000",
    "a=rtcp-fb:96 nack",
    "a=rtpmap:97 rtx/90000",
]
AUDIO = ["m=audio 9 UDP/TLS/RTP/SAVPF 111", "a=ice-ufrag:zjkk", "a=mid:a", "a=sendrecv"]
REFUSED = ["m=video 0 UDP/TLS/RTP/SAVPF 96 97", "c=IN IP4 0.0.0.0", "a=mid:v", "a=inactive"]
CARRIED = [
    "m=video 5000 UDP/TLS/RTP/SAVPF 96",
    "a=mid:v",
    "a=inactive",
    "a=rtpmap:96 VP8/90000",
    "a=rtcp-fb:96 nack",
    "c=IN IP4 192.0.2.2",
    "a=rtcp-mux",
    "a=ice-ufrag:9C3w",
    "a=fingerprint:sha-256 48:16",
    "a=setup:active",
]
ANSWERED = [
    "m=audio 5000 UDP/TLS/RTP/SAVPF 111",
    "c=IN IP4 192.0.2.2",
    "a=mid:a",
    "a=sendonly",
    "a=rtcp-mux",
    "a=ice-ufrag:9C3w",
    "a=fingerprint:sha-256 48:16",
    "a=setup:active",
]


def sdp(*parts: list[str]) -> str:
    return "".join(f"{line}\r\n" for part in parts for line in part)


@pytest.mark.parametrize(
    ("bundle", "sections", "answered_bundle", "answered"),
    [
        (" a", [AUDIO], " a", [ANSWERED]),
        (" a v", [AUDIO, VIDEO], " a", [ANSWERED, REFUSED]),
        (" a", [VIDEO, AUDIO], " a", [REFUSED, ANSWERED]),
        (" v a", [VIDEO, AUDIO], " v a", [CARRIED, ANSWERED]),
        (" v a", [AUDIO, VIDEO], " v a", [ANSWERED, CARRIED]),
    ],
)
def test_the_video_of_a_player_for_everything_is_not_served_and_its_audio_is(
    bundle: str, sections: list[list[str]], answered_bundle: str, answered: list[list[str]]
) -> None:
    offer = sdp(["v=0", f"a=group:BUNDLE{bundle}", "a=msid-semantic: WMS *"], *sections)
    assert listening(offer) == sdp(
        ["v=0", "a=group:BUNDLE a", "a=msid-semantic: WMS *"], [line.replace("sendrecv", "recvonly") for line in AUDIO]
    )
    answer = sdp(["v=0", "a=group:BUNDLE a"], ANSWERED)
    assert completed(answer, offer) == sdp(["v=0", f"a=group:BUNDLE{answered_bundle}"], *answered)


def test_a_section_without_a_name_is_refused_without_one() -> None:
    nameless = ["m=video 9 RTP/AVP 96"]
    offer = sdp(["v=0"], nameless, AUDIO)
    answer = sdp(["v=0", "a=group:BUNDLE a"], ANSWERED)
    refusal = ["m=video 0 RTP/AVP 96", "c=IN IP4 0.0.0.0", "a=inactive"]
    assert completed(answer, offer) == sdp(["v=0", "a=group:BUNDLE a"], refusal, ANSWERED)


def test_a_section_that_is_no_section_is_refused() -> None:
    with pytest.raises(OfferError, match="a section begins like"):
        listening("v=0\r\nm=audio nine UDP/TLS/RTP/SAVPF 111\r\n")


async def test_a_player_with_video_is_answered_section_by_section(site: Site, viewer: Viewer) -> None:
    offer = await viewer.offer()
    video = sdp(["m=video 9 UDP/TLS/RTP/SAVPF 96", "a=mid:9", "a=recvonly"])
    status, answer, headers = await site.call(f"{offer.replace('BUNDLE 0', 'BUNDLE 0 9')}{video}")
    assert status == 201
    assert answer.endswith(sdp(["m=video 0 UDP/TLS/RTP/SAVPF 96", "c=IN IP4 0.0.0.0", "a=mid:9", "a=inactive"]))
    assert (await site.patch(headers["Location"], fragment_of(offer), If_Match=headers["ETag"]))[0] == 204


# ---- a browser ------------------------------------------------------------------------------------------------

LISTEN = """async ([kinds, policy]) => {
  const connection = new RTCPeerConnection({ bundlePolicy: policy })
  const candidates = []
  connection.onicecandidate = (event) => event.candidate?.candidate && candidates.push(`a=${event.candidate.candidate}`)
  const tracks = []
  connection.ontrack = (event) => tracks.push(event.track.kind)
  for (const kind of kinds) connection.addTransceiver(kind, { direction: 'recvonly' })
  await connection.setLocalDescription()
  const sdp = connection.localDescription.sdp
  const headers = { 'Content-Type': 'application/sdp' }
  const created = await fetch('/voice/whep', { method: 'POST', headers, body: sdp })
  await connection.setRemoteDescription({ type: 'answer', sdp: await created.text() })
  const location = created.headers.get('Location')
  while (connection.iceGatheringState !== 'complete') await new Promise((done) => setTimeout(done, 20))
  const credentials = sdp.match(/a=ice-(ufrag|pwd):[^\\r]+/g).slice(0, 2)
  const patched = await fetch(location, {
    method: 'PATCH',
    headers: { 'Content-Type': 'application/trickle-ice-sdpfrag', 'If-Match': created.headers.get('ETag') },
    body: [...credentials, sdp.match(/m=[^\\r]+/)[0], 'a=mid:0', ...candidates, ''].join('\\r\\n'),
  })
  const heard = async () => {
    for (const report of (await connection.getStats()).values())
      if (report.type === 'inbound-rtp' && report.packetsReceived > 25) return report.kind
  }
  while (!(await heard())) await new Promise((done) => setTimeout(done, 50))
  const deleted = await fetch(location, { method: 'DELETE' })
  const statuses = [created.status, patched.status, deleted.status]
  const kind = await heard()
  connection.close()
  return { statuses, kind, tracks, candidates: candidates.length > 0 }
}"""


@pytest.mark.browser
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium is installed (Debian: apt-get install chromium)")
async def test_a_real_browser_listens_in_whichever_order_it_offers_video() -> None:
    pytest.importorskip("playwright")
    async with Site(opened=says("x" * 60)) as site, chromium() as browser:
        page = await browser.new_page()
        await page.goto(str(site.server.make_url("/voice/whep/nobody")))  # any page of that origin
        for kinds in (["audio"], ["audio", "video"], ["video", "audio"]):
            for policy in ("max-bundle", "balanced"):
                result = await asyncio.wait_for(page.evaluate(LISTEN, [kinds, policy]), WITHIN)
                expected = {"statuses": [201, 204, 200], "kind": "audio", "tracks": ["audio"], "candidates": True}
                assert result == expected, (kinds, policy)
        assert site.calls.sessions == []
