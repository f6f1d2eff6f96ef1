"""A brain that asks an OpenAI-compatible /chat/completions endpoint and streams what it writes. It does not know which
model answers there, or how long a reply may take.

The format is that of OpenAI's API reference, "Chat Completions: streaming", as vLLM, llama.cpp, Ollama and others also
speak it, with what they do differently: errors inside the stream, streams without [DONE], whole answers in JSON.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp
import msgspec

from agent.dialogue import Message, Role, UserTurn
from agent.endpoint import Endpoint, complaint
from agent.sse import Event, EventStream, TooLongError
from agent.thoughts import Thoughts
from agent.trouble import OutsideError, Trouble

log = logging.getLogger(__name__)

DONE = "[DONE]"
DRAIN_SECONDS = 0.05
"""After the last event, for the end of the body: then the connection can be used again, which saves the next turn a
handshake."""
INTERRUPTED = " ..."
"""Behind what was heard of a reply that was interrupted, so that the model knows that the rest was not."""
MAX_JSON_BYTES = 1024 * 1024


class Delta(msgspec.Struct):
    """What a chunk adds."""

    content: str | None = None
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    index: int = 0


class Answer(msgspec.Struct):
    """A chunk of a stream, or a whole answer. Keys that are not named here are nobody's concern."""

    choices: list[Choice] | None = None
    error: Any = None
    object: str | None = None


decoder = msgspec.json.Decoder(Answer)


class Progress:
    """What is known of one answer so far."""

    def __init__(self) -> None:
        self.finish: str | None = None
        self.done = False
        self.said = False
        self._tools, self._thoughts = False, Thoughts()

    def take(self, data: str) -> str:
        """The text of one event. Raises OutsideError."""
        if data.strip() == DONE:
            self.done = True
            return ""
        answer = decoded(data)
        choice = next((choice for choice in answer.choices or [] if choice.index == 0), None)
        return "" if choice is None else self._take_choice(choice)

    def _take_choice(self, choice: Choice) -> str:
        self.finish = choice.finish_reason or self.finish
        delta = choice.delta or choice.message or Delta()
        if delta.tool_calls and not self._tools:
            self._tools = True
            log.warning("the model calls a tool: there are none here, the call is ignored")
        text = self._thoughts.push(delta.content or "")
        self.said |= bool(text)
        return text

    def end(self) -> str:
        """What was held back, now that nothing more comes."""
        text = self._thoughts.end()
        self.said |= bool(text)
        return text

    def check(self) -> None:
        """Whether the answer is whole, now that nothing more comes. Raises OutsideError."""
        if not (self.done or self.finish):
            raise OutsideError(Trouble.BROKEN, "the reply ended in its middle: neither finish_reason nor [DONE] came")
        if not self.said and self.finish not in ("stop", None):
            raise OutsideError(
                Trouble.BROKEN, f"the reply has no text, it ended with finish_reason {self.finish!r:.80}"
            )
        if self.finish == "length":
            log.warning("the reply was cut at the endpoint's own limit of tokens")
        elif self.finish not in ("stop", None):
            log.warning("the reply ended with finish_reason %.80r", self.finish)


class ChatBrain:
    """Asks `model` at an endpoint, with `system` before the conversation's last `max_messages` messages.

    `extra` goes into every request's body beside them: temperature, max_tokens and what else the endpoint knows.
    """

    def __init__(
        self, endpoint: Endpoint, model: str, system: str, max_messages: int, extra: Mapping[str, object]
    ) -> None:
        self._endpoint, self._model, self._extra = endpoint, model, dict(extra)
        self._system, self._max_messages = system, max_messages

    async def reply(self, turn: UserTurn) -> AsyncGenerator[str]:
        """See Brain.reply."""
        if not turn.text.strip() and turn.audio is not None:
            raise OutsideError(Trouble.REFUSED, "the turn has no text: spoken turns need a transcriber")
        body = msgspec.json.encode(
            {**self._extra, "model": self._model, "messages": self._messages(turn), "stream": True}
        )
        progress = Progress()
        async with self._endpoint.post("/chat/completions", lambda: body, "text/event-stream") as response:
            try:
                async with aclosing(payloads(response)) as found:
                    async for data in found:
                        if text := progress.take(data):
                            yield text
                        if progress.done:
                            break
            except OutsideError as error:
                raise OutsideError(error.trouble, self._endpoint.shown(str(error))) from None
            if text := progress.end():
                yield text
            progress.check()
            await drain(response)

    async def close(self) -> None:
        """See Brain.close."""
        await self._endpoint.close()

    def _messages(self, turn: UserTurn) -> list[dict[str, str]]:
        said = [*turn.history, Message(Role.USER, turn.text)][-self._max_messages :]
        instructions = turn.instructions or self._system
        system = [{"role": "system", "content": instructions}] if instructions else []
        return system + alternating(said)


def alternating(said: Sequence[Message]) -> list[dict[str, str]]:
    """The messages as the endpoint takes them. Those of one side in a row become one: the templates of some models
    (Gemma, Mistral) refuse two, and an interrupted user, or a reply that nobody heard, makes them."""
    merged = list[dict[str, str]]()
    for message in said:
        if not message.text.strip():
            continue
        text = message.text + (INTERRUPTED if message.interrupted else "")
        if merged and merged[-1]["role"] == message.role:
            merged[-1]["content"] += "\n" + text
        elif merged or message.role == Role.USER:  # they also refuse an agent that begins
            merged.append({"role": message.role.value, "content": text})
    return merged


async def payloads(response: aiohttp.ClientResponse) -> AsyncGenerator[str]:
    """The data of every event; of an endpoint that does not stream, its one answer. Raises OutsideError."""
    if response.content_type == "application/json":
        yield await whole(response)
        return
    if response.content_type != "text/event-stream":
        found = f"expected text/event-stream, got {response.content_type}: is the url right?"
        raise OutsideError(Trouble.BROKEN, found)
    stream = EventStream()
    try:
        async for data in response.content.iter_any():
            for event in stream.feed(data):
                yield payload(event)
        for event in stream.end():
            yield payload(event)
    except TooLongError as error:
        raise OutsideError(Trouble.BROKEN, f"the stream is malformed: {error}") from None


def payload(event: Event) -> str:
    if event.name == "error":
        raise OutsideError(Trouble.BROKEN, f"the server broke off: {complaint(event.data.encode())}")
    return event.data


async def whole(response: aiohttp.ClientResponse) -> str:
    body = b""
    async for data in response.content.iter_any():
        body += data
        if len(body) > MAX_JSON_BYTES:
            raise OutsideError(Trouble.BROKEN, f"an answer has at most {MAX_JSON_BYTES} bytes")
    return body.decode(errors="replace")


def decoded(data: str) -> Answer:
    """Raises OutsideError for what is no answer, and for what says that there is none."""
    try:
        answer = decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise OutsideError(Trouble.BROKEN, f"the stream is malformed: {error}: {data[:100]!r}") from None
    if answer.error or answer.object == "error":
        raise OutsideError(Trouble.BROKEN, f"the server broke off: {complaint(data.encode())}")
    return answer


async def drain(response: aiohttp.ClientResponse) -> None:
    """Reads a body that is about to end."""
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            while await response.content.readany():
                pass
    except (TimeoutError, aiohttp.ClientError):
        pass
