"""Reads a long text aloud: cuts it into utterances that follow each other, and gives their PCM in order.

It does not know who listens, nor in which format.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass, field, replace

from agent.sentences import MIN_CHARS, Sentences, speakable
from agent.session import Engine
from engine.core import PCM, Chunk, Failed, Finished, FinishReason, Output, Request

log = logging.getLogger(__name__)

LOOKAHEAD = 2
"""Utterances that are in the engine, or made and not taken yet: the one that is read, and the next, so that nothing is
heard of the seam. A reader who is slow, or stands still, makes no more than that wait in memory: at most
max_frames x samples_per_frame x 2 bytes each, 5.8 MB with the voices' own limit of 120 s; some 1 MB as people speak."""


class ReadingFailed(Exception):
    """An utterance failed, and with it the rest of the text."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.message)
        self.code, self.field, self.retry_after = failed.code, failed.field, failed.retry_after


@dataclass(slots=True)
class Part:
    """An utterance that was handed to the engine, and what came of it and was not taken yet."""

    request_id: int = -1
    outputs: asyncio.Queue[Output] = field(default_factory=asyncio.Queue)


def pieces(text: str, max_chars: int) -> list[str]:
    """The text in parts of at most `max_chars` characters: as many whole sentences in each as fit. What cannot be
    spoken is left out; a text that fits is left as it is. Below 48 characters, MIN_CHARS counts instead."""
    max_chars = max(MIN_CHARS, max_chars)
    if len(text) <= max_chars:
        return [text]
    sentences = Sentences(max_chars)
    packed: list[str] = []
    for sentence in filter(speakable, [*sentences.push(text), *sentences.end()]):
        if packed and len(packed[-1]) + 1 + len(sentence) <= max_chars:
            packed[-1] += f" {sentence}"
        else:
            packed.append(sentence)
    return packed


async def read_aloud(engine: Engine, requests: Iterable[Request]) -> AsyncGenerator[PCM]:
    """The PCM of these utterances, each as one that follows the one before it. To be closed by its caller: what is
    still in the engine then is cancelled. Raises ReadingFailed."""
    waiting = deque(requests)
    ahead: deque[Part] = deque()
    follows: int | None = None
    try:
        while waiting or ahead:
            while waiting and len(ahead) < LOOKAHEAD:
                ahead.append(submitted(engine, replace(waiting.popleft(), follows=follows)))
                follows = ahead[-1].request_id
            output = await ahead[0].outputs.get()
            if isinstance(output, Chunk):
                yield output.pcm
            elif isinstance(output, Finished | Failed):
                ahead.popleft()
                settle(output)
    finally:
        for part in ahead:
            engine.cancel(part.request_id)


def submitted(engine: Engine, request: Request) -> Part:
    """The request, in the engine; its outputs come to the running event loop."""
    part, loop = Part(), asyncio.get_running_loop()

    def deliver(output: Output) -> None:
        """Called on the engine's reader thread."""
        try:
            loop.call_soon_threadsafe(part.outputs.put_nowait, output)
        except RuntimeError:
            log.debug("the event loop is closed, an output is dropped")

    part.request_id = engine.submit(request, deliver)
    return part


def settle(end: Finished | Failed) -> None:
    """The last word on an utterance. Raises ReadingFailed."""
    if isinstance(end, Failed):
        raise ReadingFailed(end)
    if end.reason is not FinishReason.END:
        log.warning("an utterance of a text that is read ends before its own end: %s", end.reason)
