"""The workers of a Dask cluster as further processes of `tasks.process_pool`. The only code that imports distributed.

A worker gets a unit at a time. One that dies, or whose machine or scheduler is gone, only costs the unit that it was at.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.console import log
from tasks.errors import InputError
from tasks.locks import working_lock_if_free
from tasks.process_pool import Channel

if TYPE_CHECKING:
    from distributed import Client, Future

    from tasks.decoding.method import Pair

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 30
Work = Callable[[Any], Any]


@dataclass(frozen=True)
class DaskCluster:
    """The workers that a Dask scheduler has; see `tasks.evaluation.sweeping.fan_out.Cluster`."""

    address: str
    """Of the scheduler, such as `tcp://127.0.0.1:8786`."""
    size: int
    """How many workers there were when `find_cluster` counted them."""
    open_pair: Callable[[], Pair]
    """Opens the pair on a worker."""
    device: str
    """Where models run: `cpu` or `cuda`."""

    @contextlib.contextmanager
    def connected(self, open_worker: Callable[[], Work]) -> Iterator[Sequence[Channel]]:
        """Let every worker open its work during the block, and yield a channel to each.

        Without a scheduler there are none: one line on standard error says so, and the work goes on here.
        """
        channels: list[Channel] = []
        ended = threading.Event()
        with contextlib.ExitStack() as stack:
            try:
                client = stack.enter_context(_client(self.address))
                about = (ended, open_worker, _machine(), self.device)
                channels += [_DaskChannel(client, worker, *about) for worker in _workers(client)]
            except OSError as error:
                log.warning("no Dask scheduler answers at %s (%s); going on without", self.address, error)
            stack.callback(ended.set)
            yield channels


def find_cluster(address: str, open_pair: Callable[[], Pair], device: str) -> DaskCluster:
    """Return the cluster of a scheduler.

    Args:
        address: Of the scheduler.
        open_pair: Opens the pair on a worker; picklable.
        device: Where models run: `cpu` or `cuda`.

    Raises:
        InputError: distributed is not installed, no scheduler answers, or it has no worker.
    """
    try:
        with _client(address) as client:
            size = len(_workers(client))
    except ModuleNotFoundError as error:
        raise InputError(f"--dask needs the extra dask: {error}; pip install distributed") from None
    except (OSError, ValueError) as error:
        raise InputError(f"--dask: no Dask scheduler answers at {address} ({error}); start one with dask scheduler") from None
    if not size:
        raise InputError(f"--dask: the scheduler at {address} has no worker; start some with dask worker {address}")
    return DaskCluster(address, size, open_pair, device)


class _DaskChannel:
    """A channel to one worker; a unit on its way is a task that no other worker may take."""

    def __init__(
        self, client: Client, worker: str, ended: threading.Event, open_worker: Callable[[], Work], machine: str, device: str
    ) -> None:
        self._client, self._worker, self._ended = client, worker, ended
        self._submit = functools.partial(client.submit, workers=[worker], pure=False, retries=0)
        # Its result stays on the worker, and goes when this client does, however it ends.
        self._opened: Future = self._submit(_open, pickle.dumps(open_worker), machine, device)
        self._awaited: Future = self._submit(_is_open, self._opened)

    def send(self, unit: Any, /) -> None:
        self._awaited = self._submit(_do, self._opened, pickle.dumps(unit))

    def recv(self) -> Any:
        try:
            while not self._awaited.done():
                with contextlib.suppress(TimeoutError):
                    return self._awaited.result(timeout=_POLL_SECONDS)
                self._require_worker()
            return self._awaited.result()
        except Exception as error:  # of the worker, of its work or of the connection: another process does the unit
            if not self._ended.is_set():
                log.warning("Dask worker %s: %s: %s", self._worker, type(error).__name__, error)
            raise EOFError from error

    def close(self) -> None:
        self._awaited.release()
        self._opened.release()

    def _require_worker(self) -> None:
        """Raise if the scheduler does not have the worker any more: its task would wait for ever."""
        if self._worker not in _workers(self._client):
            raise EOFError("it is gone")


class _Opened:
    """What does units on a worker; it never leaves the worker."""

    def __init__(self, work: Work, lock: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        self.work, self.lock = work, lock


_TURN = threading.Lock()
"""A pair decodes in one thread at a time, also on a worker with several."""


def _open(open_worker: bytes, machine: str, device: str) -> _Opened:
    """Open the work on this worker.

    Args:
        open_worker: Returns what does a unit, pickled: Dask's scheduler would open it otherwise, and would need torch. Relative
            paths are those of the folder in which the worker was started.
        machine: Name of the one that sweeps. There, the sweep holds the lock for all who work for it; elsewhere a unit holds
            the lock of its machine, and a worker beside which something is timed stays out.
        device: The lock's.
    """
    lock = contextlib.nullcontext if machine == _machine() else functools.partial(working_lock_if_free, device)
    with _TURN, lock():
        return _Opened(pickle.loads(open_worker)(), lock)  # noqa: S301 (a worker runs what its scheduler's clients send)


def _is_open(_: _Opened) -> None:
    """Ends when the work is open."""


def _do(opened: _Opened, unit: bytes) -> Any:
    with _TURN, opened.lock():
        return opened.work(pickle.loads(unit))  # noqa: S301 (as above)


def _client(address: str) -> Client:
    from distributed import Client

    return Client(address, timeout=_PATIENCE_SECONDS, set_as_default=False)


def _workers(client: Client) -> list[str]:
    return list(client.nthreads())


def _machine() -> str:
    """A name of the running system, which processes on it share, and no other system has."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {boot.read_text(encoding='utf-8').strip() if boot.exists() else ''}"
