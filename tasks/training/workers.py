"""Worker processes: started together, and ended together by whatever ends one of them or the process that started them.

A worker's standard input is a pipe that its launcher never writes to. It ends when the launcher does, however that happens, and
through `ssh` as well, so that no worker is left over on any host. The same goes for what a worker says in the end: after `MARK`
on its standard error comes the reason why it failed, of which the launcher passes on one, not each worker's own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasks.errors import STATUS_BAD_INPUT

LAUNCHED = "DRAFTLINE_LAUNCHED"
"""The variable that tells a worker that this module started it."""
LISTENER = "DRAFTLINE_LISTENER"
"""The variable that gives the first worker the number of an open, listening socket for the group to meet at."""
MARK = b"\x1e"

_SAID_LAST = 1.0
"""Seconds in which others may still say why they failed, before all are ended."""
_TERM_SECONDS = 5.0
_MOST_KEPT = 2**16
_SSH_FAILED = 255


@dataclass(frozen=True)
class Command:
    """What starts a worker."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    host: str | None = None
    """Where it runs; none: here."""
    files: tuple[int, ...] = ()
    """Open files that it is handed."""


class _Worker:
    """A running worker; of the first alone all that it says is passed on as it is said."""

    def __init__(self, rank: int, command: Command) -> None:
        self.rank, self.host = rank, command.host
        self._words, self._marked = b"", False
        self.in_line = False
        """Whether what it said so far ends within a line, as a progress bar does."""
        self.process = subprocess.Popen(  # noqa: S603 (the stage's own command)
            command.arguments,
            env=dict(command.environment),
            stdin=subprocess.PIPE,
            stdout=None if rank == 0 else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=command.files,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None  # noqa: S101 (it is a pipe)
        while chunk := os.read(self.process.stderr.fileno(), 65536):
            if not self._marked:
                said, mark, chunk = chunk.partition(MARK)
                if self.rank == 0:
                    # Bytes: a chunk may end within a character.
                    sys.stderr.buffer.write(said)
                    sys.stderr.flush()
                    self.in_line = not said.endswith(b"\n") if said else self.in_line
                else:
                    self._words += said
                if mark:
                    self._marked, self._words = True, b""
            self._words = (self._words + chunk)[-_MOST_KEPT:]

    def reason(self) -> str:
        """What it said last, once it has ended."""
        self._reader.join(timeout=1.0)
        return self._words.decode(errors="replace")


def run(commands: Sequence[Command]) -> int:
    """Runs one worker for each command until all have ended; gives the exit status for all.

    The first that fails ends the others. Standard error then has one worker's reason, and the status is that worker's.
    """
    workers: list[_Worker] = []
    with _signals_as_exits():
        try:
            workers.extend(_Worker(rank, command) for rank, command in enumerate(commands))
            failed = _failed(workers)
        finally:
            _end(workers)
    if not failed:
        return 0
    status, reason = _blamed(failed, len(workers))
    sys.stderr.write("\n" * workers[0].in_line + reason)
    sys.stderr.flush()
    return status


def _failed(workers: list[_Worker]) -> list[_Worker]:
    """Waits; gives those that failed, in the order in which they did."""
    failed: list[_Worker] = []
    until = float("inf")
    while time.monotonic() < until and any(worker.process.poll() is None for worker in workers):
        time.sleep(0.05)
        failed += [worker for worker in workers if worker.process.poll() and worker not in failed]
        if failed:
            until = min(until, time.monotonic() + _SAID_LAST)
    return failed + [worker for worker in workers if worker.process.poll() and worker not in failed]


def _blamed(failed: list[_Worker], count: int) -> tuple[int, str]:
    """The exit status and the reason of the worker that failed first by itself: where one dies, others only lose touch."""
    for worker in failed:
        if worker.process.returncode == STATUS_BAD_INPUT:
            return STATUS_BAD_INPUT, worker.reason()
    for worker in failed:
        status, here = worker.process.returncode, worker.host is None
        if status < 0 or (status == _SSH_FAILED and not here):
            how = f"was ended by {signal.Signals(-status).name}" if status < 0 else "was ended, or the connection was"
            where = "" if here else f" on {worker.host}"
            return 1, (
                f"error: process {worker.rank + 1} of {count}{where} {how}; look for want of memory, and run the same command "
                "again: it goes on from the last checkpoint\n"
            )
    first = failed[0]
    told = f"process {first.rank + 1} of {count} ended with status {first.process.returncode}\n"
    return 1, f"{first.reason()}{told}"


def _end(workers: list[_Worker]) -> None:
    """Ends those that still run, here by signals, on other hosts by the end of their standard input."""
    for worker in workers:
        worker.process.terminate()
        if worker.process.stdin is not None:
            worker.process.stdin.close()
    deadline = time.monotonic() + _TERM_SECONDS
    for worker in workers:
        try:
            worker.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            worker.process.kill()
            worker.process.wait()


@contextlib.contextmanager
def _signals_as_exits() -> Iterator[None]:
    """Lets a signal that ends this process end the workers first."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def as_worker() -> Iterator[None]:
    """What a worker works inside: it ends when its launcher does, and marks where its last words begin."""
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    try:
        yield
    except BaseException:
        sys.stderr.write(MARK.decode())
        sys.stderr.flush()
        raise


def _end_with_launcher() -> None:
    while os.read(sys.__stdin__.fileno() if sys.__stdin__ else 0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_TERM_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
