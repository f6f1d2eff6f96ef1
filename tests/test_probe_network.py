"""agent/probe/network.py: the trouble that a description means, and what becomes of datagrams; calls are elsewhere."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import struct
import time
from typing import Any

import pytest

from agent.probe.network import CALM, Direction, Network, Trouble, Way, is_media, parse, taken_at

WITHIN = 10.0


def rtp(sequence: int, size: int = 100, source: int = 7) -> bytes:
    return struct.pack("!BBHII", 0x80, 111, sequence % 2**16, sequence * 960 % 2**32, source).ljust(size, b"x")


async def carried(trouble: Trouble, *data: bytes) -> tuple[Way, list[tuple[float, bytes]]]:
    """What was sent at once, as it is delivered, and how much later."""
    loop, came = asyncio.get_running_loop(), list[tuple[float, bytes]]()
    begun_at = loop.time()
    way = Way(lambda data, address: came.append((loop.time() - begun_at, data)), trouble, trouble)
    for one in data:
        way.send(one, ("127.0.0.1", 9))
    async with asyncio.timeout(WITHIN):
        while way.waiting:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.002)
    return way, came


def test_a_description_is_read_in_both_directions() -> None:
    network = parse("loss=5,burst=2,jitter=30,reorder,rate=64,seed=3")
    up = Trouble(lost=5, burst=2, jitter=0.03, reorders=True, rate=64, seed=3)
    assert network.up == up
    assert network.down == Trouble(lost=5, burst=2, jitter=0.03, reorders=True, rate=64, seed=4), "losses of their own"
    assert parse("loss=0.5").up == Trouble(lost=0.5, reorders=False)
    assert parse("rate=32,queue=100,double=4").up == Trouble(rate=32, queue=0.1, doubled=4, reorders=False)


def test_a_description_may_tell_directions_apart() -> None:
    network = parse("up:loss=5; down:jitter=20,seed=9")
    assert network == Network(Trouble(lost=5, reorders=False), Trouble(jitter=0.02, reorders=False, seed=10))
    assert parse("down:loss=1").up == CALM


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "described by reorder and NAME=NUMBER of loss, burst, jitter, double, rate, queue, seed, got ''"),
        ("los=5", "got 'los=5'"),
        ("loss", "got 'loss'"),
        ("loss=5 %", "loss takes a number, got loss=5 %"),
        ("burst=1.5", "burst takes a whole number, got burst=1.5"),
        ("loss=-1", "numbers from 0 on"),
        ("loss=nan", "numbers from 0 on"),
        ("jitter=inf", "numbers from 0 on"),
        ("loss=60", "in bursts of 1 at most 45 % can be lost, got 60"),
        ("loss=1,burst=0", "burst from 1 to 50"),
        ("loss=1,loss=2", "loss is given twice"),
        ("reorder", "reorder needs jitter=MS"),
        ("side:loss=1", "a direction is up: or down:, got side:"),
        ("up:loss=1;up:loss=2", "up is described twice"),
        ("loss=1;up:loss=2", "up is described twice"),
    ],
)
def test_a_description_that_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)


@pytest.mark.parametrize(("lost", "burst"), [(5, 2), (0.5, 1), (2.5, 5), (40, 1), (7, 3), (30, 10)])
def test_in_the_long_run_so_many_are_lost_in_such_bursts(lost: float, burst: int) -> None:
    trouble = Trouble(lost=lost, burst=burst)
    fates = [trouble.copies(number) for number in range(6000)]
    assert fates.count(()) == pytest.approx(60 * lost, abs=burst)
    runs = "".join("x" if not fate else " " for fate in fates).split()
    assert {len(run) for run in runs} == {burst}
    assert fates == [trouble.copies(number) for number in range(6000)], "the same every time"
    assert fates != [Trouble(lost=lost, burst=burst, seed=2).copies(number) for number in range(6000)]


async def test_a_calm_way_delivers_at_once_and_in_order() -> None:
    came = list[bytes]()
    way = Way(lambda data, address: came.append(data), CALM, CALM)
    for n in range(20):
        way.send(rtp(n), None)
        assert came[-1] == rtp(n)


async def test_numbers_go_on_where_sequence_numbers_wrap_around() -> None:
    trouble = Trouble(lost=10)
    _, came = await carried(trouble, *(rtp(65500 + n) for n in range(200)))
    lost = [n for n in range(200) if trouble.is_lost(n)]
    assert len(lost) == 20
    assert [data for _, data in came] == [rtp(65500 + n) for n in range(200) if n not in lost]


async def test_jitter_overtakes_only_where_it_reorders() -> None:
    sent = [rtp(n) for n in range(60)]
    for reorders in (True, False):
        _, came = await carried(Trouble(jitter=0.05, reorders=reorders), *sent)
        assert ([data for _, data in came] == sent) == (not reorders)
        assert sorted(data for _, data in came) == sorted(sent)


async def test_one_of_so_many_comes_twice() -> None:
    _, came = await carried(Trouble(doubled=5), *(rtp(n) for n in range(50)))
    assert len(came) == 60


async def test_a_rate_delays_and_then_drops() -> None:
    """64 kbit/s are 8 bytes a ms: with IP's header, a packet of 132 bytes takes 20 ms, and 200 ms hold ten of them."""
    way, came = await carried(Trouble(rate=64, queue=0.2), *(rtp(n, 132) for n in range(30)))
    assert [data for _, data in came] == [rtp(n, 132) for n in range(11)]
    assert way.direction.dropped == 19
    for n, (at, _) in enumerate(came):
        assert at >= 0.02 * (n + 1) - 0.001


