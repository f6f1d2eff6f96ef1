"""POST /v1/audio/speech: a text in, its speech out over HTTP while it is being made, in the shape of OpenAI's API.

    POST    /v1/audio/speech  {input, ...} -> 200 and a chunked body,        token
                              or 503 and Retry-After while busy
    OPTIONS /v1/audio/speech  for pages of other origins                     open

It does not know WebRTC: no playback clock says how far the listener is, so speech is due as if it were played without
a pause from its first sample on. The first bytes leave with the first chunk of PCM. What fails before them is an error
object; what fails later ends the body without its last chunk, by which a client knows that it is not whole (RFC 9112,
section 8). Who hangs up is cancelled in the engine.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from math import ceil
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from aiohttp import web
from msgspec import Meta

from agent.asking import sampling_of
from agent.calls import Calls
from agent.container import CONTAINERS, Container
from agent.guard import AddRoute, Guard, Refusal, read_body
from agent.manner import FIRST_SPEAKER
from agent.protocol import MAX_REASON_CHARS
from agent.reading import ReadingFailed, pieces, read_aloud
from agent.sentences import MAX_CHARS, speakable
from agent.session import FAILED, Engine
from agent.voices import Voices, found
from engine.checks import RequestError
from engine.clock import Clock, MonotonicClock
from engine.core import PCM, ErrorCode, FinishReason, Mode, ModelSpec, Request

log = logging.getLogger(__name__)

T = TypeVar("T")

PATH = "v1/audio/speech"
MAX_INPUT_CHARS = 4096
"""As OpenAI's own: some five minutes of speech."""
MAX_SPEECHES = 16
"""At once. Each takes at most what agent/reading.py says, and 64 KiB twice in aiohttp and asyncio."""
STALLED_SECONDS = 30.0
"""After which a client that takes nothing is gone, and with it its place."""
LOOK_SECONDS = 0.05
"""Between two looks at whether the client is still there: aiohttp tells a handler only once it writes."""
DRAINING_SECONDS = 10.0
CROWDED_SECONDS = 2.0
OWN = ("", "default")
"""Names of the voice's first speaker, beside its tag and the voice's own name."""

PARAMS = {
    "text": "input",
    "speaker": "voice",
    "instruction": "instructions",
    "reference": "voice",
    "reference text": "voice",
}
"""What the engine calls a field, and what a client calls it."""


class Order(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a client asks for: OpenAI's fields, and four of this engine's."""

    input: str
    model: Annotated[str, Meta(pattern=r"\A[ -~]{0,200}\Z")] = ""
    """Any: there is one. It comes back in the OpenAI-Model header."""
    voice: str = ""
    """Who speaks: a speaker's tag such as S1; the id of a voice that was made, or the name of one that the server has,
    to speak like; the engine's own name, `default` or nothing for its first one."""
    response_format: str = "wav"
    speed: float = 1.0
    stream_format: str = "audio"
    instructions: str = ""
    language: str = ""
    cfg_scale: float | None = None
    seed: int | None = None
    temperature: float | None = None


class Fault(Refusal):
    """A refusal that reads like OpenAI's: `param` names the field. retry_after in seconds."""

    def __init__(
        self, status: int, code: str, message: str, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(status, code, message[:MAX_REASON_CHARS])
        self.param = param
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, ceil(retry_after)))  # whole ones: RFC 9110, section 10.2.3

    def response(self) -> web.Response:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return web.json_response({"error": error}, status=self.status, headers=self.headers)


def add_routes(add: AddRoute, guard: Guard, calls: Calls, engine: Engine, max_speeches: int = MAX_SPEECHES) -> None:
    """Enters the routes; `calls` says whether the server is about to end, and counts."""
    routes = SpeechRoutes(guard, calls, engine, max_speeches)
    add("POST", PATH, routes.speak, needs_token=True)
    add("OPTIONS", PATH, guard.preflight)


class SpeechRoutes:
    """What the route answers."""

    def __init__(
        self, guard: Guard, calls: Calls, engine: Engine, max_speeches: int = MAX_SPEECHES, clock: Clock | None = None
    ) -> None:
        self._guard, self._calls, self._engine, self._max_speeches = guard, calls, engine, max_speeches
        self._clock = clock or MonotonicClock()

    @property
    def speaking(self) -> int:
        """How many are being served."""
        return len(self._calls.speeches)

    async def speak(self, request: web.Request) -> web.StreamResponse:
        """One speech, from its order to its last byte. Raises Fault."""
        order = ordered(await self._body(request))
        requests = to_requests(order, self._engine.spec, self._calls.voices)
        self._check_room()
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        self._calls.speeches.add(task)
        try:
            return await while_connected(request, self._speak(request, order, requests))
        except ConnectionError:
            log.debug("the client of a speech is gone")
            return web.Response()  # which nobody gets
        finally:
            self._calls.speeches.discard(task)

    async def _body(self, request: web.Request) -> bytes:
        try:
            return await read_body(request)
        except Refusal as error:
            raise Fault(error.status, error.code, str(error)) from error

    def _check_room(self) -> None:
        if self._calls.draining:
            raise Fault(503, "busy", "the server is about to end: ask again later", retry_after=DRAINING_SECONDS)
        if self.speaking >= self._max_speeches:
            message = f"{self._max_speeches} texts are being read already: ask again later"
            raise Fault(503, "busy", message, retry_after=CROWDED_SECONDS)

    async def _speak(self, request: web.Request, order: Order, requests: list[Request]) -> web.StreamResponse:
        asked_at, utterances = self._clock.now(), self._calls.metrics.utterances
        reason: str = FinishReason.CANCELLED
        try:
            async with aclosing(read_aloud(self._engine, requests)) as audio:
                first = await self._first(audio)
                self._calls.metrics.ttfa.observe(self._clock.now() - asked_at)
                response = await self._send(request, order, first, audio)
            reason = FinishReason.END
            return response
        except (Fault, BrokenOff):
            reason = FAILED
            raise
        finally:
            utterances.labels(reason).inc()

    async def _first(self, audio: AsyncGenerator[PCM]) -> PCM:
        """The first PCM; none, where the voice has nothing to say. Raises Fault."""
        try:
            return await anext(audio, np.zeros(0, np.int16))
        except ReadingFailed as error:
            wrong = error.code in (ErrorCode.BAD_REQUEST, ErrorCode.TOO_LONG)
            param = PARAMS.get(error.field or "", error.field) if wrong else None
            raise Fault(400 if wrong else 503, error.code, str(error), param, error.retry_after) from error

    async def _send(
        self, request: web.Request, order: Order, first: PCM, audio: AsyncGenerator[PCM]
    ) -> web.StreamResponse:
        """Raises BrokenOff, and ConnectionError once the client is gone."""
        spec = self._engine.spec
        container = await asyncio.to_thread(CONTAINERS[order.response_format], spec.sample_rate)  # Opus takes 6 ms
        response = web.StreamResponse()
        response.headers.update(self._guard.headers(request))
        response.headers["Content-Type"] = container.media_type
        response.headers["OpenAI-Model"] = order.model or spec.name
        response.headers["X-Accel-Buffering"] = "no"  # or nginx would keep the first seconds
        await response.prepare(request)
        try:
            await write_all(response, container, first, audio)
        except ConnectionError:
            raise
        except Exception as error:  # to raise anything else would write an answer into the body
            raise broken_off(request, error) from error
        return response


