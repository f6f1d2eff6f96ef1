"""Both ends of a call for tests/test_netns.py, each run in a network namespace of its own. It knows nothing of those.

python tests/netns_call.py server ADDRESS    until standard input is closed; then says how many calls are open
python tests/netns_call.py client ADDRESS    one call: the agent speaks, then the user; says what came of it
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from aiohttp import web
from scripted_runtime import ScriptedRuntime
from sounds import clip, int16

from agent.bench_transport import silent
from agent.client import Client
from agent.guard import Access
from agent.protocol import SpeechStopped, TurnEnded
from agent.server import attach

PORT, TOKEN, RATE = 8080, "a-token-of-tests", 48_000
TEXT = "x" * 20
WITHIN = 30.0


async def server(address: str) -> dict[str, Any]:
    """A server that speaks and listens, bound to an address that others can reach."""
    engine, app = ScriptedRuntime(pace=0.01), web.Application()
    calls = attach(app, engine, access=Access(host=address, token=TOKEN), answering=silent())
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, address, PORT).start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    async with asyncio.timeout(WITHIN):
        while calls.sessions:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
    await runner.cleanup()
    engine.close()
    return {"calls": len(calls.sessions)}


async def client(address: str) -> dict[str, Any]:
    """One call; raises where it comes to no end."""
    async with asyncio.timeout(2 * WITHIN), Client.connect(f"http://{address}:{PORT}", TOKEN, within=WITHIN) as call:
        came, buffer, events = list[int](), call._hearing._buffer, call.events()
        push = buffer.push

        def note(sequence: int, timestamp: int, payload: bytes, now: float, source: int = 0) -> None:
            came.append(sequence)
            push(sequence, timestamp, payload, now, source)

        buffer.push = note  # type: ignore[method-assign]
        spoken = await call.speak(TEXT)
        ended = asyncio.create_task(call.told(TurnEnded))
        await call.send_microphone(int16(clip("user", RATE)), RATE)
        await ended
        counts, guessed = call._hearing.counts, call._hearing.concealed_samples
    told = [type(message) async for message in events]
    return {
        "spoken": [spoken.reason, spoken.heard, spoken.underruns],
        "stopped": told.count(SpeechStopped),
        "turns": told.count(TurnEnded),
        "came": came,
        "guessed": guessed // 960,
        "given_up": counts.lost,
        "late": counts.late,
        "filled": counts.filled // 960,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run({"server": server, "client": client}[sys.argv[1]](sys.argv[2]))), flush=True)
