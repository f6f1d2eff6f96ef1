"""agent/track.py: one packet every 20 ms of a scripted clock, timestamps 960 apart, nothing stale after a flush."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import av
import numpy as np
import pytest
from aiortc.mediastreams import MediaStreamError
from numpy.typing import NDArray

from agent.opus import OpusEncoder
from agent.playout import CueKind, Packet, PlayoutBuffer
from agent.track import AHEAD_SECONDS, SpeechTrack

RATE = 24_000


class ScriptedTime:
    """A clock that moves only when somebody sleeps, and then calls what was planned for the instants passed."""

    def __init__(self) -> None:
        self.time = 100.0
        self.plans: list[tuple[float, object]] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        while self.plans and self.plans[0][0] <= self.time:
            self.plans.pop(0)[1]()  # type: ignore[operator]


class ListeningEncoder(OpusEncoder):
    """Encodes, and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__(RATE)
        self.given: list[NDArray[np.int16]] = []

    def encode(self, samples: NDArray[np.int16]) -> bytes:
        self.given.append(samples)
        return super().encode(samples)


class Bench:
    """A track with everything scripted around it."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self.time = ScriptedTime()
        self.buffer = PlayoutBuffer(RATE)
        self.encoder = ListeningEncoder()
        self.sent: list[tuple[float, Packet]] = []
        self.track = SpeechTrack(self.buffer, self.encoder, executor, self.time, self.take, self.time.sleep)

    def take(self, packet: Packet) -> None:
        self.sent.append((self.time.time, packet))

    def say(self, samples: int) -> None:
        self.buffer.enqueue("a")
        self.buffer.push("a", self.buffer.epoch, np.full(samples, 10_000, np.int16), self.time.time, slack=9.0)


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ThreadPoolExecutor(1) as executor:
        yield Bench(executor)


async def test_packets_leave_every_20_ms_and_timestamps_are_960_apart(bench: Bench) -> None:
    packets = [await bench.track.recv() for _ in range(50)]
    assert [round(at - 100.0, 6) for at, _ in bench.sent] == pytest.approx([0.02 * n for n in range(50)])
    assert [packet.pts for packet in packets] == [960 * n for n in range(50)]
    assert {(packet.time_base.numerator, packet.time_base.denominator) for packet in packets} == {(1, 48_000)}
    assert all(isinstance(packet, av.Packet) for packet in packets)


async def test_silence_flows_before_between_and_after_speech(bench: Bench) -> None:
    await bench.track.recv()
    bench.say(960)
    for _ in range(4):
        await bench.track.recv()
    assert [bool(packet.samples.any()) for _, packet in bench.sent] == [False, True, True, False, False]
    assert [cue.kind for _, packet in bench.sent for cue in packet.cues] == [CueKind.STARTED, CueKind.PAUSED]


async def test_speech_that_comes_while_a_packet_waits_is_in_the_next_one(bench: Bench) -> None:
    await bench.track.recv()
    bench.time.plans = [(100.014, lambda: bench.say(960))]  # the next packet is popped at 100.015
    await bench.track.recv()
    assert bench.sent[1][1].samples.any()


async def test_a_late_loop_catches_up_by_at_most_three_packets_and_timestamps_do_not_care(bench: Bench) -> None:
    packets = [await bench.track.recv()]
    bench.time.time += 0.075
    packets += [await bench.track.recv() for _ in range(5)]
    assert [at for at, _ in bench.sent[1:]] == pytest.approx([100.075, 100.075, 100.075, 100.08, 100.1])
    bench.time.time += 3.0
    packets += [await bench.track.recv() for _ in range(3)]
    assert [at for at, _ in bench.sent[6:]] == pytest.approx([103.1, 103.12, 103.14])
    assert bench.track.pace.stalls == 1
    assert [packet.pts for packet in packets] == [960 * n for n in range(9)]


@pytest.mark.parametrize("flushed_at", [100.03, 100.0399])  # before the next packet is popped, and after
async def test_flush_silences_the_very_next_packet(bench: Bench, flushed_at: float) -> None:
    bench.say(24_000)
    heard: list[dict[str, int]] = []
    bench.time.plans = [(flushed_at, lambda: heard.append(bench.track.flush(1)))]
    for _ in range(5):
        await bench.track.recv()
    samples = [packet.samples for _, packet in bench.sent]
    assert heard == [{"a": 960}]  # two packets were sent, whether a third one waited or not
    assert samples[2][0] > 9900
    assert samples[2][-241:].tolist() == [0] * 241
    assert not np.any(samples[3:])
    assert bench.sent[2][0] == pytest.approx(100.04)


async def test_a_packet_that_was_encoded_ahead_is_replaced_by_one_encoding_and_no_timestamp_is_lost(
    bench: Bench,
) -> None:
    bench.say(24_000)
    bench.time.plans = [(100.0399, lambda: bench.track.flush(1))]
    packets = [await bench.track.recv() for _ in range(4)]
    assert len(bench.encoder.given) == 5
    assert bench.encoder.given[2].all()  # never sent
    assert [packet.pts for packet in packets] == [0, 960, 1920, 2880]
    assert [packet.samples is bench.encoder.given[2] for _, packet in bench.sent] == [False] * 4


@pytest.mark.parametrize("paused_at", [100.03, 100.0399])  # before the next packet is popped, and after
async def test_a_pause_fades_out_in_the_very_next_packet_and_resumes_where_the_fade_began(
    bench: Bench, paused_at: float
) -> None:
    bench.say(24_000)
    bench.time.plans = [(paused_at, bench.track.pause), (100.09, bench.track.resume)]
    packets = [await bench.track.recv() for _ in range(7)]
    samples = [packet.samples for _, packet in bench.sent]
    assert [packet.pts for packet in packets] == [960 * n for n in range(7)]
    assert samples[2][0] > 9900
    assert not np.any(samples[2][240:])
    assert not np.any(samples[3:5])
    assert samples[5][0] < 100
    assert samples[5][240:].tolist() == [10_000] * 240
    cues = [(cue.kind, cue.played_samples) for _, packet in bench.sent for cue in packet.cues]
    assert cues == [(CueKind.STARTED, 0), (CueKind.SUSPENDED, 960), (CueKind.CONTINUED, 960)]
    assert bench.buffer.heard("a") == 960 + 2 * 480


async def test_a_second_pause_leaves_the_packet_that_was_encoded_ahead(bench: Bench) -> None:
    bench.say(24_000)
    bench.time.plans = [(100.03, bench.track.pause), (100.0399, bench.track.pause)]
    for _ in range(4):
        await bench.track.recv()
    assert len(bench.encoder.given) == 4
    assert bench.sent[2][1].samples[0] > 9900
    assert not bench.sent[3][1].samples.any()


async def test_a_flush_during_a_pause_is_silent(bench: Bench) -> None:
    bench.say(24_000)
    heard: list[dict[str, int]] = []
    bench.time.plans = [(100.03, bench.track.pause), (100.0799, lambda: heard.append(bench.track.flush(1)))]
    for _ in range(6):
        await bench.track.recv()
    assert heard == [{"a": 960}]
    assert not any(packet.samples.any() for _, packet in bench.sent[3:])


async def test_nothing_is_encoded_more_than_the_agreed_time_ahead(bench: Bench) -> None:
    await bench.track.recv()
    waiting = asyncio.ensure_future(bench.track.recv())
    instants: list[float] = []
    encode = bench.encoder.encode
    bench.encoder.encode = lambda samples: (instants.append(bench.time.time), encode(samples))[1]  # type: ignore[method-assign]
    await waiting
    assert instants == [pytest.approx(100.02 - AHEAD_SECONDS)]


async def test_the_encoder_runs_on_the_executors_thread(bench: Bench) -> None:
    import threading

    names: list[str] = []
    encode = bench.encoder.encode
    bench.encoder.encode = lambda samples: (names.append(threading.current_thread().name), encode(samples))[1]  # type: ignore[method-assign]
    await bench.track.recv()
    assert names != [threading.current_thread().name]


async def test_a_stopped_track_has_no_packets(bench: Bench) -> None:
    bench.track.stop()
    with pytest.raises(MediaStreamError):
        await bench.track.recv()
