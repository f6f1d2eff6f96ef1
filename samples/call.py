"""Calls a running `breezert serve` without a browser: has a text spoken, prints what it is told, keeps what it hears.

    python samples/call.py "Good morning, how can I help?" -o heard.wav

Where the server or all its voices are busy it waits as long as it is told, and asks again.
"""

import argparse
import asyncio
import sys
import wave
from math import ceil
from pathlib import Path

import msgspec

from agent.client import RATE, BusyError, Client, ClientError, Feed, Frame
from agent.protocol import Pong, ServerMessage

TAIL = 0.5
"""Seconds for which we listen on when the last packet was sent: what may still be on its way."""
TRIES = 10


async def call(url: str, text: str, token: str | None = None) -> bytes:
    """Everything that was heard, from the first packet on, also the silence."""
    for _ in range(TRIES):
        try:
            async with Client.connect(url, token, on_message=tell) as client:
                listening = asyncio.create_task(collect(client.listen()))
                await speak(client, text)
                await asyncio.sleep(TAIL)
            return await listening  # it ends with the call
        except BusyError as error:
            await pause(ceil(error.retry_after), "the server is busy")
    raise ClientError(f"still busy after {TRIES} calls")


async def speak(client: Client, text: str) -> None:
    """Returns when the text was spoken."""
    for _ in range(TRIES):
        try:
            await client.speak(text)
            return
        except BusyError as error:
            await pause(error.retry_after, "all voices are busy")
    raise ClientError(f"still busy after {TRIES} times")


async def collect(frames: Feed[Frame]) -> bytes:
    return b"".join([frame.samples.tobytes() async for frame in frames])


async def pause(seconds: float, what: str) -> None:
    print(f"{what}: again in {seconds:g} s", file=sys.stderr)
    await asyncio.sleep(seconds)


def tell(message: ServerMessage) -> None:
    if not isinstance(message, Pong):
        print(msgspec.json.encode(message).decode(), flush=True)


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
    except (ClientError, ValueError) as error:
        print(f"call: {error}", file=sys.stderr)
        return 1
    if args.output:
        keep(pcm, args.output)
    print(f"heard {len(pcm) / 2 / RATE:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
