"""A double of the engine's Runtime for the agent's tests: says a tone, chunk by chunk, when and as a test wants it.

It knows no model and no scheduling. By hand: `say`, `finish`, `fail`. By itself: `ScriptedRuntime(pace=...)` speaks
every request on a thread of its own, as the real one delivers on its reader thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.checks import check
from engine.core import (
    Chunk,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    Mode,
    ModelSpec,
    Output,
    Playhead,
    Queued,
    Request,
    RequestStats,
    SamplingParams,
)
from engine.recorder import Ran

SPEC = ModelSpec(
    name="scripted",
    licence="Apache-2.0",
    sample_rate=24_000,
    samples_per_frame=1920,
    num_codebooks=1,
    max_positions=4096,
    modes=frozenset({Mode.PLAIN}),
    sampling=SamplingParams(temperature=0.5, seed=7),
    max_text_chars=200,
)
TONE_HZ = 440.0
STATS = RequestStats(0.0, 0.0, 0.0, 0, 0.0, {})


def tone(first: int, count: int, rate: int = 24_000) -> NDArray[np.int16]:
    """Samples `first` to `first + count` of an endless sine."""
    phase = 2 * np.pi * TONE_HZ * np.arange(first, first + count) / rate
    return (12_000 * np.sin(phase)).astype(np.int16)


@dataclass(slots=True)
class Job:
    """One request, and how far it was said."""

    request_id: int
    request: Request
    deliver: Callable[[Output], None]
    frames: int = 0
    cancelled: threading.Event = field(default_factory=threading.Event)


class ScriptedRuntime:
    """`pace`: seconds of sleep before each chunk of `chunk_frames` frames; a text says one frame a character."""

    def __init__(self, spec: ModelSpec = SPEC, pace: float | None = None, chunk_frames: int = 2) -> None:
        self.spec = spec
        self.device = "nothing"
        self.jobs: dict[int, Job] = {}
        self.cancelled: list[int] = []
        self.playheads: list[Playhead] = []
        self.written: list[tuple[int, str | None]] = []
        """What was appended to which request; None is the end."""
        self.ended = set[int]()
        """Requests that take no more text."""
        self.closed = False
        self.up = True
        self.retry_after = 0.0
        """Above 0 it refuses every request, as an engine that has no room."""
        self._pace, self._chunk_frames = pace, chunk_frames
        self._threads: list[threading.Thread] = []

    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int:
        job = Job(len(self.jobs) + 1, request, deliver)
        self.jobs[job.request_id] = job
        if self.retry_after:
            self.fail(job.request_id, ErrorCode.BUSY, "all voices are busy", self.retry_after)
        elif self._pace is not None:
            thread = threading.Thread(target=self._speak, args=(job, self._pace))
            self._threads.append(thread)
            thread.start()
        return job.request_id

    def append_text(self, request_id: int, text: str) -> None:
        check(request_id not in self.ended, "request_id", "of a request that goes on", request_id)
        self.written.append((request_id, text))

    def end_text(self, request_id: int, text: str = "") -> None:
        self.written.append((request_id, None))

    def cancel(self, request_id: int) -> None:
        self.cancelled.append(request_id)
        self.jobs[request_id].cancelled.set()

    def playhead(self, event: Playhead) -> None:
        self.playheads.append(event)

    def snapshot(self) -> Mapping[str, float]:
        busy = {"retry_after_seconds": self.retry_after} if self.retry_after else {}
        return {"open_requests": float(len(self.jobs)), "engine_up": float(self.up), **busy}

    def close(self, grace: float = 0.0) -> None:
        self.closed = True
        for job in self.jobs.values():
            job.cancelled.set()
        self.join()

    def join(self) -> None:
        """Waits for the threads of requests that are over."""
        while self._threads:
            self._threads.pop().join()

    def __enter__(self) -> ScriptedRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def queue(self, request_id: int, wait: float) -> None:
        job = self.jobs[request_id]
        job.deliver(Queued(request_id, job.request.epoch, wait))

    def say(
        self,
        request_id: int,
        frames: int = 1,
        slack: float = 1.0,
        final: bool = False,
        made_at: float | None = None,
        text_late: bool = False,
    ) -> None:
        """Delivers the next frames of a request."""
        job = self.jobs[request_id]
        size = self.spec.samples_per_frame
        pcm = tone(job.frames * size, frames * size, self.spec.sample_rate)
        codes = np.zeros((frames, 1), np.int16)
        slack = float("inf") if final else slack
        chunk = Chunk(request_id, job.request.epoch, job.frames, pcm, codes, slack, final, made_at, text_late)
        job.frames += frames
        job.deliver(chunk)

    def finish(self, request_id: int, reason: FinishReason = FinishReason.END) -> None:
        job = self.jobs[request_id]
        job.deliver(Finished(request_id, job.request.epoch, reason, STATS))

    def follow(self, take: Callable[[Sequence[Ran]], None] | None) -> None:
        """It has no steps to tell."""

    def fail(
        self,
        request_id: int,
        code: ErrorCode,
        message: str,
        retry_after: float | None = None,
        field: str | None = None,
    ) -> None:
        job = self.jobs[request_id]
        job.deliver(Failed(request_id, job.request.epoch, code, message, retry_after, field))

    def _speak(self, job: Job, pace: float) -> None:
        left = len(job.request.text)
        while left:
            if job.cancelled.wait(pace):
                self.finish(job.request_id, FinishReason.CANCELLED)
                return
            frames = min(left, self._chunk_frames)
            left -= frames
            self.say(job.request_id, frames, final=not left)
        self.finish(job.request_id)
