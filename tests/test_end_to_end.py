"""The real engine behind real WebRTC calls: what is heard, and that whoever leaves, however, leaves nothing behind."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator

import numpy as np
import pytest
from caller import WITHIN, Caller, level

from agent.calls import CallLimits, Calls
from engine.messages import RuntimeConfig
from engine.runtime import Runtime

SENTENCE = "The train to the coast leaves from platform nine."
LONG = "This will take a while, since there are many words to be said before it comes to its end. " * 3


@pytest.fixture
async def calls(runtime: Runtime) -> AsyncIterator[Calls]:
    opened = Calls(runtime, CallLimits(silence=3.0, pinged_silence=3.0))  # aiortc reports every 0.5 to 1.5 s
    yield opened
    await opened.close()


async def call(calls: Calls) -> tuple[str, Caller]:
    caller = Caller()
    call_id, answer = await calls.open(await caller.offer())
    await caller.accept(answer)
    return call_id, caller


async def everything_is_back(runtime: Runtime) -> None:
    """The engine tells of its slots and pages when it has nothing left to do."""
    free = {"slots_free": runtime.limits.num_slots, "pages_free": runtime.limits.num_pages, "open_requests": 0}
    async with asyncio.timeout(WITHIN):
        while not free.items() <= runtime.snapshot().items():  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.05)


async def test_a_sentence_is_heard_whole(calls: Calls, runtime: Runtime) -> None:
    _, caller = await call(calls)
    caller.send(type="speak", id="a", text=SENTENCE)
    await caller.wait(lambda: caller.told("speech.stopped"))
    (stopped,) = caller.told("speech.stopped")
    assert stopped["reason"] == "end"
    assert 1500 < stopped["heard_ms"] < 6000
    await caller.ear(10)  # what was sent last arrives
    voiced = sum(level(frame) > 0.01 for frame in caller.frames) * 20
    assert 0.5 * stopped["heard_ms"] < voiced <= stopped["heard_ms"] + 100
    assert set(np.diff(caller.timestamps)) == {960}
    await caller.close()
    await everything_is_back(runtime)


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("way", ["stop", "hang up", "vanish"])
async def test_whoever_leaves_leaves_nothing_behind(calls: Calls, runtime: Runtime, way: str, moment: float) -> None:
    call_id, caller = await call(calls)
    for name in "abc":
        caller.send(type="speak", id=name, text=LONG)
    await asyncio.sleep(moment)  # into the text stage, the first frames, the middle of the speech
    if way == "stop":
        caller.send(type="stop")
        await caller.wait(lambda: len(caller.told("speech.stopped")) == 3)
        assert {stopped["reason"] for stopped in caller.told("speech.stopped")} == {"cancelled"}
    elif way == "hang up":
        await calls.hang_up(call_id)
    else:
        caller.vanish()
        async with asyncio.timeout(WITHIN):
            while calls.sessions:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.05)
    await everything_is_back(runtime)
    await caller.close()


async def test_neighbours_go_on_when_one_vanishes(calls: Calls, runtime: Runtime) -> None:
    _, stays = await call(calls)
    _, goes = await call(calls)
    for caller in (stays, goes):
        caller.send(type="speak", id="a", text=LONG)
    await goes.wait(lambda: goes.told("speech.started") or goes.told("speech.queued"))  # on a busy machine it waits
    goes.vanish()
    await stays.wait(lambda: stays.told("speech.stopped"))
    assert stays.told("speech.stopped")[0]["reason"] == "end"
    await stays.close()
    await goes.close()
    await everything_is_back(runtime)


async def test_the_death_of_the_engine_is_told_to_the_client_within_a_second() -> None:
    before = set(multiprocessing.active_children())
    with Runtime.start(RuntimeConfig(device="cpu")) as runtime:
        (engine,) = set(multiprocessing.active_children()) - before
        calls = Calls(runtime)
        _, caller = await call(calls)
        caller.send(type="speak", id="a", text=LONG)
        await caller.wait(lambda: caller.told("speech.started"))
        engine.kill()
        async with asyncio.timeout(1.0):
            await caller.wait(lambda: caller.told("error"))
        assert caller.told("error")[0]["code"] == "engine_died"
        await caller.wait(lambda: caller.told("speech.stopped"))
        assert caller.told("speech.stopped")[0]["reason"] == "failed"
        caller.send(type="speak", id="b", text="Too early.")
        await caller.wait(lambda: len(caller.told("error")) == 2)
        assert caller.told("error")[1]["code"] == "busy"
        assert caller.told("error")[1]["retry_after_ms"] > 0
        await caller.close()
        await calls.close()
