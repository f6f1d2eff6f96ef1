"""A real libwebrtc as a listener without a browser: one call in Node.js, what its jitter buffer gave out, a microphone.

It knows the server by its address and judges nothing: wrtc.cjs measures, this drives it and gathers. A block counts as
heard at the instant at which NetEQ, libwebrtc's jitter buffer, had given it out.

    with installed() as folder:
        async with listener("http://127.0.0.1:8080", folder) as call:
            call.send(type="speak", id="a", text="Good morning!")
            await call.wait(lambda: len(call.heard.loud_at(0.0)))

All instants are seconds of CLOCK_MONOTONIC, which on Linux is both Node's process.hrtime and Python's time.monotonic.
The package is npm's @roamhq/wrtc (BSD-2-Clause): Node.js bindings of libwebrtc, with its binary inside.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from asyncio.subprocess import PIPE, Process
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from agent.browser import AUDIBLE, Array
from agent.dial import ClientError, Line
from agent.protocol import CHANNEL

PROBE = Path(__file__).with_suffix(".cjs")
BLOCK_SECONDS = 0.01
BLOCK_SAMPLES = 480
INSTALLED_WITHIN = 180.0
CALL_WITHIN = 15.0
WITHIN = 60.0
"""Seconds after which a wait has failed, unless it is told otherwise."""
END_WITHIN = 3.0
MAX_LINE_BYTES = 4 * 1024 * 1024

PACKAGE, VERSION = "@roamhq/wrtc", "0.10.0"
WHOLE = "yFqQQ0EV1ZUHaphh3tmjoxPi2wzhW2vjmzoAVNRRLUjXYd2e1nvwi9TKfE2w4WNvNws/hBkouvOt23Xo9FkXkQ=="
"""SHA-512 of the package, as `npm view NAME@VERSION dist.integrity` says."""
BINARIES = {
    "darwin-arm64": "vFdi79jWuPHcnUcnuOjTvyKtmY/RI2xRQo9Y6RsIjlIYePN/7LTy00c+Ivrz4prYAPbp0oHscl7PDV64VUqGTQ==",
    "darwin-x64": "H6852g2xYCuaR+/TrthpdMafs4bMfAUEpvRDhsIguzrK7Dz+MKpNI8MkwdqJN8W65J+7w7k+YqXIkTHe7Fz/cg==",
    "linux-arm64": "fEuJbNjprxQG6QlFd2iqBW9x028RDSho6izVg7gyt8irdPiXWOxzOxNnYMs/B2fohBTd1wD4Qxfivl07/dCR8A==",
    "linux-x64": "H32lK2eFg3sVb/9nkHIX5HIisxFoS82Gpesuea+zqAyRpRzSd5NpFXx28bVy9wQyRrNtj8k0bTUgEzWRzSbYCA==",
    "win32-x64": "wEVXMvLrBizdLyrd+Zc7zb7zpwUuHUBXwrdIvI69e3i/AA8YsVYI2xo/sxk6GoQ+o8a14ONc4SStDS35TCjg+w==",
}
"""The same of the packages with the binaries, one for a machine; npm chooses."""

Pcm = NDArray[np.int16]
T = TypeVar("T")


class WrtcError(RuntimeError):
    """There is no such listener, or its call cannot be made or go on; the text says what to do."""


# ---- the package --------------------------------------------------------------------------------------------------


@contextmanager
def installed() -> Iterator[Path]:
    """A temporary folder with the npm package in it, fetched by npm, checked, and nothing of it run.

    Raises WrtcError where Node.js or npm is missing, or npm fails."""
    with tempfile.TemporaryDirectory(prefix="breezert-wrtc-") as name:
        folder = Path(name)
        (folder / "package.json").write_text(json.dumps(wanted()))
        (folder / "package-lock.json").write_text(json.dumps(locked()))
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--prefix", name]
        run("node", "--version")
        run(*command)
        yield folder


def wanted() -> dict[str, Any]:
    """What npm is to install."""
    return {"name": "listener", "version": "0.0.0", "private": True, "dependencies": {PACKAGE: VERSION}}


def locked() -> dict[str, Any]:
    """npm's lock file: exactly these packages, and what they depend on only to be nicer left out."""
    packages: dict[str, Any] = {"": wanted(), f"node_modules/{PACKAGE}": pinned(WHOLE)}
    packages[f"node_modules/{PACKAGE}"]["optionalDependencies"] = {f"{PACKAGE}-{name}": VERSION for name in BINARIES}
    for name, digest in BINARIES.items():
        system, processor = name.split("-")
        machine = {"os": [system], "cpu": [processor], "optional": True}
        packages[f"node_modules/{PACKAGE}-{name}"] = pinned(digest) | machine
    return {**wanted(), "lockfileVersion": 3, "requires": True, "packages": packages}


