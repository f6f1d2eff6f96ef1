"""agent/wrtc.py, and through it what a real libwebrtc hears: gaps, stops, a hundred interruptions in one call.

The server runs in this process and its engine says tones, so every block that is heard tells whose it is.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sized
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import astuple, dataclass, fields, replace
from functools import cache, partial
from io import StringIO
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import tones
from aiohttp import web
from aiohttp.test_utils import TestServer
from npm import unavailable
from numpy.typing import NDArray
from scripted_runtime import SPEC, Job
from sounds import clip, cough, int16
from tones import PITCHES, Ear, StairRuntime, ToneRuntime

from agent import wrtc
from agent.answering import Answering
from agent.brain import BrainConfig, make_brain
from agent.browser import AUDIBLE
from agent.calls import Calls
from agent.conversation import Conversation
from agent.guard import Access
from agent.opus import OpusDecoder
from agent.pace import MAX_BEHIND, PACKET_SECONDS
from agent.peer import Peer
from agent.playout import FADE_SECONDS, CueKind, Packet
from agent.server import attach
from agent.session import Session, Utterance
from agent.track import PACKET_TICKS
from agent.transcribe import TranscriberConfig, make_transcriber
from agent.turn import Pause, Resume
from agent.wrtc import BLOCK_SECONDS, Call, WrtcError, installed, listener

WITHIN = 20.0
"""Seconds after which a wait has failed."""
CYCLES = 100
SPEECH_SECONDS = 10
DROPPED = 3
"""Packets in a row: 60 ms, more than the jitter buffer holds."""
STAIRS = 1500
"""Frames of the reply that is paused a hundred times: two minutes."""
RESUMED = 0.25
"""Seconds from Resume to the first sound at the listener."""
LATE = 0.008
"""Seconds by which a packet or a block may come too late after the one before; beyond, the machine does not keep up."""


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(installed())
        except WrtcError as error:
            unavailable(str(error))
        yield found


@dataclass(frozen=True, slots=True)
class Sent:
    """A packet that the server gave to its socket, or would have."""

    at: float
    sequence: int
    timestamp: int


class Wire:
    """Notes the audio packets that a peer sends, and drops as many of the next ones as it is told."""

    def __init__(self, peer: Peer) -> None:
        self.sent: list[Sent] = []
        self.drop = 0
        transport = peer._connection.getSenders()[0].transport
        self._send, transport._send_rtp = transport._send_rtp, self._pass

    async def _pass(self, data: bytes) -> None:
        if not 192 <= data[1] <= 223:  # RTCP, which shares the port (RFC 5761, section 4)
            sequence, timestamp = int.from_bytes(data[2:4], "big"), int.from_bytes(data[4:8], "big")
            self.sent.append(Sent(time.monotonic(), sequence, timestamp))
            if self.drop:
                self.drop -= 1
                return
        await self._send(data)


class Server:
    """Speaks tones."""

    def __init__(self, url: str, calls: Calls, engine: ToneRuntime) -> None:
        self.url, self.calls, self.engine = url, calls, engine

    @property
    def peer(self) -> Peer:
        (peer,) = self.calls._peers.values()
        assert isinstance(peer, Peer)
        return peer

    @property
    def session(self) -> Session:
        return self.peer.session

    async def ended(self) -> None:
        """Returns when every call was given back."""
        async with asyncio.timeout(WITHIN):
            while self.calls.sessions:  # noqa: ASYNC110  (there is nothing to wait on: that is what is tested)
                await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(
    *, pace: float = 0.02, answers: bool = False, speech: type[ToneRuntime] = ToneRuntime
) -> AsyncIterator[Server]:
    spec = replace(SPEC, max_text_chars=STAIRS) if speech is StairRuntime else SPEC
    with speech(spec, pace=pace, chunk_frames=4) as engine:
        app = web.Application()
        echo = Answering(make_brain(BrainConfig()), make_transcriber(TranscriberConfig())) if answers else None
        calls = attach(app, engine, access=Access(rate=1000.0), answering=echo)
        async with TestServer(app) as server:
            yield Server(str(server.make_url("/")), calls, engine)


def told(call: Call, kind: str, name: str) -> Callable[[], list[dict[str, Any]]]:
    """What the server said of that utterance."""
    return lambda: [message for message in call.heard.of_type(kind) if message["id"] == name]


# ---- the meter of gaps --------------------------------------------------------------------------------------------


def audibly_concealed(report: dict[str, Any]) -> int:
    """Samples that libwebrtc made up, inside of sound."""
    return int(report["concealedSamples"] - report["silentConcealedSamples"])


def on_time(instants: list[float], step: float, start: float, end: float) -> bool:
    """Whether none of them between start and end was late after the one before it."""
    there = [at for at in instants if start <= at <= end]
    return max(np.diff(there)) < step + LATE


async def test_sound_has_no_gap_where_no_packet_was_lost_and_one_where_some_were(folder: Path) -> None:
    """Concealment is counted second by second, and where the machine itself was late nothing is concluded from it."""
    async with serving() as server, listener(server.url, folder) as call:
        wire, reports = Wire(server.peer), call.heard.reports
        call.send(type="speak", id="a", text=tones.text(0, 200))
        await call.wait(told(call, "speech.started", "a"), WITHIN)
        start = len(reports) + 1
        await call.wait(lambda: len(reports) > start + SPEECH_SECONDS, WITHIN)
        blocks, packets = [at for at, _ in call.heard.blocks], [packet.at for packet in wire.sent]
        spans = [(one["at"] - 0.5, other["at"]) for one, other in pairwise(reports[start:])]
        calm = [on_time(blocks, BLOCK_SECONDS, *s) and on_time(packets, PACKET_SECONDS, *s) for s in spans]
        concealed = np.diff([audibly_concealed(report) for report in reports[start:]])
        unseen = 0 if all(calm) else len(calm) // 4  # a machine that was late may also have been where nobody looks
        assert np.count_nonzero(concealed[calm]) <= unseen, f"{concealed} samples second by second, calm: {calm}"
        assert calm.count(True) >= len(calm) // 2 or os.getloadavg()[0] > os.cpu_count()

        before = await call.stats()
        assert before["packetsLost"] == 0
        wire.drop = DROPPED
        await call.wait(lambda: not wire.drop, WITHIN)
        dropped = len(wire.sent)
        await call.wait(lambda: len(wire.sent) > dropped + 20, WITHIN)
        after = await call.stats()
        assert after["packetsLost"] == DROPPED
        assert audibly_concealed(after) - audibly_concealed(before) > PACKET_TICKS
        assert not call.heard.of_type("speech.stopped"), "all of this was measured inside of sound"


# ---- the meter of stops -------------------------------------------------------------------------------------------


async def heard_first(call: Call, ear: Ear, number: int, start: int) -> int:
    """The index of the first block of that tone, from `start` on, once it was heard."""

    def found() -> list[int]:
        index = ear.first(number, start)
        return [] if index is None else [index]

    return (await call.wait(found, WITHIN))[0]


async def test_after_stop_it_falls_silent_and_stays_silent(folder: Path) -> None:
    async with serving() as server, listener(server.url, folder, record=True) as call:
        ear, blocks = Ear(call.heard.pcm), call.heard.blocks
        for n in range(5):
            call.send(type="speak", id=str(n), text=tones.text(n, 100))
            first = await heard_first(call, ear, n, len(blocks))
            await call.wait(partial(longer, blocks, first + 20 + 3 * n), WITHIN)
            stopped_at = await call.send(type="stop")
            before = sum(at < stopped_at for at, _ in blocks)
            await call.wait(told(call, "speech.stopped", str(n)), WITHIN)
            await call.wait(partial(longer, blocks, before + 100), WITHIN)
            loud = [peak > AUDIBLE for _, peak in blocks[before:]]
            silent = loud.index(False)
            assert silent > 0, "it had not ended before"
            assert not any(loud[silent:]), "once it was silent, nothing more of it was heard"


def longer(rows: Sized, count: int) -> bool:
    return len(rows) > count


# ---- a hundred interruptions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cycle:
    """One utterance: when it was asked for and stopped, and from which block on it was heard."""

    number: int
    spoken_at: float
    first: int
    stopped_at: float


@dataclass(frozen=True, slots=True)
class Holdings:
    """What a call holds while it is silent."""

    tasks: int
    threads: int
    descriptors: int
    utterances: int
    buffered: float
    speaking: int

    @classmethod
    def of(cls, server: Server) -> Holdings:
        """Once nothing is being said."""
        assert server.session.quiet
        server.engine.forget()
        gc.collect()
        return cls(
            len(asyncio.all_tasks()),
            threading.active_count(),
            len(os.listdir("/proc/self/fd")),  # noqa: PTH208
            sum(isinstance(thing, Utterance) for thing in gc.get_objects()),
            server.session._buffer.buffered,
            len(server.engine.jobs) - len(server.engine.cancelled),
        )


@asynccontextmanager
async def unstalled() -> AsyncIterator[None]:
    """Lets the collector look at new things only: all of them take 70 ms, and for such a stall of the server the jitter
    buffer holds more for the next seconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def interrupted(call: Call, ear: Ear, number: int, start: int) -> Cycle:
    """Speaks, and interrupts what is heard at another phase each time."""
    spoken = call.send(type="speak", id=str(number), text=tones.text(number, 100))
    first = await heard_first(call, ear, number, start)
    await call.wait(partial(longer, call.heard.blocks, first + 3 + 2 * (number % 7)), WITHIN)
    await asyncio.sleep(0.0013 * (number % 16))  # justified: a phase inside of the 20 ms of a packet is what is wanted
    stopped = call.send(type="stop")
    if number % 2:  # else the next one is asked for with the same breath
        await call.wait(told(call, "speech.stopped", str(number)), WITHIN)
    return Cycle(number, await spoken, first, await stopped)


