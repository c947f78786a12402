"""Which corpus a task learns from."""

from __future__ import annotations

from tasks.corpora.files import FileSettings
from tasks.settings import knob, settings


@settings
class EmbeddedSettings:
    """A corpus that the project makes itself, the same for a seed everywhere."""

    name: str = knob("translation", "Which embedded corpus.", choices=("translation", "summarization"))
    train: int = knob(20_000, "Training examples.", unit="examples", ge=1)
    validation: int = knob(300, "Validation examples: thresholds are chosen on them.", unit="examples", ge=1)
    test: int = knob(300, "Test examples: the chosen points are reported on them.", unit="examples", ge=1)
    seed: int = knob(0, "Orders the examples and draws their references.", ge=0)


@settings
class CorpusSettings:
    """Where the text comes from; only the named source's settings are read."""

    source: str = knob("embedded", "The project's own text, or files of the user's.", choices=("embedded", "files"))
    embedded: EmbeddedSettings = knob(EmbeddedSettings, "The embedded corpus.")
    files: FileSettings | None = knob(None, "The user's files.")

    def validate(self) -> None:
        if self.source == "files" and self.files is None:
            raise ValueError("source is files but there is no files section; add one with path and format")