def pinned(digest: str) -> dict[str, Any]:
    return {"version": VERSION, "integrity": f"sha512-{digest}"}


def run(*command: str) -> None:
    """Raises WrtcError with what it said where it fails."""
    try:
        subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALLED_WITHIN
        )
    except FileNotFoundError:
        raise missing(command[0]) from None
    except subprocess.CalledProcessError as error:
        raise WrtcError(f"npm could not fetch {PACKAGE}@{VERSION}: {error.stderr.strip()[:300]}") from error
    except subprocess.TimeoutExpired:
        raise WrtcError(f"npm fetched no {PACKAGE}@{VERSION} within {INSTALLED_WITHIN:.0f} s: try again") from None


def missing(program: str) -> WrtcError:
    return WrtcError(f"the listener runs in Node.js, and there is no {program}: install both (Debian: nodejs npm)")


# ---- the call -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Heard:
    """What one call gathered; instants are seconds of the monotonic clock."""

    blocks: list[tuple[float, float]] = field(default_factory=list)
    """(instant, largest amplitude, 0 to 1) of each 10 ms. NetEQ gave the whole block out just before the instant, by as
    much as Node.js needed to take it: mostly some 0.1 ms, more where the machine is busy, so several blocks may come at
    once. A sound card would play it from then on, so what is in it is heard from `at` to `at` + BLOCK_SECONDS."""
    pcm: list[Pcm] = field(default_factory=list)
    """The samples of each block, [480] at 48 kHz, where they are recorded."""
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The server's messages, each with its instant `at`."""
    reports: list[dict[str, Any]] = field(default_factory=list)
    """What `Call.stats` says, once a second, each with its instant `at`, and microphoneStalls: how often the microphone
    was so late that it began to count anew."""

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]

    def loud_at(self, start: float, end: float = float("inf")) -> Array:
        """The instants from start to end of the blocks in which something was audible."""
        table = np.array(self.blocks, dtype=np.float64).reshape(-1, 2)
        at = table[:, 0]
        return at[(table[:, 1] > AUDIBLE) & (at >= start) & (at <= end)]


