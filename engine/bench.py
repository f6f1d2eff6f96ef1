"""The command `bench speech`: TTFA, RTF and underruns of the real engine, driven in real time.

It knows no model and no scheduling; the definitions are those of metrics.py.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from statistics import median

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from engine.clock import MonotonicClock
from engine.core import Chunk, End, Failed, Output, Request, RequestStats, SamplingParams
from engine.metrics import missing_seconds, quantile
from engine.runtime import Runtime

SENTENCES = (
    "Good morning, this is the voice runtime speaking to you in real time.",
    "The train to the coast leaves from platform nine in about twelve minutes.",
    "Please hold the line while I look that up for you.",
    "I have found three free tables for tonight, the first of them at half past seven.",
    "Every sentence that you hear was generated frame by frame while it was already playing.",
)


@dataclass(slots=True)
class Listener:
    """Receives one request's outputs on the engine's reader thread and remembers when each came."""

    clock: MonotonicClock
    submitted_at: float
    sample_rate: int
    arrivals: list[tuple[float, float]] = field(default_factory=list)
    """Instant and seconds of audio of each chunk."""
    over: threading.Event = field(default_factory=threading.Event)
    stats: RequestStats | None = None
    error: str = ""

    def deliver(self, output: Output) -> None:
        if isinstance(output, Chunk):
            self.arrivals.append((self.clock.now(), len(output.pcm) / self.sample_rate))
        elif isinstance(output, End):
            self._end(output)

    def _end(self, end: End) -> None:
        if isinstance(end, Failed):
            self.error = end.message
        else:
            self.stats = end.stats
        self.over.set()


@dataclass(frozen=True, slots=True)
class Speech:
    """What one number of concurrent streams gave, over all utterances."""

    streams: int
    utterances: int
    ttfa_ms_p50: float
    ttfa_ms_p95: float
    rtf: float
    underruns: int
    largest_gap_ms: float
    audio_seconds: float


def speak(runtime: Runtime, requests: Sequence[Request]) -> list[Listener]:
    """Submits all requests at once and waits for them. Raises RuntimeError when one fails."""
    clock = MonotonicClock()
    listeners = []
    for request in requests:
        listener = Listener(clock, clock.now(), runtime.spec.sample_rate)
        listeners.append(listener)
        runtime.submit(request, listener.deliver)
    for listener in listeners:
        listener.over.wait()
        if listener.error:
            raise RuntimeError(listener.error)
    return listeners


def speech(runtime: Runtime, streams: int, rounds: int) -> Speech:
    """`rounds` times `streams` utterances at once. TTFA is measured here, at the delivery to the caller."""
    listeners: list[Listener] = []
    for i in track(range(rounds), description=f"{streams} at once", transient=True):
        texts = [SENTENCES[(i + j) % len(SENTENCES)] for j in range(streams)]
        listeners += speak(runtime, [Request(text, runtime.spec.sampling) for text in texts])
    ttfa = [(x.arrivals[0][0] - x.submitted_at) * 1000 for x in listeners if x.arrivals]
    if not ttfa:
        raise RuntimeError(f"expected speech, got none in {len(listeners)} utterances; listen to the voice with say")
    missing = [missing_seconds(x.arrivals) for x in listeners]
    stats = [x.stats for x in listeners if x.stats]
    audio = sum(s.audio_seconds for s in stats)
    return Speech(
        streams=streams,
        utterances=len(listeners),
        ttfa_ms_p50=round(median(ttfa), 1),
        ttfa_ms_p95=round(float(np.quantile(ttfa, 0.95)), 1),
        rtf=round(sum(sum(s.stage_seconds.values()) for s in stats) / audio, 3),
        underruns=sum(1 for seconds in missing if seconds > 0),
        largest_gap_ms=round(max(missing) * 1000, 1),
        audio_seconds=round(audio, 1),
    )


def first_audio(runtime: Runtime, request: Request) -> tuple[float, int]:
    """Seconds until the request's first chunk, and the frames in it. The request is then cancelled, and over when this
    returns. Raises RuntimeError when it fails or says nothing."""
    outputs, clock, heard = SimpleQueue[tuple[float, Output]](), MonotonicClock(), (0.0, 0)
    submitted_at = clock.now()
    request_id = runtime.submit(request, lambda output: outputs.put((clock.now(), output)))
    while True:
        at, output = outputs.get()
        if isinstance(output, Chunk) and not heard[1]:
            heard = at - submitted_at, len(output.pcm) // runtime.spec.samples_per_frame
            runtime.cancel(request_id)
        elif isinstance(output, Failed):
            raise RuntimeError(output.message)
        elif isinstance(output, End):
            break
    if not heard[1]:
        raise RuntimeError("expected a first chunk, got the end of the request; listen to the voice with say")
    return heard


def fixed(sampling: SamplingParams, frames: int) -> SamplingParams:
    """The same, for speech of exactly so many frames: its end is not drawn before, and then it is cut off."""
    return replace(sampling, min_frames=frames, max_frames=frames)


def fitting(option: str, asked: Sequence[int] | None, usual: Sequence[int], most: int) -> tuple[int, ...]:
    """Numbers of requests at once, in order: the usual ones that the engine is good for, unless others were asked for.
    Raises ValueError for more."""
    if asked is None:
        return tuple(number for number in usual if number <= most)
    if max(asked) > most:
        raise ValueError(f"{option} must be at most {most}, as many as the engine runs at once, got {max(asked)}")
    return tuple(sorted(set(asked)))


def p50_p95_ms(seconds: Iterable[float]) -> tuple[float, float]:
    """Nearest-rank quantiles of values of which there is at least one, in milliseconds."""
    ordered = sorted(seconds)
    p50, p95 = (round(1000 * quantile(ordered, share), 3) for share in (0.5, 0.95))
    return p50, p95


def table(rows: Sequence[Speech]) -> Table:
    """The rows as a person reads them."""
    out = Table("streams", "utterances", "TTFA p50", "TTFA p95", "RTF", "utterances with a gap", "largest gap")
    for row in rows:
        cells = (row.ttfa_ms_p50, row.ttfa_ms_p95)
        out.add_row(
            str(row.streams),
            str(row.utterances),
            *(f"{cell:.0f} ms" for cell in cells),
            f"{row.rtf:.2f}",
            str(row.underruns),
            f"{row.largest_gap_ms:.0f} ms",
        )
    return out


def run(runtime: Runtime, streams: Sequence[int], rounds: int, console: Console) -> list[Speech]:
    """One row for each number of streams, printed at the end. Raises ValueError for more than the engine takes at once,
    and RuntimeError when a request fails."""
    most = runtime.limits.num_slots + runtime.limits.max_queued
    if max(streams) > most:
        raise ValueError(
            f"--streams must be at most {most}, as many as the engine serves and queues, got {max(streams)}"
        )
    speech(runtime, 1, 2)  # the first utterances of a process are not warm
    rows = [speech(runtime, n, rounds) for n in streams]
    console.print(table(rows))
    return rows
