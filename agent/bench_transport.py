"""The command `bench transport`: how evenly packets leave for many listeners, and how soon a microphone is heard.

No model is loaded by what is measured: speech is there at once. The server, with its real sessions, tracks and peers,
runs in a process of its own, and those who listen or speak in another; it knows nothing of what is said. What becomes
a figure, bench_arrivals.py says.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import socket
import sys
import threading
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection as Pipe
from typing import Any

import msgspec
import numpy as np
from aiohttp import web
from aiortc import RTCBundlePolicy, RTCConfiguration, RTCRtpSender, RTCSessionDescription
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from agent.answering import Answering
from agent.bench_arrivals import (
    BACK_MS,
    TARGET_BACK_MS,
    WARM_SECONDS,
    BenchError,
    Listened,
    Spoken,
    of_microphone,
    of_packets,
)
from agent.bench_browser import PACKET_SAMPLES
from agent.bench_report import SENTENCES, Advance, Line, said, table, words
from agent.brain import BoundedBrain, ReplyLimits
from agent.calls import CallLimits
from agent.client import Client
from agent.closing import Connection
from agent.conversation import Conversation
from agent.dial import ClientError
from agent.dial import Line as Dial
from agent.dialogue import UserTurn
from agent.ears import Ears
from agent.guard import Access
from agent.leftovers import set_apart
from agent.protocol import CHANNEL, Ping, ServerMessage, SessionCreated, Speak, SpeechStopped, SpeechUnderrun, Stats
from agent.receive import FRAME_SAMPLES, Heard
from agent.server import attach
from agent.session import Session
from agent.transcribe import TranscriberConfig, make_transcriber
from agent.wire import divert
from engine.clock import MonotonicClock
from engine.core import Chunk, Finished, FinishReason, ModelSpec, Output, Playhead, Request, RequestStats
from engine.machine import check_writable, describe, write_json
from engine.messages import RuntimeConfig
from engine.options import positive, positive_number
from engine.runtime import EngineError, Runtime

PCM = NDArray[np.int16]
CHUNK_FRAMES = 16
"""Of 80 ms: what an engine hands over that has time."""
SETTLE_SECONDS = 2.0
"""After the last call was made: connecting costs more than talking."""
PATIENCE = 60.0
"""Seconds for all calls to be made, and for a process to begin or to report."""
BATCH = 5
"""Calls that are made at once."""
PING_SECONDS = 1.0
LOST = {0: (), 1: (50,), 5: (10, 40, 41, 42, 75)}
"""By percent, which of every hundred packets of the microphone are not sent: a burst is among them."""
TARGET_P99_MS, TARGET_MICROPHONE_MS = 30.0, 40.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that the command measures."""

    listened: list[Listened]
    spoken: list[Spoken]


# ---- the server's process -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Speech:
    """What is played over and over: utterances, int16 [samples] each."""

    spec: ModelSpec
    utterances: tuple[PCM, ...]


