"""Whether one more caller can be kept playing, and else how long that takes; by literal costs.

Batches hold one request here: a stream takes (5 + 15 + 10) / 80 of the device.
"""

from dataclasses import replace

import pytest
from scripted_engine import Fixed

from engine import estimate
from engine.core import Limits, RequestStats, Stage
from engine.playback import PATIENCE, Playback, PlaybackClock
from engine.predictor import Predictor
from engine.room import GRACE, MOST, Room

ONE = Limits(num_slots=8, num_pages=400, max_batch=dict.fromkeys(Stage, 1), max_wait=4.0)


def test_the_share_of_two_streams_in_steps_of_one() -> None:
    room = Room(Fixed(), ONE, 0.08)
    assert room.share(1) == pytest.approx(0.030 / 0.080 + 0.020 / 5)
    assert room.share(2) == pytest.approx(2 * room.share(1))
    room.take(1, 100.0)
    assert (room.fits([1]), room.fits([1, 1])) == (True, False)


def test_a_shared_step_is_shared_by_all_its_rows() -> None:
    room = Room(Fixed(), replace(ONE, max_batch=dict.fromkeys(Stage, 8)), 0.08)
    assert room.share(8) == pytest.approx(0.030 / 0.080 + 8 * 0.020 / 5)
    assert room.share(16) == pytest.approx(2 * room.share(8))


def test_it_grows_with_every_stream() -> None:
    """Sixteen of the H200's share a frame of 19 ms: eighty would take 1.2 times what there is."""
    profile = estimate.profile()
    assert profile.limits is not None
    room = Room(Predictor(profile), profile.limits, 0.08)
    shares = [room.share(streams) for streams in range(1, 129)]
    assert shares == sorted(shares)
    assert shares[40 - 1] < MOST < 1.1 < shares[80 - 1]


def test_alone_everybody_fits() -> None:
    assert Room(Fixed(), ONE, 0.08).fits([1] * 1000)


def test_waiting_goes_by_the_usual_holding_time() -> None:
    """Two have places and no third one fits: one has to end for one more, two for two more, in 5 s both."""
    room = Room(Fixed(), ONE, 0.08)
    first = room.take(1, 100.0)
    room.take(1, 100.0)
    assert (room.wait([1]), room.wait([1, 1])) == (2.5, 5.0)
    room.leave(first, None, 101.0)
    assert room.wait([1, 1]) == pytest.approx(4.6)  # it held for 1 s


def test_short_utterances_have_many_prompts() -> None:
    room = Room(Fixed(), ONE, 0.08)
    usual = room.share(1)
    spent = dict.fromkeys(Stage, 0.0) | {Stage.TEXT: 0.010, Stage.PREFILL: 0.010}
    for _ in range(50):
        room.learn(RequestStats(0.0, 0.1, 0.2, 5, 0.4, spent))
    assert room.share(1) == pytest.approx(usual - 0.004 + 0.020 / 0.4, rel=0.02)


def test_a_place_is_kept_until_its_last_word_was_heard_and_a_second_more() -> None:
    room, heard = Room(Fixed(), ONE, 0.08), Playback(PlaybackClock(origin=100.0, at=100.0), 0.0, 4.0)
    place = room.take(1, 100.0)
    room.leave(place, heard, 101.0)
    room.expire(104.9)
    assert (room.has(place), room.next_end(104.9)) == (True, 105.0)
    room.expire(105.0)
    assert not room.has(place)
    assert room.wait([1]) == pytest.approx(5.0 * 0.9 + 4.0 * 0.1)


def test_a_listener_who_moves_on_frees_his_place_sooner() -> None:
    room, heard = Room(Fixed(), ONE, 0.08), Playback(PlaybackClock(origin=100.0, at=100.0), 0.0, 4.0)
    place = room.take(1, 100.0)
    room.leave(place, heard, 101.0)
    room.expire(101.0)
    heard.clock.move(3.0, at=102.0, running=True, jitter=0.0, now=102.0)
    room.moved()
    room.expire(103.9)
    assert room.has(place)
    room.expire(104.0)
    assert not room.has(place)


def test_a_paused_listener_keeps_it_for_a_while() -> None:
    room, heard = Room(Fixed(), ONE, 0.08), Playback(PlaybackClock(100.0, 1.0, 101.0), 0.0, 4.0)
    place = room.take(1, 100.0)
    room.leave(place, heard, 101.0)
    room.expire(101.0 + PATIENCE + GRACE - 0.1)
    assert room.has(place)
    room.expire(101.0 + PATIENCE + GRACE)
    assert not room.has(place)


