"""Calls a running `breezert serve` without a browser: has a text spoken, prints what it is told, keeps what it hears.

    python samples/call.py "Good morning, how can I help?" -o heard.wav

Where the server or all its voices are busy it waits as long as it is told, and asks again.
"""

import argparse
import asyncio
import json
import sys
import wave
from pathlib import Path
from typing import Any

from aiohttp import ClientResponseError, ClientSession
from aiortc import RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

RATE = 48_000
"""Samples a second of what WebRTC plays."""
TAIL = 0.5
"""Seconds for which we listen on when the last packet was sent: what our own jitter buffer may hold."""
TRIES = 10


async def pause(seconds: float, what: str) -> None:
    print(f"{what}: again in {seconds:g} s", file=sys.stderr)
    await asyncio.sleep(seconds)


async def dial(http: ClientSession, sdp: str) -> dict[str, Any]:
    """The answer to an offer. 503 says in Retry-After when to call again."""
    for _ in range(TRIES):
        async with http.post("offer", json={"sdp": sdp, "type": "offer"}) as response:
            if response.status != 503:
                response.raise_for_status()
                answer: dict[str, Any] = await response.json()
                return answer
            seconds = float(response.headers.get("Retry-After", "1"))
        await pause(seconds, "the server is busy")
    raise RuntimeError(f"still busy after {TRIES} calls")


async def told(channel: Any, text: str, messages: asyncio.Queue[dict[str, Any]]) -> None:
    """Returns when the text was spoken. An `error` of code busy says in retry_after_ms when to ask again."""
    asked, busy_ms = 0, None
    while True:
        async with asyncio.timeout(60):
            message = await messages.get()
        print(json.dumps(message), flush=True)
        if message["type"] == "error":
            busy_ms = message.get("retry_after_ms")
            if message["code"] != "busy" or busy_ms is None:
                raise RuntimeError(message["message"])
        if message["type"] == "speech.stopped" and busy_ms is None:
            return
        if message["type"] in ("session.created", "speech.stopped"):
            if asked == TRIES:
                raise RuntimeError(f"still busy after {TRIES} times")
            if busy_ms is not None:
                await pause(busy_ms / 1000, "all voices are busy")
            asked, busy_ms = asked + 1, None
            channel.send(json.dumps({"type": "speak", "id": f"call-{asked}", "text": text}))


async def listen(track: Any, heard: bytearray) -> None:
    """Keeps the left channel of what arrives (both are the same), 16 bits a sample."""
    while True:
        try:
            frame = await track.recv()
        except MediaStreamError:  # the call is over
            return
        heard += frame.to_ndarray().reshape(-1, 2)[:, 0].tobytes()


async def call(url: str, text: str, token: str | None = None) -> bytes:
    """Everything that was heard, from the first packet on, also the silence."""
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    receiver = connection.addTransceiver("audio", direction="recvonly").receiver
    channel = connection.createDataChannel("breezert")
    messages, heard = asyncio.Queue[dict[str, Any]](), bytearray()
    channel.on("message", lambda data: messages.put_nowait(json.loads(data)))
    await connection.setLocalDescription()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    listening = None
    try:
        async with ClientSession(base_url=url.rstrip("/") + "/", headers=headers) as http:
            answer = await dial(http, connection.localDescription.sdp)
            try:
                await connection.setRemoteDescription(RTCSessionDescription(answer["sdp"], answer["type"]))
                listening = asyncio.create_task(listen(receiver.track, heard))
                await told(channel, text, messages)
                await asyncio.sleep(TAIL)
            finally:
                await http.delete(f"calls/{answer['id']}")
    finally:
        if listening is not None:
            listening.cancel()
            await asyncio.wait([listening])
        await connection.close()
    return bytes(heard)


def keep(pcm: bytes, path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(pcm)


def main() -> int:
    parser = argparse.ArgumentParser(description="Have a running `breezert serve` speak a text.")
    parser.add_argument("text")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="default: %(default)s; /voice and the like too")
    parser.add_argument("--token", help="the server's, where it has one")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="WAV file for what is heard")
    args = parser.parse_args()
    try:
        pcm = asyncio.run(call(args.url, args.text, args.token))
    except (OSError, RuntimeError, TimeoutError, ClientResponseError) as error:
        print(f"call: {error or 'the server fell silent'}", file=sys.stderr)
        return 1
    if args.output:
        keep(pcm, args.output)
    print(f"heard {len(pcm) / 2 / RATE:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
