"""agent/receive.py and the decoder in agent/opus.py: real Opus packets, lost ones, recovered ones, slow threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from caller import WITHIN
from numpy.typing import NDArray

from agent import libopus, opus
from agent.jitter import MAX_FILL, STALL, Piece
from agent.opus import OpusDecoder, OpusEncoder
from agent.receive import FRAME_SAMPLES, MAX_BACKLOG_TICKS, Decoding, Heard, Receiver
from agent.transit import MIN_TARGET
from engine.clock import Clock, MonotonicClock

RATE = 16_000
PCM = NDArray[np.int16]


def voice(seconds: float) -> PCM:
    """Harmonics whose pitch and loudness change with every syllable: what was before says little of what comes."""
    t = np.arange(round(seconds * RATE)) / RATE
    pitch = 150 + 60 * np.sin(2 * np.pi * 2.3 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    harmonics = sum(np.sin(k * phase) / k for k in range(1, 12))
    loudness = 0.15 + 0.85 * np.abs(np.sin(2 * np.pi * 3.1 * t))
    return np.asarray(6000 * harmonics * loudness, np.int16)


def packets(samples: PCM, milliseconds: int = 20, **options: str) -> list[bytes]:
    """Opus packets by libopus, as a phone would make them."""
    codec: Any = av.CodecContext.create("libopus", "w")
    codec.sample_rate, codec.layout, codec.format, codec.bit_rate = RATE, "mono", "s16", 24_000
    codec.time_base = Fraction(1, RATE)
    codec.options = {"application": "voip", "frame_duration": f"{milliseconds}", **options}
    size, payloads = RATE * milliseconds // 1000, []
    for start in range(0, samples.size - size + 1, size):
        frame = av.AudioFrame.from_ndarray(samples[None, start : start + size], format="s16", layout="mono")
        frame.sample_rate, frame.pts = RATE, start
        payloads += [bytes(packet) for packet in codec.encode(frame)]
    return payloads


FEC = {"fec": "1", "packet_loss": "20"}


def likeness(a: PCM, b: PCM) -> float:
    return float(np.corrcoef(a.astype(float), b.astype(float))[0, 1])


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 10.0

    def now(self) -> float:
        return self.at


class Inline(Executor):
    """Runs at once what it is given."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Line:
    """A receiver that is sent packets of `milliseconds`; packet n comes at 10 + n packets."""

    def __init__(self, executor: Executor | None = None, milliseconds: int = 20, clock: Clock | None = None) -> None:
        self.time, self.milliseconds = Time(), milliseconds
        self.clock = clock or self.time
        self.heard: list[Heard] = []
        self.given_at: list[float] = []
        self.receiver = Receiver(executor or Inline(), self.clock, self._take)

        self._came = asyncio.Event()

    def _take(self, heard: Heard) -> None:
        self.heard.append(heard)
        self.given_at.append(self.clock.now())
        self._came.set()

    async def arrived(self, frames: int) -> None:
        """So many have come, since the start."""
        async with asyncio.timeout(WITHIN):
            while len(self.heard) < frames:
                self._came.clear()
                await self._came.wait()

    async def send(self, payloads: list[bytes], lost: tuple[int, ...] = (), start: int = 0) -> None:
        for n, payload in enumerate(payloads, start):
            await self.until(10.0 + n * self.milliseconds / 1000)
            if n not in lost:
                self.receiver.push(1, n % 2**16, n * self.milliseconds * 48, payload)
                await settled()

    async def until(self, instant: float) -> None:
        while (wake_at := self.receiver._buffer.wake_at) is not None and wake_at <= instant:
            self.time.at = wake_at
            self.receiver.poll()
            await settled()
        self.time.at = instant

    @property
    def samples(self) -> PCM:
        return np.concatenate([heard.samples for heard in self.heard])

    @property
    def concealed(self) -> list[int]:
        return [n for n, heard in enumerate(self.heard) if heard.concealed]


