"""agent/jitter.py: order, gaps, delay and bounds, under literal times and under any traffic."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.jitter import (
    FILL_TICKS,
    MAX_BURST,
    MAX_FILL,
    MAX_HELD,
    MAX_PAYLOAD_BYTES,
    STALL,
    JitterBuffer,
    Piece,
    unwrapped,
)
from agent.toc import TICKS
from agent.transit import MAX_TARGET, MIN_TARGET

HEADS = {10: 8 << 3, 20: 9 << 3, 40: 10 << 3, 60: 11 << 3}
"""Wide band SILK, one frame."""
DTX = bytes([HEADS[20]])


def payload(number: int, milliseconds: int = 20) -> bytes:
    """A packet whose content is its number."""
    return bytes([HEADS[milliseconds]]) + number.to_bytes(4, "big")


def number(piece: Piece) -> int:
    assert piece.payload is not None
    return int.from_bytes(piece.payload[1:], "big")


@dataclass
class Microphone:
    """A sender of packets of `milliseconds` whose packet n is complete at 10 + (n + 1) packets, and a buffer."""

    milliseconds: int = 20
    sequence: int = 100
    timestamp: int = 5000
    buffer: JitterBuffer = field(default_factory=JitterBuffer)
    pieces: list[Piece] = field(default_factory=list)
    popped_at: list[float] = field(default_factory=list)
    now: float = 0.0

    def complete_at(self, n: int) -> float:
        return 10.0 + (n + 1) * self.milliseconds / 1000

    def send(self, n: int, late: float = 0.0, content: bytes | None = None) -> list[Piece]:
        """Packet n comes, `late` seconds after it was complete."""
        self.until(self.complete_at(n) + late)
        content = payload(n, self.milliseconds) if content is None else content
        timestamp = self.timestamp + n * self.milliseconds * 48
        self.buffer.push((self.sequence + n) % 2**16, timestamp % 2**32, content, self.now)
        return self.pop()

    def until(self, instant: float) -> None:
        """Time passes; the buffer is looked at whenever it asks for it."""
        while (wake_at := self.buffer.wake_at) is not None and wake_at < instant:
            assert wake_at > self.now or not self.pieces
            self.now = wake_at
            self.pop()
        self.now = instant

    def pop(self) -> list[Piece]:
        pieces = self.buffer.pop(self.now)
        self.pieces += pieces
        self.popped_at += [self.now] * len(pieces)
        return pieces

    def heard(self) -> list[int]:
        """Numbers of the packets that came out, -1 for what was concealed."""
        return [-1 if piece.concealed else number(piece) for piece in self.pieces]

    def delays(self) -> list[float]:
        """Seconds from a packet's arrival to its coming out."""
        out = zip(self.pieces, self.popped_at, strict=True)
        return [at - piece.at for piece, at in out if not piece.concealed]


def contiguous(pieces: list[Piece]) -> bool:
    return all(a.position + a.ticks == b.position and a.ticks > 0 for a, b in pairwise(pieces))


# ---- nothing is missing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("milliseconds", [10, 20, 40, 60])
def test_packets_in_order_come_out_as_they_come_in(milliseconds: int) -> None:
    microphone = Microphone(milliseconds)
    for n in range(100):
        (piece,) = microphone.send(n, late=0.03 * (n * 7 % 10) / 10)
        assert piece.ticks == milliseconds * 48
        assert piece.at == microphone.now
    assert microphone.heard() == list(range(100))
    assert contiguous(microphone.pieces)
    assert [piece.fresh for piece in microphone.pieces] == [True] + [False] * 99
    assert microphone.buffer.counts.lost == microphone.buffer.counts.filled == 0


def test_packets_that_change_their_length_stay_in_order() -> None:
    microphone = Microphone()
    timestamp, now = 0, 20.0
    for n, milliseconds in enumerate([20, 60, 10, 40, 20, 20] * 5):
        now += milliseconds / 1000
        microphone.buffer.push(n, timestamp, payload(n, milliseconds), now)
        microphone.pieces += microphone.buffer.pop(now)
        timestamp += milliseconds * 48
    assert microphone.heard() == list(range(30))
    assert contiguous(microphone.pieces)
    assert microphone.buffer.counts.filled == 0


