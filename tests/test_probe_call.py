"""agent/probe/call.py: whole calls over loopback, to our own routes, to strangers made of aiortc, to bad ones."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import struct
import threading
import time
from asyncio.selector_events import _SelectorDatagramTransport  # type: ignore[attr-defined]
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from scripted_runtime import ScriptedRuntime
from scripted_talk import Thinker
from sounds import clip, int16
from stand_in import cut, hang, no_task
from waiting import until

from agent.answering import Answering
from agent.brain import BoundedBrain, ReplyLimits
from agent.closing import Connection
from agent.opus import OpusDecoder
from agent.probe import call as module
from agent.probe.call import Target, call
from agent.probe.dialect import claims
from agent.probe.mouth import Air
from agent.probe.network import Network, is_media, parse
from agent.probe.recording import RATE, Pcm, Recording, Told
from agent.probe.scenario import Cue, Scenario, Step
from agent.protocol import Speak
from agent.server import attach
from agent.session import Session
from agent.transcribe import TranscriberConfig, make_transcriber
from engine.clock import MonotonicClock

WITHIN = 20.0
REPLY = "x" * 25
"""2 s of speech: the scripted engine says 80 ms a character."""
PACKET = 0.02


def sounds(name: str) -> Pcm:
    if name == "hiss":
        return np.random.default_rng(1).normal(0, 6000, RATE // 10).clip(-32768, 32767).astype(np.int16)
    return int16(clip(name, RATE))


def step(name: str, after: str, least: float = 0.0, most: float | None = None, **options: Any) -> Step:
    sound = options.pop("sound", "" if "echo_db" in options else "no")
    return Step(name, Cue(after, least, least if most is None else most), sound, **options)


def scenario(*steps: Step, seconds: float = 0.5, limit: float = 12.0) -> Scenario:
    return Scenario("test", "user_interruption", "", (), steps, (), seconds, limit)


LISTENING = scenario(limit=1.0)


class Ours:
    """Our own server, which listens, and answers every turn with REPLY."""

    def __init__(self, greeting: str = "", reply: str = REPLY) -> None:
        self.engine, self.greeting = ScriptedRuntime(pace=0.01), greeting
        brain = BoundedBrain(Thinker(reply), ReplyLimits())
        app = web.Application()
        answering = Answering(brain, make_transcriber(TranscriberConfig("none")))
        self.calls = attach(app, self.engine, opened=self._greet, answering=answering)
        self.http = TestServer(app)

    def _greet(self, session: Session) -> None:
        if self.greeting:
            session.speak(Speak(id="hello", text=self.greeting))

    async def empty(self) -> None:
        async with asyncio.timeout(WITHIN):
            while self.calls.sessions:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.005)


class Stranger:
    """A server of aiortc's and nothing else, which answers {sdp, type} and speaks what it hears; some behave badly."""

    def __init__(self, speaks: bool = True, **behaviour: Any) -> None:
        self.speaks, self.behaviour = speaks, behaviour
        self.connections, self.told = list[RTCPeerConnection](), list[str]()
        app = web.Application()
        app.router.add_post("/{path:.*}", self._offer)
        self.http = TestServer(app)

    async def _offer(self, request: web.Request) -> web.Response:
        found = await request.json() if request.content_type == "application/json" else {"sdp": await request.text()}
        connection = Connection(RTCConfiguration(iceServers=[]))  # aiortc's own does not always close whole
        self.connections.append(connection)
        connection.on("datachannel", lambda channel: channel.on("message", self.told.append))
        if closes_after := self.behaviour.get("closes_after"):
            connection.on("connectionstatechange", lambda: self._close(connection, closes_after))
        await connection.setRemoteDescription(RTCSessionDescription(found["sdp"], "offer"))
        if self.behaviour.get("deaf"):
            sctp: Any = connection.sctp
            sctp._handle_data = self._ignore
        if self.speaks:
            connection.addTrack(connection.getReceivers()[0].track)
        await connection.setLocalDescription()
        sdp = self.behaviour.get("spoils", lambda sdp: sdp)(connection.localDescription.sdp)
        if request.content_type == "application/json":
            return web.json_response({"sdp": sdp, "type": "answer"})
        return web.Response(status=201, text=sdp, content_type="application/sdp")

    async def _ignore(self, data: bytes) -> None:
        """The data channel never opens."""

    def _close(self, connection: RTCPeerConnection, after: float) -> None:
        if connection.connectionState == "connected":
            self.closing = asyncio.get_running_loop().call_later(
                after, lambda: setattr(self, "closed", asyncio.ensure_future(connection.close()))
            )

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()


