"""Who makes the next step, by literal slacks. Every step costs 20 ms alone and 1 ms more for each mate, unless said."""

from collections.abc import Callable
from math import inf

from engine.choice import Candidate, choose
from engine.core import FinishReason, Limits, Prompt, PromptRow, SamplingParams, Stage, Submit, TextSegment
from engine.predictor import Predictor
from engine.simulator import SPEC
from engine.stream import Stream

Cost = Callable[[Stage, int, int], float]
LIMITS = Limits(max_batch=dict.fromkeys(Stage, 3))


class Priced(Predictor):
    """Costs as given."""

    def __init__(self, cost: Cost) -> None:
        super().__init__()
        self._cost = cost

    def cost(self, stage: Stage, batch: int, length: int = 1) -> float:
        return self._cost(stage, batch, length)


def cheap(stage: Stage, batch: int, length: int) -> float:
    return 0.019 + 0.001 * batch


def candidate(number: int, stage: Stage, slack: float, count: int = 1, optional: bool = False) -> Candidate:
    prompt = Prompt((PromptRow((TextSegment((0,) * 40),)),))
    stream = Stream.accept(Submit(number, prompt, SamplingParams()), SPEC, LIMITS, 0.0)
    return Candidate(stream, stage, count, slack, optional)


def chosen(*candidates: Candidate, cost: Cost = cheap) -> list[int]:
    return [c.stream.request_id for c in choose(candidates, Priced(cost), LIMITS)]


def test_the_least_slack_goes_first() -> None:
    assert chosen(candidate(1, Stage.DEPTH, 0.5), candidate(2, Stage.CODEC, 0.1)) == [2]


def test_a_new_caller_goes_before_streams_that_have_time() -> None:
    assert chosen(candidate(1, Stage.DEPTH, 0.5), candidate(2, Stage.TEXT, -inf, 40)) == [2]


def test_a_stream_that_the_new_caller_would_make_late_goes_before_him() -> None:
    assert chosen(candidate(1, Stage.DEPTH, 0.019), candidate(2, Stage.TEXT, -inf, 40)) == [1]
    assert chosen(candidate(1, Stage.DEPTH, 0.021), candidate(2, Stage.TEXT, -inf, 40)) == [2]


def test_a_stream_that_is_late_already_goes_before_a_new_caller() -> None:
    assert chosen(candidate(1, Stage.CODEC, -0.5), candidate(2, Stage.TEXT, -inf, 40)) == [1]


def test_new_callers_are_served_in_order() -> None:
    assert chosen(candidate(1, Stage.DEPTH, -inf), candidate(2, Stage.TEXT, -inf, 40)) == [1]


def test_those_who_are_ready_for_the_same_stage_share_a_step_up_to_its_limit() -> None:
    slacks = (0.9, 0.5, 0.7, 0.6)
    assert chosen(*(candidate(i, Stage.DEPTH, slack) for i, slack in enumerate(slacks))) == [1, 3, 2]


def test_a_playing_stream_shares_a_new_callers_step() -> None:
    assert chosen(candidate(1, Stage.DEPTH, 0.5), candidate(2, Stage.DEPTH, -inf)) == [2, 1]


def test_a_mate_does_not_join_where_that_saves_no_time() -> None:
    def linear(stage: Stage, batch: int, length: int) -> float:
        return 0.020 * batch

    assert chosen(candidate(1, Stage.DEPTH, 0.5), candidate(2, Stage.DEPTH, 0.6), cost=linear) == [1]


def test_a_mate_does_not_join_where_that_breaks_a_deadline() -> None:
    """One in a step takes 20 ms, two take 30."""

    def steep(stage: Stage, batch: int, length: int) -> float:
        return 0.010 + 0.010 * batch

    first, mate = candidate(1, Stage.DEPTH, 0.024), candidate(2, Stage.DEPTH, 0.9)
    assert chosen(first, mate, candidate(3, Stage.CODEC, 0.025, 16), cost=steep) == [1]
    assert chosen(first, mate, candidate(3, Stage.CODEC, 0.035, 16), cost=steep) == [1, 2]


