"""Who makes the next step, by literal slacks. Every step costs 20 ms alone and 1 ms more for each mate, unless said."""

from collections.abc import Callable
from math import inf

import pytest
from scripted_engine import submit

from engine.choice import Choice
from engine.core import FinishReason, Limits, Stage
from engine.policy import Candidate
from engine.predictor import Predictor
from engine.stream import Stream
from engine.traffic import SPEC

Cost = Callable[[Stage, int, int], float]
LIMITS = Limits(max_batch=dict.fromkeys(Stage, 3), max_step_seconds=0.100)


class Priced(Predictor):
    """Costs as given."""

    def __init__(self, cost: Cost) -> None:
        super().__init__()
        self._cost = cost

    def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
        return self._cost(stage, sequences, length)


def cheap(stage: Stage, batch: int, length: int) -> float:
    return 0.019 + 0.001 * batch


def candidate(
    number: int, stage: Stage, slack: float, count: int = 1, optional: bool = False, guided: bool = False
) -> Candidate:
    stream = Stream.accept(submit(number, rows=1 + guided), SPEC, LIMITS, 0.0)
    return Candidate(stream, stage, count, slack, optional)


def chosen(*candidates: Candidate, cost: Cost = cheap) -> list[int]:
    predictor = Priced(cost)
    pace = predictor.pace(len(candidates), LIMITS)
    return [c.stream.request_id for c in Choice(predictor, LIMITS, pace).decide(candidates).rows]


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


@pytest.mark.parametrize(("together", "rows"), [(0.040, [1]), (0.0361, [1]), (0.0359, [1, 2])])
def test_a_mate_joins_for_a_tenth_of_the_time_and_not_for_less(together: float, rows: list[int]) -> None:
    def joint(stage: Stage, batch: int, length: int) -> float:
        return 0.020 if batch == 1 else together

    assert chosen(candidate(1, Stage.DEPTH, 0.5), candidate(2, Stage.DEPTH, 0.6), cost=joint) == rows


def test_long_chunks_that_would_save_one_call_stay_apart() -> None:
    """Two chunks of 4 take 68 ms each, and 130 together: 6 ms are saved, and a new caller waits twice as long."""

    def codec(stage: Stage, batch: int, length: int) -> float:
        return 0.006 + 0.0155 * batch * length

    four, other = candidate(1, Stage.CODEC, 0.9, 4), candidate(2, Stage.CODEC, 0.9, 4)
    assert chosen(four, other, cost=codec) == [1]
    one, second = candidate(1, Stage.CODEC, 0.9), candidate(2, Stage.CODEC, 0.9)
    assert chosen(one, second, cost=codec) == [1, 2]  # 37 ms instead of 43


def test_no_batch_takes_longer_than_a_step_may() -> None:
    """Each mate adds 20 ms: two take 80, three 100, and a fourth would make it 120."""

    def heavy(stage: Stage, batch: int, length: int) -> float:
        return 0.041 + 0.0195 * batch

    slacks = (0.9, 0.91, 0.92, 0.93)
    many = [candidate(i, Stage.DEPTH, slack) for i, slack in enumerate(slacks)]
    assert chosen(*many, cost=heavy) == [0, 1, 2]
    assert chosen(*many, cost=lambda stage, batch, length: 0.001 + heavy(stage, batch, length)) == [0, 1]


def test_who_alone_takes_longer_than_a_step_may_goes_alone() -> None:
    def huge(stage: Stage, batch: int, length: int) -> float:
        return 0.140 + 0.010 * batch

    assert chosen(candidate(1, Stage.DEPTH, 0.9), candidate(2, Stage.DEPTH, 0.9), cost=huge) == [1]
    assert chosen(candidate(1, Stage.TEXT, -inf, 40), candidate(2, Stage.TEXT, -inf, 40), cost=huge) == [1]


def test_nobody_is_waited_for_whose_step_would_then_be_too_long() -> None:
    """Two in a depth step would take 101 ms."""

    def depth(stage: Stage, batch: int, length: int) -> float:
        return 0.059 + 0.021 * batch if stage is Stage.DEPTH else 0.010

    assert chosen(candidate(1, Stage.DEPTH, 0.5), candidate(2, Stage.DECODE, 0.6), cost=depth) == [1]


