"""A stream's rows and its way through the stages."""

from math import inf

from engine.core import FinishReason, Limits, Prompt, PromptRow, Row, SamplingParams, Stage, Submit, TextSegment
from engine.stream import Stream, frame_limit
from engine.traffic import SPEC


def submit(*tokens: int, max_frames: int = 100) -> Submit:
    rows = tuple(PromptRow((TextSegment((0,) * count),)) for count in tokens)
    return Submit(7, Prompt(rows), SamplingParams(max_frames=max_frames))


def stream(*tokens: int, max_frames: int = 100) -> Stream:
    made = Stream.accept(submit(*tokens, max_frames=max_frames), SPEC, Limits(page_size=16), 0.0)
    made.hold(tuple(range(1, 1 + len(tokens))), tuple(range(1, 1 + sum(made.pages_needed))))
    return made


def run(one: Stream, stage: Stage, count: int = 1, ended: bool = False) -> Row:
    row = one.row(stage, count)
    one.advance(stage, row, ended)
    return row


def test_frames_are_limited_by_the_request_and_by_the_models_positions() -> None:
    assert frame_limit(submit(40, max_frames=100), SPEC) == 100
    assert frame_limit(submit(2000, max_frames=100), SPEC) == 2048 - 2000 - 1
    assert frame_limit(submit(10, 2040), SPEC) == 7  # the longer row counts


def test_every_row_gets_pages_for_prompt_and_frames() -> None:
    one = stream(28, 5)
    assert one.pages_needed == (8, 7)
    assert one.pages == (tuple(range(1, 9)), tuple(range(9, 16)))


def test_rows_name_positions_and_frames() -> None:
    one = stream(40)
    text = run(one, Stage.TEXT, 40)
    assert text.admission is not None
    assert (text.start, text.count, text.admission.pages) == (0, 40, one.pages)
    first, second = run(one, Stage.PREFILL, 30), run(one, Stage.PREFILL, 10)
    assert (first.start, first.count, first.final) == (0, 30, False)
    assert (second.start, second.count, second.final) == (30, 10, True)
    assert [run(one, Stage.DEPTH).start, run(one, Stage.DECODE).start] == [0, 0]
    assert [run(one, Stage.DEPTH).start, run(one, Stage.DECODE).start] == [1, 1]
    codec = run(one, Stage.CODEC, 2)
    assert (codec.start, codec.count) == (0, 2)
    assert (one.made, one.sent, one.pending, one.chunks) == (2, 2, 0, 1)


def test_stages_follow_each_other() -> None:
    one = stream(40)
    stages = [one.stage]
    for stage, count in ((Stage.TEXT, 40), (Stage.PREFILL, 30), (Stage.PREFILL, 10), (Stage.DEPTH, 1)):
        run(one, stage, count)
        stages.append(one.stage)
    assert stages == [Stage.TEXT, Stage.PREFILL, Stage.PREFILL, Stage.DEPTH, Stage.DECODE]


def test_a_half_prefilled_prompt_cannot_end() -> None:
    one = stream(40)
    run(one, Stage.PREFILL, 30, ended=True)
    assert one.reason is None


def test_the_end_of_speech_is_an_end() -> None:
    one = stream(40)
    run(one, Stage.PREFILL, 40, ended=True)
    assert one.reason is FinishReason.END


def test_the_last_frame_allowed_is_an_end() -> None:
    one = stream(40, max_frames=1)
    run(one, Stage.PREFILL, 40)
    run(one, Stage.DEPTH)
    assert one.reason is FinishReason.LENGTH


def test_it_is_held_only_between_two_chunks() -> None:
    one = stream(40)
    assert one.due_at(4.0) == -inf  # nothing heard yet
    run(one, Stage.DEPTH)
    run(one, Stage.CODEC)
    one.playback.deliver(9.0, now=10.0)
    one.playback.clock.move(0.0, at=10.0, running=True, jitter=0.0, now=10.0)
    assert one.due_at(4.0) == 15.0
    run(one, Stage.DEPTH)
    assert one.due_at(4.0) == -inf  # a frame is pending


def test_behind_an_utterance_that_is_being_generated_it_waits_for_an_event() -> None:
    one = stream(40)
    one.after = stream(40)
    assert one.due_at(4.0) == inf
