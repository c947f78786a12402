"""Which of a summary's points is the fastest under a condition, and which rows lie behind a point."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.rows import (
    MeasuredRow,
    OperatingPoint,
    SweepRow,
    TestMeasurements,
    TimedMeasurements,
    TimedPoint,
    TimedRow,
)
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.settings import CHOICES

Sweeps = Mapping[str, Sequence[SweepRow]]
"""The rows of both sweeps by drafter."""


def is_faster(measured: TimedMeasurements) -> bool:
    """Faster than vanilla beyond the noise of its timing: the whole interval of the speed-up lies above 1."""
    interval = measured.speedup_interval
    return (interval[0] if interval else measured.speedup) > 1.0


def unproven(points: Iterable[TimedPoint], point: TimedPoint) -> list[TimedPoint]:
    """Those that were faster than a point on validation, but not faster than vanilla beyond noise, so that they lost to it."""
    return [other for other in points if other.speedup > point.speedup and not is_faster(other)]


def reported(point: TimedPoint) -> tuple[TimedPoint | TestMeasurements, str]:
    """The measurements to report of a point, and their split: test where it was measured there, else validation."""
    return (point.test, REPORTED_ON) if point.test else (point, CHOSEN_ON)


def fastest(points: Iterable[TimedPoint]) -> TimedPoint | None:
    """The fastest of these points; of equally fast ones the better, then the first."""
    return max(points, key=lambda point: (point.speedup, point.quality), default=None)


def chosen(summary: Summary, choice: str, arm: str | None = None) -> list[TimedPoint]:
    """The points of all methods, or of a drafter's, that were chosen for one of `CHOICES`, in the order of the points."""
    found = {one.point for one in summary.choices if one.choice == choice and arm in (None, one.arm)}
    return [summary.timed_point(index) for index in range(len(summary.points)) if index in found]


def fastest_lossless(summary: Summary) -> TimedPoint | None:
    """The fastest timed point that beats vanilla and gives its exact output; beam search gives another search's output."""
    lossless = (point for point in summary.timed_points() if point.lossless and "beam" not in point.method)
    return fastest(filter(is_faster, lossless))


def fastest_choice(summary: Summary, arm: str) -> tuple[str, TimedPoint] | None:
    """A drafter's fastest chosen point, and what it was chosen for: no loss or, where nothing was, one point of loss."""
    found = ((choice, fastest(chosen(summary, choice, arm))) for choice in CHOICES)
    return next(((choice, point) for choice, point in found if point is not None), None)


def strictest_choices(summary: Summary) -> list[TimedPoint]:
    """For each drafter and method the chosen point, by the strictest choice that found one."""
    found: dict[tuple[str, str], TimedPoint] = {}
    for choice, point in summary.chosen_points():
        found.setdefault((choice.arm, choice.method), point)
    return list(found.values())


def speedup_of(point: OperatingPoint, points: Sequence[OperatingPoint]) -> tuple[float | None, bool]:
    """A point's speed-up, and whether it was measured on it or on a point that behaves the same; else it is predicted."""
    same = _key(point, point.settings if point.same_as is None else point.same_as)
    for other in (point, *points):
        if other.speedup is not None and _key(other, other.settings) == same:
            return other.speedup, True
    return (point.predicted.speedup if point.predicted else None), False


def rows_of(point: OperatingPoint, sweeps: Sweeps) -> list[MeasuredRow]:
    """The measured rows behind a point, the reported split first; of several rows of a split the last counts."""
    wanted = _key(point, point.settings)
    rows = [row for row in sweeps[point.arm] if isinstance(row, MeasuredRow) and _key(row, row.settings) == wanted]
    by_split = {row.split: row for row in rows}
    return [by_split[split] for split in (REPORTED_ON, CHOSEN_ON) if split in by_split]


def reported_row(point: OperatingPoint, sweeps: Sweeps) -> TimedRow | None:
    """The timed row that is reported for a point: of the test split, else of the validation split."""
    return next((row for row in rows_of(point, sweeps) if isinstance(row, TimedRow)), None)


def _key(point: OperatingPoint | MeasuredRow, settings: Settings) -> str:
    """Identifies a point to the six digits that a summary keeps."""
    short = {name: f"{value:.6g}" if type(value) in (int, float) else value for name, value in settings.items()}
    return json.dumps([point.method, point.arm, short, repr(point.sampling)], sort_keys=True)
