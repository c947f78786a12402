"""Starts what must not outlive this process, however it ends: a command, or workers of this program.

A killed `dvc`, for example, orphans the command that it runs, which then writes beside its own re-run. So each command gets a
supervisor: a small process that leads a process group of its own. The kernel tells the supervisor (Linux) when its parent is
gone; then, or when the parent sends SIGTERM, it ends the command and everything below it.

The supervisor runs this file by its path, outside the package, so that it starts in milliseconds and hands the environment on
unchanged. Therefore the file imports nothing of the project.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

GRACE = 10.0
"""Seconds between asking processes to end and killing them."""
_BEYOND_GRACE = 5.0
_NOT_STARTED = 127
_PR_SET_PDEATHSIG = 1


def start(command: Sequence[str], *, grace: float = GRACE, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command under a supervisor and return the supervisor's process; its exit status is the command's.

    The thread that calls this must outlive the process: the kernel takes the thread's end for the parent's.

    Args:
        command: The program and its arguments.
        grace: Seconds between SIGTERM and SIGKILL.
        options: `cwd`, `env`, `stdin` (none unless given), `stdout` and `stderr` of `subprocess.Popen`.
    """
    own = [sys.executable, "-I", str(Path(__file__).resolve()), json.dumps({"parent": os.getpid(), "grace": grace})]
    given = {"stdin": subprocess.DEVNULL, **options}
    return subprocess.Popen([*own, *command], start_new_session=True, **given)  # noqa: S603 (the command is the caller's own)


def stop(process: subprocess.Popen[bytes], grace: float = GRACE) -> None:
    """End what `start` returned, with everything below it, and wait until it is gone."""
    process.terminate()
    try:
        process.wait(grace + _BEYOND_GRACE)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command and stop it at the end of the block, if it still runs; `options` are those of `start`."""
    with start(command, **options) as process:
        try:
            yield process
        finally:
            stop(process)


def die_with_parent() -> None:
    """Ask the kernel (Linux) to send this process SIGTERM when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def workers(size: int, prepare: Callable[..., object] | None = None, *arguments: Any) -> Iterator[ProcessPoolExecutor]:
    """Start processes of this program for the length of the block; what they have not begun at its end is dropped.

    Args:
        size: How many.
        prepare: Called with the arguments in each process, before its first work; picklable, as they are. None: nothing is.
        arguments: What it takes.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    # A forked process would share this one's memory, threads and locks.
    executor = ProcessPoolExecutor(size, multiprocessing.get_context("spawn"), _begin, (os.getpid(), prepare, *arguments))
    try:
        yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _begin(parent: int, prepare: Callable[..., object] | None, *arguments: Any) -> None:
    die_with_parent()
    if os.getppid() != parent:  # it ended while this process was starting
        os._exit(1)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored, as in a shell's background
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a worker at once, without a traceback beside its parent's
    if prepare is not None:
        prepare(*arguments)


def _end(grace: float) -> NoReturn:
    """End the command, everything that it started, and the supervisor itself."""
    # First of all: the kernel sends one signal for each thread of a killed parent, and a second one must not interrupt this.
    _ignore_signals()
    import psutil

    below = psutil.Process().children(recursive=True)
    os.killpg(0, signal.SIGTERM)
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(below, timeout=grace)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("unreachable: the supervisor belongs to the group that it killed")


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _supervise(request: str, *command: str) -> int:
    """Run the command and return its exit status; `request` is what `start` wrote."""
    asked = json.loads(request)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _end(asked["grace"]))
    die_with_parent()
    if os.getppid() != asked["parent"]:  # the parent ended before the kernel was asked
        return 1
    try:
        # A supervisor that is itself killed can end nothing any more; the kernel then ends the command.
        status = subprocess.Popen(command, preexec_fn=die_with_parent).wait()  # noqa: S603 (as above)
    except OSError as error:
        print(f"{command[0]} does not start: {error}", file=sys.stderr)
        return _NOT_STARTED
    _ignore_signals()
    os.killpg(0, signal.SIGTERM)  # a finished command leaves nothing running either
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    raise SystemExit(_supervise(*sys.argv[1:]))
