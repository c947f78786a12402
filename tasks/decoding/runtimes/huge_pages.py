"""Memory in pages of 2 MiB, where the system has them: weights that are read once a step need few address translations."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

_PAGE = 1 << 21
_ALIGNMENT = 64
"""Bytes of a cache line, at which every tensor begins."""


class HugePages:
    """One region from which tensors are taken one after the other."""

    def __init__(self, size: int) -> None:
        """Reserve `size` bytes, all zero; what is not written to takes no memory."""
        # Tensors that begin at a page's start: the system gives no huge page to a region that begins inside one.
        region = _region(size + _PAGE)
        whole = torch.frombuffer(region, dtype=torch.uint8)
        self._rest = whole[-whole.data_ptr() % _PAGE :][: max(size, 1)]

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return the next tensor, which holds zeros.

        Raises:
            MemoryError: the region is used up.
        """
        size = math.prod(shape) * dtype.itemsize
        if size > len(self._rest):
            raise MemoryError(f"{size} bytes do not fit into the {len(self._rest)} that are left of the region")
        taken, self._rest = self._rest[:size], self._rest[aligned(size) :]
        return taken.view(dtype).view(*shape)


def aligned(size: int) -> int:
    """Bytes that a tensor of `size` bytes takes of a region."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _region(size: int) -> mmap.mmap | bytearray:
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return bytearray(size)
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):  # a system without huge pages
        region.madvise(mmap.MADV_HUGEPAGE)
    return region
