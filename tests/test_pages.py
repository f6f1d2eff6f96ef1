"""Pages go out once and come back once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.pages import PageAllocator


def test_ids_start_at_one_because_page_0_belongs_to_nobody() -> None:
    pages = PageAllocator(3)
    assert pages.allocate(3) == (1, 2, 3)


def test_exhaustion_is_a_value_and_takes_nothing() -> None:
    pages = PageAllocator(3)
    pages.allocate(2)
    assert pages.allocate(2) is None
    assert pages.num_free == 1
    assert pages.allocate(1) == (3,)


def test_nothing_is_also_an_allocation() -> None:
    assert PageAllocator(0).allocate(0) == ()


def test_freed_pages_come_again() -> None:
    pages = PageAllocator(2)
    first = pages.allocate(2)
    assert first is not None
    pages.free(first)
    assert sorted(pages.allocate(2) or ()) == [1, 2]


def test_a_page_cannot_be_freed_twice() -> None:
    pages = PageAllocator(2)
    taken = pages.allocate(1)
    assert taken is not None
    pages.free(taken)
    with pytest.raises(AssertionError, match=r"not taken, cannot be freed: \(1,\)"):
        pages.free(taken)


@given(st.lists(st.one_of(st.integers(0, 9), st.just(-1)), max_size=60))
def test_no_page_is_given_out_twice_or_lost(actions: list[int]) -> None:
    pages, held = PageAllocator(16), []
    for action in actions:
        if action < 0 and held:
            pages.free(held.pop(0))
        elif action >= 0 and (taken := pages.allocate(action)) is not None:
            held.append(taken)
        out = [page for group in held for page in group]
        assert len(set(out)) == len(out) == 16 - pages.num_free
        assert all(1 <= page <= 16 for page in out)
