"""A program that calls: has a text spoken, listens to it as PCM, and interrupts after a second of sound.

breezert serve & python samples/client.py [URL [TOKEN]]
"""

import asyncio
import sys

import numpy as np

from agent.client import Client, ClientError


async def main(url: str = "http://127.0.0.1:8080", token: str | None = None) -> None:
    async with Client.connect(url, token) as call:
        utterance, loud = call.speak("I have rather a lot to say, and shall not mind if you interrupt me."), 0
        async for frame in call.listen():  # 20 ms of int16 at 48 kHz
            loud += bool(np.abs(frame.samples).max() > 500)
            if loud == 50 or utterance.over:
                break
        call.stop()
        spoken = await utterance
        print(f"first audio after {1000 * (spoken.ttfa or 0):.0f} ms; {spoken.reason}; heard: {spoken.heard}")


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except ClientError as error:
        sys.exit(f"client: {error}")
