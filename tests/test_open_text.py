"""Text that is written while it is spoken: what runs, what waits, and what a listener hears, by literal times.

Steps cost, alone or shared: text 10 ms, prefill 10, decode 5, depth 15, codec 10. A frame is 80 ms of audio. A prompt
has 8 positions before the first token of its text, which is its ninth.
"""

from math import inf

import pytest
from scripted_engine import COSTS, Engine, Fixed, free, ids

from engine.core import (
    Chunk,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    Limits,
    Output,
    Prompt,
    PromptRow,
    Queued,
    Refused,
    Row,
    SamplingParams,
    Stage,
    Step,
    Submit,
    Text,
    TextSegment,
)
from engine.costs import ProfileCosts
from engine.open_text import BATCH, BEGIN, MOST, OpenText
from engine.profile import Profile
from engine.simulator import simulate
from engine.traffic import Utterance

LENGTHS = 1, 2, 4, 8, 16, 64, 256
FLAT = Profile("flat", {(stage, n, length): (COSTS[stage],) for stage in Stage for n in (1, 8) for length in LENGTHS})


def opened(request_id: int, tokens: int = 0, follows: int | None = None) -> Submit:
    row = PromptRow((TextSegment((0,) * (8 + tokens)),), trailing=tokens - 1, open=True)
    return Submit(request_id, Prompt((row,)), SamplingParams(max_frames=200), 10 + request_id, follows)


def write(engine: Engine, request_id: int, tokens: int, done: bool = False) -> list[Output]:
    outputs = engine.scheduler.apply(Text(request_id, (0,) * tokens, done), engine.now)
    engine.outputs += outputs
    return outputs


def idle(engine: Engine) -> None:
    """Nothing more may run, and no instant is told at which it might."""
    assert engine.scheduler.plan(engine.now) is None
    assert engine.scheduler.wake_at is None


def run(engine: Engine) -> list[Step]:
    """Until nothing may run now."""
    return list(iter(engine.step, None))


def made(engine: Engine, request_id: int) -> int:
    return sum(len(chunk.codes) for chunk in engine.chunks(request_id))


class TestBeginning:
    def test_it_begins_with_three_tokens(self) -> None:
        engine = Engine()
        assert engine.submit(opened(1)) == []
        idle(engine)
        assert write(engine, 1, BEGIN - 1) == []
        idle(engine)
        write(engine, 1, 1)
        step = engine.step()
        assert step is not None
        (row,) = step.rows
        assert row.admission is not None
        assert row.admission.prompt.rows[0].text_end == row.count == 8 + BEGIN

    def test_or_with_all_of_it(self) -> None:
        engine = Engine(frames={1: 4})
        engine.submit(opened(1))
        write(engine, 1, 3, done=True)  # a word and its end
        engine.drain()
        assert isinstance(engine.end(1), Finished)
        assert made(engine, 1) == 4

    def test_it_takes_no_slot_and_holds_nobody_back_before_that(self) -> None:
        engine = Engine(Limits(num_slots=1, num_pages=400), frames={2: 2})
        engine.submit(opened(1), opened(2, tokens=5))
        engine.drain()
        assert engine.served() == [2]
        assert free(engine) == (1.0, 400.0)

    def test_first_audio_counts_from_then(self) -> None:
        engine = Engine(frames={1: 2})
        engine.submit(opened(1))
        engine.now = 107.0
        write(engine, 1, 4)
        engine.drain_until(Chunk)
        assert engine.scheduler.snapshot(engine.now)["ttfa_seconds_p50"] == pytest.approx(0.045)

    def test_who_finds_no_room_then_is_told(self) -> None:
        engine = Engine(Limits(num_slots=1, num_pages=400), frames={1: 20, 2: 2})
        engine.submit(opened(2), opened(1, tokens=25))
        engine.step()
        assert [type(output) for output in write(engine, 2, 4)] == [Queued]
        write(engine, 2, 2, done=True)
        engine.drain()
        assert engine.served() == [1, 2]

    def test_a_busy_engine_says_so_when_it_is_opened(self) -> None:
        engine = Engine(Limits(num_slots=1, num_pages=400, max_queued=2))
        assert [type(output) for output in engine.submit(opened(1), opened(2))] == [Queued]
        assert [type(output) for output in engine.submit(opened(3))] == [Failed]


