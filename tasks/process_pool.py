"""Several processes share units of work; a unit whose process dies is done by another.

The calling process works too, so that nothing waits while the others start, and so that it finishes alone if all of them die.
The others live for one call of `map_units`: none is left when it returns. Further ones may live elsewhere, such as on other
machines: `map_units` then gets a channel to each.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, Generic, Protocol, TypeVar

from tasks import supervisor
from tasks.console import log

Unit = TypeVar("Unit")
Result = TypeVar("Result")


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
    work: Callable[[Unit], Result],
    open_worker: Callable[[], Callable[[Unit], Result]],
    processes: int,
    on_done: Callable[[Unit], object] = id,
    elsewhere: Sequence[Channel] = (),
) -> list[Result]:
    """Return the result of each unit, in the order of the units.

    Args:
        units: What is to be done; each is sent to the process that does it.
        work: Does a unit in this process.
        open_worker: Called once in each further process; returns what does a unit there. It must be picklable.
        processes: Processes of this machine that work, this one included.
        on_done: Called after each unit that another process has done, by one thread at a time.
        elsewhere: Channels to processes that are not started here; they are closed.

    Raises:
        Exception: What `work` raises. An exception in another process ends that process, and its unit is done again here.
    """
    board: _Board[Unit, Result] = _Board(units, on_done)
    with contextlib.ExitStack() as stack:
        stack.callback(board.close)
        pipes: list[Channel] = [*elsewhere]
        pipes += [stack.enter_context(_started(open_worker)) for _ in range(min(processes, len(units)) - 1)]
        for pipe in pipes:
            threading.Thread(target=_feed, args=(pipe, board), daemon=True).start()
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

    def finish(self, number: int, result: Result, *, elsewhere: bool = False) -> None:
        with self._changed:
            self.results[number] = result
            if elsewhere:
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


@contextlib.contextmanager
def _started(open_worker: Callable[[], Callable[[Unit], Result]]) -> Iterator[Connection]:
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


def _feed(pipe: Channel, board: _Board[Unit, Result]) -> None:
    """Give units to a process, from when it is ready until it or the work ends."""
    with contextlib.closing(pipe), contextlib.suppress(EOFError, OSError):
        pipe.recv()
        while (number := board.take()) is not None:
            try:
                pipe.send(board.units[number])
                result = pipe.recv()
            except (EOFError, OSError):
                board.give_back(number)
                return
            board.finish(number, result, elsewhere=True)


def _serve(pipe: Connection, open_worker: Callable[[], Callable[[Unit], Result]]) -> None:
    """Do units until there are none, or the process that started this one is gone."""
    supervisor.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one ends it
    work = open_worker()
    pipe.send(None)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(work(pipe.recv()))
