"""One engine that was started: its process (or thread) and the pipe to it. It does not know what is said through it.

Sending never waits: a thread of its own writes, so that no caller, event loop or lock stands still with a full pipe.
"""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import pickle
import signal
import threading
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue

from engine.messages import Close, FromWorker, Ready, RuntimeConfig, StartFailed, ToWorker

log = logging.getLogger(__name__)

KILL_SECONDS = 2.0
"""What an engine that was asked to end may take, before it is killed."""


class EngineError(RuntimeError):
    """The engine could not be started; the text says why."""


def work(connection: Connection, config: RuntimeConfig) -> None:
    """The engine's side. PyTorch is imported here, so that the process of the caller stays without it."""
    if not config.in_process:
        for number in (signal.SIGINT, signal.SIGTERM):  # these reach whole groups; the owner decides when this ends
            signal.signal(number, signal.SIG_IGN)
    from engine.worker import run_worker

    run_worker(connection, config)


class Link:
    """Starts an engine; `ready` waits until it can speak."""

    def __init__(self, config: RuntimeConfig) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._released = False
        self._engine: BaseProcess | threading.Thread
        if config.in_process:
            self._engine = threading.Thread(target=work, args=(theirs, config), name="engine", daemon=True)
            self._engine.start()
        else:
            self._engine = context.Process(target=work, args=(theirs, config), name="breezert-engine", daemon=True)
            self._engine.start()
            theirs.close()  # so that the pipe ends when the process does
            atexit.register(self.kill)  # before multiprocessing's own, which asks by SIGTERM and waits for ever
        self._writer = threading.Thread(target=self._write, name="engine-writer", daemon=True)
        self._writer.start()

    def ready(self) -> Ready:
        """Waits until the voice is loaded. Raises EngineError."""
        try:
            message = self.receive()
        except EOFError:
            message = StartFailed("the engine's process ended while it loaded the voice; its own output says why")
        if isinstance(message, Ready):
            return message
        self.release()
        assert isinstance(message, StartFailed), f"an engine starts with Ready or StartFailed, got {message}"
        raise EngineError(message.message)

    def send(self, message: ToWorker) -> None:
        """To the engine, in order; after its end, to nobody. What cannot be pickled raises here, for its sender: the
        writer knows bytes only, and goes on whatever anybody says."""
        if not self._released:
            self._outgoing.put(pickle.dumps(message))

    def receive(self) -> FromWorker:
        """The engine's next message. Raises EOFError when it has ended, however it ended."""
        try:
            message: FromWorker = self._connection.recv()
        except OSError as error:  # a connection reset, where the process was killed
            raise EOFError from error
        return message

    def end(self) -> None:
        """Asks the engine to end, and kills a process that does not; `receive` then raises EOFError."""
        self.send(Close())
        self._engine.join(KILL_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Ends the process at once. A thread cannot be ended: it is left behind."""
        if isinstance(self._engine, BaseProcess):
            self._engine.kill()
        elif self._engine.is_alive():
            log.error("the engine's thread does not end")

    def release(self) -> None:
        """Gives back the threads and the pipe of an engine that has ended."""
        self._released = True
        atexit.unregister(self.kill)
        self._outgoing.put(None)
        self._writer.join()
        self._connection.close()
        self._engine.join(KILL_SECONDS)

    def _write(self) -> None:
        while (message := self._outgoing.get()) is not None:
            try:
                self._connection.send_bytes(message)
            except OSError as error:
                log.debug("the engine is gone, its reader will say so: %s", error)
