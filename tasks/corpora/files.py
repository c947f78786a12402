"""The user's files: names and globs, gzip, and records of JSON Lines, CSV, TSV and Parquet, with the line of every mistake."""

from __future__ import annotations

import csv
import glob
import gzip
import io
import json
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tasks.corpora.settings import CSV, JSONL, TSV
from tasks.errors import InputError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP = b"\x1f\x8b"
_ARCHIVES = {0: (b"PK\x03\x04", b"BZh9", b"\xfd7zXZ\x00", b"7z\xbc\xaf\x27\x1c", b"\x28\xb5\x2f\xfd"), 257: (b"ustar",)}
"""How archives begin, and what stands at that byte of a tar."""
_LARGEST_GROWTH, _LARGEST_SMALL = 200, 1 << 28
"""How much larger than its gzip a text may be, and bytes up to which any growth is allowed: gzip itself reaches 1,000."""


def paths_of(folder: Path, name: str) -> list[Path]:
    """The file of that name, or the files that a glob matches, in sorted order.

    Raises:
        InputError: a glob matches nothing.
    """
    path = folder / name
    if path.exists() or not glob.has_magic(name):
        return [path]
    # Path.glob takes no absolute names.
    matches = sorted(glob.glob(name, root_dir=folder, recursive=True))  # noqa: PTH207
    found = [folder / one for one in matches if (folder / one).is_file()]
    if not found:
        raise InputError(f"{path} matches no file; check the folder under active and the names under files in params.yaml")
    return found


def read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if it is gzip.

    Raises:
        InputError: the file is missing, unreadable, empty or damaged.
    """
    try:
        content = path.read_bytes()
        if content.startswith(_GZIP):
            most = max(_LARGEST_GROWTH * len(content), _LARGEST_SMALL)
            with gzip.open(path) as file:
                content = file.read(most + 1)
            if len(content) > most:
                fix = "decompress it by hand"
                raise InputError(f"{path} holds over {_LARGEST_GROWTH} times its own size, as no text does; {fix}")
    except FileNotFoundError:
        fix = "check the folder under active and the names under files in params.yaml"
        raise InputError(f"{path} does not exist; {fix}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}); compress it again with gzip") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); it must be a readable file") from None
    if any(content.startswith(begins, position) for position, begins in _ARCHIVES.items()):
        raise InputError(f"{path} is an archive, which is not opened here; unpack it and name its files")
    if not content.removeprefix(_BYTE_ORDER_MARK):
        raise InputError(f"{path} is empty; a split needs at least one example")
    return content


def read_text(path: Path) -> bytes:
    """The content of a text file without its byte order mark.

    Raises:
        InputError: see `read_bytes`; or the file holds a NUL byte, which is no text.
    """
    content = read_bytes(path).removeprefix(_BYTE_ORDER_MARK)
    if (position := content.find(b"\0")) >= 0:
        line = content.count(b"\n", 0, position) + 1
        raise InputError(f"{path}, line {line}: holds a NUL byte, which is no text; save the file as UTF-8 text")
    return content


def read_lines(path: Path) -> list[bytes]:
    """The raw lines of a file, without line ends and carriage returns.

    Lines end at line feeds only. `str.splitlines` also splits at Unicode separators, which occur inside real sentences;
    splitting there would misalign the two files of a pair.

    Raises:
        InputError: see `read_text`.
    """
    lines = read_text(path).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def read_running_text(path: Path) -> str:
    """The text of a whole file, in which empty lines are allowed.

    Raises:
        InputError: see `read_text`; or it is not UTF-8.
    """
    content = read_text(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        before = content[: error.start].split(b"\n")
        position = f"byte {len(before[-1]) + 1} of the line"
        raise InputError(f"{path}, line {len(before)}: not UTF-8 ({position}); save the file as UTF-8") from None


def decode(raw: bytes, path: Path, number: int) -> str:
    """The text of a line.

    Raises:
        InputError: the line is not UTF-8, or empty.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        position = f"byte {error.start + 1} of the line"
        raise InputError(f"{path}, line {number}: not UTF-8 ({position}); save the file as UTF-8") from None
    if not text.strip():
        raise InputError(f"{path}, line {number}: the line is empty; fill it, or remove the example")
    return text


