"""agent/brain.py and what is below it: every brain, every fault of an endpoint, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_in import DONE, StandIn, chunk, cut, hang, no_task, plain, stream

from agent.brain import (
    BoundedBrain,
    BrainConfig,
    BrainError,
    Message,
    ReplyLimits,
    Role,
    SettingsError,
    UserTurn,
    make_brain,
)
from agent.script import ScriptError, parse_script
from agent.secret import Secret, read_secret
from agent.sse import MAX_EVENT_BYTES, EventStream, TooLongError
from agent.thoughts import Thoughts
from agent.trouble import Trouble

KEY = "sk-sentinel-4f81b2"
QUICK = ReplyLimits(first_seconds=0.3, between_seconds=0.3, max_chars=400, max_seconds=3.0)
HELLO = [chunk(role="assistant"), chunk("Hel"), chunk("lo."), chunk(finish="stop"), DONE]


async def said(brain: BoundedBrain, text: str = "hi", history: tuple[Message, ...] = ()) -> str:
    async with aclosing(brain.reply(UserTurn(text, history))) as deltas:
        return "".join([delta async for delta in deltas])


async def failure(brain: BoundedBrain) -> tuple[BrainError, str]:
    """The error, and what was said before it."""
    heard = ""
    with pytest.raises(BrainError) as caught:
        async with aclosing(brain.reply(UserTurn("hi"))) as deltas:
            async for delta in deltas:
                heard += delta
    return caught.value, heard


def user(text: str) -> Message:
    return Message(Role.USER, text)


@pytest.fixture
async def stand_in() -> AsyncIterator[StandIn]:
    async with StandIn() as opened:
        yield opened


@pytest.fixture
async def brain(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[BoundedBrain]:
    monkeypatch.setenv("BRAIN_KEY", KEY)
    made = make_brain(BrainConfig("openai", url=stand_in.url, model="m", key_env="BRAIN_KEY", limits=QUICK))
    yield made
    await made.close()


# ---- the endpoint, when all is well ---------------------------------------------------------------------------


async def test_an_endpoint_is_asked_and_its_text_comes_as_it_is_written(stand_in: StandIn, brain: BoundedBrain) -> None:
    stand_in.answers = [stream(*HELLO)]
    history = (user("a"), user("b"), Message(Role.AGENT, "c", interrupted=True), Message(Role.AGENT, "", True))
    assert await said(brain, "d", history) == "Hello."
    (body,), (headers,) = stand_in.bodies, stand_in.headers
    system, *messages = body.pop("messages")
    assert body == {"model": "m", "stream": True}
    assert system["role"] == "system"
    assert messages == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c ..."},
        {"role": "user", "content": "d"},
    ]
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert headers["Accept"] == "text/event-stream"


async def test_a_conversations_own_instructions_replace_the_servers(stand_in: StandIn, brain: BoundedBrain) -> None:
    stand_in.answers = [stream(*HELLO)]
    async with aclosing(brain.reply(UserTurn("hi", instructions="Talk like a pirate."))) as deltas:
        assert "".join([delta async for delta in deltas]) == "Hello."
    (body,) = stand_in.bodies
    assert body["messages"][0] == {"role": "system", "content": "Talk like a pirate."}


async def test_an_agent_that_is_to_speak_first_is_asked_without_a_users_words(
    stand_in: StandIn, brain: BoundedBrain
) -> None:
    stand_in.answers = [stream(*HELLO)]
    assert await said(brain, "") == "Hello."
    (body,) = stand_in.bodies
    assert [message["role"] for message in body["messages"]] == ["system"]


async def test_a_kept_connection_serves_the_next_turn(stand_in: StandIn, brain: BoundedBrain) -> None:
    stand_in.answers = [stream(*HELLO)]
    for _ in range(3):
        assert await said(brain) == "Hello."
        assert stand_in.connections == 1
    await brain.close()
    await stand_in.no_connection()


async def test_only_the_last_messages_are_sent_and_a_user_begins(stand_in: StandIn) -> None:
    stand_in.answers = [stream(*HELLO)]
    config = BrainConfig("openai", url=stand_in.url, model="m", system="", max_messages=2, extra={"temperature": 0})
    brain = make_brain(config)
    await said(brain, "d", (user("a"), Message(Role.AGENT, "b")))
    await brain.close()
    body = {"model": "m", "stream": True, "temperature": 0, "messages": [{"role": "user", "content": "d"}]}
    assert stand_in.bodies == [body]
    assert "Authorization" not in stand_in.headers[0]


@pytest.mark.parametrize(
    "parts",
    [
        [bytes([byte]) for byte in b"".join(HELLO)],
        [b"".join(HELLO)],
        [b"".join(HELLO).replace(b"\n", b"\r\n")],
        [b"\xef\xbb\xbf: a comment\n\n", *HELLO[:2], b": ping\n\nid: 7\nretry: 1\nevent: chunk\n", *HELLO[2:]],
        [*HELLO[:3], chunk("", "stop")],  # no [DONE]
        [*HELLO[:3], b"data: [DONE]\n"],  # no blank line
        [*HELLO[:3], b'data: {"choices": [], "usage": {"total_tokens": 7}}\n\n', DONE],
        [chunk("Hello."), b'data: {"choices": [{"index": 1, "delta": {"content": "no"}}]}\n\n', DONE],
    ],
    ids=["byte by byte", "at once", "crlf", "comments", "no done", "no blank line", "usage", "second choice"],
)
async def test_streams_of_every_spelling_are_read(stand_in: StandIn, brain: BoundedBrain, parts: list[bytes]) -> None:
    stand_in.answers = [stream(*parts)]
    assert await said(brain) == "Hello."


async def test_an_endpoint_that_does_not_stream_is_read_too(stand_in: StandIn, brain: BoundedBrain) -> None:
    body = '{"choices": [{"message": {"role": "assistant", "content": "Hello."}, "finish_reason": "stop"}]}'
    stand_in.answers = [plain(body=body)]
    assert await said(brain) == "Hello."


async def test_what_is_no_plain_end_is_logged(
    stand_in: StandIn, brain: BoundedBrain, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in.answers = [stream(chunk("Hel"), chunk("lo.", "length"), DONE)]
    assert await said(brain) == "Hello."
    assert "limit of tokens" in caplog.text
    calls = [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]
    stand_in.answers = [stream(chunk("Hello."), chunk(tool_calls=calls), chunk(finish="tool_calls"), DONE)]
    assert await said(brain) == "Hello."
    assert "calls a tool" in caplog.text
    stand_in.answers = [stream(chunk(tool_calls=calls), chunk(finish="tool_calls"), DONE)]
    error, _ = await failure(brain)
    assert "no text" in str(error)


# ---- every fault ----------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[Any, Trouble, str, str]] = {
    "401": (plain(401, f'{{"error": {{"message": "Wrong key {KEY}"}}}}'), Trouble.REFUSED, "401: Wrong key", ""),
    "404": (plain(404, '{"detail": "no such model"}'), Trouble.REFUSED, "404: no such model", ""),
    "429": (plain(429, '{"error": "slow down"}', Retry_After="7"), Trouble.BUSY, "429: slow down", ""),
    "503": (plain(503, "<h1>gone</h1>", "text/html"), Trouble.BUSY, "503: <h1>gone</h1>", ""),
    "504": (plain(504), Trouble.TIMEOUT, "504", ""),
    "500": (plain(500, b"\xff\x00" * 9999), Trouble.BROKEN, "500", ""),
    "moved": (plain(307, Location="http://127.0.0.1:9/"), Trouble.REFUSED, "has moved", ""),
    "page": (plain(200, "<html>", "text/html"), Trouble.BROKEN, "got text/html", ""),
    "silent": (hang, Trouble.TIMEOUT, "no text came for 0.3 s", ""),
    "dropped": (cut, Trouble.BROKEN, "cut", ""),
    "no first": (stream(b": ping\n\n", then="hang"), Trouble.TIMEOUT, "no text came", ""),
    "stuck": (stream(chunk("Hel"), then="hang"), Trouble.TIMEOUT, "no text came", "Hel"),
    "cut": (stream(chunk("Hel"), then="cut"), Trouble.BROKEN, "cut", "Hel"),
    "short": (stream(chunk("Hel")), Trouble.BROKEN, "ended in its middle", "Hel"),
    "half an event": (stream(chunk("Hel"), chunk("lo")[:-9]), Trouble.BROKEN, "malformed", "Hel"),
    "no json": (stream(chunk("Hel"), b"data: {oops\n\n"), Trouble.BROKEN, "malformed", "Hel"),
    "no object": (stream(b"data: [1, 2]\n\n"), Trouble.BROKEN, "malformed", ""),
    "wrong type": (stream(b'data: {"choices": [{"delta": {"content": 5}}]}\n\n'), Trouble.BROKEN, "malformed", ""),
    "error inside": (
        stream(chunk("Hel"), f'data: {{"error": {{"message": "quota {KEY}"}}}}\n\n'.encode(), DONE),
        Trouble.BROKEN, "broke off: quota", "Hel",
    ),
    "error event": (stream(b"event: error\ndata: overloaded\n\n"), Trouble.BROKEN, "broke off: overloaded", ""),
    "vllm error": (stream(b'data: {"object": "error", "message": "bad"}\n\n'), Trouble.BROKEN, "broke off: bad", ""),
    "one long line": (stream(b"data: " + b"x" * 70_000, b"x" * 1_000_000), Trouble.BROKEN, "at most", ""),
    "filtered": (stream(chunk(finish="content_filter"), DONE), Trouble.BROKEN, "content_filter", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_fault_is_an_error_with_a_reason_and_the_next_turn_works(
    stand_in: StandIn, brain: BoundedBrain, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    answer, trouble, reason, heard = FAULTS[fault]
    before = asyncio.all_tasks()
    stand_in.answers = [answer]
    error, said_before = await failure(brain)
    assert (error.trouble, said_before) == (trouble, heard)
    assert reason in str(error)
    assert len(str(error)) < 600
    assert error.apology == "Sorry, I cannot answer that just now."
    assert str(error) in caplog.text
    stand_in.answers = [stream(*HELLO)]
    assert await said(brain) == "Hello."
    await brain.close()
    await stand_in.no_connection()
    await no_task(before)
    assert KEY not in caplog.text + str(error) + repr(error) + repr(brain) + repr(vars(brain))


async def test_a_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    brain = make_brain(BrainConfig("openai", url="http://127.0.0.1:9/v1", model="m", apology="Oh."))
    error, _ = await failure(brain)
    await brain.close()
    assert (error.trouble, error.apology) == (Trouble.UNREACHABLE, "Oh.")


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0.5", 0.5), ("-1", 0.0), ("soon", None), ("nan", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)],
)
async def test_when_to_come_back(stand_in: StandIn, brain: BoundedBrain, header: str, seconds: float | None) -> None:
    stand_in.answers = [plain(429, Retry_After=header)]
    assert (await failure(brain))[0].retry_after == seconds


async def test_a_kept_connection_that_the_server_gave_up_is_opened_anew(stand_in: StandIn, brain: BoundedBrain) -> None:
    stand_in.answers = [stream(*HELLO), cut, stream(*HELLO)]
    assert await said(brain) == "Hello."
    assert await said(brain) == "Hello."
    assert len(stand_in.bodies) == 3


async def test_an_endless_reply_is_cut(
    stand_in: StandIn, brain: BoundedBrain, caplog: pytest.LogCaptureFixture
) -> None:
    stand_in.answers = [stream(chunk("word "), then="repeat")]
    assert await said(brain) == "word " * 80
    assert "cut after 400 characters" in caplog.text
    await stand_in.no_connection()


async def test_a_slow_reply_is_cut_after_its_seconds(stand_in: StandIn) -> None:
    limits = ReplyLimits(max_seconds=0.2)
    stand_in.answers = [stream(*[chunk("a")] * 50, after=0.02)]
    brain = make_brain(BrainConfig("openai", url=stand_in.url, model="m", limits=limits))
    assert 1 <= len(await said(brain)) <= 10
    await stand_in.no_connection()
    await brain.close()


async def test_the_seconds_are_the_brains_not_the_listeners() -> None:
    async def count(text: str) -> AsyncIterator[str]:
        for number in range(5):
            yield str(number)

    brain = make_brain(BrainConfig("function", limits=ReplyLimits(max_seconds=0.1, between_seconds=0.05)), count)
    heard = ""
    async with aclosing(brain.reply(UserTurn("hi"))) as deltas:
        async for delta in deltas:
            heard += delta
            await asyncio.sleep(0.06)
    assert heard == "01234"


# ---- cancelling -----------------------------------------------------------------------------------------------


async def cancelled_after(steps: int, brain: BoundedBrain) -> str:
    """Lets a reply run for so many turns of the event loop, then cancels it; what was said by then."""
    heard = list[str]()

    async def listen() -> None:
        async with aclosing(brain.reply(UserTurn("hi"))) as deltas:
            async for delta in deltas:
                heard.append(delta)

    task = asyncio.create_task(listen())
    for _ in range(steps):
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return "".join(heard)


async def test_cancelled_at_any_await_it_leaves_no_task_and_no_connection(
    stand_in: StandIn, brain: BoundedBrain
) -> None:
    stand_in.answers = [stream(*HELLO, then="hang")]  # no connection can be kept for the next turn
    before, heard = asyncio.all_tasks(), set[str]()
    for steps in range(80):
        heard.add(await cancelled_after(steps, brain))
        await no_task(before)
        await stand_in.no_connection()
    assert {"", "Hello."} <= heard
    assert await said(brain) == "Hello."


@pytest.mark.parametrize("answer", [hang, stream(then="hang"), stream(chunk("a"), then="hang")], ids=["-", "head", "a"])
async def test_cancelled_while_the_server_hangs_the_connection_ends_at_once(
    stand_in: StandIn, brain: BoundedBrain, answer: Any
) -> None:
    stand_in.answers = [answer]
    task = asyncio.create_task(said(brain))
    await asyncio.sleep(0.1)  # justified: the server hangs, nothing tells that it has got the request
    assert stand_in.connections == 1
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await stand_in.no_connection()


async def test_closed_between_two_deltas_it_ends_too(stand_in: StandIn, brain: BoundedBrain) -> None:
    stand_in.answers = [stream(chunk("a"), then="repeat")]
    async with aclosing(brain.reply(UserTurn("hi"))) as deltas:
        assert await anext(deltas) == "a"
    await stand_in.no_connection()


# ---- echo and script ------------------------------------------------------------------------------------------


async def test_echo_says_back_what_it_knows() -> None:
    brain = make_brain(BrainConfig(greeting="Hello!"))
    assert brain.greeting == "Hello!"
    assert await said(brain, "Good morning.") == "Good morning."
    assert await said(brain, "") == ""
    turn = UserTurn("", audio=np.zeros(24_000, np.int16))
    assert [delta async for delta in brain.reply(turn)] == ["I heard 1.5 seconds of speech."]
    await brain.close()


SCRIPT = """
greeting: Hello!
replies:
  - One.
  - when: HOURS
    say: We open at nine.
  - when: [bye, '/good ?night/']
    say: Goodbye.
  - no
  - 12:30