class Call:
    """One call, from `listener` on. To be used on the event loop. Once it is over, all that is awaited raises
    WrtcError with the reason."""

    def __init__(self, process: Process, errors: IO[str]) -> None:
        """Use `listener`."""
        self.heard = Heard()
        self.id = ""
        """The call's, as the server calls it."""
        self.listens = False
        """Whether the server takes the microphone."""
        self.pid = process.pid
        self._process, self._errors = process, errors
        self._over: str | None = None
        self._offer: str | None = None
        self._orders: dict[int, asyncio.Future[Any]] = {}
        self._count = 0
        self._moved = asyncio.Event()

    def send(self, **message: Any) -> asyncio.Future[float]:
        """Sends one message of the data channel, such as `type="stop"`. The instant at which it was handed to the
        channel may be awaited, and need not."""
        return self._order("send", message=message)

    async def say(self, pcm: Pcm) -> float:
        """Speaks into the microphone: int16 [samples], mono, at 48 kHz, from the next 10 ms block on, after whatever is
        still being said; its last block is filled up. Returns the instant at which its first sample was handed over.

        Raises WrtcError where the server does not listen, TypeError and ValueError."""
        if not self.listens:
            raise WrtcError("this server does not listen: it needs a brain and --vad")
        if pcm.dtype != np.int16:
            raise TypeError(f"sound is int16, got {pcm.dtype}: convert it")
        if pcm.ndim != 1 or not pcm.size:
            raise ValueError(f"sound has the shape [samples], got {list(pcm.shape)}")
        said_at: float = await self._order("say", pcm=b64encode(pcm.tobytes()).decode())
        return said_at

    async def stats(self) -> dict[str, Any]:
        """libwebrtc's own totals of the received audio, inbound-rtp of https://www.w3.org/TR/webrtc-stats/."""
        stats: dict[str, Any] = await self._order("stats")
        return stats

    async def wait(self, condition: Callable[[], T], within: float = WITHIN) -> T:
        """What the condition gives, once that is true; it is looked at whenever something was heard or told. Raises
        WrtcError when that takes longer than `within` seconds."""
        try:
            async with asyncio.timeout(within):
                while not (found := condition()):
                    await self._next()
                return found
        except TimeoutError:
            raise WrtcError(f"what was waited for did not happen within {within:g} s") from None

    async def _next(self) -> None:
        self._check()
        self._moved.clear()
        await self._moved.wait()

    def _check(self) -> None:
        if self._over is not None:
            raise WrtcError(f"the call is over: {self._over}")

    def _order(self, what: str, **fields: Any) -> asyncio.Future[Any]:
        self._check()
        assert self._process.stdin is not None, "it was started with a pipe"
        self._count += 1
        future = self._orders[self._count] = asyncio.get_running_loop().create_future()
        line = json.dumps({"do": what, "order": self._count, **fields})
        self._process.stdin.write(line.encode() + b"\n")
        return future

    async def _dial(self, line: Line) -> None:
        try:
            async with asyncio.timeout(CALL_WITHIN):
                await self._connect(line)
        except TimeoutError:
            what = "no packets come through: is UDP blocked?" if self.id else "the server does not answer"
            raise WrtcError(f"not connected within {CALL_WITHIN:g} s; {what}") from None

    async def _connect(self, line: Line) -> None:
        sdp = await self.wait(lambda: self._offer)
        assert sdp is not None, "it was waited for"
        answer = await line.offer(sdp)
        self.id = answer.call_id
        self.listens = await self._order("accept", sdp=answer.sdp) == "sendrecv"
        await self.wait(lambda: self.heard.of_type("session.created"))

    async def _read(self) -> None:
        """Takes what the process says, until it ends."""
        assert self._process.stdout is not None, "it was started with a pipe"
        try:
            async for line in self._process.stdout:
                self._take(json.loads(line))
                self._moved.set()
            await self._process.wait()
        finally:
            self._end(f"its process ended with status {self._process.returncode}: {self._complaint()}")

    def _take(self, said: dict[str, Any]) -> None:
        match said:
            case {"blocks": blocks, "pcm": pcm}:
                self._hear(blocks, pcm)
            case {"message": message}:
                self.heard.messages.append(message)
            case {"report": report}:
                self.heard.reports.append(report)
            case {"order": order, "error": error}:
                self._answer(order, error=WrtcError(error))
            case {"order": order, "value": value}:
                self._answer(order, value)
            case {"offer": sdp}:
                self._offer = sdp
            case {"over": reason}:
                self._end(reason)

    def _hear(self, blocks: list[list[float]], pcm: str) -> None:
        self.heard.blocks += [(at, peak) for at, peak in blocks]
        if pcm:
            self.heard.pcm += np.split(np.frombuffer(b64decode(pcm), np.int16), len(blocks))

    def _answer(self, order: int, value: Any = None, error: WrtcError | None = None) -> None:
        future = self._orders.pop(order, None)
        if future is None or future.done():  # the call was over first, or whoever asked was cancelled
            return
        future.set_result(value) if error is None else future.set_exception(error)

    def _end(self, reason: str) -> None:
        """The first reason counts."""
        self._over = self._over or reason
        for future in self._orders.values():
            if not future.done():
                future.set_exception(WrtcError(f"the call is over: {self._over}"))
                future.exception()  # nobody needs to wait for a message to be sent
        self._orders.clear()
        self._moved.set()

    def _complaint(self) -> str:
        """What Node.js says of the error that ended it, or all."""
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        return next((line for line in lines if "Error: " in line), " ".join(lines))[:300]


@asynccontextmanager
async def listener(
    url: str, folder: Path, *, token: str | None = None, noise: float = 0.0, record: bool = False
) -> AsyncIterator[Call]:
    """A call to the server at `url`, such as http://127.0.0.1:8080, once the server has introduced itself; it and its
    process end with the block. `folder` is that of `installed`.

    Between what it is told to say, its microphone hears noise up to this amplitude, of 1 at full scale. `record` keeps
    the samples of what is heard. It pings and reports its statistics every second. Raises WrtcError, and ValueError
    for an address that is not absolute."""
    with tempfile.TemporaryFile("w+") as errors:
        line = Line(url, token, None)
        try:
            process = await started(folder, noise, record, errors)
            call = Call(process, errors)
            reading = asyncio.create_task(call._read())
            try:
                await dialled(call, line)
                yield call
            finally:
                try:
                    await line.hang_up(call.id) if call.id else None
                finally:
                    await ended(process, reading)
        finally:
            await line.close()


async def started(folder: Path, noise: float, record: bool, errors: IO[str]) -> Process:
    """The process, whose errors go to that file."""
    command = ["node", str(PROBE), str(folder), CHANNEL, str(noise), str(record).lower()]
    try:
        return await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=errors, limit=MAX_LINE_BYTES
        )
    except FileNotFoundError:
        raise missing("node") from None


async def dialled(call: Call, line: Line) -> None:
    """Raises WrtcError where there is no call."""
    try:
        await call._dial(line)
    except ClientError as error:
        raise WrtcError(str(error)) from error


async def ended(process: Process, reading: asyncio.Task[None]) -> None:
    """Asks the process to end, and insists where it does not, or where there is no time to wait."""
    assert process.stdin is not None, "it was started with a pipe"
    try:
        process.stdin.close()
        await asyncio.wait_for(asyncio.shield(reading), END_WITHIN)
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process.kill()
        await reading
