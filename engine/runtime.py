"""The engine as everybody else uses it: submit, cancel, playhead, in a process that is started again when it dies.

It does not know WebRTC, asyncio, or what the audio is for.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from queue import SimpleQueue

from engine.checks import RequestError, check, check_id
from engine.clock import Clock, MonotonicClock
from engine.cloning import Attempt, Cloning
from engine.core import (
    Cancel,
    Chunk,
    Encode,
    End,
    ErrorCode,
    Failed,
    Limits,
    ModelSpec,
    Output,
    Playhead,
    Reference,
    Request,
    Samples,
)
from engine.link import EngineError, Link
from engine.messages import (
    PATIENCE,
    FromWorker,
    Numbered,
    Ready,
    Recorded,
    RuntimeConfig,
    SetPolicy,
    Snapshot,
    StartFailed,
    StartUp,
    TextPiece,
    packed,
)
from engine.playback import AHEAD
from engine.policies import NAMES
from engine.recorder import Ran

__all__ = ["EngineError", "Runtime", "RuntimeConfig"]

log = logging.getLogger(__name__)

Deliver = Callable[[Output], None]
Refusal = tuple[ErrorCode, str, float | None]
"""Why, and after how many seconds it may be worth another try."""

MAX_DEATHS = 3
"""Deaths in a row after which the engine stays down."""
STEADY_SECONDS = 60.0
"""An engine that lived this long, or served a request, does not die in a row."""
RESTART_SECONDS = 5.0
"""What a caller is told to wait while the engine starts again."""
BACKOFF_SECONDS = 0.5
"""Between the second death in a row and the next start; twice as long after each further one."""


@dataclass(slots=True)
class OpenRequest:
    """A request without its last word."""

    deliver: Deliver
    epoch: int
    chars_left: int | None = None
    """That its text may still grow by; None: it is complete."""
    heard_at: float = 0.0
    """When something came of its text last."""

    def late(self, now: float) -> bool:
        """Whether the engine takes its text to be complete by now, though its caller has not ended it."""
        return self.chars_left is not None and now - self.heard_at >= PATIENCE


class Runtime:
    """A running engine. Its methods may be called from any thread and never wait for the engine, except `close`.

    Raises EngineError when the voice cannot be loaded.
    """

    def __init__(self, config: RuntimeConfig) -> None:
        self.config = config
        self._clock: Clock = MonotonicClock()
        self._ids = itertools.count(1)
        self._open: dict[int, OpenRequest] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._refusal: Refusal | None = None
        """Why no request is taken now, and when one may be again."""
        self._deaths = self._restarts = 0
        self._metrics: Mapping[str, float] = {}
        self._ran: list[Ran] = []
        self._followed: Callable[[Sequence[Ran]], None] | None = None
        self._cloning = Cloning(self)
        self._link = Link(config)
        ready = self._link.ready()
        self._started_at = self._clock.now()
        self.spec: ModelSpec = ready.spec
        self.limits: Limits = ready.limits
        self.device: str = ready.device
        self.start_up: StartUp = ready.start_up
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)
        self._reader.start()

    @classmethod
    def start(cls, config: RuntimeConfig | None = None) -> Runtime:
        """Loads the voice and returns when it can speak."""
        return cls(config or RuntimeConfig())

    def submit(self, request: Request, deliver: Deliver) -> int:
        """Enters a request and returns its id. The last output of every request is Finished or Failed.

        `deliver` is called on the runtime's reader thread; a refusal while no engine runs, or of a request that cannot
        be sent to it, before this returns. Raises RequestError for what is no Request.
        """
        submitted_at = self._clock.now()
        check(isinstance(request, Request), "a request", "a Request", request)
        request_id = next(self._ids)
        refusal = self._enter(request_id, request, submitted_at, deliver)
        if refusal is not None:
            deliver(Failed(request_id, request.epoch, *refusal))
        return request_id

    def _enter(self, request_id: int, request: Request, submitted_at: float, deliver: Deliver) -> Refusal | None:
        """Sends it to the engine, or says why not."""
        try:
            numbered = Numbered(request_id, int(request.epoch), packed(request), submitted_at)
        except RequestError as error:
            return ErrorCode.BAD_REQUEST, str(error), None
        left = self.spec.max_text_chars - len(request.text) if request.open else None
        return self._send(numbered, OpenRequest(deliver, request.epoch, left, submitted_at))

    def _send(self, message: Numbered | Encode, request: OpenRequest) -> Refusal | None:
        """Unless no request is taken now."""
        with self._changed:
            if self._refusal is None:
                self._link.send(message)
                self._open[message.request_id] = request
            return self._refusal

    def encode(self, samples: Samples, deliver: Deliver) -> int:
        """Enters a recording, mono at the voice's sample rate, and returns its id; Encoded and Finished follow, or
        Failed. `deliver` as in `submit`. Raises RequestError for what is no recording."""
        submitted_at, request_id = self._clock.now(), next(self._ids)
        refusal = self._send(Encode(request_id, samples, submitted_at), OpenRequest(deliver, epoch=0))
        if refusal is not None:
            deliver(Failed(request_id, 0, *refusal))
        return request_id

    def clone(self, data: bytes, text: str, attempt: Attempt | None = None) -> Reference:
        """The voice in a file's bytes, in which `text` is said; the same file is known again. Blocks, until it is given
        up. Raises what engine.cloning says."""
        return self._cloning.reference(data, text, attempt)

    def append_text(self, request_id: int, text: str) -> None:
        """More of the text of a request that was submitted open. Pieces may be cut anywhere. Raises RequestError for a
        request that takes no more text, because it was whole, is complete, is over, or has had none for 30 s, for what
        would make it too long, and for what is no id or no text; the request goes on without that."""
        self._append(request_id, text, done=False)

    def end_text(self, request_id: int, text: str = "") -> None:
        """The same for the last piece: the text is complete. An end without text of a request that is over, or
        that nobody has gone on with for 30 s, does nothing: by then it is taken to be complete."""
        self._append(request_id, text, done=True)

    def _append(self, request_id: int, text: str, done: bool) -> None:
        check_id("request_id", request_id)
        check(isinstance(text, str), "text", "text", text)
        now = self._clock.now()
        with self._changed:
            request = self._open.get(request_id)
            late = request is not None and request.late(now)
            if (request is None or late) and done and not text:
                return
            left = None if request is None or late else request.chars_left
            if request is None or left is None:
                why = "it is over, or was never submitted" if request is None else "its text is complete"
                why += f", since nothing came for {PATIENCE:g} s" if late else ""
                raise RequestError(f"request {request_id} takes no more text: {why}; submit another one", "request_id")
            if len(text) > left:
                most = self.spec.max_text_chars
                raise RequestError(
                    f"text must have at most {most} characters, got {most - left + len(text)} by now; submit another "
                    "request for the rest",
                    "text",
                )
            request.chars_left, request.heard_at = None if done else left - len(text), now
            self._link.send(TextPiece(request_id, text, done, now))

    def cancel(self, request_id: int) -> None:
        """Marks the request as unwanted: Finished(CANCELLED) follows unless it was already made whole, and then nobody
        listens to it any more. Raises RequestError for what is no id."""
        event = Cancel(request_id)
        with self._changed:
            self._link.send(event)

    def playhead(self, event: Playhead) -> None:
        """Tells the scheduler where the listener's playback clock stands, also in a request that was made whole: what
        follows it is due when that has been played. Raises RequestError for what is no Playhead, or at an instant to
        which the engine's clock has not come."""
        check(isinstance(event, Playhead), "a playhead", "a Playhead", event)
        now = self._clock.now()
        check(0 <= event.at <= now + AHEAD, "at", f"an instant of the engine's clock, at {now:.3f} now", event.at)
        with self._changed:
            self._link.send(event)

    def stream(self, request: Request) -> Generator[Chunk | End, None, None]:
        """Submits and yields the chunks and the end as they come. A caller that stops early cancels the request."""
        outputs: SimpleQueue[Output] = SimpleQueue()
        request_id, output = self.submit(request, outputs.put), None
        try:
            while not isinstance(output := outputs.get(), End):
                if isinstance(output, Chunk):
                    yield output
            yield output
        finally:
            if not isinstance(output, End):
                self.cancel(request_id)

    def ran(self) -> list[Ran]:
        """The steps that ran since this was last asked, as far as the engine has told; config.record keeps them."""
        with self._changed:
            ran, self._ran = self._ran, []
        return ran

    def follow(self, take: Callable[[Sequence[Ran]], None] | None) -> None:
        """From now on the steps go to `take`, on the reader thread, or with None are kept for `ran`; where
        config.record."""
        with self._changed:
            self._followed = take

    def use_policy(self, name: str) -> None:
        """Has another policy decide from now on, for those too who are being served: for demonstrations.

        An engine that is started again has it, too. Raises RequestError for a name that is not in
        engine.policies.NAMES."""
        check(name in NAMES, "a policy", f"one of {', '.join(NAMES)}", name)
        with self._changed:
            self.config = replace(self.config, policy=name)
            self._link.send(SetPolicy(name))

    def snapshot(self) -> Mapping[str, float]:
        """The engine's metrics as it last told them, and how the process itself is doing."""
        with self._changed:
            return {
                **self._metrics,
                **self._cloning.snapshot(),
                "engine_up": float(self._refusal is None),
                "engine_restarts": float(self._restarts),
                "open_requests": float(len(self._open)),
            }

    def close(self, grace: float = 0.0) -> None:
        """Takes no new request, waits up to `grace` seconds for the running ones, then ends the engine."""
        with self._changed:
            self._closing = True
            self._refusal = (ErrorCode.CLOSED, "the engine is closing and takes no new request", None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._open, timeout=grace)
            link = self._link
        link.end()
        self._reader.join()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- the reader thread ----

    def _read(self) -> None:
        """Outputs to their callers; when the pipe ends, the next engine."""
        while True:
            try:
                message = self._link.receive()
            except EOFError:
                if not self._recover():
                    return
                continue
            self._take(message)

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Snapshot):
            with self._changed:
                self._metrics = message.values
            return
        if isinstance(message, Recorded):
            self._take_record(message.ran)
            return
        assert not isinstance(message, Ready | StartFailed), f"a running engine does not start: {message}"
        with self._changed:
            over = isinstance(message, End)
            request = self._open.pop(message.request_id, None) if over else self._open.get(message.request_id)
            if over:
                self._deaths = 0
                self._changed.notify_all()
        if request is not None and not handed_over(request, message):
            self.cancel(message.request_id)

    def _take_record(self, ran: Sequence[Ran]) -> None:
        with self._changed:
            followed = self._followed
            if followed is None:
                self._ran += ran
        if followed is not None:
            try:
                followed(ran)
            except Exception:
                log.exception("who follows the engine's steps failed")

    def _recover(self) -> bool:
        """Tells every open request, then starts the engine again. False when it is to stay down."""
        with self._changed:
            closing, orphans = self._closing, dict(self._open)
            if not closing:
                message = "the engine is starting again; try once more in a few seconds"
                self._refusal = (ErrorCode.BUSY, message, RESTART_SECONDS)
            self._open.clear()
            self._metrics = {}
            self._changed.notify_all()
        self._link.release()
        code = ErrorCode.CLOSED if closing else ErrorCode.ENGINE_DIED
        for request_id, request in orphans.items():
            text = "the engine ended while this was being spoken"
            handed_over(request, Failed(request_id, request.epoch, code, text))
        return not closing and self._restart()

    def _restart(self) -> bool:
        if self._clock.now() - self._started_at > STEADY_SECONDS:
            self._deaths = 0
        self._deaths += 1
        log.warning("the engine died (%d in a row); starting it again", self._deaths)
        if self._deaths > MAX_DEATHS:
            return self._stay_down(f"the engine died {self._deaths} times in a row")
        with self._changed:
            pause = BACKOFF_SECONDS * 2 ** (self._deaths - 2) if self._deaths > 1 else 0.0
            if self._changed.wait_for(lambda: self._closing, timeout=pause):
                return False
            link = self._link = Link(self.config)
        try:
            link.ready()
        except EngineError as error:
            return False if self._closing else self._stay_down(f"the engine does not start again: {error}")
        with self._changed:
            self._started_at = self._clock.now()
            self._restarts += 1
            if not self._closing:
                self._refusal = None
        return True

    def _stay_down(self, why: str) -> bool:
        log.error("%s; it stays down", why)
        with self._changed:
            if not self._closing:
                message = f"{why} and stays down; its log says why, restart this program"
                self._refusal = (ErrorCode.ENGINE_DIED, message, None)
        return False


def handed_over(request: OpenRequest, output: Output) -> bool:
    """Calls the caller's deliver. One that raises harms nobody else: it is logged, and False."""
    try:
        request.deliver(output)
    except Exception:
        log.exception("a caller could not take its output")
        return False
    return True
