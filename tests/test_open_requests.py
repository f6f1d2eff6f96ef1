"""Open requests on the worker's side: pieces become events, and what is wrong ends its own request alone."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from engine.checks import RequestError
from engine.core import ErrorCode, Prompt, Refused, Text
from engine.messages import PATIENCE, TextPiece
from engine.open_requests import SILENCE, OpenRequests
from engine.simulator import FakeClock


@dataclass
class Letters:
    """A token a letter; the letter x cannot be read."""

    prompt: Prompt = field(default_factory=lambda: Prompt(()))

    def append(self, text: str) -> tuple[int, ...]:
        if "x" in text:
            raise RequestError("text must not hold x", "text")
        return tuple(map(ord, text))

    def end(self) -> tuple[int, ...]:
        return (0,)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(10.0)


def opened(clock: FakeClock, *numbers: int) -> tuple[OpenRequests, list[Text | Refused]]:
    events: list[Text | Refused] = []
    requests = OpenRequests(events.append, clock)
    for number in numbers:
        requests.open(number, 5, Letters())
    return requests, events


def test_pieces_become_tokens(clock: FakeClock) -> None:
    requests, events = opened(clock, 1)
    for piece in (TextPiece(1, "ab"), TextPiece(1, ""), TextPiece(1, "c", True)):
        requests.take(piece)
    assert events == [Text(1, (97, 98)), Text(1, (99, 0), True)]
    assert len(requests) == 0


def test_what_cannot_go_on_ends_its_request_alone(clock: FakeClock) -> None:
    requests, events = opened(clock, 1, 2)
    for piece in (TextPiece(1, "x"), TextPiece(1, "a"), TextPiece(2, "a")):
        requests.take(piece)
    assert events == [Refused(1, 5, ErrorCode.BAD_REQUEST, "text must not hold x", "text"), Text(2, (97,))]
    assert len(requests) == 1


def test_what_comes_after_the_end_is_nobodys(clock: FakeClock) -> None:
    requests, events = opened(clock, 1, 2)
    requests.take(TextPiece(1, "", True))
    requests.drop(2)
    for number in (1, 2, 3):
        requests.take(TextPiece(number, "a"))
    assert events == [Text(1, (0,), True)]


def test_a_text_that_nobody_goes_on_with_is_complete_after_a_while(clock: FakeClock) -> None:
    requests, events = opened(clock, 1)
    assert opened(clock)[0].patience is None
    clock.advance(20.0)
    requests.open(2, 5, Letters())
    requests.take(TextPiece(1, "a"))
    assert requests.patience == pytest.approx(SILENCE)
    clock.advance(SILENCE - 1)
    requests.take(TextPiece(2, "b"))
    requests.expire()
    clock.advance(1.0)
    assert requests.patience == 0.0
    requests.expire()
    assert events == [Text(1, (97,)), Text(2, (98,)), Text(1, (0,), True)]
    assert requests.patience == pytest.approx(SILENCE - 1)


def test_a_piece_that_was_taken_at_the_last_moment_is_still_read(clock: FakeClock) -> None:
    """It is half a second on its way."""
    requests, events = opened(clock, 1)
    clock.advance(PATIENCE + 0.5)
    requests.expire()
    requests.take(TextPiece(1, "a"))
    assert events == [Text(1, (97,))]