async def test_a_hundred_interruptions_in_one_call(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    async with unstalled(), serving(pace=0.05) as server, listener(server.url, folder, record=True) as call:
        wire, ear, cycles, start = Wire(server.peer), Ear(call.heard.pcm), list[Cycle](), 0
        for n in range(3):
            start = (await interrupted(call, ear, n, start)).first + 1
        await silence(server, call)
        before, packets, start = Holdings.of(server), len(wire.sent), len(ear.numbers)
        for n in range(3, 3 + CYCLES):
            cycles.append(await interrupted(call, ear, n, start))
            start = cycles[-1].first + 1
        packets = wire.sent[packets:]
        await silence(server, call)
        after = Holdings.of(server)

        assert_each_is_heard_alone(call, ear, cycles, packets)
        assert_paced(packets)
        # Less is no leak: the listener's idle HTTP connection, which is in this process, may be closed meanwhile.
        held = zip(fields(Holdings), astuple(before), astuple(after), strict=True)
        assert not [(field.name, was, now) for field, was, now in held if now > was]
        assert after.buffered == after.speaking == 0
        assert sorted(server.engine.cancelled) == list(range(1, CYCLES + 4)), "each was given back, none twice"
        for name, values in figures(call, ear, cycles).items():
            shown = " ".join(f"p{p} {np.percentile(values, p):.1f}" for p in (50, 95, 99, 100))
            record_property(name, shown)
            print(f"{name}: {shown}")


async def silence(server: Server, call: Call) -> None:
    """Returns once nothing is being said or heard."""
    await server.session.idle()
    heard = len(call.heard.blocks)
    await call.wait(lambda: longer(call.heard.blocks, heard + 50), WITHIN)


def assert_each_is_heard_alone(call: Call, ear: Ear, cycles: list[Cycle], packets: list[Sent]) -> None:
    """From its first block to the first of the next one there is no other tone than its own, and once it fell silent
    after its stop, not that one either: where the server stood still then, silence says nothing."""
    stalls = [b.at for a, b in pairwise(packets) if b.at - a.at > MAX_BEHIND * PACKET_SECONDS]
    for cycle, end in zip(cycles, ends(ear, cycles), strict=True):
        heard = list(zip(call.heard.blocks[cycle.first : end], ear.numbers[cycle.first : end], strict=True))
        assert {number for _, number in heard} <= {None, cycle.number % len(PITCHES)}, f"in cycle {cycle.number}"
        silence = (index for index, ((at, peak), _) in enumerate(heard) if at > cycle.stopped_at and peak < AUDIBLE)
        left = [number for _, number in heard[next(silence, len(heard)) :]]
        stalled = any(cycle.stopped_at - 0.1 < at < cycle.stopped_at + 0.4 for at in stalls)
        assert stalled or set(left) <= {None}, f"in cycle {cycle.number}, after its end"


def ends(ear: Ear, cycles: list[Cycle]) -> list[int]:
    """Of each cycle the block in which the next one begins."""
    return [cycle.first for cycle in cycles[1:]] + [len(ear.numbers)]


def assert_paced(packets: list[Sent]) -> None:
    """RTP time and numbers go on without a step, and as many packets were sent as fit into the time."""
    pairs = list(pairwise(packets))
    assert {(b.timestamp - a.timestamp) % 2**32 for a, b in pairs} == {PACKET_TICKS}
    assert {(b.sequence - a.sequence) % 2**16 for a, b in pairs} == {1}
    elapsed = packets[-1].at - packets[0].at - given_up(packets)
    assert len(pairs) == pytest.approx(elapsed / PACKET_SECONDS, abs=MAX_BEHIND + 1)


def given_up(packets: list[Sent]) -> float:
    """Seconds for which no packet was sent, rightly: a stall of the machine had left it too far behind."""
    due_at, seconds = packets[0].at, 0.0
    for before, packet in pairwise(packets):
        due_at += PACKET_SECONDS
        behind = packet.at - due_at - PACKET_SECONDS  # as the next one is, when it is asked for
        if behind > MAX_BEHIND * PACKET_SECONDS and packet.at - before.at > 2 * PACKET_SECONDS:
            due_at += behind
            seconds += behind
    return seconds


def figures(call: Call, ear: Ear, cycles: list[Cycle]) -> dict[str, list[float]]:
    """Milliseconds: asked for -> the first block with its tone; stop sent -> the end of the last one."""
    at = [instant for instant, _ in call.heard.blocks]
    ends = [cycle.first for cycle in cycles[1:]] + [len(ear.numbers)]
    lasts = [
        max(i for i in range(c.first, end) if ear.numbers[i] is not None) for c, end in zip(cycles, ends, strict=True)
    ]
    return {
        "speak_to_tone_ms": [1000 * (at[c.first] - c.spoken_at) for c in cycles],
        "stop_to_end_ms": [1000 * (at[i] + BLOCK_SECONDS - c.stopped_at) for c, i in zip(cycles, lasts, strict=True)],
    }


# ---- a hundred pauses ---------------------------------------------------------------------------------------------


async def test_a_hundred_pauses_in_one_call_lose_nothing_and_double_nothing(
    folder: Path, record_property: Callable[[str, object], None]
) -> None:
    serves = serving(pace=0.05, answers=True, speech=StairRuntime)
    async with unstalled(), serves as server, listener(server.url, folder, record=True) as call:
        packets, ear, waited, start = outbound(server.session), Ear(call.heard.pcm), list[float](), 0
        call.send(type="speak", id="a", text=tones.text(0, STAIRS))
        await call.wait(lambda: sounding(ear, 0), WITHIN)
        for n in range(CYCLES):
            seconds, start = await paused(server, call, ear, n, start)
            waited.append(seconds)
        await call.wait(partial(longer, call.heard.blocks, start + 20), WITHIN)
        assert not call.heard.of_type("speech.stopped"), "the reply went on"

    assert len(assert_goes_on_at_the_sample(packets, stairs())) == CYCLES + 1
    heard = [number for number in ear.numbers if number is not None]
    assert {(b - a) % len(PITCHES) for a, b in pairwise(heard)} == {0, 1}, "the listener hears each frame, in order"
    shown = " ".join(f"p{p} {1000 * np.percentile(waited, p):.1f}" for p in (50, 95, 99, 100))
    record_property("resume_to_sound_ms", shown)
    print(f"resume_to_sound_ms: {shown}")
    assert max(waited) < RESUMED or os.getloadavg()[0] > os.cpu_count()


async def paused(server: Server, call: Call, ear: Ear, number: int, start: int) -> tuple[float, int]:
    """Pauses what is heard, at another phase each time, and goes on once the listener hears nothing. Returns the
    seconds from Resume to the first sound, and the block that it is."""
    conversation, blocks = server.session.partner, call.heard.blocks
    assert isinstance(conversation, Conversation)
    await call.wait(partial(longer, blocks, start + 3 + 2 * (number % 7)), WITHIN)
    await asyncio.sleep(0.0013 * (number % 16))  # justified: a phase inside of the 20 ms of a packet is what is wanted
    first, now = len(blocks), time.monotonic()
    conversation.act(Pause(now, now))
    silent = await call.wait(lambda: [i for i in range(first, len(blocks)) if blocks[i][1] < AUDIBLE], WITHIN)
    asked_at = time.monotonic()
    conversation.act(Resume(asked_at))
    (sound,) = await call.wait(lambda: sounding(ear, silent[-1] + 1), WITHIN)
    return blocks[sound][0] - asked_at, sound


def sounding(ear: Ear, start: int) -> list[int]:
    """The first block of a tone from there on, if there is one yet."""
    return [start + i for i, number in enumerate(ear.numbers[start:]) if number is not None][:1]


def outbound(session: Session) -> list[Packet]:
    """What this session says from now on."""
    packets, sent = list[Packet](), session.track._sent

    def noted(packet: Packet) -> None:
        packets.append(packet)
        sent(packet)

    session.track._sent = noted
    return packets


def stairs() -> NDArray[np.int16]:
    size, rate = SPEC.samples_per_frame, SPEC.sample_rate
    return np.concatenate([tones.stair(frame, size, rate) for frame in range(STAIRS)])


def assert_goes_on_at_the_sample(packets: list[Packet], whole: NDArray[np.int16]) -> list[int]:
    """The runs of sound are parts of the whole, each from the sample on at which the one before began to fade; returns
    where each begins. Only what is within a fade is not looked at."""
    fade, at, begins, sounds = round(FADE_SECONDS * SPEC.sample_rate), 0, list[int](), False
    for packet, after in pairwise(packets):
        if not packet.samples.any():
            sounds = False
            continue
        skipped = 0 if sounds else fade
        if not sounds:
            begins.append(at)
        sounds = True
        if not after.samples.any():
            assert not packet.samples[fade:].any(), "the last one of a run fades"
            continue
        assert (packet.samples[skipped:] == whole[at + skipped : at + packet.samples.size]).all(), f"at sample {at}"
        at += packet.samples.size
    return begins


# ---- what is no interruption, as sound ------------------------------------------------------------------------------

ECHO = 10 ** (-12 / 20)
SOUNDS = {"cough": lambda: np.repeat(int16(cough()), 3), "mhm": lambda: int16(clip("mhm", 48_000))}


@cache
def aloud() -> NDArray[np.int16]:
    """The voice's sentences, over and over; never silent, so that what is silent was paused."""
    sound = int16(np.resize(clip("agent", SPEC.sample_rate), SPEC.max_text_chars * SPEC.samples_per_frame))
    sound[np.abs(sound) < 20] = 20
    return sound


class SpeechRuntime(ToneRuntime):
    """Says every text as that."""

    def sound(self, job: Job, frames: int) -> NDArray[np.int16]:
        size = self.spec.samples_per_frame
        return aloud()[job.frames * size : (job.frames + frames) * size]


@pytest.mark.parametrize("sound", ["cough", "mhm", "echo"])
async def test_a_cough_a_backchannel_and_its_own_echo_cost_a_reply_no_sample(folder: Path, sound: str) -> None:
    """Through libwebrtc's microphone, Opus, VAD, echo guard and turn taking."""
    serves = serving(pace=0.05, answers=True, speech=SpeechRuntime)
    async with serves as server, listener(server.url, folder, noise=0.0004, record=True) as call:
        packets, blocks = outbound(server.session), call.heard.blocks
        call.send(type="speak", id="a", text=tones.text(0, SPEC.max_text_chars))
        await call.wait(told(call, "speech.started", "a"), WITHIN)
        if sound == "echo":
            await echo(call, blocks=800)
        else:
            await call.wait(partial(longer, blocks, len(blocks) + 100), WITHIN)
            await call.say(SOUNDS[sound]())
            await call.wait(partial(longer, blocks, len(blocks) + 200), WITHIN)
        assert not call.heard.of_type("speech.stopped")
        assert not call.heard.of_type("turn.started")
    continued = sum(cue.kind is CueKind.CONTINUED for packet in packets[:-1] for cue in packet.cues)
    assert len(assert_goes_on_at_the_sample(packets, aloud())) == 1 + continued
    assert continued or sound != "mhm"


async def echo(call: Call, blocks: int) -> None:
    """Says what is heard, 12 dB softer."""
    await call.say(np.zeros(4800, np.int16))  # a lead, so that the echo has no gaps
    pcm = call.heard.pcm
    done, end = len(pcm), len(pcm) + blocks
    while done < end:
        await call.wait(partial(longer, pcm, done), WITHIN)
        heard, done = np.concatenate(pcm[done:]), len(pcm)
        await call.say((ECHO * heard).astype(np.int16))


# ---- blocks at a rate of NetEQ's own ------------------------------------------------------------------------------

STAND_IN = """
const sinks = [];
exports.nonstandard = {
  RTCAudioSource: class { createTrack() {} onData() {} },
  RTCAudioSink: class { constructor() { sinks.push(this); } },
};
exports.RTCPeerConnection = class {
  addTransceiver() { return { receiver: {} }; }
  createDataChannel() { return {}; }
  createOffer() {}
  close() {}
  setLocalDescription() {
    this.localDescription = { sdp: "v=0" };
    for (const block of BLOCKS) sinks[0].ondata({ ...block, samples: Int16Array.from(block.samples) });
  }
};
"""
"""For the package: a call in which these blocks are heard at once."""


@asynccontextmanager
async def hearing(folder: Path, *blocks: tuple[int, int, list[int]]) -> AsyncIterator[Call]:
    """Of each block its rate, its channels and its samples, channel by channel in turn."""
    there = folder / "node_modules/@roamhq/wrtc/index.js"
    there.parent.mkdir(parents=True)
    given = [{"sampleRate": rate, "channelCount": count, "samples": samples} for rate, count, samples in blocks]
    there.write_text(f"const BLOCKS = {json.dumps(given)};{STAND_IN}")
    with TemporaryFile("w+") as errors:
        try:
            process = await wrtc.started(folder, 0.0, True, errors)
        except WrtcError as error:
            unavailable(str(error))
        call = Call(process, errors)
        reading = asyncio.create_task(call._read())
        try:
            await call.wait(lambda: call._offer, WITHIN)
            yield call
        finally:
            await wrtc.ended(process, reading)


async def test_a_block_at_another_rate_is_heard_as_long_as_the_others(tmp_path: Path) -> None:
    """Nobody can make libwebrtc take the first packet just between the choice of a block's rate and the block."""
    slow, stereo = list(range(100, 260)), [side for n in range(480) for side in (n, -n)]
    blocks = [(16_000, 1, [0] * 160), (16_000, 1, slow), (48_000, 2, stereo), (48_000, 1, list(range(480)))]
    async with hearing(tmp_path, *blocks) as call:
        silence, repeated, left, whole = call.heard.pcm
        assert not silence.any() and len(call.heard.blocks) == 4
        assert (repeated == np.repeat(slow, 3)).all()
        assert (left == whole).all() and (whole == np.arange(480)).all()
        assert call.heard.blocks[1][1] == pytest.approx(259 / 32768)


# ---- the microphone -----------------------------------------------------------------------------------------------


async def test_what_is_said_reaches_the_server_whole(folder: Path) -> None:
    said = tones.tone(PITCHES[2], 0, 48_000, 48_000)
    async with serving(answers=True) as server, listener(server.url, folder, noise=0.01) as call:
        assert call.listens
        packets = microphone(server.peer)
        asked_at = time.monotonic()
        said_at = await call.say(said)
        assert asked_at < said_at < time.monotonic()
        before = len(packets)
        await call.wait(partial(longer, packets, before + 100), WITHIN)  # 20 ms each
        decoder = OpusDecoder()
        frames = [found for _, payload in sorted(packets) if (found := decoder.decode(payload)) is not None]
        peaks = np.array([np.abs(frame).max() for frame in frames])
        (loud,) = np.nonzero(peaks > 0.3 * tones.LEVEL)
        assert len(loud) == pytest.approx(50, abs=2) == loud[-1] - loud[0] + 1
        sound = np.concatenate([frames[index] for index in loud])
        assert np.argmax(np.abs(np.fft.rfft(sound))) * 16_000 / sound.size == pytest.approx(PITCHES[2], abs=2)
        assert 0.001 < peaks[-10:].max() / 32768 < 0.03, "the noise in between"


def microphone(peer: Peer) -> list[tuple[int, bytes]]:
    """What comes from now on: timestamp and payload of each packet, whatever becomes of it when it is late."""
    packets = list[tuple[int, bytes]]()
    assert peer._hear is not None
    buffer = peer._hear._buffer
    push = buffer.push

    def noted(sequence: int, timestamp: int, payload: bytes, *rest: Any) -> None:
        packets.append((timestamp, payload))
        push(sequence, timestamp, payload, *rest)

    buffer.push = noted  # type: ignore[method-assign]
    return packets


async def test_speaking_to_a_server_that_does_not_listen_says_so(folder: Path) -> None:
    async with serving() as server, listener(server.url, folder) as call:
        with pytest.raises(WrtcError, match="does not listen"):
            await call.say(np.zeros(480, np.int16))


async def test_only_samples_can_be_said(folder: Path) -> None:
    async with serving(answers=True) as server, listener(server.url, folder) as call:
        with pytest.raises(TypeError, match="float64"):
            await call.say(np.zeros(480))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"\[2, 480\]"):
            await call.say(np.zeros((2, 480), np.int16))


