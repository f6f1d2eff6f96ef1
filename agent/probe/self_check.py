"""`breezert probe --self-check`: does our model of NetEQ hear what a real libwebrtc hears of the same packets?

It calls no agent and judges none. This process sends packets at chosen instants to npm's @roamhq/wrtc (agent/wrtc.py)
and notes them; afterwards the model (neteq.py) hears the same packets, and both are compared where an utterance begins
and where it ends, which is what every figure of a stop rests on. The listener's own process may be held up by the
machine, which no packet tells: what was heard from then on is counted, and kept out of the figures.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from aiortc import MediaStreamTrack, RTCConfiguration, RTCSessionDescription
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent.browser import AUDIBLE
from agent.closing import Connection
from agent.libopus import LibraryMissing
from agent.opus import OpusEncoder
from agent.probe.neteq import BLOCK, BLOCK_SECONDS, Totals, hear
from agent.probe.recording import RATE, Packet, Pcm
from agent.probe.sounds import sound
from agent.wrtc import VERSION, Call, WrtcError, installed, listener
from engine.machine import check_writable, describe, write_json

PROGRAM = "breezert probe"
OPTION = "--self-check"

TICKS = 960
PACKET_SECONDS = 0.02
LOUD = AUDIBLE * 32768
SENTENCES = ("question", "another", "prices", "stop", "no", "wait")

LEAD, CYCLES, SILENCE = 15, 4, 25
"""Packets of silence before the first utterance, utterances of a call, packets of silence behind each."""
PHASE = 0.0045
"""Seconds after a block of the listener's at which packets are sent: NetEQ counts time in its blocks of 10 ms, and
nobody can tell into which one a packet falls that comes just between them."""
PATTERNS = ("steady", "stall_50", "stall_200", "jitter_30", "loss_1", "reordered", "unsent", "dtx", "long")
AT_ONCE, ROUNDS = 5, 4
"""Calls at the same time, and how often each pattern is heard."""
HELD_UP = 0.015
"""Seconds by which a block of the listener's may be late. Beyond, its process was held up: what it did then, and what
its buffer learnt of it, no packet tells."""
LATE = 0.003
"""Seconds by which a packet may be sent late: beyond, it may fall into either of two blocks; see PHASE."""
TRANSIT = 0.0005
"""Seconds from the sender's socket to the listener's buffer, and from a block to its instant: as measured here."""
WITHIN = 20.0
TOLERANCE_MS, FARTHEST_MS = 10.0, 30.0
"""By which 95 of 100 stops may be off, and any."""
ENOUGH = 10
"""Stops undisturbed, before anything is concluded from the farthest of them."""

Advance = Callable[[], None]
"""Told that one more utterance was sent."""


class SelfCheckError(RuntimeError):
    """There is nothing to compare; the text says why."""


# ---- what is sent -------------------------------------------------------------------------------------------------


@cache
def voice(seconds: float) -> Pcm:
    """A tone of 150 Hz with overtones, int16 at 48 kHz: every wave is like the one before."""
    phase = 2 * np.pi * 150 * np.arange(round(seconds * RATE)) / RATE
    pcm: Pcm = (5000 * np.sin(phase) + 3000 * np.sin(2 * phase) + 1000 * np.sin(5 * phase)).astype(np.int16)
    return pcm


@cache
def speech() -> Pcm:
    """Some 14 s of the embedded voice, int16 at 48 kHz."""
    return np.concatenate([sound(name) for name in SENTENCES])


@dataclass(frozen=True, slots=True)
class Due:
    """A packet of a plan: when it is to be sent, in blocks of 10 ms from the beginning on."""

    block: int
    sequence: int
    timestamp: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """What one call is to hear: packets in the order in which they are to be sent."""

    due: list[Due]
    spans: list[tuple[float, float]]
    """Of each utterance, from when to when its packets would be sent in a steady stream, in seconds."""

    @property
    def parts(self) -> Iterator[list[Due]]:
        """About one for each utterance."""
        size = math.ceil(len(self.due) / CYCLES)
        return (self.due[start : start + size] for start in range(0, len(self.due), size))


def planned(pattern: str, seed: int) -> Plan:
    """One of PATTERNS; another seed has other utterances and other trouble."""
    payloads, spans = spoken(seed)
    random = np.random.default_rng(seed)
    blocks = np.maximum.accumulate(2 * np.arange(len(payloads)) + delays(pattern, spans, len(payloads), random))
    if pattern == "reordered":
        blocks = blocks + random.choice([0, 0, 0, 0, 0, 0, 3, 5], len(payloads))
    due = []
    for number, (first, last, payload) in enumerate(made(pattern, payloads, spans)):
        if pattern == "loss_1" and random.random() < 0.01:
            continue
        timestamp = (2**32 - 9_600 + first * TICKS) % 2**32
        due.append(Due(int(blocks[last]), (65_530 + number) % 2**16, timestamp, payload))
    due.sort(key=lambda packet: packet.block)
    return Plan(due, [(first * PACKET_SECONDS, last * PACKET_SECONDS) for first, last in spans])


def made(pattern: str, payloads: tuple[bytes, ...], spans: list[tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
    """Of each packet that the sender makes the first and the last 20 ms that it holds, and its payload."""
    if pattern == "long":
        yield from ((n, n + 2, joined(payloads[n : n + 3])) for n in range(0, len(payloads) - 2, 3))
        return
    for n, payload in enumerate(payloads):
        quiet = silent_for(spans, n)
        if pattern == "dtx" and quiet == 6:
            yield n, n, payload[:1]
        elif not quiet or pattern not in ("unsent", "dtx") or (pattern == "dtx" and quiet < 6):
            yield n, n, payload


def joined(payloads: tuple[bytes, ...]) -> bytes:
    """One packet of several frames (RFC 6716, section 3.2.5)."""
    frames = [payload[1:] for payload in payloads]
    return bytes([payloads[0][0] | 3, 0x80 | len(frames)]) + b"".join(map(length, frames[:-1])) + b"".join(frames)


def length(frame: bytes) -> bytes:
    """RFC 6716, section 3.2.1."""
    if len(frame) < 252:
        return bytes([len(frame)])
    return bytes([252 + len(frame) % 4, (len(frame) - 252 - len(frame) % 4) // 4])


def silent_for(spans: list[tuple[int, int]], n: int) -> int:
    """How many packets up to this one are silence behind an utterance."""
    begun, over = ([edge for edge in edges if edge <= n] for edges in zip(*spans, strict=True))
    return n - over[-1] + 1 if over and len(begun) == len(over) else 0


def delays(pattern: str, spans: list[tuple[int, int]], count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """By how many blocks each packet is late."""
    late = np.zeros(count, np.int64)
    if pattern == "jitter_30":
        return random.integers(0, 4, count)
    for first, _ in spans:
        for n, blocks in enumerate(range({"stall_50": 5, "stall_200": 20}.get(pattern, 0), 0, -2)):
            late[first + 12 + n] = blocks
    return late


def spoken(seed: int) -> tuple[tuple[bytes, ...], list[tuple[int, int]]]:
    """Packets of 20 ms: the embedded voice or a tone, cut off with a fade of 10 ms as after an interruption; and which
    of them are each utterance."""
    encoder, payloads, spans = OpusEncoder(RATE), list[bytes](), list[tuple[int, int]]()

    def put(pcm: Pcm) -> None:
        payloads.extend(encoder.encode(pcm[start : start + TICKS]) for start in range(0, pcm.size - TICKS + 1, TICKS))

    put(np.zeros(LEAD * TICKS, np.int16))
    for cycle in range(CYCLES):
        pcm = utterance(seed, cycle)
        spans.append((len(payloads), len(payloads) + pcm.size // TICKS))
        put(pcm)
        put(np.zeros(SILENCE * TICKS, np.int16))
    return tuple(payloads), spans


def utterance(seed: int, cycle: int) -> Pcm:
    """Of every call the third one is the tone, whose pitch a guess goes on with."""
    count = 40 + 7 * cycle + 3 * seed
    source = voice(4.0) if cycle == 2 else np.roll(speech(), -RATE // 10 - (5 * seed + 2 * cycle) * RATE // 4)
    pcm = source[: count * TICKS].astype(np.float64)
    pcm[-BLOCK:] *= 0.5 + 0.5 * np.cos(np.pi * np.arange(BLOCK) / BLOCK)
    return pcm.astype(np.int16)


# ---- the call -----------------------------------------------------------------------------------------------------


class Mute(MediaStreamTrack):
    """Never has anything to send: the Sender does."""

    kind = "audio"

    async def recv(self) -> Any:
        await asyncio.Event().wait()


class Sender:
    """Answers one call, and sends packets in it, below aiortc's interface: that lets nobody choose their instants,
    numbers and timestamps."""

    def __init__(self) -> None:
        self.connection = Connection(RTCConfiguration(iceServers=[]))
        self.packets: list[Packet] = []
        """With the instants at which they were given to the socket."""

    async def answer(self, sdp: str) -> str:
        self.connection.on("datachannel", lambda channel: channel.send('{"type": "session.created", "id": "one"}'))
        await self.connection.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
        self._sender = self.connection.addTrack(Mute())
        await self.connection.setLocalDescription(await self.connection.createAnswer())
        lines = self.connection.localDescription.sdp.splitlines()
        (self._type,) = (int(line[9:].split()[0]) for line in lines if line.startswith("a=rtpmap:") and "opus" in line)
        return str(self.connection.localDescription.sdp)

    async def play(self, due: Iterable[Due], begins_at: float) -> None:
        """Sends each when it is due; returns after the last one."""
        for packet in due:
            wait = begins_at + packet.block * BLOCK_SECONDS - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            await self._send(packet)

    async def _send(self, packet: Due) -> None:
        source = self._sender._ssrc
        head = bytes([0x80, self._type]) + packet.sequence.to_bytes(2, "big")
        head += packet.timestamp.to_bytes(4, "big") + source.to_bytes(4, "big")
        await self._sender.transport._send_rtp(head + packet.payload)
        self.packets.append(Packet(packet.sequence, packet.timestamp, source, packet.payload, time.monotonic()))


@asynccontextmanager
async def called(folder: Path) -> AsyncIterator[tuple[Sender, Call]]:
    """A call of the listener's in that folder, and who sends in it. Raises WrtcError."""
    sender = Sender()
    try:
        async with serving(sender) as url, listener(url, folder, record=True) as call:
            yield sender, call
    finally:
        await sender.connection.close()


