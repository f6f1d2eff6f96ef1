"""Measures what passes around the steps of a running engine: pipes, threads, planning. It does not know the steps.

One request at a time is asked for on an idle engine, now for one frame, now for a whole utterance. Stages take their
time as the engine says; what is left over is the way in, the ways between steps, and the way out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from rich.console import Console
from rich.progress import track

from engine.checks import RequestError
from engine.clock import MonotonicClock
from engine.core import ErrorCode, Failed, Finished, Request, RequestStats
from engine.profile import NO_OVERHEAD, Overhead
from engine.runtime import Runtime

TEXT = "Please hold the line while I look that up for you."
FRAMES = 30
"""Of a whole utterance."""
UNFIT = (ErrorCode.BAD_REQUEST, ErrorCode.TOO_LONG)


@dataclass(frozen=True, slots=True)
class Asked:
    """One request's way through the engine."""

    stats: RequestStats
    chunks: int
    ways_out: tuple[float, ...]
    """Seconds from the end of each chunk's step until it was here."""

    @property
    def around(self) -> float:
        """Seconds from submit to the last step's end in which no step ran."""
        return self.stats.finished_at - self.stats.submitted_at - sum(self.stats.stage_seconds.values())

    @property
    def steps(self) -> int:
        """Text and prompt in one piece, depth for each frame, decode for each but the last, codec for each chunk."""
        return 1 + 2 * self.stats.num_frames + self.chunks


def ask(runtime: Runtime, frames: int) -> Asked:
    """One request of so many frames, alone. Raises RequestError for a voice that cannot say TEXT, and RuntimeError when
    it is not served for another reason."""
    clock, ways_out = MonotonicClock(), list[float]()
    sampling = replace(runtime.spec.sampling, min_frames=frames, max_frames=frames)
    for output in runtime.stream(Request(TEXT, sampling)):
        if isinstance(output, Finished):
            return Asked(output.stats, len(ways_out), tuple(ways_out))
        if isinstance(output, Failed):
            wrong = RequestError if output.code in UNFIT else RuntimeError
            raise wrong(f"expected a request to be served on an idle engine: {output.message}")
        assert output.made_at is not None
        ways_out.append(clock.now() - output.made_at)
    raise AssertionError("a stream ends with Finished or Failed")


def measure(runtime: Runtime, runs: int, console: Console) -> Overhead:
    """Medians of `runs` short and `runs` long requests; none, with a word of why, for a voice that cannot say TEXT.
    Raises RuntimeError when one is not served."""
    try:
        ask(runtime, FRAMES)  # the first utterance of a process is not warm
    except RequestError as error:
        console.print(f"[yellow]what passes around steps was not measured: {error}[/yellow]")
        return NO_OVERHEAD
    short, long = [], []
    for _ in track(range(runs), description="measuring what passes around steps", console=console):
        short.append(ask(runtime, 1))
        long.append(ask(runtime, FRAMES))
    return between(short, long)


def between(short: Sequence[Asked], long: Sequence[Asked]) -> Overhead:
    """What is left over between requests of different lengths is the ways between their steps."""
    step = median((many.around - few.around) / (many.steps - few.steps) for few, many in zip(short, long, strict=True))
    step = max(0.0, step)
    submit = max(0.0, median(few.around - (few.steps - 1) * step for few in short))
    deliver = median(seconds for one in (*short, *long) for seconds in one.ways_out)
    return Overhead(*(round(seconds, 6) for seconds in (submit, step, deliver)))