# ---- its life -----------------------------------------------------------------------------------------------------


async def test_a_call_is_there_reports_itself_and_ends(folder: Path) -> None:
    async with serving() as server:
        async with listener(server.url, folder) as call:
            assert call.heard.of_type("session.created")[0]["id"] == server.session.id == call.id
            await call.wait(lambda: call.heard.reports and call.heard.of_type("pong"), WITHIN)
            assert server.session.pinged
            assert server.session._listener._totals.emitted_samples > 0
            assert (await call.stats())["kind"] == "audio"
        assert not running(call)
        await server.ended()
        with pytest.raises(WrtcError, match="the call is over"):
            call.send(type="stop")


def running(call: Call) -> bool:
    return Path(f"/proc/{call.pid}").exists()


async def test_an_answer_that_nobody_waits_for_is_passed_over() -> None:
    loop, call = asyncio.get_running_loop(), Call(Mock(), StringIO())
    futures = [loop.create_future() for _ in range(4)]
    call._orders = dict(enumerate(futures))
    futures[0].cancel()
    call._take({"order": 0, "error": "oh"})
    futures[1].cancel()
    call._take({"order": 1, "value": 1.0})
    call._take({"order": 2, "error": "no such device"})
    with pytest.raises(WrtcError, match="no such device"):
        await futures[2]
    call._take({"over": "the peer failed"})
    call._take({"order": 3, "value": 1.0})
    call._take({"order": 3, "error": "oh"})
    with pytest.raises(WrtcError, match="the call is over: the peer failed"):
        await futures[3]


