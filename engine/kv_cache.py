"""Keys and values of the backbone's sequences in pages that many sequences share (Kwon et al. 2023, arXiv:2309.06180).

It does not know requests: whoever owns a slot says which pages are its.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.transformer import LayersConfig


@dataclass(frozen=True, slots=True)
class Window:
    """Where a step's positions are written and what its queries see; the same for all layers.

    R sequences, T new positions, S cached positions of each that are looked at.
    """

    write: Tensor
    """[R * T]: the cached place of each new position; invalid ones go to page 0."""
    read: Tensor
    """[R * S]: the cached places that are looked at. None lies beyond the sequence's last written position, so what
    other sequences, or earlier ones, left in memory cannot enter, not even as zero times NaN."""
    bias: Tensor
    """[R, 1, G * T, S]: added to the scores of the G queries that share a key: 0, or minus infinity where not seen."""


@dataclass(slots=True)
class PagedKV:
    """Pages of keys and values, and each slot's pages in order. Page 0 and slot 0 belong to nobody."""

    keys: Tensor
    """[layers, num_pages, page_size, kv_heads, head_dim]"""
    values: Tensor
    page_table: Tensor
    """[num_slots, pages_a_slot] int64; 0 where a slot has no page."""
    group: int
    """Query heads that share a key head."""

    @classmethod
    def allocate(
        cls,
        config: LayersConfig,
        *,
        num_pages: int,
        page_size: int,
        num_slots: int,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> PagedKV:
        """Room for `num_pages` pages and `num_slots` slots, page 0 and slot 0 included.

        `max_positions` is the longest that one sequence can get.
        """
        shape = (config.num_layers, num_pages, page_size, config.num_kv_heads, config.head_dim)
        pages_a_slot = -(-max_positions // page_size)
        return cls(
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(num_slots, pages_a_slot, dtype=torch.int64, device=device),
            config.num_heads // config.num_kv_heads,
        )

    @property
    def page_size(self) -> int:
        return self.keys.shape[2]

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values, [num_pages * page_size, kv_heads, head_dim]."""
        return list(zip(self.keys.flatten(1, 2).unbind(), self.values.flatten(1, 2).unbind(), strict=True))

    def assign(self, slot: int, pages: Sequence[int]) -> None:
        """Gives the slot these pages, in order, and no other."""
        room = self.page_table.shape[1]
        assert len(pages) <= room, f"slot {slot} holds at most {room} pages, got {len(pages)}"
        self.page_table[slot] = torch.tensor([*pages, *[0] * (room - len(pages))])

    def window(self, positions: Tensor, valid: Tensor, slots: Tensor, num_pages: int) -> Window:
        """positions [R, T] int64 and valid [R, T] bool of the new positions of slots [R].

        `num_pages` is how many pages of each sequence are looked at: at least those up to its last new position.
        """
        positions = torch.where(valid, positions, 0)
        pages = self.page_table[slots]
        places = torch.arange(num_pages * self.page_size, device=positions.device)
        last = positions.amax(1, keepdim=True)
        seen = places <= positions[..., None]
        return Window(
            torch.where(valid, self._places(pages, positions), 0).flatten(),
            self._places(pages, torch.minimum(places, last)).flatten(),
            self._bias(seen),
        )

    def _places(self, pages: Tensor, positions: Tensor) -> Tensor:
        """The places of positions [R, N] in pages [R, pages_a_slot]."""
        return pages.gather(1, positions // self.page_size) * self.page_size + positions % self.page_size

    def _bias(self, seen: Tensor) -> Tensor:
        """seen [R, T, S] -> [R, 1, G * T, S], position by position."""
        rows, length, places = seen.shape
        bias = torch.where(seen, 0.0, -torch.inf).to(self.keys.dtype)
        return bias[:, :, None].expand(rows, length, self.group, places).reshape(rows, 1, -1, places)
