"""A file that one process holds at a time, with a note in it about who does."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO


class AlreadyLockedError(Exception):
    """Another process holds the file; the argument is its note."""

    def __init__(self, note: str) -> None:
        super().__init__(note)
        self.note = note


class LockFile:
    """A held file."""

    def __init__(self, file: TextIO) -> None:
        file.seek(0)
        self.left = file.read()
        """The note of a holder that died; empty where the last one ended well."""
        self._file = file

    def write(self, note: str) -> None:
        """Replaces the note."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(note)
        self._file.flush()


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[LockFile]:
    """Holds the file until the end of the block or of the process, and empties it in the first case.

    Raises:
        AlreadyLockedError: another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise AlreadyLockedError(file.read()) from None
        held = LockFile(file)
        try:
            yield held
        finally:
            held.write("")
