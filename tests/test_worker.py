"""The engine's inbox: it wakes for an event, for its end, and at an instant, however far away that one is."""

from collections.abc import Callable
from math import inf
from threading import Thread, Timer

import pytest

from engine.core import Cancel
from engine.simulator import FakeClock
from engine.worker import Inbox


def inbox(while_idle: Callable[[Inbox], None] = lambda _: None) -> Inbox:
    """At 100 s; `while_idle` happens 20 ms after it began to wait."""
    made = Inbox(FakeClock(100.0), idle=lambda: Timer(0.02, while_idle, [made]).start())
    return made


@pytest.mark.parametrize("until", [None, 1e18, 1e308, inf])
def test_an_event_ends_any_wait(until: float | None) -> None:
    """Python refuses to wait for 1e18 seconds, and a playhead may ask for that."""
    box = inbox(lambda box: box.put(Cancel(7)))
    box.wait(until)
    assert box.drain() == [Cancel(7)]
    assert box.drain() == []


@pytest.mark.parametrize("until", [None, 1e18, inf])
def test_so_does_its_end(until: float | None) -> None:
    box = inbox(lambda box: box.close())
    box.wait(until)
    assert box.closed


@pytest.mark.parametrize("until", [100.0, 99.0, -1e18, -inf, float("nan")])
def test_an_instant_that_is_no_later_is_not_waited_for(until: float) -> None:
    inbox().wait(until)


def test_it_waits_until_then() -> None:
    waiting = Thread(target=inbox().wait, args=(100.1,))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    waiting.join(10.0)
    assert not waiting.is_alive()


def test_what_came_before_is_not_waited_for() -> None:
    box = inbox()
    box.put(Cancel(7))
    box.wait(1e18)
    assert box.drain() == [Cancel(7)]
