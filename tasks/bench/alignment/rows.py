"""What is known of each compared drafter: the cost of its training, and what replaying with it measured."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tasks.errors import InputError
from tasks.evaluation.results.codec import Settings, Source, decode, encode, parse

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_T = TypeVar("_T")


@dataclass(frozen=True, order=True)
class Run:
    """A drafter to train: a recipe, one seed and a number of steps. Budgets that come to the same steps share it."""

    seed: int
    recipe: str
    steps: int

    def __str__(self) -> str:
        return f"{self.recipe}-{self.steps}-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """The cost of training a drafter."""

    work: str
    """Fingerprint of settings, data and code."""
    training_seconds: float
    """Without evaluation; processor seconds where training has one CPU thread."""
    target_tokens: int


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """A replayed point of BiLD on one split."""

    settings: Settings
    quality_difference: float
    """Quality minus that of the large model alone, in points."""
    lower_bound: float
    """Of the difference, one-sided: on validation it holds at once with those of the other points, on test alone."""
    speedup: float
    """Predicted over the large model alone: from the counts of all examples and the comparison's one cost model."""


@dataclass(frozen=True, kw_only=True)
class DrafterMeasurements:
    """Measurements of a drafter with the large model on validation. Nothing is timed: every number is of counts and texts."""

    points: list[PointResult]
    """BiLD's grid."""
    speculative_speedup: float
    """Predicted for the best draft length."""
    acceptance_rate: float
    """α for sampling at temperature 1 (SD, Definition 3.2)."""
    acceptance_greedy: float
    """Share of positions at which both models put the same token."""
    drafter_quality: float
    """Quality of the drafter alone, in points."""
    vanilla_quality: float
    """Quality of the large model alone, in points."""


@dataclass(frozen=True, kw_only=True)
class DrafterRow(DrafterMeasurements, TrainingCost):
    """A drafter that is trained and measured."""

    recipe: str
    seed: int
    steps: int
    measured: str
    """Fingerprint of the drafter and of settings, text, cost model and code of the measurement."""


def read_record(kind: type[_T], path: Path) -> _T | None:
    """Return a stored record; None where there is none, or one of another form, which is made again."""
    source = Source(str(path), "remove it")
    try:
        return decode(kind, parse(path.read_text(encoding="utf-8"), source), source)
    except (FileNotFoundError, InputError):
        return None


def write_record(path: Path, record: DataclassInstance) -> None:
    """Write a record as JSON, in one piece."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two commands may write one record at the same time: each writes a file of its own, and the last one counts.
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".partial", delete=False) as partial:
        partial.write(json.dumps(encode(record), indent=2) + "\n")
    Path(partial.name).replace(path)