def test_the_place_of_whom_nobody_listens_to_is_free_at_once() -> None:
    room, heard = Room(Fixed(), ONE, 0.08), Playback(PlaybackClock(origin=100.0, at=100.0), 0.0, 4.0)
    place = room.take(1, 100.0)
    room.silence(place, 100.5)
    assert room.has(place), "it is still being made"
    room.leave(place, heard, 101.0)
    room.silence(place, 101.0)
    assert not room.has(place)
    room.silence(place, 101.0)
    room.silence(None, 101.0)


@pytest.mark.parametrize(("since", "until", "wait"), [(100.0, 4000.0, 10.5), (100.0, 0.0, 4.5)])
def test_one_listener_who_was_away_says_little_of_others(since: float, until: float, wait: float) -> None:
    """An hour counts as a minute; and time that ran backwards as none. A tenth of that, and nine tenths of 5 s."""
    room = Room(Fixed(), ONE, 0.08)
    room.leave(room.take(1, since), None, until)
    assert room.wait([1]) == pytest.approx(wait)


def test_whoever_never_says_where_he_stands_does_not() -> None:
    room = Room(Fixed(), ONE, 0.08)
    place = room.take(1, 100.0)
    room.leave(place, Playback(PlaybackClock(origin=100.0), 0.0, 4.0), 101.0)
    assert not room.has(place)


class Linear(Fixed):
    """Every sequence costs: 5 ms in a decode step, 15 in a depth step, 10 in the codec."""

    def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
        return sequences * super().cost(stage, sequences, length)


class TestGuidance:
    """With it, backbone and depth decoder run two sequences for each request of a step, the codec one."""

    def test_a_guided_caller_needs_the_codec_once(self) -> None:
        room = Room(Linear(), ONE, 0.08)
        assert room.share(1) == pytest.approx((0.005 + 0.015 + 0.010) / 0.080 + 0.020 / 5)
        assert room.share(1, guided=True) == pytest.approx((0.010 + 0.030 + 0.010) / 0.080 + 0.020 / 5)

    def test_one_of_them_doubles_the_others_frames_too(self) -> None:
        """Four share their steps: of 8 sequences, or of 4. The codec has 4."""
        room = Room(Linear(), replace(ONE, max_batch=dict.fromkeys(Stage, 8)), 0.08)
        assert room.share(4) == pytest.approx(4 * (0.030 / 0.080 + 0.020 / 5))
        assert room.share(4, guided=True) == pytest.approx(4 * (0.050 / 0.080 + 0.020 / 5))

    def test_a_step_holds_as_many_guided_requests_as_others(self) -> None:
        """Two rounds of eight, 30 ms each, whatever the sequences."""
        room = Room(Fixed(), replace(ONE, max_batch=dict.fromkeys(Stage, 8)), 0.08)
        assert room.share(16, guided=True) == room.share(16) == pytest.approx(2 * 0.030 / 0.080 + 16 * 0.020 / 5)

    def test_who_is_alone_may_begin_and_a_second_one_if_his_guidance_leaves_time(self) -> None:
        """Two of 37.9 % of the device; with guidance of 62.9 % each."""
        room = Room(Linear(), ONE, 0.08)
        assert room.fits([2])
        place = room.take(1, 100.0)
        assert (room.fits([1]), room.fits([2])) == (True, False)
        room.take(2, 100.0)
        assert not room.fits([1])
        room.leave(place, None, 101.0)
        assert not room.fits([1])

    def test_when_the_last_guided_reply_is_over_steps_are_single_again(self) -> None:
        room = Room(Linear(), ONE, 0.08)
        guided = room.take(2, 100.0)
        room.take(1, 100.0)
        assert not room.fits([])
        room.leave(guided, None, 101.0)
        assert room.fits([1])

    def test_a_guided_caller_waits_for_two_slots(self) -> None:
        """Time is no matter. Four with guidance hold the eight slots: one ends after 1.25 s, two after 2.5 s."""
        room = Room(Fixed(), replace(ONE, max_batch=dict.fromkeys(Stage, 8)), 0.08)
        for _ in range(4):
            room.take(2, 100.0)
        assert room.wait([2]) == 1.25
        assert room.wait([1]) == 1.25
        assert room.wait([2, 2]) == 2.5

    def test_and_for_the_time_that_its_rows_take(self) -> None:
        """Two play, and with guidance there is time for one: both have to end."""
        room = Room(Linear(), ONE, 0.08)
        room.take(1, 100.0)
        room.take(1, 100.0)
        assert room.wait([1]) == 2.5
        assert room.wait([2]) == 5.0
