"""The ladder of shapes: every step within the limits has one, however its rows are dealt."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import bucket
from engine.chunking import LADDER
from engine.core import Limits, Stage
from engine.shapes import MAX_FRAMES, MAX_ROWS, MAX_TOKENS, Shape, Work, codec_parts, dealt, ladder, token_shape

LIMITS = Limits(num_slots=64, max_batch=dict.fromkeys(Stage, 64))
SHAPES = ladder(LIMITS, 2048)


def rows(work: Work, paired: bool = False) -> list[int]:
    return sorted({shape.rows for shape in SHAPES if shape.work is work and shape.paired is paired})


def test_the_ladder_of_64_requests() -> None:
    for work in (Work.DECODE, Work.DEPTH):
        assert rows(work) == rows(work, paired=True) == [1, 2, 4, 8, 16, 32, 64]
    assert rows(Work.TEXT) == rows(Work.PREFILL) == [1, 2, 4, 8, 16]
    lengths = sorted(shape.length for shape in SHAPES if shape.work is Work.TEXT and shape.rows == 1)
    assert lengths == [16, 32, 64, 128, *range(256, 2049, 256)]
    assert max(shape.length for shape in SHAPES if shape.work is Work.PREFILL) == LIMITS.max_prefill_tokens
    assert {shape.length for shape in SHAPES if shape.work is Work.CODEC} == set(LADDER)


def test_the_largest_come_first_and_none_twice() -> None:
    sizes = [shape.sequences * shape.length for shape in SHAPES]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(SHAPES)) == len(SHAPES)


def test_products_are_capped() -> None:
    for shape in SHAPES:
        most = {Work.TEXT: MAX_TOKENS, Work.PREFILL: MAX_TOKENS, Work.CODEC: MAX_FRAMES}.get(shape.work)
        assert most is None or shape.rows == 1 or shape.rows * shape.length <= most, shape


def test_a_ladder_that_starts_late() -> None:
    """Where every batch is padded to 4, a single row is padded too."""
    shapes = ladder(replace(LIMITS, batches=(4,), max_batch=dict.fromkeys(Stage, 4)), 64)
    assert {shape.rows for shape in shapes} == {4}


LADDERS = st.sampled_from([(1, 2, 4, 8, 16, 32, 64), (1, 3, 7), (4,), (1,), (32, 64), (1, 2, 4)])


@given(
    st.lists(st.integers(1, 2048), min_size=1, max_size=200),
    LADDERS,
    st.integers(1, 64),
    st.sampled_from([Stage.TEXT, Stage.PREFILL]),
)
def test_every_part_has_a_shape(lengths: list[int], batches: tuple[int, ...], most: int, stage: Stage) -> None:
    limits = Limits(max_batch=dict.fromkeys(Stage, most), batches=batches, max_prefill_tokens=256)
    longest = 2048 if stage is Stage.TEXT else 256
    lengths = [min(length, longest) for length in lengths]
    captured = {(shape.rows, shape.length) for shape in ladder(limits, 2048) if shape.work == stage.value}
    parts = dealt(lengths, lambda length: length, longest, limits, stage)
    assert sorted(length for part in parts for length in part) == sorted(lengths)
    for part in parts:
        assert len(part) <= MAX_ROWS
        assert (bucket(len(part), batches), token_shape(max(part), longest)) in captured


@settings(deadline=None)  # some ladders have hundreds of shapes
@given(LADDERS, st.integers(1, 70), st.data())
def test_every_step_of_requests_has_a_shape(batches: tuple[int, ...], most: int, data: st.DataObject) -> None:
    limits = Limits(max_batch=dict.fromkeys(Stage, most), batches=batches)
    captured, number = set(ladder(limits, 512)), data.draw(st.integers(1, most))
    for work in (Work.START, Work.DECODE, Work.DEPTH):
        for paired in (False, True):
            assert Shape(work, bucket(number, batches), paired=paired) in captured
    for frames in LADDER:
        parts = codec_parts(range(number), frames, batches)
        assert [row for part in parts for row in part] == list(range(number))
        for part in parts:
            assert Shape(Work.CODEC, bucket(len(part), batches), frames) in captured


def test_parts_are_as_large_as_they_may_be() -> None:
    assert [len(part) for part in codec_parts(range(40), 16, LIMITS.batches)] == [16, 16, 8]
    assert [len(part) for part in codec_parts(range(40), 16, (32, 64))] == [32, 8]
    parts = dealt([300, 20, 256, 20], lambda length: length, 2048, LIMITS, Stage.TEXT)
    assert parts == [[300, 256, 20, 20]], "rows of similar length together, up to 2048 tokens"


def test_no_pairs_where_nobody_is_guided() -> None:
    assert not any(shape.paired for shape in ladder(LIMITS, 2048, guided=False))
