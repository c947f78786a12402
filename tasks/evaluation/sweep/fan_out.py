"""Replaying and decoding shared between processes, of this machine and of a Dask cluster. Nothing is timed while they work.

The calling process works too, so that nothing waits while the others start, and so that it finishes alone if all of them die. A
unit whose process dies is done by another. The processes of this machine live for one call. The workers of a cluster get a unit
at a time, and one that dies, or whose machine or scheduler is gone, only costs the unit that it was at.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import pickle
import platform
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tasks import supervisor
from tasks.console import log
from tasks.errors import InputError
from tasks.evaluation.timing import on_threads
from tasks.locks import working_lock_if_free

if TYPE_CHECKING:
    from distributed import Client, Future

    from tasks.decoding.method import Pair

Unit = TypeVar("Unit")
Result = TypeVar("Result")
Work = Callable[[Unit], Result]


def _no_pair() -> Pair:
    raise AssertionError("unreachable: one process opens no second pair")


@dataclass(frozen=True)
class FanOut:
    """The processes that share work."""

    processes: int = 1
    """Those of this machine, this one included."""
    open_pair: Callable[[], Pair] = _no_pair
    """Opens the pair in a further process, which has its own copy of the models; picklable."""
    cluster: DaskCluster | None = None
    """Further processes elsewhere."""

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
        open_worker = functools.partial(_opened_work, self.open_pair, make, dict(pair.cost_ratios), threads)
        with contextlib.ExitStack() as stack:
            channels: Sequence[Channel] = ()
            if self.cluster is not None and len(units) > 1:
                there = functools.partial(_opened_work, self.cluster.open_pair, make, dict(pair.cost_ratios), None)
                channels = stack.enter_context(self.cluster.connected(there))
            stack.enter_context(on_threads(threads))
            return map_units(units, work, open_worker, self.processes, on_done, channels)


ALONE = FanOut()


def _opened_work(
    open_pair: Callable[[], Pair], make: Callable[[Pair], Work[Any, Any]], cost_ratios: Mapping[str, float], threads: int | None
) -> Work[Any, Any]:
    """Open the pair in a further process, and return what does a unit there; None leaves the threads as they are."""
    import torch

    pair = open_pair()
    pair.cost_ratios.update(cost_ratios)
    if threads is not None:
        torch.set_num_threads(threads)
    return make(pair)


# Processes that share units of work.


class Channel(Protocol):
    """A way to a process that does units; `multiprocessing`'s connections are such. Used by one thread."""

    def send(self, unit: Any, /) -> None:
        """Give a unit to the process; raise EOFError or OSError if it is gone."""

    def recv(self) -> Any:
        """Wait until the process is ready, and later for each result; raise EOFError or OSError if it is gone."""

    def close(self) -> None:
        """Take no more from the process."""


def map_units(
    units: Sequence[Unit],
    work: Work[Unit, Result],
    open_worker: Callable[[], Work[Unit, Result]],
    processes: int,
    on_done: Callable[[Unit], object] = id,
    channels: Sequence[Channel] = (),
) -> list[Result]:
    """Return the result of each unit, in the order of the units.

    Args:
        units: What is to be done; each is sent to the process that does it.
        work: Does a unit in this process.
        open_worker: Called once in each further process; returns what does a unit there. It must be picklable.
        processes: Processes of this machine that work, this one included.
        on_done: Called after each unit that another process has done, by one thread at a time.
        channels: Channels to processes that are not started here; they are closed.

    Raises:
        Exception: What `work` raises. An exception in another process ends that process, and its unit is done again here.
    """
    board: _Board[Unit, Result] = _Board(units, on_done)
    with contextlib.ExitStack() as stack:
        stack.callback(board.close)
        pipes = [stack.enter_context(_started(open_worker)) for _ in range(min(processes, len(units)) - 1)]
        for channel in (*channels, *pipes):
            threading.Thread(target=_feed, args=(channel, board), daemon=True).start()
        while (number := board.take()) is not None:
            board.finish(number, work(units[number]))
    return [board.results[number] for number in range(len(units))]


