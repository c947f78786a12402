"""What is known of each compared drafter: the cost of its training, and what decoding with it measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasks.evaluation.results.codec import Settings, decode
from tasks.evaluation.results.row_file import RowFile
from tasks.evaluation.statistics import Interval


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """Cost and result of training a drafter; all None for the small model that is not aligned."""

    work: str | None = None
    """Fingerprint of settings, training time, data and code."""
    steps: int | None = None
    kept: int | None = None
    """The step whose weights were kept."""
    training_seconds: float | None = None
    """Without evaluations."""
    steps_per_second: float | None = None
    target_tokens: int | None = None
    held_out: dict[str, float] | None = None
    """Measurements on held-out text."""


@dataclass(frozen=True, kw_only=True)
class TrainedRow(TrainingCost):
    """A drafter that is trained."""

    recipe: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class BildResult:
    """BiLD at the thresholds that were chosen on validation without loss, measured on test."""

    method: str
    settings: Settings
    quality_difference: float
    """Quality minus vanilla's, in points."""
    quality: float
    quality_difference_interval: Interval | None = None
    speedup: float
    speedup_interval: Interval | None = None
    large_calls_per_token: float | None = None


@dataclass(frozen=True, kw_only=True)
class DrafterMeasurements:
    """Measurements of a drafter with the large model on the test split."""

    acceptance_rate: float
    """α for sampling at temperature 1 (SD, Definition 3.2)."""
    acceptance_rate_interval: Interval
    acceptance_rate_tokens: int
    """Positions that α is the mean of."""
    acceptance_greedy: float
    """α for greedy decoding."""
    acceptance_greedy_interval: Interval
    acceptance_greedy_tokens: int
    accepted_length: float | None = None
    """Mean accepted length of speculative decoding."""
    speculative_speedup: float
    fallback_rate: float | None = None
    """Of BiLD at fixed thresholds, as is `rollback_rate`."""
    rollback_rate: float | None = None
    vanilla_quality: float
    bild_speedup: float | None = None
    """None where every threshold loses too much, as for the next two."""
    bild_quality_difference: float | None = None
    bild: BildResult | None = None


@dataclass(frozen=True, kw_only=True)
class DrafterRow(DrafterMeasurements, TrainedRow):
    """A drafter that is trained and measured."""

    measured: str
    """Fingerprint of the drafter and of the settings of the measurement."""
    fingerprint: str = ""
    """Of the text and the code of the measurement."""


class DrafterRowFile(RowFile[DrafterRow]):
    """The rows of one comparison."""

    def __init__(self, path: Path, fingerprint: str) -> None:
        super().__init__(path, fingerprint, lambda value, source: decode(DrafterRow, value, source))

    def find(self, recipe: str, seed: int, measured: str) -> DrafterRow | None:
        """Return the last row of a drafter that was measured as `measured` says, if there is one."""
        wanted = recipe, seed, measured
        return next((row for row in reversed(self.rows) if (row.recipe, row.seed, row.measured) == wanted), None)