class TestGoingOn:
    def test_as_far_as_the_text_and_no_farther(self) -> None:
        engine = Engine()
        engine.submit(opened(1, tokens=5))
        run(engine)
        assert made(engine, 1) == 5, "the first needs the prompt only"
        idle(engine)

    def test_all_that_exists_is_sent_at_once(self) -> None:
        engine = Engine()
        engine.submit(opened(1, tokens=6))
        run(engine)
        assert [len(chunk.codes) for chunk in engine.chunks(1)] == [1, 2, 2, 1]
        assert [chunk.slack == inf for chunk in engine.chunks(1)] == [False, False, False, True]

    def test_what_has_come_is_encoded_when_a_frame_needs_it_and_not_before(self) -> None:
        engine = Engine()
        engine.submit(opened(1, tokens=5))
        engine.until(Stage.PREFILL, 1)
        write(engine, 1, 2)
        write(engine, 1, 1)
        steps = run(engine)
        (text,) = (step.rows[0] for step in steps if step.stage is Stage.TEXT)
        assert text == Row(1, (1,), start=8 + 5, count=3, text=(0, 0, 0))
        before = [step.stage for step in steps[: [step.stage for step in steps].index(Stage.TEXT)]]
        assert before.count(Stage.DEPTH) == 5

    def test_with_eight_tokens_while_its_listener_has_audio(self) -> None:
        engine = Engine()
        engine.submit(opened(1, tokens=20))
        run(engine)
        engine.playhead(1, 0.1)
        write(engine, 1, BATCH - 1)
        assert engine.scheduler.plan(engine.now) is None
        write(engine, 1, 1)
        run(engine)
        assert made(engine, 1) == 20 + BATCH

    def test_or_with_fewer_when_half_a_second_is_left(self) -> None:
        engine = Engine()
        engine.submit(opened(1, tokens=20))
        run(engine)
        engine.playhead(1, 0.1)
        write(engine, 1, 2)
        assert engine.scheduler.plan(engine.now) is None
        assert engine.scheduler.wake_at == pytest.approx(engine.now + 20 * 0.08 - 0.1 - 0.5)
        engine.now = engine.scheduler.wake_at or 0.0
        run(engine)
        assert made(engine, 1) == 22
        assert engine.scheduler.snapshot(engine.now)["deadline_misses_total"] == 0

    def test_two_streams_share_the_step_that_reads(self) -> None:
        engine = Engine()
        engine.submit(opened(1, tokens=3), opened(2, tokens=3))
        run(engine)
        write(engine, 1, BATCH)
        write(engine, 2, BATCH)
        step = engine.step()
        assert step is not None
        assert (step.stage, ids(step)) == (Stage.TEXT, [1, 2])

    def test_nobody_waits_for_one_without_text(self) -> None:
        engine = Engine(frames={2: 30})
        engine.submit(opened(1, tokens=3), opened(2, tokens=60))
        engine.drain()
        assert engine.served() == [2]
        assert made(engine, 1) == 3

    def test_once_the_text_is_complete_it_needs_no_more(self) -> None:
        engine = Engine(frames={1: 30})
        engine.submit(opened(1, tokens=4))
        run(engine)
        write(engine, 1, 2, done=True)
        engine.drain()
        end = engine.end(1)
        assert isinstance(end, Finished)
        assert (end.reason, end.stats.num_frames, end.stats.text_tokens) == (FinishReason.END, 30, 8 + 6)

    def test_speech_may_end_before_its_text(self) -> None:
        engine = Engine(frames={1: 3})
        engine.submit(opened(1, tokens=10))
        engine.drain()
        assert isinstance(engine.end(1), Finished)
        assert write(engine, 1, 1) == []
        idle(engine)
        assert free(engine) == (4.0, 400.0)


