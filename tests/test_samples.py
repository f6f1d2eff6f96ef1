"""samples/: each one runs, and so does the README's program."""

from __future__ import annotations

import asyncio
import json
import re
import runpy
import sys
import wave
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import numpy as np
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from caller import WITHIN, Caller
from readme import embedding
from scripted_runtime import ScriptedRuntime
from stand_in import DONE, StandIn, chunk, stream
from voices import voice

from agent.client import Client, SpeechError
from agent.protocol import ReplyEnded
from agent.script import read_script
from agent.server import attach
from engine.core import Output, Request
from engine.messages import RuntimeConfig
from engine.runtime import Runtime

SAMPLES = Path(__file__).parent.parent / "samples"


@pytest.mark.parametrize("program", [(SAMPLES / "embed.py").read_text(), embedding()], ids=["sample", "README"])
async def test_embed_greets_whoever_calls(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as a user runs it, up to the point where aiohttp would take over the process."""
    file = tmp_path / "program.py"
    file.write_text(program)
    engine, given = ScriptedRuntime(pace=0.001), dict[str, Any]()
    monkeypatch.setattr(Runtime, "start", lambda: engine)
    monkeypatch.setattr(web, "run_app", lambda app, **options: given.update(app=app, **options))
    runpy.run_path(str(file), run_name="__main__")
    assert (given["host"], given["port"]) == ("127.0.0.1", 8080)
    assert engine.closed

    async with TestServer(given["app"]) as server, ClientSession(base_url=server.make_url("/voice/")) as client:
        async with client.get("") as response:
            assert response.status == 200
        caller = Caller()
        async with client.post("offer", json={"sdp": await caller.offer(), "type": "offer"}) as response:
            answer = await response.json()
        await caller.accept(answer["sdp"])
        await caller.wait(lambda: caller.told("speech.started"))
        assert caller.told("speech.started")[0]["id"] in ("greeting", "hi")
        await caller.close()
    engine.close()


def sample(name: str) -> ModuleType:
    spec = spec_from_file_location(f"sample_{name}", SAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BusyOnce(ScriptedRuntime):
    """Refuses its first request, though it takes the call."""

    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int:
        self.retry_after = 0.0 if self.jobs else 0.75
        try:
            return super().submit(request, deliver)
        finally:
            self.retry_after = 0.0


async def test_call_waits_while_busy_and_keeps_what_it_hears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, engine, pauses = sample("call"), BusyOnce(pace=0.001), list[tuple[float, str]]()
    engine.retry_after = 1.5

    async def pause(seconds: float, what: str) -> None:
        pauses.append((seconds, what))
        engine.retry_after = 0.0

    monkeypatch.setattr(program, "pause", pause)
    app = web.Application()
    attach(app, engine, prefix="/voice")
    async with TestServer(app) as server:
        pcm = await program.call(str(server.make_url("/voice")), "Hello, there.")
    engine.close()
    assert pauses == [(2.0, "the server is busy"), (0.75, "all voices are busy")]
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [message["type"] for message in told if message["type"] != "speech.progress"]
    assert kinds[:3] == ["session.created", "error", "speech.stopped"]
    assert kinds[-2:] == ["speech.started", "speech.stopped"]
    assert (told[-1]["id"], told[-1]["reason"]) == ("call-2", "end")

    program.keep(pcm, tmp_path / "heard.wav")
    with wave.open(str(tmp_path / "heard.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (48_000, 1, 2)
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    loud = np.abs(samples.reshape(-1, 960)).max(axis=1) > 3000
    assert loud.sum() * 0.02 == pytest.approx(13 * 0.08, abs=0.2), "a frame of 80 ms a character"


async def test_call_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    program, app = sample("call"), web.Application()
    attach(app, ScriptedRuntime(pace=0.001))
    async with TestServer(app) as server:
        with pytest.raises(SpeechError, match="200 characters"):
            await program.call(str(server.make_url("/")), "x" * 201)


def test_call_as_a_command_says_in_a_line_that_nobody_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["call.py", "Hello", "--url", "http://127.0.0.1:1"])
    assert sample("call").main() == 1
    assert re.fullmatch("call: http://127.0.0.1:1/ cannot be reached: .*\n", capsys.readouterr().err)


async def test_client_interrupts_after_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    engine, app = ScriptedRuntime(pace=0.001), web.Application()
    attach(app, engine)
    async with TestServer(app) as server:
        await sample("client").main(str(server.make_url("/")))
    engine.close()
    assert re.fullmatch(
        "first audio after [0-9]+ ms; cancelled; heard: I have rather.*(?<!you interrupt me[.])\n",
        capsys.readouterr().out,
    )


async def test_own_brain_answers(capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedRuntime(pace=0.001)
    app = sample("own_brain").application(engine)
    async with TestServer(app) as server, Client.connect(str(server.make_url("/voice"))) as call:
        call.say("two words")
        assert (await call.told(ReplyEnded)).heard == "You said: two words. That has 2 words."
    engine.close()
    assert capsys.readouterr().out == "user: two words\n"


async def test_llm_asks_an_openai_compatible_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_KEY", "a-key")
    engine = ScriptedRuntime(pace=0.001)
    async with StandIn() as endpoint:
        endpoint.answers.append(stream(chunk("Good "), chunk("morning."), chunk(finish="stop"), DONE))
        app = sample("llm").application(engine, endpoint.url, "a-model")
        async with TestServer(app) as server, Client.connect(str(server.make_url("/"))) as call:
            greeting = await call.told(ReplyEnded)
            call.say("Hello")
            answer = await call.told(ReplyEnded)
    engine.close()
    assert (greeting.heard, answer.heard) == ("Hello! What can I do for you?", "Good morning.")
    assert endpoint.headers[0]["Authorization"] == "Bearer a-key"
    assert endpoint.bodies[0]["model"] == "a-model"


def run(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Runs a sample as a user does, up to the point where aiohttp would take over: what it would serve."""
    given = dict[str, Any]()
    monkeypatch.setattr(Runtime, "start", lambda: ScriptedRuntime(pace=0.001))
    monkeypatch.setattr(web, "run_app", lambda app, **options: given.update(app=app, **options))
    monkeypatch.setattr(sys, "argv", [name, "http://127.0.0.1:1/v1", "a-model"])
    runpy.run_path(str(SAMPLES / f"{name}.py"), run_name="__main__")
    return given


@pytest.mark.parametrize("name", ["own_brain", "llm"])
def test_a_server_runs_as_a_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = run(name, monkeypatch)
    assert (given["host"], given["port"]) == ("127.0.0.1", 8080)


async def test_beside_lets_the_sites_pages_in_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it runs, with other ports than its own: both servers in one program, until FastAPI's is told to end."""
    import uvicorn

    program, configure, serve_at = sample("beside"), uvicorn.Config, web.TCPSite
    servers, runners, ports = list[uvicorn.Server](), list[Any](), list[int]()

    def config(site: Any, host: str, port: int) -> uvicorn.Config:
        ports.append(port)
        return configure(site, host=host, port=0, log_level="warning")

    def site_of(runner: web.AppRunner, host: str, port: int) -> web.TCPSite:
        ports.append(port)
        runners.append(runner)
        return serve_at(runner, host, 0)

    def server_of(config: uvicorn.Config) -> uvicorn.Server:
        servers.append(uvicorn_server(config))
        return servers[-1]

    uvicorn_server = uvicorn.Server
    monkeypatch.setattr(Runtime, "start", lambda: ScriptedRuntime(pace=0.001))
    monkeypatch.setattr(uvicorn, "Config", config)
    monkeypatch.setattr(uvicorn, "Server", server_of)
    monkeypatch.setattr(web, "TCPSite", site_of)
    running = asyncio.create_task(program.main())
    async with asyncio.timeout(WITHIN):
        while not (servers and servers[0].started):  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0.01)
    assert ports == [8080, 8000]
    (voice,) = runners[0].addresses
    site = servers[0].servers[0].sockets[0].getsockname()
    async with ClientSession() as browser:
        async with browser.get(f"http://127.0.0.1:{site[1]}/") as response:
            page = await response.text()
        assert response.content_type == "text/html"
        assert 'fetch("http://127.0.0.1:8080/offer"' in page
        caller, allowed, offer = Caller(), {"Origin": "http://127.0.0.1:8000"}, f"http://127.0.0.1:{voice[1]}/offer"
        body = json.dumps({"sdp": await caller.offer(), "type": "offer"})  # as fetch sends a string: text/plain
        async with browser.post(offer, data=body, headers=allowed) as response:
            assert response.headers["Access-Control-Allow-Origin"] == "http://127.0.0.1:8000"
            answer = await response.json()
        await caller.accept(answer["sdp"])
        await caller.wait(lambda: caller.told("speech.started"))
        await caller.close()
        strange = {"Origin": "http://127.0.0.1:9000"}
        async with browser.post(offer, data=body, headers=strange) as response:
            assert response.status == 403
    servers[0].should_exit = True
    await running


