"""The production loop on a fake clock: literal listeners, and runs whose figures can be told beforehand."""

import pytest

from engine.core import Cancel, Chunk, Failed, Finished, FinishReason, Limits, Playhead, Row, Stage, Step
from engine.profile import Profile
from engine.simulator import (
    FakeClock,
    Listener,
    PriorCosts,
    ProfileCosts,
    ScriptedInbox,
    Simulation,
    simulate,
)
from engine.traffic import Utterance, poisson


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


class TestRuns:
    def test_first_audio_comes_after_four_steps(self) -> None:
        run = simulate([Utterance(1.0, 25)], ProfileCosts(PROFILE), profile=PROFILE)
        (listener,) = run.listeners
        assert listener.ttfa == pytest.approx(0.045)
        assert listener.audio == pytest.approx(2.0)
        assert listener.underruns == 0
        assert isinstance(listener.end, Finished)

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


def test_callers_come_at_the_rate_that_the_load_asks_for() -> None:
    script = poisson(2000, 3.0, seed=0)
    audio = sum(said.frames * 0.08 for said in script)
    assert audio / script[-1].at == pytest.approx(3.0, rel=0.1)
    assert all(25 <= said.frames <= 250 for said in script)
