"""Reads the user's files into the splits of a corpus."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from tasks.corpora.example import SPLITS, UNLABELLED, Corpus, Example
from tasks.corpora.files import Record, decode, open_records, paths_of, read_lines, read_running_text
from tasks.corpora.settings import PARALLEL, SOURCE, TEXT, FileSettings, Template, listed, parse_template
from tasks.errors import InputError


def read(settings: FileSettings, folder: Path) -> Corpus:
    """Read the three splits, further test sets and the unlabelled sources, as far as files for them are named.

    Examples have the order of the files. White space around a text is removed, and equal references of one source are merged.

    Raises:
        InputError: a missing, unreadable or damaged file, a split without examples, files of unequal length, an empty line,
            bytes that are not UTF-8 or NUL, a broken or incomplete record; names the file, the line and the fix.
    """
    folder = folder.expanduser()
    if not folder.exists():
        raise InputError(f"the folder {folder} does not exist; name the folder of the corpus files under active in params.yaml")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; name the folder of the corpus files under active in params.yaml")
    corpus: Corpus = {}
    for name, names in settings.names().items():
        paths = [paths_of(folder, one) for one in names]
        kind, limit = settings.format_of(names), settings.limit.get(name.partition(".")[0], 0) or None
        if name == UNLABELLED:
            # Each column of parallel text is a file of its own here: there are no references.
            groups = [[path] for found in paths for path in found]
            corpus[name] = [one for group in groups for one in islice(_examples(group, kind, settings, name), limit)]
        else:
            corpus[name] = list(islice(_split(paths, kind, settings, name), limit))
    if missing := [split for split in SPLITS if split not in corpus]:
        corpus |= _held_out(corpus["train"], missing, settings, folder)
    return corpus


def _split(columns: Sequence[Sequence[Path]], kind: str, settings: FileSettings, name: str) -> Iterator[Example]:
    if kind == PARALLEL:
        counts = [len(paths) for paths in columns]
        if len({*counts}) > 1:
            wrong = next(index for index, count in enumerate(counts) if count != counts[0])
            said = f"{columns[0][0]} is the first of {counts[0]} source files of {name}"
            other = f"{columns[wrong][0]} the first of {counts[wrong]} with references"
            raise InputError(f"{said}, but {other}; file n of one glob must belong to file n of the other")
        groups = list(zip(*columns, strict=True))
    else:
        groups = [(path,) for paths in columns for path in paths]
    for group in groups:
        yield from _examples(group, kind, settings, name)


def _examples(paths: Sequence[Path], kind: str, settings: FileSettings, name: str) -> Iterator[Example]:
    """The examples of one file, or of the files of a source and its references."""
    if kind == PARALLEL:
        yield from _parallel(paths, parse_template(settings.template))
        return
    if kind == TEXT:
        for path in paths:
            yield from passages(read_running_text(path), settings.passage_words, str(path), "corpus.files.passage_words")
        return
    maker = ExampleMaker(settings, labelled=name != UNLABELLED)
    (path,) = paths
    table = open_records(path, kind, maker.wanted)
    if table.columns is not None:
        maker.check(table.columns, str(path), "column")
    number = -1
    for number, record in enumerate(table.records):  # noqa: B007 (tells an empty table)
        yield maker.example(record)
    if number < 0:
        raise InputError(f"{path} has a header alone; a split needs at least one example")


def _parallel(paths: Sequence[Path], template: Template) -> Iterator[Example]:
    columns = [read_lines(path) for path in paths]
    for path, column in zip(paths[1:], columns[1:], strict=True):
        if len(column) != len(columns[0]):
            counts = f"{paths[0]} has {len(columns[0])} lines and {path} has {len(column)}"
            raise InputError(f"{counts}; line n of one file must translate or summarise line n of the other")
    for number, row in enumerate(zip(*columns, strict=True), start=1):
        source, *references = (decode(raw, path, number).strip() for raw, path in zip(row, paths, strict=True))
        yield Example(filled(template, source), tuple(dict.fromkeys(references)))


def _held_out(examples: Sequence[Example], missing: Sequence[str], settings: FileSettings, folder: Path) -> Corpus:
    found = hold_out(examples, missing, settings.held_out)
    for split in missing:
        if not found[split]:
            said = f"{folder}: train has {len(examples)} examples, of which too few sources are different to hold out {split}"
            raise InputError(f"{said}; give at least {2 * _LARGEST_SHARE}, or name files for {split}")
        found[split] = found[split][: settings.limit.get(split, 0) or None]
    return found


_MISSING = object()
_LONGEST_NAME = 40
"""Characters of a column's name in an error: where a table has no header, a name is a sentence."""