def test_a_guided_row_doubles_the_whole_step() -> None:
    """One sequence takes 20 ms, two 28, four 44, six 60: a guided mate beside one without saves 4 of 48 ms only."""

    def linear(stage: Stage, sequences: int, length: int) -> float:
        return 0.012 + 0.008 * sequences

    plain, second = candidate(1, Stage.DEPTH, 0.5), candidate(2, Stage.DEPTH, 0.6)
    assert chosen(plain, second, cost=linear) == [1, 2]
    assert chosen(plain, candidate(2, Stage.DEPTH, 0.6, guided=True), cost=linear) == [1]
    pair = [candidate(i, Stage.DEPTH, 0.5, guided=True) for i in (1, 2)]
    assert chosen(*pair, cost=linear) == [1, 2]  # 44 ms instead of 56


def test_guidance_costs_the_codec_nothing() -> None:
    def codec(stage: Stage, sequences: int, length: int) -> float:
        return {1: 0.020, 2: 0.030, 4: 0.090}[sequences]

    pair = [candidate(i, Stage.CODEC, 0.5, 4, guided=True) for i in (1, 2)]
    assert chosen(*pair, cost=codec) == [1, 2]


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


def test_a_new_callers_step_waits_for_them_only_while_the_device_is_strained() -> None:
    """Half of those who play have less than 1.5 s in hand, or more."""
    new, rich = candidate(1, Stage.DEPTH, -inf), candidate(3, Stage.CODEC, 3.0)
    assert chosen(new, candidate(2, Stage.DECODE, 1.4)) == [2]
    assert chosen(new, candidate(2, Stage.DECODE, 1.6)) == [1]
    assert chosen(new, candidate(2, Stage.DECODE, 1.4), rich) == [1]


@pytest.mark.parametrize(("each", "rows"), [(0.0205, [2]), (0.0190, [1])])
def test_it_is_not_strained_by_young_streams_that_need_less_than_half_of_it(each: float, rows: list[int]) -> None:
    """A frame of both takes a decode step, a depth step and a sixteenth of a codec step: of 80 ms, 42.3 or 39.2."""
    new, young = candidate(1, Stage.DEPTH, -inf), candidate(2, Stage.DECODE, 1.4)
    assert chosen(new, young, cost=lambda stage, batch, length: each) == rows


def test_a_new_callers_step_waits_for_who_would_soon_interrupt_new_callers() -> None:
    """The way to first audio takes 4 * 10 ms, that of two callers 80; frames take 20 of 80 ms, which is no strain."""

    def quick(stage: Stage, batch: int, length: int) -> float:
        return 0.010

    new = candidate(1, Stage.DEPTH, -inf)
    assert chosen(new, candidate(2, Stage.DECODE, 0.079), cost=quick) == [2]
    assert chosen(new, candidate(2, Stage.DECODE, 0.081), cost=quick) == [1]
    other = candidate(3, Stage.CODEC, 0.060, 4)
    assert chosen(new, candidate(2, Stage.DECODE, 0.081), other, cost=quick) == [1], "it would not be brought up"
    assert chosen(candidate(1, Stage.TEXT, -inf, 40), candidate(2, Stage.DECODE, 0.060), cost=quick) == [1]


def test_nobody_waits_for_mates_without_time() -> None:
    """20 ms until the mate is there too."""
    assert chosen(candidate(1, Stage.DEPTH, 0.019), candidate(2, Stage.DECODE, 0.6)) == [1]
    assert chosen(candidate(1, Stage.DEPTH, 0.021), candidate(2, Stage.DECODE, 0.6)) == [2]


def test_nobody_waits_for_a_mate_who_saves_little() -> None:
    """One in a depth step takes 20 ms, two 37: not a tenth less than 40."""

    def depth(stage: Stage, batch: int, length: int) -> float:
        return 0.003 + 0.017 * batch if stage is Stage.DEPTH else 0.010

    assert chosen(candidate(1, Stage.DEPTH, 0.5), candidate(2, Stage.DECODE, 0.6), cost=depth) == [1]


def test_nobody_waits_for_a_stream_that_is_over() -> None:
    last = candidate(2, Stage.CODEC, 0.6, 4)
    last.stream.reason = FinishReason.END
    assert chosen(candidate(1, Stage.DECODE, 0.5), last) == [1]


def test_nobody_waits_for_mates_who_find_no_room() -> None:
    waiting = [candidate(i, Stage.DEPTH, 0.5) for i in range(3)]
    assert chosen(*waiting, candidate(3, Stage.DECODE, 0.6)) == [0, 1, 2]
