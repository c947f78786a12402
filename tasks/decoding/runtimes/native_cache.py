"""Preallocated keys and values for `kernel/`: each text has a slot, and nothing is moved when texts are cut or dropped."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from tasks.decoding.runtimes import layout
from tasks.decoding.runtimes.packed import PackedStack

_UNIT = 64
"""Positions are allocated by whole vectors of any processor, and not too few of them at first."""


_FLOATS = torch.empty(0, dtype=torch.float32, device="cpu")


class NativeKVCache:
    """The keys and values of texts and of their sources; the cache grows and is reused."""

    def __init__(self, stack: PackedStack) -> None:
        """Take the stack whose keys and values these are; an encoder's layers reuse one layer's memory."""
        self._shape = stack.blueprint
        self._layers = int(stack.native.layers) if stack.blueprint.causal else 1
        self._tables: list[Tensor] = []
        self._lengths: ctypes.Array[ctypes.c_int32] | None = None
        self._own = empty_floats(2, self._layers, 0, self._shape.key_value_heads, self._shape.head_width, 0)
        self._cross = empty_floats(2, self._layers, 0, self._shape.heads, self._shape.head_width, 0)
        self.cache = layout.Cache()
        self.reference = ctypes.byref(self.cache)

    @property
    def capacity(self) -> int:
        """Positions of each slot."""
        return self._own.shape[-1]

    def bytes_of(self, positions: int, source: int) -> int:
        """Bytes of the keys and values of one text of so many positions and of its source, which are allocated by vectors."""
        numbers = self._shape.key_value_heads * _whole(positions) + self._shape.heads * _whole(source)
        return 2 * self._layers * self._shape.head_width * numbers * _FLOATS.itemsize

    def fit(self, slots: int, positions: int) -> None:
        """Grow to that many texts and positions, keeping the contents.

        Raises:
            ValueError: the model has fewer learned positions.
        """
        learned = self._shape.learned_positions
        if learned is not None and positions > learned.shape[0]:
            raise ValueError(f"a text of {positions} tokens, but the model has {learned.shape[0]} positions")
        if slots > self._own.shape[2] or positions > self.capacity:
            self._grow(max(slots, self._own.shape[2]), positions)

    def _grow(self, slots: int, positions: int) -> None:
        capacity = self.capacity if positions <= self.capacity else _whole(max(positions, 2 * self.capacity))
        grown = empty_floats(2, self._layers, slots, *self._own.shape[3:5], capacity)
        _, _, old, heads, width, before = self._own.shape
        grown[0, :, :old, :, :, :before] = self._own[0]
        # Values are stored as (position, width).
        values = grown[1].view(self._layers, slots, heads, capacity, width)
        values[:, :old, :, :before] = self._own[1].view(self._layers, old, heads, before, width)
        if capacity != before:
            self._make_tables(capacity)
        self._point(grown)

    def _point(self, own: Tensor) -> None:
        self._own = own
        cache = self.cache
        cache.keys, cache.values = own[0].data_ptr(), own[1].data_ptr()
        cache.slots, cache.capacity = own.shape[2], own.shape[-1]
        cache.layer_stride = own[0, 0].numel() if self._shape.causal else 0

    def _make_tables(self, capacity: int) -> None:
        shape, cache = self._shape, self.cache
        self._tables = []
        if shape.position_bias is not None:
            self._tables.append(shape.position_bias(capacity).float().contiguous())
            cache.bias = self._tables[-1].data_ptr()
        if shape.rotary is not None:
            angles = shape.rotary(capacity).float()
            self._tables.append(angles)
            cache.cosines, cache.sines = angles[0].data_ptr(), angles[1].data_ptr()

    def fit_sources(self, lengths: Sequence[int]) -> None:
        """Grow to sources of these lengths, one a slot, dropping the contents."""
        slots, longest = self._own.shape[2], max(lengths)
        if self._cross.shape[2] != slots or self._cross.shape[-1] < longest:
            capacity = max(self._cross.shape[-1], _whole(longest))
            self._point_sources(empty_floats(2, self._layers, slots, *self._cross.shape[3:5], capacity))
        self.note_sources(lengths)

    def note_sources(self, lengths: Sequence[int]) -> None:
        """Set the length of each slot's source."""
        self._lengths = (ctypes.c_int32 * self._own.shape[2])(*lengths)
        self.cache.source_lengths = ctypes.addressof(self._lengths)

    def _point_sources(self, cross: Tensor) -> None:
        self._cross = cross
        self.cache.cross_keys, self.cache.cross_values = cross[0].data_ptr(), cross[1].data_ptr()
        self.cache.source_capacity = cross.shape[-1]

    def copy(self, slots: Sequence[int]) -> None:
        """Copy the texts of these slots, some perhaps twice, to the slots 0, 1, ..."""
        index = torch.tensor(list(slots))
        self._point(self._own[:, :, index])
        if self._cross.shape[2] and self._lengths is not None:
            lengths = [self._lengths[slot] for slot in slots]
            self._point_sources(self._cross[:, :, index])
            self.note_sources(lengths)


def empty_floats(*shape: int) -> Tensor:
    """Return uninitialised float32 memory for compiled code, whatever the default dtype of this process."""
    return _FLOATS.new_empty(shape)


def _whole(positions: int) -> int:
    return -(-positions // _UNIT) * _UNIT
