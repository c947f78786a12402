"""Replaying and decoding shared between processes, of this machine and of a Dask cluster. Nothing is timed while they work."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tasks.decoding.method import Pair
from tasks.evaluation.timing import on_threads
from tasks.process_pool import Channel, map_units

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Work = Callable[[Unit], Result]


class Cluster(Protocol):
    """Processes that somebody else has started."""

    @property
    def size(self) -> int:
        """How many there were at the start of the sweep."""

    def open_pair(self) -> Pair:
        """Open the pair there."""

    def connected(self, open_worker: Callable[[], Work[Any, Any]]) -> AbstractContextManager[Sequence[Channel]]:
        """Let each process that there is now call `open_worker`, and yield a channel to each; they are free after the block."""


def _no_pair() -> Pair:
    raise AssertionError("unreachable: one process opens no second pair")


@dataclass(frozen=True)
class FanOut:
    """The processes that share work."""

    processes: int = 1
    """Those of this machine, this one included."""
    open_pair: Callable[[], Pair] = _no_pair
    """Opens the pair in a further process, which has its own copy of the models; picklable."""
    cluster: Cluster | None = None
    """Further processes elsewhere; picklable."""

    @property
    def size(self) -> int:
        """All processes."""
        return self.processes + (0 if self.cluster is None else self.cluster.size)

    def map(
        self,
        units: Sequence[Unit],
        work: Work[Unit, Result],
        make: Callable[[Pair], Work[Unit, Result]],
        pair: Pair,
        on_done: Callable[[Unit], object],
    ) -> list[Result]:
        """Return the result of each unit, in the order of the units; processes of this machine divide the threads of this one.

        Args:
            units: What is to be done.
            work: Does a unit here.
            make: Makes the same for a further process from its pair; picklable.
            pair: This process's, whose measured cost ratios the others take over.
            on_done: Called after each unit that another process has done.
        """
        import torch

        threads = max(1, torch.get_num_threads() // self.processes)
        open_worker = functools.partial(_open, self.open_pair, make, dict(pair.cost_ratios), threads)
        with contextlib.ExitStack() as stack:
            elsewhere: Sequence[Channel] = ()
            if self.cluster is not None and len(units) > 1:
                there = functools.partial(_open, self.cluster.open_pair, make, dict(pair.cost_ratios), None)
                elsewhere = stack.enter_context(self.cluster.connected(there))
            stack.enter_context(on_threads(threads))
            return map_units(units, work, open_worker, self.processes, on_done, elsewhere)


ALONE = FanOut()


def _open(
    open_pair: Callable[[], Pair],
    make: Callable[[Pair], Work[Unit, Result]],
    cost_ratios: Mapping[str, float],
    threads: int | None,
) -> Work[Unit, Result]:
    """Open the pair in a further process, and return what does a unit there; None leaves the threads as they are."""
    import torch

    pair = open_pair()
    pair.cost_ratios.update(cost_ratios)
    if threads is not None:
        torch.set_num_threads(threads)
    return make(pair)
