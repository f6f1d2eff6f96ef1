"""Waits for what nobody tells of: another thread, process, side of a socket, or the interpreter itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

WITHIN = 60.0
"""Seconds after which a wait has failed."""


async def until(condition: Callable[[], Any]) -> None:
    """Returns once it holds; TimeoutError after WITHIN."""
    async with asyncio.timeout(WITHIN):
        while not condition():  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.005)
