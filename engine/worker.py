"""The engine's own process: loads a voice, then runs the central loop between two ends of a pipe.

It does not know who sits at the other end. It is the one place where loop and executor meet.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections import deque
from multiprocessing.connection import Connection

from engine import device as devices
from engine import models
from engine.calibrate import warm_up
from engine.clock import Clock, MonotonicClock
from engine.core import ErrorCode, Event, Failed, Finished, Output, RequestError, Submit
from engine.executor import load
from engine.loop import run
from engine.messages import Close, FromWorker, Numbered, Ready, RuntimeConfig, Snapshot, StartFailed
from engine.predictor import Predictor
from engine.scheduler import Scheduler

log = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 1.0


class Inbox:
    """Events from other threads, for the loop to drain and to wait on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def drain(self) -> list[Event]:
        with self._changed:
            events = list(self._events)
            self._events.clear()
        return events

    def wait(self, until: float | None) -> None:
        """Returns when an event is there, the inbox is closed, or the clock reaches `until`."""
        with self._changed:
            timeout = None if until is None else max(0.0, until - self._clock.now())
            self._changed.wait_for(lambda: bool(self._events) or self._closed, timeout)


class Outbox:
    """Sends outputs through the pipe, from any thread, and the metrics with them now and then."""

    def __init__(self, connection: Connection, scheduler: Scheduler, clock: Clock) -> None:
        self._connection, self._scheduler, self._clock = connection, scheduler, clock
        self._lock = threading.Lock()
        self._told_at = float("-inf")

    def deliver(self, output: Output) -> None:
        """Called by the loop."""
        self.send(output)
        now = self._clock.now()
        if isinstance(output, Finished | Failed) or now - self._told_at >= SNAPSHOT_SECONDS:
            self._told_at = now
            self.send(Snapshot(self._scheduler.snapshot()))

    def send(self, message: FromWorker) -> None:
        """A reader that has gone is no error: the pipe's other direction says so and ends the loop."""
        with self._lock:
            try:
                self._connection.send(message)
            except OSError as error:
                log.debug("nobody reads the engine's output: %s", error)


def run_worker(connection: Connection, config: RuntimeConfig) -> None:
    """The life of an engine: load, say Ready, serve until Close or until the other end is gone."""
    with connection:
        clock, predictor = MonotonicClock(), Predictor()
        try:
            model, executor, limits = load(config)
            warm_up(model, executor, limits, clock, predictor)
        except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: the device's memory is too small
            connection.send(StartFailed(str(error)))
            return
        scheduler = Scheduler(model.spec, limits, predictor)
        inbox, outbox = Inbox(clock), Outbox(connection, scheduler, clock)
        gc.collect()
        gc.freeze()
        outbox.send(Ready(model.spec, limits, devices.name(model.device)))
        reader = threading.Thread(
            target=read, args=(connection, model, inbox, outbox), name="engine-inbox", daemon=True
        )
        reader.start()
        run(inbox, scheduler, executor, predictor, clock, outbox.deliver)


def read(connection: Connection, model: models.Model, inbox: Inbox, outbox: Outbox) -> None:
    """Turns what comes through the pipe into events; tokenising happens here, beside the loop."""
    try:
        while not isinstance(message := connection.recv(), Close):
            if isinstance(message, Numbered):
                admit(message, model, inbox, outbox)
            else:
                inbox.put(message)
    except (EOFError, OSError):
        log.debug("the engine's owner is gone")
    finally:
        inbox.close()


def admit(numbered: Numbered, model: models.Model, inbox: Inbox, outbox: Outbox) -> None:
    """Tokenises a request; one that the model cannot take fails here and now."""
    request, request_id = numbered.request, numbered.request_id
    try:
        prompt = model.prompt(request)
    except RequestError as error:
        outbox.send(Failed(request_id, request.epoch, ErrorCode.BAD_REQUEST, str(error)))
        return
    inbox.put(Submit(request_id, prompt, request.sampling, request.epoch, request.follows))