@asynccontextmanager
async def serving(sender: Sender) -> AsyncIterator[str]:
    """The address on loopback at which it takes its one call."""
    app = web.Application()

    async def offer(request: web.Request) -> web.Response:
        return web.json_response({"sdp": await sender.answer((await request.json())["sdp"]), "id": "one"})

    async def hang_up(request: web.Request) -> web.Response:
        return web.Response()

    app.router.add_post("/offer", offer)
    app.router.add_delete("/calls/one", hang_up)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


# ---- both, side by side -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stop:
    """Where the model and libwebrtc heard an utterance begin and end: the model less libwebrtc, in ms.

    held_up: the listener's process was, or a packet, since the call's first packet; see HELD_UP and LATE."""

    pattern: str
    start_ms: float
    stop_ms: float
    held_up: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """One call, heard by both."""

    pattern: str
    stops: list[Stop]
    model: Totals
    stats: dict[str, Any]
    """libwebrtc's."""
    held_up: bool


async def compared(folder: Path, pattern: str, seed: int, together: asyncio.Barrier, advance: Advance) -> Compared:
    """One call; its packets begin when all calls of the barrier are there. Raises WrtcError and SelfCheckError."""
    plan = planned(pattern, seed)
    async with called(folder) as (sender, call):
        await call.wait(lambda: len(call.heard.blocks) >= 60, WITHIN)
        await together.wait()
        first_at, _ = grid(call.heard.blocks[-50:])
        ahead = np.ceil((time.monotonic() + 0.03 - first_at) / BLOCK_SECONDS)
        begins_at = first_at + ahead * BLOCK_SECONDS + PHASE
        for part in plan.parts:
            await sender.play(part, begins_at)
            advance()
        over_at = begins_at + plan.spans[-1][1] + SILENCE * PACKET_SECONDS
        await call.wait(lambda: call.heard.blocks[-1][0] > over_at, WITHIN)
        stats = await call.stats()
        asked_at = time.monotonic()
        blocks, pcm = list(call.heard.blocks), list(call.heard.pcm)
    return judged(pattern, plan, sender.packets, blocks[: len(pcm)], np.concatenate(pcm), stats, asked_at)