class ExampleMaker:
    """Makes examples of records."""

    def __init__(self, settings: FileSettings, *, labelled: bool = True) -> None:
        """Take the names of fields and the template; of unlabelled records only the source is read."""
        self._settings = settings
        self._labelled = labelled
        self._pieces = parse_template(settings.template)
        self._fields = [self._field(name) for _, name in self._pieces if name is not None]

    @property
    def wanted(self) -> set[str]:
        """The fields that are used."""
        return {*self._fields, *(self._settings.reference_names if self._labelled else ())}

    def check(self, known: Collection[str] | Mapping[str, object], location: str, noun: str = "field") -> None:
        """Check that a record, or the header of a table, has the fields that examples are made of.

        Raises:
            InputError: names the field that is missing and those that there are.
        """
        names = self._settings.reference_names
        unlabelled = self._labelled and not any(_has(known, name) for name in names)
        for name in self._fields:
            if not _has(known, name):
                what = "source_field" if name == self._settings.source_field else "the names in template"
                also = f", and reference_fields, as there is no {listed(names)} either" if unlabelled else ""
                raise InputError(f"{location}: no {noun} {name}; set {what} to one of {_shown(known)}{also}")
        if unlabelled:
            raise InputError(f"{location}: no {noun} {listed(names)}; set reference_fields to some of {_shown(known)}")

    def example(self, record: Record) -> Example:
        """The example of one record, white space around its texts removed and equal references merged.

        Raises:
            InputError: a field is missing, empty or no text; names the place.
        """
        values, location = record.values, record.location
        self.check(values, location)
        texts = {name: self._source_text(values, name, location) for name in dict.fromkeys(self._fields)}
        source = "".join(literal + ("" if name is None else texts[self._field(name)]) for literal, name in self._pieces).strip()
        if not source:
            raise InputError(f"{location}: all fields of the template are empty; fill one, or remove the line")
        if not self._labelled:
            return Example(source, ())
        present = [name for name in self._settings.reference_names if _has(values, name)]
        if self._settings.has_usual_references:
            present = present[:1]
        references = [text for name in present for text in _texts(field_of(values, name), name, location, several=True)]
        return Example(source, tuple(dict.fromkeys(references)))

    def _source_text(self, values: Mapping[str, object], name: str, location: str) -> str:
        """A field of the source; one that only the template names may be empty, as some inputs of instructions are."""
        value = field_of(values, name)
        if name != self._settings.source_field and isinstance(value, str) and not value.strip():
            return ""
        (text,) = _texts(value, name, location, several=False)
        return text

    def _field(self, name: str) -> str:
        return self._settings.source_field if name == SOURCE else name


def filled(template: Template, source: str) -> str:
    """The text of a template that names the source alone."""
    return "".join(literal + ("" if name is None else source) for literal, name in template).strip()


def _shown(names: Iterable[str]) -> str:
    return listed(name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}…" for name in names)


def field_of(known: Mapping[str, object], name: str, missing: object = None) -> object:
    """The value of a field, or of `b` inside of `a` for the name `a.b`; `missing` where there is none."""
    if name in known:
        return known[name]
    outer, _, inner = name.partition(".")
    inside = known.get(outer)
    return field_of(inside, inner, missing) if inner and isinstance(inside, Mapping) else missing


def _has(known: Collection[str] | Mapping[str, object], name: str) -> bool:
    """Whether there is such a field; of the columns of a table only the outer ones are known."""
    if isinstance(known, Mapping):
        return field_of(known, name, _MISSING) is not _MISSING
    return name in known or name.partition(".")[0] in known


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
        if "\0" in text:
            raise InputError(f"{location}: {field} holds a NUL character, which is no text; remove it")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise InputError(f"{location}: {field} contains half of a surrogate pair; write the whole character") from None
        texts.append(text.strip())
    if not texts:
        raise InputError(f"{location}: {field} is an empty list; give at least one text, or remove the line")
    return texts


_LARGEST_SHARE = 10
"""A held-out split takes at most one source of so many."""


def hold_out(examples: Sequence[Example], names: Sequence[str], most: int) -> dict[str, list[Example]]:
    """Split examples into `train` and further splits by a hash of their sources, which is the same everywhere.

    All examples of a source go to one split. Sources that differ in case or white space alone count as one.

    Args:
        examples: All of them.
        names: Of the splits to hold out.
        most: Sources of each such split, at most; a tenth of all sources is another limit.

    Returns:
        The splits, `train` first, each in the order of `examples`; a split is empty where there are too few sources. Of equal
        examples a held-out split has one, for intervals take its examples for independent.
    """
    keys = [_key(example.source) for example in examples]
    ordered = sorted({*keys})
    size = min(most, len(ordered) // _LARGEST_SHARE)
    split_of = {key: name for index, name in enumerate(names) for key in ordered[index * size : (index + 1) * size]}
    found: dict[str, list[Example]] = {name: [] for name in ("train", *names)}
    for key, example in zip(keys, examples, strict=True):
        found[split_of.get(key, "train")].append(example)
    return {name: part if name == "train" else list(dict.fromkeys(part)) for name, part in found.items()}


def _key(source: str) -> bytes:
    return hashlib.sha256(" ".join(source.split()).casefold().encode()).digest()


def passages(text: str, size: int, location: str, setting: str) -> list[Example]:
    """Cut a text into passages of equal length; a shorter rest is left out.

    Args:
        text: The text; words are what white space separates, and the white space inside a half is kept.
        size: Words of a passage.
        location: Of the text, for an error.
        setting: What sets `size`, for an error.

    Raises:
        InputError: the text has fewer words than a passage.
    """
    words = [(word.start(), word.end()) for word in re.finditer(r"\S+", text)]
    half = size // 2
    begins = range(0, len(words) - size + 1, size)
    if not begins:
        raise InputError(f"{location}: has {len(words)} words, fewer than a passage of {size}; lower {setting}")
    return [
        Example(text[words[at][0] : words[at + half - 1][1]], (text[words[at + half][0] : words[at + size - 1][1]],))
        for at in begins
    ]
