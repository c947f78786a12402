"""Settings of the user's files: their names, format and columns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath

from tasks.corpora.example import SPLITS, UNLABELLED
from tasks.corpora.files.template import SOURCE, parse_template
from tasks.settings import setting, settings

AUTO, PARALLEL, TEXT, JSONL, CSV, TSV, PARQUET = "auto", "parallel", "text", "jsonl", "csv", "tsv", "parquet"
_ENDINGS = {".jsonl": JSONL, ".ndjson": JSONL, ".csv": CSV, ".tsv": TSV, ".parquet": PARQUET}
TEST = "test"
_REFERENCES = ["references"]
_TEST_SET_NAME = re.compile(r"\w[\w-]*", re.ASCII)

Names = str | list[str]
"""One file, or several; a name may be a glob."""


@settings
class FileSettings:
    """The names and the format of the user's files."""

    format: str = setting(
        default=AUTO,
        description="Format: parallel (aligned plain-text files, one sentence per line), jsonl (one JSON object per line), "
        "csv, tsv, parquet, text (running text for a language model, cut into passages); auto goes by the ending of the names "
        "(.jsonl, .ndjson, .csv, .tsv, .parquet; all others are parallel). Files of every format may be gzip-compressed.",
        choices=(AUTO, PARALLEL, TEXT, JSONL, CSV, TSV, PARQUET),
    )
    files: dict[str, Names | dict[str | int, Names]] = setting(
        description="File names for train, validation and test: a string or a list. A name may be a glob, whose files follow "
        "one another in sorted order. parallel: the source file, then one or more files of references; other formats: files "
        "that follow one another. test may also map the names of several test sets to their files, the main one first. "
        "Without validation or test, examples of train are held out. unlabelled may name files with sources only, for the "
        "large model to label."
    )
    source_field: str = setting(default="source", description="Field or column with the source text; a.b is b inside of a.")
    reference_fields: list[str] = setting(
        default_factory=lambda: list(_REFERENCES),
        description="Fields or columns with references, each a string or a list of strings. An example has at least one of "
        "them; models train on its first reference. The default also takes reference or target in place of references.",
    )
    template: str = setting(
        default="",
        description="Text that the models read in place of a source, such as 'translate German to English: {source}'. "
        "{source} is the source, any other name in braces a field or column; empty: the source itself.",
    )
    passage_words: int = setting(
        "text only: words of a passage. The first half is the source; the second half is the reference, whose tokens the "
        "metric perplexity scores.",
        default=384,
        unit="words",
        ge=2,
        le=10_000,
    )
    held_out: int = setting(
        default=1000,
        description="Size of a validation or test split that names no file: its sources are taken from train by a fixed hash, "
        "with all their examples; at most a tenth of train's.",
        unit="sources",
        ge=1,
    )
    limit: dict[str, int] = setting(
        default_factory=dict,
        description="For quick trials: number of examples taken from the start of a split, or of each unlabelled file; 0 or "
        "no entry: all.",
        unit="examples",
    )

    @property
    def reference_names(self) -> list[str]:
        """`reference_fields`, or the usual names where it has its default: the first that a record has counts."""
        return [*_REFERENCES, "reference", "target"] if self.has_usual_references else self.reference_fields

    @property
    def has_usual_references(self) -> bool:
        """Whether `reference_fields` has its default."""
        return self.reference_fields == _REFERENCES

    @property
    def test_sets(self) -> list[str]:
        """The names of the test sets, the main one first; empty where test has no names."""
        test = self.files.get(TEST)
        return [str(name) for name in test] if isinstance(test, dict) else []

    @property
    def is_held_out(self) -> bool:
        """Whether validation or test is taken from train."""
        return not {*SPLITS} <= {*self.files}

    def names(self) -> dict[str, list[str]]:
        """The names of the files of each split, and of each test set after the main one as `test.NAME`."""
        found: dict[str, list[str]] = {}
        for split in sorted(self.files, key=[*SPLITS, UNLABELLED].index):
            given = self.files[split]
            if not isinstance(given, dict):
                found[split] = _as_list(given)
                continue
            for number, (name, names) in enumerate(given.items()):
                found[f"{split}.{name}" if number else split] = _as_list(names)
        return found

    def format_of(self, names: Iterable[str]) -> str:
        """The format of files that belong together.

        Raises:
            ValueError: their endings are of several formats.
        """
        if self.format != AUTO:
            return self.format
        formats = {_ENDINGS.get(PurePath(name.removesuffix(".gz")).suffix.lower(), PARALLEL) for name in names}
        if len(formats) > 1:
            raise ValueError(f"{listed(names)} have endings of several formats ({listed(sorted(formats))}); name files of one")
        return formats.pop()

    def validate(self) -> None:
        """Raise `ValueError` for wrong splits, a wrong number of files, empty field names, a wrong template or limit."""
        if not {"train"} <= {*self.files} <= {*SPLITS, UNLABELLED}:
            raise ValueError(
                f"files has {listed(self.files)}; it must have train, and may have validation, {TEST} and {UNLABELLED}"
            )
        self._check_test_sets()
        for split, names in self.names().items():
            self._check_names(split, names)
        for split, count in self.limit.items():
            if split not in {*self.files, *SPLITS} or count < 0:
                given = listed(dict.fromkeys([*SPLITS, *self.files]))
                raise ValueError(f"limit.{split} is {count}; limit takes counts of at least 0 for {given}")

    def _check_test_sets(self) -> None:
        for split, given in self.files.items():
            if isinstance(given, dict) and split != TEST:
                raise ValueError(
                    f"files.{split} is a mapping; only test may be one, from the names of test sets to their files"
                )
        if self.files.get(TEST) == {}:
            raise ValueError("files.test names no test set; give it files, or a mapping from names of test sets to files")
        for name in self.test_sets:
            if not _TEST_SET_NAME.fullmatch(name):
                raise ValueError(f"files.test has a test set {name!r}; a name has letters, digits, - and _ only")

    def _check_names(self, split: str, names: list[str]) -> None:
        if not names or not all(names):
            raise ValueError(f"files.{split} names no file; name one, or remove the entry")
        kind = self.format_of(names)
        if kind == TEXT:
            self._check_text(split)
            return
        columns = sorted({name for _, name in parse_template(self.template) if name is not None} - {SOURCE})
        if kind != PARALLEL:
            if not (self.source_field and self.reference_fields and all(self.reference_fields)):
                raise ValueError(f"source_field or reference_fields is empty; {kind} needs the name of each field")
        elif split != UNLABELLED and len(names) < 2:
            raise ValueError(f"files.{split} names {len(names)} file(s); parallel text needs a source and a reference")
        elif columns:
            raise ValueError(
                f"template names {listed(columns)}, but parallel text has no columns; it may name {{source}} alone"
            )

    def _check_text(self, split: str) -> None:
        if split == UNLABELLED:
            raise ValueError("files.unlabelled is for sources alone, and a passage of text has a reference; add it to train")
        if parse_template(self.template) != parse_template(""):
            raise ValueError("template is set, but text has no fields to fill it with; remove it")


def _as_list(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else names


def listed(names: Iterable[str]) -> str:
    """The names with commas between them, or `nothing`."""
    return ", ".join(names) or "nothing"
