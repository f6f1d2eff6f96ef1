"""Admission, deadlines, chunks and ends of streams, by literal times.

Steps cost, alone or shared: text 10 ms, prefill 10, decode 5, depth 15, codec 10. A frame is 80 ms of audio.
"""

from math import inf

import pytest
from scripted_engine import COSTS, Affine, Engine, Fixed, free, ids, submit

from engine.core import (
    SPEAKING,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    Limits,
    Queued,
    Refused,
    Stage,
    Submit,
)
from engine.policies import make
from engine.policy import UsePolicy


class TestOneRequest:
    def test_stages_run_in_order_and_first_audio_needs_no_second_backbone_step(self) -> None:
        engine = Engine(frames={1: 3})
        engine.submit(submit(1))
        stages = [step.stage for step in iter(engine.step, None)]
        frame = [Stage.DECODE, Stage.DEPTH]
        assert stages == [
            *(Stage.TEXT, Stage.PREFILL, Stage.DEPTH, Stage.CODEC),
            *(frame * 2),
            *(Stage.CODEC, Stage.DECODE),
        ]

    def test_chunks_grow_and_every_frame_comes_once(self) -> None:
        engine = Engine(frames={1: 40})
        engine.submit(submit(1))
        engine.drain()
        sizes = [len(chunk.codes) for chunk in engine.chunks(1)]
        assert sizes == [1, 2, 4, 8, 16, 8, 1]
        firsts = [chunk.first_frame for chunk in engine.chunks(1)]
        assert firsts == [0, 1, 3, 7, 15, 31, 39]
        assert [chunk.final for chunk in engine.chunks(1)] == [False] * 6 + [True]
        assert all(len(chunk.pcm) == 1920 * len(chunk.codes) for chunk in engine.chunks(1))
        assert {chunk.epoch for chunk in engine.chunks(1)} == {11}

    def test_the_last_chunk_has_endless_slack(self) -> None:
        engine = Engine(frames={1: 10})
        engine.submit(submit(1))
        engine.drain()
        assert [chunk.slack == inf for chunk in engine.chunks(1)] == [False] * 4 + [True]

    def test_an_end_that_turns_up_after_the_last_audio_has_no_chunk(self) -> None:
        engine = Engine(frames={1: 1})
        engine.submit(submit(1))
        engine.drain()
        assert [chunk.final for chunk in engine.chunks(1)] == [False]
        assert isinstance(engine.outputs[-1], Finished)

    def test_an_utterance_without_a_frame_only_ends(self) -> None:
        engine = Engine(frames={1: 0})
        engine.submit(submit(1))
        engine.drain()
        (end,) = engine.outputs
        assert isinstance(end, Finished)
        assert (end.reason, end.stats.num_frames, end.stats.ttfa, end.stats.rtf) == (FinishReason.END, 0, None, None)

    def test_max_frames_ends_it_with_a_final_chunk(self) -> None:
        engine = Engine()
        engine.submit(submit(1, max_frames=5))
        engine.drain()
        assert [(len(c.codes), c.final) for c in engine.chunks(1)] == [(1, False), (2, False), (2, True)]
        end = engine.end(1)
        assert isinstance(end, Finished)
        assert (end.reason, end.stats.num_frames) == (FinishReason.LENGTH, 5)

    def test_a_long_prompt_is_prefilled_in_parts_and_sampled_at_its_end(self) -> None:
        engine = Engine(Limits(max_prefill_tokens=128))
        engine.submit(submit(1, tokens=300))
        steps = [engine.until(Stage.PREFILL, 1) for _ in range(3)]
        rows = [step.rows[0] for step in steps]
        assert [(row.start, row.count, row.final) for row in rows] == [
            (0, 128, False),
            (128, 128, False),
            (256, 44, True),
        ]

    def test_stats_say_when_and_how_much(self) -> None:
        engine = Engine(frames={1: 3})
        engine.submit(submit(1))
        engine.now = 101.0
        engine.drain()
        end = engine.end(1)
        assert isinstance(end, Finished)
        stats = end.stats
        assert stats.submitted_at == 100.0
        assert stats.ttfa == pytest.approx(1.045)
        assert stats.finished_at == pytest.approx(101.100)
        assert stats.audio_seconds == pytest.approx(0.24)
        assert stats.stage_seconds[Stage.DEPTH] == pytest.approx(0.045)
        assert stats.rtf == pytest.approx(0.100 / 0.24)

    def test_it_counts_from_the_moment_at_which_its_caller_handed_it_in(self) -> None:
        engine = Engine(frames={1: 3})
        engine.submit(submit(1, submitted_at=99.5))
        engine.drain()
        end = engine.end(1)
        assert isinstance(end, Finished)
        assert end.stats.submitted_at == 99.5
        assert end.stats.ttfa == pytest.approx(0.545)
        values = engine.scheduler.snapshot(engine.now)
        assert values["ttfa_seconds_p50"] == pytest.approx(0.545)
        assert values["queued_seconds_p50"] == pytest.approx(0.5)

    def test_when_there_is_nothing_to_do_the_snapshot_shows_everything_free(self) -> None:
        engine = Engine(frames={1: 3})
        engine.submit(submit(1), submit(2))
        engine.drain_until(Finished)
        engine.cancel(2)
        assert engine.scheduler.snapshot(engine.now)["slots_free"] == 2.0
        assert engine.scheduler.plan(engine.now) is None
        values = engine.scheduler.snapshot(engine.now)
        assert (values["slots_free"], values["pages_free"]) == (4.0, 400.0)
        assert (values["requests_queued"], values["requests_active"]) == (0.0, 0.0)

    def test_slots_and_pages_come_back(self) -> None:
        engine = Engine(frames={1: 3})
        before = free(engine)
        engine.submit(submit(1))
        engine.drain()
        assert free(engine) == before == (4.0, 400.0)


