"""Files of rows that survive any kill: appended one by one, and opened without what has to be measured again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from tasks.errors import InputError
from tasks.evaluation.results.codec import VERSION, Json, Source, encode, parse
from tasks.files import append_line, atomic_write

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    class _Row(DataclassInstance, Protocol):
        @property
        def fingerprint(self) -> str:
            """Of the settings, data and code that the row depends on."""


_R = TypeVar("_R", bound="_Row")


class RowFile(Generic[_R]):
    """The rows of one piece of work, each a line of JSON.

    Rows of another fingerprint or version, failed rows and damaged lines are dropped when the file is opened: they are measured
    again.
    """

    def __init__(self, path: Path, fingerprint: str, read: Callable[[Json, Source], _R | None]) -> None:
        """Open the file, or create it.

        Args:
            path: The file; its folder is created.
            fingerprint: Of the settings, data and code that these rows depend on.
            read: Returns the row that a JSON object holds; None for a failed one. Raises `InputError` for a damaged one.
        """
        self.path = path
        self.fingerprint = fingerprint
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[_R] = []
        self.replace([row for row in _intact(path, read) if row.fingerprint == fingerprint])

    def replace(self, rows: list[_R]) -> None:
        """Write the file anew, in one step."""
        atomic_write(self.path, "".join(map(row_line, rows)), sync=True)
        self.rows = rows

    def append(self, row: _R) -> _R:
        """Add a row, marked with the fingerprint, and return it when it is on the disk."""
        marked = dataclasses.replace(row, fingerprint=self.fingerprint)
        append_line(self.path, row_line(marked))
        self.rows.append(marked)
        return marked


def row_line(row: DataclassInstance) -> str:
    """Return a row as a line of its file; fields that are None are left out."""
    return json.dumps({"version": VERSION, **encode(row, omit_null=True)}, ensure_ascii=False) + "\n"


def _intact(path: Path, read: Callable[[Json, Source], _R | None]) -> Iterator[_R]:
    """Yield the rows of this version, from whole lines only."""
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else ():
        source = Source(str(path), "remove the line")
        with contextlib.suppress(InputError):
            row = read(parse(line, source), source)
            if row is not None:
                yield row
