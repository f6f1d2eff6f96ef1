"""What the agent's benches have in common: what is said, percentiles, and a table of figures beside their targets.

It does not know what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from rich.table import Table

from agent.browser import BrowserError
from agent.probe.outcome import Spread
from engine.core import PCM, Chunk, Request
from engine.runtime import EngineError, Runtime

SENTENCES = (
    "Good morning, this is the voice runtime speaking to you in real time.",
    "The train to the coast leaves from platform nine in about twelve minutes.",
    "I have found three free tables for tonight, the first of them at half past seven.",
    "Every sentence that you hear was generated frame by frame while it was already playing.",
    "Please hold the line while I look that up for you in the big book on the shelf.",
)

Advance = Callable[[float], None]
"""Told how far a measurement has come."""
Line = tuple[str, str, str, bool | None]
"""Of a table: what, value, target, and whether it was met, where there is one."""


def measured(values: Iterable[float | None], what: str) -> Spread:
    """Percentiles, in ms, of the values that are there. Raises BrowserError where none is."""
    known = [value for value in values if value is not None]
    if not known:
        raise BrowserError(f"there was no {what} to measure: ask for more, or look at what the server printed")
    return Spread.of(known)


def words(spread: Spread) -> str:
    """As a person reads it."""
    percentiles = f"p50 {spread.p50:.1f}, p95 {spread.p95:.1f}, p99 {spread.p99:.1f}"
    return f"{percentiles}, max {spread.max:.1f} ms ({spread.count})"


def table(title: str, lines: Iterable[Line]) -> Table:
    """The figures as a person reads them, each with the project's target where there is one."""
    out = Table(title, "", "target", "")
    for what, value, target, met in lines:
        out.add_row(what, value, target, judged(met))
    return out


def judged(met: bool | None) -> str:
    """The last column."""
    return "" if met is None else "[green]met" if met else "[red]missed"


def said(runtime: Runtime, request: Request) -> PCM:
    """The whole utterance. Raises EngineError where it comes to no end."""
    chunks = [output.pcm for output in runtime.stream(request) if isinstance(output, Chunk)]
    if not chunks:
        raise EngineError(f"the voice said nothing: {request.text}")
    return np.concatenate(chunks)
