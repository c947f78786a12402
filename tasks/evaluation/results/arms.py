"""What alignment gives: the two arms of drafters, seed by seed, and the effect over seeds and examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.points import TestStatus
from tasks.evaluation.statistics import Interval
from tasks.models.checkpoints import TrainingRecord

Finding = Literal["helps", "hurts", "open"]


@dataclass(frozen=True, kw_only=True)
class ArmPoint:
    """The point that one drafter's sweep chooses for a purpose, measured on test; vanilla where it chooses none."""

    purpose: str
    """A key of `report.arms.PURPOSES`."""
    settings: Settings | None = None
    """None for vanilla, whose speed-up is 1 and whose quality difference is 0."""
    speedup: float = 1.0
    speedup_interval: Interval | None = None
    quality_difference: float = 0.0
    quality_difference_interval: Interval | None = None
    margin: float | None = None
    """Points that the choice may lose; None for vanilla."""
    test: TestStatus | None = None
    """What test says of the choice; None for vanilla."""


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """One drafter: an arm and a seed."""

    drafter: str
    seed: int
    training: TrainingRecord | None = None
    points: list[ArmPoint]


@dataclass(frozen=True, kw_only=True)
class AlignmentEffect:
    """Speed of the aligned drafter over that of the unaligned one of the same seed, for one purpose, on test."""

    purpose: str
    by_seed: dict[int, float]
    mean: float
    """Geometric mean over seeds."""
    interval: Interval | None = None
    """95 %, over seeds and examples; None with one seed, whose spread is not known."""
    finding: Finding
    """`helps` where the whole interval lies above 1, `hurts` where it lies below, otherwise `open`."""


@dataclass(frozen=True, kw_only=True)
class ArmComparison:
    """Both arms over all seeds."""

    results: list[ArmResult]
    effects: list[AlignmentEffect]
