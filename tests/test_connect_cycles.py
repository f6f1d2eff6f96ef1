"""Five hundred calls, four at a time: tasks, threads, descriptors, memory and calls are back where they were.

Memory that grows by connection is what users of others complain of (aiortc#904, pipecat#3750).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import re
import threading
from collections import Counter
from pathlib import Path

from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from aiortc import RTCDtlsTransport, RTCIceTransport, RTCPeerConnection, RTCRtpReceiver, RTCRtpSender, RTCSctpTransport
from caller import WITHIN, Caller
from scripted_runtime import ScriptedRuntime

from agent.calls import Calls
from agent.guard import Access
from agent.opus import OpusEncoder
from agent.peer import Peer
from agent.playout import PlayoutBuffer
from agent.server import attach
from agent.session import Session

CYCLES = 500
WARM = 100
"""After so many, whatever is filled on use is full: pools, caches, the allocator's arenas."""
ENDINGS = ("delete", "close", "stop and close", "abandon")
OF_A_CALL = (
    *(Session, Peer, PlayoutBuffer, OpusEncoder, RTCPeerConnection, RTCIceTransport, RTCDtlsTransport),
    *(RTCSctpTransport, RTCRtpSender, RTCRtpReceiver),
)
"""What is there once or more for a call; no object of these outlives it."""
MEBIBYTES = 4.0
"""That 400 calls may add, 10 KiB each; on 2 cores they add 0.6, while the allocator still settles."""


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


async def some(client: ClientSession) -> None:
    """A call for each ending, at once: most of a call is waiting."""
    await asyncio.gather(*(cycle(client, ending) for ending in ENDINGS))


async def settled(calls: Calls, engine: ScriptedRuntime) -> tuple[int, int, int]:
    """Tasks, threads and descriptors, once every call is over."""
    async with asyncio.timeout(WITHIN):
        while calls.sessions or any(thread.name.endswith("-decoder") for thread in threading.enumerate()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # there is no event for "everything is gone": that is what is tested
    engine.join()
    await asyncio.sleep(0.05)  # lets callbacks of closed transports run
    gc.collect()
    return len(asyncio.all_tasks()), threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def kept() -> Counter[str]:
    """Objects of calls, by class; those of earlier tests too."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if isinstance(each, OF_A_CALL))


def resident() -> float:
    """MiB of this process, without what the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    (kibibytes,) = re.findall(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kibibytes) / 1024


def forget(engine: ScriptedRuntime) -> int:
    """Lets the test's own engine forget its requests; returns how many there were: each was given back, none twice."""
    jobs = {job.request_id for job in engine.jobs.values()}
    assert set(engine.cancelled) == jobs
    assert len(engine.cancelled) == len(jobs)
    engine.jobs.clear()
    engine.cancelled.clear()
    engine.playheads.clear()
    return len(jobs)


async def test_nothing_is_left_after_five_hundred_calls() -> None:
    engine = ScriptedRuntime(pace=0.02)
    app = web.Application()
    calls = attach(app, engine, access=Access(rate=1000.0))
    spoken, memory = 0, list[float]()
    async with TestServer(app) as server, ClientSession(base_url=server.make_url("/")) as client:
        await some(client)  # thread pools and the client's connections are made on first use
        before = await settled(calls, engine)
        spoken += forget(engine)
        objects = kept()
        for n in range(0, CYCLES, len(ENDINGS)):
            await some(client)
            if (n + len(ENDINGS)) % WARM == 0:
                assert await settled(calls, engine) == before
                spoken += forget(engine)
                assert kept() == objects
                memory.append(resident())
        assert spoken == CYCLES - CYCLES // 4 + 3
        assert memory[-1] - memory[0] < MEBIBYTES, f"resident after each {WARM} calls: {memory}"
        assert "breezert_peers 0.0" in calls.metrics.render().decode()
    engine.close()
