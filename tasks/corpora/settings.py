"""Settings of the corpus of a task."""

from __future__ import annotations

from tasks.corpora.files.settings import FileSettings
from tasks.corpora.hub.settings import HubSettings
from tasks.settings import setting, settings

PUBLISHED = ("iwslt17-de-en", "wmt14-de-en", "wmt14-en-de", "xsum", "cnn_dailymail")
"""The data sets of which the papers publish numbers."""


@settings
class EmbeddedSettings:
    """A corpus that the project generates; a seed gives the same text everywhere."""

    name: str = setting("Name of the embedded corpus.", default="translation", choices=("translation", "summarization"))
    train: int = setting("Training examples.", default=20_000, unit="examples", ge=1)
    validation: int = setting("Validation examples, on which thresholds are chosen.", default=300, unit="examples", ge=1)
    test: int = setting("Test examples, on which the chosen points are reported.", default=300, unit="examples", ge=1)
    unlabelled: int = setting(
        "Additional sources without references, for the large model to label.", default=0, unit="examples", ge=0
    )
    variation: float = setting(
        "Translation only: share of the choices in a training reference (synonyms, word order, omissions, contractions, "
        "passives) that are drawn evenly among all correct wordings; the others take the commonest, and 0 always does.",
        default=0.8,
        ge=0,
        le=1,
    )
    seed: int = setting("Seed for the order of the examples and for their references.", default=0, ge=0)


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

    @property
    def published(self) -> str:
        """The public data set that the corpus is, as far as the settings tell; `none` if it is none."""
        if self.dataset == "none" and self.source == "hub" and self.hub is not None:
            return self.hub.published
        return self.dataset

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
        if self.source == "hub":
            self._check_uncut()
            return
        if self.source != "files" or self.files is None:
            raise ValueError(f"dataset is {self.dataset}, but the corpus is generated; set source to files, or dataset to none")
        if self.files.is_held_out:
            raise ValueError(
                f"dataset is {self.dataset}, but files names no file for validation or test, and no published number is of "
                "examples held out from train; name its own files, or set dataset to none"
            )
        for split in ("validation", "test"):
            if self.files.limit.get(split):
                raise ValueError(
                    f"dataset is {self.dataset}, but files.limit cuts {split}, and no published number is of a part; remove "
                    "the limit, or set dataset to none"
                )

    def _check_uncut(self) -> None:
        splits = self.hub.data_set.splits if self.hub is not None else {}
        for split in ("validation", "test"):
            if "[" in splits[split]:
                raise ValueError(
                    f"dataset is {self.dataset}, but hub.splits cuts {split}, and no published number is of a part; name the "
                    "whole split, or set dataset to none"
                )