@asynccontextmanager
async def open_house(house: Ours | Stranger) -> AsyncIterator[str]:
    """Its address. When it closes, nothing is left of any call."""
    async with house.http:
        before = asyncio.all_tasks()
        yield str(house.http.make_url("/")).rstrip("/")
        await (house.empty() if isinstance(house, Ours) else house.close())
        await no_task(before)
    if isinstance(house, Ours):
        house.engine.close()


async def dial(url: str, told: Scenario, protocol: str = "offer", within: float = WITHIN, **options: Any) -> Recording:
    async with asyncio.timeout(3 * WITHIN):
        return await call(Target(url, protocol, within=within), told, 1, 1, sounds=sounds, **options)


def check_packets(recording: Recording) -> None:
    """They are what a decoder takes, in the order in which they came, with the instants of the call."""
    assert recording.connected_at is not None
    instants = [packet.at for packet in recording.packets]
    assert instants == sorted(instants)
    assert recording.connected_at - 0.5 < instants[0]
    assert instants[-1] <= recording.ended_at
    assert {decoded(packet.payload) for packet in recording.packets} == {960}
    assert len({packet.source for packet in recording.packets}) == 1


def decoded(payload: bytes) -> int:
    samples = OpusDecoder(RATE).decode(payload)
    return 0 if samples is None else samples.size


def types(recording: Recording) -> list[str]:
    return [message.type for message in recording.told]


# ---- our own routes -------------------------------------------------------------------------------------------


async def test_an_interruption_is_played_to_our_own_server() -> None:
    spoken = scenario(step("ask", "connected", 0.2), step("cut", "agent", 0.3, 0.6, sound="stop"))
    words = list[str]()
    async with open_house(Ours(reply=REPLY)) as url:
        recording = await dial(url, spoken, progress=words.append)
    assert (recording.failure, recording.missed) == (None, [])
    assert (recording.scenario, recording.trial, recording.seed, recording.protocol) == ("test", 1, 1, "offer")
    check_packets(recording)
    ask, cut_in = recording.said
    assert (ask.step, cut_in.step) == ("ask", "cut")
    assert np.array_equal(ask.samples, sounds("no"))
    assert recording.dialled_at < recording.answered_at < recording.connected_at < ask.begins_at
    assert ask.begins_at - recording.connected_at >= 0.2
    told = recording.told
    started = next(message.at for message in told if message.type == "speech.started")
    assert ask.ends_at < started < cut_in.begins_at
    assert "pong" in types(recording), "a BreezeRT server is pinged"
    assert [claim.kind for claim in claims(told)][:2] == ["started", "stopped"]
    assert words == [f"calls {url}/offer", "is connected", "says ask", "says cut"]
    assert recording.ended_at - cut_in.ends_at >= 0.5


async def test_a_call_over_the_realtime_protocol() -> None:
    spoken = scenario(step("ask", "connected", 0.2), step("cut", "agent", 0.5, sound="stop"))
    async with open_house(Ours(reply=REPLY)) as url:
        recording = await dial(url, spoken, "openai")
    assert (recording.failure, recording.missed, recording.protocol) == (None, [], "openai")
    check_packets(recording)
    assert [said.step for said in recording.said] == ["ask", "cut"]
    assert types(recording)[0] == "session.created"
    assert [claim.kind for claim in claims(recording.told)][:1] == ["started"]


async def test_a_listener_over_whep_hears_and_says_nothing() -> None:
    async with open_house(Ours(greeting=REPLY)) as url:
        recording = await dial(url, scenario(step("ask", "connected"), step("echo", "ask", echo_db=-10.0)), "whep")
    assert (recording.failure, recording.missed, recording.said, recording.told) == (None, ["ask", "echo"], [], [])
    check_packets(recording)
    assert recording.ended_at - recording.packets[0].at > 2.0, "to the end of what it says"


async def test_over_a_network_in_trouble_packets_are_lost_and_late_both_ways() -> None:
    spoken = scenario(step("ask", "connected", 0.2), seconds=2.0)
    async with open_house(Ours()) as url:
        recording = await dial(url, spoken, network=parse("loss=10,burst=2,jitter=50,reorder,double=7,seed=3"))
    assert (recording.failure, recording.missed) == (None, [])
    check_packets(recording)
    numbers = [(packet.sequence - recording.packets[5].sequence + 100) % 2**16 for packet in recording.packets]
    numbers = [number - min(numbers) for number in numbers]
    assert len(set(numbers)) == len(numbers), "SRTP lets no packet through twice"
    assert numbers != sorted(numbers)
    lost, trouble = set(range(100)) - set(numbers), parse("loss=10,burst=2,seed=3").down
    assert lost in [{n for n in range(100) if trouble.is_lost(before + n)} for before in range(10)], "those it says"


