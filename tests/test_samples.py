"""samples/: each one runs, and so does the README's program."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from caller import Caller
from readme import embedding
from scripted_runtime import ScriptedRuntime

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