@pytest.mark.parametrize(
    ("sequence", "timestamp"), [(65530, 2**32 - 5 * 960), (65535, 2**32 - 1), (32760, 2**31 - 960)]
)
def test_numbers_that_wrap_around_change_nothing(sequence: int, timestamp: int) -> None:
    microphone = Microphone(sequence=sequence, timestamp=timestamp)
    for n in (0, 2, 1, 3, *range(5, 21)):
        microphone.send(n, late=0.03 if n == 1 else 0.0)
    assert microphone.heard() == [0, 1, 2, 3, -1, *range(5, 21)]
    assert contiguous(microphone.pieces)
    assert microphone.buffer.counts.restarts == 0


def test_numbers_are_continued_to_the_nearest() -> None:
    assert unwrapped(2, 65535, 16) == 65538
    assert unwrapped(65535, 65538, 16) == 65535
    assert unwrapped(0, 3 * 2**32 - 1, 32) == 3 * 2**32


def test_several_packets_with_one_timestamp_are_played_one_after_the_other() -> None:
    """As aiortc's own sender does with frames longer than 20 ms (aiortc#1357)."""
    buffer, pieces = JitterBuffer(), []
    for n in range(60):
        now = 10.0 + (n // 3) * 0.06
        buffer.push(n, n // 3 * 2880, payload(n), now)
        pieces += buffer.pop(now)
    assert [number(piece) for piece in pieces] == list(range(60))
    assert contiguous(pieces)


# ---- order ----------------------------------------------------------------------------------------------------


def test_a_packet_that_was_overtaken_takes_its_place() -> None:
    microphone = Microphone()
    microphone.send(0)
    assert microphone.send(2) == []
    assert [number(piece) for piece in microphone.send(1, late=0.03)] == [1, 2]
    assert microphone.buffer.counts.lost == 0


def test_a_packet_that_comes_twice_is_heard_once() -> None:
    microphone = Microphone()
    microphone.send(0)
    assert microphone.send(0) == []
    microphone.send(2)
    assert microphone.send(2) == []
    microphone.send(1, late=0.035)
    assert microphone.send(1, late=0.036) == []
    assert microphone.heard() == [0, 1, 2]
    assert microphone.buffer.counts.duplicates == 3


def test_a_packet_that_came_too_late_is_learned_from() -> None:
    microphone = Microphone()
    delayed = 0
    for n in range(200):
        if n % 10 == 3:
            continue
        microphone.send(n)
        if n % 10 == 7:
            microphone.send(n - 4, late=0.09)  # after its four successors
            delayed += 1
    lost = [n for n in range(200) if n % 10 == 3 and n not in microphone.heard()]
    assert len(lost) <= 2  # the first ones: then the target is what it takes
    assert microphone.buffer.target == pytest.approx(0.1)
    assert microphone.buffer.counts.late == len(lost)
    assert contiguous(microphone.pieces)


# ---- losses ---------------------------------------------------------------------------------------------------


def test_a_lost_packet_is_given_up_in_time_and_the_next_one_may_help() -> None:
    microphone = Microphone()
    for n in range(10):
        microphone.send(n)
    assert microphone.send(11) == []
    microphone.until(20.0)
    gap, after = microphone.pieces[10:12]
    assert (gap.concealed, gap.ticks, number(gap)) == (True, 960, 11)
    assert (after.concealed, number(after)) == (False, 11)
    assert (
        microphone.popped_at[10] == microphone.popped_at[11] == pytest.approx(microphone.complete_at(10) + MIN_TARGET)
    )
    assert microphone.buffer.counts.lost == 1


def test_after_a_loss_the_very_next_packet_is_not_late_any_more() -> None:
    microphone = Microphone()
    for n in range(300):
        if n != 150:
            microphone.send(n)
    delays = microphone.delays()
    assert max(delays) == pytest.approx(MIN_TARGET - 0.02)
    assert [delay for delay in delays if delay > 0] == [max(delays)]  # the one behind the gap


def test_several_lost_packets_in_a_row_are_given_up_one_by_one() -> None:
    microphone = Microphone()
    microphone.send(0)
    microphone.send(4)
    microphone.until(microphone.complete_at(4) + MAX_TARGET)
    assert microphone.heard() == [0, -1, -1, -1, 4]
    assert [piece.ticks for piece in microphone.pieces] == [960] * 5
    assert microphone.buffer.counts.lost == 3


def test_a_packet_behind_a_lost_one_still_has_its_own_time() -> None:
    microphone = Microphone()
    microphone.send(0)
    microphone.send(3)
    assert microphone.heard() == [0, -1], "the first is given up, the second not yet"
    microphone.send(2, 0.03)
    assert microphone.heard() == [0, -1, 2, 3]
    assert microphone.buffer.counts.lost == 1


@pytest.mark.parametrize("every", [100, 20])
@pytest.mark.parametrize("milliseconds", [10, 20, 60])
def test_with_losses_jitter_and_reordering_only_what_was_lost_is_missing(every: int, milliseconds: int) -> None:
    microphone = Microphone(milliseconds)
    count = 40_000 // milliseconds
    lost = {n for n in range(count) if n % every == every // 2}
    late = {n: 0.03 * (n * 7919 % 101) / 101 for n in range(count)}  # up to 30 ms: at 10 ms many are overtaken
    for n in sorted(set(range(count)) - lost, key=lambda n: microphone.complete_at(n) + late[n]):
        microphone.send(n, late[n])
    microphone.until(microphone.now + 0.15)
    heard = [n for n in microphone.heard() if n >= 0]
    assert heard == sorted(set(range(count)) - lost)
    assert microphone.buffer.counts.lost == len(lost)
    assert sum(piece.ticks for piece in microphone.pieces) == count * milliseconds * 48
    delays = microphone.delays()
    assert sorted(delays)[len(delays) // 2] == 0.0
    assert max(delays) < 0.06


def test_a_sender_that_stalls_loses_nothing_and_is_not_late_afterwards() -> None:
    microphone = Microphone()
    for n in range(100):
        microphone.send(n, late=max(0.0, 0.18 - 0.02 * (n - 50)) if n >= 50 else 0.0)
    assert microphone.heard() == list(range(100))
    assert max(microphone.delays()) == 0.0


# ---- nothing comes --------------------------------------------------------------------------------------------


def test_when_nothing_comes_time_is_filled_in_and_then_it_ends() -> None:
    microphone = Microphone()
    for n in range(10):
        microphone.send(n)
    microphone.until(60.0)
    fills = microphone.pieces[10:]
    assert [(piece.concealed, piece.ticks, piece.payload) for piece in fills] == [(True, FILL_TICKS, None)] * (
        MAX_FILL // FILL_TICKS
    )
    assert microphone.popped_at[10:13] == pytest.approx([10.22 + STALL, 10.24 + STALL, 10.26 + STALL])
    assert microphone.buffer.wake_at is None
    assert contiguous(microphone.pieces)


def test_in_an_announced_pause_time_is_filled_in_without_waiting() -> None:
    microphone = Microphone()
    for n in range(10):
        microphone.send(n)
    microphone.send(10, content=DTX)
    microphone.until(microphone.complete_at(30))
    assert microphone.popped_at[11:13] == pytest.approx([10.24 + MIN_TARGET, 10.26 + MIN_TARGET])
    assert microphone.buffer.counts.lost == 0


@pytest.mark.parametrize("between", [20, 7])  # 400 ms, as WebRTC does it, and something else
def test_a_pause_has_its_length_and_speech_after_it_is_whole(between: int) -> None:
    """DTX: sequence numbers go on, timestamps jump."""
    buffer, pieces = JitterBuffer(), []
    sent = [*range(20), *range(20, 200, between), *range(200, 230)]
    for sequence, n in enumerate(sent):
        now = 10.0 + 0.02 * n
        while (wake_at := buffer.wake_at) is not None and wake_at < now:
            pieces += buffer.pop(wake_at)
        buffer.push(sequence, n * 960, DTX if 20 <= n < 200 else payload(n), now)
        pieces += buffer.pop(now)
    assert contiguous(pieces)
    assert sum(piece.ticks for piece in pieces) == 230 * 960
    spoken = [number(piece) for piece in pieces if not piece.concealed and piece.payload != DTX]
    assert spoken == [*range(20), *range(200, 230)]
    assert buffer.counts.lost == buffer.counts.late == buffer.counts.restarts == 0


@pytest.mark.parametrize("stall", [0.25, 0.5, 1.9, 2.5])
def test_after_a_stall_everything_is_heard_behind_what_was_filled_in(stall: float) -> None:
    microphone = Microphone()
    for n in range(10):
        microphone.send(n)
    for n in range(10, 160):
        microphone.send(n, late=max(0.0, stall - 0.02 * (n - 10)))
    filled = microphone.heard().count(-1)
    assert microphone.heard() == [*range(10), *[-1] * filled, *range(10, 160)]
    assert filled == pytest.approx(min(2.0, stall - STALL) / 0.02, abs=1.01)
    assert microphone.buffer.counts.late == microphone.buffer.counts.restarts == 0
    assert contiguous(microphone.pieces)
    assert max(microphone.delays()) == 0.0


@pytest.mark.parametrize("pace", [0.9, 1.1, 1.5])
def test_a_sender_that_is_slower_or_faster_than_its_clock_is_heard_whole(pace: float) -> None:
    """A client whose timer is late with every packet."""
    microphone = Microphone()
    for n in range(1000):
        microphone.send(n, late=(pace - 1) * 0.02 * n)
    assert microphone.heard() == list(range(1000))


# ---- another stream -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequence", "timestamp", "source"),
    [(100 + 50, 5000 + 50 * 960, 77), (40_000, 5000 + 50 * 960, 0), (150, 3_000_000_000, 0), (9, 9, 9)],
)
def test_a_stream_that_starts_anew_is_followed_from_its_first_packet(
    sequence: int, timestamp: int, source: int
) -> None:
    microphone = Microphone()
    for n in range(50):
        microphone.send(n)
    for n in range(50):
        microphone.until(microphone.complete_at(50 + n))
        microphone.buffer.push(sequence + n, timestamp + n * 960, payload(1000 + n), microphone.now, source)
        microphone.pop()
    assert microphone.heard() == [*range(50), *range(1000, 1050)]
    assert [n for n, piece in enumerate(microphone.pieces) if piece.fresh] == [0, 50]
    assert microphone.buffer.counts.restarts == 1
    assert contiguous(microphone.pieces)


def test_single_strays_do_not_start_a_stream() -> None:
    microphone = Microphone()
    for n in range(50):
        microphone.send(n)
        microphone.buffer.push(n * 31 + 20_000, n * 2**20, payload(7), microphone.now, source=5)
        assert microphone.pop() == []
    assert microphone.heard() == list(range(50))
    assert microphone.buffer.counts.restarts == 0


def test_a_microphone_that_was_off_for_a_minute_goes_on() -> None:
    microphone = Microphone()
    for n in [*range(10), *range(3000, 3010)]:
        microphone.send(n)
    assert [n for n in microphone.heard() if n >= 0] == [*range(10), *range(3000, 3010)]
    assert contiguous(microphone.pieces)


# ---- hostile traffic ------------------------------------------------------------------------------------------


def test_a_packet_that_no_opus_encoder_makes_is_a_gap() -> None:
    microphone = Microphone()
    for n in range(10):
        microphone.send(n, content={3: b"", 6: b"\x03"}.get(n))
    assert microphone.heard() == [0, 1, 2, -1, 4, 5, -1, 7, 8, 9]
    assert microphone.buffer.counts.lost == 0


def test_a_payload_that_is_too_large_is_refused() -> None:
    microphone = Microphone()
    microphone.send(0)
    assert microphone.send(1, content=payload(1) + bytes(MAX_PAYLOAD_BYTES)) == []
    assert microphone.buffer.counts.refused == 1
    assert microphone.buffer.held == 0


def test_a_flood_behind_a_gap_is_held_up_to_the_limit_and_let_go() -> None:
    buffer, pieces = JitterBuffer(), []
    for n in range(500):
        if n != 1:
            buffer.push(n, n * 480, payload(n, 10), 10.0)
            pieces += buffer.pop(10.0)
            assert buffer.held < MAX_HELD
    assert sum(piece.ticks for piece in pieces) <= MAX_BURST
    assert buffer.counts.refused > 0


def test_more_sound_than_time_is_refused() -> None:
    buffer, ticks = JitterBuffer(), 0
    for n in range(5000):  # ten seconds, each packet says that it is 1.9 s later
        now = 10.0 + n * 0.002
        buffer.push(n % 2**16, n * 91_200 % 2**32, payload(n, 60), now)
        ticks += sum(piece.ticks for piece in buffer.pop(now))
    assert ticks <= MAX_BURST + 10 * 1.25 * TICKS


Traffic = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.001, 0.01, 0.02, 0.02, 0.02, 0.06, 0.3, 3.0]),
        st.one_of(st.integers(-3, 3), st.integers(-70, 70), st.integers(0, 2**16)),
        st.one_of(st.just(0), st.just(0), st.integers(-3, 3), st.integers(0, 2**32)),
        st.sampled_from([*(payload(1, ms) for ms in HEADS), DTX, b"", b"\x03", bytes(MAX_PAYLOAD_BYTES)]),
        st.sampled_from([0, 0, 0, 0, 1]),
    ),
    max_size=150,
)


