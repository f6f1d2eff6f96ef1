"""The pipe to an engine: what cannot cross it is its sender's failure, and all that comes after it crosses."""

from __future__ import annotations

import pickle
import threading
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine import link
from engine.checks import RequestError
from engine.core import Cancel, ErrorCode, Limits, Playhead, Prompt, Refused, Request, SamplingParams, Submit
from engine.link import Link
from engine.messages import Close, Numbered, RuntimeConfig, SetPolicy, packed
from engine.models import Model
from engine.open_requests import OpenRequests
from engine.policies import make
from engine.policy import UsePolicy
from engine.predictor import Predictor
from engine.simulator import FakeClock
from engine.traffic import SPEC
from engine.worker import Inbox, admitted, language, read

REQUEST = Request("Hello.", SamplingParams(), epoch=3, follows=2)


class Text(str):
    """A caller's own kind of text, which no other process can read."""

    def __reduce__(self) -> Any:
        return failing, ()


class Locked(str):
    """A caller's own kind of text, which cannot be sent."""

    def __reduce__(self) -> Any:
        raise TypeError("cannot pickle 'lock' object")


def failing() -> str:
    raise ModuleNotFoundError("No module named 'theirs'")


@dataclass(frozen=True, slots=True)
class OwnPlayhead(Playhead):
    """Somebody's, with something in it that cannot be sent, or cannot be read."""

    more: object = None


def numbered(request: Request, request_id: int = 7) -> Numbered:
    return Numbered(request_id, request.epoch, packed(request), 1.5)


def prompt(request: Request) -> Prompt:
    return Prompt(())


def nothing_open() -> OpenRequests:
    return OpenRequests(lambda event: None, FakeClock())


MODEL = cast(Model, SimpleNamespace(prompt=prompt))


def test_a_request_that_cannot_be_sent_says_which_field() -> None:
    with pytest.raises(RequestError) as raised:
        packed(replace(REQUEST, speaker=Locked("S0")))
    reason = "(TypeError: cannot pickle 'lock' object)"
    assert str(raised.value) == f"speaker must be plain data that can be pickled, got 'S0' {reason}"


def test_a_request_comes_through() -> None:
    assert numbered(REQUEST).request == REQUEST
    expected = Submit(7, Prompt(()), REQUEST.sampling, epoch=3, follows=2, submitted_at=1.5)
    assert admitted(numbered(REQUEST), MODEL, "", nothing_open()) == expected


def test_a_text_is_written_out_where_the_voice_wants_it() -> None:
    read: list[str] = []

    def prompt(request: Request) -> Prompt:
        read.append(request.text)
        return Prompt(())

    model = cast(Model, SimpleNamespace(prompt=prompt))
    for text in ("That is **$3.50**.", "  "):
        for written in ("", "en"):
            admitted(numbered(replace(REQUEST, text=text)), model, written, nothing_open())
    assert read == ["That is **$3.50**.", "That is three dollars and fifty cents.", "  ", "  "]


@pytest.mark.parametrize(
    ("voice", "asked", "used"),
    [("en", None, "en"), ("", None, ""), ("en", False, ""), ("", True, "en"), ("en", True, "en")],
)
def test_whether_it_is_written_out_is_the_voices_choice_unless_asked(voice: str, asked: bool | None, used: str) -> None:
    assert language(RuntimeConfig(normalise=asked), replace(SPEC, normalise=voice)) == used


def test_a_request_that_cannot_be_read_fails_alone() -> None:
    refused = admitted(numbered(replace(REQUEST, text=Text("Hi."))), MODEL, "", nothing_open())
    assert isinstance(refused, Refused)
    assert (refused.request_id, refused.epoch, refused.code) == (7, 3, ErrorCode.BAD_REQUEST)
    assert refused.message.endswith("fails with ModuleNotFoundError: No module named 'theirs'")


def test_what_is_no_message_is_left_out() -> None:
    ours, theirs = Pipe()
    inbox = Inbox(FakeClock(), idle=lambda: None)
    unreadable = OwnPlayhead(1, 0, 0.0, more=Text("x"))
    policy = make("newest-first", Predictor(), Limits())
    messages = (unreadable, REQUEST, None, [1], Cancel(7), SetPolicy("newest-first"), Close())
    for message in (b"no pickle", b"", *map(pickle.dumps, messages)):
        ours.send_bytes(message)
    read(theirs, MODEL, inbox, {policy.name: policy}.__getitem__, "", nothing_open())
    assert inbox.drain() == [Cancel(7), UsePolicy(policy)]
    assert inbox.closed, "by Close"


def echo(connection: Any, config: RuntimeConfig) -> None:
    """An engine that says what it is told."""
    while not isinstance(message := connection.recv(), Close):
        connection.send(message)
    connection.close()


def test_after_what_cannot_be_sent_the_next_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "work", echo)
    pipe = Link(RuntimeConfig(in_process=True))
    with pytest.raises(TypeError, match="cannot pickle"):
        pipe.send(OwnPlayhead(1, 0, 0.0, more=threading.Lock()))
    pipe.send(Cancel(7))
    assert cast(object, pipe.receive()) == Cancel(7)
    pipe.end()
    pipe.release()