_DELIMITERS = ",;\t"
_LONGEST_FIELD = 1 << 30
"""Characters of a CSV field; the library's own limit is shorter than a long document."""


@dataclass(frozen=True)
class Record:
    """One row or line of a file."""

    location: str
    values: Mapping[str, object]


@dataclass(frozen=True)
class Records:
    """A file of records, read as they are taken."""

    records: Iterator[Record]
    columns: list[str] | None = None
    """Of a table; None where every record has its own."""


def open_records(path: Path, kind: str, wanted: Collection[str]) -> Records:
    """The records of a file.

    Args:
        path: The file.
        kind: Its format, any but parallel.
        wanted: The names of the columns that are used; Parquet reads no others.

    Raises:
        InputError: the file is missing, damaged or empty, or, as records are taken, one of them is broken.
    """
    if kind == JSONL:
        return Records(_json_lines(path))
    if kind in (CSV, TSV):
        return _rows(path, quoted=kind == CSV)
    return _parquet(path, wanted)


def _json_lines(path: Path) -> Iterator[Record]:
    for number, raw in enumerate(read_lines(path), start=1):
        location = f"{path}, line {number}"
        try:
            record = json.loads(decode(raw, path, number).strip())
        except (json.JSONDecodeError, RecursionError) as error:
            reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "nested too deeply"
            raise InputError(f"{location}: not valid JSON ({reason}); each line must be one JSON object") from None
        if not isinstance(record, dict):
            raise InputError(f"{location}: contains {type(record).__name__}; each line must be one JSON object")
        yield Record(location, record)


def _rows(path: Path, *, quoted: bool) -> Records:
    """A table with a header: CSV with quotes (RFC 4180), or TSV, in which a quote is a character like any other."""
    rows = _csv_rows(path) if quoted else _tsv_rows(path)
    _, header = next(rows, (0, [""]))
    columns = [name.strip() for name in header]
    if not all(columns) or len({*columns}) < len(columns):
        raise InputError(f"{path}: the header has {', '.join(map(repr, columns))}; give each column a name of its own")

    def records() -> Iterator[Record]:
        for number, row in rows:
            location = f"{path}, line {number}"
            if len(row) != len(columns):
                fix = "put quotes around a text that holds one" if quoted else "a text may hold none"
                raise InputError(
                    f"{location}: has {len(row)} fields, but the header has {len(columns)}; separators separate fields, {fix}"
                )
            yield Record(location, dict(zip(columns, row, strict=True)))

    return Records(records(), columns)


def _tsv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    for number, raw in enumerate(read_lines(path), start=1):
        yield number, decode(raw, path, number).split("\t")


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The line number and the fields of each row; blank lines are left out."""
    text = read_running_text(path)
    header = text.partition("\n")[0]
    # A table without a comma in its header was written where numbers have decimal commas, or by hand with tabs.
    delimiter = next((one for one in _DELIMITERS if one in header), ",")
    csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    begins = 1
    try:
        for row in reader:
            if row:
                yield begins, row
            begins = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}, line {begins}: not valid CSV ({error}); write a quote inside of quotes twice") from None


def _parquet(path: Path, wanted: Collection[str]) -> Records:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(pa.BufferReader(read_bytes(path)))
        columns = [str(name) for name in file.schema_arrow.names]
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a Parquet file ({' '.join(str(error).split())}); write it again") from None
    used = [name for name in columns if name in wanted or any(one.startswith(f"{name}.") for one in wanted)]

    def records() -> Iterator[Record]:
        number = 0
        try:
            for batch in file.iter_batches(columns=used):
                for values in batch.to_pylist():
                    number += 1
                    yield Record(f"{path}, row {number}", values)
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())
            raise InputError(f"{path} is damaged after row {number} ({reason}); write it again") from None

    return Records(records(), columns)