def test_stream_text_speaks_what_is_written_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, heard = voice("qwen3_tts", tmp_path), tmp_path / "heard.wav"
    (folder / "generation_config.json").write_text(json.dumps({"max_new_tokens": 60}))
    monkeypatch.setattr(sys, "argv", ["stream_text.py", str(folder), str(heard)])
    monkeypatch.setattr(sys, "stdin", StringIO("hello there my friend"))
    runpy.run_path(str(SAMPLES / "stream_text.py"), run_name="__main__")
    assert "Finished(" in capsys.readouterr().err
    with wave.open(str(heard)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes() % 1920) == (24_000, 1, 0)
        assert file.getnframes() > 0


@pytest.mark.parametrize("name", sorted(path.stem for path in SAMPLES.glob("*.py")))
def test_samples_are_short_and_say_how_they_are_run(name: str) -> None:
    lines = (SAMPLES / f"{name}.py").read_text().splitlines()
    assert name == "call" or len([line for line in lines if line]) <= 30
    assert name == "embed" or f"samples/{name}.py" in "".join(lines[:5])


def seconds_heard(file: Path) -> float:
    """How long an Opus file is, as far as it is audible: from its first to its last sample above -40 dB."""
    with av.open(str(file)) as opened:
        parts = [frame.to_ndarray().flatten() for frame in opened.decode(audio=0)]
    sound = np.concatenate(parts)
    loud = np.flatnonzero(np.abs(sound if sound.dtype == np.float32 else sound / 32768) > 0.01)
    return float(loud[-1] - loud[0]) / 48_000 if len(loud) else 0.0


