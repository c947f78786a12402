"""Locks between processes, by `filelock`. The kernel frees them when their holder dies, so that none is ever left behind.

Those of the machine are in a folder of the user's own: no other user can stall a stage. A note beside a lock names its holder.

Whatever is timed holds a lock of the machine, so that nothing else of this project disturbs it: no other stage computes on the
same device, and no work without a device of its own, such as sending runs to MLflow, occupies the processor. Training holds a
share of the machine, so that as many models train side by side as its cores and its memory hold.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, ReadWriteLock, Timeout

from tasks.console import log
from tasks.errors import InputError
from tasks.files import private_folder, user_cache

_POLL_SECONDS = 0.2
_DEVICES = ("cpu", "cuda")
_NUMBERS = itertools.count()
_LONGEST_COMMAND = 120
"""Characters of a command in a note."""


@dataclass(frozen=True)
class Share:
    """What a process takes of a machine, or what the machine has: threads, and bytes of the device's memory."""

    threads: int
    memory: int

    def __add__(self, other: Share) -> Share:
        return Share(self.threads + other.threads, self.memory + other.memory)

    def fits(self, room: Share) -> bool:
        """Whether this is at most `room`, in both respects."""
        return self.threads <= room.threads and self.memory <= room.memory


def timing_lock(device: str) -> contextlib.AbstractContextManager[None]:
    """Hold while something is timed: no other stage computes on the device of this machine meanwhile."""
    lock = _device_lock(device)
    return _held(lambda blocking: lock.acquire_write(blocking=blocking), lock.release, _in_use(device), _note(device))


def working_lock(device: str) -> contextlib.AbstractContextManager[None]:
    """Hold while something computes untimed: such stages run concurrently, but never during a timing."""
    lock = _device_lock(device)
    return _held(lambda blocking: lock.acquire_read(blocking=blocking), lock.release, _in_use(device), _note(device))


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
    return _held(lambda blocking: lock.acquire(blocking=blocking), lock.release, f"works in {folder}", folder / ".holder")


@contextlib.contextmanager
def share_lock(device: str, share: Share, room: Share) -> Iterator[None]:
    """Hold a share of a device: wait until it fits into `room` beside the shares of other processes.

    A share that is larger than the room is held alone. Take it before any other lock.
    """
    folder = _machine_file(device, "shares")
    folder.mkdir(exist_ok=True)
    # The need is in the name, since the kernel's lock is what says that its process lives.
    path = folder / f"{share.threads}-{share.memory}-{os.getpid()}-{next(_NUMBERS)}.share"
    mine, waits = FileLock(path), False
    while True:
        with FileLock(folder / ".lock"):
            held = _held_shares(folder)
            if not held or sum(held, share).fits(room):
                mine.acquire()
                break
        if not waits:
            needed = f"{share.threads} threads and {share.memory / 1e9:.1f} GB"
            log.info("waiting: %s %s; this one needs %s", _holder(_note(device)), _in_use(device), needed)
            waits = True
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        path.unlink()
        mine.release()


def _held_shares(folder: Path) -> list[Share]:
    """Return the shares of the processes that live, and remove the files of those that died."""
    held = []
    for path in folder.glob("*.share"):
        try:
            with FileLock(path, timeout=0):
                path.unlink()
        except Timeout:
            threads, memory, *_ = path.name.split("-")
            held.append(Share(int(threads), int(memory)))
    return held


def _device_lock(device: str) -> ReadWriteLock:
    """One lock per user and device, the same for every process of this machine; readers share it, a writer has it alone."""
    return ReadWriteLock(_machine_file(device, "lock"), is_singleton=False)


def _machine_file(device: str, kind: str) -> Path:
    """A file in the folder of this user and machine; in the user's own cache where someone else has made that folder.

    Raises:
        InputError: there is neither.
    """
    places = [Path(tempfile.gettempdir()) / f"draftline-{os.getuid()}"]
    with contextlib.suppress(RuntimeError):
        places.append(user_cache() / f"locks-{platform.node()}")
    folder = private_folder(*places)
    if folder is None:
        tried = " nor ".join(map(str, places))
        raise InputError(f"neither {tried} is a folder that this user alone writes to; have one removed, or set TMPDIR")
    return folder / f"{device.replace(':', '')}.{kind}"


def _note(device: str) -> Path:
    return _machine_file(device, "holder")


def _in_use(device: str) -> str:
    return f"uses the {device} of this machine"


def _holder(note: Path) -> str:
    """Who holds a lock by the note beside it; the one who wrote it last, where several do."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return note.read_text(encoding="utf-8")
    return "another Draftline stage"


@contextlib.contextmanager
def _held(acquire: Callable[[bool], object], release: Callable[[], None], what: str, note: Path) -> Iterator[None]:
    """Hold a lock during the block, and say so in a note; print one line if it has to wait for it."""
    try:
        acquire(False)
    except Timeout:
        log.info("waiting: %s %s", _holder(note), what)
        acquire(True)
    command = " ".join(" ".join(sys.orig_argv).split())
    since = time.strftime("%H:%M:%S")
    said = f"process {os.getpid()} ({command[:_LONGEST_COMMAND]}, in {Path.cwd()}, since {since})"
    note.write_text(said, encoding="utf-8")
    try:
        yield
    finally:
        release()