end: That is all.
"""


async def test_a_script_says_its_replies_in_order_and_others_when_they_fit(tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    file.write_text(SCRIPT)
    brain, history = make_brain(BrainConfig("script", script=file)), tuple[Message, ...]()
    assert brain.greeting == "Hello!"
    heard = []
    for text in ("a", "your opening hours?", "b", "Goodnight!", "good night", "c", "", "d"):
        heard.append(await said(brain, text, history))
        history += (user(text), Message(Role.AGENT, heard[-1]))
    nine, bye = "We open at nine.", "Goodbye."
    assert heard == ["One.", nine, "no", bye, bye, "12:30", "That is all.", "That is all."]
    await brain.close()


def test_a_script_may_loop_or_fall_silent() -> None:
    loop = parse_script("replies: [a, b]\nloop: true")
    assert [loop.answer("x", ["x"] * used) for used in range(5)] == ["a", "b", "a", "b", "a"]
    silent = parse_script("replies: [a]")
    assert [silent.answer("x", ["x"] * used) for used in range(3)] == ["a", "", ""]
    assert parse_script("replies: [{when: a, say: b}]\nloop: true").answer("x") == ""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "line 1: expected a script, found nothing"),
        ("- a", "line 1: expected a script: the keys greeting, replies, loop, end"),
        ("greeting: a", "line 1: expected the key replies"),
        ("replies:\n", "line 1: expected a list of replies, each after a dash"),
        ("replies: []\n", "line 1: expected a list of replies"),
        ("replies: [a]\ngreting: b", "line 2: expected one of the keys .*, got 'greting'"),
        ("replies: [a]\nreplies: [b]", "line 2: expected replies once"),
        ("replies: [a]\n[b]: c", "line 2: expected one of the keys"),
        ("replies:\n  - a\n  -\n", "line 3: expected a text"),
        ("replies:\n  - a\n  - say: [b]", "line 3: expected a text"),
        ("replies:\n  - a\n  - Note: this", "line 3: expected one of the keys when, say, got 'Note'"),
        ("replies:\n  - when: a", "line 2: expected the key say"),
        ("replies:\n  - say: a\n    when: '/(/'", "line 3: expected a regular expression between the slashes"),
        ("replies:\n  - say: a\n    when: []", "line 3: expected a text or a list of texts"),
        ("replies: [a]\nloop: yes", "line 2: expected true or false"),
        ("replies: [a]\nloop: true\nend: b", "line 3: expected loop or end, not both"),
        ("replies:\n  - 'a", "line 2: expected YAML: found unexpected end of stream"),
        ("replies:\n\t- a", "line 2: expected YAML"),
        ("replies: [a]\n--- \nb: c", "line 2: expected YAML"),
        ("replies: [a]\nend: \x07", "line 2: expected YAML: the character"),
        ("replies: *a", "line 1: expected YAML: found undefined alias"),
        ("[" * 1000, "line 1: expected"),
    ],
)
def test_a_malformed_script_names_the_line_and_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(ScriptError, match=expected):
        parse_script(text)


def test_a_script_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        make_brain(BrainConfig("script", script=tmp_path / "no.yaml"))
    file = tmp_path / "script.yaml"
    for data, expected in (
        (b"\xff\xfe", "UTF-8"),
        (b"x" * 300_000, "at most"),
        (b"replies: 5", r"script\.yaml, line 1"),
    ):
        file.write_bytes(data)
        with pytest.raises(ScriptError, match=expected):
            make_brain(BrainConfig("script", script=file))


# ---- the app's own --------------------------------------------------------------------------------------------


async def coroutine(text: str) -> str:
    await asyncio.sleep(0)
    return text + "!"


async def generator(text: str) -> AsyncIterator[str]:
    for char in text + "!":
        yield char


class Caller:
    async def __call__(self, text: str) -> str:
        return text + "!"


class Own:
    async def reply(self, turn: UserTurn) -> AsyncGenerator[str]:
        yield turn.text
        yield "!"

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    "own",
    [
        lambda text: text + "!",
        lambda text: iter([text, "!"]),
        lambda text: (char for char in text + "!"),
        lambda text: [text, None, "!"],
        coroutine,
        generator,
        partial(coroutine),
        lambda text: coroutine(text),
        lambda text: generator(text),
        Caller(),
        Own(),
    ],
)  # fmt: skip
async def test_a_function_of_any_kind_answers(own: Any) -> None:
    brain = make_brain(BrainConfig("function"), own)
    assert await said(brain, "héllo") == "héllo!"
    await brain.close()


async def test_a_function_that_blocks_does_not_block_the_event_loop() -> None:
    free = threading.Event()

    def wait(text: str) -> str:
        assert free.wait(5)
        return threading.current_thread().name

    brain = make_brain(BrainConfig("function"), wait)
    task = asyncio.create_task(said(brain))
    await asyncio.sleep(0.02)
    free.set()
    assert await task == "app"


def number(text: str) -> Any:
    return 5


def fail(text: str) -> str:
    raise LookupError("the inside")


async def fail_later(text: str) -> AsyncIterator[str]:
    yield "a"
    raise TimeoutError("my own")


def leave(text: str) -> str:
    raise SystemExit


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (number, "must return text, got int"),
        (fail, "raised LookupError: the inside"),
        (fail_later, "raised TimeoutError: my own"),
        (leave, "raised SystemExit"),
    ],
)
async def test_a_function_that_fails_is_an_error(own: Callable[[str], Any], reason: str) -> None:
    error, _ = await failure(make_brain(BrainConfig("function"), own))
    assert error.trouble == Trouble.BROKEN
    assert reason in str(error)


async def test_a_function_that_takes_too_long_is_given_up() -> None:
    # justified: the function of an app that blocks its thread is what is tested
    brain = make_brain(BrainConfig("function", limits=QUICK), lambda text: time.sleep(0.6))
    error, _ = await failure(brain)
    assert error.trouble == Trouble.TIMEOUT


async def test_an_iterator_is_closed_when_its_reply_is_cancelled_and_never_runs_far_ahead() -> None:
    made, closed = list[int](), threading.Event()

    def endless(text: str) -> Iterator[str]:
        try:
            for count in range(10**9):
                made.append(count)
                yield "a"
        finally:
            closed.set()

    brain = make_brain(BrainConfig("function"), endless)
    async with aclosing(brain.reply(UserTurn("hi"))) as deltas:
        assert await anext(deltas) == "a"
        await asyncio.sleep(0.05)  # justified: time in which it could run ahead
    assert await asyncio.to_thread(closed.wait, 5)
    assert len(made) < 20
    async with asyncio.timeout(5):
        while any(thread.name == "app" for thread in threading.enumerate()):  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.001)


async def test_an_async_generator_is_closed_when_its_reply_is_cancelled() -> None:
    closed = asyncio.Event()

    async def endless(text: str) -> AsyncIterator[str]:
        try:
            while True:
                yield "a"
                await asyncio.sleep(0.001)
        finally:
            closed.set()

    brain = make_brain(BrainConfig("function"), endless)
    task = asyncio.create_task(said(brain))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed.is_set()


async def test_functions_that_hang_are_not_called_without_end() -> None:
    free = threading.Event()
    brain = make_brain(BrainConfig("function", limits=ReplyLimits(first_seconds=0.01)), lambda text: free.wait(20))
    for _ in range(32):
        assert (await failure(brain))[0].trouble == Trouble.TIMEOUT
    assert (await failure(brain))[0].trouble == Trouble.BUSY
    free.set()


async def test_an_endless_reply_of_nothing_ends() -> None:
    async def nothing(text: str) -> AsyncIterator[str]:
        while True:
            yield ""

    assert await said(make_brain(BrainConfig("function"), nothing)) == ""


# ---- settings and keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kind": "oracle"}, "a brain is echo, script, openai or function, got 'oracle'"),
        ({"kind": "function"}, "takes a function"),
        ({"kind": "script"}, "needs a script"),
        ({"kind": "script", "script": Path("x"), "greeting": "a"}, "greeting"),
        ({"kind": "echo", "model": "m"}, "model is a setting of the brain openai, and this one is echo"),
        ({"kind": "openai", "model": "m"}, "needs a url"),
        ({"kind": "openai", "url": "http://localhost"}, "needs a model"),
        ({"kind": "openai", "model": "m", "url": "localhost:80"}, "such as http"),
        ({"kind": "openai", "model": "m", "url": "http://[::1"}, "such as http"),
        ({"kind": "openai", "model": "m", "url": "http://a:b"}, "such as http"),
        ({"kind": "openai", "model": "m", "url": f"http://u:{KEY}@localhost"}, "no user, password"),
        ({"kind": "openai", "model": "m", "url": f"http://localhost?key={KEY}"}, "query"),
        ({"kind": "openai", "model": "m", "url": "http://localhost/v1/chat/completions/"}, "ends before /chat"),
        ({"kind": "openai", "model": "m", "url": "http://a", "max_messages": 0}, "max_messages"),
        ({"kind": "openai", "model": "m", "url": "http://a", "extra": {"stream": False}}, "must not hold stream"),
        ({"kind": "openai", "model": "m", "url": "http://a", "key_env": KEY}, "never the key itself"),
        ({"kind": "openai", "model": "m", "url": "http://a", "key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set"),
        ({"kind": "openai", "model": "m", "url": "http://a", "key_file": Path(KEY)}, "cannot be read: No such file"),
        ({"kind": "openai", "model": "m", "url": "http://a", "key_file": Path(f"{KEY}\0")}, "cannot be read"),
        ({"kind": "openai", "model": "m", "url": "http://a", "key_file": Path("x"), "key_env": "Y"}, "not both"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError, match=expected) as caught:
        make_brain(BrainConfig(**settings))
    assert KEY not in str(caught.value)


def test_limits_and_the_apps_own_are_checked() -> None:
    with pytest.raises(SettingsError, match="first_seconds must be above zero"):
        ReplyLimits(first_seconds=0)
    with pytest.raises(SettingsError, match="must be a function or a Brain, got int"):
        make_brain(BrainConfig("function"), 5)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="and no other"):
        make_brain(BrainConfig(), fail)


def test_a_key_comes_from_a_file_or_the_environment_and_is_shown_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(f"  {KEY}\n")
    secret = read_secret(None, file)
    assert secret is not None
    assert secret.reveal() == KEY
    assert KEY not in f"{secret} {secret!r} {[secret]}"
    assert secret.hide(f"a {KEY}.") == "a (hidden)."
    assert secret == Secret(KEY)
    monkeypatch.setenv("BRAIN_KEY", KEY)
    config = BrainConfig("openai", url="http://localhost", model="m", key_env="BRAIN_KEY")
    assert KEY not in repr(config) + repr(vars(make_brain(config)._brain))
    for wrong in (b"", b"two words", "schlüssel".encode(), b"\xff", b"a\nb"):
        file.write_bytes(wrong)
        with pytest.raises(SettingsError, match="must"):
            read_secret(None, file)


def test_a_key_that_would_cross_a_network_in_the_clear_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BRAIN_KEY", KEY)
    for url in ("http://localhost", "https://example.org/v1"):
        make_brain(BrainConfig("openai", url=url, model="m", key_env="BRAIN_KEY"))
    assert not caplog.text
    make_brain(BrainConfig("openai", url="http://example.org/v1", model="m", key_env="BRAIN_KEY"))
    assert "example.org" in caplog.text
    assert KEY not in caplog.text


# ---- thoughts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>\nHm, </thin k> so.\n</think>\n\nHello. <think>", "Hello. <think>"),
        ("  <think></think>", ""),
        ("<think>for ever", ""),
        ("Hello.", "Hello."),
        ("<thi", "<thi"),
        ("<think", "<think"),
        ("<thin air", "<thin air"),
        ("a</think>", "a</think>"),
    ],
)
def test_a_thought_at_the_beginning_is_left_out(text: str, left: str) -> None:
    for at in range(len(text) + 1):
        thoughts = Thoughts()
        assert thoughts.push(text[:at]) + thoughts.push(text[at:]) + thoughts.end() == left
    thoughts = Thoughts()
    assert "".join([thoughts.push(char) for char in text]) + thoughts.end() == left


async def test_what_a_model_thinks_is_not_spoken(stand_in: StandIn, brain: BoundedBrain) -> None:
    stand_in.answers = [stream(chunk("<think>Hm."), chunk("</think>"), chunk("\nHello."), chunk(finish="stop"), DONE)]
    assert await said(brain) == "Hello."


# ---- server-sent events ---------------------------------------------------------------------------------------


def events(*parts: bytes) -> list[tuple[str, str]]:
    stream = EventStream()
    found = [event for part in parts for event in stream.feed(part)] + stream.end()
    return [(event.name, event.data) for event in found]


def test_events_are_read_as_the_standard_says() -> None:
    text = b"\xef\xbb\xbfdata: a\ndata:b\ndata\n\n: c\n\nevent: e\n\ndata:  d\nid: 1\n\nevent: f\rdata: \xc3\xa9\r\r"
    assert events(text) == [("", "a\nb\n"), ("", " d"), ("f", "é")]
    assert events(b"data: a\r", b"\ndata: b\r", b"", b"\n\r", b"\ndata: c") == [("", "a\nb"), ("", "c")]


@given(st.lists(st.sampled_from([b"data: a", b"\r", b"\n", b"\r\n", b":", "é".encode(), b"event: x"])), st.data())
def test_how_a_stream_is_cut_makes_no_difference(parts: list[bytes], data: st.DataObject) -> None:
    text = b"".join(parts)
    at = data.draw(st.integers(0, len(text)))
    whole = events(text)
    assert events(text[:at], text[at:]) == whole
    assert events(*[bytes([byte]) for byte in text]) == whole


@pytest.mark.parametrize("part", [b"x" * 1000, b"data: " + b"x" * 1000 + b"\n"])
def test_an_event_without_end_is_given_up(part: bytes) -> None:
    stream = EventStream()
    with pytest.raises(TooLongError):
        for _ in range(MAX_EVENT_BYTES // 1000 + 1):
            stream.feed(part)
