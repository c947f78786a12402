"""Which corpus a task learns from."""

from __future__ import annotations

from tasks.corpora.files import FileSettings
from tasks.settings import setting, settings


@settings
class EmbeddedSettings:
    """A corpus that the project makes itself, the same for a seed everywhere."""

    name: str = setting("Which embedded corpus.", default="translation", choices=("translation", "summarization"))
    train: int = setting("Training examples.", default=20_000, unit="examples", ge=1)
    validation: int = setting("Validation examples: thresholds are chosen on them.", default=300, unit="examples", ge=1)
    test: int = setting("Test examples: the chosen points are reported on them.", default=300, unit="examples", ge=1)
    unlabelled: int = setting("More inputs without references, for the large model to label.", default=0, unit="examples", ge=0)
    seed: int = setting("Orders the examples and draws their references.", default=0, ge=0)


@settings
class CorpusSettings:
    """Where the text comes from; only the named source's settings are read."""

    source: str = setting("The project's own text, or files of the user's.", default="embedded", choices=("embedded", "files"))
    embedded: EmbeddedSettings = setting("The embedded corpus.", default_factory=EmbeddedSettings)
    files: FileSettings | None = setting("The user's files.", default=None)

    def validate(self) -> None:
        if self.source == "files" and self.files is None:
            raise ValueError("source is files but there is no files section; add one with path and format")
