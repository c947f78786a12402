"""Reads the user's files into the splits of a corpus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from tasks.corpora.example import SPLITS, UNLABELLED, Corpus, Example
from tasks.corpora.files.content import decode, paths_of, read_lines, read_running_text
from tasks.corpora.files.examples import ExampleMaker, filled
from tasks.corpora.files.held_out import hold_out
from tasks.corpora.files.records import open_records
from tasks.corpora.files.settings import PARALLEL, TEXT, FileSettings
from tasks.corpora.files.template import Template, parse_template
from tasks.corpora.passages import passages
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
            raise InputError(
                f"{columns[0][0]} is the first of {counts[0]} source files of {name}, but {columns[wrong][0]} the first of "
                f"{counts[wrong]} with references; file n of one glob must belong to file n of the other"
            )
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
            raise InputError(
                f"{folder}: train has {len(examples)} examples, of which too few sources are different to hold out {split}; "
                f"give more, or name files for {split}"
            )
        found[split] = found[split][: settings.limit.get(split, 0) or None]
    return found
