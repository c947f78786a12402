"""Reads the data files of the embedded corpora."""

from __future__ import annotations

import csv
from pathlib import Path


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a tab-separated file as dictionaries, whose keys are the names in the first line."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE, strict=True))


def items(cell: str, separator: str = ",") -> tuple[str, ...]:
    """Return the items of a cell that holds a list; none for an empty cell."""
    return tuple(cell.split(separator)) if cell else ()
