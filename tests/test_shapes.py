"""The ladder of shapes: every step within the limits has one, however its rows are dealt."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import bucket
from engine.chunking import LADDER
from engine.core import Limits, Stage
from engine.shapes import (
    MAX_FRAMES,
    MAX_PACK,
    MAX_ROWS,
    MAX_TOKENS,
    SHARE,
    SPREAD,
    Shape,
    Work,
    codec_parts,
    dealt,
    ladder,
    pack_shapes,
    packed,
    token_shape,
)

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
    sizes = [shape.size for shape in SHAPES]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(SHAPES)) == len(SHAPES)


def test_products_are_capped() -> None:
    for shape in SHAPES:
        most = {Work.PREFILL: MAX_TOKENS, Work.CODEC: MAX_FRAMES}.get(shape.work)
        assert most is None or shape.rows == 1 or shape.rows * shape.length <= most, shape


def test_packs_are_capped() -> None:
    """Attention looks at no more than four times the tokens, and all shapes are fewer than the padded ones were: 35."""
    shapes = pack_shapes(LIMITS, 2048)
    assert len(shapes) == 34
    for shape in shapes:
        assert shape.longest <= shape.length
        assert shape.rows == 1 or SHARE * shape.rows <= shape.length <= MAX_PACK, shape
        assert shape.rows * shape.longest <= SPREAD * shape.length, shape


def test_a_ladder_that_starts_late() -> None:
    """Where every batch is padded to 4, a single row is padded too."""
    shapes = ladder(replace(LIMITS, batches=(4,), max_batch=dict.fromkeys(Stage, 4)), 64)
    assert {shape.rows for shape in shapes} == {4}


LADDERS = st.sampled_from([(1, 2, 4, 8, 16, 32, 64), (1, 3, 7), (4,), (1,), (32, 64), (1, 2, 4)])


@given(st.lists(st.integers(1, 256), min_size=1, max_size=200), LADDERS, st.integers(1, 64))
def test_every_part_of_prompts_has_a_shape(lengths: list[int], batches: tuple[int, ...], most: int) -> None:
    limits = Limits(max_batch=dict.fromkeys(Stage, most), batches=batches, max_prefill_tokens=256)
    captured = {(shape.rows, shape.length) for shape in ladder(limits, 2048) if shape.work is Work.PREFILL}
    parts = dealt(lengths, lambda length: length, 256, limits)
    assert sorted(length for part in parts for length in part) == sorted(lengths)
    for part in parts:
        assert len(part) <= MAX_ROWS
        assert (bucket(len(part), batches), token_shape(max(part), 256)) in captured


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 2048) | st.integers(1, 40), min_size=1, max_size=200),
    LADDERS,
    st.integers(1, 64),
    st.sampled_from([64, 512, 600, 2048]),
)
def test_every_pack_of_segments_has_a_shape(lengths: list[int], batches: tuple[int, ...], most: int, last: int) -> None:
    limits = Limits(max_batch=dict.fromkeys(Stage, most), batches=batches)
    segments = [(place, min(length, last)) for place, length in enumerate(lengths)]
    shapes = pack_shapes(limits, last)
    assert set(shapes) == {shape for shape in ladder(limits, last) if shape.work is Work.TEXT}
    packs = packed(segments, lambda segment: segment[1], shapes)
    assert sorted(segment for pack in packs for segment in pack.segments) == segments
    for pack in packs:
        sizes = [size for _, size in pack.segments]
        assert (pack.tokens, pack.longest) == (sum(sizes), max(sizes))
        assert pack.shape in shapes
        assert len(sizes) <= pack.shape.rows
        assert sum(sizes) <= pack.shape.length
        assert max(sizes) <= pack.shape.longest


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
    parts = dealt([300, 20, 256, 20], lambda length: length, 2048, LIMITS)
    assert parts == [[300, 256, 20, 20]], "rows of similar length together, up to 2048 tokens"


def test_packs_are_few_and_full() -> None:
    shapes = pack_shapes(LIMITS, 2048)

    def sizes(*segments: int) -> list[tuple[int, int, list[int]]]:
        packs = packed(segments, lambda size: size, shapes)
        return [(pack.shape.rows, pack.shape.length, pack.segments) for pack in packs]

    assert sizes(24) == [(1, 32, [24])]
    assert sizes(20, 24, 90) == [(4, 256, [90, 24, 20])], (
        "134 tokens, where padding would have made 4 times 128 of them"
    )
    assert sizes(*[20] * 16) == [(16, 512, [20] * 16)]
    assert sizes(400, 600, 20, 500) == [(4, 1024, [600, 400, 20]), (1, 512, [500])]
    assert sizes(2000, 20) == [(1, 2048, [2000]), (1, 32, [20])], "a segment beyond a pack goes alone"
    assert sizes(*[3] * 17) == [(16, 256, [3] * 16), (1, 16, [3])]


def test_no_pairs_where_nobody_is_guided() -> None:
    assert not any(shape.paired for shape in ladder(LIMITS, 2048, guided=False))