class Recording:
    """Stands where an engine stands, and has all of its speech at once."""

    def __init__(self, speech: Speech) -> None:
        self.spec = speech.spec
        self._utterances = speech.utterances
        self._count = 0

    def submit(self, request: Request, deliver: Callable[[Output], None]) -> int:
        self._count += 1
        pcm, size = self._utterances[self._count % len(self._utterances)], self.spec.samples_per_frame
        step = CHUNK_FRAMES * size
        for start in range(0, pcm.size, step):
            part, final = pcm[start : start + step], start + step >= pcm.size
            codes = np.zeros((-(-part.size // size), self.spec.num_codebooks), np.int16)
            slack = float("inf") if final else part.size / self.spec.sample_rate
            deliver(Chunk(self._count, request.epoch, start // size, part, codes, slack, final))
        stats = RequestStats(0.0, 0.0, 0.0, pcm.size // size, pcm.size / self.spec.sample_rate, {})
        deliver(Finished(self._count, request.epoch, FinishReason.END, stats))
        return self._count

    def append_text(self, request_id: int, text: str) -> None: ...

    def end_text(self, request_id: int, text: str = "") -> None: ...

    def cancel(self, request_id: int) -> None: ...

    def playhead(self, event: Playhead) -> None: ...

    def snapshot(self) -> Mapping[str, float]:
        return {}


class Mute:
    """A brain that has nothing to say."""

    async def reply(self, turn: UserTurn) -> AsyncGenerator[str]:
        return
        yield ""

    async def close(self) -> None: ...


class Journal:
    """When each packet of a microphone came, was handed over as a frame, and was judged by the VAD.

    It reaches into Ears and Receiver, so that what is measured is what runs.
    """

    def __init__(self, ears: Ears) -> None:
        self.arrivals = list[tuple[float, int]]()
        """Instant and sequence number."""
        self.frames = list[tuple[float, float, int, bool]]()
        """Instant, arrival of the packet with the last sample, position behind that sample, whether it is a guess."""
        self.judged = list[tuple[float, int]]()
        """Instant, position behind the last sample that was judged."""
        self._now, self._end = MonotonicClock().now, 0
        receiver: Any = ears.receiver
        push, heard = receiver._buffer.push, receiver.heard

        def note_push(sequence: int, timestamp: int, payload: bytes, now: float, source: int = 0) -> None:
            self.arrivals.append((now, sequence))
            push(sequence, timestamp, payload, now, source)

        def note_heard(frame: Heard) -> None:
            self.frames.append((self._now(), frame.received_at, frame.position + FRAME_SAMPLES, frame.concealed))
            heard(frame)

        receiver._buffer.push, receiver.heard = note_push, note_heard
        self._follow(ears)

    def _follow(self, ears: Any) -> None:
        """From when the VAD is made on, which takes some frames."""
        listening = ears._listening
        if listening is None:
            asyncio.get_running_loop().call_later(0.02, self._follow, ears)
            return
        listen, listened = listening.listen, ears._listened

        def note_listen(pieces: list[Any]) -> list[Any]:
            ends = (piece.position + FRAME_SAMPLES for piece in pieces if isinstance(piece, Heard))
            self._end = max([self._end, *ends])
            judged: list[Any] = listen(pieces)
            return judged

        def note_listened(done: asyncio.Future[Any]) -> None:
            waiting = listening._framer._rest.size
            listened(done)
            self.judged.append((self._now(), self._end - waiting))

        listening.listen, ears._listened = note_listen, note_listened

    @property
    def data(self) -> dict[str, Any]:
        return {"arrivals": self.arrivals, "frames": self.frames, "judged": self.judged}


def serve(pipe: Pipe, speech: Speech, max_peers: int, hears: bool) -> None:
    """The server's process, until the pipe is closed. It sends its address, then answers with what it has counted."""
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_serve(pipe, speech, max_peers, hears))


async def _serve(pipe: Pipe, speech: Speech, max_peers: int, hears: bool) -> None:
    app, journals = web.Application(), list[Journal]()

    def opened(session: Session) -> None:
        if isinstance(session.partner, Conversation) and isinstance(session.partner.ears, Ears):
            journals.append(Journal(session.partner.ears))

    def counted() -> dict[str, Any]:
        lines = calls.metrics.render().decode().splitlines()
        stalls = next(float(line.split()[1]) for line in lines if line.startswith("breezert_pacing_stalls_total "))
        return {"cpu": time.process_time(), "stalls": stalls, "microphones": [journal.data for journal in journals]}

    calls = attach(
        app,
        Recording(speech),
        access=Access(rate=1000.0),
        limits=CallLimits(max_peers=max_peers),
        opened=opened,
        answering=silent() if hears else None,
    )
    runner = web.AppRunner(app)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening).start()
    set_apart()  # as `serve` does
    pipe.send(f"http://127.0.0.1:{listening.getsockname()[1]}")
    async for _ in asked(pipe):
        pipe.send(counted())
    await runner.cleanup()


def silent() -> Answering:
    """Somebody who listens and says nothing."""
    return Answering(BoundedBrain(Mute(), ReplyLimits(), apology=""), make_transcriber(TranscriberConfig("none")))


async def asked(pipe: Pipe) -> AsyncGenerator[Any]:
    """What comes through the pipe, until its other end is closed. A thread that waits costs nothing."""
    came, loop = asyncio.Queue[tuple[Any, ...]](), asyncio.get_running_loop()

    def wait() -> None:
        try:
            while True:
                loop.call_soon_threadsafe(came.put_nowait, (pipe.recv(),))
        except (EOFError, OSError):
            loop.call_soon_threadsafe(came.put_nowait, ())

    threading.Thread(target=wait, daemon=True).start()
    while question := await came.get():
        yield question[0]


# ---- the process of those who listen ------------------------------------------------------------------------------


class Listener:
    """A call that notes when packets come, decodes nothing, and asks for more speech whenever an utterance is over."""

    def __init__(self, line: Dial) -> None:
        self.arrivals, self.timestamps, self.sequences = list[float](), list[int](), list[int]()
        self.underruns = 0
        self.settled = asyncio.Event()
        self._line, self._asked = line, 0
        self._decoder, self._encoder = msgspec.json.Decoder(ServerMessage), msgspec.json.Encoder()
        self._connection = Connection(RTCConfiguration(iceServers=[], bundlePolicy=RTCBundlePolicy.MAX_BUNDLE))
        transceiver = self._connection.addTransceiver("audio", direction="recvonly")
        codecs = RTCRtpSender.getCapabilities("audio").codecs
        transceiver.setCodecPreferences([codec for codec in codecs if codec.mimeType.lower() == "audio/opus"])
        divert(transceiver.receiver, self._note)
        self._channel = self._connection.createDataChannel(CHANNEL)
        self._channel.on("message", self._take)

    async def call(self) -> None:
        """Returns when the server has introduced itself. Raises ClientError and TimeoutError."""
        await self._connection.setLocalDescription()
        answer = await self._line.offer(self._connection.localDescription.sdp)
        await self._connection.setRemoteDescription(RTCSessionDescription(answer.sdp, "answer"))
        await self.settled.wait()

    def ping(self) -> None:
        """What a client says every second."""
        self._tell(Ping(t=time.monotonic()))
        self._tell(Stats(total_samples_received=PACKET_SAMPLES * len(self.arrivals), packets_lost=0, jitter=0.0))

    async def close(self) -> None:
        await self._connection.close()

    def _note(self, source: int, sequence: int, timestamp: int, payload: bytes) -> None:
        self.arrivals.append(time.monotonic())
        self.timestamps.append(timestamp)
        self.sequences.append(sequence)

    def _take(self, data: str | bytes) -> None:
        message = self._decoder.decode(data)
        if isinstance(message, SessionCreated):
            self.settled.set()
            self._ask()  # one that plays, and one that waits behind it
            self._ask()
        elif isinstance(message, SpeechStopped):
            self._ask()
        self.underruns += isinstance(message, SpeechUnderrun)

    def _ask(self) -> None:
        self._asked += 1
        self._tell(Speak(id=f"{self._asked}", text="over and over"))

    def _tell(self, message: msgspec.Struct) -> None:
        if self._channel.readyState == "open":
            self._channel.send(self._encoder.encode(message).decode())


def listen(pipe: Pipe, url: str, peers: int) -> None:
    """The process of all listeners: sends a word when all calls speak, then, asked with two instants, what came between
    them. Sends an exception where that cannot be."""
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_listen(pipe, url, peers))


async def _listen(pipe: Pipe, url: str, peers: int) -> None:
    line = Dial(url, None, None)
    listeners = [Listener(line) for _ in range(peers)]
    pinging = asyncio.create_task(ping(listeners))
    try:
        async with asyncio.timeout(PATIENCE):
            for start in range(0, peers, BATCH):
                await asyncio.gather(*(listener.call() for listener in listeners[start : start + BATCH]))
        set_apart()  # what arrives meanwhile would be late
        pipe.send("ready")
        async for question in asked(pipe):
            pipe.send(answered(question, listeners))
    except (ClientError, TimeoutError) as error:
        pipe.send(BenchError(f"not all of {peers} calls could be made: {error or type(error).__name__}"))
    finally:
        pinging.cancel()
        await asyncio.gather(*(listener.close() for listener in listeners))
        await line.close()


def answered(question: tuple[float, float] | None, listeners: list[Listener]) -> Any:
    """The process's CPU seconds, or of each call the packets between two instants: arrivals, timestamps, sequences."""
    if question is None:
        return {"cpu": time.process_time(), "underruns": sum(listener.underruns for listener in listeners)}
    packets = []
    for listener in listeners:
        kept = slice(*(bisect_left(listener.arrivals, instant) for instant in question))
        packets.append((listener.arrivals[kept], listener.timestamps[kept], listener.sequences[kept]))
    return packets


async def ping(listeners: list[Listener]) -> None:
    """For ever; one after another, as clients do that have nothing to do with each other."""
    while True:
        for listener in listeners:
            listener.ping()
            await asyncio.sleep(PING_SECONDS / len(listeners))


# ---- the process of the one who speaks ----------------------------------------------------------------------------


def speak(pipe: Pipe, url: str, speech: Speech, seconds: float, lost: tuple[int, ...]) -> None:
    """A call that speaks for so long, and then sends a word, or an exception."""
    logging.basicConfig(level=logging.WARNING)
    try:
        asyncio.run(_speak(url, speech, seconds, lost))
        pipe.send("spoken")
    except ClientError as error:
        pipe.send(BenchError(f"the call could not be made: {error}"))
    pipe.close()


async def _speak(url: str, speech: Speech, seconds: float, lost: tuple[int, ...]) -> None:
    pcm = np.concatenate(speech.utterances)
    pcm = np.resize(pcm, round(seconds * speech.spec.sample_rate))  # over and over
    async with Client.connect(url) as call:
        lose(call, lost)
        await call.send_microphone(pcm, speech.spec.sample_rate)


def lose(call: Client, lost: tuple[int, ...]) -> None:
    """Of every hundred RTP packets of the microphone, those are not sent."""
    transport: Any = call._transceiver.sender.transport
    send, count = transport._send_rtp, iter(range(2**31))

    async def some(data: bytes) -> None:
        is_rtcp = 64 <= data[1] & 0x7F <= 95  # RFC 5761, section 4
        if is_rtcp or next(count) % 100 not in lost:
            await send(data)

    transport._send_rtp = some


# ---- the measurements ---------------------------------------------------------------------------------------------


@contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[Pipe]:
    """A fresh process that gets one end of a pipe and ends when this end is closed."""
    spawn = multiprocessing.get_context("spawn")
    ours, its = spawn.Pipe()
    started = spawn.Process(target=target, args=(its, *arguments), daemon=True)
    started.start()
    its.close()
    try:
        yield ours
    finally:
        ours.close()
        started.join(PATIENCE)
        if started.exitcode is None:
            started.kill()


def receive(pipe: Pipe, within: float = PATIENCE) -> Any:
    """What comes next. Raises BenchError."""
    try:
        said = pipe.recv() if pipe.poll(within) else BenchError(f"a process said nothing for {within:.0f} s")
    except EOFError:
        raise BenchError("a process ended early: what it printed says why") from None
    if isinstance(said, BenchError):
        raise said
    return said


def ask(pipe: Pipe, question: Any = None) -> Any:
    pipe.send(question)
    return receive(pipe)


def wait(seconds: float, advance: Advance) -> None:
    """Tells how it passes; seldom, so that looking does not disturb what is looked at."""
    began_at = time.monotonic()
    while (passed := time.monotonic() - began_at) < seconds:
        advance(passed)
        time.sleep(min(1.0, seconds - passed))  # the measurement lasts so long; the bar moves once a second
    advance(seconds)


def listened(speech: Speech, peers: int, seconds: float, advance: Advance) -> Listened:
    """So many calls hear speech for so long. Raises BenchError."""
    with process(serve, speech, peers, False) as server:
        url = receive(server)
        with process(listen, url, peers) as listeners:
            receive(listeners, 2 * PATIENCE)
            time.sleep(SETTLE_SECONDS)  # calls that have just begun are not measured
            before, heard_before, began_at = ask(server), ask(listeners), time.monotonic()
            wait(seconds, advance)
            ended_at, after, heard = time.monotonic(), ask(server), ask(listeners)
            packets = ask(listeners, (began_at, ended_at))
    return Listened(
        peers,
        round(ended_at - began_at, 1),
        **of_packets(packets),
        underruns=heard["underruns"] - heard_before["underruns"],
        pacing_stalls=int(after["stalls"] - before["stalls"]),
        server_cpu_percent=round(100 * (after["cpu"] - before["cpu"]) / (ended_at - began_at), 1),
        receiver_cpu_percent=round(100 * (heard["cpu"] - heard_before["cpu"]) / (ended_at - began_at), 1),
    )


def spoken(speech: Speech, loss: int, seconds: float, advance: Advance) -> Spoken:
    """A microphone that speaks for so long, with so many percent lost. Raises BenchError."""
    answers = silent()
    assert answers.vad is not None
    with process(serve, speech, 1, True) as server:
        url = receive(server)
        with process(speak, url, speech, WARM_SECONDS + seconds, LOST[loss]) as speaker:
            wait(WARM_SECONDS + seconds, advance)
            receive(speaker)
            (journal,) = ask(server)["microphones"]
    return Spoken(loss, **of_microphone(journal), vad=answers.vad)


def written(value: Any) -> Any:
    """What JSON can have of it: null for infinity."""
    if isinstance(value, dict):
        return {key: written(each) for key, each in value.items()}
    if isinstance(value, list):
        return [written(each) for each in value]
    return None if value == float("inf") else value


def measure(speech: Speech, peers: Sequence[int], seconds: float, progress: Progress) -> Figures:
    """All of it, one after another. Raises BenchError."""

    def bar(words: str) -> Advance:
        task = progress.add_task(words, total=seconds)
        return lambda done: progress.update(task, completed=done)

    return Figures(
        [listened(speech, count, seconds, bar(f"{count} listening")) for count in peers],
        [spoken(speech, loss, seconds, bar(f"speaking, {loss} % lost")) for loss in LOST],
    )


def recorded() -> Speech:
    """Some sentences of the embedded voice, said now. Raises EngineError."""
    with Runtime.start(RuntimeConfig(device="cpu")) as runtime:
        return Speech(runtime.spec, tuple(said(runtime, Request(text, runtime.spec.sampling)) for text in SENTENCES))


# ---- the report ---------------------------------------------------------------------------------------------------


def rows(figures: Figures) -> Iterator[Line]:
    """(what, value, target, whether it was met) of every line."""
    for one in figures.listened:
        yield from listened_rows(one)
    for mic in figures.spoken:
        yield from spoken_rows(mic)


def listened_rows(one: Listened) -> Iterator[Line]:
    gap, met = one.inter_arrival_ms, one.inter_arrival_ms.p99 < TARGET_P99_MS
    told = f"{words(gap)}; worst call's p99 {one.worst_peer_p99_ms}"
    yield f"{one.peers} listening: packet to packet", told, f"p99 < {TARGET_P99_MS:.0f} ms", met
    odd, lost = 1 - one.share_of_960_steps, one.packets_lost
    yield (
        "  RTP steps other than 960, lost",
        f"{100 * odd:.3g} %, {lost} of {one.packets}",
        "0, 0",
        not odd and not lost,
    )
    load = f"server {one.server_cpu_percent:.0f} %, listeners {one.receiver_cpu_percent:.0f} % of a core"
    yield "  load", f"{load}; {one.underruns} underruns, {one.pacing_stalls} pacing stalls", "", None


def spoken_rows(mic: Spoken) -> Iterator[Line]:
    target, clean = TARGET_MICROPHONE_MS, not mic.loss_percent
    for told, delay in (("to 16 kHz", mic.frame_ms), (f"judged by {mic.vad}", mic.judged_ms)):
        limit, met = (f"p50 <= {target:.0f} ms", delay.p50 <= target) if clean else ("", None)
        yield f"microphone, {mic.loss_percent} % lost: {told}", words(delay), limit, met
    yield "  in its first second", f"max {mic.first_ms} ms", "", None
    if back := mic.back_ms:
        met = back.max <= TARGET_BACK_MS
        yield f"  losses: in time again (<= {BACK_MS:.0f} ms)", words(back), f"max <= {TARGET_BACK_MS:.0f} ms", met


def parser() -> argparse.ArgumentParser:
    """The command line. Unknown options are errors."""
    how = "Measures the way of sound without any model: many calls that listen to speech that is there at once, then "
    how += "one call that speaks while packets are lost. Everything stays on loopback. Takes some four minutes."
    p = argparse.ArgumentParser(prog="breezert bench transport", allow_abbrev=False, description=how)
    add = p.add_argument
    text = "calls at once; several are measured one after another (default: %(default)s)"
    add("--peers", type=positive, nargs="+", default=[1, 10, 20, 40], metavar="N", help=text)
    text = "of each measurement (default: %(default)s)"
    add("--seconds", type=positive_number, default=30.0, metavar="S", help=text)
    add("--json", metavar="FILE", help="write all figures there; - is standard output")
    return p


def main(argv: Sequence[str] | None = None) -> int:
    """Measures, prints a table, writes the JSON. A mistake is one line on standard error and exit status 2."""
    argv = list(sys.argv[1:] if argv is None else argv)
    args = parser().parse_args(argv)
    console = Console(stderr=True)
    load = round(os.getloadavg()[0], 2)  # of others: what they take of the cores is missing here
    try:
        if args.json:
            check_writable(args.json)
        with console.status("the voice says what is to be played"):
            speech = recorded()
        with Progress(console=console) as progress:
            figures = measure(speech, args.peers, args.seconds, progress)
        console.print(table("transport alone", rows(figures)))
        if args.json:
            versions = {name: version(name) for name in ("aiortc", "av", "cryptography")}
            head = {**describe("none", ["bench", "transport", *argv]), **versions}
            write_json(args.json, {**head, "load_average_before": load, **written(asdict(figures))})
    except (BenchError, EngineError, OSError, ValueError) as error:
        print(f"breezert bench transport: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