def grid(blocks: list[tuple[float, float]]) -> tuple[float, NDArray[np.float64]]:
    """The instant of block 0 on the steady clock that the blocks keep, and by how much each is behind it."""
    behind = np.array([at for at, _ in blocks]) - BLOCK_SECONDS * np.arange(len(blocks))
    first_at = float(np.percentile(behind, 2))
    return first_at, behind - first_at


def judged(
    pattern: str,
    plan: Plan,
    packets: list[Packet],
    blocks: list[tuple[float, float]],
    pcm: Pcm,
    stats: dict[str, Any],
    asked_at: float,
) -> Compared:
    """packets: as they were sent; blocks and pcm: what libwebrtc gave out; stats: its totals at asked_at. Raises
    SelfCheckError."""
    first_at, behind = grid(blocks)
    skipped = int((packets[0].at - first_at) / BLOCK_SECONDS) - 5
    begins_at = first_at + skipped * BLOCK_SECONDS
    found, totals = hear(packets, begins_at - TRANSIT, asked_at)
    held_up_at = min(held_up(packets[0].at, first_at, behind), sent_late(plan.due, packets))
    sounding = packets[0].at - plan.due[0].block * BLOCK_SECONDS
    bounds = [sounding + first for first, _ in plan.spans] + [sounding + plan.spans[-1][1] + SILENCE * PACKET_SECONDS]
    stops = []
    for start_at, end_at in pairwise(bounds):
        cut = slice(*(round((at - begins_at) * RATE) for at in (start_at, end_at)))
        ours = edges(found.samples[cut], f"the model, {pattern}")
        theirs = edges(pcm[skipped * BLOCK :][cut], f"libwebrtc, {pattern}")
        errors = [1000 * (a - b) / RATE for a, b in zip(ours, theirs, strict=True)]
        stops.append(Stop(pattern, errors[0], errors[1], held_up_at < end_at))
    return Compared(pattern, stops, totals, stats, held_up_at < asked_at)


