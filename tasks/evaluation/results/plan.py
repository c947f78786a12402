"""How a sweep worked through its grid, as `pair.json` records it: what was timed, how steadily, how well predicted."""

from __future__ import annotations

from dataclasses import dataclass

BUSY = 0.2
"""Scatter of vanilla's times from visit to visit above which the machine is called busy (`docs/performance.md`)."""


@dataclass(frozen=True, kw_only=True)
class ErrorStatistics:
    """Errors of predicted speed-ups, as shares of the measured ones."""

    points: int
    mean: float
    worst: float
    bias: float | None = None
    """Mean of the signed errors: positive where speed-ups were predicted too high."""


@dataclass(frozen=True, kw_only=True)
class PredictionError:
    """Prediction errors of the random sample, of the points that were timed for their speed, and of all timed points.

    A prediction is made just before its point is timed, from what was timed until then.
    """

    sample: ErrorStatistics | None = None
    frontier: ErrorStatistics | None = None
    """Points on or near the predicted frontier, and choices; these were selected by their predictions."""
    all: ErrorStatistics | None = None
    """Anchors included, of which a method's first prediction has to come from other methods."""


@dataclass(frozen=True, kw_only=True)
class VanillaScatter:
    """Vanilla's own total time for the same timed examples, over all visits of a sweep; steady on an idle machine."""

    visits: int
    median_ms: float
    low_ms: float
    """5th percentile."""
    high_ms: float
    """95th percentile."""

    @property
    def share(self) -> float:
        """From the 5th to the 95th percentile, over the median."""
        return (self.high_ms - self.low_ms) / self.median_ms

    @property
    def busy(self) -> bool:
        """Whether something else ran on the machine, or its clock changed."""
        return self.share > BUSY


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """How the grid was worked through."""

    points: int
    replayed: int | None = None
    distinct: int | None = None
    """Points that behave differently from every earlier one."""
    timed: int | None = None
    replay_seconds: float | None = None
    timing_seconds: float | None = None
    prediction_error: PredictionError | None = None