class TestSharing:
    def test_a_shared_step_is_paid_by_its_rows(self) -> None:
        engine = Engine(frames={1: 2, 2: 2})
        engine.submit(submit(1), submit(2))
        engine.drain()
        for number in (1, 2):
            end = engine.end(number)
            assert isinstance(end, Finished)
            assert end.stats.stage_seconds[Stage.TEXT] == pytest.approx(0.005)

    def test_two_callers_at_once_run_in_one_batch(self) -> None:
        engine = Engine()
        engine.submit(submit(1), submit(2))
        steps = [engine.step() for _ in range(6)]
        assert [ids(step) for step in steps if step] == [[1, 2]] * 6

    def test_a_stages_limit_splits_the_batch(self) -> None:
        engine = Engine(Limits(num_pages=400, max_batch={**dict.fromkeys(Stage, 8), Stage.TEXT: 1}))
        engine.submit(submit(1), submit(2))
        assert [ids(step) for step in (engine.step(), engine.step()) if step] == [[1], [1]]
        assert engine.until(Stage.TEXT, 2).batch == 1

    def test_a_guided_request_has_two_slots_and_pages_for_both_rows(self) -> None:
        engine = Engine()
        engine.submit(submit(1, tokens=56, rows=2, max_frames=200))
        step = engine.step()
        assert step is not None
        (row,) = step.rows
        assert row.admission is not None
        assert row.slots == (1, 2)
        assert [len(pages) for pages in row.admission.pages] == [16, 16]  # 256 positions
        assert row.count == 112


class TestRefusals:
    def refused(self, one: Submit, limits: Limits | None = None) -> Failed:
        engine = Engine(limits or Limits(num_slots=1, num_pages=100))
        (output,) = engine.submit(one)
        assert isinstance(output, Failed)
        assert engine.step() is None
        assert engine.cancel(one.request_id) == []
        return output

    def test_a_prompt_beyond_the_models_positions(self) -> None:
        failed = self.refused(submit(1, tokens=2047))
        assert (failed.code, failed.epoch) == (ErrorCode.TOO_LONG, 11)
        assert "at most 2046" in failed.message
        assert "2047" in failed.message

    def test_more_pages_than_there_are(self) -> None:
        failed = self.refused(submit(1, tokens=40, max_frames=2000))
        assert failed.code is ErrorCode.TOO_LONG
        assert "128 pages" in failed.message  # 40 + 2000 positions
        assert "has 100" in failed.message

    def test_more_slots_than_there_are(self) -> None:
        failed = self.refused(submit(1, rows=2))
        assert failed.code is ErrorCode.BAD_REQUEST
        assert "2 slots" in failed.message

    @pytest.mark.parametrize(("rows", "tokens"), [(0, 40), (1, 0)])
    def test_an_empty_prompt(self, rows: int, tokens: int) -> None:
        assert self.refused(submit(1, rows=rows, tokens=tokens)).code is ErrorCode.BAD_REQUEST

    def test_a_full_queue_is_busy_and_says_when_to_come_again(self) -> None:
        engine = Engine(Limits(num_slots=1, max_queued=2))
        assert engine.submit(submit(1), submit(2), submit(3)) == [Queued(2, 12, 5.0), Queued(3, 13, 10.0)]
        (failed,) = engine.submit(submit(4))
        assert isinstance(failed, Failed)
        assert (failed.code, failed.retry_after) == (ErrorCode.BUSY, 15.0)

    def test_new_callers_leave_a_reply_its_places(self) -> None:
        engine = Engine(Limits(num_slots=1, max_queued=2), frames=dict.fromkeys((1, 2, 3, 11, 12), 2))
        assert engine.submit(submit(1), submit(11), submit(12)) == [Queued(11, 21, 5.0), Queued(12, 22, 10.0)]
        assert [type(output) for output in engine.submit(submit(13))] == [Failed]
        assert engine.submit(submit(2, follows=1), submit(3, follows=2)) == []
        engine.drain()
        assert sorted(engine.served()) == [1, 2, 3, 11, 12]

    def test_these_are_as_many_and_no_more(self) -> None:
        engine = Engine(Limits(num_slots=1, max_queued=2))
        assert engine.submit(submit(1), submit(2, follows=1), submit(3, follows=2)) == []
        (failed,) = engine.submit(submit(4, follows=3))
        assert isinstance(failed, Failed)
        assert (failed.code, failed.message) == (ErrorCode.BUSY, "2 requests are waiting already")
        assert engine.submit(submit(11)) == [Queued(11, 21, 5.0)]

    def test_what_continues_a_reply_that_is_still_heard_has_a_place_too(self) -> None:
        engine = Engine(Limits(num_slots=1, max_queued=1), frames={1: 31})
        engine.submit(submit(1))
        engine.drain()  # 2.48 s play until 102.525
        engine.submit(submit(11), submit(12))
        assert engine.submit(submit(2, follows=1)) == []
        assert [type(output) for output in engine.submit(submit(13))] == [Failed]

    def test_one_that_failed_on_its_way_is_answered_and_counted(self) -> None:
        engine = Engine()
        refused = Refused(7, 17, ErrorCode.BAD_REQUEST, "there is no text to say")
        outputs = engine.scheduler.apply(refused, engine.now)
        assert outputs == [Failed(7, 17, ErrorCode.BAD_REQUEST, "there is no text to say")]
        values = engine.scheduler.snapshot(engine.now)
        assert (values["requests_submitted_total"], values["requests_refused_total"]) == (1.0, 1.0)
        assert engine.step() is None

    def test_without_a_queue_free_slots_still_serve(self) -> None:
        engine = Engine(Limits(num_slots=1, max_queued=0))
        assert engine.submit(submit(1)) == []
        assert [type(output) for output in engine.submit(submit(2))] == [Failed]


