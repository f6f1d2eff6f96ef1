"""A decision in one line: what was chosen, why, and what else could have run."""

from math import inf

import pytest
from scripted_engine import submit

from engine.core import Limits, Stage
from engine.policy import SHOWN, Candidate, Decision, explained
from engine.stream import Stream
from engine.traffic import SPEC


def candidate(number: int, stage: Stage, slack: float, count: int = 1) -> Candidate:
    stream = Stream.accept(submit(number), SPEC, Limits(), 0.0)
    return Candidate(stream, stage, count, slack)


class TestJoining:
    @pytest.mark.parametrize("stage", list(Stage))
    def test_one_stage_can_be_shared(self, stage: Stage) -> None:
        assert candidate(1, stage, 0.1).joins(candidate(2, stage, 0.2))

    def test_two_stages_cannot(self) -> None:
        assert not candidate(1, Stage.DEPTH, 0.1).joins(candidate(2, Stage.DECODE, 0.1))

    def test_chunks_have_to_be_of_one_size_and_prompts_have_not(self) -> None:
        assert not candidate(1, Stage.CODEC, 0.1, 4).joins(candidate(2, Stage.CODEC, 0.1, 2))
        assert candidate(1, Stage.CODEC, 0.1, 4).joins(candidate(2, Stage.CODEC, 0.1, 4))
        assert candidate(1, Stage.TEXT, -inf, 40).joins(candidate(2, Stage.TEXT, -inf, 7))


class TestExplained:
    def test_those_who_share_the_step_and_those_who_could_have_gone_by_slack(self) -> None:
        new, mate = candidate(1, Stage.DEPTH, -inf), candidate(2, Stage.DEPTH, 0.040)
        later, sooner = candidate(3, Stage.CODEC, 0.2504, 4), candidate(4, Stage.DECODE, -0.005)
        line = explained(Decision([new, mate], "start priority"), [later, mate, new, sooner], 12.5)
        assert line == (
            "12.5000 depth for 1:depth[new], 2:depth[40 ms] (2 of 4): start priority; "
            "not 4:decode[-5 ms], 3:codec[250 ms]"
        )

    def test_a_codec_step_says_how_many_frames(self) -> None:
        chunk, other = candidate(7, Stage.CODEC, 0.1, 16), candidate(8, Stage.CODEC, 0.2, 8)
        line = explained(Decision([chunk], "the least slack"), [chunk, other], 0.00004)
        assert line == "0.0000 codec x16 for 7:codec[100 ms] (1 of 2): the least slack; not 8:codec[200 ms]"

    def test_nobody_was_left_out(self) -> None:
        only = candidate(1, Stage.TEXT, -inf, 40)
        line = explained(Decision([only], "start priority"), [only], 1.0)
        assert line == "1.0000 text for 1:text[new] (1 of 1): start priority; not anybody"

    def test_nothing_runs_until(self) -> None:
        chunk = candidate(1, Stage.CODEC, 0.5)
        line = explained(Decision((), "fixed-wait", 10.004), [chunk], 10.0)
        assert line == "10.0000 nothing until 10.0040: fixed-wait; not 1:codec[500 ms]"

    def test_who_waits_and_why(self) -> None:
        only, late, later = (
            candidate(1, Stage.TEXT, -inf, 40),
            candidate(2, Stage.TEXT, -inf),
            candidate(3, Stage.TEXT, 1),
        )
        waits = [(late.stream, "too few free slots"), (later.stream, "behind 2")]
        line = explained(Decision([only], "start priority"), [only], 1.0, waits)
        assert line == (
            "1.0000 text for 1:text[new] (1 of 1): start priority; not anybody; "
            "waiting 2: too few free slots, 3: behind 2"
        )

    def test_nobody_may_run(self) -> None:
        held = candidate(1, Stage.DECODE, 0.0)
        waits = [(held.stream, "4 s ahead of its listener while he stands still")]
        assert explained(Decision((), "nobody may run"), (), 1.0, waits) == (
            "1.0000 nothing before the next event: nobody may run; not anybody; "
            "waiting 1: 4 s ahead of its listener while he stands still"
        )

    def test_a_chunk_in_part_says_what_there_was_no_time_for(self) -> None:
        part, other = candidate(1, Stage.CODEC, 0.005, 2), candidate(2, Stage.CODEC, 0.040, 1)
        line = explained(Decision([part], "the least slack"), [part, other], 1.0, goals={1: 8, 2: 2})
        assert line == (
            "1.0000 codec x2 for 1:codec[5 ms, no time for 8] (1 of 2): the least slack; "
            "not 2:codec[40 ms, no time for 2]"
        )

    def test_eight_are_named_and_the_others_counted(self) -> None:
        rows = [candidate(i, Stage.DEPTH, 0.1) for i in range(9)]
        others = [candidate(10 + i, Stage.DECODE, 0.01 * (10 - i)) for i in range(10)]
        line = explained(Decision(rows, "together"), [*rows, *others], 2.0)
        chosen = ", ".join(f"{i}:depth[100 ms]" for i in range(SHOWN))
        left = ", ".join(f"{19 - i}:decode[{10 * (1 + i)} ms]" for i in range(SHOWN))
        assert line == f"2.0000 depth for {chosen} and 1 more (9 of 19): together; not {left} and 2 more"
        assert SHOWN == 8
