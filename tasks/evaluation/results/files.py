"""The files of rows and of outputs that a sweep writes while it runs; both survive any kill."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.console import log
from tasks.errors import InputError
from tasks.evaluation.results.codec import VERSION, Settings, Source, encode, parse
from tasks.evaluation.results.rows import MeasuredRow, SweepRow, TimedRow, row_from
from tasks.evaluation.settings import CHOSEN_ON
from tasks.files import append_line, atomic_write, sealed, warn_of_damage

_WORK, _SUM = b"draftline.fingerprint", b"draftline.sha256"
_NO_SUM = b"0" * 64
"""Stands in a Parquet file for its own checksum while that is computed: the bytes of the file, its metadata too."""
_PAGE_BYTES = 1 << 26
"""Of a dictionary: beyond the default of a megabyte texts would be written again for each line."""


STEM = f"{CHOSEN_ON}.T"
"""Begins the name of the split that rows at a further temperature have."""


def split_at(temperature: float) -> str:
    """The name of that split, such as `validation.T0.5`; its rows are in a file of that name."""
    return f"{STEM}{temperature:g}"


class SweepRowFile:
    """The rows of one sweep, each a line of JSON that is appended when it is known.

    Rows of another fingerprint or version, failed rows and damaged lines are dropped when the file is opened: they are measured
    again. So are all rows of a point and split but the last: a point has a row after each of its rounds.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        """Open the file, or create it with its folder.

        Args:
            path: The file.
            fingerprint: Of the settings, data and code that these rows depend on.
        """
        self.path, self.fingerprint = path, fingerprint
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[SweepRow] = []
        source, other = Source(str(path), "its point is measured again"), 0
        # What follows the last line break is a row that a killed sweep was writing.
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.is_file() else ():
            try:
                row = row_from(parse(line, source), source)
            except InputError as error:
                log.warning("%s", error)
                continue
            if isinstance(row, MeasuredRow) and row.fingerprint == fingerprint:
                self.rows.append(row)
            other += isinstance(row, TimedRow) and row.fingerprint != fingerprint
        if other:
            log.info("%s: dropped %d timed rows of other settings, data, code or hardware", path, other)
        self.compact()

    def append(self, row: SweepRow) -> SweepRow:
        """Add a row, marked with the fingerprint, and return it when it is on the disk."""
        marked = dataclasses.replace(row, fingerprint=self.fingerprint)
        append_line(self.path, row_line(marked))
        self.rows.append(marked)
        return marked

    def compact(self) -> None:
        """Write the file anew, in one step, with only the last row of each point and split."""
        kept = set({(row.split, row.method, str(row.settings)): id(row) for row in self.rows}.values())
        self.rows = [row for row in self.rows if id(row) in kept]
        atomic_write(self.path, "".join(map(row_line, self.rows)), sync=True)

    def find(self, split: str, method: str, settings: Settings) -> SweepRow | None:
        """The last row of a point on a split, if there is one."""
        wanted = split, method, settings
        return next((row for row in reversed(self.rows) if (row.split, row.method, row.settings) == wanted), None)


def row_line(row: SweepRow) -> str:
    """A row as a line of its file; fields that are None are left out."""
    return sealed(json.dumps({"version": VERSION, **encode(row, omit_null=True)}, ensure_ascii=False)) + "\n"


def point_key(method: str, settings: Settings) -> tuple[str, str]:
    """A point as the file names it."""
    return method, json.dumps(settings, ensure_ascii=False)


WORK = ("large_calls", "checked_positions", "drafter_steps")
"""What is counted of each text, in the order of `KeptOutputs.work`."""


class KeptOutputs(NamedTuple):
    """What a point gives for the examples of a split."""

    texts: Sequence[str]
    work: NDArray[np.int32]
    """`[examples, 3]`: see `WORK`."""


class HypothesisFile(dict[tuple[str, str], KeptOutputs]):
    """The outputs of a sweep's points on one split by `point_key`; written as a whole, each time under a temporary name."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        """Take over the outputs of the same work from an earlier process; those of other work, or a damaged file, are dropped.

        Args:
            path: The file; its folder must exist when it is written.
            fingerprint: Of the settings, data and code that the outputs depend on.
        """
        super().__init__()
        self.path, self._fingerprint = path, fingerprint
        try:
            if path.is_file():
                self.update(read_hypotheses(path, fingerprint))
        except (OSError, InputError) as error:
            warn_of_damage(path, error)

    def add(self, points: Mapping[tuple[str, str], KeptOutputs]) -> None:
        """Add the outputs of points, and write the file."""
        import pyarrow as pa
        from pyarrow import parquet

        if not points:
            return
        self.update(points)
        # Example by example: neighbouring lines then mostly have one text, which compresses best.
        texts = list(zip(*(one.texts for one in self.values()), strict=True))
        work = np.stack([one.work for one in self.values()], axis=1).reshape(-1, len(WORK)).astype(np.int32)
        columns = {
            "method": pa.array([method for method, _ in self] * len(texts)).dictionary_encode(),
            "settings": pa.array([settings for _, settings in self] * len(texts)).dictionary_encode(),
            "example": pa.array(np.repeat(np.arange(len(texts), dtype=np.int32), len(self))),
            "text": pa.array([text for line in texts for text in line]).dictionary_encode(),
            **dict(zip(WORK, map(pa.array, work.T), strict=True)),
        }
        table, written = pa.table(columns), pa.BufferOutputStream()
        with parquet.ParquetWriter(written, table.schema, compression="zstd", dictionary_pagesize_limit=_PAGE_BYTES) as writer:
            writer.write_table(table)
            writer.add_key_value_metadata({_WORK: self._fingerprint.encode(), _SUM: _NO_SUM})
        before, _, after = (content := written.getvalue().to_pybytes()).rpartition(_NO_SUM)
        atomic_write(self.path, before + _sum(content) + after)


def read_hypotheses(path: Path, fingerprint: str | None = None) -> dict[tuple[str, str], KeptOutputs]:
    """The outputs of each point, by `point_key`; none of other work than that of the fingerprint, where one is given.

    Raises:
        InputError: the file is damaged, or was written by another revision.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        content = path.read_bytes()
        about = parquet.read_metadata(pa.BufferReader(content)).metadata
        before, _, after = content.rpartition(about[_SUM])
        if _sum(before + _NO_SUM + after) != about[_SUM]:
            raise ValueError("it is not as it was written")
        if fingerprint is not None and about[_WORK] != fingerprint.encode():
            return {}
        table = parquet.read_table(pa.BufferReader(content))
        # Example by example, in each of them the points in one order: the first example's lines name all of them.
        count = np.count_nonzero(table.column("example").to_numpy() == 0)
        points = zip(*(table.column(name).slice(0, count).to_pylist() for name in ("method", "settings")), strict=True)
        text, work = table.column("text").to_pylist(), np.column_stack([table.column(name).to_numpy() for name in WORK])
    except (pa.ArrowException, LookupError, TypeError, ValueError, OSError):
        raise InputError(f"{path} is damaged or of another revision; remove it and sweep again: dvc repro") from None
    return {key: KeptOutputs(text[start::count], work[start::count]) for start, key in enumerate(points)}


def _sum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()
