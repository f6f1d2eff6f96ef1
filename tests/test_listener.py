"""Listeners who are given chunks by hand: when they play, stall, have gaps and interrupt."""

import pytest

from engine.core import Cancel, Finished, FinishReason, Playhead, RequestStats
from engine.listener import Listener, listeners
from engine.traffic import Utterance


class TestListener:
    """Chunks as (instant, seconds of audio). 24 samples are 1 ms."""

    @staticmethod
    def heard(said: Utterance, *chunks: tuple[float, float]) -> Listener:
        listener = Listener(1, said)
        for at, seconds in chunks:
            listener.hear(seconds, at)
        return listener

    @staticmethod
    def said(said: Utterance, *chunks: tuple[float, float]) -> list[tuple[float, float, bool]]:
        """Instant, seconds played and whether it runs, of every playhead."""
        listener, found = Listener(1, said), list[tuple[float, float, bool]]()
        for at, seconds in chunks:
            listener.hear(seconds, at)
            for when, event in listener.events(at, 24000):
                assert isinstance(event, Playhead)
                assert event.at == when
                found.append((round(when, 9), event.played_samples / 24000, event.running))
        return found

    @staticmethod
    def cut(said: Utterance, *chunks: tuple[float, float]) -> list[float]:
        """When it interrupts."""
        listener, found = Listener(1, said), list[float]()
        for at, seconds in chunks:
            listener.hear(seconds, at)
            found += [round(when, 9) for when, event in listener.events(at, 24000) if event == Cancel(1)]
        return found

    def test_a_listener_plays_without_a_pause_or_has_an_underrun(self) -> None:
        listener = Listener(1, Utterance(10.0, 25))
        listener.hear(0.08, 10.1)
        listener.hear(0.16, 10.15)
        assert (listener.ttfa, listener.underruns, listener.extra_buffer) == (pytest.approx(0.1), 0, 0.0)
        assert listener.runs_out_at == pytest.approx(10.34)
        listener.hear(0.08, 10.40)
        assert (listener.underruns, listener.extra_buffer) == (1, pytest.approx(0.06))
        assert listener.runs_out_at == pytest.approx(10.48)

    def test_what_follows_plays_after_what_went_before(self) -> None:
        first = Listener(1, Utterance(10.0, 25))
        first.hear(1.0, 10.1)
        second = Listener(2, Utterance(10.0, 25), before=first)
        second.hear(0.08, 10.5)
        second.hear(0.08, 10.6)
        assert second.runs_out_at == pytest.approx(11.26)
        assert list(second.events(10.6, 24000)) == []
        second.hear(0.08, 11.14)
        ((at, playhead),) = second.events(11.14, 24000)
        assert isinstance(playhead, Playhead)
        assert (at, playhead.played_samples) == (11.14, 960)

    def test_an_utterance_not_heard_yet_has_no_first_audio(self) -> None:
        listener = Listener(1, Utterance(10.0, 25))
        assert (listener.ttfa, listener.unheard, listener.underruns, listener.extra_buffer) == (None, 0.0, 0, 0.0)

    def test_a_second_gap_adds_to_the_first(self) -> None:
        """60 ms late, then just in time for what was delayed by that, then 10 ms more."""
        chunks = (10.0, 0.08), (10.14, 0.08), (10.21, 0.08), (10.31, 0.08)
        assert self.heard(Utterance(10.0, 25), *chunks[:3]).underruns == 1
        assert self.heard(Utterance(10.0, 25), *chunks[:3]).extra_buffer == pytest.approx(0.06)
        listener = self.heard(Utterance(10.0, 25), *chunks)
        assert (listener.underruns, listener.extra_buffer) == (2, pytest.approx(0.07))
        assert listener.runs_out_at == pytest.approx(10.39)

    def test_a_silence_of_its_text_is_no_gap_and_its_time_begins_anew(self) -> None:
        """200 ms late for want of text, then just in time, then 10 ms late by the engine."""
        listener = Listener(1, Utterance(10.0, 25, text_rate=5.0, text_tokens=40))
        for at, late in ((10.7, False), (10.98, True), (11.06, False), (11.15, False)):
            listener.hear(0.08, at, late)
        assert listener.ttfa == pytest.approx(0.1), "three words are certain with the fourth, at 10.6"
        assert (listener.text_waits, listener.underruns) == (1, 1)
        assert listener.extra_buffer == pytest.approx(0.01)

    def test_it_says_where_it_stands_with_every_chunk_but_the_first(self) -> None:
        plain = Utterance(10.0, 25)
        assert self.said(plain, (10.1, 1.0)) == []
        assert self.said(plain, (10.1, 1.0), (10.3, 1.0), (11.6, 1.0)) == [(10.3, 0.2, True), (11.6, 1.5, True)]

    def test_after_a_gap_it_stands_where_it_ran_dry(self) -> None:
        assert self.said(Utterance(10.0, 25), (10.0, 0.5), (10.9, 0.5), (11.0, 0.5)) == [
            (10.9, 0.5, True),
            (11.0, 0.6, True),
        ]

    def test_a_fast_clock_runs_dry_sooner(self) -> None:
        fast, slow = Utterance(10.0, 25, rate=1.01), Utterance(10.0, 25, rate=0.99)
        listener = self.heard(fast, (10.0, 1.0), (10.995, 1.0))
        assert (listener.underruns, listener.extra_buffer) == (1, pytest.approx(0.995 - 1 / 1.01))
        assert listener.runs_out_at == pytest.approx(10.995 + 1 / 1.01)
        listener = self.heard(slow, (10.0, 1.0), (11.005, 1.0))
        assert (listener.underruns, listener.extra_buffer) == (0, 0.0)
        assert listener.runs_out_at == pytest.approx(10.0 + 2 / 0.99)

    def test_its_position_is_by_its_own_clock(self) -> None:
        assert self.said(Utterance(10.0, 25, rate=1.01), (10.0, 1.0), (10.5, 1.0)) == [(10.5, 0.505, True)]
        assert self.said(Utterance(10.0, 25, rate=0.99), (10.0, 1.0), (10.5, 1.0)) == [(10.5, 0.495, True)]

    def test_a_stall_is_told_when_it_begins_and_when_it_is_over(self) -> None:
        stalled = Utterance(10.0, 25, stall=(0.5, 2.0))
        assert self.said(stalled, (10.1, 1.0)) == [(10.6, 0.5, False), (12.6, 0.5, True)]
        assert self.heard(stalled, (10.1, 1.0)).runs_out_at == pytest.approx(13.1)

    def test_a_stall_gives_time(self) -> None:
        stalled = Utterance(10.0, 25, stall=(0.5, 2.0))
        in_time, late = self.heard(stalled, (10.0, 1.0), (12.9, 1.0)), self.heard(stalled, (10.0, 1.0), (13.1, 1.0))
        assert (in_time.underruns, in_time.extra_buffer) == (0, 0.0)
        assert (late.underruns, late.extra_buffer) == (1, pytest.approx(0.1))

    @pytest.mark.parametrize(
        ("at", "position", "running"),
        [
            (10.4, 0.4, True),
            (10.499, 0.499, True),
            (10.501, 0.5, False),
            (11.0, 0.5, False),
            (12.499, 0.5, False),
            (12.501, 0.501, True),
            (12.9, 0.9, True),
        ],
    )
    def test_a_chunk_before_in_and_after_a_stall(self, at: float, position: float, running: bool) -> None:
        stalled = Utterance(10.0, 25, stall=(0.5, 2.0))
        whole, own = self.said(stalled, (10.0, 1.0), (at, 1.0)), (10.5, 0.5, False)
        assert whole == [own, (12.5, 0.5, True), (at, position, running)]

    def test_a_stall_in_a_later_chunk(self) -> None:
        stalled = Utterance(10.0, 25, stall=(0.7, 1.0))
        chunks = (10.0, 0.5), (10.2, 0.5), (10.9, 0.5)
        assert self.said(stalled, *chunks) == [
            (10.2, 0.2, True),
            (10.7, 0.7, False),
            (11.7, 0.7, True),
            (10.9, 0.7, False),
        ]
        assert self.heard(stalled, *chunks).runs_out_at == pytest.approx(12.5)

    def test_a_stall_in_a_chunk_that_is_late(self) -> None:
        stalled = Utterance(10.0, 25, stall=(0.7, 1.0))
        chunks = (10.0, 0.5), (11.0, 0.5), (11.1, 0.5)
        assert self.said(stalled, *chunks) == [
            (11.0, 0.5, True),
            (11.2, 0.7, False),
            (12.2, 0.7, True),
            (11.1, 0.6, True),
        ]
        assert self.heard(stalled, *chunks).runs_out_at == pytest.approx(13.0)

    def test_a_stall_at_the_end_of_a_chunk_is_that_chunks(self) -> None:
        stalled = Utterance(10.0, 25, stall=(0.5, 1.0))
        chunks = (10.0, 0.5), (11.4, 0.5)
        assert self.said(stalled, *chunks) == [(10.5, 0.5, False), (11.5, 0.5, True), (11.4, 0.5, False)]
        listener = self.heard(stalled, *chunks)
        assert (listener.underruns, listener.extra_buffer) == (0, 0.0)
        assert listener.runs_out_at == pytest.approx(12.0)

    def test_a_stall_by_a_clock_that_drifts(self) -> None:
        """Audio plays twice as fast; the pause is as long as it is."""
        stalled = Utterance(10.0, 25, rate=2.0, stall=(0.5, 2.0))
        assert self.said(stalled, (10.0, 1.0), (12.3, 1.0)) == [
            (10.25, 0.5, False),
            (12.25, 0.5, True),
            (12.3, 0.6, True),
        ]
        assert self.heard(stalled, (10.0, 1.0), (12.3, 1.0)).runs_out_at == pytest.approx(13.0)

    def test_a_stall_beyond_the_end_never_comes(self) -> None:
        stalled, plain = Utterance(10.0, 25, stall=(2.001, 9.0)), Utterance(10.0, 25)
        chunks = (10.0, 1.0), (10.5, 1.0)
        assert self.said(stalled, *chunks) == self.said(plain, *chunks)
        assert self.heard(stalled, *chunks).runs_out_at == 12.0

    def test_it_interrupts_when_it_has_heard_enough(self) -> None:
        assert self.cut(Utterance(10.0, 25, hears=0.7), (10.1, 0.5), (10.2, 0.5), (10.3, 0.5)) == [10.8]
        assert self.cut(Utterance(10.0, 25, hears=0.5), (10.1, 0.5), (10.2, 0.5)) == [10.6]
        assert self.cut(Utterance(10.0, 25, hears=0.7), (10.0, 0.5), (11.0, 0.5)) == [11.2]  # after a gap

    def test_by_its_own_clock(self) -> None:
        assert self.cut(Utterance(10.0, 25, hears=0.8, rate=2.0), (10.0, 1.0)) == [10.4]
        assert self.cut(Utterance(10.0, 25, hears=0.8, stall=(0.6, 1.0)), (10.0, 1.0)) == [11.8]
        assert self.cut(Utterance(10.0, 25, hears=0.5, stall=(0.6, 1.0)), (10.0, 1.0)) == [10.5]

    def test_what_is_left_then_is_unheard(self) -> None:
        chunks = (10.0, 1.0), (10.5, 1.5)
        assert self.heard(Utterance(10.0, 25), *chunks).unheard == 0.0
        assert self.heard(Utterance(10.0, 25, hears=0.7), *chunks).unheard == pytest.approx(1.8)

    def test_who_wants_to_hear_more_than_there_is_does_not_interrupt(self) -> None:
        assert self.cut(Utterance(10.0, 25, hears=1.01), (10.0, 1.0)) == []
        assert self.heard(Utterance(10.0, 25, hears=1.01), (10.0, 1.0)).unheard == 0.0

    def test_a_caller_who_hangs_up_leaves_unheard_what_he_has_not_played(self) -> None:
        chunks = (10.0, 1.0), (10.5, 1.5)
        assert self.heard(Utterance(10.0, 25, cancel_at=11.0), *chunks).unheard == pytest.approx(1.5)
        assert self.heard(Utterance(10.0, 25, cancel_at=9.9), *chunks).unheard == pytest.approx(2.5)
        assert self.heard(Utterance(10.0, 25, cancel_at=20.0), *chunks).unheard == 0.0
        assert self.heard(Utterance(10.0, 25, cancel_at=11.0, stall=(0.7, 9.0)), *chunks).unheard == pytest.approx(1.8)
        assert self.heard(Utterance(10.0, 25, cancel_at=11.0, hears=0.7), *chunks).unheard == pytest.approx(1.8)

    def test_what_follows_too_late_has_a_gap_in_front(self) -> None:
        first = self.heard(Utterance(10.0, 25), (10.1, 1.0))
        late = Listener(2, Utterance(10.0, 25), first)
        late.hear(0.08, 11.15)
        assert (late.extra_buffer, late.underruns) == (pytest.approx(0.05), 1)

    def test_what_is_asked_for_in_silence_has_none(self) -> None:
        first = self.heard(Utterance(10.0, 25), (10.1, 1.0))
        later = Listener(2, Utterance(11.2, 25), first)
        later.hear(0.08, 11.5)
        assert (later.extra_buffer, later.plays_at) == (0.0, 11.5)

    def test_what_follows_an_interruption_plays_at_once(self) -> None:
        first = self.heard(Utterance(10.0, 25), (10.1, 1.0))
        stats = RequestStats(10.0, 10.1, 10.3, 12, 1.0, {}, 40)
        first.over(Finished(1, 0, FinishReason.CANCELLED, stats), 10.3)
        assert first.runs_out_at == 10.3
        after = Listener(2, Utterance(10.4, 25), first)
        after.hear(0.08, 10.5)
        assert after.plays_at == 10.5

    def test_what_follows_stalls_and_is_interrupted_in_its_own_audio(self) -> None:
        first = self.heard(Utterance(10.0, 25), (10.1, 1.0))
        second = Listener(2, Utterance(10.0, 25, stall=(0.4, 1.0), hears=0.6), before=first)
        second.hear(1.0, 10.5)  # plays from 11.1 on
        events = list(second.events(10.5, 24000))
        assert [round(at, 9) for at, _ in events] == [11.5, 12.5, 12.7]
        assert [event.running for _, event in events if isinstance(event, Playhead)] == [False, True]
        assert events[2][1] == Cancel(2)


def test_those_of_a_script_know_whom_they_follow() -> None:
    script = [Utterance(0.0, 25), Utterance(0.5, 25), Utterance(1.0, 25, follows=0)]
    first, second, third = listeners(script)
    assert [(one.request_id, one.said) for one in (first, second, third)] == list(enumerate(script))
    assert (first.before, second.before) == (None, None)
    assert third.before is first