async def test_a_message_that_the_server_does_not_take_is_answered(folder: Path) -> None:
    async with serving() as server, listener(server.url, folder) as call:
        sent_at = await call.send(type="sing", id="a")
        await call.wait(lambda: call.heard.of_type("error"), WITHIN)
        assert call.heard.of_type("error")[0]["at"] > sent_at > call.heard.of_type("session.created")[0]["at"]


@pytest.mark.parametrize("how", [ValueError, asyncio.CancelledError])
async def test_it_ends_however_the_block_is_left(folder: Path, how: type[BaseException]) -> None:
    async with serving() as server:
        with pytest.raises(how):
            async with listener(server.url, folder) as call:
                raise how
        assert not running(call)
        await server.ended()


async def test_cancelled_while_it_connects_it_leaves_nothing(folder: Path) -> None:
    async def connect(url: str) -> None:
        async with listener(url, folder):
            await asyncio.Event().wait()  # where connecting was faster than that

    async with serving() as server:
        for seconds in (0.0, 0.02, 0.08, 0.12):  # before there is a process, an offer, an answer, a session
            task = asyncio.create_task(connect(server.url))
            await asyncio.sleep(seconds)  # justified: a phase of connecting is what is wanted
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not processes(folder)
        await server.ended()


def processes(folder: Path) -> list[str]:
    """Of Node.js with that package."""
    found = list[str]()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found += [process.parent.name] if str(folder).encode() in process.read_bytes() else []
    return found


