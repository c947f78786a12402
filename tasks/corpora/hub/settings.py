"""Settings of a data set of the hub: its name, and the columns that examples are made of."""

from __future__ import annotations

import re
from dataclasses import replace

from tasks.corpora.example import SPLITS, UNLABELLED
from tasks.corpora.files.template import SOURCE, parse_template
from tasks.corpora.hub.data_sets import DATA_SETS, DataSet
from tasks.settings import setting, settings

_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


@settings
class HubSettings:
    """A data set of the hub; what is empty is taken from the preset, or from the defaults where there is none."""

    preset: str = setting(
        "A data set of the papers by its short name (`python -m tasks.corpora` lists them); none for any other.",
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
        default="",
        description="Reference of a row that has none, as an unanswerable question; empty: such rows are left out.",
    )

    passage_words: int = setting(
        "For language models: joins the texts of source_field and cuts them into passages of so many words, whose first half "
        "is the source and whose second half is the reference; 0: the preset's, or an example of each row.",
        default=0,
        unit="words",
        ge=0,
        le=10_000,
    )

    @property
    def data_set(self) -> DataSet:
        """The data set that is read: the preset with what is given here in place of it."""
        preset = DATA_SETS.get(self.preset) or DataSet("", "source", ("references",))
        given = {
            "name": self.name,
            "configuration": self.configuration,
            "revision": self.revision,
            "source_field": self.source_field,
            "reference_fields": tuple(self.reference_fields),
            "template": self.template,
            "no_reference": self.no_reference,
            "passage_words": self.passage_words,
        }
        if self.name and self.name != preset.name:
            # Another repository of the data set need not have its configurations and branches.
            preset = replace(preset, configuration="", revision="main")
        changed = {field: value for field, value in given.items() if value}
        return replace(preset, splits={**preset.splits, **self.splits}, **changed)  # type: ignore[arg-type]

    @property
    def published(self) -> str:
        """The data set of the papers whose validation and test examples these are; `none` if they are others."""
        if self.preset == "none" or self.name:
            return "none"
        preset, mine = DATA_SETS[self.preset], self.data_set
        same = all(
            getattr(mine, name) == getattr(preset, name) for name in ("configuration", "source_field", "reference_fields")
        )
        whole = all(mine.splits[split] == preset.splits[split] for split in ("validation", "test"))
        return preset.published if same and whole else "none"

    def validate(self) -> None:
        """Raise `ValueError` for a missing or impossible name, unknown splits, empty column names or a wrong template."""
        if self.preset == "none" and not self.name:
            raise ValueError("hub names no data set; set name, or preset to one that python -m tasks.corpora lists")
        if self.name and not _NAME.fullmatch(self.name):
            raise ValueError(
                f"name is {self.name!r}, which is no name on the hub; write owner/name, and name the folder of a local copy "
                "under active"
            )
        if unknown := [split for split in self.splits if split not in (*SPLITS, UNLABELLED)]:
            raise ValueError(f"splits has {unknown[0]}; it takes {', '.join((*SPLITS, UNLABELLED))}")
        if not all([*self.splits.values(), *self.reference_fields]):
            raise ValueError("splits or reference_fields has an empty name; write each name, or remove the entry")
        parse_template(self.template)
        if self.data_set.passage_words and (self.reference_fields or parse_template(self.template) != parse_template("")):
            raise ValueError("passage_words is set, and passages need neither reference_fields nor template; remove them")


def columns_of(data_set: DataSet, *, labelled: bool = True) -> dict[str, str]:
    """The columns that examples are made of, each with the setting that names it."""
    fields = {data_set.source_field if name == SOURCE else name for _, name in parse_template(data_set.template) if name}
    columns = {name: "source_field" if name == data_set.source_field else "the names in template" for name in sorted(fields)}
    return columns | {name: "reference_fields" for name in data_set.reference_fields if labelled}