class TestSilence:
    def test_a_listener_who_runs_dry_for_want_of_text_is_no_miss(self) -> None:
        engine = Engine()
        engine.submit(opened(1, tokens=3))
        run(engine)
        engine.now += 2.0
        write(engine, 1, 5)
        idle(engine)
        write(engine, 1, 1)
        run(engine)
        values = engine.scheduler.snapshot(engine.now)
        assert (values["deadline_misses_total"], values["text_waits_total"]) == (0.0, 1.0)
        assert [chunk.text_late for chunk in engine.chunks(1)] == [False, False, True, False, False, False]
        assert [len(chunk.codes) for chunk in engine.chunks(1)] == [1, 2, 1, 2, 2, 1]

    def test_each_silence_doubles_what_it_goes_on_with(self) -> None:
        engine = Engine()
        engine.submit(opened(1, tokens=BEGIN))
        needed = []
        for _ in range(6):
            run(engine)
            engine.now += 5.0
            before = made(engine, 1)
            while made(engine, 1) == before:
                write(engine, 1, 1)
                run(engine)
            needed.append(made(engine, 1) - before)
        assert needed == [6, 12, 24, 48, MOST, MOST]

    def test_it_goes_on_like_a_new_caller(self) -> None:
        """Before one who plays; and nobody new is held back, as he would be were the engine late."""
        engine = Engine(Limits(num_slots=4, num_pages=400, max_wait=8.0))
        engine.submit(opened(1, tokens=3))
        run(engine)
        engine.now += 3.0
        engine.submit(opened(2, tokens=60))
        run(engine)
        write(engine, 1, 6)
        step = engine.step()
        assert step is not None
        assert (step.stage, ids(step)) == (Stage.TEXT, [1])
        assert engine.submit(opened(3, tokens=5)) == []

    def test_text_that_comes_a_moment_before_is_too_late_too(self) -> None:
        """To read it, make a frame of it and decode that takes 40 ms."""
        for before, late in ((0.045, False), (0.035, True)):
            engine = Engine()
            engine.submit(opened(1, tokens=3))
            run(engine)
            begins_at = 100.045
            engine.now = begins_at + 3 * 0.080 - before
            write(engine, 1, 6)
            run(engine)
            values = engine.scheduler.snapshot(engine.now)
            assert (values["text_waits_total"], values["deadline_misses_total"]) == (float(late), 0.0), before

    def test_a_late_engine_is_late_though_the_text_is_open(self) -> None:
        engine = Engine(predictor=Fixed())
        engine.submit(opened(1, tokens=30))
        engine.drain_until(Chunk)
        engine.now += 1.0
        run(engine)
        values = engine.scheduler.snapshot(engine.now)
        assert (values["text_waits_total"], values["deadline_misses_total"] > 0) == (0.0, True)

    def test_a_listener_who_pauses_does_not_run_dry(self) -> None:
        engine = Engine()
        engine.submit(opened(1, tokens=10))
        run(engine)
        engine.playhead(1, 0.1, running=False)
        engine.now += 60.0
        write(engine, 1, BATCH)
        run(engine)
        assert made(engine, 1) == 10 + BATCH
        assert engine.scheduler.snapshot(engine.now)["text_waits_total"] == 0


class TestReplies:
    def test_what_follows_waits_for_its_text_and_is_no_miss(self) -> None:
        engine = Engine(frames={1: 5})
        engine.submit(opened(1, tokens=9), opened(2, follows=1))
        engine.drain()
        assert engine.served() == [1]
        engine.now += 3.0  # the first was heard long ago
        write(engine, 2, 4)
        engine.drain()
        assert made(engine, 2) == 4
        assert engine.scheduler.snapshot(engine.now)["deadline_misses_total"] == 0

    def test_with_its_text_it_plays_on_without_a_gap(self) -> None:
        engine = Engine(frames={1: 15, 2: 10})
        engine.submit(opened(1, tokens=20), opened(2, tokens=20, follows=1))
        engine.drain()
        assert engine.served() == [1, 2]
        assert engine.scheduler.snapshot(engine.now)["deadline_misses_total"] == 0


