"""Runs one command of which nothing stays behind, however the process that asked for it ends.

A killed `dvc` orphans the command that it runs, which then writes beside its own re-run. So a command is started under this
guard, the leader of a process group of its own. The kernel tells the guard (Linux) when its parent is gone; then, or when
the parent sends SIGTERM, it ends the command and everything below it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

import psutil

from tasks.errors import die_with_parent

GRACE = 10.0
"""Seconds between asking processes to end and killing them."""
_HERE = Path(__file__).resolve().parents[1]


def start(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], output: IO[Any] | int, grace: float = GRACE
) -> subprocess.Popen[bytes]:
    """Starts `command` in `folder` under a guard and gives the guard's process; its exit status is the command's.

    The thread that calls this must outlive the process: the kernel takes the thread's end for the parent's.
    """
    guard = [sys.executable, "-m", "tasks.supervisor", str(os.getpid()), str(grace), str(folder), *command]
    return subprocess.Popen(  # noqa: S603 (the command is the caller's own)
        guard,
        cwd=_HERE,  # so that the module is found from any repository
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def stop(guard: subprocess.Popen[bytes]) -> None:
    """Ends what `start` gave and waits until it is gone."""
    guard.terminate()
    try:
        guard.wait(GRACE + 5.0)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(guard.pid, signal.SIGKILL)
        guard.wait()


def _end(grace: float) -> NoReturn:
    """Ends the command, what it started, and the guard itself."""
    _ignore_ends()
    below = psutil.Process().children(recursive=True)
    os.killpg(0, signal.SIGTERM)
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(below, timeout=grace)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    os.killpg(0, signal.SIGKILL)
    raise AssertionError("unreachable: the guard is of the group that it killed")


def _ignore_ends() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def main() -> int:
    """Runs the command of the arguments: the parent's process id, the grace, the folder, the words of the command."""
    parent, grace, folder, *command = sys.argv[1:]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _end(float(grace)))
    die_with_parent()
    if os.getppid() != int(parent):  # it ended before the kernel was asked
        return 1
    try:
        status = subprocess.Popen(command, cwd=folder).wait()  # noqa: S603 (the command is the caller's own)
    except OSError as error:
        print(f"{command[0]} does not start: {error}", file=sys.stderr)
        return 127
    _ignore_ends()
    os.killpg(0, signal.SIGTERM)  # a finished command leaves nothing running either
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    raise SystemExit(main())