def test_sayings_are_recorded_again(tmp_path: Path) -> None:
    """The embedded voice still says what a recording in the repository has, about as long."""
    (tmp_path / "texts.txt").write_text("moment: Sure, one moment.\n")
    with Runtime.start(RuntimeConfig(device="cpu")) as runtime:
        sample("sayings").record(runtime, tmp_path / "texts.txt")
    now, kept = (seconds_heard(folder / "moment.opus") for folder in (tmp_path, SAMPLES / "sayings"))
    assert now == pytest.approx(kept, rel=0.3)


def test_every_saying_has_its_recording() -> None:
    lines = (SAMPLES / "sayings" / "texts.txt").read_text(encoding="utf-8").splitlines()
    texts = {name: text for name, _, text in (line.partition(": ") for line in lines)}
    files = {file.stem: file for file in (SAMPLES / "sayings").glob("*.opus")}
    assert files.keys() == texts.keys()
    for name, text in texts.items():
        words = len(text.split())
        assert 0.12 * words < seconds_heard(files[name]) < 0.2 + 0.6 * words, name


def test_long_replies_can_be_spoken_over() -> None:
    """The scenarios need replies of 7 s: of the embedded voice some 165 characters, by the 7 to 8 s of these."""
    script = read_script(SAMPLES / "long_replies.yaml")
    assert script.greeting, "who only listens hears something, too"
    assert script.loop, "there is always one more"
    assert len(script.replies) > 1
    for reply in script.replies:
        assert not reply.when
        assert len(reply.say) >= 165, reply.say
