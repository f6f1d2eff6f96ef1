"""What is told of captured graphs."""

from engine.capturing import summary, watched
from engine.shapes import Shape, Work

DEPTH, CODEC = Shape(Work.DEPTH, 4), Shape(Work.CODEC, 1, 16)


def test_the_summary_counts_graphs_and_memory_by_kind() -> None:
    memory = {DEPTH: 3 << 20, Shape(Work.DEPTH, 4, paired=True): 2 << 20, CODEC: 1 << 19}
    assert summary(memory) == "captured 3 graphs in 6 MiB: codec 1 (0 MiB), depth 2 (5 MiB)"


def test_what_is_watched_comes_in_order() -> None:
    assert list(watched([CODEC, DEPTH])) == [CODEC, DEPTH]