async def settled() -> None:
    """Callbacks of the loop that are due have run, and those that they asked for."""
    for _ in range(5):
        await asyncio.sleep(0)


# ---- the decoder ----------------------------------------------------------------------------------------------


def decoded(payloads: list[bytes]) -> PCM:
    decoder = OpusDecoder()
    parts = [decoder.decode(payload) for payload in payloads]
    return np.concatenate([part for part in parts if part is not None])


@pytest.mark.parametrize("milliseconds", [10, 20, 40, 60])
def test_the_decoder_gives_16_khz_whatever_the_packets_length(milliseconds: int) -> None:
    original = voice(1.2)
    heard = decoded(packets(original, milliseconds, vbr="off"))
    assert heard.size == original.size
    delay = np.argmax(np.correlate(heard[:8000].astype(float), original[:7500].astype(float), "valid"))
    assert 0 < delay < 240  # the codec's own look-ahead
    assert likeness(heard[delay:], original[: heard.size - delay]) > 0.75


def test_stereo_is_mixed_to_mono() -> None:
    codec: Any = av.CodecContext.create("libopus", "w")
    codec.sample_rate, codec.layout, codec.format, codec.bit_rate = 48_000, "stereo", "s16", 64_000
    codec.time_base = Fraction(1, 48_000)
    tone = (8000 * np.sin(2 * np.pi * 440 * np.arange(960 * 20) / 48_000)).astype(np.int16)
    payloads = []
    for n in range(20):
        frame = av.AudioFrame.from_ndarray(
            np.repeat(tone[960 * n : 960 * (n + 1)], 2)[None], format="s16", layout="stereo"
        )
        frame.sample_rate, frame.pts = 48_000, 960 * n
        payloads += [bytes(packet) for packet in codec.encode(frame)]
    heard = decoded(payloads)
    assert heard.size == 20 * 320
    assert np.abs(heard[1600:]).max() == pytest.approx(8000, rel=0.1)


def test_what_is_no_packet_is_none() -> None:
    decoder = OpusDecoder()
    assert decoder.decode(b"") is None
    assert decoder.decode(b"\xff\xff\xff") is None
    assert decoder.decode(b"\x03") is None


@pytest.mark.parametrize("count", [40, 320, 1920, 2000, 32_000])
def test_a_guess_is_as_long_as_what_is_missing(count: int) -> None:
    payloads = packets(voice(0.5), **FEC)
    for following in (None, payloads[11], b"\xff\xff\xff", b"\x48"):
        decoder = OpusDecoder()
        for payload in payloads[:10]:
            decoder.decode(payload)
        assert decoder.conceal(count, following).shape == (count,)


def test_a_reset_decoder_is_a_new_one() -> None:
    payloads = packets(voice(0.4))
    decoder = OpusDecoder()
    for payload in payloads:
        decoder.decode(payload)
    decoder.reset()
    again = decoder.decode(payloads[0])
    assert again is not None and again.tolist() == decoded(payloads[:1]).tolist()


def test_a_decoder_that_nobody_has_any_more_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    destroyed: list[int] = []

    class Library:
        opus_decoder_create = staticmethod(lambda rate, channels, error: 7)
        opus_decoder_destroy = staticmethod(destroyed.append)

    monkeypatch.setattr(opus, "libopus", Library)
    decoder = OpusDecoder()
    assert destroyed == []
    del decoder
    assert destroyed == [7]


def test_a_system_without_libopus_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libopus, "_bundled", lambda package: iter(()))
    monkeypatch.setattr(libopus.ctypes.util, "find_library", lambda name: None)
    with pytest.raises(libopus.LibraryMissing, match="install PyAV"):
        libopus._path()


# ---- losses ---------------------------------------------------------------------------------------------------


