"""The engine's own process: loads a voice, then runs the central loop between two ends of a pipe.

It does not know who sits at the other end. It is the one place where loop and executor meet.
"""

from __future__ import annotations

import gc
import logging
import pickle
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from multiprocessing.connection import Connection

from engine import device as devices
from engine import models, profiles
from engine.calibrate import HASTY_BATCHES, WARM_BATCHES, warm_up
from engine.capturing import summary, watched
from engine.checks import RequestError, shown
from engine.clock import Clock, MonotonicClock
from engine.core import (
    Cancel,
    Encode,
    End,
    ErrorCode,
    ModelSpec,
    Output,
    Playhead,
    Prompt,
    Refused,
    Request,
    Submit,
)
from engine.executor import load
from engine.loop import run
from engine.messages import (
    Close,
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
    ToWorker,
)
from engine.normalise import normalise
from engine.open_requests import OpenRequests
from engine.policies import make
from engine.policy import Policy, UsePolicy
from engine.predictor import Predictor
from engine.profile import Profile
from engine.recorder import Recorder
from engine.scheduler import Applied, Scheduler
from engine.shapes import Shape

log = logging.getLogger(__name__)

LONGEST_WAIT = 3600.0
"""Seconds after which the loop looks again, whatever a listener's clock says: what waits has no longer timeouts."""


class Inbox:
    """Events from another thread, for the loop to drain and to wait on. `idle` is called when the loop has to wait."""

    def __init__(self, clock: Clock, idle: Callable[[], None]) -> None:
        self._clock, self._idle = clock, idle
        self._events: deque[Applied] = deque()
        self._changed = threading.Condition()
        self._closed = False

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, event: Applied) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def drain(self) -> list[Applied]:
        with self._changed:
            events = list(self._events)
            self._events.clear()
        return events

    def wait(self, until: float | None) -> None:
        """Returns when an event is there, the inbox is closed, or the clock reaches `until`."""
        self._idle()
        with self._changed:
            timeout = None if until is None else min(max(0.0, until - self._clock.now()), LONGEST_WAIT)
            self._changed.wait_for(lambda: bool(self._events) or self._closed, timeout)


class Outbox:
    """The loop's way out: outputs as they come, the metrics with them every so often and when there is nothing to do,
    and before the metrics the steps that a recorder kept.

    Only the loop's thread writes into the pipe, so that the inbox is read even while nobody reads the outputs.
    """

    def __init__(
        self,
        connection: Connection,
        snapshot: Callable[[], dict[str, float]],
        clock: Clock,
        recorder: Recorder | None = None,
        tell_seconds: float = 1.0,
    ) -> None:
        self._tell_seconds = tell_seconds
        self._connection, self._snapshot, self._clock, self._recorder = connection, snapshot, clock, recorder
        self._told_at = float("-inf")
        self._told: dict[str, float] = {}

    def deliver(self, output: Output) -> None:
        """An output to its caller."""
        self.send(output)
        if self._clock.now() - self._told_at >= self._tell_seconds:
            self.tell()

    def idle(self) -> None:
        """There is nothing to do."""
        self.tell()
        if self._recorder:
            self._recorder.idle()

    def tell(self) -> None:
        """The metrics, if they have changed since they were last told."""
        if self._recorder and (ran := self._recorder.taken()):
            self.send(Recorded(ran))
        values = self._snapshot()
        if values != self._told:
            self._told, self._told_at = values, self._clock.now()
            self.send(Snapshot(values))

    def send(self, message: FromWorker) -> None:
        """A reader that has gone is no error: the pipe's other direction says so and ends the loop."""
        try:
            self._connection.send(message)
        except OSError as error:
            log.debug("nobody reads the engine's output: %s", error)


def run_worker(connection: Connection, config: RuntimeConfig) -> None:
    """The life of an engine: load, say Ready, serve until Close or until the other end is gone."""
    with connection:
        clock = MonotonicClock()
        marks = [clock.now()]

        def capturing(shapes: Sequence[Shape]) -> Iterable[Shape]:
            marks.append(clock.now())
            return watched(shapes)

        try:
            model, executor, limits = load(config, capturing)
            marks.append(clock.now())
            if executor.memory:
                tell(summary(executor.memory))
            predictor = Predictor(prior(config, model))
            hasty = devices.captures(model.device) and not config.graphs
            warm_up(model, executor, limits, clock, predictor, HASTY_BATCHES if hasty else WARM_BATCHES)
            marks.append(clock.now())
        except (ValueError, OSError, RuntimeError) as error:  # RuntimeError: the device's memory is too small
            connection.send(StartFailed(str(error)))
            return
        max_queued = limits.max_queued if config.max_queued is None else config.max_queued
        limits = replace(limits, max_wait=config.max_wait, max_queued=max_queued)
        spec = replace(model.spec, normalise=language(config, model.spec))
        policy = make(config.policy, predictor, limits)
        scheduler = Scheduler(model.spec, limits, predictor, policy, tell if config.explain else None)
        recorder = Recorder(executor.run, clock) if config.record else None
        outbox = Outbox(
            connection,
            lambda: scheduler.snapshot(clock.now()) | executor.snapshot(),
            clock,
            recorder,
            config.tell_seconds,
        )
        inbox = Inbox(clock, idle=outbox.idle)
        gc.collect()
        gc.freeze()
        outbox.send(Ready(spec, limits, devices.name(model.device), start_up(marks, executor.memory)))
        policies = partial(make, predictor=predictor, limits=limits)
        texts = OpenRequests(inbox.put, clock)
        reader = threading.Thread(
            target=read,
            args=(connection, model, inbox, policies, spec.normalise, texts),
            name="engine-inbox",
            daemon=True,
        )
        reader.start()

        def deliver(output: Output) -> None:
            if isinstance(output, End):
                texts.drop(output.request_id)
            outbox.deliver(output)

        run(inbox, scheduler, recorder or executor, predictor, clock, deliver)