@given(Traffic, st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=150)
def test_whatever_comes_time_goes_forward_and_everything_is_bounded(
    traffic: list[tuple[float, int, int, bytes, int]], sequence: int, timestamp: int
) -> None:
    """Steps of time; sequence off the steady one; timestamp off the one that belongs to the sequence; content; SSRC."""
    buffer, now, position, ticks = JitterBuffer(), 10.0, 0, 0

    def looked_at() -> None:
        nonlocal position, ticks
        pieces = buffer.pop(now)
        assert buffer.pop(now) == []
        assert len(pieces) <= 2 * MAX_HELD + MAX_FILL // FILL_TICKS
        for piece in pieces:
            assert piece.position == position
            assert piece.ticks > 0 and piece.ticks % 120 == 0
            assert piece.concealed or piece.payload
            assert piece.concealed or piece.fresh or now - piece.at <= MAX_TARGET + 1e-9  # fresh: it was a stray
            position += piece.ticks
            ticks += piece.ticks
        assert ticks <= MAX_BURST + (now - 10.0) * 1.25 * TICKS + 1e-6
        assert buffer.held < MAX_HELD
        assert buffer.wake_at is None or buffer.wake_at > now

    for n, (step, shift, skew, content, source) in enumerate(traffic):
        target = now + step
        while (wake_at := buffer.wake_at) is not None and wake_at < target:
            now = wake_at
            looked_at()
        now = target
        buffer.push(
            (sequence + n + shift) % 2**16, (timestamp + (n + shift) * 960 + skew) % 2**32, content, now, source
        )
        looked_at()


