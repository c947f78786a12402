"""Replaying and decoding shared between processes of this machine (`tasks.workers`). Nothing is timed while they work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tasks.workers import Result, Unit, Work, Workers, shared

if TYPE_CHECKING:
    from tasks.decoding.method import Pair


@dataclass(frozen=True)
class FanOut:
    """Further processes that share work."""

    size: int
    """How many processes work, this one among them."""
    open_pair: Callable[[], Pair]
    """Opens the pair in a further process, which has its own copy of the models; picklable."""
    workers: Workers
    """The processes, which drafters share."""

    def map(
        self,
        units: Sequence[Unit],
        work: Work[Unit, Result],
        make: Callable[[Pair], Work[Unit, Result]],
        on_done: Callable[[Unit], object],
    ) -> list[Result]:
        """Return the result of each unit, in the order of the units; the processes divide the threads of this one.

        Args:
            units: What is to be done; picklable.
            work: Does a unit here.
            make: Makes the same for a further process from its pair; picklable.
            on_done: Called after each unit that another process has done.

        Raises:
            Exception: What `work` raises. A unit that fails in another process is done again here.
        """
        if len(units) < 2:
            return [work(unit) for unit in units]
        threads = max(1, torch.get_num_threads() // self.size)
        open_worker = functools.partial(_opened_work, self.open_pair, make, threads)
        return shared(units, work, self.workers.submit_to(self.size, open_worker), on_done, threads)


def _opened_work(open_pair: Callable[[], Pair], make: Callable[[Pair], Work[Any, Any]], threads: int) -> Work[Any, Any]:
    """Open the pair in a further process, and return what does a unit there."""
    pair = open_pair()
    torch.set_num_threads(threads)
    return make(pair)
