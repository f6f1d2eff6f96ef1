"""Gives out numbered pages and takes them back. It does not know what lies in a page, nor whose it is."""

from __future__ import annotations

from collections.abc import Sequence


class PageAllocator:
    """Ids 1..num_pages; page 0 belongs to nobody. Lower ids go first, returned ones are reused at once."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages, 0, -1))
        self._taken: set[int] = set()

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """`count` ids, or None when fewer are free (then nothing is taken)."""
        if count > len(self._free):
            return None
        left = len(self._free) - count
        pages = tuple(reversed(self._free[left:]))
        del self._free[left:]
        self._taken.update(pages)
        return pages

    def free(self, pages: Sequence[int]) -> None:
        """Take ids back. Each must be taken now: a page freed twice would soon serve two streams."""
        taken = len(self._taken)
        self._taken.difference_update(pages)
        assert taken - len(self._taken) == len(pages), f"some of these are not taken, cannot be freed: {pages}"
        self._free.extend(pages)
