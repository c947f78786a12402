"""Processes that share the untimed work of a stage with this one; where there are GPUs, each has one of its own.

They live from the first call until they are closed, before anything is timed. They begin with the first units, this process
with the last ones; what no process is left for is done by this one, which finishes alone if all others die.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from tasks import supervisor
from tasks.console import log
from tasks.machine import on_threads

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.sharedctypes import Synchronized

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Work = Callable[[Unit], Result]


Submit = Callable[[Any], Future[Any]]
"""Gives a unit to another process."""


class Workers:
    """The further processes of this machine."""

    def __init__(self) -> None:
        """Start none yet."""
        self._running = contextlib.ExitStack()
        self._executor: ProcessPoolExecutor | None = None

    def submit_to(self, size: int, open_work: Callable[[], Work[Any, Any]]) -> Submit:
        """Return what gives a unit to one of `size` - 1 further processes, which are started unless they run.

        Args:
            size: How many processes work, this one among them.
            open_work: Opens in a further process what does a unit there; picklable.
        """
        opener, executor = pickle.dumps(open_work), self._started(size - 1)
        return lambda unit: executor.submit(_work_on, opener, unit)

    def _started(self, size: int) -> ProcessPoolExecutor:
        """The processes, started where none run, or anew where one of them has died since."""
        try:
            if self._executor is not None:
                self._executor.submit(int).result()
        except BrokenProcessPool:
            self.close()
        if self._executor is None:
            begun = multiprocessing.get_context("spawn").Value("i", 1)
            started = supervisor.workers(size, _take_gpu, begun, torch.cuda.device_count())
            self._executor = self._running.enter_context(started)
        return self._executor

    def close(self) -> None:
        """End them, with the models that they hold."""
        self._executor = None
        self._running.close()


def _take_gpu(begun: Synchronized[int], gpus: int) -> None:
    """In a further process: note the GPU that `machine.set_up` takes, as torch's launcher does for processes that train."""
    with begun.get_lock():
        number, begun.value = begun.value, begun.value + 1
    if gpus:
        os.environ["LOCAL_RANK"] = str(number)


@functools.lru_cache(maxsize=1)
def _opened(opener: bytes) -> Work[Any, Any]:
    """In a further process: what does the units of one call; it keeps its models until the next call begins."""
    work: Work[Any, Any] = pickle.loads(opener)()  # noqa: S301 (what the stage itself has pickled)
    return work


def _work_on(opener: bytes, unit: Any) -> Any:
    """In a further process: do a unit by what `opener`, pickled, opens."""
    return _opened(opener)(unit)


def shared(
    units: Sequence[Unit], work: Work[Unit, Result], submit: Submit, on_done: Callable[[Unit], object], threads: int
) -> list[Result]:
    """Return the result of each unit, in the order of the units.

    Args:
        units: What is to be done; picklable.
        work: Does a unit here.
        submit: Gives a unit to another process.
        on_done: Called after each unit that another process has done.
        threads: Threads of this process meanwhile.

    Raises:
        Exception: What `work` raises. A unit that fails in another process is done again here.
    """
    with on_threads(threads):
        waiting, own = [submit(unit) for unit in units], dict[int, Result]()
        # 1. From the last unit on, what no other process has begun.
        for index in reversed(range(len(units))):
            if not waiting[index].cancel():
                break
            own[index] = work(units[index])
        # 2. In order, what the others have done.
        found, warned = list[Result](), False
        for index, unit in enumerate(units):
            if index in own:
                found.append(own[index])
                continue
            try:
                result = waiting[index].result()
            except Exception as error:  # noqa: BLE001 (of the worker or of its work)
                if not warned:
                    said = "a process that shared this work has ended (%s: %s); its part is done here"
                    log.warning(said, type(error).__name__, error)
                result, warned = work(unit), True
            else:
                on_done(unit)
            found.append(result)
    return found
