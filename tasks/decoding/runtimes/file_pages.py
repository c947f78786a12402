"""Gives memory back that only mirrors a file: weights that are mapped from a checkpoint, once a runtime has its own copy."""

from __future__ import annotations

import ctypes
import functools
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

_REGIONS = Path("/proc/self/smaps")
_HEADER = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+)\s", re.MULTILINE)
_CHANGED = re.compile(r"^(?:Anonymous|Swap):\s+[1-9]", re.MULTILINE)
_MIN_BYTES = 1 << 16
"""Smaller tensors and regions are not worth a call."""


class FilePages:
    """The regions of this process's memory that are mapped from a file and that nobody has written to.

    `transformers` maps the weights of a checkpoint. The system counts the pages that were read as memory of this process,
    and reads a page that was given back from the file again: no tensor changes, whoever else holds it. Elsewhere than on
    Linux no region is found. Nobody may write to the weights until all of a stack are packed.
    """

    @functools.cached_property
    def _regions(self) -> list[tuple[int, int]]:
        """First and last address of each region, looked up once: what is packed is not written to meanwhile."""
        try:
            return list(_unchanged_regions())
        except OSError:  # another system, or one that shows a process nothing of itself
            return []

    def release(self, tensor: Tensor) -> bool:
        """Give the pages of a tensor back; return False where its memory is not mapped from a file, or is small."""
        begin, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        if size < _MIN_BYTES:
            return False
        for start, end in self._regions:
            if start <= begin and begin + size <= end:
                # Whole pages: what a neighbour shares with this tensor is in the file too.
                first = begin // mmap.PAGESIZE * mmap.PAGESIZE
                ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(begin + size - first), mmap.MADV_DONTNEED)
                return True
        return False


def _unchanged_regions() -> Iterator[tuple[int, int]]:
    described = _REGIONS.read_text(errors="replace")
    headers = list(_HEADER.finditer(described))
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        start, end, inode = int(header[1], 16), int(header[2], 16), int(header[3])
        if inode and end - start >= _MIN_BYTES:
            fields = described[header.end() : None if following is None else following.start()]
            # A page that this process has changed is a copy, and would be lost.
            if not _CHANGED.search(fields):
                yield start, end
