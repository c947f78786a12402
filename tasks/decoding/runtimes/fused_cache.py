"""Static caches for the keys and values of texts and of their sources: each text has a slot, and rarely moves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.decoding.runtimes.cuda_graphs import rounded_positions
from tasks.decoding.runtimes.fused_stack import CacheView, FusedStack


def assign_slots(slots: Sequence[int], width: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Put the texts of these slots, some perhaps twice, into different slots below `width`.

    Returns:
        Their new slots, and the copies to make, as (from, to); none overwrites a slot that another is copied from.
    """
    taken: set[int] = set()
    staying = []
    for slot in slots:
        staying.append(slot < width and slot not in taken)
        if staying[-1]:
            taken.add(slot)
    free = (slot for slot in range(width) if slot not in taken)
    final = [slot if unmoved else next(free) for slot, unmoved in zip(slots, staying, strict=True)]
    moves = [(before, after) for before, after in zip(slots, final, strict=True) if before != after]
    return final, moves


class StaticKVCache:
    """The key-value caches of one decoder, which grow and are reused."""

    def __init__(self, stack: FusedStack, device: torch.device, dtype: torch.dtype) -> None:
        shape = stack.shape
        self._stack = stack
        self._device, self._dtype = device, dtype
        self._own_size = 2 * shape.key_value_heads * shape.head_width
        self._cross_size = 2 * shape.heads * shape.head_width
        self._own = self._empty(0, 0, self._own_size)
        self._cross = self._empty(0, 0, self._cross_size)
        self._source_mask = torch.empty(0, 0, device=self._device, dtype=self._dtype)
        self._first = torch.empty(0, dtype=torch.long, device=device)
        self._sources: list[int] = []
        """The source whose keys and values each slot holds; -1 where there is none."""

    def _empty(self, slots: int, positions: int, size: int) -> Tensor:
        # Zeros, because masked positions may hold anything but NaN.
        return torch.zeros(len(self._stack.layers), slots, positions, size, device=self._device, dtype=self._dtype)

    def fit(self, slots: int, positions: int) -> bool:
        """Grow to that many texts and positions, keeping the contents; return whether any tensor was replaced."""
        _, had, capacity, _ = self._own.shape
        if slots <= had and positions <= capacity:
            return self._stack.fit(capacity)
        grown = self._empty(max(slots, had), rounded_positions(max(positions, capacity)), self._own_size)
        grown[:, :had, :capacity] = self._own
        self._own = grown
        self._first = torch.arange(grown.shape[1], device=self._own.device)[:, None] * grown.shape[2]
        self._fit_sources(slots, self._cross.shape[2])
        self._stack.fit(grown.shape[2])
        return True

    def _fit_sources(self, slots: int, positions: int) -> bool:
        _, had, capacity, _ = self._cross.shape
        if not positions or (slots <= had and positions <= capacity):
            return False
        grown = self._empty(max(slots, had), max(positions, capacity), self._cross_size)
        grown[:, :had, :capacity] = self._cross
        mask = torch.full(grown.shape[1:3], torch.finfo(grown.dtype).min, device=self._device, dtype=self._dtype)
        mask[:had, :capacity] = self._source_mask
        self._cross, self._source_mask = grown, mask
        self._sources += [-1] * (grown.shape[1] - len(self._sources))
        return True

    def read(self, hidden: Tensor, mask: Tensor, positions: int) -> bool:
        """Read encoded sources (rows, source positions, width), one a slot, for texts that will attend to `positions` of them.

        Returns whether any tensor was replaced.
        """
        rows, length, _ = hidden.shape
        grown = self._fit_sources(self._own.shape[1], positions)
        self._cross[:, :rows, :length] = self._stack.read(hidden)
        self._source_mask[:rows].fill_(torch.finfo(hidden.dtype).min)
        self._source_mask[:rows, :length].masked_fill_(mask.bool(), 0)
        self._sources = [*range(rows), *[-1] * (len(self._sources) - rows)]
        return grown

    def view(self, positions: Tensor, kv_length: int, source_length: int) -> CacheView:
        """Return the view for new tokens at `positions` (rows, new) of the first slots."""
        rows = positions.shape[0]
        return CacheView(
            own=self._own,
            slot_mapping=(self._first[:rows] + positions).flatten(),
            kv_length=kv_length,
            cross=self._cross[:, :rows, :source_length],
            source_mask=self._source_mask[:rows, None, None, :source_length],
        )

    def move(self, moves: Sequence[tuple[int, int]], kv_length: int) -> None:
        """Copy the first `kv_length` positions of texts, and their sources where they differ, as `assign_slots` says."""
        if not moves:
            return
        before, after = self._index(moves)
        self._own[:, after, :kv_length] = self._own[:, before, :kv_length]
        if not self._sources:
            return
        moves = [(one, other) for one, other in moves if self._sources[one] != self._sources[other]]
        if moves:
            before, after = self._index(moves)
            self._cross[:, after] = self._cross[:, before]
            self._source_mask[after] = self._source_mask[before]
            for one, other in moves:
                self._sources[other] = self._sources[one]

    def _index(self, moves: Sequence[tuple[int, int]]) -> Tensor:
        return torch.tensor(moves, device=self._own.device).t()

    def clear(self) -> None:
        """Zero everything: a NaN left behind would pass through the masks."""
        self._own.zero_()
        self._cross.zero_()
