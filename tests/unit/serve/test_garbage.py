"""Garbage of requests does not wait for a quarter of all objects of the libraries."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterator

import pytest

from tasks.serve.__main__ import set_startup_aside


class _Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def startup() -> Iterator[list[list[int]]]:
    """What a server with many libraries has made before its first request."""
    found: list[list[int]] = [[] for _ in range(400_000)]
    usual = gc.get_threshold()
    gc.set_threshold(700, 3, 3)  # soon enough for a test
    yield found
    gc.set_threshold(*usual)
    gc.unfreeze()


def full_collections(requests: int = 60_000, under_way: int = 5_000) -> int:
    """Return how often the oldest generation is collected while requests that live long enough to get there leave cycles."""
    before: int = gc.get_stats()[2]["collections"]
    living = deque[_Cycle](maxlen=under_way)
    for _ in range(requests):
        living.append(_Cycle())
    after: int = gc.get_stats()[2]["collections"]
    return after - before


@pytest.mark.usefixtures("startup")
def test_cycles_of_requests_wait_for_a_share_of_their_own_number() -> None:
    gc.collect()
    assert full_collections() == 0, "with the objects of start-up counted: otherwise this test shows nothing"
    set_startup_aside()
    assert full_collections() >= 2
