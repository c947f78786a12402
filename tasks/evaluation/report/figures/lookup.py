"""Look-ups in a summary and in the rows behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON, TOLERANCES
from tasks.evaluation.report.selection import best_choice
from tasks.evaluation.results.points import OperatingPoint, TimedPoint
from tasks.evaluation.results.rows import MeasuredRow, SweepRow, TimedRow
from tasks.evaluation.results.summary import Summary

Sweeps = Mapping[str, Sequence[SweepRow]]
"""The rows of both sweeps by drafter."""


def speedup_of(point: OperatingPoint, points: Sequence[OperatingPoint]) -> tuple[float | None, bool]:
    """A point's speed-up, and whether it was measured on it or on a point that behaves the same; else it is predicted."""
    same = _key(point, point.settings if point.same_as is None else point.same_as)
    for other in (point, *points):
        if other.speedup is not None and _key(other, other.settings) == same:
            return other.speedup, True
    return (point.predicted.speedup if point.predicted else None), False


def strictest_choices(summary: Summary) -> list[TimedPoint]:
    """For each drafter and method the chosen point, by the strictest choice that found one."""
    found: dict[tuple[str, str], TimedPoint] = {}
    for choice, point in summary.chosen_points():
        found.setdefault((choice.drafter, choice.method), point)
    return list(found.values())


def fastest_choice(summary: Summary, drafter: str) -> tuple[str, TimedPoint] | None:
    """A drafter's fastest chosen point, and what it was chosen for: no loss or, where nothing was, one point of loss."""
    found = ((choice, best_choice(summary, choice, drafter)) for choice in TOLERANCES)
    return next(((choice, summary.timed_point(index)) for choice, index in found if index is not None), None)


def rows_of(point: OperatingPoint, sweeps: Sweeps) -> dict[str, MeasuredRow]:
    """The measured rows behind a point, by split; of several rows the last counts."""
    wanted = _key(point, point.settings)
    rows = [row for row in sweeps[point.drafter] if isinstance(row, MeasuredRow) and _key(row, row.settings) == wanted]
    return {row.split: row for row in rows}


def reported_row(point: OperatingPoint, sweeps: Sweeps) -> TimedRow | None:
    """The timed row that is reported for a point: of the test split, else of the validation split."""
    rows = rows_of(point, sweeps)
    return next((row for split in (REPORTED_ON, CHOSEN_ON) if isinstance(row := rows.get(split), TimedRow)), None)


def _key(point: OperatingPoint | MeasuredRow, settings: Mapping[str, Any]) -> str:
    """Identifies a point to the six digits that a summary keeps."""
    short = {name: f"{value:.6g}" if type(value) in (int, float) else value for name, value in settings.items()}
    return json.dumps([point.method, point.drafter, short, repr(point.sampling)], sort_keys=True)
