"""agent/probe/mouth.py: what the microphone takes, sample by sample, and when it says that it took it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from aiortc.mediastreams import MediaStreamError

from agent.probe.mouth import Air, Echo, Mouth, Sound, Source
from agent.probe.recording import Pcm
from engine.clock import MonotonicClock

PACKET = 960


class Desk:
    """A mouth that keeps what it would encode, and when each packet was handed over."""

    def __init__(self, beginning: dict[int, list[Source]], **options: Any) -> None:
        self.clock, self.beginning, self.asked = MonotonicClock(), beginning, list[float]()
        self.mouth = Mouth(self.clock, self._begins, **options)
        self.taken, self.sent_at, self.pts = list[Pcm](), list[float](), list[int | None]()
        encoder: Any = self.mouth._encoder
        encode = encoder.encode
        encoder.encode = lambda samples: (self.taken.append(samples), encode(samples))[1]

    def _begins(self, at: float) -> Iterable[Source]:
        self.asked.append(at)
        return self.beginning.get(len(self.asked) - 1, [])

    async def pull(self, packets: int) -> Pcm:
        for _ in range(packets):
            packet = await self.mouth.recv()
            self.sent_at.append(self.clock.now())
            self.pts.append(packet.pts)
        return np.concatenate(self.taken)


def ramp(size: int, start: int = 1) -> Pcm:
    return np.arange(start, start + size, dtype=np.int16)


async def test_sounds_are_mixed_sample_by_sample_and_begin_with_a_packet() -> None:
    first, second = Sound("a", ramp(2500)), Sound("b", ramp(1000, 100), gain_db=-6.0)
    desk = Desk({1: [first], 2: [second]})
    heard = await desk.pull(6)
    expected = np.zeros(6 * PACKET)
    expected[PACKET : PACKET + 2500] += ramp(2500)
    expected[2 * PACKET : 2 * PACKET + 1000] += np.rint(ramp(1000, 100) * 10 ** (-6 / 20))
    assert np.array_equal(heard, expected)
    assert desk.pts == [PACKET * n for n in range(6)]
    assert (first.said, second.said) != (None, None)
    for said, number in ((first.said, 1), (second.said, 2)):
        assert said is not None
        assert 0 <= desk.sent_at[number] - 0.02 - said.begins_at < 0.02
        assert desk.asked[number] <= said.begins_at


async def test_what_is_too_loud_is_clipped() -> None:
    loud = np.full(PACKET, 30_000, np.int16)
    desk = Desk({0: [Sound("a", loud), Sound("b", loud), Sound("c", -loud, gain_db=20.0)]})
    assert set(await desk.pull(1)) == {30_000 * 2 - 32_768}


async def test_a_sound_that_is_cut_short_is_said_as_far_as_it_was_taken() -> None:
    sound, never = Sound("a", ramp(5000)), Sound("b", ramp(10))
    desk = Desk({0: [sound]})
    await desk.pull(2)
    assert sound.said is not None
    assert np.array_equal(sound.said.samples, ramp(2 * PACKET))
    assert sound.said.ends_at == pytest.approx(sound.said.begins_at + 0.04)
    assert never.said is None


async def test_a_room_has_its_noise_the_same_with_the_same_seed() -> None:
    rooms = [await Desk({}, room_db=-60.0, seed=seed).pull(10) for seed in (1, 1, 2)]
    assert np.array_equal(rooms[0], rooms[1])
    assert not np.array_equal(rooms[0], rooms[2])
    assert 20 * np.log10(np.std(rooms[0]) / 32768) == pytest.approx(-60.0, abs=0.5)


async def test_a_microphone_that_is_stopped_has_no_packet_more() -> None:
    desk = Desk({})
    await desk.pull(2)
    waiting = asyncio.create_task(desk.mouth.recv())
    await asyncio.sleep(0)  # it waits for its turn
    desk.mouth.stop()
    with pytest.raises(MediaStreamError):
        await waiting


def test_air_carries_what_the_loudspeaker_plays_80_ms_after_it_came() -> None:
    air = Air()
    for n in range(50):
        late = 0.015 if n % 2 else 0.0
        air.push(ramp(PACKET, n * 100), 10.02 + 0.02 * n + late)
    heard = np.concatenate([air.take(10.0 + 0.02 * n) for n in range(50)])
    expected = np.concatenate([np.zeros(100 * 48, np.int16), *(ramp(PACKET, n * 100) for n in range(45))])
    assert np.array_equal(heard, expected), "a jitter of 15 ms is not heard"


def test_air_pauses_where_a_frame_is_too_late_and_catches_up_after_a_flood() -> None:
    air = Air()
    air.push(ramp(PACKET), 10.0)
    air.push(ramp(PACKET), 10.5)
    assert np.array_equal(air.take(10.08), ramp(PACKET))
    assert not air.take(10.3).any()
    assert np.array_equal(air.take(10.58), ramp(PACKET))
    for _ in range(100):
        air.push(ramp(PACKET), 11.0)
    assert air._end / 48_000 - 11.0 < 0.31


def test_an_echo_is_what_it_hears_from_its_beginning_on() -> None:
    air, echo = Air(), None
    echo = Echo("echo", air, gain_db=-6.0)
    air.push(np.full(PACKET, 1000, np.int16), 10.0)
    assert echo.said is None
    assert set(echo.take(10.08)) == {501}
    echo.begins_at = 10.08
    assert not echo.take(10.1).any()
    assert echo.said is not None
    assert echo.said.samples.size == 2 * PACKET
