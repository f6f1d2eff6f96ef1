"""agent/client.py: real calls to a real server in this process, over loopback, as a program makes them."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import os
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from caller import WITHIN, level
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from scripted_runtime import ScriptedRuntime, tone
from stand_in import no_task

from agent import client
from agent.answering import Answering
from agent.brain import BrainConfig, make_brain
from agent.calls import CallLimits, Calls
from agent.client import (
    BusyError,
    Client,
    Frame,
    LostError,
    RefusedError,
    SpeechError,
    UnreachableError,
)
from agent.feed import Feed
from agent.guard import Access
from agent.hearing import Hearing
from agent.opus import OpusEncoder
from agent.protocol import (
    Error,
    ProtocolError,
    ReplyEnded,
    ServerMessage,
    SessionCreated,
    SpeechProgress,
    SpeechStarted,
    SpeechStopped,
    TurnText,
)
from agent.receive import Heard
from agent.server import attach
from agent.transcribe import TranscriberConfig, make_transcriber
from engine.clock import MonotonicClock

TOKEN = "a-token-of-tests"


class Server:
    """A server that speaks; its brain, if it has one, is an echo."""

    def __init__(self, *, answers: bool = False, access: Access | None = None, **limits: Any) -> None:
        self.engine = ScriptedRuntime(pace=0.01)
        app = web.Application()
        brain = make_brain(BrainConfig()), make_transcriber(TranscriberConfig())
        self.calls: Calls = attach(
            app,
            self.engine,
            prefix="/voice",
            access=access,
            limits=CallLimits(**limits),
            answering=Answering(*brain) if answers else None,
        )
        self.http = TestServer(app)

    @property
    def url(self) -> str:
        return str(self.http.make_url("/voice"))

    async def __aenter__(self) -> Server:
        await self.http.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.close()
        self.engine.close()

    async def empty(self) -> None:
        """Returns when every call is over."""
        async with asyncio.timeout(WITHIN):
            while self.calls.sessions:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0.005)

    def vanish(self) -> None:
        """The network is gone: nothing is sent or received any more, and nobody says goodbye."""
        for callee in self.calls._peers.values():
            for protocol in callee._connection.getTransceivers()[0].receiver.transport.transport._connection._protocols:
                protocol.transport.sendto = lambda data, addr=None: None
                protocol.datagram_received = lambda data, addr: None


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as started:
        yield started


async def test_what_is_spoken_is_heard_and_told(server: Server) -> None:
    before, told = asyncio.all_tasks(), list[ServerMessage]()
    async with Client.connect(server.url, on_message=told.append) as call:
        assert call.session.voice == "scripted"
        assert isinstance(told[0], SessionCreated)
        frames, events = call.listen(), call.events()
        utterance = call.speak("x" * 12)  # 12 frames: 0.96 s
        await utterance.begun()
        assert not utterance.over
        spoken = await utterance
        assert await utterance is spoken
        heard = await until_silent(frames)
    assert (spoken.reason, spoken.heard, spoken.heard_seconds) == ("end", "x" * 12, pytest.approx(0.96))
    assert spoken.ttfa is not None
    assert 0 < spoken.ttfa < 5
    samples = np.concatenate([frame.samples for frame in heard])
    first, last = np.flatnonzero(np.abs(samples) > 3000)[[0, -1]]
    assert (last - first) / 48_000 == pytest.approx(0.96, abs=0.02)
    assert level(samples[first:last]) == pytest.approx(12_000 / 32768 / np.sqrt(2), rel=0.1)
    assert {frame.samples.size for frame in heard} == {960}
    assert set(np.diff([frame.position for frame in heard])) == {960}
    instants = [frame.received_at for frame in heard]
    assert instants == sorted(instants)
    assert instants[-1] - instants[0] == pytest.approx(0.02 * (len(heard) - 1), abs=0.5)
    kinds = [type(message) async for message in events if not isinstance(message, SpeechProgress)]
    assert [kind for kind in kinds if kind.__name__ != "Pong"] == [SessionCreated, SpeechStarted, SpeechStopped]
    assert call.round_trip is not None
    await server.empty()
    await no_task(before)


async def until_silent(frames: Feed[Frame]) -> list[Frame]:
    """Frames up to 0.2 s of silence that follow on sound."""
    heard = list[Frame]()
    async with asyncio.timeout(WITHIN):
        async for frame in frames:
            heard.append(frame)
            quiet = [level(frame.samples) < 1e-3 for frame in heard]
            if not all(quiet) and all(quiet[-10:]):
                break
    return heard


async def test_stop_interrupts_and_tells_what_was_heard(server: Server) -> None:
    async with Client.connect(server.url) as call:
        first, second = call.speak("x" * 100), call.speak("never begun")
        await first.begun()
        await call.told(SpeechProgress)
        call.stop()
        spoken, unspoken = await first, await second
        frames = call.listen()
        await until_quiet(frames)
    assert spoken.reason == unspoken.reason == "cancelled"
    assert 0 < spoken.heard_seconds <= spoken.sent_seconds < 8
    assert (unspoken.ttfa, unspoken.heard, unspoken.heard_seconds) == (None, "", 0)
    assert server.engine.cancelled == [1, 2]


async def until_quiet(frames: Feed[Frame]) -> None:
    async with asyncio.timeout(WITHIN):
        quiet = 0
        async for frame in frames:
            quiet = quiet + 1 if level(frame.samples) < 1e-3 else 0
            if quiet == 5:
                return


async def test_how_all_is_said_can_be_changed(server: Server) -> None:
    async with Client.connect(server.url) as call:
        call.update(speaker="S1", cfg_scale=1.0)
        await call.speak("x")
        call.update()
        await call.speak("x")
    first, second = (job.request for job in server.engine.jobs.values())
    assert (first.speaker, first.sampling.cfg_scale) == ("S1", 1.0)
    assert (second.speaker, second.sampling.cfg_scale) == ("S0", None)


async def test_an_utterance_that_is_refused_says_why(server: Server) -> None:
    async with Client.connect(server.url) as call:
        with pytest.raises(SpeechError, match="200 characters") as refused:
            await call.speak("x" * 201)
        assert refused.value.code == "too_long"
        server.engine.retry_after = 0.75
        with pytest.raises(BusyError) as busy:
            await call.speak("not now")
        assert busy.value.retry_after == 0.75
        server.engine.retry_after = 0.0
        with pytest.raises(ValueError, match="being said"):
            call.speak("a", id=call.speak("once", id="mine").id)
        with pytest.raises(ProtocolError, match="65536 bytes"):
            call.speak("x" * 70_000)
        with pytest.raises(BusyError, match="40 messages a second"):
            for _ in range(100):
                call.say("a")


async def test_a_typed_turn_is_answered() -> None:
    async with Server(answers=True) as server, Client.connect(server.url) as call:
        events = call.events()
        call.say("Good morning.")
        ended = await call.told(ReplyEnded)
        assert (ended.reason, ended.heard) == ("end", "Good morning.")
        async for message in events:
            if isinstance(message, TurnText):
                assert message.text == "Good morning."
                break


async def test_a_turn_without_a_brain_is_an_error_event(server: Server) -> None:
    async with Client.connect(server.url) as call:
        call.say("Good morning.")
        assert "nobody answers" in (await call.told(Error)).message


@pytest.mark.parametrize("rate", [16_000, 24_000, 48_000])
async def test_the_microphone_arrives(rate: int) -> None:
    async with Server(answers=True) as server, Client.connect(server.url) as call:
        (session,) = server.calls.sessions
        heard = list[Heard]()
        receiver = server.calls._peers[session.id]._hear
        assert receiver is not None
        receiver.heard = heard.append
        sound = tone(0, rate * 3 // 5, rate)  # 0.6 s

        async def pieces() -> AsyncIterator[Any]:
            for start in range(0, sound.size, 1000):  # which is no whole number of packets
                yield sound[start : start + 1000]

        started_at = asyncio.get_running_loop().time()
        await call.send_microphone(pieces() if rate == 16_000 else sound, rate)
        assert asyncio.get_running_loop().time() - started_at > 0.4
        async with asyncio.timeout(WITHIN):
            while len(heard) < 40:  # noqa: ASYNC110 - silence follows by itself
                await asyncio.sleep(0.01)
    samples = np.concatenate([frame.samples for frame in heard])
    first, last = np.flatnonzero(np.abs(samples) > 3000)[[0, -1]]
    assert (last - first) / 16_000 == pytest.approx(0.6, abs=0.03)
    assert level(samples[first:last]) == pytest.approx(12_000 / 32768 / np.sqrt(2), rel=0.1)


async def test_a_microphone_says_what_it_does_not_take(server: Server) -> None:
    async with Client.connect(server.url) as call:
        with pytest.raises(RefusedError, match="does not listen"):
            await call.send_microphone(np.zeros(960, np.int16))
    async with Server(answers=True) as listening, Client.connect(listening.url) as call:
        with pytest.raises(TypeError, match=r"float64 \[960\]"):
            await call.send_microphone(np.zeros(960))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="44100"):
            await call.send_microphone(np.zeros(960, np.int16), 44_100)


async def test_who_has_no_token_is_refused() -> None:
    async with Server(access=Access(token=TOKEN)) as server:
        before = asyncio.all_tasks()
        with pytest.raises(RefusedError, match="Bearer token") as refused:
            async with Client.connect(server.url, "another-token"):
                pass
        assert (refused.value.status, refused.value.code) == (401, "needs_token")
        await no_task(before)
        async with Client.connect(server.url, TOKEN) as call:
            await call.speak("hello")


async def test_a_certificate_of_ones_own_is_trusted_where_it_is_given(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name, day = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(day)
        .not_valid_after(day + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    file = tmp_path / "both.pem"
    file.write_bytes(certificate.public_bytes(pem) + key.private_bytes(pem, form, serialization.NoEncryption()))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(file)
    server = Server()
    server.http = TestServer(server.http.app, scheme="https", host="localhost")
    await server.http.start_server(ssl=tls)
    async with Client.connect(server.url, tls=ssl.create_default_context(cafile=file)) as call:
        assert (await call.speak("abc")).heard == "abc"
    with pytest.raises(UnreachableError, match="certificate"):
        async with Client.connect(server.url):
            pass
    await server.__aexit__()


async def test_a_busy_server_says_when_to_call_again() -> None:
    async with Server(max_peers=1) as server, Client.connect(server.url):
        with pytest.raises(BusyError, match="lines are taken") as busy:
            async with Client.connect(server.url):
                pass
        assert busy.value.retry_after == 5.0


async def test_where_nobody_answers_it_says_so(server: Server) -> None:
    before = asyncio.all_tasks()
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1/"):
        async with Client.connect("http://127.0.0.1:1"):
            pass
    with pytest.raises(RefusedError, match="404"):
        async with Client.connect(str(server.http.make_url("/elsewhere"))):
            pass
    with pytest.raises(ValueError, match="absolute"):
        async with Client.connect("nowhere"):
            pass
    await no_task(before)


async def test_a_server_that_no_packet_reaches_is_unreachable(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = server.calls.open

    async def astray(*asked: Any) -> tuple[str, str]:
        call_id, answer = await answered(*asked)
        server.vanish()
        return call_id, answer

    monkeypatch.setattr(server.calls, "open", astray)
    before = asyncio.all_tasks()
    with pytest.raises(UnreachableError, match="is UDP blocked"):
        async with Client.connect(server.url, within=0.5):
            pass
    await server.empty()
    await no_task(before)


async def test_a_server_that_vanishes_is_noticed(server: Server) -> None:
    before = asyncio.all_tasks()
    async with Client.connect(server.url, silence=0.6) as call:
        utterance, frames, events = call.speak("x" * 200), call.listen(), call.events()
        await utterance.begun()
        server.vanish()
        with pytest.raises(LostError, match="fell silent"):
            await utterance
        for feed in (frames, events):
            with pytest.raises(LostError, match="fell silent"):
                async for _ in feed:  # type: ignore[attr-defined]
                    pass
        for late in (lambda: call.speak("a"), lambda: call.say("a"), call.stop):
            with pytest.raises(LostError):
                late()
        with pytest.raises(LostError):
            await call.told(SpeechStopped)
        assert isinstance(call.lost, LostError)
    await server.empty()
    await no_task(before)


async def test_a_server_that_hangs_up_is_noticed(server: Server) -> None:
    async with Client.connect(server.url) as call:
        utterance = call.speak("x" * 200)
        await utterance.begun()
        await server.calls.hang_up(call.id)
        with pytest.raises(LostError, match="ended the call"):
            await utterance
    assert server.engine.cancelled == [1]


async def test_after_hanging_up_those_who_listen_are_done(server: Server) -> None:
    async with Client.connect(server.url) as call:
        utterance, frames, events = call.speak("x" * 200), call.listen(), call.events()
        await utterance.begun()
        await call.hang_up()
        await call.hang_up()
        assert [frame async for frame in frames][0].samples.size == 960  # noqa: RUF015
        assert [message async for message in events]
        assert [frame async for frame in call.listen()] == []
        with pytest.raises(LostError, match="hung up"):
            await utterance
    assert server.calls.sessions == []


@pytest.mark.parametrize("delay", [0.0, 0.002, 0.005, 0.01, 0.02, 0.04, 0.08])
async def test_a_connect_that_is_cancelled_leaves_nothing(server: Server, delay: float) -> None:
    server.calls.limits = CallLimits(silence=0.5, pinged_silence=0.5)
    before = asyncio.all_tasks()

    async def connect() -> None:
        async with Client.connect(server.url):
            await asyncio.sleep(WITHIN)

    task = asyncio.create_task(connect())
    await asyncio.sleep(delay)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.empty()
    await no_task(before)


async def test_every_wait_may_be_cancelled() -> None:
    async with Server(answers=True) as server:
        before = asyncio.all_tasks()
        async with Client.connect(server.url) as call:
            utterance = call.speak("x" * 20)
            waits = [
                utterance.begun(),
                waited(utterance),
                call.told(ReplyEnded),
                anext(call.listen()),
                call.send_microphone(tone(0, 96_000, 48_000)),
            ]
            for wait in waits:
                task = asyncio.ensure_future(wait)
                await asyncio.sleep(0.001)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert (await utterance).reason in ("end", "cancelled")  # the microphone may have interrupted it
        await no_task(before)


async def waited(utterance: Any) -> None:
    await utterance


async def test_hanging_up_is_done_though_it_is_cancelled(server: Server) -> None:
    before = asyncio.all_tasks()

    async def call() -> None:
        async with Client.connect(server.url) as client:
            await client.hang_up()

    task = asyncio.create_task(call())
    while not server.calls.sessions:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    while server.calls.sessions and not task.done():
        task.cancel()
        await asyncio.sleep(0.001)
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.empty()
    await no_task(before)


async def test_thirty_calls_leave_nothing_behind(server: Server) -> None:
    """Tasks, threads and descriptors, after calls that end in every way."""
    server.calls.limits = CallLimits(silence=0.5, pinged_silence=0.5)
    found = list[tuple[int, int, int]]()
    for cycle in range(36):
        await one_of_many(server, cycle % 3)
        if cycle in (5, 35):  # what is made on first use is there after the first of them
            await server.empty()
            server.engine.join()
            await asyncio.sleep(0.1)  # justified: lets callbacks of closed transports run, of which nothing tells
            gc.collect()
            descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
            found.append((len(asyncio.all_tasks()), threading.active_count(), descriptors))
    assert found[0] == found[1]


async def one_of_many(server: Server, way: int) -> None:
    with contextlib.suppress(LostError, TimeoutError):
        async with asyncio.timeout(0.15 if way == 2 else None), Client.connect(server.url, silence=0.2) as call:
            utterance = call.speak("x" * 20)
            await utterance.begun()
            if way == 1:
                server.vanish()
            await call.told(SpeechStopped if way else SpeechProgress)


async def test_a_callback_that_fails_is_logged_and_harms_nobody(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: ServerMessage) -> None:
        raise RuntimeError("oh dear")

    async with Client.connect(server.url, on_message=fail) as call:
        assert (await call.speak("abc")).heard == "abc"
    assert "on_message failed" in caplog.text


async def test_whoever_listens_too_slowly_loses_frames(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "HEARD_FRAMES", 3)
    async with Client.connect(server.url) as call:
        slow, never_read = call.listen(), call.listen()
        first = await anext(slow)
        async with asyncio.timeout(WITHIN):
            while not slow.dropped:  # noqa: ASYNC110 - nobody reads
                await asyncio.sleep(0.01)
        assert (await anext(slow)).position - first.position == 960 * (1 + slow.dropped)
        assert never_read.dropped
        del never_read
        gc.collect()
        assert len(call._listeners) == 1, "one that nobody has any more costs nothing"


ANSWERS = {
    "no JSON": (200, "hello", {}, RefusedError("what answers there is no BreezeRT server: .*", 200)),
    "a list": (200, "[]", {}, RefusedError("what answers there is no BreezeRT server: .*", 200)),
    "no SDP": (200, '{"sdp": "hello", "id": "a"}', {}, RefusedError("the server's answer cannot be applied: .*", 200)),
    "redirect": (302, "", {"Location": "http://elsewhere/"}, RefusedError("302: Found", 302)),
    "broken": (500, "{", {}, RefusedError("500: Internal Server Error", 500)),
    "a proxy's": (503, "wait", {"Retry-After": "7"}, BusyError("Service Unavailable", 7.0)),
    "no time": (429, '{"error": []}', {"Retry-After": "soon"}, BusyError("Too Many Requests", 1.0)),
    "huge": (400, " " * 1_000_000, {}, RefusedError("400: Bad Request", 400)),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_any_answer_is_understood_or_refused(name: str) -> None:
    status, body, headers, expected = ANSWERS[name]

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers=headers)

    app, before = web.Application(), asyncio.all_tasks()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        with pytest.raises(type(expected), match=str(expected)) as raised:
            async with Client.connect(str(server.make_url("/"))):
                pass
        assert {**vars(raised.value), "code": ""} == {**vars(expected), "code": ""}
        await no_task(before)


async def test_a_message_that_nobody_knows_is_no_error(server: Server) -> None:
    async with Client.connect(server.url) as call:
        (callee,) = server.calls._peers.values()
        channel: Any = callee._channel
        for text in ('{"type": "news"}', "no JSON", b"\xff", '{"type": "pong", "t": 0, "and": "more"}'):
            channel.send(text)
        assert (await call.speak("abc")).reason == "end"


async def test_a_slow_listener_loses_the_oldest_and_knows_how_many() -> None:
    feed = Feed[int](3)
    for n in range(5):
        feed.push(n)
    feed.end()
    assert [n async for n in feed] == [2, 3, 4]
    assert feed.dropped == 2


async def test_what_is_lost_is_guessed_and_said_so() -> None:
    frames, encoder = list[Frame](), OpusEncoder(24_000)
    hearing = Hearing(MonotonicClock(), frames.append)
    for n in range(10):
        packet = encoder.encode(tone(480 * n, 480))
        if n != 5:
            hearing.push(1, n, 960 * n, packet)
    async with asyncio.timeout(WITHIN):
        while len(frames) < 10:  # noqa: ASYNC110 - a timer gives the lost packet up
            await asyncio.sleep(0.005)
    hearing.close()
    assert [frame.concealed for frame in frames[:10]] == [n == 5 for n in range(10)]
    assert [frame.position for frame in frames[:10]] == [960 * n for n in range(10)]
    assert hearing.counts.lost == 1
    assert hearing.concealed_samples >= 960