@given(st.data())
@settings(deadline=None, max_examples=150)
def test_any_order_any_loss_and_any_duplicates_give_each_packet_once_and_in_order(data: st.DataObject) -> None:
    """Packets of one stream, around the wrap of both numbers, each up to 100 ms late, some lost, some twice."""
    count, start = 80, data.draw(st.integers(0, 2**16 - 1))
    microphone = Microphone(sequence=start, timestamp=data.draw(st.integers(0, 2**32 - 1)))
    lost = data.draw(st.sets(st.integers(1, count - 1), max_size=20))
    late = data.draw(st.lists(st.floats(0, 0.1), min_size=count, max_size=count))
    twice = data.draw(st.dictionaries(st.integers(1, count - 1), st.floats(0, 0.3), max_size=20))
    late[0] = 0.0
    sent = [(microphone.complete_at(n) + late[n], n) for n in range(count) if n not in lost]
    sent += [(microphone.complete_at(n) + late[n] + more, n) for n, more in twice.items() if n not in lost]
    for at, n in sorted(sent):
        microphone.send(n, at - microphone.complete_at(n))
    microphone.until(microphone.now + MAX_TARGET)
    heard = [n for n in microphone.heard() if n >= 0]
    assert heard == sorted(set(heard))
    assert not set(heard) & lost
    assert contiguous(microphone.pieces)
    counts = microphone.buffer.counts
    assert counts.received == len(sent)
    assert len(heard) + counts.late + counts.duplicates == len(sent)
    assert max(microphone.delays(), default=0.0) <= MAX_TARGET + 1e-9