def held_up(begins_at: float, first_at: float, behind: NDArray[np.float64]) -> float:
    """The first instant, from the packets' beginning on, at which the listener's process had not run in time."""
    at = first_at + BLOCK_SECONDS * np.flatnonzero(behind > HELD_UP)
    return float(min(at[at > begins_at - 2 * BLOCK_SECONDS], default=math.inf))


def sent_late(due: list[Due], packets: list[Packet]) -> float:
    """The first instant at which a packet was sent later than LATE."""
    spans = [packet.at - wanted.block * BLOCK_SECONDS for wanted, packet in zip(due, packets, strict=True)]
    late = (packet.at for packet, span in zip(packets, spans, strict=True) if span - min(spans) > LATE)
    return min(late, default=math.inf)


def edges(pcm: Pcm, whose: str) -> tuple[int, int]:
    """The first and the last audible sample. Raises SelfCheckError."""
    audible = np.flatnonzero(np.abs(pcm.astype(np.int32)) > LOUD)
    if not audible.size:
        raise SelfCheckError(f"a whole utterance was not heard ({whose}): is this machine far too busy? Try again")
    return int(audible[0]), int(audible[-1])


async def together(folder: Path, seed: int, advance: Advance = lambda: None) -> list[Compared]:
    """Every pattern once, some calls at a time. Raises WrtcError and SelfCheckError."""
    found = list[Compared]()
    for start in range(0, len(PATTERNS), AT_ONCE):
        patterns = PATTERNS[start : start + AT_ONCE]
        barrier = asyncio.Barrier(len(patterns))
        try:
            async with asyncio.TaskGroup() as group:
                calls = [group.create_task(compared(folder, name, seed, barrier, advance)) for name in patterns]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the others were cancelled for it
        found += [call.result() for call in calls]
    return found


# ---- figures ------------------------------------------------------------------------------------------------------


async def checked(folder: Path, advance: Advance = lambda: None) -> dict[str, Any]:
    """The figures of ROUNDS rounds, as JSON data. folder: that of `agent.wrtc.installed`.

    Raises WrtcError, SelfCheckError, and LibraryMissing where there is no libopus."""
    return figures([one for seed in range(ROUNDS) for one in await together(folder, seed, advance)])


def figures(found: list[Compared]) -> dict[str, Any]:
    """By pattern: how far stops and starts are from libwebrtc's in ms, and the totals of both."""
    by_pattern = {name: [one for one in found if one.pattern == name] for name in PATTERNS}
    return {
        "tolerance_ms": TOLERANCE_MS,
        "all": summed(found),
        "patterns": {name: summed(calls) for name, calls in by_pattern.items() if calls},
    }


def summed(calls: list[Compared]) -> dict[str, Any]:
    """Errors of all stops that nothing disturbed, and totals of all calls that nothing disturbed."""
    stops = [stop for one in calls for stop in one.stops]
    sure, calm = [stop for stop in stops if not stop.held_up], [one for one in calls if not one.held_up]
    return {
        "stops": len(stops),
        "stops_held_up": len(stops) - len(sure),
        "stop_error_ms": percentiles([stop.stop_ms for stop in sure]),
        "start_error_ms": percentiles([stop.start_ms for stop in sure]),
        "stop_error_ms_with_held_up": percentiles([stop.stop_ms for stop in stops]),
        "calls": len(calls),
        "calls_held_up": len(calls) - len(calm),
        "model": model_totals([one.model for one in calm]) if calm else None,
        "libwebrtc": real_totals([one.stats for one in calm]) if calm else None,
    }