class TestTrouble:
    def test_text_for_nobody_is_ignored(self) -> None:
        engine = Engine()
        engine.submit(opened(1, tokens=4))
        assert write(engine, 7, 3) == []
        write(engine, 1, 2, done=True)
        assert write(engine, 1, 3) == []
        assert engine.scheduler.snapshot(engine.now)["requests_active"] == 1.0

    def test_a_text_that_cannot_go_on_ends_its_request_alone(self) -> None:
        engine = Engine(frames={2: 9})
        engine.submit(opened(1, tokens=4), opened(2, tokens=40), opened(3))
        engine.until(Stage.CODEC, 1)
        for number in (1, 3):
            refused = Refused(number, 10 + number, ErrorCode.BAD_REQUEST, "text must be shorter", "text")
            outputs = engine.scheduler.apply(refused, engine.now)
            assert outputs == [Failed(number, 10 + number, ErrorCode.BAD_REQUEST, "text must be shorter", field="text")]
        engine.drain()
        assert engine.served() == [2]
        assert free(engine) == (4.0, 400.0)
        values = engine.scheduler.snapshot(engine.now)
        assert (values["requests_submitted_total"], values["requests_refused_total"]) == (3.0, 2.0)

    def test_whoever_hangs_up_while_text_is_awaited_gives_everything_back(self) -> None:
        engine = Engine()
        engine.submit(opened(1, tokens=3), opened(2))
        run(engine)
        engine.cancel(1)
        engine.cancel(2)
        assert free(engine) == (4.0, 400.0)
        assert write(engine, 1, 4) == write(engine, 2, 4) == []

    def test_an_explanation_says_that_the_text_is_late(self) -> None:
        lines: list[str] = []
        engine = Engine(explain=lines.append)
        engine.submit(opened(1, tokens=3), opened(2))
        run(engine)
        assert lines[-1].endswith("waiting 2: its text is late, 1: its text is late")


class TestCallers:
    """Simulated ones, whose texts are written word by word."""

    @pytest.mark.parametrize("rate", [14.0, 20.0, 1000.0])
    def test_a_text_that_is_written_faster_than_it_is_spoken_makes_no_silence(self, rate: float) -> None:
        """12.5 tokens a second are spoken; the first words take longer than a frame at less than 14 a second."""
        run = simulate([Utterance(1.0, 100, text_tokens=60, text_rate=rate)], ProfileCosts(FLAT), profile=FLAT)
        (listener,) = run.listeners
        assert (listener.underruns, listener.text_waits, listener.audio) == (0, 0, pytest.approx(8.0))
        assert listener.ttfa == pytest.approx(first_audio(), rel=0.1)

    def test_one_that_is_written_more_slowly_makes_few_of_them(self) -> None:
        """At 5 words a second 8 s of speech take 20: 3 words to begin with, then 6, 12 and 24; each silence is the
        text's."""
        run = simulate([Utterance(1.0, 100, text_tokens=101, text_rate=5.0)], ProfileCosts(FLAT), profile=FLAT)
        (listener,) = run.listeners
        assert (listener.underruns, listener.text_waits) == (0, 4)
        assert listener.audio == pytest.approx(8.0)
        assert run.metrics["deadline_misses_total"] == 0
        assert run.metrics["text_waits_total"] == 4

    def test_many_of_them_have_no_gap_of_the_engines(self) -> None:
        script = [Utterance(0.05 * i, 60 + i % 20, text_tokens=40, text_rate=20.0) for i in range(8)]
        run = simulate(script, ProfileCosts(FLAT), profile=FLAT)
        assert [(one.underruns, one.text_waits) for one in run.listeners] == [(0, 0)] * 8
        assert run.metrics["deadline_misses_total"] == 0


def first_audio() -> float:
    """Of the same caller with the whole text."""
    (listener,) = simulate([Utterance(1.0, 100, text_tokens=20)], ProfileCosts(FLAT), profile=FLAT).listeners
    assert listener.ttfa is not None
    return listener.ttfa


def test_frames_that_there_is_text_for() -> None:
    text = OpenText(prompt_length=9, known=8)
    assert (text.frames(0), text.lacks(0)) == (0, True)
    text.append([0, 0, 0], done=False)
    assert [text.frames(made) for made in range(5)] == [3, 2, 1, 0, 0]
    text.append([], done=True)
    assert (text.frames(100), text.lacks(100)) == (inf, False)