async def test_what_is_on_its_way_never_comes_once_the_way_is_closed() -> None:
    came = list[Any]()
    way = Way(lambda data, address: came.append(data), Trouble(jitter=0.02), CALM)
    for n in range(20):
        way.send(rtp(n), None)
    assert way.waiting > 0
    way.close()
    way.send(rtp(20), None)
    await asyncio.sleep(0.03)  # longer than anything would have taken
    assert (way.waiting, came) == (0, [])


def test_a_datagram_came_when_the_kernel_took_it() -> None:
    late = list[float]()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here, socket.socket(type=socket.SOCK_DGRAM) as there:
        here.bind(("127.0.0.1", 0))
        for wait in (0.0, 0.0, 0.05):
            there.sendto(b"x", here.getsockname())
            time.sleep(wait)  # justified: whoever reads has something else to do
            here.recv(10)
            late.append(time.monotonic() - taken_at(here.fileno()))
    assert late[2] >= 0.05 > late[1]
    read, write = os.pipe()
    try:
        before = time.monotonic()
        assert before <= taken_at(read) <= time.monotonic(), "it is no socket"
    finally:
        os.close(read)
        os.close(write)


def test_a_machine_that_does_something_else_between_two_clocks_moves_no_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    wall, stalls = time.time, iter([0.02])

    def stalled() -> float:
        if stall := next(stalls, 0.0):
            time.sleep(stall)  # justified: this is the stall
        return wall()

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here, socket.socket(type=socket.SOCK_DGRAM) as there:
        here.bind(("127.0.0.1", 0))
        monkeypatch.setattr(time, "time", stalled)
        for _ in range(2):  # the kernel begins to note with the first that is asked for
            stalls = iter([0.02, 0.0, 0.02])
            sent_at = time.monotonic()
            there.sendto(b"x", here.getsockname())
            here.recv(10)
            came_at = taken_at(here.fileno())
        assert sent_at - 0.001 <= came_at <= sent_at + 0.01


async def test_a_packet_came_when_it_was_due_however_late_the_loop_is() -> None:
    due, loop = list[float](), asyncio.get_running_loop()
    way = Way(lambda data, address: due.append(way.due_at), CALM, CALM)
    began_at = loop.time()
    way.send(rtp(0), None, began_at - 0.05)
    assert due == [began_at - 0.05]
    way.send(rtp(1), None)
    assert began_at <= due[1] <= loop.time()


def test_media_are_told_from_the_rest() -> None:
    assert is_media(rtp(1))
    assert not is_media(b"\x80\xc8" + bytes(30)), "RTCP: a sender report"
    assert not is_media(b"\x16\xfe\xfd" + bytes(30)), "DTLS"
    assert not is_media(b"\x00\x01" + bytes(30)), "STUN"
    assert not is_media(b"\x80\x6f")
    direction = Direction()
    assert direction.fate(b"\x00\x01" + bytes(30), Trouble(lost=45), CALM) == (0.0,)
    assert direction.others == 1