# ---- strangers ------------------------------------------------------------------------------------------------


async def test_a_stranger_that_answers_sdp_and_type_only() -> None:
    """It says what it hears: so it becomes audible while it is asked, and for as long as it is asked."""
    stranger = Stranger()
    spoken = scenario(step("ask", "connected", 0.2, sound="user"), step("next", "quiet", 0.1))
    async with open_house(stranger) as url:
        recording = await dial(f"{url}/api/offer", spoken)
        assert stranger.told == [], "it is no BreezeRT server"
    assert (recording.failure, recording.missed, recording.told) == (None, [], [])
    check_packets(recording)
    ask, following = recording.said
    assert following.begins_at - ask.ends_at > 0.6


async def test_what_a_step_waits_for_and_does_not_happen_is_missed() -> None:
    spoken = scenario(
        step("ask", "connected", 0.1), step("late", "agent_end"), step("never", "late.end"), limit=3.0
    )  # fmt: skip
    async with open_house(Stranger()) as url:
        recording = await dial(f"{url}/offer", spoken)
    assert (recording.failure, recording.missed) == (None, ["late", "never"])
    assert recording.ended_at - recording.connected_at == pytest.approx(3.0, abs=0.5)


async def test_the_rehearsed_length_says_when_the_reply_will_end() -> None:
    spoken = scenario(step("ask", "connected", 0.2), step("late", "agent_end", 0.5), seconds=0.3)
    async with open_house(Ours()) as url:
        recording = await dial(url, spoken, lengths={"ask": 2.0})
    assert recording.missed == []
    started = next(message.at for message in recording.told if message.type == "speech.started")
    assert recording.said[1].begins_at - started == pytest.approx(1.5, abs=0.3)


