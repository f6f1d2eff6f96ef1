"""Deadlines from where a listener stands."""

from math import inf, nan

import pytest

from engine.playback import MAX_JITTER, PATIENCE, Playback, PlaybackClock


class TestPlaybackClock:
    def test_without_word_from_the_listener_it_runs_from_the_first_delivery(self) -> None:
        clock = PlaybackClock()
        clock.deliver(0.0, now=10.0)
        assert clock.reaches(0.08, now=10.05) == 10.08

    def test_it_waits_where_there_is_nothing_to_play(self) -> None:
        clock = PlaybackClock()
        clock.deliver(0.0, now=10.0)
        clock.deliver(0.08, now=10.5)  # was due at 10.08
        assert clock.reaches(0.24, now=10.5) == pytest.approx(10.66)

    def test_early_audio_does_not_move_it(self) -> None:
        clock = PlaybackClock()
        clock.deliver(0.0, now=10.0)
        clock.deliver(0.08, now=10.02)
        assert clock.reaches(0.24, now=10.02) == pytest.approx(10.24)

    def test_a_playhead_puts_it_right(self) -> None:
        clock = PlaybackClock()
        clock.deliver(0.0, now=10.0)
        clock.move(0.5, at=10.9, running=True, jitter=0.03, now=10.9)
        assert clock.reaches(2.0, now=11.0) == pytest.approx(12.4)
        assert clock.jitter == 0.03

    def test_paused_the_deadline_moves_along_with_now(self) -> None:
        clock = PlaybackClock()
        clock.move(0.5, at=10.0, running=False, jitter=0.0, now=10.0)
        assert clock.reaches(2.0, now=11.0) == 12.5
        assert clock.reaches(2.0, now=20.0) == 21.5
        clock.move(0.5, at=20.0, running=True, jitter=0.0, now=20.0)
        assert clock.reaches(2.0, now=21.0) == 21.5

    def test_standing_still_at_the_end_is_starving_since_then(self) -> None:
        clock = PlaybackClock()
        clock.move(2.0, at=10.0, running=False, jitter=0.0, now=10.0)
        assert clock.reaches(2.0, now=11.0) == 10.0

    def test_older_news_is_ignored(self) -> None:
        clock = PlaybackClock()
        clock.move(1.0, at=10.0, running=True, jitter=0.0, now=10.0)
        clock.move(0.0, at=9.9, running=False, jitter=0.1, now=9.9)
        assert clock.reaches(2.0, now=10.0) == 11.0

    def test_a_delivery_does_not_wake_a_paused_listener(self) -> None:
        clock = PlaybackClock()
        clock.move(0.0, at=10.0, running=False, jitter=0.0, now=10.0)
        clock.deliver(0.0, now=11.0)
        assert clock.reaches(0.08, now=12.0) == 12.08

    def test_the_allowance_for_jitter_is_bounded(self) -> None:
        clock = PlaybackClock()
        clock.move(0.0, at=10.0, running=True, jitter=5.0, now=10.0)
        assert clock.jitter == MAX_JITTER

    def test_when_it_is_near(self) -> None:
        clock = PlaybackClock()
        assert clock.nears(9.0, lead=4.0) == -inf
        clock.move(1.0, at=10.0, running=True, jitter=0.0, now=10.0)
        assert clock.nears(9.0, lead=4.0) == 14.0
        assert clock.nears(9.0, lead=inf) == -inf
        clock.move(1.0, at=10.0, running=False, jitter=0.0, now=10.0)
        assert clock.nears(9.0, lead=4.0) == inf
        assert clock.nears(5.0, lead=4.0) == -inf

    def test_it_is_never_far_from_a_listener_who_says_nothing(self) -> None:
        clock = PlaybackClock()
        clock.deliver(0.0, now=10.0)
        assert clock.nears(100.0, lead=4.0) == -inf


class TestPlayback:
    def test_the_deadline_is_the_end_of_what_was_delivered(self) -> None:
        playback = Playback()
        playback.deliver(0.08, now=10.0)
        playback.deliver(0.16, now=10.05)
        assert playback.deadline(10.1) == pytest.approx(10.24)
        assert playback.left(10.1) == pytest.approx(0.14)

    def test_jitter_takes_from_the_time_that_is_left(self) -> None:
        playback = Playback()
        playback.deliver(0.08, now=10.0)
        playback.clock.move(0.0, at=10.0, running=True, jitter=0.02, now=10.0)
        assert playback.deadline(10.0) == pytest.approx(10.08)
        assert playback.left(10.0) == pytest.approx(0.06)

    def test_what_follows_begins_at_the_end(self) -> None:
        first = Playback()
        first.deliver(1.0, now=10.0)
        second = Playback(first.clock, first.end)
        second.deliver(0.5, now=10.2)
        assert second.deadline(10.2) == pytest.approx(11.5)
        first.clock.move(0.2, at=11.0, running=True, jitter=0.0, now=11.0)  # the listener is late, in the first
        assert second.deadline(11.0) == pytest.approx(12.3)


@pytest.mark.parametrize(
    ("at", "jitter"),
    [(nan, 0.0), (inf, 0.0), (1e12, 0.0), (103.0, 0.0), (99.0, 0.0), (-1e5, 0.0), (101.0, nan), (101.0, -1.0)],
)
def test_a_playhead_without_sense_poisons_no_deadline(at: float, jitter: float) -> None:
    playback = Playback(PlaybackClock(), 0.0, 2.0)
    playback.clock.deliver(0.0, 100.0)
    playback.clock.move(1.0, at, True, jitter, 101.0)
    assert playback.left(101.0) == pytest.approx(1.0)


@pytest.mark.parametrize("position", [nan, -1.0, -1e300])
def test_no_position_is_no_word(position: float) -> None:
    playback = Playback(PlaybackClock(), 0.0, 2.0)
    playback.clock.deliver(0.0, 100.0)
    playback.clock.move(position, 101.0, False, 0.0, 101.0)
    assert not playback.clock.known


@pytest.mark.parametrize("frames", range(1, 252))
def test_who_has_played_all_samples_has_heard_the_end(frames: int) -> None:
    """However the chunks were cut: sums of seconds are not exact, and listeners count in packets."""
    playback, left = Playback(), frames
    while left:
        size = min(left, 1 + left % 7)
        playback.deliver(size * 0.08, 100.0)
        left -= size
    playback.clock.move(frames * 1920 / 24000, 130.0, False, 0.0, 130.0)
    assert playback.heard_at(200.0) == 130.0
    playback.clock.move(frames * 1920 / 24000 - 0.015, 131.0, False, 0.0, 131.0)
    assert playback.heard_at(200.0) == 131.0, "less than a packet before it"


def test_who_pauses_is_not_waited_for_for_ever() -> None:
    playback = Playback()
    playback.deliver(2.0, 100.0)
    playback.clock.move(0.5, 100.5, False, 0.0, 100.5)
    assert playback.heard_at(101.0) == playback.heard_at(5000.0) == 100.5 + PATIENCE
