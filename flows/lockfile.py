"""A lock file that names its owner: one process owns it at a time, and a note in it says which run or server that is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


class AlreadyLockedError(Exception):
    """Another process owns the file."""

    def __init__(self, note: str) -> None:
        super().__init__(note)
        self.note = note
        """The owner's note; empty if it has not written one yet."""


class LockFile:
    """A lock file that this process owns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.stale_note = path.read_text(encoding="utf-8")
        """The note of an owner that died; empty if the last one released the file."""

    def write(self, note: str) -> None:
        """Replace the note."""
        self._path.write_text(note, encoding="utf-8")


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[LockFile]:
    """Own the file until the end of the block, which empties it, or until the process dies, which leaves the note.

    Raises:
        AlreadyLockedError: another process owns it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise AlreadyLockedError(path.read_text(encoding="utf-8")) from None
    owned = LockFile(path)
    try:
        yield owned
    finally:
        owned.write("")
        lock.release()
