"""What a server is shown with: views for those who watch, synthetic listeners, policies, trouble, and the trace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import ClientSession, web
from caller import Caller
from scripted_call import Call
from scripted_runtime import ScriptedRuntime

from agent.calls import Calls
from agent.demo import MAX_LOAD
from agent.protocol import DemoState, ServerMessage
from agent.server import attach
from agent.wire import Spoiled
from engine.core import Stage
from engine.recorder import Ran
from engine.traffic import read_trace


class Shown(ScriptedRuntime):
    """An engine that is shown."""

    def __init__(self) -> None:
        super().__init__(pace=0.01)
        self.policies: list[str] = []

    def use_policy(self, name: str) -> None:
        self.policies.append(name)


class Server:
    def __init__(self, calls: Calls, engine: Shown, url: str) -> None:
        self.calls, self.engine, self.url = calls, engine, url

    async def call(self) -> Caller:
        caller = Caller()
        _, answer = await self.calls.open(await caller.offer())
        await caller.accept(answer)
        return caller


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Server]:
    app, engine = web.Application(), Shown()
    calls = attach(app, engine, show=engine)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield Server(calls, engine, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def ran(started_at: float, *requests: int) -> Ran:
    return Ran(Stage.DEPTH, len(requests), 1, started_at, 0.01, False, requests)


async def test_who_watches_is_shown_steps_chunks_and_the_others(server: Server) -> None:
    watcher, other = await server.call(), await server.call()
    watcher.send(type="watch", on=True)
    await watcher.wait(lambda: watcher.told("view"))
    server.calls.scene.take([ran(1.0, 1)])
    watcher.send(type="speak", id="a", text="Hello there.")
    await watcher.wait(lambda: any(view.get("playing") == "a" for view in watcher.told("view")))
    server.calls.scene.take([ran(2.0, 1)])
    await watcher.wait(lambda: len([step for view in watcher.told("view") for step in view.get("steps", [])]) == 2)
    views = watcher.told("view")
    assert next(step for view in views for step in view.get("steps", []))[:2] == ["depth", 1000.0]
    assert {chunk[0] for view in views for chunk in view.get("chunks", [])} == {"a"}
    assert any(view.get("playing") == "a" and view["buffered_ms"] > 0 for view in views)
    assert all(len(view["peers"]) == 1 for view in views)
    assert other.told("view") == [], "nobody asked there"
    watcher.send(type="watch", on=False)
    watcher.send(type="ping")
    await watcher.wait(lambda: watcher.told("pong"))
    seen = len(watcher.told("view"))
    await asyncio.sleep(0.3)  # justified: nothing is to come in these three tenths of a second
    assert len(watcher.told("view")) == seen
    await watcher.close()
    await other.close()


async def test_load_policy_and_network_are_changed_and_told(server: Server) -> None:
    caller, other = await server.call(), await server.call()
    await caller.wait(lambda: caller.told("demo.state"))
    (state,) = caller.told("demo.state")
    assert (state["load"], state["policy"], state["policies"]) == (0, "predictor", ["predictor", "newest-first"])
    caller.send(type="demo", load=3, policy="newest-first", loss=0.5, jitter_ms=20)
    await caller.wait(lambda: len(caller.told("demo.state")) == 2)
    await other.wait(lambda: len(other.told("demo.state")) == 2)
    mine, theirs = caller.told("demo.state")[1], other.told("demo.state")[1]
    assert (mine["load"], mine["policy"], mine["loss"], mine["jitter_ms"]) == (3, "newest-first", 0.5, 20)
    assert (theirs["load"], theirs["loss"]) == (3, 0), "the network is everybody's own"
    assert server.engine.policies == ["newest-first"]
    caller.send(type="watch", on=True)
    await caller.wait(lambda: any(peer[2] == 2 for view in caller.told("view") for peer in view.get("peers", [])))
    caller.send(type="demo", load=0)
    await caller.wait(lambda: caller.told("view")[-1].get("peers", [])[1:] == [])
    await caller.close()
    await other.close()


class Noted:
    """When a session says what."""

    def __init__(self) -> None:
        self.said = list[tuple[float, ServerMessage]]()

    def take(self, message: ServerMessage) -> None:
        self.said.append((asyncio.get_running_loop().time(), message))

    def end(self) -> None: ...

    def most(self, seconds: float) -> int:
        """Messages within so long, at most."""
        return max(sum(at <= other < at + seconds for other, _ in self.said) for at, _ in self.said)


async def test_whoever_floods_the_controls_floods_nobody(server: Server) -> None:
    """Beside views, speech and synthetic listeners nobody is told more than 20 messages in any second."""
    flooding, other = await server.call(), await server.call()
    noted = [Noted(), Noted()]
    for session, each in zip(server.calls.sessions, noted, strict=True):
        session.watch(each)
    for caller in (flooding, other):
        caller.send(type="watch", on=True)
        for name in ("a", "b", "c", "d"):
            caller.send(type="speak", id=name, text="Hello there.")
    for count in range(80):
        flooding.send(type="demo", load=count % 4, loss=0.5 * (count % 2))
        await asyncio.sleep(0.025)  # justified: so fast somebody could move a slider, below what a client may send
    flooding.send(type="demo", load=2, loss=0)
    for caller, loss in ((flooding, 0), (other, 0)):
        await caller.wait(lambda caller=caller: caller.told("demo.state")[-1]["load"] == 2)  # type: ignore[misc]
        await caller.wait(lambda caller=caller: len(caller.told("speech.stopped")) == 4)  # type: ignore[misc]
        assert caller.told("demo.state")[-1]["loss"] == loss, "the newest is told"
    for each in noted:
        at = [instant for instant, message in each.said if isinstance(message, DemoState)]
        assert len(at) > 5
        assert min(later - sooner for sooner, later in pairwise(at)) > 0.19
        assert 10 < each.most(1.0) <= 20
    for caller in (flooding, other):
        await caller.close()


async def test_who_calls_after_many_synthetic_listeners_is_seen_and_all_are_counted(server: Server) -> None:
    watcher = await server.call()
    watcher.send(type="watch", on=True)
    watcher.send(type="demo", load=20)
    await watcher.wait(lambda: [view.get("calls") for view in watcher.told("view")][-1:] == [20])
    other = await server.call()
    await watcher.wait(lambda: watcher.told("view")[-1]["calls"] == 21)
    peers = watcher.told("view")[-1]["peers"]
    assert [kind for _, _, kind in peers] == [0] + [2] * 15, "the caller first, and as many as have a lane"
    await watcher.close()
    await other.close()


async def test_load_that_is_taken_back_at_once_leaves_nothing(server: Server) -> None:
    caller = await server.call()
    caller.send(type="watch", on=True)
    for load in (MAX_LOAD, 0, 5):
        caller.send(type="demo", load=load)
    await caller.wait(lambda: [len(view.get("peers", [])) for view in caller.told("view")][-1:] == [5])
    await caller.close()
    # five listeners are left: the fixture finds no task of theirs once the server has ended


async def test_load_that_comes_with_the_end_leaves_nothing(server: Server) -> None:
    caller = await server.call()
    caller.send(type="demo", load=MAX_LOAD)
    # the server ends while this arrives, and its fixture looks for tasks


async def test_who_else_calls_is_shown_only_by_a_server_for_show(server: Server) -> None:
    server.calls.demo = None
    watcher, other = await server.call(), await server.call()
    watcher.send(type="watch", on=True)
    await watcher.wait(lambda: len(watcher.told("view")) > 1)
    assert all("peers" not in view for view in watcher.told("view"))
    await watcher.close()
    await other.close()


async def test_one_that_cannot_be_shown_leaves_the_others_in_the_light(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, watcher = await server.call(), await server.call()
    (session,) = [each for each in server.calls.sessions if each.number == 1]

    def show(steps: object, peers: object) -> None:
        raise RuntimeError("broken glass")

    monkeypatch.setattr(session, "show", show)
    for caller in (broken, watcher):
        caller.send(type="watch", on=True)
    await watcher.wait(lambda: len(watcher.told("view")) > 2)
    assert "broken glass" in caplog.text
    await broken.close()
    await watcher.close()


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"load": MAX_LOAD + 1}, "load"),
        ({"policy": "fastest"}, "policy"),
        ({"loss": 1.5}, "loss"),
        ({"more": 1}, "more"),
    ],
)
async def test_what_cannot_be_had_changes_nothing(server: Server, wanted: dict[str, Any], field: str) -> None:
    caller = await server.call()
    caller.send(type="demo", **wanted)
    await caller.wait(lambda: caller.told("error"))
    (error,) = caller.told("error")
    assert (error["event"], error["field"]) == ("demo", field)
    assert len(caller.told("demo.state")) == 1
    assert server.engine.policies == []
    await caller.close()


async def test_what_was_said_can_be_simulated(server: Server, tmp_path: Path) -> None:
    caller = await server.call()
    for name in ("a", "b"):
        caller.send(type="speak", id=name, text="Hello there.")
    await caller.wait(lambda: len(caller.told("speech.stopped")) == 2)
    async with ClientSession() as http, http.get(f"{server.url}/demo/trace") as response:
        assert response.status == 200
        text = await response.text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0]["at"] == 0.0
    assert lines[1]["follows"] == 0
    file = tmp_path / "trace.jsonl"
    file.write_text(text)
    assert [said.frames for said in read_trace(file)] == [line["frames"] for line in lines]
    await caller.close()


async def test_the_run_is_given_out_by_a_server_for_show_only() -> None:
    app = web.Application()
    attach(app, ScriptedRuntime())
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with (
            ClientSession() as http,
            http.get(f"{url}/demo/trace") as trace,
            http.get(f"{url}/healthz") as health,
        ):
            assert (trace.status, health.status) == (404, 200)
    finally:
        await runner.cleanup()


async def test_a_server_that_is_not_for_show_cannot_be_changed() -> None:
    call = Call(ThreadPoolExecutor(1))
    call.client(type="demo", load=5)
    (error,) = call.said
    assert (error["code"], error["event"], error["field"]) == ("bad_request", "demo", "type")


async def test_a_spoiled_network_spares_what_is_no_media() -> None:
    sent: list[bytes] = []

    class Transport:
        def sendto(self, data: bytes, addr: Any = None) -> None:
            sent.append(data)

        def is_closing(self) -> bool:
            return False

    spoiled = Spoiled(Transport())
    stun, dtls, rtp = b"\x00\x01", b"\x16\xfe", b"\x80\x6f"
    spoiled.loss = 1.0
    for data in (stun, dtls, rtp, b""):
        spoiled.sendto(data)
    assert sent == [stun, dtls, b""]
    spoiled.loss, spoiled.jitter = 0.0, 0.01
    for number in range(50):
        spoiled.sendto(rtp + bytes([number]))
    await asyncio.sleep(0.1)  # ten times the jitter: nothing tells when the last one has gone
    media = sent[3:]
    assert sorted(media) == [rtp + bytes([number]) for number in range(50)], "all come"
    assert media != sorted(media), "and some are overtaken"
