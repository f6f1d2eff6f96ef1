"""Keeps a process that transcribes, starts it again when it dies, and asks it for one turn after the other. It does not
know Whisper: that is in the process, away from the event loop that sends the packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agent.dialogue import Audio
from agent.trouble import OutsideError, Trouble

log = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parent.parent
REQUEST = struct.Struct("<II")
"""A turn's number and how many bytes of int16 follow."""
BACKOFF_SECONDS = 0.5
"""Between the second death in a row and the next start; twice as long after each further one."""
MAX_BACKOFF_SECONDS = 30.0
MAX_DEATHS = 3
"""Deaths in a row after which nobody waits for the next start any more."""
HUNG_SECONDS = 30.0
"""A process that answers nothing for so long is killed when the next turn comes."""
MAX_LINE_BYTES = 1024 * 1024


class Word(msgspec.Struct):
    """A line of the process: the first says that it is ready, each further one answers a turn; or why it cannot."""

    id: int = 0
    text: str = ""
    error: str = ""


class WhisperTranscriber:
    """A faster-whisper model, in a process of its own. `model` is a folder or a name; to be used on one event loop.

    A turn that is cancelled is no longer waited for; what the process computes of it is dropped. `command` stands for
    the process in tests.
    """

    def __init__(
        self, model: str, device: str = "cpu", threads: int = 2, language: str = "", command: Sequence[str] = ()
    ) -> None:
        worker = [sys.executable, "-P", "-m", "agent.whisper_worker", model, device, str(threads), language]
        self._command = list(command) or worker
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._collector: asyncio.Task[None] | None = None
        self._changed, self._line = asyncio.Condition(), asyncio.Lock()
        self._ready, self._deaths, self._why = False, 0, ""
        self._last_id = self._owed = 0
        self._asked_at = 0.0

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None else self._process.pid

    @property
    def busy(self) -> bool:
        """A turn is being transcribed, also one that nobody waits for any more."""
        return self._line.locked() or self._owed != 0

    async def start(self) -> None:
        """Returns when the model is loaded. Raises OutsideError when the first process ends before that."""
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise(), name="whisper")
        async with self._changed:
            await self._changed.wait_for(lambda: self._ready or self._deaths > 0)
            if not self._ready:
                raise OutsideError(Trouble.UNREACHABLE, self._why)

    async def transcribe(self, audio: Audio) -> str:
        """See Transcriber.transcribe. Turns are taken in the order in which they come."""
        if self._supervisor is None:
            await self.start()
        async with self._line:
            process = await self._running()
            try:
                return await self._ask(process, audio.astype("<i2").tobytes())
            except asyncio.CancelledError:
                self._collect(process)
                raise
            except (OSError, EOFError) as error:
                self._lose(process)
                raise OutsideError(
                    Trouble.BROKEN, "the process that transcribes has died; it is started again"
                ) from error

    async def close(self) -> None:
        """Ends the process."""
        tasks = [task for task in (self._supervisor, self._collector) if task is not None]
        self._supervisor = self._collector = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._process, self._ready, self._owed = None, False, 0

    async def _running(self) -> asyncio.subprocess.Process:
        """The process, once it is ready. Raises OutsideError where that is not to be waited for."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._ready or self._deaths >= MAX_DEATHS)
            if not self._ready or self._process is None:
                raise OutsideError(Trouble.UNREACHABLE, self._why)
            return self._process

    async def _ask(self, process: asyncio.subprocess.Process, pcm: bytes) -> str:
        """Raises EOFError and OSError when the process ends. A turn that was cancelled owes its answer: it is awaited
        first, so that the process never has more than one turn to do."""
        assert process.stdin is not None and process.stdout is not None
        await self._settle(process.stdout)
        self._last_id = self._owed = self._last_id + 1
        self._asked_at = asyncio.get_running_loop().time()
        process.stdin.write(REQUEST.pack(self._last_id, len(pcm)) + pcm)
        await process.stdin.drain()
        answer = await self._answer(process.stdout)
        self._deaths = 0
        if answer.error:
            raise OutsideError(Trouble.BROKEN, f"the model failed: {answer.error}")
        return answer.text.strip()

    async def _settle(self, out: asyncio.StreamReader) -> None:
        """Takes the answer that is owed. Raises EOFError for a process that hangs: it counts as dead."""
        try:
            async with asyncio.timeout_at(self._asked_at + HUNG_SECONDS):
                while self._owed:
                    await self._answer(out)
        except TimeoutError:
            raise EOFError from None

    def _collect(self, process: asyncio.subprocess.Process) -> None:
        """Takes what a cancelled turn owes as soon as it comes, so that `busy` tells the truth while nobody asks."""
        if self._supervisor is not None and (self._collector is None or self._collector.done()):
            self._collector = asyncio.create_task(self._collected(process), name="whisper: owed")

    async def _collected(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async with self._line:
            try:
                if process is self._process:
                    await self._settle(process.stdout)
            except (OSError, EOFError):
                self._lose(process)

    def _lose(self, process: asyncio.subprocess.Process) -> None:
        """The supervisor will see it too, but the next turn may be sooner."""
        if process is self._process:
            self._ready = False
        kill(process)

    async def _answer(self, out: asyncio.StreamReader) -> Word:
        word = await next_word(out)
        if word.id == self._owed:
            self._owed = 0
        return word

    # ---- the process's life -----------------------------------------------------------------------------------

    async def _supervise(self) -> None:
        while True:
            await self._live()
            await asyncio.sleep(backoff(self._deaths))

    async def _live(self) -> None:
        """From one process's start to its end."""
        process = None
        try:
            process = await started(self._command)
            assert process.stdout is not None
            first = await next_word(process.stdout)
            if first.error:
                raise EOFError(first.error)
            await self._became(process, "")
            await process.wait()
            reason = f"the process that transcribes ended with {process.returncode}"
        except (OSError, EOFError) as error:
            reason = f"the model cannot be loaded: {error}"
        finally:
            if process is not None:
                await ended(process)
        log.error("%s", reason)
        await self._became(None, reason)

    async def _became(self, process: asyncio.subprocess.Process | None, why: str) -> None:
        self._process, self._ready, self._owed, self._why = process, process is not None, 0, why
        self._deaths += process is None
        async with self._changed:
            self._changed.notify_all()


def backoff(deaths: int) -> float:
    """Seconds until the next start, after so many deaths in a row."""
    return 0.0 if deaths < 2 else min(MAX_BACKOFF_SECONDS, BACKOFF_SECONDS * 2.0 ** min(deaths - 2, 16))


async def started(command: Sequence[str]) -> asyncio.subprocess.Process:
    """The process; its standard error is ours."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, limit=MAX_LINE_BYTES, env={**os.environ, "PYTHONPATH": path}
    )


def kill(process: asyncio.subprocess.Process) -> None:
    """Not by its own method, which would take the exit status of one that is dead from whoever waits for it."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)


async def ended(process: asyncio.subprocess.Process) -> None:
    """Kills it, if it still runs, and gives back its pipes."""
    kill(process)
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()


async def next_word(out: asyncio.StreamReader) -> Word:
    """Raises EOFError at the process's end, and for what is no word of it."""
    try:
        line = await out.readuntil(b"\n")
        return msgspec.json.decode(line, type=Word)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, msgspec.MsgspecError):
        raise EOFError("its process ended; its own output says why") from None
