"""samples/: each one runs, and so does the README's program."""

from __future__ import annotations

import json
import runpy
import wave
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from caller import Caller
from readme import embedding
from scripted_runtime import ScriptedRuntime

from agent.server import attach
from engine.core import Output, Request
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
        with pytest.raises(RuntimeError, match="200 characters"):
            await program.call(str(server.make_url("/")), "x" * 201)
