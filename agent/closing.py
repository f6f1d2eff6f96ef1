"""A connection that closes whole, whatever it was about to do at that moment. It does not know whose it is.

Like wire.py it reaches below aiortc's interface. aiortc (1.16) connects in a task that nobody keeps:
closed meanwhile, it goes on. Then senders start that nobody stops, and aioice (0.13) asks a peer that it has forgotten
for consent to send, for ever. Connecting takes some 60 ms, and whoever hangs up or is cancelled within them hits it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiortc import RTCConfiguration, RTCPeerConnection


class Connection(RTCPeerConnection):
    """aiortc's, of which nothing goes on once it was closed."""

    def __init__(self, configuration: RTCConfiguration | None = None) -> None:
        super().__init__(configuration)
        self._connecting = set[asyncio.Task[Any]]()
        self._over = False

    async def close(self) -> None:
        """Returns when everything is given back; may be called again."""
        self._over = True
        for task in self._connecting:
            task.cancel()
        if self._connecting:
            await asyncio.wait(self._connecting)
        await super().close()

    async def _RTCPeerConnection__connect(self) -> None:
        if self._over:
            return
        task = asyncio.current_task()
        assert task is not None, "aiortc runs it as a task"
        self._connecting.add(task)
        try:
            inner: Any = super()
            await inner._RTCPeerConnection__connect()
        finally:
            self._connecting.discard(task)