async def test_an_echo_is_the_agents_own_voice_in_the_microphone() -> None:
    """The echo of a greeting comes to the microphone as loud as it is said to be, 80 ms after it came."""
    spoken = scenario(step("echo", "connected", echo_db=-6.0), limit=3.5)
    async with open_house(Ours(greeting=REPLY)) as url:
        recording = await dial(url, spoken)
    assert recording.failure is None
    (echo,) = recording.said
    expected = in_the_air(recording, echo.begins_at, echo.samples.size) * 10 ** (-6 / 20)
    assert np.abs(echo.samples).max() == pytest.approx(np.abs(expected).max(), rel=0.1)
    assert abs(best_lag(echo.samples.astype(float), expected, RATE // 10)) <= PACKET * RATE


def in_the_air(recording: Recording, begins_at: float, size: int) -> np.ndarray[Any, Any]:
    """What a loudspeaker makes of the agent's packets, from an instant on."""
    air, decoder, waiting, parts = Air(), OpusDecoder(RATE), list(recording.packets), list[Pcm]()
    for now in (begins_at + n * PACKET for n in range(size // 960)):
        while waiting and waiting[0].at <= now + PACKET:
            packet = waiting.pop(0)
            samples = decoder.decode(packet.payload)
            assert samples is not None
            air.push(samples, packet.at)
        parts.append(air.take(now))
    return np.concatenate(parts).astype(float)


def best_lag(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], most: int) -> int:
    """By how many samples `one` is behind `other`: where they are most alike."""
    size = min(one.size, other.size)
    spectrum = np.fft.rfft(one[:size], 2 * size) * np.conj(np.fft.rfft(other[:size], 2 * size))
    alike = np.fft.irfft(spectrum)
    lags = [*range(most + 1), *range(-most, 0)]
    return lags[int(np.argmax(alike[lags]))]


# ---- instants -------------------------------------------------------------------------------------------------


async def test_a_sound_begins_20_ms_before_the_packet_that_begins_with_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged at the socket: hiss makes the first large packet after small ones of silence."""
    sent, send = list[tuple[float, int]](), _SelectorDatagramTransport.sendto

    def sendto(self: Any, data: bytes, addr: Any = None) -> None:
        if is_media(data):
            sent.append((MonotonicClock().now(), len(data)))
        send(self, data, addr)

    monkeypatch.setattr(_SelectorDatagramTransport, "sendto", sendto)
    steps = [step("0", "connected", 0.3, sound="hiss")]
    steps += [step(str(n), f"{n - 1}.end", 0.15, 0.3, sound="hiss") for n in range(1, 8)]
    async with open_house(Stranger(speaks=False)) as url:
        recording = await dial(f"{url}/offer", scenario(*steps))
    sizes = [size for _, size in sent]
    large = (min(sizes) + max(sizes)) / 2
    began = [at for n, (at, size) in enumerate(sent) if size > large and max(sizes[max(0, n - 4) : n]) < large]
    assert len(began) == len(recording.said) == 8
    late = sorted(at - PACKET - said.begins_at for at, said in zip(began, recording.said, strict=True))
    assert late[0] >= 0.0, f"none left before it was taken: {late}"
    assert late[5] < 0.001, f"six of eight, whatever else the machine does: {late}"


async def test_a_packet_came_when_the_kernel_took_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server and client share a loop here, which is busy before aiortc gets a packet, and so late for the next."""
    came = dict[tuple[int, int], float]()
    take = module.Sockets._note

    def note(self: Any, data: bytes, at: float) -> None:
        if is_media(data):
            sequence, source = struct.unpack("!2xH4xI", data[:12])
            came[source, sequence] = at
        take(self, data, at)
        time.sleep(0.005)  # justified: this is the late loop that the test is about

    monkeypatch.setattr(module.Sockets, "_note", note)
    async with open_house(Ours()) as url:
        recording = await dial(url, LISTENING)
    assert len(recording.packets) > 5
    assert [packet.at for packet in recording.packets] == [
        came[packet.source, packet.sequence] for packet in recording.packets
    ]


# ---- bad ones -------------------------------------------------------------------------------------------------


async def answered(answer: Callable[[web.Request], Awaitable[web.StreamResponse]], **options: Any) -> Recording:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        before = asyncio.all_tasks()
        recording = await dial(str(server.make_url("/")), LISTENING, **options)
        await no_task(before)
    assert (recording.answered_at, recording.connected_at, recording.packets) in ((None, None, []),)
    assert recording.ended_at >= recording.dialled_at
    return recording


def respond(status: int, text: str, kind: str = "text/plain") -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, content_type=kind)

    return answer


async def test_what_does_not_answer_offers_is_a_failure_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.probe.dialect.LATE_SECONDS", 0.05)
    assert "answered 500 Internal Server Error: 'boom'" in str((await answered(respond(500, "boom"))).failure)
    page = respond(200, "<!doctype html><title>x</title>", "text/html")
    for protocol in ("offer", "openai", "whep"):
        assert "got an HTML page" in str((await answered(page, protocol=protocol)).failure)
    assert "cannot be reached" in str((await answered(cut)).failure)
    silent = await answered(hang, within=0.3)
    assert silent.failure == "not connected within 0.3 s; the agent's server does not answer"
    nobody = await dial("http://127.0.0.1:9", LISTENING)
    assert "http://127.0.0.1:9/offer cannot be reached" in str(nobody.failure)


@pytest.mark.parametrize(
    "spoils",
    [
        lambda sdp: "v=0 garbage",
        lambda sdp: "v=0\r\nm=audio\r\n",
        lambda sdp: sdp.replace("opus/48000/2", "PCMU/8000"),
        lambda sdp: sdp[: len(sdp) // 2],
        lambda sdp: sdp.replace("a=setup:active", "a=setup:actpass"),
        lambda sdp: sdp.replace("a=ice-ufrag", "a=ice-nothing"),
        lambda sdp: "v=0\r\n" * 5000,
        lambda sdp: "",
        lambda sdp: "\x00\xff" * 50,
    ],
)
async def test_sdp_garbage_is_a_failure_in_words(spoils: Callable[[str], str]) -> None:
    async with open_house(Stranger(spoils=spoils)) as url:
        recording = await dial(f"{url}/offer", LISTENING, within=1.0)
    assert recording.failure is not None
    assert recording.failure.startswith(
        ("the agent's answer cannot be applied", "not connected within", "no connection")
    )
    assert recording.connected_at is None


async def test_one_that_does_not_listen_is_a_failure_where_something_is_to_be_said() -> None:
    async with open_house(Stranger(spoils=lambda sdp: sdp.replace("a=sendrecv", "a=sendonly"))) as url:
        recording = await dial(f"{url}/offer", scenario(step("ask", "connected")))
    assert recording.failure == "the agent does not listen: its answer takes no microphone"


async def test_one_that_closes_in_the_middle() -> None:
    async with open_house(Stranger(closes_after=0.5)) as url:
        recording = await dial(f"{url}/offer", scenario(step("ask", "connected"), step("cut", "connected", 5.0)))
    assert str(recording.failure).startswith("the agent ended the call 0.")
    assert recording.missed == ["cut"]
    assert [said.step for said in recording.said] == ["ask"]
    assert recording.said[0].samples.size <= 0.7 * RATE, "as far as it was said"


async def test_one_without_any_audio() -> None:
    async with open_house(Stranger(speaks=False)) as url:
        recording = await dial(f"{url}/offer", LISTENING)
    assert (recording.failure, recording.packets) == ("no audio came from the agent in the whole call", [])


async def test_one_that_vanishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE", 0.5)
    stranger = Stranger()

    def vanish() -> None:
        for protocol in stranger.connections[0].getReceivers()[0].transport.transport._connection._protocols:
            protocol.transport.sendto = lambda data, addr=None: None

    async with open_house(stranger) as url:
        calling = asyncio.create_task(dial(f"{url}/offer", scenario(step("ask", "connected"), step("b", "agent", 9.0))))
        await until(lambda: stranger.connections and stranger.connections[0].connectionState == "connected")
        vanish()
        recording = await calling
    assert str(recording.failure).startswith(
        ("the agent is gone: no packet of any kind for 0.", "not connected within")
    )


async def test_realtime_without_its_channel_is_a_failure_and_others_can_do_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CHANNEL_SECONDS", 0.5)
    async with open_house(Stranger(deaf=True)) as url:
        recording = await dial(f"{url}/offer", scenario(step("ask", "connected", 1.0), seconds=0.2))
        assert (recording.failure, recording.told) == (None, [])
        recording = await dial(f"{url}/v1", scenario(step("ask", "connected", 1.0), seconds=0.2), "openai")
    assert str(recording.failure).startswith("the agent cannot be talked to")
    assert "its data channel oai-events is connecting" in str(recording.failure)


async def test_what_only_a_programmer_can_do_wrong_is_raised() -> None:
    with pytest.raises(ValueError, match="waits for nothing"):
        await dial("http://127.0.0.1:9", scenario(step("ask", "nothing")))
    with pytest.raises(FileNotFoundError):
        await dial("http://127.0.0.1:9", scenario(step("ask", "connected", sound="nothing")))
    with pytest.raises(TypeError, match="int16"):
        await call(Target("http://127.0.0.1:9"), scenario(step("a", "connected")), 1, 1, sounds=lambda name: [1])  # type: ignore[arg-type,return-value]


# ---- nothing is left ------------------------------------------------------------------------------------------


async def test_forty_calls_of_which_half_are_cancelled_leave_nothing() -> None:
    """Tasks, threads, descriptors and the server's calls, wherever a call is interrupted."""
    chance, house, before = random.Random(1), Ours(), (0, 0, 0)
    brief = scenario(step("ask", "connected", sound="hiss"), limit=0.15)
    networks = [Network(), parse("jitter=30,seed=5")]
    async with open_house(house) as url:
        for n in range(40):
            calling = asyncio.create_task(dial(url, brief, network=networks[n % 4 // 2]))
            if n % 2:
                await asyncio.sleep(chance.uniform(0.0, 0.3))  # justified: any instant of a call will do
                calling.cancel()
            await asyncio.wait([calling])
            assert calling.cancelled() or calling.exception() is None
            assert not house.calls.sessions, "it was hung up before it returned"
            if n == 9:  # what is made on first use is there after some
                await asyncio.sleep(0.1)  # justified: lets callbacks of closed transports run, of which nothing tells
                before = held()
        await until(
            lambda: all(now <= then for now, then in zip(held(), before, strict=True))
        )  # then some still closed


def held() -> tuple[int, int, int]:
    """Tasks, threads and descriptors."""
    gc.collect()
    return len(asyncio.all_tasks()), threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize("depth", [2, 900])
def test_what_lies_deep_in_a_message_is_left_out(depth: int) -> None:
    text = '{"type": "reply.ended", "heard_ms": 20, "deep": ' + depth * "[" + depth * "]" + "}"
    assert module.told(text, 3.0) == Told(3.0, "reply.ended", {"type": "reply.ended", "heard_ms": 20})


async def test_a_call_that_is_cancelled_again_and_again_hangs_up_all_the_same() -> None:
    house, ended = Ours(), list[str]()
    hang_up, calls = house.calls.hang_up, cast(Any, house.calls)
    calls.hang_up = lambda call_id: (ended.append(call_id), hang_up(call_id))[1]
    async with open_house(house) as url:
        calling = asyncio.create_task(dial(url, LISTENING))
        await until(lambda: house.calls.sessions)
        while not calling.done():
            calling.cancel()
            await asyncio.sleep(0.001)  # cancelled anew at many instants of its ending
        assert calling.cancelled()
        assert not house.calls.sessions
        assert len(ended) == 1, "it was told"