async def test_a_process_that_dies_ends_what_is_waited_for(folder: Path) -> None:
    async with serving() as server, listener(server.url, folder) as call:
        os.kill(call.pid, signal.SIGKILL)
        with pytest.raises(WrtcError, match="ended with status -9"):
            await call.wait(lambda: False, WITHIN)
        with pytest.raises(WrtcError, match="ended with status -9"):
            await call.stats()


async def test_a_server_that_hangs_up_ends_what_is_waited_for(folder: Path) -> None:
    async with serving() as server, listener(server.url, folder) as call:
        await server.calls.hang_up(call.id)
        with pytest.raises(WrtcError, match="the call is over"):
            await call.wait(lambda: False, WITHIN)


async def test_what_does_not_happen_is_not_waited_for_longer(folder: Path) -> None:
    async with serving() as server, listener(server.url, folder) as call:
        with pytest.raises(WrtcError, match=r"did not happen within 0\.1 s"):
            await call.wait(lambda: False, 0.1)


async def test_no_server_no_call(folder: Path) -> None:
    with pytest.raises(WrtcError, match="cannot be reached"):
        async with listener("http://127.0.0.1:9", folder):
            pass
    assert not processes(folder)


async def test_a_folder_without_the_package_says_what_is_missing(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(WrtcError, match=r"Cannot find module '@roamhq/wrtc'"):
        async with listener("http://127.0.0.1:9", tmp_path):
            pass


# ---- the package --------------------------------------------------------------------------------------------------


def test_without_node_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WrtcError, match=r"there is no node: install both"), installed():
        pass


def test_a_package_that_is_not_the_one_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wrtc, "WHOLE", "A" * 86 + "==")
    with pytest.raises(WrtcError, match=r"npm could not fetch @roamhq/wrtc@0\.10\.0: .*EINTEGRITY"), installed():
        pass


def test_the_folder_is_temporary() -> None:
    with installed() as made:
        assert (made / "node_modules/@roamhq/wrtc/package.json").is_file()
    assert not made.exists()
