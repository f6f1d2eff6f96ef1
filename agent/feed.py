"""What comes in order for one reader, who may be slow: the oldest gives way. It does not know what it is."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Feed(Generic[T]):
    """An asynchronous iterator over what is pushed, of which `size` items wait at most.

    To be used on the event loop. A reader may stop and go on reading, also after it was cancelled: nothing is lost.
    """

    def __init__(self, size: int) -> None:
        self.dropped = 0
        """Items that gave way, because the reader was too slow."""
        self._items: deque[T] = deque(maxlen=size)
        self._moved = asyncio.Event()
        self._over = False
        self._error: Exception | None = None

    def push(self, item: T) -> None:
        """The next item."""
        self.dropped += len(self._items) == self._items.maxlen
        self._items.append(item)
        self._moved.set()

    def end(self, error: Exception | None = None) -> None:
        """No more will come; whoever has read what is there gets the error, or the end."""
        self._over, self._error = True, error
        self._moved.set()

    def __aiter__(self) -> Feed[T]:
        return self

    async def __anext__(self) -> T:
        while not self._items:
            if self._over:
                raise self._error or StopAsyncIteration
            self._moved.clear()
            await self._moved.wait()
        return self._items.popleft()
