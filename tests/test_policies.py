"""Each emulation's order by literal streams, and what sets all of them apart from the Predictor in a run.

In runs steps cost, alone or shared: text 10 ms, prefill 10, decode 5, depth 15, codec 10. A frame is 80 ms of audio.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from scripted_engine import submit

from engine.choice import Predicted
from engine.chunking import goal
from engine.core import SPEAKING, Chunk, Finished, Limits, Stage
from engine.costs import ProfileCosts
from engine.policies import EMULATIONS, NAMES, PREDICTOR, SOURCES, make
from engine.policies.ordered import Ordered
from engine.policy import Candidate, Decision
from engine.predictor import Predictor
from engine.profile import Profile
from engine.simulator import Simulation, simulate
from engine.stream import Stream
from engine.traffic import SPEC, Utterance

LIMITS = Limits(max_batch={**dict.fromkeys(Stage, 3), Stage.CODEC: 2})
EMULATED = [policy.name for policy in EMULATIONS]
CODEC, DECODE, DEPTH, PREFILL, TEXT = Stage.CODEC, Stage.DECODE, Stage.DEPTH, Stage.PREFILL, Stage.TEXT


def new(
    number: int, stage: Stage, at: float, served: float | None = None, count: int = 1, guided: bool = False
) -> Candidate:
    """A caller who came at that instant and has heard nothing yet."""
    stream = Stream.accept(submit(number, rows=1 + guided, submitted_at=at), SPEC, LIMITS, at)
    stream.served_at = at if served is None else served
    return Candidate(stream, stage, count, -inf)


def playing(
    number: int, stage: Stage, at: float, served: float | None = None, count: int = 1, runs_dry: float = 20.0
) -> Candidate:
    """One that plays: the last chunk, 1.28 s, ends at `runs_dry`."""
    made = new(number, stage, at, served, count)
    stream = made.stream
    stream.made, stream.sent, stream.chunks = 16 + (count if stage is CODEC else 0), 16, 5
    stream.playback.deliver(1.28, runs_dry - 1.28)
    stream.last_chunk_seconds = 1.28
    made.slack = 0.5
    return made


def decided(name: str, candidates: Sequence[Candidate], now: float = 10.0) -> Decision:
    predictor = Predictor()
    policy = make(name, predictor, LIMITS)
    return policy.decide(candidates, predictor.pace(len(candidates), LIMITS), now)


def chosen(name: str, *candidates: Candidate, now: float = 10.0) -> list[int]:
    return [candidate.stream.request_id for candidate in decided(name, candidates, now).rows]


FLAT = Profile(
    "flat",
    {
        (stage, batch, length): (seconds,)
        for stage, seconds in zip(SPEAKING, (0.010, 0.010, 0.005, 0.015, 0.010), strict=True)
        for batch in (1, 8)
        for length in (1, 2, 4, 8, 16, 64, 256)
    },
)


def played(name: str, *script: Utterance, limits: Limits | None = None) -> Simulation:
    return simulate(
        script, ProfileCosts(FLAT), profile=FLAT, policy=name, limits=limits or Limits(num_slots=16, num_pages=2048)
    )


def sizes(run: Simulation, number: int) -> list[int]:
    return [len(o.codes) for _, o in run.outputs if isinstance(o, Chunk) and o.request_id == number]


class TestRunToCompletion:
    def test_whoever_came_first_leads_at_whatever_stage(self) -> None:
        first, starting = playing(1, DEPTH, 1.0), new(2, TEXT, 2.0, count=40)
        assert chosen("run-to-completion", starting, first) == [1]
        assert chosen("run-to-completion", new(3, TEXT, 0.5, count=40), first) == [3]

    def test_those_at_the_same_stage_join_by_arrival(self) -> None:
        rows = [playing(1, DEPTH, 3.0), playing(2, DEPTH, 1.0), playing(3, DEPTH, 4.0), new(4, DEPTH, 2.0)]
        assert chosen("run-to-completion", *rows) == [2, 4, 1]

    def test_a_chunk_is_finished_first(self) -> None:
        assert chosen("run-to-completion", playing(1, DEPTH, 1.0), playing(2, CODEC, 2.0, count=4)) == [2]

    def test_nobody_starts_in_the_middle(self) -> None:
        run = played("run-to-completion", Utterance(0.0, 25), Utterance(0.0, 50), Utterance(0.1, 25))
        ends = {o.request_id: at for at, o in run.outputs if isinstance(o, Finished)}
        first_audio = [listener.arrivals[0][0] for listener in run.listeners]
        assert first_audio[:2] == pytest.approx([0.045, 0.045])  # together: both were there
        assert ends[0] < ends[1]
        assert first_audio[2] == pytest.approx(ends[1] + 0.045)


class TestNewestFirst:
    def test_a_caller_without_audio_goes_first(self) -> None:
        assert chosen("newest-first", playing(1, CODEC, 1.0, runs_dry=9.0), new(2, TEXT, 2.0, count=40)) == [2]

    def test_first_come_first_among_them(self) -> None:
        assert chosen("newest-first", new(1, TEXT, 3.0, count=40), new(2, PREFILL, 2.0), new(3, DEPTH, 4.0)) == [2]

    def test_then_the_others_by_arrival(self) -> None:
        rows = [playing(1, DECODE, 3.0, runs_dry=10.1), playing(2, DEPTH, 1.0), playing(3, DECODE, 2.0)]
        assert chosen("newest-first", *rows) == [2]
        assert chosen("newest-first", rows[0], rows[2]) == [3, 1]

    def test_within_each_a_chunk_that_is_ready_goes_out_first(self) -> None:
        assert chosen("newest-first", playing(1, DEPTH, 1.0), playing(2, CODEC, 3.0, count=4)) == [2]
        assert chosen("newest-first", new(1, TEXT, 1.0, count=40), new(2, CODEC, 3.0)) == [2]

    def test_playing_streams_fill_the_step_of_a_new_caller(self) -> None:
        rows = [playing(1, DEPTH, 2.0), playing(2, DEPTH, 1.0), playing(3, DEPTH, 3.0), new(4, DEPTH, 4.0)]
        assert chosen("newest-first", *rows) == [4, 2, 1]


class TestRoundRobin:
    def test_whoever_was_served_longest_ago_goes_first(self) -> None:
        rows = [playing(1, DEPTH, 1.0, served=9.3), new(2, TEXT, 9.2, count=40), playing(3, DEPTH, 5.0, served=9.1)]
        assert chosen("round-robin", *rows) == [3, 1]
        assert chosen("round-robin", *rows[:2]) == [2]

    def test_those_of_its_stage_join_in_the_same_order(self) -> None:
        rows = [playing(i, DEPTH, 1.0, served=9.0 + 0.1 * place) for i, place in enumerate((3, 0, 2, 1))]
        assert chosen("round-robin", *rows) == [1, 3, 2]


class TestFixedChunks:
    def test_it_orders_as_newest_first(self) -> None:
        assert chosen("fixed-chunks", playing(1, CODEC, 1.0, count=16), new(2, TEXT, 2.0, count=40)) == [2]
        assert chosen("fixed-chunks", playing(1, DEPTH, 3.0), playing(2, DECODE, 1.0)) == [2]

    def test_all_chunks_are_of_16_frames(self) -> None:
        run = played("fixed-chunks", Utterance(0.0, 40))
        assert sizes(run, 0) == [16, 16, 8]
        assert run.listeners[0].ttfa == pytest.approx(0.020 + 16 * 0.015 + 15 * 0.005 + 0.010)

    def test_an_utterance_shorter_than_that_is_said_too(self) -> None:
        assert sizes(played("fixed-chunks", Utterance(0.0, 7)), 0) == [4, 2, 1]


class TestFixedWait:
    def test_the_codec_goes_by_playback_deadline(self) -> None:
        rows = [playing(i, CODEC, 1.0 + i, 9.0, 4, runs_dry) for i, runs_dry in enumerate((11.0, 10.5, 10.2))]
        assert chosen("fixed-wait", *rows) == [2, 1]

    def test_before_other_stages_that_go_by_arrival(self) -> None:
        rows = [playing(1, DEPTH, 2.0), playing(2, DEPTH, 1.0), playing(3, CODEC, 3.0, served=9.0, count=4)]
        assert chosen("fixed-wait", *rows) == [3]
        assert chosen("fixed-wait", *rows[:2]) == [2, 1]

    def test_a_new_caller_goes_before_all(self) -> None:
        late = playing(1, CODEC, 1.0, served=9.0, count=4, runs_dry=9.5)
        assert chosen("fixed-wait", late, new(2, TEXT, 2.0, count=40)) == [2]

    def test_a_step_that_is_not_full_waits_for_4_ms(self) -> None:
        chunk = playing(1, CODEC, 1.0, served=10.0, count=4)
        assert decided("fixed-wait", [chunk], 10.0039) == Decision((), "fixed-wait", 10.004)
        assert chosen("fixed-wait", chunk, now=10.004) == [1]

    def test_from_when_its_first_row_was_ready(self) -> None:
        """Of chunks of 4; those of 8 make another step."""
        rows = [playing(i, CODEC, 1.0, 10.0 + 0.001 * i, 4 if i else 8) for i in range(2)]
        assert decided("fixed-wait", rows, 10.0015).wait_until == 10.004
        assert chosen("fixed-wait", *rows, now=10.0041) == [0]
        assert chosen("fixed-wait", *rows[1:], now=10.0051) == [1]

    def test_a_full_one_does_not(self) -> None:
        rows = [playing(i, CODEC, 1.0, 10.0, 4) for i in range(2)]
        assert chosen("fixed-wait", *rows, now=10.0001) == [0, 1]

    def test_meanwhile_others_run(self) -> None:
        chunk, other = playing(1, CODEC, 1.0, 10.0, 4), playing(2, DEPTH, 2.0, 10.0)
        assert chosen("fixed-wait", chunk, other, now=10.001) == [2]

    def test_first_audio_comes_4_ms_later_and_the_wait_ends(self) -> None:
        run = played("fixed-wait", Utterance(0.0, 3))
        assert run.listeners[0].ttfa == pytest.approx(0.045 + 0.004)
        assert run.elapsed == pytest.approx(0.020 + 3 * 0.015 + 3 * 0.005 + 2 * (0.010 + 0.004))
        assert sizes(run, 0) == [1, 2]

    def test_two_in_step_do_not_wait(self) -> None:
        run = played("fixed-wait", *[Utterance(0.0, 3)] * 2, limits=Limits(max_batch=dict.fromkeys(Stage, 2)))
        assert [listener.ttfa for listener in run.listeners] == pytest.approx([0.045, 0.045])


class TestUrgencyMargin:
    """The last chunk, of 1.28 s, begins at 11.0."""

    def test_a_stream_is_pressing_1_s_before_its_last_chunk_begins(self) -> None:
        older, other = playing(1, DEPTH, 1.0), playing(2, DECODE, 2.0, runs_dry=11.0 + 1.28)
        assert chosen("urgency-margin", older, other, now=11.0 - 1.01) == [1]
        assert chosen("urgency-margin", older, other, now=11.0 - 0.99) == [2]

    def test_without_audio_it_always_is(self) -> None:
        assert chosen("urgency-margin", playing(1, CODEC, 1.0, count=4), new(2, DEPTH, 2.0)) == [2]

    def test_by_arrival_among_those_who_are(self) -> None:
        older, other = playing(1, DEPTH, 1.0, runs_dry=10.1), new(2, DECODE, 2.0)
        assert chosen("urgency-margin", other, older) == [1]
        assert chosen("urgency-margin", playing(1, DEPTH, 3.0, runs_dry=10.1), other) == [2]

    def test_a_chunk_that_is_ready_goes_before_frames(self) -> None:
        assert chosen("urgency-margin", playing(1, DEPTH, 1.0), playing(2, CODEC, 2.0, count=4)) == [2]
        assert chosen("urgency-margin", new(1, DEPTH, 1.0), new(2, CODEC, 2.0)) == [2]

    def test_prompts_go_before_everything(self) -> None:
        pressing = playing(1, CODEC, 1.0, count=4, runs_dry=9.0)
        assert chosen("urgency-margin", pressing, new(2, TEXT, 2.0, count=40)) == [2]
        assert chosen("urgency-margin", pressing, new(2, PREFILL, 2.0, count=40)) == [2]

    def test_those_with_time_fill_the_step(self) -> None:
        rows = [playing(1, DEPTH, 3.0), playing(2, DEPTH, 1.0), playing(3, DEPTH, 4.0, runs_dry=10.1)]
        assert chosen("urgency-margin", *rows) == [3, 2, 1]


class TestAll:
    def test_seven_names(self) -> None:
        assert NAMES == (
            "run-to-completion",
            "newest-first",
            "round-robin",
            "fixed-chunks",
            "fixed-wait",
            "urgency-margin",
            "predictor",
        )

    def test_another_name_is_an_error_that_lists_them(self) -> None:
        with pytest.raises(ValueError) as error:
            make("oldest-first", Predictor(), LIMITS)
        assert str(error.value) == (
            "expected a policy out of run-to-completion, newest-first, round-robin, fixed-chunks, fixed-wait, "
            "urgency-margin, predictor, got 'oldest-first'"
        )

    @pytest.mark.parametrize("name", NAMES)
    def test_a_policy_is_made_by_its_own_name(self, name: str) -> None:
        policy = make(name, Predictor(), LIMITS)
        assert policy.name == name
        assert isinstance(policy, Predicted if name == PREDICTOR else Ordered)
        assert policy.paced == (name == PREDICTOR)

    @pytest.mark.parametrize("policy", EMULATIONS, ids=EMULATED)
    def test_an_emulation_names_the_source_of_its_settings(self, policy: Ordered) -> None:
        assert len(policy.source.split()) >= 2
        assert SOURCES[policy.name] == policy.source

    def test_nothing_else_has_a_source(self) -> None:
        assert list(SOURCES) == EMULATED

    @pytest.mark.parametrize("name", EMULATED)
    def test_batch_limits_are_the_engines(self, name: str) -> None:
        for stage, most in ((DEPTH, 3), (DECODE, 3), (CODEC, 2)):
            rows = [playing(i, stage, 1.0 + i, served=1.0 + i, count=4) for i in range(5)]
            assert chosen(name, *rows) == list(range(most))

    @pytest.mark.parametrize("name", EMULATED)
    def test_chunks_of_two_sizes_share_no_step(self, name: str) -> None:
        rows = [playing(i, CODEC, 1.0 + i, served=1.0 + i, count=size) for i, size in enumerate((4, 8, 4))]
        assert chosen(name, *rows) == [0, 2]


class Linear(Predictor):
    """Every sequence of a step takes 30 ms; of a codec step, every frame."""

    def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
        return 0.030 * sequences * length


@pytest.mark.parametrize("name", EMULATED)
class TestStepLimit:
    """Of 100 ms."""

    def rows(self, name: str, *candidates: Candidate, most: int = 8, now: float = 10.0) -> list[int]:
        limits = replace(LIMITS, max_batch=dict.fromkeys(Stage, most))
        predictor = Linear()
        decision = make(name, predictor, limits).decide(candidates, predictor.pace(len(candidates), limits), now)
        return [candidate.stream.request_id for candidate in decision.rows]

    def test_a_batch_stops_growing_before_it(self, name: str) -> None:
        rows = [playing(i, DEPTH, 1.0 + i, served=1.0 + i) for i in range(5)]
        assert self.rows(name, *rows) == [0, 1, 2]
        assert self.rows(name, *rows, most=2) == [0, 1]

    def test_the_leader_always_runs(self, name: str) -> None:
        rows = [playing(i, CODEC, 1.0 + i, served=1.0 + i, count=16) for i in range(2)]
        assert self.rows(name, *rows) == [0], "480 ms alone"

    def test_guided_requests_are_two_sequences_each(self, name: str) -> None:
        guided = [new(i, DEPTH, 1.0 + i, served=1.0 + i, guided=True) for i in range(3)]
        assert self.rows(name, *guided) == [0]
        assert self.rows(name, new(9, DEPTH, 0.5, served=0.5), *guided) == [9], "with one of them all are"

    def test_a_step_that_may_not_grow_is_not_waited_with(self, name: str) -> None:
        rows = [playing(i, CODEC, 1.0 + i, served=10.0, count=2) for i in range(2)]
        assert self.rows(name, *rows, now=10.001) == [0]


class TestInRuns:
    @pytest.mark.parametrize("name", EMULATED)
    def test_an_emulation_is_never_held(self, name: str) -> None:
        """20 s of speech are made in 250 frames of 20 ms and some chunks, however far ahead that is."""
        assert played(name, Utterance(0.0, 250)).listeners[0].arrivals[-1][0] < 5.5

    def test_the_predictor_is_held_at_4_s(self) -> None:
        """When the last chunk comes, at most 4 s and the chunks of 16 before it are left to play."""
        assert played(PREDICTOR, Utterance(0.0, 250)).listeners[0].arrivals[-1][0] > 20.0 - 4.0 - 2 * 1.28

    @pytest.mark.parametrize("name", EMULATED)
    def test_an_emulation_finishes_every_chunk(self, name: str) -> None:
        assert partial(crowded(name), first=16 if name == "fixed-chunks" else 1) == 0

    def test_the_predictor_sends_what_exists_when_time_is_short(self) -> None:
        assert partial(crowded(PREDICTOR), first=1) > 0


FRAMES = 60


def crowded(name: str) -> Simulation:
    """Three streams that the device can just keep up with, one row a step: 60 ms a frame and 10 a chunk."""
    return played(name, *[Utterance(0.0, FRAMES)] * 3, limits=Limits(max_batch=dict.fromkeys(Stage, 1)))


def partial(run: Simulation, first: int) -> int:
    """Chunks that were sent before they had the size that they should have, without being the last ones."""
    count = 0
    for listener in run.listeners:
        left = FRAMES
        for place, size in enumerate(sizes(run, listener.request_id)):
            wanted = goal(place, first=first)
            count += size < wanted <= left
            left -= size
    return count
