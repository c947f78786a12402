"""Makes a corpus of a data set: slices of its splits, and an example of each row."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.corpora.example import SPLITS, UNLABELLED, Corpus, Example
from tasks.corpora.files.template import SOURCE, Template, parse_template
from tasks.corpora.hub.data_sets import DataSet
from tasks.corpora.hub.opening import open_folder, open_from_hub
from tasks.corpora.hub.settings import HubSettings, columns_of
from tasks.corpora.passages import passages
from tasks.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset, DatasetDict

_BATCH = 1000
"""Rows that are converted at once."""
_LOCK_ENDINGS = (".yaml", ".yml")
_NUL = "hold a NUL character, which is no text,"


def read(settings: HubSettings, source: Path) -> Corpus:
    """Read the three splits, and the unlabelled sources if there are such.

    Rows without a source or a reference are left out, and so are rows with a NUL character in a text, which no tokenizer
    reads; their numbers go to standard error. White space around a text is removed, and equal references of one source are
    merged.

    Args:
        settings: The data set.
        source: The lock file, for the hub; or the folder of a local copy.

    Raises:
        InputError: the data set, a split or a column is missing, a column holds no text, or no row is left of a split.
    """
    data_set, source = settings.data_set, source.expanduser()
    if source.is_dir() and not (source / "__init__.py").exists():
        splits, place = open_folder(data_set, source), str(source)
    elif source.suffix in _LOCK_ENDINGS:
        splits, place = open_from_hub(data_set, source), data_set.name
    else:
        raise InputError(
            f"{source} is neither a lock file nor a folder with data; under active in params.yaml, name data/hub.lock.yaml for "
            "a data set of the hub, or the folder of a copy"
        )
    names = [name for name in (*SPLITS, UNLABELLED) if name in data_set.splits]
    return {name: _split(splits, data_set, name, place) for name in names}


def _split(splits: DatasetDict, data_set: DataSet, name: str, place: str) -> list[Example]:
    location = f"{place}, {data_set.splits[name]}"
    rows = _sliced(splits, data_set.splits[name], f"{place}: corpus.hub.splits.{name}")
    labelled = name != UNLABELLED
    columns = columns_of(data_set, labelled=labelled and not data_set.passage_words)
    _check_columns(rows, columns, location)
    outer = {column.partition(".")[0] for column in columns if column not in rows.column_names} | {*columns}
    maker = _ExampleMaker(data_set, location, labelled=labelled)
    taken = rows.select_columns([column for column in rows.column_names if column in outer])
    if data_set.passage_words:
        texts = [text for row in _values(taken) for text in maker.texts(row, data_set.source_field)]
        whole = [text for text in texts if "\0" not in text]
        _report_left_out(location, len(rows), len(texts) - len(whole), _NUL)
        return passages("\n".join(whole), data_set.passage_words, location, "corpus.hub.passage_words")
    examples = [example for row in _values(taken) if (example := maker.example(row)) is not None]
    if not examples:
        raise InputError(f"{location}: no row has a source and a reference; set corpus.hub.splits.{name} to another split")
    _report_left_out(location, len(rows), maker.with_nul, _NUL)
    _report_left_out(location, len(rows), len(rows) - len(examples) - maker.with_nul, "have no source or no reference")
    return examples


def _report_left_out(location: str, rows: int, left_out: int, reason: str) -> None:
    if left_out:
        print(f"{location}: {left_out} of {rows} rows {reason} and are left out", file=sys.stderr)


def _sliced(splits: DatasetDict, wanted: str, setting: str) -> Dataset:
    """The rows of a split or of a slice of it, in their order."""
    import datasets

    sizes = {str(name): len(rows) for name, rows in splits.items()}
    try:
        parts = datasets.ReadInstruction.from_spec(wanted).to_absolute(sizes)
    except (ValueError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(f"{setting} is {wanted!r} ({reason}); name one of {', '.join(sizes)}, or a slice of it") from None
    found = [splits[part.splitname].select(range(part.from_, part.to)) for part in parts if part.from_ < part.to]
    if not found:
        raise InputError(f"{setting} is {wanted!r}, which has no rows; name one of {', '.join(sizes)}, or a larger slice")
    return found[0] if len(found) == 1 else datasets.concatenate_datasets(found)


def _check_columns(rows: Dataset, columns: Mapping[str, str], location: str) -> None:
    known = list(_flat_names(rows.features.arrow_schema))
    for column, setting in columns.items():
        if column not in known and not any(name.startswith(f"{column}.") for name in known):
            raise InputError(f"{location}: no column {column}; set corpus.hub, {setting}, to some of {', '.join(known)}")


def _flat_names(fields: pa.Schema | pa.StructType, prefix: str = "") -> Iterator[str]:
    import pyarrow as pa

    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _flat_names(field.type, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def _values(rows: Dataset) -> Iterator[dict[str, object]]:
    for batch in rows.iter(batch_size=_BATCH):
        names = list(batch)
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(names, values, strict=True))


class _ExampleMaker:
    """Makes examples of rows."""

    def __init__(self, data_set: DataSet, location: str, *, labelled: bool) -> None:
        self._data_set, self._location, self._labelled = data_set, location, labelled
        self.with_nul = 0
        """Rows left out for a NUL character so far."""
        pieces: Template = parse_template(data_set.template)
        self._pieces = [(text, data_set.source_field if name == SOURCE else name) for text, name in pieces]

    def example(self, row: Mapping[str, object]) -> Example | None:
        """The example of a row; None without a source or a reference, or where a text of the row holds a NUL character."""
        texts = {name: self.texts(row, name) for _, name in self._pieces if name is not None}
        named = [text for name in self._data_set.reference_fields for text in self.texts(row, name)] if self._labelled else []
        if any("\0" in text for text in [*named, *itertools.chain(*texts.values())]):
            self.with_nul += 1
            return None
        if not any(texts.values()) or not texts.get(self._data_set.source_field, [""]):
            return None
        # A list, such as the tests of a program, has one line for each of its texts.
        source = "".join(text + ("" if name is None else "\n".join(texts[name])) for text, name in self._pieces).strip()
        if not self._labelled:
            return Example(source, ())
        references = named or [self._data_set.no_reference]
        return Example(source, tuple(dict.fromkeys(references))) if any(references) else None

    def texts(self, row: Mapping[str, object], name: str) -> list[str]:
        """The texts of a column, without empty ones."""
        value = _get(row, name)
        texts = []
        for text in value if isinstance(value, list) else [value]:
            if text is not None and not isinstance(text, str):
                raise InputError(
                    f"{self._location}: column {name} contains {type(text).__name__}; it must contain strings or lists of them"
                )
            if text is not None and text.strip():
                texts.append(text.strip())
        return texts


def _get(row: Mapping[str, object], name: str) -> object:
    """The value of a column, or of `b` inside of `a` for the name `a.b`; None where a row lacks it."""
    if name in row:
        return row[name]
    outer, _, inner = name.partition(".")
    inside = row.get(outer)
    return _get(inside, inner) if inner and isinstance(inside, Mapping) else None
