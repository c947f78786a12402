"""Rows of compared drafters, one JSON object a line, appended so that a finished row survives any kill."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tasks.bench.timing import Found
from tasks.files import atomic_write

Row = Found


class RowFile:
    """The rows of one comparison. A row with another fingerprint, or with an error, is dropped when the file is opened."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path = path
        self.fingerprint = fingerprint
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows = [row for row in read_rows(path) if row.get("fingerprint") == fingerprint and "error" not in row]
        atomic_write(path, "".join(_line(row) for row in self.rows), sync=True)

    def find(self, **wanted: object) -> Row | None:
        """The last row whose fields have these values, if there is one."""
        return next((row for row in reversed(self.rows) if all(row.get(name) == value for name, value in wanted.items())), None)

    def append(self, row: Row) -> Row:
        """Adds a row, and returns when it is on the disk."""
        row = {**row, "fingerprint": self.fingerprint}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row))
            file.flush()
            os.fsync(file.fileno())
        self.rows.append(row)
        return row


def read_rows(path: Path) -> list[Row]:
    """All whole rows of a file; an unfinished last line, which a kill leaves behind, is not a row."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):
        try:
            rows.append(json.loads(line))
        except (json.JSONDecodeError, UnicodeDecodeError):
            continue
    return rows


def _line(row: Row) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
