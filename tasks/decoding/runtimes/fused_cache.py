"""Preallocated keys and values of texts and of their sources: each text has a slot, and only what must move is moved."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.decoding.runtimes.fused_stack import CacheView, FusedStack

_UNIT = 64
"""Positions are allocated by no fewer, and by powers of two: what is recorded for one length serves many."""


def rounded(number: int, unit: int = 1) -> int:
    """The smallest power of two, times `unit`, that is no smaller."""
    return unit << max(0, -(-number // unit) - 1).bit_length()


def rounded_positions(positions: int) -> int:
    """As many as caches are read for."""
    return rounded(positions, _UNIT)


def assign_slots(slots: Sequence[int], width: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Puts texts that lie in these slots, some perhaps twice, into different slots below `width`.

    Returns:
        Their slots from then on, and what must be copied for it, as (from, to): never over what another one is copied from.
    """
    taken: set[int] = set()
    staying = []
    for slot in slots:
        staying.append(slot < width and slot not in taken)
        if staying[-1]:
            taken.add(slot)
    free = (slot for slot in range(width) if slot not in taken)
    final = [slot if stays else next(free) for slot, stays in zip(slots, staying, strict=True)]
    moves = [(before, after) for before, after in zip(slots, final, strict=True) if before != after]
    return final, moves


class StaticKVCache:
    """The caches of one decoder; they grow and are used again."""

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
        """Which source each slot holds the keys and values of."""

    def _empty(self, slots: int, positions: int, size: int) -> Tensor:
        # Zeros: what is masked may be anything but NaN.
        return torch.zeros(len(self._stack.layers), slots, positions, size, device=self._device, dtype=self._dtype)

    def fit(self, slots: int, positions: int) -> bool:
        """Makes room for that many texts and positions; what is there stays. True where anything came to lie elsewhere."""
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
        """Reads encoded sources (rows, source positions, width), one a slot, for texts that will look at `positions` of them.

        True where anything came to lie elsewhere.
        """
        rows, given, _ = hidden.shape
        grown = self._fit_sources(self._own.shape[1], positions)
        self._cross[:, :rows, :given] = self._stack.read(hidden)
        self._source_mask[:rows].fill_(torch.finfo(hidden.dtype).min)
        self._source_mask[:rows, :given].masked_fill_(mask.bool(), 0)
        self._sources = [*range(rows), *[-1] * (len(self._sources) - rows)]
        return grown

    def caches(self, positions: Tensor, reach: int, source_reach: int) -> CacheView:
        """For new tokens at `positions` (rows, new) of the first slots."""
        rows = positions.shape[0]
        return CacheView(
            own=self._own,
            places=(self._first[:rows] + positions).flatten(),
            reach=reach,
            cross=self._cross[:, :rows, :source_reach],
            source_mask=self._source_mask[:rows, None, None, :source_reach],
        )

    def move(self, moves: Sequence[tuple[int, int]], reach: int) -> None:
        """Copies the first `reach` positions of texts, and their sources where those differ, as `arranged` says."""
        if not moves:
            return
        before, after = self._index(moves)
        self._own[:, after, :reach] = self._own[:, before, :reach]
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
        """Forgets everything, so that no NaN is left that masks would let through."""
        self._own.zero_()
        self._cross.zero_()
