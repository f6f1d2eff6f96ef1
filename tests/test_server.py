"""agent/server.py and agent/serve.py: the routes as a client sees them, and the life of the process."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
import math
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from caller import Caller
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from scripted_runtime import SPEC, ScriptedRuntime

from agent import __main__ as command
from agent import serve
from agent.calls import CallLimits
from agent.door import Door, noting
from agent.guard import Access
from agent.manner import Manner
from agent.server import attach
from agent.session import Session
from engine.clock import MonotonicClock
from engine.core import Mode

ROOT = Path(__file__).parent.parent
TOKEN = "correct-horse-battery"


class Site:
    """A whole agent with a scripted engine, and a client that speaks HTTP to it."""

    def __init__(self, **options: Any) -> None:
        self.engine = ScriptedRuntime(pace=0.02)
        app = web.Application()
        self.calls = attach(app, self.engine, **options)
        self.server = TestServer(app)

    async def __aenter__(self) -> Site:
        await self.server.start_server()
        self.client = ClientSession(base_url=self.server.make_url("/"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        await self.server.close()
        self.engine.close()

    async def offer(self, body: object, **headers: str) -> tuple[int, Any, dict[str, str]]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post("offer", data=data, headers=headers) as response:
            return response.status, await response.json(), dict(response.headers)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with Site() as opened:
        yield opened


async def test_a_call_from_offer_to_delete(site: Site) -> None:
    caller = Caller()
    status, answer, _ = await site.offer({"sdp": await caller.offer(), "type": "offer"})
    assert (status, answer.keys(), answer["type"]) == (200, {"sdp", "type", "id"}, "answer")
    await caller.accept(answer["sdp"])
    assert caller.told("session.created")[0]["id"] == answer["id"]
    caller.send(type="speak", id="a", text="x" * 100)
    await caller.wait(lambda: caller.told("speech.started"))
    async with site.client.delete(f"calls/{answer['id']}") as response:
        assert response.status == 204
    assert site.engine.cancelled == [1]
    assert site.calls.sessions == []
    async with site.client.delete(f"calls/{answer['id']}") as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "not_found"
    await caller.close()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "must be JSON"),
        (b"{", "must be JSON"),
        (b"\xff", "must be JSON"),
        (b"[" * 60_000, "must be JSON"),
        ([], '{"sdp": "...", "type": "offer"}'),
        ({"sdp": "v=0"}, '{"sdp": "...", "type": "offer"}'),
        ({"sdp": "v=0", "type": "answer"}, '{"sdp": "...", "type": "offer"}'),
        ({"sdp": 5, "type": "offer"}, '{"sdp": "...", "type": "offer"}'),
        ({"sdp": "v=0", "type": "offer"}, "audio section"),
        ({"sdp": "garbage", "type": "offer"}, "audio section"),
    ],
)
async def test_a_body_that_is_no_offer_is_a_400_with_its_reason(site: Site, body: object, words: str) -> None:
    status, answer, _ = await site.offer(body)
    assert status == 400
    assert words in answer["error"]["message"]
    assert site.calls.sessions == []


async def test_a_body_beyond_64_kb_is_a_413(site: Site) -> None:
    assert (await site.offer({"sdp": "x" * 70_000, "type": "offer"}))[0] == 413


async def test_one_peer_too_many_is_a_503_with_a_time_to_come_back() -> None:
    async with Site(limits=CallLimits(max_peers=1)) as site:
        callers = [Caller(), Caller()]
        first, second = [await site.offer({"sdp": await c.offer(), "type": "offer"}) for c in callers]
        assert first[0] == 200
        assert (second[0], second[2]["Retry-After"], second[1]["error"]["code"]) == (503, "5", "busy")
        await asyncio.gather(*(caller.close() for caller in callers))


@pytest.mark.parametrize(("hint", "seconds"), [(0.2, "1"), (2.0, "2"), (2.1, "3")])
async def test_no_call_is_taken_while_the_engine_would_refuse_its_first_words(
    site: Site, hint: float, seconds: str
) -> None:
    site.engine.retry_after = hint
    caller = Caller()
    body = {"sdp": await caller.offer(), "type": "offer"}
    status, answer, headers = await site.offer(body)
    assert (status, headers["Retry-After"]) == (503, seconds)
    assert answer["error"]["code"] == "busy"
    assert answer["error"]["message"] == "all voices are busy, a new caller would wait for too long: call again later"
    assert answer["error"]["retry_after_ms"] == 1000 * hint
    assert site.calls.sessions == []
    async with site.client.get("healthz") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})
    async with site.client.get("metrics") as response:
        assert f"\nbreezert_engine_retry_after_seconds {hint}\n" in await response.text()
    site.engine.retry_after = 0.0
    assert (await site.offer(body))[0] == 200
    await caller.close()


async def test_a_busy_engine_is_an_error_with_a_hint_on_the_data_channel(site: Site) -> None:
    caller = Caller()
    _, answer, _ = await site.offer({"sdp": await caller.offer(), "type": "offer"})
    await caller.accept(answer["sdp"])
    site.engine.retry_after = 1.5
    caller.send(type="speak", id="a", text="Hello.")
    await caller.wait(lambda: caller.told("speech.stopped"))
    (error,) = caller.told("error")
    assert (error["code"], error["id"], error["retry_after_ms"]) == ("busy", "a", 1500.0)
    await caller.close()


async def test_health_says_when_the_engine_is_down(site: Site) -> None:
    site.engine.up = False
    async with site.client.get("healthz") as response:
        assert (response.status, await response.json()) == (503, {"status": "down"})


async def test_health_says_when_it_drains(site: Site) -> None:
    async with site.client.get("healthz") as response:
        assert (response.status, await response.json()) == (200, {"status": "ok"})
    await site.calls.drain(0.0)
    async with site.client.get("healthz") as response:
        assert (response.status, await response.json()) == (503, {"status": "draining"})
    status, _, headers = await site.offer({"sdp": "v=0", "type": "offer"})
    assert (status, "Retry-After" in headers) == (503, True)


async def test_metrics_are_prometheus_text_of_agent_and_engine(site: Site) -> None:
    await site.offer({"sdp": "", "type": "offer"})
    async with site.client.get("metrics") as response:
        text = await response.text()
        assert response.headers["Content-Type"].startswith("text/plain; version=")
    assert "breezert_peers 0.0" in text
    assert 'breezert_refused_total{status="400"} 1.0' in text
    assert "breezert_engine_up 1.0" in text
    assert "breezert_engine_open_requests 0.0" in text
    assert "breezert_ttfa_seconds_bucket" in text


async def test_the_page_and_its_modules_are_served_and_nothing_else(site: Site) -> None:
    async with site.client.get("") as response:
        assert response.status == 200
        assert response.content_type == "text/html"
        page = await response.text()
    for name in re.findall(r'(?:src|href)="([^":]+)"', page):
        async with site.client.get(name) as response:
            assert response.status == 200, name
            assert response.content_type in ("text/javascript", "application/javascript", "text/css", "image/svg+xml")
    for path in ("nothing.js", "../pyproject.toml", "%2e%2e/pyproject.toml", "agent/server.py"):
        async with site.client.get(path) as response:
            assert response.status == 404, path


async def test_a_token_guards_what_costs_something_and_no_answer_contains_it() -> None:
    async with Site(access=Access("127.0.0.1", TOKEN)) as site:
        wants = [("POST", "offer"), ("DELETE", "calls/x"), ("GET", "metrics")]
        for method, path in wants:
            async with site.client.request(method, path) as response:
                assert response.status == 401, path
        for path in ("", "healthz", "main.js"):
            async with site.client.get(path) as response:
                assert response.status == 200, path
                assert TOKEN not in await response.text()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with site.client.get("metrics", headers=headers) as response:
            assert response.status == 200
            assert TOKEN not in await response.text()
        caller = Caller()
        status, answer, _ = await site.offer({"sdp": await caller.offer(), "type": "offer"}, **headers)
        assert status == 200
        assert TOKEN not in answer["sdp"]
        await caller.close()


async def test_it_lives_below_a_prefix_in_somebody_elses_application() -> None:
    async with Site(prefix="/voice") as site:
        for path, status in (("voice/healthz", 200), ("voice/", 200), ("voice", 200), ("healthz", 404)):
            async with site.client.get(path) as response:
                assert response.status == status, path


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "nope", 404), ("PUT", "offer", 405), ("POST", "", 405), ("GET", "a/b/c", 404)],
)
async def test_the_rules_hold_where_no_route_is(site: Site, method: str, path: str, status: int) -> None:
    for headers, wanted in (({}, status), ({"Host": "evil.com"}, 421), ({"Origin": "https://evil.com"}, 403)):
        async with site.client.request(method, path, headers=headers) as response:
            assert (response.status, response.content_type) == (wanted, "application/json")
            assert "default-src 'self'" in response.headers["Content-Security-Policy"]


async def test_a_method_that_no_route_takes_is_told_which_are(site: Site) -> None:
    async with site.client.put("offer") as response:
        assert response.headers["Allow"] == "OPTIONS, POST"


async def test_requests_without_a_route_count_too() -> None:
    async with Site(access=Access(rate=1.0)) as site:
        statuses = [(await site.client.get("nope")).status for _ in range(4)]
        assert statuses == [404, 404, 404, 429]


async def test_somebody_elses_routes_stay_theirs_and_the_rules_hold_below_the_prefix() -> None:
    async def theirs(request: web.Request) -> web.Response:
        return web.Response(text="theirs")

    evil = {"Host": "evil.com"}
    site = Site(prefix="/voice")
    site.server.app.router.add_get("/theirs", theirs)
    site.server.app.router.add_get("/voice/theirs", theirs)  # added later, and still found
    async with site:
        for path, status in (("theirs", 200), ("voice/theirs", 200), ("nope", 404), ("voices", 404)):
            async with site.client.get(path, headers=evil) as response:
                assert response.status == status, path
                assert "Content-Security-Policy" not in response.headers, path
        for method, path in (("GET", "voice/nope"), ("PUT", "voice/offer"), ("POST", "voice")):
            async with site.client.request(method, path, headers=evil) as response:
                assert response.status == 421, path
                assert "Content-Security-Policy" in response.headers, path
        async with site.client.get("voice", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (302, "/voice/")
            assert "Content-Security-Policy" in response.headers


async def test_the_application_is_told_of_sessions_and_may_speak_in_them() -> None:
    from agent.protocol import Speak

    async with Site(opened=lambda session: session.speak(Speak(id="hello", text="x" * 5))) as site:
        caller = Caller()
        _, answer, _ = await site.offer({"sdp": await caller.offer(), "type": "offer"})
        await caller.accept(answer["sdp"])
        await caller.wait(lambda: caller.told("speech.stopped"))
        assert caller.told("speech.stopped")[0]["id"] == "hello"
        await caller.close()


async def test_an_application_that_fails_in_a_new_session_leaves_no_call() -> None:
    def fail(session: Session) -> None:
        raise RuntimeError("the application's own mistake")

    async with Site(opened=fail) as site:
        caller = Caller()
        body = {"sdp": await caller.offer(), "type": "offer"}
        async with site.client.post("offer", json=body) as response:
            assert response.status == 500
        assert site.calls.sessions == []
        await caller.close()


async def test_tls_is_spoken_with_the_certificate_that_was_given(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    day = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(day)
        .not_valid_after(day + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (tmp_path / "cert.pem").write_bytes(certificate.public_bytes(pem))
    form, secret = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, form, secret))
    tls = serve.tls_context(serve.ServeConfig(tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem"))
    app = web.Application()
    attach(app, ScriptedRuntime())
    server = TestServer(app, scheme="https", host="localhost")
    await server.start_server(ssl=tls)
    trust = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    async with ClientSession() as client, client.get(server.make_url("/healthz"), ssl=trust) as response:
        assert response.status == 200
    await server.close()


async def test_the_log_of_requests_holds_no_query_no_header_and_no_call_id(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("agent.access")
    written = serve.AccessLog(logger, "")
    seen: list[web.Request] = []

    async def keep(request: web.Request) -> web.Response:
        seen.append(request)
        return web.Response()

    app = web.Application(middlewares=[noting(Door(MonotonicClock()))])
    app.router.add_get("/calls/{id}", keep)
    async with TestServer(app) as server, ClientSession() as client:
        url = server.make_url("/calls/secret-id").with_query(token=TOKEN)
        async with client.get(url, headers={"Authorization": f"Bearer {TOKEN}"}):
            pass
        with caplog.at_level(logging.INFO, "agent.access"):
            written.log(seen[0], web.Response(), 0.0123)
    assert caplog.messages == ["127.0.0.1 GET /calls/{id} 200 12 ms"]


# ---- the command ----------------------------------------------------------------------------------------------


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = command.main(["serve", *arguments])
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 can be reached from other machines: give --token-file or --token"),
        (["--token", "short"], "at least 8"),
        (["--token-file", "/nonexistent/token"], "/nonexistent/token cannot be read: No such file"),
        (["--token", TOKEN, "--token-file", "x"], "not both"),
        (["--allow-origin", "*"], "an origin reads like"),
        (["--max-rate", "0"], "rate must be above 0"),
        (["--tls-cert", "cert.pem"], "needs both"),
        (["--tls-cert", "/nonexistent/c", "--tls-key", "/nonexistent/k"], "cannot be used"),
        (["--host", "no.such.host.invalid", "--token", TOKEN], "cannot be found"),
        (["--port", "0", "--voice", "/nonexistent/voice", "--max-wait", "inf"], "/nonexistent/voice"),
    ],
)
def test_a_users_mistake_is_one_line_and_status_1(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, err = run(*arguments, capsys=capsys)
    assert status == 1
    assert words in err
    assert err.startswith("breezert: ")
    assert err.count("\n") == 1


def test_a_port_in_use_is_said_before_any_voice_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, err = run("--port", str(port), "--voice", "/nonexistent", capsys=capsys)
    assert (status, err) == (1, f"breezert: port {port} on 127.0.0.1 is in use: choose another one with --port\n")


@pytest.mark.parametrize("argument", ["--hosts=x", "--port=x", "--max-peers=0", "extra"])
def test_unknown_options_and_values_are_status_2(argument: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["serve", argument])
    assert "breezert serve: error" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["-1", "-inf", "nan"])
def test_a_wait_that_is_none_is_status_2(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["serve", f"--max-wait={seconds}"])
    assert f"--max-wait: must be seconds from 0 on, or inf, got {seconds}" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "wait"), [([], 2.0), (["--max-wait", "0"], 0.0), (["--max-wait=inf"], math.inf)])
def test_the_wait_reaches_the_engine(monkeypatch: pytest.MonkeyPatch, arguments: list[str], wait: float) -> None:
    configs: list[serve.ServeConfig] = []
    monkeypatch.setattr(serve, "run", configs.append)
    assert command.main(["serve", *arguments]) == 0
    assert configs[0].runtime.max_wait == wait


def test_a_token_file_is_read_without_its_line_end(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    assert serve.access("0.0.0.0", None, file, [], [], 20.0).token == TOKEN


def test_other_commands_go_to_the_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["say", "--help"])
    assert "breezert say" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.main(["--help"])
    helped = capsys.readouterr().out
    assert "serve" in helped
    assert "say" in helped


SERVING = """
import sys, threading
sys.path[:0] = [{tests!r}, {root!r}]
from scripted_runtime import ScriptedRuntime
from agent import serve
serve.run(serve.ServeConfig(port=0, drain=20.0), lambda config: ScriptedRuntime(pace=0.02))
print("ended cleanly", [thread.name for thread in threading.enumerate()])
"""


class Process:
    """`serve` in a process of its own, with a scripted engine."""

    def __init__(self) -> None:
        program = SERVING.format(tests=str(Path(__file__).parent), root=str(ROOT))
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.lines = [self.process.stdout.readline() for _ in range(2)]

    async def end(self) -> tuple[int, str, str]:
        out, err = await asyncio.to_thread(self.process.communicate)
        return self.process.returncode, out, err

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    started = await asyncio.to_thread(Process)
    yield started
    started.kill()


async def test_it_says_where_it_listens_and_whose_voice_it_is(process: Process) -> None:
    assert re.fullmatch(r"BreezeRT listens at http://127\.0\.0\.1:\d+/\n", process.lines[0])
    assert process.lines[1] == "voice scripted, licence Apache-2.0, on nothing\n"


async def listening(client: ClientSession, letters: int) -> Caller:
    """A caller in a call, who hears the first of so many letters."""
    caller = Caller()
    async with client.post("offer", json={"sdp": await caller.offer(), "type": "offer"}) as response:
        answer = await response.json()
    await caller.accept(answer["sdp"])
    caller.send(type="speak", id="a", text="x" * letters)
    await caller.wait(lambda: caller.told("speech.started"))
    return caller


async def test_sigterm_lets_speech_end_and_the_process_with_it(process: Process) -> None:
    async with ClientSession(base_url=process.lines[0].split()[-1]) as client:
        caller = await listening(client, letters=10)
        os.kill(process.process.pid, signal.SIGTERM)
        await caller.wait(lambda: caller.told("speech.stopped"))
    assert caller.told("speech.stopped")[0]["reason"] == "end"
    status, out, err = await process.end()
    assert (status, err) == (0, "ending: what is being said is finished first\n")
    assert "ended cleanly ['MainThread']" in out
    await caller.close()


async def test_sigterm_lets_speech_over_http_end(process: Process) -> None:
    async with ClientSession(base_url=process.lines[0].split()[-1]) as client:
        body = {"input": "x" * 20, "response_format": "pcm"}
        async with client.post("v1/audio/speech", json=body) as response:
            first = await response.content.readany()
            os.kill(process.process.pid, signal.SIGTERM)
            rest = await response.content.read()
    assert len(first) + len(rest) == 20 * 1920 * 2, "a frame a letter"
    status, _, err = await process.end()
    assert (status, err) == (0, "ending: what is being said is finished first\n")


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_signal_while_the_application_starts_ends_it(stubborn: bool) -> None:
    """Also where what it starts is done in the same moment."""
    signals, begun, ended = asyncio.Queue[None](), asyncio.Event(), list[int]()

    async def life(app: web.Application) -> AsyncIterator[None]:
        begun.set()
        try:
            if not stubborn:
                await asyncio.Event().wait()
            yield
        finally:
            ended.append(1)

    app = web.Application()
    app.cleanup_ctx.append(life)
    runner = web.AppRunner(app)
    starting = asyncio.create_task(serve.set_up(runner, signals))
    if not stubborn:
        await begun.wait()
    signals.put_nowait(None)
    assert not await starting
    await runner.cleanup()
    assert ended == [1]


async def test_sigint_in_silence_ends_at_once(process: Process) -> None:
    os.kill(process.process.pid, signal.SIGINT)
    status, out, _ = await process.end()
    assert status == 0
    assert "ended cleanly" in out


async def test_a_second_signal_does_not_wait_for_speech(process: Process) -> None:
    async with ClientSession(base_url=process.lines[0].split()[-1]) as client:
        caller = await listening(client, letters=200)
        os.kill(process.process.pid, signal.SIGTERM)
        while (await client.get("healthz")).status == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # until the first signal was taken
        os.kill(process.process.pid, signal.SIGTERM)
    status, out, _ = await process.end()
    assert status == 0
    assert "ended cleanly" in out
    assert not caller.told("speech.stopped")
    await caller.close()


def test_a_non_commercial_voice_is_said_to_be_one(capsys: pytest.CaptureFixture[str]) -> None:
    engine: Any = ScriptedRuntime()
    engine.spec = replace(engine.spec, name="breeze-tts-2", licence="CC BY-NC 4.0")
    serve.announce(serve.ServeConfig(access=Access("::1")), engine, 8080)
    out, err = capsys.readouterr()
    assert out == (
        "BreezeRT listens at http://[::1]:8080/\n"
        "voice breeze-tts-2, licence CC BY-NC 4.0 (non-commercial use only), on nothing\n"
    )
    assert err == ""


@pytest.mark.parametrize(("voice", "asks"), [(None, True), ("anna", False)])
def test_a_voice_that_only_clones_asks_for_somebody(
    voice: str | None, asks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    engine: Any = ScriptedRuntime(replace(SPEC, modes=frozenset({Mode.CLONE})))
    serve.announce(serve.ServeConfig(manner=Manner(voice=voice)), engine, 8080)
    assert ("--ref-voice" in capsys.readouterr().err) == asks


def test_beyond_this_machine_it_says_what_to_mind_and_never_the_token(capsys: pytest.CaptureFixture[str]) -> None:
    engine: Any = ScriptedRuntime()
    serve.announce(serve.ServeConfig(access=Access("0.0.0.0", TOKEN)), engine, 8080)
    out, err = capsys.readouterr()
    assert "#token=" in err
    assert "in the clear" in err
    assert TOKEN not in out + err
