"""Which of a summary's points the papers' tables show, and how they name them."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.evaluation.report.marks import is_contradicted, marks_of_point
from tasks.evaluation.results.rows import OperatingPoint, TimedPoint
from tasks.evaluation.results.summary import Summary

# A difference of nothing may be slightly less than 0 in floating point.
_EDGE = 1e-9


def points_of(summary: Summary, arm: str, method: str) -> list[OperatingPoint]:
    """The points of a method, timed or not: their counts are exact either way."""
    return [point for point in summary.points if (point.arm, point.method) == (arm, method)]


def best(points: Sequence[TimedPoint]) -> TimedPoint | None:
    """The point of the highest observed quality; of equally good ones the fastest, then the first."""
    return max(points, key=lambda point: (point.quality, point.speedup), default=None)


def fastest_at(points: Sequence[TimedPoint], quality: float) -> TimedPoint | None:
    """The fastest point of at least this observed quality; of equally fast ones the better, then the first."""
    return max(
        (point for point in points if point.quality >= quality - _EDGE),
        key=lambda point: (point.speedup, point.quality),
        default=None,
    )


def warning(summary: Summary, label: str, point: TimedPoint) -> str:
    """A word where a row names a choice that test contradicts."""
    named = label.endswith(("no loss", "≤ 1 point")) or label == "speculative"
    red = named and is_contradicted(marks_of_point(summary, summary.index_of(point)))
    return " (contradicted on test)" if red else ""


def other_drafter(point: OperatingPoint) -> str:
    """What drafts; empty where it is the small model."""
    arm = str(point.settings.get("drafter", "small"))
    return "" if arm == "small" else arm


def temperature(point: OperatingPoint) -> float:
    """The temperature of sampling; 0 is greedy."""
    return 0.0 if point.sampling is None else point.sampling.temperature
