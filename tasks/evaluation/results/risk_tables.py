"""A row of the table of thresholds that are shown to lose no more than a tolerance."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.tables import MeasuredTableRow
from tasks.evaluation.statistics import Interval, Status


@dataclass(frozen=True, kw_only=True)
class ControlledRow(MeasuredTableRow):
    """CALM's smallest valid threshold by Learn then Test, for one combination of its other settings."""

    arm: str
    """Whose sweep measured it; CALM itself uses no small model."""
    settings: Settings | None = None
    """Of the chosen point; None where no threshold was shown to be valid."""
    tested: int
    """Thresholds of the sequence."""
    accepted: int
    """Thresholds before the first that was not shown to be valid."""
    tolerance_share: float
    """δ: the expected loss that is allowed."""
    level: float
    """ε over the number of sequences: a p-value up to it accepts."""
    loss_share: float | None = None
    """Mean loss against vanilla large over the validation split, in [0, 1]."""
    p_value: float | None = None
    refused_threshold: float | None = None
    """λ of the first that was not accepted; None where all were."""
    refused_p_value: float | None = None
    test_loss_share: float | None = None
    """The same loss on test; None where the point was not measured there, as the next fields are."""
    test_status: Status | None = None
    """Whether the test split by itself shows a risk of at most δ, one above it, or neither, at the whole level ε."""
    quality_difference: float | None = None
    """Of the task's metric on test, from vanilla, in points."""
    quality_difference_interval: Interval | None = None
    speedup: float | None = None
    """On test."""
    speedup_interval: Interval | None = None
