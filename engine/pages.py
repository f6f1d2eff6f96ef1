"""Gives out numbered pages and takes them back. It does not know what lies in a page, nor whose it is."""

from __future__ import annotations

from collections.abc import Sequence


class PageAllocator:
    """Ids 1..num_pages; page 0 belongs to nobody. Lower ids go first, returned ones are reused at once.

    A page may have several holders: it is free again once each of them has given it back. One of them may keep it for
    whoever comes next: it is idle once that one alone has it, who gives it back then at any time, and not before.
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(range(num_pages, 0, -1))
        self._holders: dict[int, int] = {}
        self._kept, self._idle = set[int](), set[int]()

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_idle(self) -> int:
        """Of those that are kept."""
        return len(self._idle)

    def holders(self, page: int) -> int:
        """How many have it; 0 of a free one."""
        return self._holders.get(page, 0)

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """`count` ids with one holder each, or None when fewer are free (then nothing is taken)."""
        if count > len(self._free):
            return None
        left = len(self._free) - count
        pages = tuple(reversed(self._free[left:]))
        del self._free[left:]
        self._holders.update(dict.fromkeys(pages, 1))
        return pages

    def share(self, pages: Sequence[int]) -> None:
        """One more holder of each, which must be taken now."""
        self._check(pages, "shared")
        self._idle.difference_update(pages)
        for page in pages:
            self._holders[page] += 1

    def keep(self, pages: Sequence[int]) -> None:
        """The same for a holder who keeps them."""
        self.share(pages)
        self._kept.update(pages)

    def free(self, pages: Sequence[int]) -> None:
        """Take ids back from one holder. Each must be taken now: a page freed twice would soon serve two streams."""
        self._check(pages, "freed")
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]
                self._free.append(page)
                self._kept.discard(page)
                self._idle.discard(page)
            elif self._holders[page] == 1 and page in self._kept:
                self._idle.add(page)

    def _check(self, pages: Sequence[int], what: str) -> None:
        taken = len(set(pages)) == len(pages) and self._holders.keys() >= set(pages)
        assert taken, f"some of these are not taken, cannot be {what}: {pages}"