class _Board(Generic[Unit, Result]):
    """Which units wait, and the results of those that are done; safe to use from many threads."""

    def __init__(self, units: Sequence[Unit], on_done: Callable[[Unit], object]) -> None:
        self.units = units
        self.results: dict[int, Result] = {}
        self._on_done = on_done
        self._waiting = deque(range(len(units)))
        self._changed = threading.Condition()
        self._closed = False

    def take(self) -> int | None:
        """Take a unit; wait while all units are taken but not done, since one may come back; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended())
            return None if self._ended() else self._waiting.popleft()

    def finish(self, number: int, result: Result, *, remote: bool = False) -> None:
        with self._changed:
            self.results[number] = result
            if remote:
                self._on_done(self.units[number])
            self._changed.notify_all()

    def give_back(self, number: int) -> None:
        """Let another process do a unit; say so, unless the work has ended anyway."""
        with self._changed:
            if not self._ended():
                log.warning("a process that shared this work has ended; the others do its part")
            self._waiting.appendleft(number)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _ended(self) -> bool:
        return self._closed or len(self.results) == len(self.units)


def _feed(channel: Channel, board: _Board[Any, Any]) -> None:
    """Give units to a process, from when it is ready until it or the work ends."""
    with contextlib.closing(channel), contextlib.suppress(EOFError, OSError):
        channel.recv()
        while (number := board.take()) is not None:
            try:
                channel.send(board.units[number])
                result = channel.recv()
            except (EOFError, OSError):
                board.give_back(number)
                return
            board.finish(number, result, remote=True)


@contextlib.contextmanager
def _started(open_worker: Callable[[], Work[Any, Any]]) -> Iterator[Connection]:
    """Run a further process during the block, and give the pipe to it."""
    # A forked process would share the threads and locks of torch with this one.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, open_worker), daemon=True)
    process.start()
    theirs.close()  # so that the pipe ends when the process does
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def _serve(pipe: Connection, open_worker: Callable[[], Work[Any, Any]]) -> None:
    """Do units until there are none, or the process that started this one is gone."""
    supervisor.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    work = open_worker()
    pipe.send(None)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(work(pipe.recv()))


# The workers of a Dask cluster. The only code that imports distributed.

_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 30
_TURN = threading.Lock()
"""A pair decodes in one thread at a time, also on a worker with several."""


@dataclass(frozen=True)
class DaskCluster:
    """The workers that a Dask scheduler has."""

    address: str
    """Of the scheduler, such as `tcp://127.0.0.1:8786`."""
    size: int
    """How many workers there were when `find_cluster` counted them."""
    open_pair: Callable[[], Pair]
    """Opens the pair on a worker; picklable."""
    device: str
    """Where models run: `cpu` or `cuda`."""

    @contextlib.contextmanager
    def connected(self, open_worker: Callable[[], Work[Any, Any]]) -> Iterator[Sequence[Channel]]:
        """Let every worker open its work during the block, and yield a channel to each.

        Without a scheduler there are none: one line on standard error says so, and the work goes on here.
        """
        channels: list[Channel] = []
        ended = threading.Event()
        with contextlib.ExitStack() as stack:
            try:
                client = stack.enter_context(_client(self.address))
                for worker in client.nthreads():
                    channels.append(_DaskChannel(client, worker, ended, open_worker, self.device))
            except OSError as error:
                log.warning("no Dask scheduler answers at %s (%s); going on without", self.address, error)
            stack.callback(ended.set)
            yield channels


def find_cluster(address: str, open_pair: Callable[[], Pair], device: str) -> DaskCluster:
    """Return the cluster of a scheduler; its arguments are the fields of `DaskCluster`.

    Raises:
        InputError: distributed is not installed, no scheduler answers, or it has no worker.
    """
    try:
        with _client(address) as client:
            size = len(client.nthreads())
    except ModuleNotFoundError as error:
        raise InputError(f"--dask needs the extra dask: {error}; pip install distributed") from None
    except (OSError, ValueError) as error:
        raise InputError(f"--dask: no Dask scheduler answers at {address} ({error}); start one with dask scheduler") from None
    if not size:
        raise InputError(f"--dask: the scheduler at {address} has no worker; start some with dask worker {address}")
    return DaskCluster(address, size, open_pair, device)


def _client(address: str) -> Client:
    from distributed import Client

    return Client(address, timeout=_PATIENCE_SECONDS, set_as_default=False)


class _DaskChannel:
    """A channel to one worker; a unit on its way is a task that no other worker may take."""

    def __init__(
        self, client: Client, worker: str, ended: threading.Event, open_worker: Callable[[], Work[Any, Any]], device: str
    ) -> None:
        self._client, self._worker, self._ended = client, worker, ended
        self._submit = functools.partial(client.submit, workers=[worker], pure=False, retries=0)
        # Its result stays on the worker, and goes when this client does, however it ends.
        self._opened: Future = self._submit(_DaskWork, pickle.dumps(open_worker), machine(), device)
        self._awaited: Future = self._submit(bool, self._opened)  # ends when the work is open

    def send(self, unit: Any, /) -> None:
        self._awaited = self._submit(_DaskWork.__call__, self._opened, pickle.dumps(unit))

    def recv(self) -> Any:
        try:
            while not self._awaited.done():
                with contextlib.suppress(TimeoutError):
                    return self._awaited.result(timeout=_POLL_SECONDS)
                if self._worker not in self._client.nthreads():
                    raise EOFError("it is gone")  # its task would wait for ever
            return self._awaited.result()
        except Exception as error:  # of the worker, of its work or of the connection: another process does the unit
            if not self._ended.is_set():
                log.warning("Dask worker %s: %s: %s", self._worker, type(error).__name__, error)
            raise EOFError from error

    def close(self) -> None:
        self._awaited.release()
        self._opened.release()


class _DaskWork:
    """What does units on a worker, and never leaves it. Relative paths are those of the folder where the worker was started."""

    def __init__(self, open_worker: bytes, sweeping: str, device: str) -> None:
        """Open the work on this worker.

        Args:
            open_worker: Returns what does a unit, pickled: Dask's scheduler would open it otherwise, and would need torch.
            sweeping: `machine` of the process that sweeps. There, the sweep holds the lock for all who work for it; elsewhere a
                unit holds the lock of its machine, and a worker beside which something is timed stays out.
            device: The lock's.
        """
        self._device = None if sweeping == machine() else device
        with self._turn():
            self._work = pickle.loads(open_worker)()  # noqa: S301 (a worker runs what its scheduler's clients send)

    def __call__(self, unit: bytes) -> Any:
        """Do a pickled unit."""
        with self._turn():
            return self._work(pickle.loads(unit))  # noqa: S301 (as above)

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with _TURN, contextlib.nullcontext() if self._device is None else working_lock_if_free(self._device):
            yield


def machine() -> str:
    """A name of the running system, which processes on it share, and no other system has."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()} {boot.read_text(encoding='utf-8').strip() if boot.exists() else ''}"
