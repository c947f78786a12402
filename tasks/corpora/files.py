"""Reads the user's own files: aligned plain text with one sentence per line, or JSON Lines.

Lines end at line feeds only. `str.splitlines` also splits at Unicode separators, which occur inside real sentences; splitting
there would misalign the two files of a pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tasks.corpora.example import SPLITS, UNLABELLED, Corpus, Example
from tasks.errors import InputError
from tasks.settings import setting, settings

PARALLEL = "parallel"
JSONL = "jsonl"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@settings
class FileSettings:
    """The names and the format of the user's files."""

    format: str = setting(
        default=PARALLEL,
        description="Format: parallel (aligned plain-text files, one sentence per line) or jsonl (one JSON object per line).",
        choices=(PARALLEL, JSONL),
    )
    files: dict[str, list[str]] = setting(
        description="File names for train, validation and test. parallel: the source file, then one or more files of "
        "references; jsonl: one file. unlabelled may name files with sources only, for the large model to label (jsonl: only "
        "source_field is read)."
    )
    source_field: str = setting(default="source", description="jsonl: field with the source text.")
    reference_fields: list[str] = setting(
        default_factory=lambda: ["references"],
        description="jsonl: fields with references, each a string or a list of strings. A line has at least one of them; "
        "models train on its first reference.",
    )
    limit: dict[str, int] = setting(
        default_factory=dict,
        description="For quick trials: number of examples taken from the start of a split, or of each unlabelled file; 0 or "
        "no entry: all.",
        unit="examples",
    )

    def validate(self) -> None:
        """Raise `ValueError` for wrong splits, a wrong number of files, empty field names or wrong limits."""
        if sorted({*self.files} - {UNLABELLED}) != sorted(SPLITS):
            raise ValueError(f"files has {_listed(self.files)}; it must have {_listed(SPLITS)}, and may have {UNLABELLED}")
        if not self.files.get(UNLABELLED, [""]):
            raise ValueError(f"files.{UNLABELLED} names no file; name one of sources, or remove the entry")
        for split in SPLITS:
            names = self.files[split]
            if self.format == PARALLEL and len(names) < 2:
                raise ValueError(f"files.{split} names {len(names)} file(s); parallel text needs a source and a reference")
            if self.format == JSONL and len(names) != 1:
                raise ValueError(f"files.{split} names {len(names)} files; jsonl needs exactly one")
        if self.format == JSONL and not (self.source_field and self.reference_fields and all(self.reference_fields)):
            raise ValueError("source_field or reference_fields is empty; jsonl needs the name of each field")
        for split, count in self.limit.items():
            if split not in self.files or count < 0:
                raise ValueError(f"limit.{split} is {count}; limit takes counts of at least 0 for {_listed(self.files)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) if names else "nothing"


def _lines(path: Path) -> list[bytes]:
    """Return the raw lines of a file, without line ends, carriage returns and byte order mark."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist; check the folder under active and the names under files in params.yaml"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); it must be a readable file") from None
    lines = content.removeprefix(_BYTE_ORDER_MARK).split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not lines:
        raise InputError(f"{path} is empty; a split needs at least one example")
    return [line.removesuffix(b"\r") for line in lines]


def _decode(raw: bytes, path: Path, number: int) -> str:
    try:
        text = raw.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        position = f"byte {error.start + 1} of the line"
        raise InputError(f"{path}, line {number}: not UTF-8 ({position}); save the file as UTF-8") from None
    if not text:
        raise InputError(f"{path}, line {number}: the line is empty; fill it, or remove the example")
    return text


def _read_parallel(paths: list[Path], limit: int) -> list[Example]:
    columns = [_lines(path) for path in paths]
    for path, column in zip(paths[1:], columns[1:], strict=True):
        if len(column) != len(columns[0]):
            counts = f"{paths[0]} has {len(columns[0])} lines and {path} has {len(column)}"
            raise InputError(f"{counts}; line n of one file must translate or summarise line n of the other")
    rows = list(zip(*columns, strict=True))[: limit or None]
    examples = []
    for number, row in enumerate(rows, start=1):
        source, *references = (_decode(raw, path, number) for raw, path in zip(row, paths, strict=True))
        examples.append(Example(source, tuple(dict.fromkeys(references))))
    return examples


def _texts(value: object, field: str, location: str, several: bool) -> list[str]:
    """Return the non-empty strings in a field: one string or, if `several` is true, also a list of strings."""
    given = value if several and isinstance(value, list) else [value]
    wanted = "a string or a list of strings" if several else "a string"
    texts = []
    for text in given:
        if not isinstance(text, str):
            raise InputError(f"{location}: {field} contains {type(text).__name__}; it must be {wanted}")
        if not text.strip():
            raise InputError(f"{location}: {field} is empty; fill it, or remove the line")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(f"{location}: {field} contains half of a surrogate pair; write the whole character") from None
        texts.append(text.strip())
    if not texts:
        raise InputError(f"{location}: {field} is an empty list; give at least one text, or remove the line")
    return texts


def _parse(line: str, location: str, settings: FileSettings, labelled: bool) -> Example:
    try:
        record = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else "nested too deeply"
        raise InputError(f"{location}: not valid JSON ({reason}); each line must be one JSON object") from None
    if not isinstance(record, dict):
        raise InputError(f"{location}: contains {type(record).__name__}; each line must be one JSON object")
    if settings.source_field not in record:
        raise InputError(f"{location}: no field {settings.source_field}; set source_field to one of {_listed(record)}")
    (source,) = _texts(record[settings.source_field], settings.source_field, location, several=False)
    if not labelled:
        return Example(source, ())
    present = [field for field in settings.reference_fields if field in record]
    if not present:
        wanted = _listed(settings.reference_fields)
        raise InputError(f"{location}: no field {wanted}; set reference_fields to some of {_listed(record)}")
    references = [text for field in present for text in _texts(record[field], field, location, several=True)]
    return Example(source, tuple(dict.fromkeys(references)))


def _read_jsonl(path: Path, limit: int, settings: FileSettings, *, labelled: bool = True) -> list[Example]:
    lines = [_decode(raw, path, number) for number, raw in enumerate(_lines(path)[: limit or None], start=1)]
    return [_parse(line, f"{path}, line {number}", settings, labelled) for number, line in enumerate(lines, start=1)]


def _read_unlabelled(path: Path, limit: int, settings: FileSettings) -> list[Example]:
    if settings.format == PARALLEL:
        return _read_parallel([path], limit)
    return _read_jsonl(path, limit, settings, labelled=False)


def read(settings: FileSettings, folder: Path) -> Corpus:
    """Read the three splits and the unlabelled sources, if files for them are named, in the order of the files.

    White space around a text is removed, and equal references of one source are merged.

    Raises:
        InputError: a missing or unreadable file, a split without examples, files of unequal length, an empty line,
            bytes that are not UTF-8, a broken or incomplete JSON line; names the file, the line and the fix.
    """
    folder = folder.expanduser()
    if not folder.exists():
        raise InputError(f"the folder {folder} does not exist; name the folder of the corpus files under active in params.yaml")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; name the folder of the corpus files under active in params.yaml")
    corpus: Corpus = {}
    parallel = settings.format == PARALLEL
    for split in sorted(settings.files, key=[*SPLITS, UNLABELLED].index):
        paths, limit = [folder / name for name in settings.files[split]], settings.limit.get(split, 0)
        if split == UNLABELLED:
            corpus[split] = [example for path in paths for example in _read_unlabelled(path, limit, settings)]
        else:
            corpus[split] = _read_parallel(paths, limit) if parallel else _read_jsonl(paths[0], limit, settings)
    return corpus
