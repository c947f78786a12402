"""Locks between processes, by `filelock`. The kernel frees them when their holder dies, so that none is ever left behind.

Whatever is timed holds a lock of the machine, so that nothing else of this project disturbs it: no other stage computes on the
same device, and no work without a device of its own, such as sending runs to MLflow, occupies the processor.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, ReadWriteLock, Timeout

_POLL_SECONDS = 0.2
_DEVICES = ("cpu", "cuda")


def timing_lock(device: str) -> contextlib.AbstractContextManager[None]:
    """Hold while something is timed: no other stage computes on the device of this machine meanwhile."""
    lock = _device_lock(device)
    return _held(lambda blocking: lock.acquire_write(blocking=blocking), lock.release, _in_use(device))


def working_lock(device: str) -> contextlib.AbstractContextManager[None]:
    """Hold while something computes untimed: such stages run concurrently, but never during a timing."""
    lock = _device_lock(device)
    return _held(lambda blocking: lock.acquire_read(blocking=blocking), lock.release, _in_use(device))


@contextlib.contextmanager
def host_lock() -> Iterator[None]:
    """Hold while the processor works for no device in particular, as `working_lock` does for each device.

    Not for a process that holds a `timing_lock`: it would wait for itself.
    """
    with contextlib.ExitStack() as locks:
        for device in _DEVICES:
            locks.enter_context(working_lock(device))
        yield


def folder_lock(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Hold while a stage works in a folder of its own: a second run would remove what the first one needs."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", poll_interval=_POLL_SECONDS)
    reason = f"another run of the same stage works in {folder}"
    return _held(lambda blocking: lock.acquire(blocking=blocking), lock.release, reason)


def _device_lock(device: str) -> ReadWriteLock:
    """One lock per user and device, the same for every process of this machine; readers share it, a writer has it alone."""
    path = Path(tempfile.gettempdir()) / f"draftline-{os.getuid()}-{device.replace(':', '')}.lock"
    return ReadWriteLock(path, is_singleton=False)


def _in_use(device: str) -> str:
    return f"another Draftline stage uses the {device} of this machine"


@contextlib.contextmanager
def _held(acquire: Callable[[bool], object], release: Callable[[], None], reason: str) -> Iterator[None]:
    """Hold a lock during the block; print one line if it has to wait for it."""
    try:
        acquire(False)
    except Timeout:
        print(f"waiting: {reason}", file=sys.stderr, flush=True)
        acquire(True)
    try:
        yield
    finally:
        release()
