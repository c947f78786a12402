"""Replaying and decoding shared between processes, of this machine or of a Dask cluster. Nothing is timed while they work.

`tasks.workers` has those of this machine. Dask gives the unit of a worker that died to another one, while this process waits.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import platform
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tasks.console import log
from tasks.errors import InputError
from tasks.locks import working_lock
from tasks.workers import Result, Submit, Unit, Work, Workers, shared, work_on

if TYPE_CHECKING:
    from distributed import Client, Future

    from tasks.decoding.method import Pair


@dataclass(frozen=True)
class FanOut:
    """Further processes that share work."""

    size: int
    """How many processes work; without a scheduler this one is among them."""
    open_pair: Callable[[], Pair]
    """Opens the pair in a further process, which has its own copy of the models; picklable."""
    scheduler: str | None = None
    """Address of the Dask scheduler whose workers they are, such as `tcp://127.0.0.1:8786`; None: they are started here."""
    device: str = "cpu"
    """Where models run: `cpu` or `cuda`."""
    workers: Workers = field(default_factory=Workers)
    """The processes of this machine, which drafters share."""

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
            units: What is to be done; picklable.
            work: Does a unit here.
            make: Makes the same for a further process from its pair; picklable.
            pair: This process's, whose measured cost ratios the others take over.
            on_done: Called after each unit that another process has done.

        Raises:
            Exception: What `work` raises. A unit that fails in another process is done again here.
        """
        if len(units) < 2:
            return [work(unit) for unit in units]
        threads = None if self.scheduler else max(1, torch.get_num_threads() // self.size)
        open_worker = functools.partial(_opened_work, self.open_pair, make, dict(pair.cost_ratios), threads)
        with contextlib.ExitStack() as stack:
            try:
                submit = stack.enter_context(self._submitting(open_worker))
            except OSError as error:
                log.warning("no Dask scheduler answers (%s); going on without", error)
                return [work(unit) for unit in units]
            return shared(units, work, submit, on_done, threads)

    @contextlib.contextmanager
    def _submitting(self, open_worker: Callable[[], Work[Any, Any]]) -> Iterator[Submit]:
        if self.scheduler is None:
            yield self.workers.submit_to(self.size, open_worker)
            return
        # What is pickled here is opened by the workers, not by the scheduler, which would need torch.
        opener = pickle.dumps(open_worker)
        with _client(self.scheduler) as client:

            def submit(unit: Any) -> _There:
                sent = opener, machine(), self.device, pickle.dumps(unit)
                return _There(client, client.submit(_work_there, *sent, pure=False))

            yield submit


def _opened_work(
    open_pair: Callable[[], Pair], make: Callable[[Pair], Work[Any, Any]], cost_ratios: Mapping[str, float], threads: int | None
) -> Work[Any, Any]:
    """Open the pair in a further process, and return what does a unit there; None leaves the threads as they are."""
    pair = open_pair()
    pair.cost_ratios.update(cost_ratios)
    if threads is not None:
        torch.set_num_threads(threads)
    return make(pair)


# The workers of a Dask cluster. The only code that imports distributed.

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 30
_TURN = threading.Lock()
"""A pair decodes in one thread at a time, also on a worker with several."""


def count_workers(scheduler: str) -> int:
    """The number of workers that a Dask scheduler has.

    Raises:
        InputError: distributed is not installed, no scheduler answers, or it has no worker.
    """
    try:
        with _client(scheduler) as client:
            size = len(client.nthreads())
    except ModuleNotFoundError as error:
        raise InputError(f"--dask needs the extra dask: {error}; pip install distributed") from None
    except (OSError, ValueError) as error:
        raise InputError(f"--dask: no Dask scheduler answers at {scheduler} ({error}); start one with dask scheduler") from None
    if not size:
        raise InputError(f"--dask: the scheduler at {scheduler} has no worker; start some with dask worker {scheduler}")
    return size


def _client(address: str) -> Client:
    from distributed import Client

    return Client(address, timeout=_PATIENCE_SECONDS, set_as_default=False)


@dataclass(frozen=True)
class _There:
    """A unit that a cluster was given, and keeps: this process has no part in it."""

    client: Client
    future: Future

    def result(self) -> Any:
        while True:
            with contextlib.suppress(TimeoutError):
                return self.future.result(timeout=_POLL_SECONDS)
            if not self.client.nthreads():
                raise EOFError("no worker is left")  # the task would wait for ever

    def cancel(self) -> bool:
        return False


def _work_there(opener: bytes, sweeping: str, device: str, unit: bytes) -> Any:
    """Do a unit on a worker. Relative paths are those of the folder where the worker was started.

    Args:
        opener: Returns what does a unit, pickled.
        sweeping: `machine` of the process that sweeps. There, the sweep holds the lock for all who work for it; elsewhere a
            unit waits until nothing is timed on its machine.
        device: The lock's.
        unit: The unit, pickled.
    """
    with _TURN, contextlib.nullcontext() if sweeping == machine() else working_lock(device):
        return work_on(opener, pickle.loads(unit))  # noqa: S301 (a worker runs what its scheduler's clients send)


def machine() -> str:
    """A name of the running system, which processes on it share, and no other system has."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {boot.read_text(encoding='utf-8').strip() if boot.exists() else ''}"
