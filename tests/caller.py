"""A WebRTC client for the agent's tests: aiortc's, as a stranger would use it, with what arrives written down."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError, MediaStreamTrack
from numpy.typing import NDArray

from agent.protocol import CHANNEL

WITHIN = 30.0
"""Seconds after which a wait in a test has failed: far beyond what anything takes, so that no test is about time."""


class Caller:
    """One call, which speaks where it has a microphone."""

    def __init__(self, label: str = CHANNEL, microphone: MediaStreamTrack | None = None) -> None:
        self.connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        direction = "recvonly" if microphone is None else "sendrecv"
        self.receiver = self.connection.addTransceiver(microphone or "audio", direction=direction).receiver
        self.channel = self.connection.createDataChannel(label)
        self.messages: list[dict[str, Any]] = []
        self.timestamps: list[int] = []
        self.frames: list[NDArray[np.int16]] = []
        self._heard = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None
        self.channel.on("message", self._take)

    def _take(self, data: str) -> None:
        self.messages.append(json.loads(data))
        self._heard.set()

    async def offer(self) -> str:
        await self.connection.setLocalDescription()
        return str(self.connection.localDescription.sdp)

    async def accept(self, answer: str) -> None:
        """Takes the answer, and returns once the server has introduced itself."""
        handle = self.receiver._handle_rtp_packet

        async def noted(packet: Any, arrival_time_ms: int) -> None:
            self.timestamps.append(packet.timestamp)
            await handle(packet, arrival_time_ms=arrival_time_ms)

        self.receiver._handle_rtp_packet = noted
        await self.connection.setRemoteDescription(RTCSessionDescription(answer, "answer"))
        self._listening = asyncio.create_task(self._listen())
        await self.wait(lambda: self.told("session.created"))

    async def _listen(self) -> None:
        with contextlib.suppress(MediaStreamError):  # the call is over
            while True:
                frame: Any = await self.receiver.track.recv()
                self.frames.append(frame.to_ndarray().reshape(-1, 2)[:, 0])
                self._heard.set()

    def send(self, **message: Any) -> None:
        self.channel.send(json.dumps(message))

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]

    async def wait(self, condition: Callable[[], Any]) -> None:
        """Returns when the condition holds; it is looked at whenever something arrives."""
        async with asyncio.timeout(WITHIN):
            while not condition():
                self._heard.clear()
                await self._heard.wait()

    async def ear(self, packets: int) -> NDArray[np.int16]:
        """The next packets that are decoded, each of 960 samples."""
        start = len(self.frames)
        await self.wait(lambda: len(self.frames) >= start + packets)
        return np.concatenate(self.frames[start : start + packets])

    def vanish(self) -> None:
        """The network is gone: nothing is sent or received any more, and nobody says goodbye."""
        for protocol in self.receiver.transport.transport._connection._protocols:
            protocol.transport.sendto = lambda data, addr=None: None
            protocol.datagram_received = lambda data, addr: None

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self.connection.close()


def level(samples: NDArray[np.int16]) -> float:
    """Root mean square, of full scale."""
    return float(np.sqrt(np.mean((samples / 32768.0) ** 2)))
