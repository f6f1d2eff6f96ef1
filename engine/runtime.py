"""The engine as everybody else uses it: submit, cancel, playhead, in a process that is started again when it dies.

It does not know WebRTC, asyncio, or what the audio is for.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue

from engine.core import (
    Cancel,
    Chunk,
    ErrorCode,
    Failed,
    Limits,
    ModelSpec,
    Output,
    Playhead,
    Request,
)
from engine.messages import (
    Close,
    FromWorker,
    Numbered,
    Ready,
    RuntimeConfig,
    Snapshot,
    StartFailed,
    ToWorker,
)

log = logging.getLogger(__name__)

Deliver = Callable[[Output], None]

MAX_DEATHS = 3
"""Deaths in a row, no request served in between, after which the engine stays down."""
RESTART_SECONDS = 5.0
"""What a caller is told to wait while the engine starts again."""


class EngineError(RuntimeError):
    """The engine could not be started; the text says why."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request without its last word."""

    deliver: Deliver
    epoch: int


class Runtime:
    """A running engine. Its methods may be called from any thread; `deliver` is called on the reader thread.

    Raises EngineError when the voice cannot be loaded.
    """

    def __init__(self, config: RuntimeConfig) -> None:
        self.config = config
        self._ids = itertools.count(1)
        self._open: dict[int, OpenRequest] = {}
        self._changed = threading.Condition()
        self._closing = False
        self._up = True
        self._deaths = self._restarts = 0
        self._metrics: Mapping[str, float] = {}
        self._connection, ready = spawn(config)
        self.spec: ModelSpec = ready.spec
        self.limits: Limits = ready.limits
        self.device: str = ready.device
        self._reader = threading.Thread(target=self._read, name="engine-reader", daemon=True)
        self._reader.start()

    @classmethod
    def start(cls, config: RuntimeConfig | None = None) -> Runtime:
        """Loads the voice and returns when it can speak."""
        return cls(config or RuntimeConfig())

    def submit(self, request: Request, deliver: Deliver) -> int:
        """Enters a request and returns its id. The last output of every request is Finished or Failed."""
        request_id = next(self._ids)
        with self._changed:
            refusal = self._refusal(request_id, request.epoch)
            if refusal is None:
                self._open[request_id] = OpenRequest(deliver, request.epoch)
                self._send(Numbered(request_id, request))
        if refusal is not None:
            deliver(refusal)
        return request_id

    def cancel(self, request_id: int) -> None:
        """Marks the request as unwanted. Finished(CANCELLED) follows unless it was already over."""
        with self._changed:
            if request_id in self._open:
                self._send(Cancel(request_id))

    def playhead(self, event: Playhead) -> None:
        """Tells the scheduler where the listener's playback clock stands."""
        with self._changed:
            self._send(event)

    def stream(self, request: Request) -> Generator[Output, None, None]:
        """Submits and yields the outputs as they come. A caller that stops early cancels the request."""
        outputs: SimpleQueue[Output] = SimpleQueue()
        request_id = self.submit(request, outputs.put)
        try:
            while isinstance(output := outputs.get(), Chunk):
                yield output
            yield output
        finally:
            self.cancel(request_id)

    def snapshot(self) -> Mapping[str, float]:
        """The engine's metrics as it last told them, and how the process itself is doing."""
        with self._changed:
            return {
                **self._metrics,
                "engine_up": float(self._up),
                "engine_restarts": float(self._restarts),
                "open_requests": float(len(self._open)),
            }

    def close(self, grace: float = 0.0) -> None:
        """Takes no new request, waits up to `grace` seconds for the running ones, then ends the engine."""
        with self._changed:
            self._closing = True
            self._changed.wait_for(lambda: not self._open, timeout=grace)
            self._send(Close())
        self._reader.join()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refusal(self, request_id: int, epoch: int) -> Failed | None:
        if self._closing:
            return Failed(request_id, epoch, ErrorCode.CLOSED, "the engine is closing and takes no new request")
        if not self._up:
            message = "the engine is starting again; try once more in a few seconds"
            return Failed(request_id, epoch, ErrorCode.BUSY, message, retry_after=RESTART_SECONDS)
        return None

    def _send(self, message: ToWorker) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            log.debug("the engine is gone, its reader will say so: %s", error)

    def _read(self) -> None:
        """The reader thread: outputs to their callers; when the pipe ends, the next engine."""
        while True:
            try:
                self._take(self._connection.recv())
            except (EOFError, OSError):
                if not self._recover():
                    return

    def _take(self, message: FromWorker) -> None:
        if isinstance(message, Snapshot):
            self._metrics = message.values
            return
        assert not isinstance(message, Ready | StartFailed), f"a running engine does not start: {message}"
        with self._changed:
            over = not isinstance(message, Chunk)
            request = self._open.pop(message.request_id, None) if over else self._open.get(message.request_id)
            if over:
                self._deaths = 0
                self._changed.notify_all()
        if request is not None:
            request.deliver(message)

    def _recover(self) -> bool:
        """Tells every open request, then starts the engine again. False when it is to stay down."""
        with self._changed:
            self._up = False
            closing, orphans = self._closing, dict(self._open)
            self._open.clear()
            self._changed.notify_all()
        self._connection.close()
        code = ErrorCode.CLOSED if closing else ErrorCode.ENGINE_DIED
        for request_id, request in orphans.items():
            request.deliver(Failed(request_id, request.epoch, code, "the engine ended while this was being spoken"))
        return not closing and self._restart()

    def _restart(self) -> bool:
        self._deaths += 1
        if self._deaths > MAX_DEATHS:
            log.error("the engine died %d times in a row and stays down", self._deaths)
            return False
        log.warning("the engine died; starting it again")
        try:
            connection, _ = spawn(self.config)
        except EngineError as error:
            log.error("the engine does not start again: %s", error)
            return False
        with self._changed:
            self._connection, self._up = connection, True
            self._restarts += 1
            if self._closing:
                self._send(Close())
        return True


def work(connection: Connection, config: RuntimeConfig) -> None:
    """The engine's side. PyTorch is imported here, so that the process of the caller stays without it."""
    from engine.worker import run_worker

    if not config.in_process:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the group; the owner decides when this ends
    run_worker(connection, config)


def spawn(config: RuntimeConfig) -> tuple[Connection, Ready]:
    """Starts an engine and waits until it can speak. Raises EngineError."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    if config.in_process:
        threading.Thread(target=work, args=(theirs, config), name="engine", daemon=True).start()
    else:
        context.Process(target=work, args=(theirs, config), name="breezert-engine", daemon=True).start()
        theirs.close()  # so that the pipe ends when the process does
    try:
        message = ours.recv()
    except EOFError:
        message = StartFailed("the engine's process ended while it loaded the voice; its own output says why")
    if isinstance(message, Ready):
        return ours, message
    ours.close()
    raise EngineError(message.message)
