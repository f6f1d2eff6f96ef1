"""Who may begin, who waits and who is refused, when one more stream would break a deadline; by literal times.

Batches hold one request here: a stream takes (5 + 15 + 10) / 80 of the device, two take three quarters, and a third
would be more than there is.
"""

from dataclasses import replace
from math import inf

import pytest
from scripted_engine import Engine, Fixed, submit

from engine.core import Chunk, ErrorCode, Failed, Finished, Limits, Queued, Stage

ONE = Limits(num_slots=8, num_pages=400, max_batch=dict.fromkeys(Stage, 1), max_wait=4.0)


def engine(limits: Limits = ONE, **frames: int) -> Engine:
    return Engine(limits, frames={int(name[1:]): count for name, count in frames.items()})


class TestAnswers:
    def test_alone_one_may_always_begin(self) -> None:
        slow = Limits(num_slots=8, num_pages=400, max_batch=dict.fromkeys(Stage, 1), max_wait=0.0)

        class Crawling(Fixed):
            def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
                return 1.0

        crawling = Engine(slow, predictor=Crawling())
        assert crawling.submit(submit(1)) == []
        assert [type(output) for output in crawling.submit(submit(2))] == [Failed]

    def test_the_third_is_told_how_long_he_waits(self) -> None:
        """Two that hold for 5 s each end after 2.5 s and 5 s."""
        two = engine()
        assert two.submit(submit(1), submit(2)) == []
        assert two.submit(submit(3)) == [Queued(3, 13, 2.5)]

    def test_the_fourth_would_wait_too_long_and_is_refused_at_once(self) -> None:
        two = engine()
        two.submit(submit(1), submit(2), submit(3))
        (failed,) = two.submit(submit(4))
        assert isinstance(failed, Failed)
        assert (failed.code, failed.epoch, failed.retry_after) == (ErrorCode.BUSY, 14, 5.0)
        assert failed.message == "all voices are busy"
        assert two.scheduler.snapshot(two.now)["requests_refused_total"] == 1

    def test_who_waits_begins_when_another_ends(self) -> None:
        two = engine(f1=2, f2=40, f3=2)
        two.submit(submit(1), submit(2), submit(3))
        two.until(Stage.TEXT, 3)
        assert two.end(1)
        two.drain()
        assert sorted(two.served()) == [1, 2, 3]

    def test_who_waits_can_be_cancelled(self) -> None:
        two = engine()
        two.submit(submit(1), submit(2), submit(3))
        (end,) = two.cancel(3)
        assert isinstance(end, Finished)
        assert two.submit(submit(4)) == [Queued(4, 14, 2.5)]

    def test_without_a_limit_everybody_begins(self) -> None:
        all_of_them = engine(replace(ONE, max_wait=inf))
        assert all_of_them.submit(*(submit(number) for number in range(1, 9))) == []

    def test_a_reply_goes_on_however_full_it_is(self) -> None:
        """And it counts as one stream, so that nobody takes its place between two sentences."""
        two = engine(f1=4, f2=400, f4=4)
        two.submit(submit(1), submit(2))
        assert two.submit(submit(3), submit(4, follows=1)) == [Queued(3, 13, 2.5)]
        two.until(Stage.TEXT, 4)
        assert not any(isinstance(output, Chunk) for output in two.outputs if output.request_id == 3)

    def test_what_would_continue_a_refused_utterance_is_a_new_caller(self) -> None:
        two = engine()
        two.submit(submit(1), submit(2), submit(3), submit(4))
        assert [type(output) for output in two.submit(submit(5, follows=4))] == [Failed]

    def test_but_not_what_continues_one_that_has_been_said(self) -> None:
        two = engine(f1=2)
        two.submit(submit(1), submit(2))
        two.until(Stage.CODEC, 2)
        two.until(Stage.CODEC, 2)
        assert two.end(1)
        two.submit(submit(3), submit(4))
        assert two.submit(submit(5, follows=1)) == []
        two.until(Stage.TEXT, 5)

    def test_nor_what_continues_one_that_is_still_heard(self) -> None:
        """4 s of audio are made in 1.1 s. Who comes then waits as long as the reply may go on."""
        two = engine(replace(ONE, max_wait=9.0), f1=50, f3=400)
        two.submit(submit(1), submit(3))
        two.until(Stage.CODEC, 1)
        two.playhead(1, 0.0)
        two.until(Stage.CODEC, 3)
        two.playhead(3, 0.0)
        while not two.served():
            two.step()
        assert [type(output) for output in two.submit(submit(4))] == [Queued]
        assert two.submit(submit(2, follows=1)) == []
        two.until(Stage.TEXT, 2)
        assert 4 not in [row.request_id for row in two.until(Stage.CODEC, 2).rows]

    def test_after_a_second_of_silence_it_is_a_new_caller(self) -> None:
        two = engine(f1=2)
        two.submit(submit(1), submit(2))
        two.until(Stage.CODEC, 1)
        two.playhead(1, 0.0)
        two.until(Stage.CODEC, 1)
        two.now += 1.5
        two.step()
        two.submit(submit(3))
        assert [type(output) for output in two.submit(submit(4, follows=1))] == [Failed]  # 5 s are too long

    def test_what_continued_one_that_never_began_is_told_anew(self) -> None:
        two = engine()
        two.submit(submit(1), submit(2), submit(3), submit(4, follows=3))
        finished, told = two.cancel(3)
        assert isinstance(finished, Finished)
        assert told == Queued(4, 14, 2.5)

    def test_a_reply_in_its_middle_closes_up(self) -> None:
        two = engine(f1=4, f2=400, f4=4)
        two.submit(submit(1), submit(2), submit(3, follows=1), submit(4, follows=3))
        assert [type(output) for output in two.cancel(3)] == [Finished]
        two.until(Stage.TEXT, 4)
        assert 1 in two.served()

    def test_pages_may_be_what_is_missing(self) -> None:
        few = engine(replace(ONE, num_pages=20, max_batch=dict.fromkeys(Stage, 8)))
        assert few.submit(submit(1)) == []
        assert [type(output) for output in few.submit(submit(2))] == [Failed]
        assert few.scheduler.snapshot(few.now)["retry_after_seconds"] == 5.0

    def test_nobody_begins_while_a_playing_stream_has_no_slack(self) -> None:
        one = engine(replace(ONE, max_wait=5.0))
        one.submit(submit(1))
        one.until(Stage.CODEC, 1)
        one.now += 0.075  # of the 80 ms that were sent, and 30 are needed for the next frame
        one.step()
        assert one.scheduler.snapshot(one.now)["retry_after_seconds"] == 0
        (queued,) = one.submit(submit(2))
        assert isinstance(queued, Queued)
        assert queued.wait == pytest.approx(0.025)
        steps = [one.step() for _ in range(4)]
        assert [step and step.stage for step in steps] == [Stage.DEPTH, Stage.CODEC, Stage.DECODE, Stage.TEXT]

    def test_the_gauge_says_what_a_new_caller_would_be_told(self) -> None:
        def hint(engine: Engine) -> float:
            return engine.scheduler.snapshot(engine.now)["retry_after_seconds"]

        two = engine(f1=2, f2=2)
        assert hint(two) == 0.0
        two.submit(submit(1), submit(2))
        assert hint(two) == 0.0  # he would wait 2.5 s, which is allowed
        two.submit(submit(3))
        assert hint(two) == 5.0
        two.cancel(3)
        two.drain()
        assert hint(two) == 0.0