async def test_frames_of_a_whole_stream_are_the_decoders() -> None:
    payloads = packets(voice(2.0))
    line = Line()
    await line.send(payloads)
    assert line.samples.tolist() == decoded(payloads).tolist()
    assert [heard.position for heard in line.heard] == list(range(0, 32_000, FRAME_SAMPLES))
    assert {heard.samples.shape for heard in line.heard} == {(FRAME_SAMPLES,)}
    assert {heard.samples.dtype for heard in line.heard} == {np.dtype(np.int16)}
    assert line.concealed == []
    assert [heard.received_at for heard in line.heard] == line.given_at  # none was held back


@pytest.mark.parametrize("milliseconds", [10, 20, 40, 60])
@pytest.mark.parametrize("every", [100, 20])
async def test_with_losses_only_what_was_lost_is_a_guess_and_nothing_stays_late(milliseconds: int, every: int) -> None:
    payloads = packets(voice(3.6), milliseconds, **FEC)
    lost = tuple(range(every // 2, len(payloads) - 1, every))
    line = Line(milliseconds=milliseconds)
    await line.send(payloads, lost)
    frames = range(3600 // 20)
    guessed = {n for n in frames for k in lost if k * milliseconds < 20 * (n + 1) and 20 * n < (k + 1) * milliseconds}
    assert line.concealed == sorted(guessed)
    assert [heard.position for heard in line.heard] == [FRAME_SAMPLES * n for n in frames]
    delays = [at - heard.received_at for at, heard in zip(line.given_at, line.heard, strict=True)]
    assert max(delays) <= MIN_TARGET
    assert np.median(delays) == 0.0
    assert line.receiver.counts.lost == len(lost)


@pytest.mark.parametrize("milliseconds", [20, 40, 60])
async def test_a_lost_packet_is_recovered_from_the_next_one_where_the_sender_repeats_it(milliseconds: int) -> None:
    original = voice(3.0)
    lost = tuple(range(10, 3000 // milliseconds - 1, 7))
    size = RATE * milliseconds // 1000
    alike: dict[str, list[float]] = {}
    energy: dict[str, list[float]] = {}
    for name, options in (("fec", FEC), ("plc", {"fec": "0", "packet_loss": "20"})):
        payloads = packets(original, milliseconds, **options)
        line, whole = Line(milliseconds=milliseconds), decoded(payloads)
        await line.send(payloads, lost)
        parts = [(line.samples[k * size : (k + 1) * size], whole[k * size : (k + 1) * size]) for k in lost]
        alike[name] = [likeness(guess, real) for guess, real in parts]
        energy[name] = [float(np.sqrt(np.mean(guess**2.0) / np.mean(real**2.0))) for guess, real in parts]
    assert np.median(alike["fec"]) > 0.9
    assert np.median(alike["fec"]) > np.median(alike["plc"]) + 0.05
    assert np.median(energy["fec"]) == pytest.approx(1.0, abs=0.25)
    assert np.min(energy["plc"]) > 0.02  # a guess, but no silence


async def test_a_recovered_packet_leaves_the_decoder_where_it_should_be() -> None:
    payloads = packets(voice(2.0), **FEC)
    line, whole = Line(), decoded(payloads)
    await line.send(payloads, lost=(50,))
    assert likeness(line.samples[55 * 320 :], whole[55 * 320 :]) > 0.98


async def test_when_packets_stop_the_guess_fades_and_ends() -> None:
    payloads = packets(voice(1.0))
    line = Line()
    await line.send(payloads)
    await line.until(60.0)
    filled = [heard for heard in line.heard if heard.concealed]
    assert len(filled) == MAX_FILL // 960
    assert np.std(filled[-1].samples) < 0.1 * np.std(line.samples[:16_000])
    assert line.given_at[len(payloads)] == pytest.approx(10.0 + 0.02 * len(payloads) + STALL)


async def test_a_stream_that_starts_anew_is_decoded_anew() -> None:
    first, second = packets(voice(0.5)), packets(voice(0.9)[6400:])
    line = Line()
    await line.send(first)
    for n, payload in enumerate(second):
        line.time.at += 0.02
        line.receiver.push(2, n, n * 960, payload)
        await settled()
    assert line.samples.tolist() == decoded(first).tolist() + decoded(second).tolist()
    assert line.receiver.counts.restarts == 1


async def test_a_packet_that_is_no_opus_inside_is_a_guess_and_the_stream_goes_on() -> None:
    payloads = packets(voice(0.5))
    payloads[10] = payloads[10][:1] + bytes(1300)  # longer than a frame may be: libopus refuses it
    line = Line()
    await line.send(payloads)
    assert len(line.heard) == len(payloads)
    assert line.receiver.broken == 1


def test_samples_of_pieces_that_were_dropped_leave_no_half_frame() -> None:
    encoder = OpusEncoder(RATE)
    payloads = packets(voice(0.1), 10)
    decoding = Decoding()
    assert decoding.decode([Piece(0, 480, payloads[0], False, 1.0)]) == []
    (heard,) = decoding.decode([Piece(4800, 960, encoder.encode(np.zeros(320, np.int16)), False, 2.0)])
    assert (heard.position, heard.received_at) == (1600, 2.0)


# ---- threads --------------------------------------------------------------------------------------------------


class Slow(ThreadPoolExecutor):
    """Works only once it is let, and writes down how many calls it had at a time."""

    def __init__(self) -> None:
        super().__init__(4)
        self.open = threading.Event()
        self.running = self.most = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def gated() -> Any:
            self.running += 1
            self.most = max(self.most, self.running)
            self.open.wait(10)
            result = fn(*args)
            self.running -= 1
            return result

        return super().submit(gated)


async def test_one_call_at_a_time_and_what_waits_for_too_long_is_dropped_and_counted() -> None:
    payloads = packets(voice(3.0))
    with Slow() as executor:
        line = Line(executor)
        await line.send(payloads)
        assert line.heard == []
        executor.open.set()
        await line.arrived(1 + MAX_BACKLOG_TICKS // 960)
    assert executor.most == 1
    kept = MAX_BACKLOG_TICKS // 960
    assert line.receiver.dropped == (len(payloads) - 1 - kept) * 960
    assert [heard.position for heard in line.heard] == [
        0,
        *(FRAME_SAMPLES * n for n in range(len(payloads) - kept, len(payloads))),
    ]


async def test_a_closed_receiver_hears_nothing_and_rings_no_more() -> None:
    payloads = packets(voice(0.5))
    with Slow() as executor:
        line = Line(executor)
        await line.send(payloads[:5])
        line.receiver.close()
        line.receiver.close()
        executor.open.set()
        line.receiver.push(1, 5, 5 * 960, payloads[5])
        line.receiver.poll()
    await settled()
    assert line.heard == []
    assert line.receiver._timer is None or line.receiver._timer.cancelled()


async def test_its_own_timer_gives_out_what_is_due() -> None:
    """On the real clock: behind a gap a packet comes out though nothing else comes."""

    payloads = packets(voice(0.2))
    line = Line(clock=MonotonicClock())
    line.receiver.push(1, 0, 0, payloads[0])
    line.receiver.push(1, 2, 1920, payloads[2])
    await line.arrived(4)
    line.receiver.close()
    assert [heard.concealed for heard in line.heard[:4]] == [False, True, False, True]  # the last one is filled in


async def test_a_listener_that_fails_does_not_stop_the_stream() -> None:
    payloads, problems = packets(voice(0.5)), []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context["exception"]))
    line = Line()
    take, line.receiver.heard = line.receiver.heard, lambda heard: 1 / 0
    await line.send(payloads[:1])
    line.receiver.heard = take
    await line.send(payloads[1:], start=1)
    assert [type(problem) for problem in problems] == [ZeroDivisionError]
    assert len(line.heard) == len(payloads) - 1
