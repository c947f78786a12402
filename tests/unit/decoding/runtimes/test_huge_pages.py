"""Tensors that lie one behind the other in one region."""

from __future__ import annotations

import mmap

import pytest
import torch

from tasks.decoding.runtimes import packed
from tasks.decoding.runtimes.packed import HugePages, aligned


def test_tensors_are_aligned_and_do_not_overlap() -> None:
    pages = HugePages(aligned(3 * 5 * 4) + aligned(7) + aligned(8 * 2))
    first = pages.take((3, 5), torch.float32).fill_(1.0)
    second = pages.take((7,), torch.int8).fill_(2)
    third = pages.take((2, 4), torch.bfloat16).fill_(3.0)
    assert first.data_ptr() % 2**21 == 0
    assert all(one.data_ptr() % 64 == 0 for one in (second, third))
    assert bool((first == 1).all()) and bool((second == 2).all()) and bool((third == 3).all())
    with pytest.raises(MemoryError, match="64 bytes"):
        pages.take((16,), torch.float32)


def test_tensors_outlive_the_region() -> None:
    [taken] = [HugePages(64).take((16,), torch.float32)]
    assert taken.zero_().sum() == 0


@pytest.mark.parametrize("lacking", ["MAP_ANONYMOUS", "MADV_HUGEPAGE"])
def test_a_system_without_huge_pages_has_plain_memory(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mmap, lacking, raising=False)
    assert packed.HugePages(64).take((16,), torch.float32).fill_(2.0).sum() == 32