class TestQueue:
    def test_a_request_waits_for_a_slot_and_gets_it(self) -> None:
        engine = Engine(Limits(num_slots=1), frames={1: 2, 2: 2})
        engine.submit(submit(1), submit(2))
        engine.drain()
        assert engine.end(1).stats.finished_at < engine.end(2).stats.finished_at

    def test_worst_case_pages_are_reserved_at_admission(self) -> None:
        engine = Engine(Limits(num_slots=4, num_pages=31), frames={1: 2, 2: 2})
        engine.submit(submit(1, tokens=56), submit(2, tokens=56))  # 16 pages each
        step = engine.step()
        assert step is not None
        assert ids(step) == [1]
        engine.drain()
        assert isinstance(engine.end(2), Finished)

    def test_a_large_request_is_not_starved_by_small_ones_behind_it(self) -> None:
        engine = Engine(Limits(num_slots=2, num_pages=400), frames={1: 2, 2: 2, 3: 2})
        engine.submit(submit(1), submit(2, rows=2), submit(3))
        engine.until(Stage.TEXT, 2)
        assert isinstance(engine.end(1), Finished)
        assert not engine.chunks(3)

    def test_a_new_caller_is_not_starved_by_a_reply(self) -> None:
        engine = Engine(Limits(num_slots=1), frames=dict.fromkeys(range(1, 12), 31))
        engine.submit(submit(1), *(submit(number, follows=number - 1) for number in range(2, 9)))
        engine.until(Stage.CODEC, 2)
        engine.submit(submit(11))
        engine.drain()
        assert engine.served() == [1, 2, 11, 3, 4, 5, 6, 7, 8]

    def test_a_reply_is_not_starved_by_new_callers(self) -> None:
        """Its second sentence is in line from the end of the first on."""
        engine = Engine(Limits(num_slots=1), frames=dict.fromkeys(range(1, 20), 31))
        engine.submit(submit(1), submit(2, follows=1), submit(11), submit(12))
        engine.until(Stage.CODEC, 11)
        engine.submit(submit(13), submit(14))
        engine.drain()
        assert engine.served() == [1, 11, 12, 2, 13, 14]

    def test_a_sentence_enters_the_line_when_its_time_comes(self) -> None:
        """5.6 s of the first play from 100.045 on: the second is due at 101.645, 4 s before their end."""
        engine = Engine(Limits(num_slots=1), frames={1: 70, 11: 25, 12: 25, 2: 25})
        engine.submit(submit(1), submit(2, follows=1))
        engine.until(Stage.CODEC, 1)
        engine.playhead(1, 0.0)
        engine.drain_until(Finished)
        assert engine.now < 101.640
        for number, at in ((11, 101.640), (12, 101.644), (13, 101.646)):
            engine.now = at
            engine.submit(submit(number))
        engine.until(Stage.TEXT, 13)
        assert engine.served() == [1, 11, 12, 2]

    def test_those_who_came_late_to_the_engine_keep_their_turn(self) -> None:
        engine = Engine(Limits(num_slots=1), frames=dict.fromkeys((1, 2, 3), 2))
        engine.submit(submit(1), submit(2, submitted_at=99.9), submit(3, submitted_at=99.8))
        engine.drain()
        assert engine.served() == [1, 3, 2]

    def test_those_who_fit_enter_at_once(self) -> None:
        engine = Engine()
        engine.submit(*(submit(number) for number in (1, 2, 3)))
        step = engine.step()
        assert step is not None
        assert ids(step) == [1, 2, 3]


