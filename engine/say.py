"""The command `say`: one utterance into a WAV file, written while it is generated. It knows no scheduling."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from engine.core import Chunk, Failed, Finished, FinishReason, Request, RequestError, RequestStats
from engine.runtime import Runtime
from engine.wav import WavWriter


def say(runtime: Runtime, request: Request, output: str, console: Console) -> RequestStats:
    """Speaks `request` into the file `output`, or into standard output for `-`.

    Raises RequestError for a request that cannot be served and OSError when the file cannot be written; the
    engine is told to stop in both cases.
    """
    spec = runtime.spec
    outputs = runtime.stream(request)
    with opened(output) as file, WavWriter(file, spec.sample_rate) as wav, progress(console) as bar:
        task = bar.add_task("speaking", total=None, seconds=0.0)
        try:
            for out in outputs:
                if isinstance(out, Failed):
                    raise RequestError(out.message)
                if isinstance(out, Finished):
                    return finish(out, console)
                wav.write(out.pcm)
                bar.update(task, seconds=audio_seconds(out, spec.frame_seconds))
        finally:
            outputs.close()
    raise AssertionError("a stream ends with Finished or Failed")


def finish(finished: Finished, console: Console) -> RequestStats:
    """The utterance's stats; an utterance that hit its limit says so."""
    if finished.reason is FinishReason.LENGTH:
        console.print(f"[yellow]cut after {finished.stats.num_frames} frames, the most that fit[/yellow]")
    return finished.stats


def audio_seconds(chunk: Chunk, frame_seconds: float) -> float:
    """Audio up to and with this chunk."""
    return (chunk.first_frame + len(chunk.codes)) * frame_seconds


@contextmanager
def opened(output: str) -> Iterator[BinaryIO]:
    """The output file, or standard output for `-`. A file that could not be finished is removed."""
    if output == "-":
        yield sys.stdout.buffer
        return
    path = Path(output)
    with path.open("wb") as file:
        try:
            yield file
        except BaseException:
            if path.is_file():  # never a device such as /dev/full
                path.unlink()
            raise


def progress(console: Console) -> Progress:
    """How much audio there is so far; how much there will be, only the model knows."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[seconds]:.1f} s of audio"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )


def print_stats(stats: RequestStats, console: Console) -> None:
    """TTFA, RTF and the time of each stage."""
    table = Table("what", "value", title="statistics", title_justify="left")
    table.add_row("audio", f"{stats.audio_seconds:.2f} s in {stats.num_frames} frames")
    table.add_row("TTFA", "-" if stats.ttfa is None else f"{stats.ttfa * 1000:.0f} ms")
    table.add_row("RTF", "-" if stats.rtf is None else f"{stats.rtf:.2f}")
    for stage, seconds in stats.stage_seconds.items():
        table.add_row(stage, f"{seconds * 1000:.0f} ms")
    console.print(table)
