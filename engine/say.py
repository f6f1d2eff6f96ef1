"""The command `say`: one utterance into a WAV file, written while it is generated. It knows no scheduling."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from engine.checks import RequestError
from engine.core import SPEAKING, Chunk, End, Failed, Finished, FinishReason, Request, RequestStats
from engine.runtime import Runtime
from engine.wav import WavWriter


def say(runtime: Runtime, request: Request, output: str, console: Console) -> RequestStats:
    """Speaks `request` into the file `output`, or into standard output for `-`.

    Raises ValueError for a name of another format, RequestError for a request that cannot be served, before any file is
    touched, and OSError when the file cannot be written; the engine is told to stop.
    """
    check_output(output)
    spec = runtime.spec
    with closing(runtime.stream(request)) as outputs, progress(console) as bar:
        task = bar.add_task("speaking", total=None, seconds=0.0)
        first = served(next(outputs))
        with opened(output, spec.sample_rate) as wav:
            for out in chain([first], map(served, outputs)):
                if isinstance(out, Finished):
                    return finish(out, console)
                wav.write(out.pcm)
                bar.update(task, seconds=audio_seconds(out, spec.frame_seconds))
    raise AssertionError("a stream ends with Finished or Failed")


def check_output(output: str) -> None:
    """Raises ValueError for the name of a file of another format. Devices and pipes may have any."""
    path = Path(output)
    named = path.suffix.lower() == ".wav" or (path.exists() and not path.is_file())
    if output != "-" and not named:
        raise ValueError(f"say writes WAV: expected a name that ends in .wav, or - for standard output, got {output}")


def served(output: Chunk | End) -> Chunk | Finished:
    """The output, unless it is a failure: RequestError."""
    if isinstance(output, Failed):
        raise RequestError(output.message)
    return output


def finish(finished: Finished, console: Console) -> RequestStats:
    """The utterance's stats; an utterance that hit its limit says so."""
    if finished.reason is FinishReason.LENGTH:
        console.print(
            f"[yellow]cut after {finished.stats.num_frames} frames, the most that were allowed or fit[/yellow]"
        )
    return finished.stats


def audio_seconds(chunk: Chunk, frame_seconds: float) -> float:
    """Audio up to and with this chunk."""
    return (chunk.first_frame + len(chunk.codes)) * frame_seconds


@contextmanager
def opened(output: str, sample_rate: int) -> Iterator[WavWriter]:
    """A WAV in the file `output`, or on standard output for `-`, which is never gone back in: it may be another's file.

    A file that was not there before is removed if it cannot be finished; one that was keeps what was written.
    """
    if output == "-":
        yield WavWriter(sys.stdout.buffer, sample_rate, sized=False)
        return
    path = Path(output)
    new = not path.exists() and not path.is_symlink()
    with path.open("xb" if new else "wb") as file:
        try:
            yield WavWriter(file, sample_rate, sized=path.is_file())  # a device or pipe is no file to go back in
        except BaseException:
            if new:
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
    for stage in SPEAKING:
        table.add_row(stage, f"{stats.stage_seconds[stage] * 1000:.0f} ms")
    console.print(table)