class BrokenOff(ConnectionError):
    """A body that ends before its end."""


async def write_all(response: web.StreamResponse, container: Container, first: PCM, audio: AsyncGenerator[PCM]) -> None:
    """Raises ConnectionError, ReadingFailed, and TimeoutError for a client that takes nothing."""
    await write(response, await asyncio.to_thread(container.push, first))
    async for pcm in audio:
        await write(response, await asyncio.to_thread(container.push, pcm))
    await write(response, await asyncio.to_thread(container.end))


async def write(response: web.StreamResponse, data: bytes) -> None:
    """Returns when there is room for more. Raises as `write_all`."""
    if data:
        async with asyncio.timeout(STALLED_SECONDS):
            await response.write(data)


def broken_off(request: web.Request, error: Exception) -> BrokenOff:
    """Closes the connection behind what was written; one that is stalled would never get there."""
    transport = request.transport
    stalled = isinstance(error, TimeoutError)
    if transport is not None:
        (transport.abort if stalled else transport.close)()
    if stalled:
        log.warning("a speech breaks off: its client took nothing for %g s", STALLED_SECONDS)
    elif isinstance(error, ReadingFailed):
        log.warning("a speech breaks off: %s", error)
    else:
        log.error("a speech breaks off", exc_info=error)
    return BrokenOff("the speech broke off")


async def while_connected(request: web.Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns or raises. It is cancelled once nobody is left to get it: ConnectionResetError."""
    working, watching = asyncio.create_task(work), asyncio.create_task(disconnected(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ConnectionResetError("the client is gone")
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def disconnected(request: web.Request) -> None:
    """Returns once the client is."""
    while (transport := request.transport) is not None and not transport.is_closing():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(LOOK_SECONDS)


# ---- what is asked for ----------------------------------------------------------------------------------------

_decoder = msgspec.json.Decoder(Order)


def ordered(body: bytes) -> Order:
    """The order in a body. Raises Fault that names the field."""
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        field = re.search(r"`\$\.(\w+)|field `(\w+)`", str(error))
        raise Fault(400, "bad_request", str(error), field and (field[1] or field[2])) from error


def to_requests(order: Order, spec: ModelSpec, voices: Voices | None = None) -> list[Request]:
    """The utterances that the order asks for. Raises Fault.

    Longer texts than MAX_CHARS are cut at sentences: the voice's longest text may speak for longer than its max_frames.
    """
    check(order, spec)
    try:
        sampling = sampling_of(spec.sampling, order.seed, order.temperature, order.cfg_scale)
        like = order.voice not in OWN and voices is not None and voices.has(order.voice)
        reference = found(voices, order.voice) if like else None
    except RequestError as error:
        raise Fault(400, "bad_request", str(error), error.field) from error
    first = reference is not None or order.voice in (*OWN, spec.name)
    speaker, how, language = FIRST_SPEAKER if first else order.voice, order.instructions, order.language
    texts = pieces(order.input, min(MAX_CHARS, spec.max_text_chars))
    return [Request(text, sampling, speaker, how, reference, language=language) for text in texts]


def check(order: Order, spec: ModelSpec) -> None:
    """Raises Fault for what can be known to be wrong without the engine."""
    formats = ", ".join(CONTAINERS)
    expect(speakable(order.input), "input", "must hold something to say: send words")
    fits = len(order.input) <= MAX_INPUT_CHARS
    expect(fits, "input", f"has at most {MAX_INPUT_CHARS} characters, got {len(order.input)}: send it in parts")
    expect(order.response_format in CONTAINERS, "response_format", f"must be one of {formats}")
    expect(order.speed == 1.0, "speed", f"must be 1.0, since the voice speaks at its own pace; got {order.speed}")
    expect(order.stream_format == "audio", "stream_format", "must be audio: events are not sent")
    designs = Mode.DESIGN in spec.modes or not order.instructions
    expect(designs, "instructions", f"must be left out: the voice {spec.name} follows none")


def expect(holds: bool, param: str, message: str) -> None:
    if not holds:
        raise Fault(400, "bad_request", f"{param} {message}", param)
