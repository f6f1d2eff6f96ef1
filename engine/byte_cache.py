"""A bounded shelf of things by name: when there is no room for one more, the least lately used go.

It does not know what they are, nor who asks; whoever puts one says how many bytes it takes.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
EACH = 256
"""Bytes that are counted for every entry beside its own: its name, and where it stands."""


class ByteCache(Generic[K, V]):
    """At most `max_bytes` of them. To be used by one thread at a time."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = self.hits = self.misses = self.evicted = 0
        self._entries: dict[K, tuple[V, int]] = {}
        """In order of last use."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """What is kept under that name, which counts as a use."""
        entry = self._entries.pop(key, None)
        if entry is None:
            self.misses += 1
            return None
        self.hits += 1
        self._entries[key] = entry
        return entry[0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """Keep it in the place of what had its name; not at all, if it alone is too large."""
        self.remove(key)
        size = num_bytes + EACH
        if size > self.max_bytes:
            return
        while self.num_bytes + size > self.max_bytes:
            self.remove(next(iter(self._entries)))
            self.evicted += 1
        self._entries[key] = value, size
        self.num_bytes += size

    def remove(self, key: K) -> bool:
        """Forget it; whether it was there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self.num_bytes -= entry[1]
        return True

    def snapshot(self, name: str) -> dict[str, float]:
        """Its figures, whose names begin with the given one."""
        return {
            f"{name}_entries": float(len(self)),
            f"{name}_bytes": float(self.num_bytes),
            f"{name}_hits_total": float(self.hits),
            f"{name}_misses_total": float(self.misses),
            f"{name}_evicted_total": float(self.evicted),
        }
