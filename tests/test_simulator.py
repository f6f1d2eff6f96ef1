"""The production loop on a fake clock: literal listeners, and runs whose figures can be told beforehand."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import Cancel, Chunk, Failed, Finished, FinishReason, Limits, Playhead, RequestStats, Row, Stage, Step
from engine.profile import Overhead, Profile
from engine.simulator import (
    FakeClock,
    Listener,
    PriorCosts,
    ProfileCosts,
    ScriptedInbox,
    Simulation,
    simulate,
)
from engine.traffic import NEVER, Moods, Utterance, moody, poisson


def step(stage: Stage, batch: int = 1, length: int = 1) -> Step:
    return Step(stage, tuple(Row(number, (number + 1,), count=length) for number in range(batch)))


PROFILE = Profile(
    "flat",
    {
        (stage, batch, length): (seconds,)
        for stage, seconds in zip(Stage, (0.010, 0.010, 0.005, 0.015, 0.010), strict=True)
        for batch in (1, 8)
        for length in (1, 2, 4, 8, 16, 64, 256)
    },
)


SHAPES = [(batch, length) for batch in (1, 2, 4, 8) for length in (1, 2, 4, 8, 16, 32, 64, 128, 256)]
SLOW_CODEC = Profile(
    "6 ms and 15.5 ms a frame",
    {
        **{(Stage.TEXT, batch, length): (0.005,) for batch, length in SHAPES},
        **{(Stage.PREFILL, batch, length): (0.006 + 37e-6 * batch * length,) for batch, length in SHAPES},
        **{(Stage.DECODE, batch, 1): (0.004 + 0.001 * batch,) for batch, _ in SHAPES},
        **{(Stage.DEPTH, batch, 1): (0.016 + 0.003 * batch,) for batch, _ in SHAPES},
        **{(Stage.CODEC, batch, length): (0.006 + 0.0155 * batch * length,) for batch, length in SHAPES},
    },
)
"""A codec that gains little from large steps: two chunks of 16 frames take 502 ms in one step, 508 in two."""
FRAME_MS = {1: 8.2, 2: 6.4, 4: 5.4, 8: 4.8, 16: 4.4}
TWO_CORES = Profile(
    "measured on two CPU cores",
    {
        **{(Stage.TEXT, batch, length): (0.007,) for batch, length in SHAPES},
        **{(Stage.PREFILL, batch, length): (0.006 + 150e-6 * batch * length,) for batch, length in SHAPES},
        **{(Stage.DECODE, batch, 1): (0.003 + 0.0007 * batch,) for batch, _ in SHAPES},
        **{(Stage.DEPTH, batch, 1): (0.010 + 0.002 * batch,) for batch, _ in SHAPES},
        **{
            (Stage.CODEC, batch, size): (batch * size * ms / 1000,)
            for batch in (1, 2, 4, 8)
            for size, ms in FRAME_MS.items()
        },
    },
)


def newcomers(profile: Profile, streams: int) -> list[Simulation]:
    """Runs in which one caller comes while others speak 12 s, at instants all over their steps."""
    speaking = [Utterance(0.3 * number, 150) for number in range(streams)]
    times = [3.0 + 0.037 * number for number in range(16)]
    return [simulate([*speaking, Utterance(at, 25)], ProfileCosts(profile), profile=profile) for at in times]


class TestParts:
    def test_time_passes_only_when_told(self) -> None:
        clock = FakeClock(10.0)
        clock.advance(0.5)
        clock.advance_to(9.0)
        assert clock.now() == 10.5

    def test_the_inbox_gives_out_what_has_happened(self) -> None:
        clock = FakeClock()
        inbox = ScriptedInbox(clock, [(2.0, Cancel(2)), (1.0, Cancel(1)), (2.0, Cancel(3))])
        assert inbox.drain() == []
        inbox.wait(until=None)
        assert (clock.now(), inbox.drain()) == (1.0, [Cancel(1)])
        inbox.wait(until=1.5)
        assert (clock.now(), inbox.drain()) == (1.5, [])
        inbox.wait(until=5.0)
        assert (clock.now(), inbox.drain()) == (2.0, [Cancel(2), Cancel(3)])
        assert not inbox.closed
        inbox.wait(until=None)
        assert inbox.closed

    def test_costs_of_a_profile_are_its_samples(self) -> None:
        costs = ProfileCosts(PROFILE, speed=2.0)
        assert costs.draw(step(Stage.DEPTH, 3)) == 0.0075
        assert costs.draw(step(Stage.PREFILL, 64, 4096)) == 0.005  # the largest that was measured

    def test_a_profile_without_a_stage_cannot_be_simulated(self) -> None:
        with pytest.raises(ValueError, match="no samples of prefill, decode, depth, codec"):
            ProfileCosts(Profile("half", {(Stage.TEXT, 1, 1): (0.01,)}))


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


class TestRuns:
    def test_first_audio_comes_after_four_steps(self) -> None:
        run = simulate([Utterance(1.0, 25)], ProfileCosts(PROFILE), profile=PROFILE)
        (listener,) = run.listeners
        assert listener.ttfa == pytest.approx(0.045)
        assert listener.audio == pytest.approx(2.0)
        assert listener.underruns == 0
        assert isinstance(listener.end, Finished)

    def test_what_passes_around_the_steps_is_added(self) -> None:
        overhead = Overhead(submit=0.010, step=0.001, deliver=0.020)
        run = simulate([Utterance(1.0, 25)], ProfileCosts(PROFILE), profile=PROFILE, overhead=overhead)
        (listener,) = run.listeners
        assert listener.ttfa == pytest.approx(0.010 + 0.045 + 4 * 0.001 + 0.020)
        assert (listener.audio, listener.underruns) == (pytest.approx(2.0), 0)

    def test_an_interruption_takes_as_long_to_be_known(self) -> None:
        overhead = Overhead(submit=0.010, step=0.001, deliver=0.020)
        said = Utterance(0.0, 250, hears=2.0)
        run = simulate([said], ProfileCosts(PROFILE), profile=PROFILE, overhead=overhead)
        heard_at = run.listeners[0].arrivals[0][0] + 2.0
        assert run.outputs[-1][0] == pytest.approx(heard_at + 0.010 + 0.001)

    def test_a_long_utterance_is_made_at_the_pace_of_its_listener(self) -> None:
        run = simulate([Utterance(0.0, 250)], ProfileCosts(PROFILE), profile=PROFILE)
        assert run.elapsed > 20.0 - 4.0 - 1.28 - 1.0
        assert run.listeners[0].underruns == 0

    def test_and_as_fast_as_the_device_goes_if_nobody_listens(self) -> None:
        run = simulate([Utterance(0.0, 250)], ProfileCosts(PROFILE), profile=PROFILE, playheads=False)
        assert run.elapsed < 6.0

    def test_an_interrupted_utterance_wastes_no_more_than_the_lead(self) -> None:
        run = simulate([Utterance(0.0, 250, cancel_at=5.0)], ProfileCosts(PROFILE), profile=PROFILE)
        (listener,) = run.listeners
        assert isinstance(listener.end, Finished)
        assert listener.end.reason is FinishReason.CANCELLED
        assert listener.audio <= 5.0 + 4.0 + 1.28

    def test_the_sentences_of_a_reply_play_without_a_gap(self) -> None:
        script = [Utterance(0.0, 40), *(Utterance(0.0, 40, follows=number) for number in range(4))]
        run = simulate(script, ProfileCosts(PROFILE), profile=PROFILE)
        ends = [listener.runs_out_at for listener in run.listeners]
        assert ends == pytest.approx([0.045 + 3.2 * (number + 1) for number in range(5)])
        assert run.metrics["deadline_misses_total"] == 0

    def test_a_burst_of_sixteen_all_start_and_none_has_a_gap(self) -> None:
        run = simulate([Utterance(0.0, 50) for _ in range(16)], ProfileCosts(PROFILE), profile=PROFILE)
        assert all(listener.ttfa is not None and listener.extra_buffer == 0 for listener in run.listeners)

    def test_more_than_the_device_can_do_shows_as_gaps(self) -> None:
        run = simulate(
            [Utterance(0.0, 50) for _ in range(16)], PriorCosts(), limits=Limits(num_slots=16, num_pages=2048)
        )
        assert sum(listener.extra_buffer > 0 for listener in run.listeners) > 8

    def test_a_refused_caller_hears_nothing(self) -> None:
        run = simulate([Utterance(0.0, 5, text_tokens=3000)], PriorCosts())
        assert isinstance(run.listeners[0].end, Failed)
        assert not any(isinstance(output, Chunk) for _, output in run.outputs)


class TestMoods:
    """A listener of 20 s who hears his first audio after 45 ms, alone on a device that is fast enough."""

    def run(self, said: Utterance) -> tuple[Listener, Simulation]:
        simulation = simulate([said], ProfileCosts(PROFILE), profile=PROFILE)
        (listener,) = simulation.listeners
        assert listener.ttfa == pytest.approx(0.045)
        assert (listener.underruns, listener.extra_buffer) == (0, 0.0)
        return listener, simulation

    def audio_at(self, listener: Listener, now: float) -> float:
        return sum(seconds for at, seconds in listener.arrivals if at <= now)

    @pytest.mark.parametrize("rate", [0.98, 0.9998, 1.0002, 1.02])
    def test_a_clock_that_drifts_is_followed(self, rate: float) -> None:
        """Held at 4 s ahead of where the listener says that he is, and no more than two chunks of 16 behind that."""
        listener, _ = self.run(Utterance(0.0, 250, rate=rate))
        assert listener.runs_out_at == pytest.approx(0.045 + 20.0 / rate)
        for at in (6.0, 10.0, 14.0):
            lead = self.audio_at(listener, at) - (at - 0.045) * rate
            assert 4.0 - 1.28 < lead < 4.0 + 1.28

    def test_nothing_is_made_for_a_listener_who_stands_still(self) -> None:
        """From 3.045 to 8.045."""
        listener, _ = self.run(Utterance(0.0, 250, stall=(3.0, 5.0)))
        assert self.audio_at(listener, 8.04) <= 3.0 + 4.0 + 1.28
        assert not [at for at, _ in listener.arrivals if 4.5 < at < 8.045]
        assert listener.runs_out_at == pytest.approx(0.045 + 20.0 + 5.0)
        assert listener.audio == pytest.approx(20.0)

    def test_an_interruption_ends_it_at_that_instant(self) -> None:
        """The stream is held then, so that no step is in the way."""
        listener, simulation = self.run(Utterance(0.0, 250, hears=2.0))
        at, end = simulation.outputs[-1]
        assert isinstance(end, Finished)
        assert (at, end.reason) == (pytest.approx(2.045), FinishReason.CANCELLED)
        assert listener.audio == pytest.approx(simulation.metrics["frames_total"] * 0.08)
        assert listener.unheard == pytest.approx(listener.audio - 2.0)
        assert 4.0 - 1.28 < listener.unheard < 4.0 + 1.28

    def test_one_who_interrupts_in_a_stall_has_heard_as_much(self) -> None:
        _, simulation = self.run(Utterance(0.0, 250, stall=(1.0, 3.0), hears=2.0))
        assert simulation.outputs[-1][0] == pytest.approx(5.045)

    def test_without_playheads_he_interrupts_too(self) -> None:
        said = Utterance(0.0, 250, hears=2.0, stall=(1.0, 0.5))
        run = simulate([said], ProfileCosts(PROFILE), profile=PROFILE, playheads=False)
        assert run.outputs[-1][0] == pytest.approx(2.545, abs=0.016)
        assert run.listeners[0].arrivals[-1][0] <= run.outputs[-1][0]

    def test_what_never_comes_changes_nothing(self) -> None:
        script = poisson(12, 6.0, seed=0)
        later = [replace(said, stall=(20.1, 1.0), hears=20.1) for said in script]
        runs = [simulate(one, PriorCosts(3), profile=PROFILE) for one in (script, moody(script, Moods(), 5), later)]
        arrivals = [[listener.arrivals for listener in run.listeners] for run in runs]
        assert arrivals[0] == arrivals[1] == arrivals[2]
        assert {len(run.outputs) for run in runs} == {len(runs[0].outputs)}

    def test_first_audio_does_not_depend_on_how_he_listens(self) -> None:
        script = [Utterance(30.0 * i, 100) for i in range(5)]
        moods = [{}, {"rate": 1.0003}, {"stall": (0.05, 2.0)}, {"hears": 0.06}, {"rate": 0.9, "stall": (3.0, 1.0)}]
        moody_script = [replace(said, **mood) for said, mood in zip(script, moods, strict=True)]
        run = simulate(moody_script, ProfileCosts(PROFILE), profile=PROFILE)
        assert [listener.ttfa for listener in run.listeners] == pytest.approx([0.045] * 5)
        assert [listener.extra_buffer for listener in run.listeners] == [0.0] * 5


calls = st.builds(
    Utterance,
    at=st.integers(0, 30).map(lambda ticks: 0.1 * ticks),
    frames=st.integers(1, 200),
    rate=st.floats(0.98, 1.02),
    stall=st.just(NEVER) | st.tuples(st.floats(0.05, 16.0), st.floats(0.1, 3.0)),
    hears=st.none() | st.floats(0.05, 16.0),
    cancel_at=st.none() | st.floats(3.0, 12.0),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(calls, min_size=1, max_size=3))
def test_whatever_listeners_do_with_time_enough_nobody_has_a_gap_or_gets_far_ahead(script: list[Utterance]) -> None:
    run = simulate(script, ProfileCosts(PROFILE), profile=PROFILE)
    for listener in run.listeners:
        assert (listener.underruns, listener.extra_buffer) == (0, 0.0)
        assert isinstance(listener.end, Finished)
        if listener.end.reason is not FinishReason.CANCELLED:
            assert listener.audio == pytest.approx(listener.said.frames * 0.08)
        assert max(leads(listener), default=0.0) <= 4.0 + 1.28 + 0.001


def leads(listener: Listener) -> Iterator[float]:
    """How far it was behind what had arrived, whenever it said so on an arrival."""
    again = Listener(listener.request_id, listener.said)
    for at, seconds in listener.arrivals:
        again.hear(seconds, at)
        for when, event in again.events(at, 24000):
            if isinstance(event, Playhead) and when == at:
                yield again.audio - event.played_samples / 24000


class TestBesideOthers:
    """What a new caller waits for is bounded by one step: alone he hears his first audio after 54 and 42 ms."""

    @pytest.mark.parametrize(("profile", "ttfa"), [(SLOW_CODEC, 0.054), (TWO_CORES, 0.042)])
    def test_alone(self, profile: Profile, ttfa: float) -> None:
        (listener,) = simulate([Utterance(0.0, 25)], ProfileCosts(profile), profile=profile).listeners
        assert listener.ttfa == pytest.approx(ttfa, abs=0.001)

    @pytest.mark.parametrize("streams", [1, 2])
    def test_with_a_slow_codec_he_waits_for_a_chunk_of_4(self, streams: int) -> None:
        """68 ms, and perhaps a mate's frame. Steps of 254 and 502 ms would make that 240 and 490 ms."""
        waits = [run.listeners[-1].ttfa for run in newcomers(SLOW_CODEC, streams)]
        assert max(wait for wait in waits if wait is not None) < 0.054 + 0.068 + 0.016
        assert None not in waits

    @pytest.mark.parametrize("streams", [1, 2])
    def test_with_a_faster_one_for_a_chunk_of_16_at_most(self, streams: int) -> None:
        runs = newcomers(TWO_CORES, streams)
        waits = [run.listeners[-1].ttfa for run in runs]
        assert max(wait for wait in waits if wait is not None) < 0.042 + 0.071 + 0.009
        assert None not in waits
        assert all(listener.extra_buffer == 0 for run in runs for listener in run.listeners)

    @pytest.mark.parametrize("profile", [SLOW_CODEC, TWO_CORES])
    @pytest.mark.parametrize("offset", [0.0, 0.05, 1.0])
    def test_two_at_once_have_no_gap(self, profile: Profile, offset: float) -> None:
        run = simulate([Utterance(0.0, 150), Utterance(offset, 150)], ProfileCosts(profile), profile=profile)
        assert [listener.extra_buffer for listener in run.listeners] == [0.0, 0.0]

    def test_shorter_steps_cost_little(self) -> None:
        """Chunks of 16 alone, and never more than 5 % above them: 24 ms a frame and 15.9 for its share of a chunk."""
        run = simulate([Utterance(0.0, 150)], ProfileCosts(SLOW_CODEC), profile=SLOW_CODEC)
        busy = run.metrics["device_busy_seconds_total"]
        assert busy / run.listeners[0].audio < 1.05 * (0.024 + 0.254 / 16) / 0.080