def heard(two: Engine, number: int, chunks: int = 1) -> None:
    """A caller's reply of so many frames is made, and his listener says that he has played it all."""
    frames = two.frames[number]
    two.submit(submit(number))
    two.until(Stage.TEXT, number)
    two.playhead(number, 0.0)
    two.drain()
    two.now += 0.08 * frames
    two.playhead(number, 0.08 * frames, running=False)


class TestPlaces:
    def test_who_has_heard_all_gives_his_place_back(self) -> None:
        """However many came before, on an idle engine everybody begins."""
        two = engine(**{f"f{number}": number for number in range(1, 60)})
        for number in range(1, 60):
            heard(two, number)
            two.now += 2.0
            assert two.scheduler.snapshot(two.now)["retry_after_seconds"] == 0.0, number

    def test_who_speaks_again_at_once_has_his_place_still(self) -> None:
        two = engine(replace(ONE, max_wait=0.0), f1=4, f2=4, f3=4)
        two.submit(submit(2))
        heard(two, 1)
        two.now += 0.5
        assert two.submit(submit(3, follows=1)) == []

    def test_whoever_interrupts_what_was_made_gives_his_place_back(self) -> None:
        two = engine(replace(ONE, max_wait=0.0), f1=60, f2=4, f3=4)
        two.submit(submit(1))
        two.until(Stage.CODEC, 1)
        two.playhead(1, 0.0)
        two.drain()
        two.submit(submit(2))
        assert two.cancel(1) == [], "it was made whole"
        assert two.submit(submit(3)) == []

    def test_an_idle_engine_wakes_when_the_last_place_is_free(self) -> None:
        """Two that end one after the other, and nobody says anything any more."""
        two = engine(f1=40, f2=60)
        two.submit(submit(1), submit(2))
        for number in (1, 2):
            two.until(Stage.CODEC, number)
        for number in (1, 2):
            two.playhead(number, 0.0)
        two.drain()
        assert two.scheduler.wake_at is None
        assert two.now > 4.8, "it slept until the second was heard, and a second more"
        assert two.scheduler.snapshot(two.now)["retry_after_seconds"] == 0.0
