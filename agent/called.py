"""Calls a function of the embedding app, of whatever kind, and gives out what it returns. It does not know what for.

A coroutine function or an async generator runs on the event loop. Anything else may block, so it runs in a thread of
its own, with its iterator, if it returns one.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import Any

from agent.trouble import OutsideError, Trouble

MAX_THREADS = 32
"""Calls of one function at once, with those that nobody waits for any more."""
AHEAD = 8
"""Items that a thread may be ahead of whoever takes them."""


class Called:
    """One function of the app: one argument in; a value, an iterator of them, or the async kinds of both out."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function
        self._free = threading.BoundedSemaphore(MAX_THREADS)

    async def outputs(self, argument: object) -> AsyncGenerator[object]:
        """What the function returns, item by item. Raises what it raises, and OutsideError when too many calls hang.

        Cancelled or closed, a coroutine or an async generator ends at its await. A thread cannot be ended: its iterator
        is closed before its next item, and what it still returns is dropped.
        """
        if is_async(self._function):
            results = flattened(self._function(argument))
        else:
            results = in_thread(self._function, argument, self._free)
        async with aclosing(results):
            async for result in results:
                async with aclosing(flattened(result)) as flat:
                    async for item in flat:
                        yield item


def is_async(function: Callable[..., object]) -> bool:
    call = getattr(function, "__call__", function)  # noqa: B004 - an object with an async __call__
    return any(inspect.iscoroutinefunction(f) or inspect.isasyncgenfunction(f) for f in (function, call))


async def flattened(result: object) -> AsyncGenerator[object]:
    """The items of an async iterator, or what an awaitable gives; else the result itself."""
    if isinstance(result, Awaitable):
        result = await result
    if isinstance(result, AsyncGenerator):
        async with aclosing(result):
            async for item in result:
                yield item
    elif isinstance(result, AsyncIterable):
        async for item in result:
            yield item
    else:
        yield result


async def in_thread(
    function: Callable[[Any], object], argument: object, free: threading.BoundedSemaphore
) -> AsyncGenerator[object]:
    """The items that a function returns which may block."""
    if not free.acquire(blocking=False):
        raise OutsideError(Trouble.BUSY, f"{MAX_THREADS} calls of the app's function are running already")
    strand = Strand(function, argument, free)
    try:
        while True:
            item = await strand.take()
            if isinstance(item, End):
                if item.error is not None:
                    raise item.error
                return
            yield item
    finally:
        strand.leave()


class End:
    """A thread's last word."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


class Strand:
    """A thread that makes items and its way to the event loop: it waits when it is AHEAD, and nobody waits for it."""

    def __init__(self, function: Callable[[Any], object], argument: object, free: threading.BoundedSemaphore) -> None:
        self._loop, self._made = asyncio.get_running_loop(), asyncio.Queue[object]()
        self._room, self._left, self._free = threading.Semaphore(AHEAD), False, free
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._work, function, argument), name="app", daemon=True).start()

    async def take(self) -> object:
        item = await self._made.get()
        self._room.release()
        return item

    def leave(self) -> None:
        """Nothing more is taken."""
        self._left = True
        self._room.release()

    def _work(self, function: Callable[[Any], object], argument: object) -> None:
        try:
            self._give_all(function(argument))
            end = End()
        except Exception as error:
            end = End(error)
        except BaseException as error:  # it would end this thread only: whoever waits has to hear of it
            end = End(RuntimeError(f"the app's function raised {type(error).__name__}"))
        finally:
            self._free.release()
        self._give(end)

    def _give_all(self, result: object) -> None:
        if not isinstance(result, Iterable) or isinstance(result, (str, bytes)):
            self._give(result)
            return
        try:
            for item in result:
                if not self._give(item):
                    return
        finally:
            if inspect.isgenerator(result):
                result.close()

    def _give(self, item: object) -> bool:
        """Whether it is still wanted."""
        if self._left:
            return False
        self._room.acquire()
        if not self._left:
            try:
                self._loop.call_soon_threadsafe(self._made.put_nowait, item)
            except RuntimeError:  # the event loop is closed
                self._left = True
        return not self._left
