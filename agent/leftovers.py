"""Frees what calls leave behind, a little at a time. It does not know what a call is.

A call's parts hold each other, so that only a full collection frees them. Left to the interpreter, that comes every few
minutes and takes several packets' time, in which nobody is sent any; for each call by itself it takes a fraction of
one, and it waits a while for a moment in which nobody hears anything.
Only for a process of our own: a collection goes through all that has been made in it since the beginning.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

SOON = 1.0
"""Seconds after the end of a call, at the earliest; those that end until it is done are freed together."""
LOOK, PATIENCE = 0.1, 60.0
"""Seconds between two looks at whether anybody hears something, and those after which that does not matter any more: a
collection takes some milliseconds, and a packet that is late by these may come too late for the listener's buffer."""


def set_apart() -> None:
    """What there is now, of start-up, is never gone through again."""
    gc.collect()
    gc.freeze()


class Leftovers:
    """To be made on the event loop, once start-up is over. `quiet`: nobody hears anything just now."""

    def __init__(self, quiet: Callable[[], bool] = lambda: True) -> None:
        set_apart()
        self._quiet = quiet
        self._due: asyncio.TimerHandle | None = None
        self._closed = False

    def free_soon(self) -> None:
        """A call has ended."""
        if self._due is None and not self._closed:
            loop = asyncio.get_running_loop()
            self._due = loop.call_later(SOON, self._free, loop.time() + SOON + PATIENCE)

    def close(self) -> None:
        """Frees nothing more, whatever ends from now on."""
        self._closed = True
        if self._due is not None:
            self._due.cancel()

    def _free(self, at_latest: float) -> None:
        loop = asyncio.get_running_loop()
        if not self._quiet() and loop.time() < at_latest:
            self._due = loop.call_later(LOOK, self._free, at_latest)
            return
        self._due = None
        gc.collect()