class TestCancel:
    @pytest.mark.parametrize("stage", SPEAKING)
    def test_after_any_stage_it_ends_at_once_and_gives_everything_back(self, stage: Stage) -> None:
        engine = Engine()
        engine.submit(submit(1))
        engine.until(stage, 1)
        delivered = len(engine.outputs)
        (end,) = engine.cancel(1)
        assert isinstance(end, Finished)
        assert (end.reason, end.epoch) == (FinishReason.CANCELLED, 11)
        assert end.stats.num_frames == sum(len(chunk.codes) for chunk in engine.chunks(1))
        assert engine.cancel(1) == []
        assert engine.step() is None
        assert engine.scheduler.wake_at is None
        assert len(engine.outputs) == delivered
        assert free(engine) == (4.0, 400.0)

    def test_in_the_queue(self) -> None:
        engine = Engine(Limits(num_slots=1), frames={1: 2})
        engine.submit(submit(1), submit(2))
        (end,) = engine.cancel(2)
        assert isinstance(end, Finished)
        engine.drain()
        assert {output.request_id for output in engine.outputs} == {1}

    def test_what_was_in_flight_is_dropped_and_freed_only_in_the_next_plan(self) -> None:
        engine = Engine()
        engine.submit(submit(1), submit(2))
        engine.until(Stage.DEPTH, 1)
        step = engine.scheduler.plan(engine.now)
        assert step is not None
        assert (step.stage, ids(step)) == (Stage.CODEC, [1, 2])
        engine.cancel(1)
        assert engine.scheduler.snapshot(engine.now)["slots_free"] == 2.0
        outputs = engine.scheduler.commit(step, engine.result(step), engine.now, 0.01)
        assert [output.request_id for output in outputs] == [2]
        engine.scheduler.plan(engine.now)
        assert engine.scheduler.snapshot(engine.now)["slots_free"] == 3.0

    def test_of_nobody_is_ignored(self) -> None:
        assert Engine().cancel(5) == []

    def test_of_a_finished_request_is_ignored(self) -> None:
        engine = Engine(frames={1: 1})
        engine.submit(submit(1))
        engine.drain()
        assert engine.cancel(1) == []


