"""The files of each stage, relative to the repository root; `dvc.yaml` declares the same paths as inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.files import atomic_write

CACHE = Path(".cache")
"""Scratch files that no stage depends on: unfinished work, compiled extensions, records to be sent to MLflow."""
PROVENANCE = "provenance.json"
"""In a calibration set's folder: how it was made, and what speaks against it."""


@dataclass(unsafe_hash=True)
class TaskPaths:
    """The files of one task."""

    task: str

    def __post_init__(self) -> None:
        data = Path("data") / self.task
        self.corpus = data / "corpus"
        self.tokenizer = data / "tokenizer"
        self.corpus_report = data / "corpus_report.json"
        """Counts, lengths, duplicates and overlaps of the corpus, JSON."""
        self.tests = data / "tests"
        """The test sets beside the main one. A folder of its own: of another test set nothing but the sweeps depends."""
        self.calibration = data / "calibration"
        self.calibration_set = self.calibration / "calibration.jsonl"
        self.held_out_calibration = self.calibration / "validation.jsonl"
        self.control_set = self.calibration / "calibration-references.jsonl"
        """The inputs of the calibration set with the corpus' references, which the control of an alignment learns from."""
        self.unlabelled = self.split("unlabelled")
        """Sources without references, JSONL like a split; empty if the corpus has none."""
        self.results = Path("results") / self.task

    def split(self, name: str) -> Path:
        """A corpus split, JSONL; `test.NAME` is in `tests`."""
        return (self.tests if name.startswith(_FURTHER) else self.corpus) / f"{name}.jsonl"

    def further_tests(self) -> list[str]:
        """The splits `test.NAME` of the test sets beside the main one, sorted."""
        return sorted(file.stem for file in self.tests.glob(f"{_FURTHER}*.jsonl"))

    def model(self, name: str, seed: int | None = None) -> Path:
        """The folder of a trained model: large, small (the start of all drafters), or one of `ARMS` and its seed."""
        return _of_seed(Path("models") / self.task / name, seed)

    def training_log(self, name: str, seed: int | None = None) -> Path:
        """Loss, rate, speed and evaluations of a model's training by step, CSV."""
        return _of_seed(self.results / "training" / name, seed).with_suffix(".csv")

    def sweep(self, arm: str, seed: int | None = None) -> Path:
        """The folder of a drafter's sweep: of the first seed, which is swept over the whole grid, or of another seed."""
        folder = self.results / "sweep" / arm
        return folder if seed is None else folder / "seeds" / str(seed)

    def rows(self, arm: str, seed: int | None = None, test: str = "") -> Path:
        """The rows of a sweep, or those of one of `further_tests`; see `sweep`."""
        return self.sweep(arm, seed) / (f"rows-{test}.jsonl" if test else "rows.jsonl")

    def forget_metrics(self) -> None:
        """Empty what DVC compares: it is of files that a stage is about to replace, and the report writes it anew.

        A missing file would not do: DVC then compares the one in its cache.
        """
        if (file := self.results / "metrics.json").exists():
            atomic_write(file, "{}\n")

    def resume(self, name: str) -> Path:
        """Unfinished work of one stage."""
        return CACHE / "resume" / self.task / name


_FURTHER = "test."
ARMS = ("unaligned", "aligned")
"""The two arms: drafters of one start, trained alike on references (the control) or on what the large model makes of them."""


def _of_seed(path: Path, seed: int | None) -> Path:
    return path if seed is None else path / str(seed)
