"""What figures look up in a summary and in the rows behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON

Point = Mapping[str, Any]
Sweeps = Mapping[str, Sequence[Mapping[str, Any]]]


def timed(summary: Mapping[str, Any]) -> list[Point]:
    """The points that were measured on the clock."""
    return [point for point in summary["points"] if point["timed"]]


def frontier_of(summary: Mapping[str, Any], drafter: str) -> list[Point]:
    """The timed points of a drafter, of all its methods, that no other beats, the fastest first."""
    for curve in summary["pareto"]:
        if (curve["drafter"], curve["method"]) == (drafter, "all"):
            return [summary["points"][place] for place in curve["points"]]
    return []


def speedup_of(point: Point, points: Sequence[Point]) -> tuple[float | None, bool]:
    """A point's speed-up and whether it was measured: its own, that of the point it behaves like, or the predicted one."""
    if point["timed"]:
        return point["speedup"], True
    if point.get("same_as") is not None:
        wanted = _key(point, point["same_as"])
        for other in points:
            if other["timed"] and _key(other, other["settings"]) == wanted:
                return other["speedup"], True
    predicted = point.get("predicted")
    return (predicted["speedup"], False) if predicted else (None, False)


def chosen_points(summary: Mapping[str, Any], methods: Sequence[str] = ()) -> list[tuple[str, Point]]:
    """For each drafter and method what was chosen, by the strictest choice that found a point: `[(choice, point)]`.

    Args:
        summary: of the task.
        methods: only these; all where empty.
    """
    found: dict[tuple[str, str], tuple[str, Point]] = {}
    for choice in summary["choices"]:
        if choice["point"] is not None and (not methods or choice["method"] in methods):
            entry = (choice["choice"], summary["points"][choice["point"]])
            found.setdefault((choice["drafter"], choice["method"]), entry)
    return list(found.values())


def best_chosen_point(summary: Mapping[str, Any], drafter: str) -> tuple[str, Point] | None:
    """The fastest of a drafter's chosen points that lose nothing; where there is none, of those within one point."""
    found = [(word, point) for word, point in chosen_points(summary) if point["drafter"] == drafter]
    strict = [entry for entry in found if entry[0] == "no_loss"] or found
    return max(strict, key=lambda entry: entry[1]["speedup"], default=None)


def rows_of(point: Point, sweeps: Sweeps) -> dict[str, Mapping[str, Any]]:
    """The measured rows behind a point, by split; of several rows the last counts."""
    wanted = _key(point, point["settings"])
    rows = [row for row in sweeps[point["drafter"]] if "error" not in row and _key(row, row["settings"]) == wanted]
    return {row["split"]: row for row in rows}


def reported_row(point: Point, sweeps: Sweeps) -> Mapping[str, Any] | None:
    """The timed row that speaks for a point: of the test split, else of the validation split."""
    rows = rows_of(point, sweeps)
    found = [rows[split] for split in (REPORTED_ON, CHOSEN_ON) if split in rows and "speedup" in rows[split]]
    return found[0] if found else None


def number(value: Any) -> float:
    """A setting as a number; infinity may stand as text."""
    return float(value)


def _key(point: Point, settings: Mapping[str, Any]) -> str:
    return json.dumps([point["method"], point["drafter"], _short(settings), _short(point.get("sampling"))], sort_keys=True)


def _short(value: Any) -> Any:
    """Numbers to the six digits that a summary keeps."""
    if isinstance(value, Mapping):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.6g}"
    return value