class TestDeadlines:
    def test_a_new_caller_goes_between_two_stages_of_a_stream_with_time(self) -> None:
        engine = Engine()
        engine.submit(submit(1))
        for _ in range(5):
            engine.until(Stage.CODEC, 1)  # 31 frames, 2.48 s
        engine.submit(submit(2))
        steps = [engine.step() for _ in range(4)]
        assert [(step.stage, 2 in ids(step)) for step in steps if step] == [
            (stage, True) for stage in (Stage.TEXT, Stage.PREFILL, Stage.DEPTH, Stage.CODEC)
        ]

    def test_a_stream_about_to_run_dry_goes_before_a_new_caller(self) -> None:
        """80 ms of audio at 100.045; its frame and chunk take 30 ms. At 100.110 it cannot wait for 10 ms of text."""
        engine = Engine()
        engine.submit(submit(1))
        engine.until(Stage.CODEC, 1)
        assert engine.now == pytest.approx(100.045)
        engine.now = 100.110
        engine.submit(submit(2))
        step = engine.step()
        assert step is not None
        assert (step.stage, ids(step)) == (Stage.DECODE, [1])

    def test_it_does_not_as_long_as_it_can_wait(self) -> None:
        engine = Engine()
        engine.submit(submit(1))
        engine.until(Stage.CODEC, 1)
        engine.now = 100.084  # 100.125 - 0.030 - 0.010 = 100.085
        engine.submit(submit(2))
        step = engine.step()
        assert step is not None
        assert (step.stage, ids(step)) == (Stage.TEXT, [2])

    def test_the_listeners_own_clock_is_the_deadline(self) -> None:
        """He began 50 ms late, so there is more time: no longer too late for the new caller's text."""
        engine = Engine()
        engine.submit(submit(1))
        engine.until(Stage.CODEC, 1)
        engine.now = 100.095
        engine.playhead(1, 0.0)
        engine.now = 100.110
        engine.submit(submit(2))
        step = engine.step()
        assert step is not None
        assert ids(step) == [2]

    def test_jitter_of_the_way_to_the_listener_is_allowed_for(self) -> None:
        engine = Engine()
        engine.submit(submit(1))
        engine.until(Stage.CODEC, 1)
        engine.playhead(1, 0.0, jitter=0.030)
        engine.now = 100.070
        engine.submit(submit(2))
        step = engine.step()
        assert step is not None
        assert ids(step) == [1]

    def test_while_the_listener_is_paused_the_deadline_moves_along(self) -> None:
        engine = Engine()
        engine.submit(submit(1))
        engine.until(Stage.CODEC, 1)
        engine.playhead(1, 0.0, running=False)
        engine.now = 500.0
        engine.submit(submit(2))
        step = engine.step()
        assert step is not None
        assert ids(step) == [2]

    def test_what_exists_is_sent_when_the_full_chunk_would_come_late(self) -> None:
        """The second chunk should have 2 frames, 50 ms; when the first of them is made there is no time for more."""
        engine = Engine()
        engine.submit(submit(1))
        engine.until(Stage.CODEC, 1)  # runs out at 100.125
        engine.now = 100.080
        engine.until(Stage.DEPTH, 1)  # 100.100; one more frame and the codec take until 100.130
        step = engine.step()
        assert step is not None
        assert (step.stage, step.rows[0].count) == (Stage.CODEC, 1)
        assert engine.now < 100.125

    def test_pending_frames_are_sent_before_a_step_that_they_cannot_wait_for(self) -> None:
        """80 ms of audio at 100.075, and one frame is pending. A codec step takes 10 ms, text 40: at 100.109 there is
        time for one more frame, 30 ms, and for both steps, but at 100.111 not for text and codec."""

        class LongText(Fixed):
            def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
                return 0.040 if stage is Stage.TEXT else COSTS[stage]

        for at, first in ((100.104, 2), (100.106, 1)):
            engine = Engine(predictor=LongText())
            engine.submit(submit(1))
            engine.until(Stage.CODEC, 1)
            engine.until(Stage.DEPTH, 1)
            engine.now = at
            engine.submit(submit(2))
            step = engine.step()
            assert step is not None
            assert ids(step) == [first]

    def test_guidance_doubles_the_work_of_a_frame(self) -> None:
        """A decode step of 6 or 11 ms and a depth step of 16 or 31, but 11 ms in the codec: there is time for two
        frames in the next chunk, or with guidance for one."""

        class Linear(Fixed):
            def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
                return COSTS[stage] * sequences + 0.001

        for rows, frames in ((1, 2 * 0.022), (2, 0.042)):
            engine = Engine(predictor=Linear())
            engine.submit(submit(1, rows=rows))
            engine.until(Stage.CODEC, 1)
            (chunk,) = engine.chunks(1)
            assert chunk.slack == pytest.approx(0.080 - (frames + 0.011))

    def test_slack_is_the_time_between_the_next_chunk_and_the_end_of_the_audio(self) -> None:
        engine = Engine()
        engine.submit(submit(1))
        engine.until(Stage.CODEC, 1)
        (first,) = engine.chunks(1)
        assert first.slack == pytest.approx(0.080 - (2 * 0.020 + 0.010))

    def test_slack_of_a_chunk_that_came_late_is_negative_or_small_and_counts_as_a_miss(self) -> None:
        engine = Engine()
        engine.submit(submit(1))
        engine.until(Stage.CODEC, 1)
        engine.now = 101.0
        engine.until(Stage.CODEC, 1)
        assert engine.scheduler.snapshot(engine.now)["deadline_misses_total"] == 1.0
        assert engine.chunks(1)[1].slack == pytest.approx(0.080 - 0.050)  # the listener waited for it
        engine.until(Stage.CODEC, 1)
        assert engine.scheduler.snapshot(engine.now)["deadline_misses_total"] == 1.0


