"""Gives out numbered pages and takes them back. It does not know what lies in a page, nor whose it is."""

from __future__ import annotations

from collections.abc import Iterable


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
        pages = tuple(self._free.pop() for _ in range(count))
        self._taken.update(pages)
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Take ids back. Each must be taken now: a page freed twice would soon serve two streams."""
        for page in pages:
            assert page in self._taken, f"page {page} is not taken, cannot be freed"
            self._taken.remove(page)
            self._free.append(page)
