"""The production loop on a fake clock: literal listeners, and runs whose figures can be told beforehand."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prior_costs import PriorCosts

from engine.core import SPEAKING, Cancel, Chunk, Failed, Finished, FinishReason, Limits, Playhead, Stage
from engine.costs import ProfileCosts
from engine.listener import Listener
from engine.profile import Overhead, Profile
from engine.simulator import FakeClock, ScriptedInbox, Simulation, simulate
from engine.traffic import NEVER, Moods, Utterance, moody, poisson

PROFILE = Profile(
    "flat",
    {
        (stage, batch, length): (seconds,)
        for stage, seconds in zip(SPEAKING, (0.010, 0.010, 0.005, 0.015, 0.010), strict=True)
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