class TestStepTime:
    """No step takes more than 100 ms, by what is predicted, unless the smallest does."""

    def test_chunks_stop_growing_where_a_step_would_take_longer(self) -> None:
        engine = Engine(frames={1: 40}, predictor=Affine())
        engine.submit(submit(1))
        engine.drain()
        assert [len(chunk.codes) for chunk in engine.chunks(1)] == [1, 1, 2, *[4] * 9]

    @pytest.mark.parametrize("max_frames", [200, 31])
    def test_frames_that_wait_are_not_sent_in_one_step_either(self, max_frames: int) -> None:
        """16 frames are made, and perhaps that is all, when the codec turns out to be slow."""

        class Slowing(Affine):
            slow = False

            def cost(self, stage: Stage, sequences: int, length: int = 1) -> float:
                return super().cost(stage, sequences, length) if self.slow else COSTS[stage]

        predictor = Slowing()
        engine = Engine(predictor=predictor)
        engine.submit(submit(1, max_frames=max_frames))
        for _ in range(4):
            engine.until(Stage.CODEC, 1)
        for _ in range(16):
            engine.until(Stage.DEPTH, 1)
        predictor.slow = True
        step = engine.step()
        assert step is not None
        assert (step.stage, step.length) == (Stage.CODEC, 4)
        sent = engine.chunks(1)
        assert [len(chunk.codes) for chunk in sent] == [1, 2, 4, 8, 4]
        assert sent[-1].slack == pytest.approx(100.045 + 19 * 0.080 - engine.now - 0.068)

    def test_prompts_enter_in_parts_of_that_time(self) -> None:
        """128 positions take 99.6 ms, 256 take 189.2; two sequences of 64 are 128."""
        engine = Engine(predictor=Affine())
        engine.submit(submit(1, tokens=300))
        assert [engine.until(Stage.PREFILL, 1).length for _ in range(3)] == [128, 128, 44]
        engine = Engine(predictor=Affine())
        engine.submit(submit(1, tokens=150, rows=2))
        assert [engine.until(Stage.PREFILL, 1).length for _ in range(3)] == [64, 64, 22]

    def test_the_smallest_part_of_a_prompt_may_take_longer(self) -> None:
        engine = Engine(Limits(max_step_seconds=0.001), frames={1: 2}, predictor=Affine())
        engine.submit(submit(1, tokens=40))
        assert [engine.until(Stage.PREFILL, 1).length for _ in range(3)] == [16, 16, 8]
        engine.drain()
        assert isinstance(engine.end(1), Finished)

    def test_so_a_new_caller_waits_behind_no_more(self) -> None:
        """Two streams would share a chunk of 16 in 502 ms; one of them sends 4 frames in 68."""
        engine = Engine(predictor=Affine())
        engine.submit(submit(1), submit(2))
        for _ in range(200):
            started = engine.now
            step = engine.step()
            assert step is not None
            assert engine.now - started <= 0.100
            assert step.stage is not Stage.CODEC or step.length <= 4


class TestLead:
    def ahead(self) -> Engine:
        """One stream, held: its listener stands at the beginning and plays."""
        engine = Engine()
        engine.submit(submit(1))
        engine.until(Stage.CODEC, 1)
        engine.playhead(1, 0.0)
        while engine.step():
            pass
        return engine

    def test_a_stream_far_ahead_of_its_listener_stops_between_two_chunks(self) -> None:
        engine = self.ahead()
        lead = 0.08 * sum(len(chunk.codes) for chunk in engine.chunks(1)) - (engine.now - 100.045)
        assert 4.0 < lead <= 4.0 + 16 * 0.08

    def test_it_goes_on_when_the_lead_is_used_up_and_says_when(self) -> None:
        engine = self.ahead()
        wake_at = engine.scheduler.wake_at
        audio = 0.08 * sum(len(chunk.codes) for chunk in engine.chunks(1))
        assert wake_at == pytest.approx(100.045 + audio - 4.0)
        engine.now = wake_at - 0.001
        assert engine.step() is None
        engine.now = wake_at
        assert engine.step() is not None

    def test_another_policy_decides_from_its_event_on(self) -> None:
        engine = self.ahead()
        assert engine.scheduler.wake_at is not None
        engine.scheduler.apply(UsePolicy(make("newest-first", engine.predictor, engine.limits)), engine.now)
        assert engine.step() is not None, "this one holds nobody"
        engine.scheduler.apply(UsePolicy(make("predictor", engine.predictor, engine.limits)), engine.now)
        while engine.step():
            pass
        assert engine.scheduler.wake_at is not None, "and this one does"

    def test_slack_counts_from_the_moment_at_which_it_goes_on(self) -> None:
        engine = self.ahead()
        assert engine.chunks(1)[-1].slack == pytest.approx(4.0 - (16 * 0.020 + 0.010))

    def test_a_paused_listener_is_woken_by_an_event_only(self) -> None:
        engine = self.ahead()
        engine.playhead(1, 0.5, running=False)
        engine.now = 1000.0
        assert engine.step() is None
        assert engine.scheduler.wake_at is None
        engine.playhead(1, 0.5)
        assert engine.step() is None
        assert engine.scheduler.wake_at is not None

    def test_without_a_playhead_nobody_is_waited_for(self) -> None:
        engine = Engine(frames={1: 150})
        engine.submit(submit(1))
        for step in iter(engine.step, None):
            assert step is not None
        assert isinstance(engine.end(1), Finished)
        assert engine.now < 104.5  # 12 s of audio

    def test_a_stream_that_is_held_costs_others_nothing(self) -> None:
        engine = self.ahead()
        engine.submit(submit(2))
        assert [ids(step) for step in (engine.step() for _ in range(6)) if step] == [[2]] * 6


