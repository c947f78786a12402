"""Settings of the corpus of a task: the embedded corpus, the user's files, or a data set of the hub."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable
from dataclasses import replace
from pathlib import PurePath

from tasks.corpora.data_sets import DATA_SETS, DataSet
from tasks.corpora.example import SPLITS, UNLABELLED
from tasks.settings import SEEDS, setting, settings

SOURCE = "source"
"""Stands for the source text in a template, whatever its column is called."""

Template = list[tuple[str, str | None]]
"""Pieces in order: a literal text and the name that follows it, which the last piece may lack."""


def parse_template(template: str) -> Template:
    """The pieces of a template; an empty one is the source itself.

    Raises:
        ValueError: a brace is not closed, a name is missing or carries a format, or there is no name at all.
    """
    try:
        parsed = list(string.Formatter().parse(template or f"{{{SOURCE}}}"))
    except ValueError as error:
        raise ValueError(f"template is {template!r}: {error}; write {{{{ and }}}} for braces of the text") from None
    for _, name, form, conversion in parsed:
        if name is not None and (not name.strip() or form or conversion):
            raise ValueError(f"template is {template!r}; braces hold the name of a column alone, such as {{{SOURCE}}}")
    if all(name is None for _, name, _, _ in parsed):
        raise ValueError(f"template is {template!r}, the same text for every example; it must name {{{SOURCE}}} or columns")
    return [(literal, name) for literal, name, _, _ in parsed]


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

    def names(self) -> dict[str, list[str]]:
        """The names of the files of each split, and of each test set after the main one as `test.NAME`."""
        found: dict[str, list[str]] = {}
        for split in sorted(self.files, key=[*SPLITS, UNLABELLED].index):
            given = self.files[split]
            for number, (name, names) in enumerate((given if isinstance(given, dict) else {split: given}).items()):
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
            fix = f"it must have train, and may have validation, {TEST} and {UNLABELLED}"
            raise ValueError(f"files has {listed(self.files)}; {fix}")
        for split, given in self.files.items():
            if isinstance(given, dict) and split != TEST:
                raise ValueError(f"files.{split} is a mapping; only test may be one, from names of test sets to their files")
        if self.files.get(TEST) == {}:
            raise ValueError("files.test names no test set; give it files, or a mapping from names of test sets to files")
        for name in self.test_sets:
            if not _TEST_SET_NAME.fullmatch(name):
                raise ValueError(f"files.test has a test set {name!r}; a name has letters, digits, - and _ only")
        for split, names in self.names().items():
            self._check_names(split, names)
        for split, count in self.limit.items():
            if split not in {*self.files, *SPLITS} or count < 0:
                given = listed(dict.fromkeys([*SPLITS, *self.files]))
                raise ValueError(f"limit.{split} is {count}; limit takes counts of at least 0 for {given}")

    def _check_names(self, split: str, names: list[str]) -> None:
        if not names or not all(names):
            raise ValueError(f"files.{split} names no file; name one, or remove the entry")
        kind = self.format_of(names)
        if kind == TEXT:
            if split == UNLABELLED:
                said = "files.unlabelled is for sources alone, and a passage of text has a reference"
                raise ValueError(f"{said}; add it to train")
            if parse_template(self.template) != parse_template(""):
                raise ValueError("template is set, but text has no fields to fill it with; remove it")
            return
        columns = sorted({name for _, name in parse_template(self.template) if name is not None} - {SOURCE})
        if kind != PARALLEL:
            if not (self.source_field and self.reference_fields and all(self.reference_fields)):
                raise ValueError(f"source_field or reference_fields is empty; {kind} needs the name of each field")
        elif split != UNLABELLED and len(names) < 2:
            raise ValueError(
                f"files.{split} names {names[0]} alone; parallel text needs a file of sources and one of references"
            )
        elif columns:
            raise ValueError(f"template names {listed(columns)}, but parallel text has no columns; name {{source}} alone")


def _as_list(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else names


def listed(names: Iterable[str]) -> str:
    """The names with commas between them, or `nothing`."""
    return ", ".join(names) or "nothing"


_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


@settings
class HubSettings:
    """A data set of the hub; what is empty is taken from the preset, or from the defaults where there is none."""

    preset: str = setting(
        "A data set of the papers by its short name (`draftline presets` lists them); none for any other.",
        default="none",
        choices=("none", *DATA_SETS),
    )
    name: str = setting("Name on the hub, as `datasets.load_dataset` takes it; required without a preset.", default="")
    configuration: str = setting("Configuration (subset) of the data set; empty: its only one.", default="")
    revision: str = setting(
        "Branch, tag or commit. The commit behind a branch or tag is written to the lock file at the first fetch and used from "
        "then on; empty: main.",
        default="",
    )
    splits: dict[str, str] = setting(
        default_factory=dict,
        description="Split of the data set, or a slice such as 'train[:20000]' or 'train[-5%:]', for each of train, validation "
        "and test, and for unlabelled (only sources are read); those not named: the preset's, or the split of the same name.",
    )
    source_field: str = setting("Column with the source text; a.b is b inside of a; empty: source.", default="")
    reference_fields: list[str] = setting(
        default_factory=list,
        description="Columns with references, each a string or a list of strings; empty: references. Models train on "
        "the first.",
    )
    template: str = setting(
        default="",
        description="Text that the models read in place of a source, such as 'summarize: {source}'. {source} is the "
        "source, any other name in braces a column; empty: the source itself.",
    )
    no_reference: str = setting(
        default="", description="Reference of a row that has none, as an unanswerable question; empty: such rows are left out."
    )

    passage_words: int = setting(
        "For language models: joins the texts of source_field and cuts them into passages of so many words, whose first half "
        "is the source and whose second half is the reference; 0: the preset's, or an example of each row.",
        default=0,
        unit="words",
        ge=0,
        le=10_000,
    )

    shots: int = setting(
        "Examples, the first ones of train, that stand with their first references before each source; train loses them.",
        default=0,
        unit="examples",
        ge=0,
        le=100,
    )

    @property
    def data_set(self) -> DataSet:
        """The data set that is read: the preset with what is given here in place of it."""
        preset = DATA_SETS.get(self.preset) or DataSet("", "source", ("references",))
        own = ("name", "configuration", "revision", "source_field", "template", "no_reference", "passage_words", "shots")
        given = {name: getattr(self, name) for name in own} | {"reference_fields": tuple(self.reference_fields)}
        if self.name and self.name != preset.name:
            # Another repository of the data set need not have its configurations and branches.
            preset = replace(preset, configuration="", revision="main")
        changed = {field: value for field, value in given.items() if value}
        return replace(preset, splits={**preset.splits, **self.splits}, **changed)

    @property
    def published(self) -> str:
        """The data set of the papers whose validation and test examples these are; `none` if they are others."""
        if self.preset == "none" or self.name or self.shots:
            return "none"
        preset, mine = DATA_SETS[self.preset], self.data_set
        same = all(getattr(mine, one) == getattr(preset, one) for one in _SAME)
        whole = all(mine.splits[split] == preset.splits[split] for split in ("validation", "test"))
        return preset.published if same and whole else "none"

    def validate(self) -> None:
        """Raise `ValueError` for a missing or impossible name, unknown splits, empty column names or a wrong template."""
        if self.preset == "none" and not self.name:
            raise ValueError("hub names no data set; set name, or preset to one that draftline presets lists")
        if self.name and not _NAME.fullmatch(self.name):
            fix = "write owner/name, and name the folder of a local copy under active"
            raise ValueError(f"name is {self.name!r}, which is no name on the hub; {fix}")
        if unknown := [split for split in self.splits if split not in (*SPLITS, UNLABELLED)]:
            raise ValueError(f"splits has {unknown[0]}; it takes {', '.join((*SPLITS, UNLABELLED))}")
        if not all([*self.splits.values(), *self.reference_fields]):
            raise ValueError("splits or reference_fields has an empty name; write each name, or remove the entry")
        parse_template(self.template)
        if self.shots and self.data_set.passage_words:
            raise ValueError(f"shots is {self.shots}, but passages have no source to stand before; set it to 0")
        if self.data_set.passage_words and (self.reference_fields or parse_template(self.template) != parse_template("")):
            raise ValueError("passage_words is set, and passages need neither reference_fields nor template; remove them")


def columns_of(data_set: DataSet, *, labelled: bool = True) -> dict[str, str]:
    """The columns that examples are made of, each with the setting that names it."""
    fields = {data_set.source_field if name == SOURCE else name for _, name in parse_template(data_set.template) if name}
    columns = {name: "source_field" if name == data_set.source_field else "the names in template" for name in sorted(fields)}
    return columns | {name: "reference_fields" for name in data_set.reference_fields if labelled}


_SAME = ("configuration", "source_field", "reference_fields", "passage_words")
"""What a data set of the papers has in common with its preset."""
PUBLISHED = ("iwslt17-de-en", "wmt14-de-en", "wmt14-en-de", "xsum", "cnn_dailymail", "multi30k-en-de", "wikitext-2")
"""The data sets of which the papers publish numbers."""
PAPERS = ("bild", "bild-v1", "sd", "cascades", "outline")


_MOST = 10_000_000
"""Examples of a split that are generated."""


@settings
class EmbeddedSettings:
    """A corpus that the project generates; a seed gives the same text everywhere."""

    train: int = setting("Training examples.", default=20_000, unit="examples", ge=1, le=_MOST)
    validation: int = setting(
        "Validation examples, on which settings are chosen.", default=300, unit="examples", ge=1, le=_MOST
    )
    test: int = setting("Test examples, on which the chosen points are reported.", default=300, unit="examples", ge=1, le=_MOST)
    unlabelled: int = setting(
        "Additional sources without references, for the large model to label.", default=0, unit="examples", ge=0, le=_MOST
    )
    variation: float = setting(
        "Share of the choices in a training reference (synonyms, word order, omissions, contractions) that are drawn evenly "
        "among all correct wordings; the others take the commonest.",
        default=0.8,
        ge=0,
        le=1,
    )
    seed: int = setting("Seed for the order of the examples and for their references.", default=0, ge=0, le=SEEDS)


@settings
class CorpusSettings:
    """The source of the text; only the settings of that source are used."""

    source: str = setting(
        "Source of the text: a corpus that the project generates, your files, or a data set of the Hugging Face Hub.",
        default="embedded",
        choices=("embedded", "files", "hub"),
    )
    embedded: EmbeddedSettings = setting("The embedded corpus.", default_factory=EmbeddedSettings)
    files: FileSettings | None = setting("Your files.", default=None)
    hub: HubSettings | None = setting("The data set of the hub.", default=None)
    dataset: str = setting(
        "Public data set that your files are, with its own sources and references in validation and test. The report then "
        "shows the papers' numbers of that data set beside yours, where the metric is theirs too; none: it shows none of them, "
        "except for an uncut preset of the hub.",
        default="none",
        choices=("none", *PUBLISHED),
    )

    paper: str = setting(
        "Paper whose experiment the task is: the report shows the numbers of this one alone; any: of every one.",
        default="any",
        choices=("any", *PAPERS),
    )
    note: str = setting(
        "What the report says at its top of this task, such as how an experiment of a paper is shortened.", default=""
    )

    @property
    def published(self) -> str:
        """The public data set that the corpus is, as far as the settings tell; `none` if it is none."""
        if self.dataset == "none" and self.source == "hub" and self.hub is not None:
            return self.hub.published
        return self.dataset

    @property
    def described(self) -> str:
        """What the texts are, in words."""
        if self.source == "embedded":
            return "texts generated by this project (embedded corpus translation), not people's"
        if self.source == "hub" and self.hub is not None:
            return f"texts of {self.hub.data_set.name} from the Hugging Face Hub"
        return "texts of the user's own files"

    @property
    def test_sets(self) -> list[str]:
        """The names of the test sets, the main one first; empty where the only one has no name."""
        return self.files.test_sets if self.source == "files" and self.files is not None else []

    def validate(self) -> None:
        """Raise `ValueError` for files that are missing, and for a data set that the corpus cannot be."""
        if self.source == "files" and self.files is None:
            raise ValueError("source is files but there is no files section; add one with format and files")
        if self.source == "hub" and self.hub is None:
            raise ValueError("source is hub but there is no hub section; add one with a preset, or with name and columns")
        if self.dataset == "none":
            return
        measured = ("validation", "test")
        if self.source == "hub" and self.hub is not None:
            cut = [split for split in measured if "[" in self.hub.data_set.splits[split]]
            cutting, fix = "hub.splits", "name the whole split"
        elif self.source == "files" and self.files is not None:
            if not {*SPLITS} <= {*self.files.files}:
                said = f"dataset is {self.dataset}, but files names no file for validation or test"
                why = "no published number is of examples held out from train"
                raise ValueError(f"{said}, and {why}; name its own files, or set dataset to none")
            cut = [split for split in measured if self.files.limit.get(split)]
            cutting, fix = "files.limit", "remove the limit"
        else:
            raise ValueError(f"dataset is {self.dataset}, but the corpus is generated; set source to files, or dataset to none")
        if cut:
            reason = f"{cutting} cuts {cut[0]}, and no published number is of a part"
            raise ValueError(f"dataset is {self.dataset}, but {reason}; {fix}, or set dataset to none")
