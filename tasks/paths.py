"""The files of each stage, relative to the repository root; `dvc.yaml` declares the same paths as inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CACHE = Path(".cache")
"""Scratch files that no stage depends on: unfinished work, compiled extensions, records to be sent to MLflow."""


@dataclass(frozen=True)
class TaskPaths:
    """The files of one task."""

    task: str

    @property
    def corpus(self) -> Path:
        return Path("data") / self.task / "corpus"

    @property
    def tokenizer(self) -> Path:
        return Path("data") / self.task / "tokenizer"

    @property
    def calibration(self) -> Path:
        return Path("data") / self.task / "calibration"

    def split(self, name: str) -> Path:
        """A corpus split, JSONL."""
        return self.corpus / f"{name}.jsonl"

    @property
    def unlabelled(self) -> Path:
        """Sources without references, JSONL like a split; empty if the corpus has none."""
        return self.split("unlabelled")

    @property
    def calibration_set(self) -> Path:
        return self.calibration / "calibration.jsonl"

    @property
    def held_out_calibration(self) -> Path:
        return self.calibration / "validation.jsonl"

    def model(self, name: str) -> Path:
        """The folder of a trained model: large, small (the unaligned drafter) or aligned."""
        return Path("models") / self.task / name

    def training_log(self, name: str) -> Path:
        """Loss, rate, speed and evaluations of a model's training by step, CSV."""
        return self.results / "training" / f"{name}.csv"

    def rows(self, drafter: str) -> Path:
        """The sweep's rows for a drafter: unaligned or aligned."""
        return self.results / "sweep" / drafter / "rows.jsonl"

    @property
    def results(self) -> Path:
        return Path("results") / self.task

    def resume(self, name: str) -> Path:
        """Unfinished work of one stage."""
        return CACHE / "resume" / self.task / name


DRAFTERS = {"unaligned": "small", "aligned": "aligned"}
"""The folder name of the model behind each drafter of a sweep."""
