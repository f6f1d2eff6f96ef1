"""What calls leave behind is freed soon after them, without what start-up left."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
from waiting import until

from agent.leftovers import Leftovers


class Part:
    """Of a call: it holds another, which holds it."""

    def __init__(self) -> None:
        self.other: Part | None = None


def call() -> weakref.ref[Part]:
    one, other = Part(), Part()
    one.other, other.other = other, one
    return weakref.ref(one)


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    """Nothing is collected but by those who are tested."""
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.fixture
def collections() -> Iterator[list[int]]:
    """The generation of each, as they end."""
    found = list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            found.append(info["generation"])

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


async def test_calls_that_end_together_are_freed_together(
    monkeypatch: pytest.MonkeyPatch, collections: list[int]
) -> None:
    monkeypatch.setattr("agent.leftovers.SOON", 0.02)
    leftovers, ended = Leftovers(), [call(), call()]
    assert collections == [2]
    for _ in ended:
        leftovers.free_soon()
    assert all(part() is not None for part in ended), "not while others end"
    await until(lambda: len(collections) > 1)
    assert [part() for part in ended] == [None, None]
    assert collections == [2, 2]
    later = call()
    leftovers.free_soon()
    await until(lambda: len(collections) > 2)
    assert later() is None
    assert collections == [2, 2, 2]
    leftovers.close()


async def test_nothing_is_freed_while_somebody_hears_something_but_for_too_long(
    monkeypatch: pytest.MonkeyPatch, collections: list[int]
) -> None:
    for name, seconds in {"SOON": 0.01, "LOOK": 0.01, "PATIENCE": 30.0}.items():
        monkeypatch.setattr(f"agent.leftovers.{name}", seconds)
    quiet, asked = False, 0

    def is_quiet() -> bool:
        nonlocal asked
        asked += 1
        return quiet

    leftovers, ended = Leftovers(is_quiet), call()
    leftovers.free_soon()
    await until(lambda: asked > 3)
    leftovers.free_soon()
    assert ended() is not None
    quiet = True
    await until(lambda: ended() is None)
    assert collections == [2, 2]
    quiet, ended = False, call()
    monkeypatch.setattr("agent.leftovers.PATIENCE", 0.05)
    leftovers.free_soon()
    await until(lambda: ended() is None)
    leftovers.close()


async def test_what_there_was_before_is_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.leftovers.SOON", 0.0)
    before = Part()
    leftovers = Leftovers()
    assert gc.get_freeze_count() > 1000
    assert not any(each is before for each in gc.get_objects())
    leftovers.close()


async def test_nothing_is_freed_once_it_is_closed(monkeypatch: pytest.MonkeyPatch, collections: list[int]) -> None:
    monkeypatch.setattr("agent.leftovers.SOON", 0.02)
    leftovers = Leftovers()
    leftovers.free_soon()
    leftovers.close()
    leftovers.free_soon()
    await asyncio.sleep(0.1)  # justified: five times as long as one would take to come
    assert collections == [2]
