"""Keeps the pages of prompts' beginnings that are a voice's and not a text's, for whoever speaks like it next.

It knows keys and page numbers. What lies in kept pages is complete and never written again: a stream begins behind
them. Those that no stream uses are given back when pages are needed, the least lately used first.
"""

from __future__ import annotations

from engine.pages import PageAllocator


class Prefixes:
    """Whole pages by the key of what they hold. It is one of their holders, each stream that uses them another."""

    def __init__(self, pages: PageAllocator) -> None:
        self._pages = pages
        self._kept: dict[bytes, tuple[int, ...]] = {}
        """In order of last use."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def num_pages(self) -> int:
        """Pages that are kept."""
        return sum(map(len, self._kept.values()))

    def idle(self, beside: bytes = b"") -> int:
        """Pages that nobody uses, without those of one key: asked in every plan, so that none are counted here."""
        own = self.find(beside)
        return self._pages.num_idle - (len(own) if own and self._unused(own) else 0)

    def find(self, key: bytes) -> tuple[int, ...]:
        """The pages of that key, if they are kept."""
        return self._kept.get(key, ())

    def take(self, key: bytes, times: int) -> tuple[int, ...]:
        """The same, of which the caller is now a holder so many times."""
        pages = self._kept.pop(key)
        self._kept[key] = pages
        for _ in range(times):
            self._pages.share(pages)
        return pages

    def keep(self, key: bytes, pages: tuple[int, ...]) -> None:
        """These are complete; if others of that key are kept already, they are not needed."""
        if pages and key not in self._kept:
            self._pages.keep(pages)
            self._kept[key] = pages

    def make_room(self, count: int) -> None:
        """Give back what nobody uses until so many pages are free, or nothing of that kind is left."""
        for key, pages in list(self._kept.items()):
            if self._pages.num_free >= count:
                return
            if self._unused(pages):
                del self._kept[key]
                self._pages.free(pages)

    def _unused(self, pages: tuple[int, ...]) -> bool:
        """Streams take and free a key's pages together, so one tells of all."""
        return self._pages.holders(pages[0]) == 1