class TestReplies:
    def first_said(self, frames: int = 31) -> Engine:
        """Request 1 is generated, its 2.48 s play from 100.045 on, and request 2 follows it."""
        engine = Engine(frames={1: frames})
        engine.submit(submit(1), submit(2, follows=1))
        engine.until(Stage.CODEC, 1)
        engine.playhead(1, 0.0)
        while not any(isinstance(output, Finished) for output in engine.outputs):
            engine.step()
        return engine

    def test_what_follows_holds_nothing_until_its_predecessor_is_generated(self) -> None:
        engine = Engine()
        engine.submit(submit(1), submit(2, follows=1))
        for _ in range(20):
            step = engine.step()
            assert step is not None
            assert ids(step) == [1]
        assert engine.scheduler.snapshot(engine.now)["requests_queued"] == 1.0

    def test_it_starts_then(self) -> None:
        step = self.first_said().step()
        assert step is not None
        assert (step.stage, ids(step)) == (Stage.TEXT, [2])

    def test_it_waits_while_the_end_is_far_away(self) -> None:
        engine = self.first_said(frames=70)  # 5.6 s
        assert engine.step() is None
        assert engine.scheduler.wake_at == pytest.approx(100.045 + 5.6 - 4.0)
        engine.now = engine.scheduler.wake_at
        step = engine.step()
        assert step is not None
        assert ids(step) == [2]

    def test_it_competes_by_its_deadline_not_as_a_new_caller(self) -> None:
        engine = self.first_said()
        engine.submit(submit(3))
        step = engine.step()
        assert step is not None
        assert ids(step)[0] == 3

    def test_it_goes_first_when_the_silence_is_near(self) -> None:
        """The first ends at 102.525; the second needs 50 ms until its first chunk."""
        engine = self.first_said()
        engine.now = 102.470
        engine.submit(submit(3))
        step = engine.step()
        assert step is not None
        assert ids(step)[0] == 2

    def test_its_deadline_is_where_the_whole_reply_ends(self) -> None:
        engine = self.first_said()
        engine.until(Stage.CODEC, 2)
        (chunk,) = engine.chunks(2)
        assert chunk.slack == pytest.approx(100.045 + 2.48 + 0.08 - engine.now - 0.050)
        assert engine.scheduler.snapshot(engine.now)["deadline_misses_total"] == 0.0

    def test_a_chain_of_sentences_is_said_in_order(self) -> None:
        engine = Engine(frames=dict.fromkeys((1, 2, 3, 4), 2))
        engine.submit(submit(1), *(submit(number, follows=number - 1) for number in (2, 3, 4)))
        engine.drain()
        assert [output.request_id for output in engine.outputs if isinstance(output, Finished)] == [1, 2, 3, 4]

    def test_a_new_caller_is_not_kept_waiting_by_one_whose_turn_has_not_come(self) -> None:
        engine = Engine(Limits(num_slots=2))
        engine.submit(submit(1), submit(2, follows=1), submit(3))
        engine.until(Stage.TEXT, 3)

    def test_after_a_cancelled_predecessor_it_is_a_new_caller(self) -> None:
        engine = Engine()
        engine.submit(submit(1), submit(2, follows=1))
        for _ in range(5):
            engine.until(Stage.CODEC, 1)  # 2 s are left to play, but they were interrupted
        engine.cancel(1)
        engine.submit(submit(3))
        step = engine.step()
        assert step is not None
        assert ids(step) == [2, 3]

    def test_after_silence_it_is_a_new_caller(self) -> None:
        engine = Engine(frames={1: 1})
        engine.submit(submit(1))
        engine.drain()
        engine.now = 200.0
        engine.submit(submit(2, follows=1))
        engine.until(Stage.CODEC, 2)
        assert engine.scheduler.snapshot(engine.now)["deadline_misses_total"] == 0.0
        assert engine.scheduler.snapshot(engine.now)["ttfa_seconds_count"] == 2.0

    def test_after_an_utterance_without_audio_it_is_a_new_caller(self) -> None:
        engine = Engine(frames={1: 0})
        engine.submit(submit(1), submit(2, follows=1))
        engine.until(Stage.CODEC, 2)
        assert engine.scheduler.snapshot(engine.now)["deadline_misses_total"] == 0.0

    def test_the_listeners_clock_in_the_first_moves_the_start_of_the_second(self) -> None:
        engine = self.first_said()
        engine.playhead(1, 0.5, running=False)
        engine.now = 1000.0
        engine.submit(submit(3))
        step = engine.step()
        assert step is not None
        assert ids(step)[0] == 3  # 1.98 s of the first are left, whatever the time

    def test_of_an_unknown_predecessor_it_is_a_new_caller(self) -> None:
        engine = Engine()
        assert engine.submit(submit(2, follows=1)) == []
        step = engine.step()
        assert step is not None
        assert ids(step) == [2]


