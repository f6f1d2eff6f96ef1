"""A session with a scripted engine and a clock that a test moves: packets are popped by hand."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from scripted_runtime import SPEC, ScriptedRuntime

from agent.metrics import AgentMetrics
from agent.protocol import ServerMessage, encode
from agent.session import Session


class ScriptedTime:
    def __init__(self) -> None:
        self.time = 50.0

    def now(self) -> float:
        return self.time


class Call:
    """A session, its engine, its clock, and all that it said; packets are popped by hand."""

    def __init__(self, executor: ThreadPoolExecutor, **options: Any) -> None:
        self.time, self.engine, self.said = ScriptedTime(), ScriptedRuntime(options.pop("spec", SPEC)), list[Any]()
        self.metrics = AgentMetrics(self.engine.snapshot)
        self.session = Session("call", self.engine, executor, self.time, self.metrics, **options)
        self.session._out = self.take

    def take(self, message: ServerMessage) -> None:
        self.said.append(json.loads(encode(message)))

    def client(self, **message: Any) -> None:
        self.session.receive(msgspec.json.encode(message))

    def speak(self, name: str, text: str = "some words", **options: Any) -> None:
        self.client(type="speak", id=name, text=text, **options)

    async def packets(self, count: int) -> None:
        """The engine's outputs are taken in, then packets are sent, 20 ms apart."""
        await asyncio.sleep(0)  # call_soon_threadsafe
        for _ in range(count):
            self.session._packet_sent(self.session._buffer.pop(480, self.time.time))
            self.time.time += 0.02

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.said if message["type"] == kind]

    @property
    def types(self) -> list[str]:
        return [message["type"] for message in self.said if message["type"] != "speech.progress"]

    def count(self, name: str) -> float:
        lines = self.metrics.render().decode().splitlines()
        return next(float(line.split()[-1]) for line in lines if line.startswith(name + " "))
