"""Fifty calls, one after the other: tasks, threads, descriptors and calls are back where they were."""

from __future__ import annotations

import asyncio
import gc
import os
import threading

from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from caller import WITHIN, Caller
from scripted_runtime import ScriptedRuntime

from agent.calls import Calls
from agent.guard import Access
from agent.server import attach

CYCLES = 50
ENDINGS = ("delete", "close", "stop and close", "abandon")


async def cycle(client: ClientSession, ending: str) -> None:
    """A call that speaks and ends, in one of the ways in which calls end."""
    caller = Caller()
    async with client.post("offer", json={"sdp": await caller.offer(), "type": "offer"}) as response:
        answer = await response.json()
    if ending != "abandon":
        await caller.accept(answer["sdp"])
        caller.send(type="speak", id="a", text="x" * 200)
        await caller.wait(lambda: caller.told("speech.started"))
    if ending == "stop and close":
        caller.send(type="stop")
        await caller.wait(lambda: caller.told("speech.stopped"))
    if ending in ("delete", "abandon"):
        async with client.delete(f"calls/{answer['id']}") as response:
            assert response.status == 204
    await caller.close()


async def settled(calls: Calls, engine: ScriptedRuntime) -> tuple[int, int, int]:
    """Tasks, threads and descriptors, once every call is over."""
    async with asyncio.timeout(WITHIN):
        while calls.sessions or any(thread.name.endswith("-decoder") for thread in threading.enumerate()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # there is no event for "everything is gone": that is what is tested
    engine.join()
    await asyncio.sleep(0.05)  # lets callbacks of closed transports run
    gc.collect()
    return len(asyncio.all_tasks()), threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def test_nothing_is_left_after_fifty_calls() -> None:
    engine = ScriptedRuntime(pace=0.02)
    app = web.Application()
    calls = attach(app, engine, access=Access(rate=1000.0))
    async with TestServer(app) as server, ClientSession(base_url=server.make_url("/")) as client:
        for ending in ENDINGS:  # thread pools and the client's connection are made on first use
            await cycle(client, ending)
        before = await settled(calls, engine)
        for n in range(CYCLES):
            await cycle(client, ENDINGS[n % len(ENDINGS)])
        assert await settled(calls, engine) == before
        jobs = {job.request_id for job in engine.jobs.values()}
        assert set(engine.cancelled) == jobs  # each was given back, none twice
        assert len(engine.cancelled) == len(jobs) == CYCLES - CYCLES // 4 + 3
        assert "breezert_peers 0.0" in calls.metrics.render().decode()
    engine.close()
