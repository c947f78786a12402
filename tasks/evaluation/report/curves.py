"""The frontiers of the summary: of each method, of all methods, and BiLD's with both drafters set against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.evaluation.changes import Curve, Measured, error_of, frontier_changes, log_error_of
from tasks.evaluation.frontier import CHOSEN_ON, Point, frontier, frontier_gap, hypervolume
from tasks.evaluation.measurements import Row
from tasks.evaluation.report.points import Entry
from tasks.paths import DRAFTERS

ALL_METHODS = "all"
"""In place of a method's name, of all methods together."""


def timed_points(points: Sequence[Entry], drafter: str, method: str = ALL_METHODS) -> list[Point | None]:
    """The points as quality and speed-up, in their places; None for those of others and for those not timed."""
    return [
        Point(point["quality"], point["speedup"])
        if point["timed"] and point["drafter"] == drafter and method in (ALL_METHODS, point["method"])
        else None
        for point in points
    ]


def bild_frontier(points: Sequence[Entry], rows: Sequence[Row]) -> dict[str, Any]:
    """BiLD's frontier with each drafter, and the gap between them.

    Args:
        points: of both drafters.
        rows: those that they were made of, place by place.

    Returns:
        For each drafter indices into `points`; `gap` as `frontier.Gap` of aligned against unaligned, None where nothing
        can be compared, with `quality_interval` and `speedup_interval`, 95 %, None where an error is unknown.
    """
    bild = {drafter: timed_points(points, drafter, "bild") for drafter in DRAFTERS}
    gap = frontier_gap(bild["aligned"], bild["unaligned"])
    curves = {drafter: frontier(bild[drafter]) for drafter in DRAFTERS}
    found = None if gap is None else {**dataclasses.asdict(gap), **_gap_intervals(points, rows)}
    return {"split": CHOSEN_ON, "method": "bild", **curves, "gap": found}


def _gap_intervals(points: Sequence[Entry], rows: Sequence[Row]) -> dict[str, Any]:
    """Of the mean quality difference and the mean ratio of speed-ups; both sweeps time the same examples in one order."""
    unaligned, aligned = (
        [_measured(point, row) for point, row in zip(points, rows, strict=True) if _is_bild(point, drafter)]
        for drafter in DRAFTERS
    )
    # Differences from vanilla are what is compared, so vanilla itself is at 0.
    changes = frontier_changes(Curve(unaligned, 0.0), Curve(aligned, 0.0), paired=True)
    quality, speed = (None, None) if changes is None else (changes[0].interval, changes[1].interval)
    return {"quality_interval": quality, "speedup_interval": speed}


def _is_bild(point: Entry, drafter: str) -> bool:
    return bool(point["timed"]) and (point["method"], point["drafter"]) == ("bild", drafter)


def _measured(point: Entry, row: Row) -> Measured:
    both = row.get("vanilla_latency_ms"), row.get("latency_ms")
    latencies = np.array(both, dtype=np.float64).T if all(both) else None
    return Measured(
        quality=point["quality_difference"],
        quality_error=None,
        loss_error=error_of(point["quality_difference_interval"]),
        speedup=point["speedup"],
        speedup_error=log_error_of(point["speedup_interval"]),
        latencies=latencies,
    )


def reference_point(vanilla: Mapping[str, Entry | None]) -> Point | None:
    """What a hypervolume is measured from: vanilla's own speed and the quality of the worse of the two small models."""
    smalls = [small for small in (vanilla["small"], vanilla["small_aligned"]) if small is not None]
    return Point(min(small["quality"] for small in smalls), 1.0) if smalls else None


def pareto_fronts(points: Sequence[Entry], reference: Point | None) -> list[dict[str, Any]]:
    """For each drafter the frontier of each of its methods with a timed point, and of all its methods together.

    Returns:
        `drafter`, `method` (or `ALL_METHODS`), `points` (indices, the fastest first) and `hypervolume`, None without a
        reference.
    """
    found = []
    for drafter in DRAFTERS:
        methods = dict.fromkeys(point["method"] for point in points if point["timed"] and point["drafter"] == drafter)
        for method in (*methods, ALL_METHODS) if methods else ():
            own = timed_points(points, drafter, method)
            area = None if reference is None else hypervolume(own, reference)
            found.append({"drafter": drafter, "method": method, "points": frontier(own), "hypervolume": area})
    return found