def percentiles(errors: list[float]) -> dict[str, float] | None:
    """Of their amounts. None where there are none."""
    if not errors:
        return None
    names = {"p50": 50, "p95": 95, "max": 100}
    return {name: round(float(np.percentile(np.abs(errors), p)), 2) for name, p in names.items()}


def model_totals(totals: list[Totals]) -> dict[str, float]:
    """Samples, and the mean delay in the packet buffer in ms."""
    return {
        "audible_concealed": sum(one.concealed - one.silent_concealed for one in totals),
        "inserted": sum(one.inserted for one in totals),
        "removed": sum(one.removed for one in totals),
        "delay_ms": round(1000 * sum(one.delay for one in totals) / sum(one.emitted for one in totals), 1),
    }


def real_totals(stats: list[dict[str, Any]]) -> dict[str, float]:
    """libwebrtc's; before the first packet it guesses already, at 16 kHz, and some 700 samples of that count as
    audible in each call."""

    def total(name: str) -> float:
        return float(sum(one[name] for one in stats))

    return {
        "audible_concealed": round(total("concealedSamples") - total("silentConcealedSamples")),
        "inserted": round(total("insertedSamplesForDeceleration")),
        "removed": round(total("removedSamplesForAcceleration")),
        "delay_ms": round(1000 * total("jitterBufferDelay") / total("jitterBufferEmittedCount"), 1),
    }


def fault(found: dict[str, Any]) -> str:
    """What is wrong with the figures; empty where the model hears what libwebrtc hears."""
    every = found["all"]
    sure = every["stops"] - every["stops_held_up"]
    if sure < ENOUGH:
        return f"only {sure} of {every['stops']} stops were undisturbed: try again when this machine has less to do"
    error = every["stop_error_ms"]
    if error["p95"] <= TOLERANCE_MS and error["max"] <= FARTHEST_MS:
        return ""
    wanted = f"expected p95 up to {TOLERANCE_MS:g} and max up to {FARTHEST_MS:g} ms"
    return f"the model's stops are off by p95 {error['p95']:g}, max {error['max']:g} ms: {wanted}"


# ---- the report ---------------------------------------------------------------------------------------------------


def table(found: dict[str, Any]) -> Table:
    """The figures as a person reads them."""
    out = Table("packets", "stops", "stop, ms", "start, ms", "buffer, ms")
    out.caption = "stops: undisturbed of all; stop, start: how far the model is off, p50 / p95 / max; "
    out.caption += "buffer: mean delay, model / libwebrtc"
    for name, one in {**found["patterns"], "all": found["all"]}.items():
        sure = f"{one['stops'] - one['stops_held_up']} of {one['stops']}"
        errors = [words(one[key]) for key in ("stop_error_ms", "start_error_ms")]
        out.add_row(name, sure, *errors, both(one, "delay_ms"))
    return out


def words(error: dict[str, float] | None) -> str:
    return " / ".join(f"{value:.1f}" for value in error.values()) if error else ""


def both(one: dict[str, Any], key: str) -> str:
    return f"{one['model'][key]:g} / {one['libwebrtc'][key]:g}" if one["model"] else ""


def written(path: str, found: dict[str, Any], load: float) -> None:
    """Machine, versions and figures. Raises OSError."""
    made_on = describe("", [*PROGRAM.split()[1:], OPTION, "--json", path])
    kept = {name: made_on[name] for name in ("cpu", "cores", "system", "python", "numpy", "date", "command")}
    versions = {name: version(name) for name in ("breezert", "aiortc", "av")}
    write_json(path, {**kept, **versions, "wrtc": VERSION, "load_average_before": load, **found})


def main(json: str | None = None, quiet: bool = False) -> int:
    """Compares, prints a table, writes the JSON where a path is given; - is standard output.

    0: the model hears what libwebrtc hears; 1: it does not, or the machine was too busy to tell; 2, after one line on
    standard error: there was nothing to compare, as without Node.js or npm; 130: interrupted."""
    console = Console(stderr=True)
    load = round(os.getloadavg()[0], 2)  # what others take holds up the listener's process
    try:
        if json is not None:
            check_writable(json)
        with installed() as folder, Progress(console=console, disable=quiet, refresh_per_second=2) as progress:
            bar = progress.add_task("utterances", total=ROUNDS * len(PATTERNS) * CYCLES)
            found = asyncio.run(checked(folder, lambda: progress.advance(bar)))
        console.print(table(found))
        if json is not None:
            written(json, found, load)
    except (WrtcError, SelfCheckError, LibraryMissing, OSError, ValueError) as error:
        print(f"{PROGRAM} {OPTION}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if said := fault(found):
        print(f"{PROGRAM} {OPTION}: {said}", file=sys.stderr)
    return int(bool(said))