def test_a_mate_does_not_join_where_that_delays_frames_that_must_be_sent() -> None:
    """A step that only adds to pending frames is not part of the work that the slack allows for."""

    def steep(stage: Stage, batch: int, length: int) -> float:
        return 0.010 + 0.010 * batch

    mate = candidate(2, Stage.DEPTH, 0.9)
    assert chosen(candidate(1, Stage.DEPTH, 0.025, optional=True), mate, cost=steep) == [1]
    assert chosen(candidate(1, Stage.DEPTH, 0.025), mate, cost=steep) == [1, 2]


def test_deadline_for_deadline_a_mate_in_need_joins() -> None:
    """Together 30 ms, which the frames of 3 cannot wait; but then 2, who has 15 ms, would come too late."""

    def steep(stage: Stage, batch: int, length: int) -> float:
        return 0.010 + 0.010 * batch

    first, mate = candidate(1, Stage.DEPTH, 0.014), candidate(2, Stage.DEPTH, 0.015)
    assert chosen(first, mate, candidate(3, Stage.CODEC, 0.025, 16), cost=steep) == [1, 2]


def test_in_need_playing_streams_take_the_places_before_new_callers() -> None:
    urgent = [candidate(i, Stage.DEPTH, 0.001 * i) for i in range(3)]
    assert chosen(*urgent, candidate(3, Stage.DEPTH, -inf)) == [0, 1, 2]
    assert chosen(*urgent[:2], candidate(3, Stage.DEPTH, -inf), candidate(4, Stage.DEPTH, 0.5)) == [0, 1, 3]


def test_a_deadline_that_is_lost_anyway_keeps_nobody_out() -> None:
    assert chosen(candidate(1, Stage.DEPTH, -0.3), candidate(2, Stage.DEPTH, 0.9)) == [1, 2]


def test_a_short_step_goes_before_a_long_one_that_would_make_it_late() -> None:
    def codec_is_long(stage: Stage, batch: int, length: int) -> float:
        return 0.070 if stage is Stage.CODEC else 0.020

    long, short = candidate(1, Stage.CODEC, 0.030, 16), candidate(2, Stage.DEPTH, 0.050)
    assert chosen(long, short, cost=codec_is_long) == [2]
    assert chosen(candidate(1, Stage.CODEC, 0.010, 16), short, cost=codec_is_long) == [1]


def test_chunks_of_different_sizes_share_no_step() -> None:
    four, two, other = (candidate(i, Stage.CODEC, 0.1, count) for i, count in enumerate((4, 2, 4)))
    assert chosen(four, two, other) == [0, 2]


def test_prompts_of_different_lengths_share_one_padded_step() -> None:
    def padded(stage: Stage, batch: int, length: int) -> float:
        return 0.010 + 0.0001 * batch * length

    short, long = candidate(1, Stage.TEXT, -inf, 40), candidate(2, Stage.TEXT, -inf, 50)
    huge = candidate(3, Stage.TEXT, -inf, 500)
    assert chosen(short, huge, long, cost=padded) == [1, 2]


def test_with_time_those_one_stage_behind_are_brought_up_first() -> None:
    waiting, behind = candidate(1, Stage.DEPTH, 0.5), candidate(2, Stage.DECODE, 0.6)
    assert chosen(waiting, behind) == [2]
    assert chosen(candidate(1, Stage.DECODE, 0.5), candidate(2, Stage.CODEC, 0.6, 4)) == [2]


def test_nobody_waits_for_mates_without_time() -> None:
    assert chosen(candidate(1, Stage.DEPTH, 0.040), candidate(2, Stage.DECODE, 0.6)) == [1]


def test_nobody_waits_for_a_stream_that_is_over() -> None:
    last = candidate(2, Stage.CODEC, 0.6, 4)
    last.stream.reason = FinishReason.END
    assert chosen(candidate(1, Stage.DECODE, 0.5), last) == [1]


def test_nobody_waits_for_mates_who_find_no_room() -> None:
    waiting = [candidate(i, Stage.DEPTH, 0.5) for i in range(3)]
    assert chosen(*waiting, candidate(3, Stage.DECODE, 0.6)) == [0, 1, 2]