class TestExplaining:
    """One line for each decision: who runs, who could have, who could not, and why."""

    def explained(self, limits: Limits, frames: dict[int, int] | None = None) -> tuple[Engine, list[str]]:
        lines = list[str]()
        return Engine(limits, frames or {}, explain=lines.append), lines

    def test_without_anybody_who_waits_nothing_is_said_of_it(self) -> None:
        engine, lines = self.explained(Limits())
        engine.submit(submit(1))
        engine.step()
        assert lines == ["100.0000 text for 1:text[new] (1 of 1): start priority; not anybody"]

    def test_who_lacks_a_slot_blocks_those_behind_him(self) -> None:
        engine, lines = self.explained(Limits(num_slots=1))
        engine.submit(submit(1), submit(2), submit(3), submit(4, follows=1))
        engine.step()
        assert lines[0].endswith("; not anybody; waiting 2: too few free slots, 3: behind 2, 4: after 1")

    def test_who_lacks_pages(self) -> None:
        engine, lines = self.explained(Limits(num_slots=4, num_pages=20))
        engine.submit(submit(1), submit(2))
        engine.step()
        assert lines[0].endswith("; waiting 2: too few free pages")

    def test_who_would_break_a_deadline_blocks_new_callers(self) -> None:
        """In steps of one request a stream takes three eighths of the device."""
        limits = Limits(max_batch=dict.fromkeys(Stage, 1), max_wait=9.0)
        engine, lines = self.explained(limits)
        engine.submit(submit(1), submit(2), submit(3), submit(4))
        engine.step()
        assert lines[0].endswith("; not 2:text[new]; waiting 3: one more would break a deadline, 4: behind 3")

    def test_nobody_begins_while_others_are_late(self) -> None:
        """Of 80 ms of audio 5 are left, and the next frame and its chunk take 30."""
        engine, lines = self.explained(Limits(max_wait=9.0))
        engine.submit(submit(1))
        engine.until(Stage.CODEC, 1)
        engine.now += 0.075
        engine.step()
        engine.submit(submit(2))
        engine.step()
        assert lines[-1] == (
            "100.1250 depth for 1:depth[-30 ms] (1 of 1): the least slack; not anybody; "
            "waiting 2: others are 25 ms late"
        )

    def test_who_is_far_ahead_of_his_listener(self) -> None:
        """6.32 s of audio were made in 1.63 s: it goes on 4 s before their end."""
        engine, lines = self.explained(Limits(), {1: 79})
        engine.submit(submit(1, max_frames=90))
        engine.until(Stage.CODEC, 1)
        engine.playhead(1, 0.0)
        while engine.step():
            pass
        assert lines[-1].endswith(
            "101.6750 nothing until 102.3650: nobody may run; not anybody; "
            "waiting 1: 4 s ahead of its listener until 102.3650"
        )
        engine.playhead(1, 0.0, running=False)
        engine.submit(submit(2))
        engine.step()
        assert lines[-1].endswith("waiting 1: 4 s ahead of its listener while he stands still")

    def test_why_a_chunk_is_sent_in_part(self) -> None:
        """As in TestDeadlines: it should have 2 frames, and there is no time for the second."""
        engine, lines = self.explained(Limits())
        engine.submit(submit(1))
        engine.until(Stage.CODEC, 1)
        engine.now = 100.080
        engine.until(Stage.DEPTH, 1)
        engine.step()
        assert lines[-1] == (
            "100.1000 codec x1 for 1:codec[15 ms, no time for 2] (1 of 1): the least slack; not anybody"
        )

    def test_the_last_frames_are_no_part_of_a_chunk(self) -> None:
        engine, lines = self.explained(Limits(), {1: 2})
        engine.submit(submit(1))
        engine.drain()
        assert lines[-1].split(": ")[0].split()[1:3] == ["codec", "x1"]
        assert not any("no time" in line for line in lines)


class TestMisuse:
    def test_a_plan_needs_the_last_commit(self) -> None:
        engine = Engine()
        engine.submit(submit(1))
        engine.scheduler.plan(engine.now)
        with pytest.raises(AssertionError, match="before commit"):
            engine.scheduler.plan(engine.now)

    def test_an_id_is_used_once(self) -> None:
        engine = Engine()
        engine.submit(submit(1))
        with pytest.raises(AssertionError, match="in use"):
            engine.submit(submit(1))