def start_up(marks: Sequence[float], memory: Mapping[Shape, int]) -> StartUp:
    """From the instants at which the start, the capture of graphs, and the warm-up began, and at which that ended."""
    weights, graphs, warm = (after - before for before, after in pairwise(marks))
    return StartUp(weights, graphs, warm, len(memory), sum(memory.values()))


def prior(config: RuntimeConfig, model: models.Model) -> Profile | None:
    """What the Predictor knows before the first step. Raises OSError and ValueError."""
    if config.profile is not None:
        return profiles.read(config.profile)
    return profiles.own(model.spec.name, devices.name(model.device))


def tell(line: str) -> None:
    """A line to whoever started the engine."""
    print(line, file=sys.stderr, flush=True)


def read(
    connection: Connection,
    model: models.Model,
    inbox: Inbox,
    policies: Callable[[str], Policy],
    language: str,
    texts: OpenRequests,
) -> None:
    """Turns what comes through the pipe into events; tokenising happens here, beside the loop."""
    try:
        while True:
            while not connection.poll(texts.patience):
                texts.expire()
            if isinstance(message := received(connection), Close):
                break
            match message:
                case Numbered():
                    inbox.put(admitted(message, model, language, texts))
                case TextPiece():
                    texts.take(message)
                case SetPolicy():
                    inbox.put(UsePolicy(policies(message.name)))
                case Cancel() | Playhead() | Encode():
                    inbox.put(message)
    except (EOFError, OSError):
        log.debug("the engine's owner is gone")
    finally:
        inbox.close()


def received(connection: Connection) -> ToWorker | None:
    """The next message; None is one that cannot be read, or is no message: that is its sender's failure, not
    everybody's. Raises EOFError and OSError when the other end is gone."""
    data = connection.recv_bytes()
    try:
        message = pickle.loads(data)
    except Exception:  # whatever a caller's own type raises
        log.exception("a message cannot be read, and is left out")
        return None
    if isinstance(message, ToWorker):
        return message
    log.error(
        "expected a request, a piece of text, Encode, Cancel, Playhead, SetPolicy or Close, got %s; it is left out",
        shown(message),
    )
    return None


def written_out(request: Request, language: str) -> Request:
    """The request with its text as it is said, in a language; what has nothing to say is the model's to refuse."""
    said = normalise(request.text, language) if language else request.text
    return replace(request, text=said or request.text)


def language(config: RuntimeConfig, spec: ModelSpec) -> str:
    """In which texts are written out as words; empty: in none."""
    if config.normalise is None:
        return spec.normalise
    return (spec.normalise or "en") if config.normalise else ""


def prompt_of(numbered: Numbered, model: models.Model, language: str, texts: OpenRequests) -> Prompt:
    """What the backbone shall receive, with the text written out in the language, if any. A text that is open is read
    as it is written, since nobody knows how a number in it will go on. Raises RequestError."""
    request = numbered.request
    if not request.open:
        return model.prompt(written_out(request, language))
    reading = model.reading(request)
    texts.open(numbered.request_id, numbered.epoch, reading)
    return reading.prompt


def admitted(numbered: Numbered, model: models.Model, language: str, texts: OpenRequests) -> Submit | Refused:
    """The request, tokenised; or why it cannot be."""
    request_id, epoch = numbered.request_id, numbered.epoch
    try:
        request = numbered.request
        prompt = prompt_of(numbered, model, language, texts)
        return Submit(request_id, prompt, request.sampling, epoch, request.follows, numbered.submitted_at)
    except RequestError as error:
        return Refused(request_id, epoch, ErrorCode.BAD_REQUEST, str(error), error.field)
    except Exception as error:  # whatever else a caller hands in is that one's failure, not everybody's
        log.exception("request %d cannot be tokenised", request_id)
        problem = (
            f"expected a request of text and plain settings, got one that fails with {type(error).__name__}: {error}"
        )
        return Refused(request_id, epoch, ErrorCode.BAD_REQUEST, problem)
