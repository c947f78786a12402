"""The frontiers of the summary: of each method, of all methods, and BiLD's with either drafter and the gap between them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tasks.evaluation.changes import MeasuredCurve, frontier_changes, measured_point
from tasks.evaluation.frontier import CHOSEN_ON, TradeOff, frontier, frontier_gap
from tasks.evaluation.results.rows import MeasuredRow, OperatingPoint, TimedPoint, TimedRow
from tasks.evaluation.results.summary import ALL_METHODS, BildFrontiers, FrontierGap, ParetoFront
from tasks.evaluation.statistics import Interval
from tasks.paths import ARMS

_BILD = "bild"


def tradeoffs(points: Sequence[OperatingPoint], arm: str, method: str = ALL_METHODS) -> list[TradeOff | None]:
    """Quality and speed-up of each point; None for a point of another drafter or method, or without times."""
    return [
        TradeOff(point.quality, point.speedup)
        if isinstance(point, TimedPoint) and point.arm == arm and method in (ALL_METHODS, point.method)
        else None
        for point in points
    ]


def bild_frontiers(points: Sequence[OperatingPoint], rows: Sequence[MeasuredRow]) -> BildFrontiers:
    """BiLD's frontier with each drafter, and the gap between them; None where nothing can be compared.

    Args:
        points: of both drafters.
        rows: the row behind each point.
    """
    bild = {arm: tradeoffs(points, arm, _BILD) for arm in ARMS}
    gap = frontier_gap(bild["aligned"], bild["unaligned"])
    found = None
    if gap is not None:
        quality, speedup = _gap_intervals(points, rows)
        found = FrontierGap(**dataclasses.asdict(gap), quality_interval=quality, speedup_interval=speedup)
    unaligned, aligned = frontier(bild["unaligned"]), frontier(bild["aligned"])
    return BildFrontiers(split=CHOSEN_ON, method=_BILD, unaligned=unaligned, aligned=aligned, gap=found)


def _gap_intervals(points: Sequence[OperatingPoint], rows: Sequence[MeasuredRow]) -> tuple[Interval | None, Interval | None]:
    """Of the mean quality difference and of the mean ratio of speed-ups; both sweeps time the same examples in one order."""
    curves = {arm: MeasuredCurve([], 0.0) for arm in ARMS}
    for point, row in zip(points, rows, strict=True):
        # The compared qualities are differences from vanilla, so vanilla itself is at 0.
        loss = point.quality_difference if point.method == _BILD else None
        if loss is not None and isinstance(point, TimedPoint) and isinstance(row, TimedRow):
            measured = dataclasses.replace(measured_point(point, row), quality=loss, quality_error=None)
            curves[point.arm].points.append(measured)
    changes = frontier_changes(curves["unaligned"], curves["aligned"], paired=True)
    return (None, None) if changes is None else (changes[0].interval, changes[1].interval)


def pareto_fronts(points: Sequence[OperatingPoint]) -> list[ParetoFront]:
    """For each drafter the frontier of each of its methods with a timed point, and of all its methods together."""
    found = []
    for arm in ARMS:
        methods = dict.fromkeys(point.method for point in points if point.timed and point.arm == arm)
        for method in (*methods, ALL_METHODS) if methods else ():
            own = tradeoffs(points, arm, method)
            found.append(ParetoFront(arm=arm, method=method, points=frontier(own)))
    return found
