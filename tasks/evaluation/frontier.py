"""Which operating points are worth having, and which one is chosen.

A point is a pair of quality (higher is better) and speed-up over the vanilla large model (higher is better). Its
latency relative to vanilla is one over its speed-up. A point that failed stands in a list as `None`, so that indices
stay those of the rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tasks.evaluation.results.rows import SweepRow, TimedRow

VANILLA = "vanilla_large"
BASELINES = (VANILLA, "vanilla_small")
CHOSEN_ON, REPORTED_ON = "validation", "test"
"""The split on which settings are chosen, and the one on which they are reported."""
TOLERANCES = {"no_loss": 0.1, "one_point": 1.0}
"""How many points of validation quality under vanilla a choice may lie (BiLD, Table 1)."""
# 61.2 - 0.1 is a little more than 61.1 in floating point; a point that lies on the edge belongs to the choice.
EDGE = 1e-9


class Point(NamedTuple):
    """One measured setting."""

    quality: float
    speedup: float

    @property
    def latency(self) -> float:
        """Relative to vanilla, which is 1."""
        return 1.0 / self.speedup


@dataclass(frozen=True)
class Gap:
    """How far one frontier lies above another: at equal latency, and at equal quality."""

    latency_from: float
    """Relative to vanilla; the range of latencies over which qualities are compared."""
    latency_to: float
    mean_quality_difference: float
    """Mean over that range of the best quality that each attains within a latency, first minus second, in points."""
    share_above: float
    """Share of the range in which the first attains more quality than the second."""
    share_below: float
    """Share of the range in which it attains less."""
    quality_from: float
    """In points; the range of qualities over which speeds are compared."""
    quality_to: float
    mean_speedup_ratio: float
    """Geometric mean over that range of the best speed-up that attains a quality, first over second."""


def point_of(row: Mapping[str, Any]) -> Point | None:
    """The point of a sweep row, or None where the row failed or holds no finite measurements."""
    quality, speedup = row.get("quality"), row.get("speedup")
    if "error" in row or not isinstance(quality, Mapping) or speedup is None:
        return None
    value = quality.get(row.get("metric"))
    if value is None or not math.isfinite(value) or not math.isfinite(speedup) or speedup <= 0:
        return None
    return Point(value, speedup)


def tradeoff_of(row: SweepRow) -> Point | None:
    """Quality and speed-up of a timed row; None for a row that failed, was not timed, or holds no finite measurements."""
    if not isinstance(row, TimedRow):
        return None
    measurable = math.isfinite(row.value) and math.isfinite(row.speedup) and row.speedup > 0
    return Point(row.value, row.speedup) if measurable else None


def choose_timed(rows: Sequence[SweepRow], vanilla_quality: float) -> dict[tuple[str, str], int | None]:
    """The choice of each method for each of `TOLERANCES`.

    Args:
        rows: of one drafter's sweep on the validation split, baselines left out.
        vanilla_quality: of the large model alone in the same sweep.

    Returns:
        `{(method, choice): index into rows, or None where no timed setting keeps the quality}`.
    """
    found: dict[tuple[str, str], int | None] = {}
    for method in dict.fromkeys(row.method for row in rows):
        own = [tradeoff_of(row) if row.method == method else None for row in rows]
        for name, tolerance in TOLERANCES.items():
            found[method, name] = choose(own, vanilla_quality, tolerance)
    return found


def frontier(points: Sequence[Point | None]) -> list[int]:
    """Indices of the points that no other point beats in both quality and speed-up, the fastest first.

    Of equal points the first alone is kept.
    """
    measured = [(place, point) for place, point in enumerate(points) if point is not None]
    kept: list[int] = []
    best = -math.inf
    for place, point in sorted(measured, key=lambda item: (-item[1].speedup, -item[1].quality, item[0])):
        if point.quality > best:
            kept.append(place)
            best = point.quality
    return kept


def resolution(quality: float, vanilla: float) -> float:
    """Points of quality that need not be told apart: 0.1 where no loss is asked for, a fifth of what is lost further down."""
    return max(TOLERANCES["no_loss"], (vanilla - quality) / 5) + EDGE


def hypervolume(points: Sequence[Point | None], reference: Point) -> float:
    """Area that the points dominate above a reference, in points of quality times speed-up (Zitzler and Thiele, 1999).

    Args:
        points: dominated ones do no harm; one that is not better than the reference in both adds nothing.
        reference: the worst that counts in each of the two; it must be the same wherever two areas are compared.

    Returns:
        The area of the union of the rectangles between the reference and each point, at least 0.
    """
    area, reached = 0.0, reference.quality
    for point in (points[place] for place in frontier(points)):
        # From the fastest down, each point of the frontier adds the strip above the best quality so far.
        if point is not None and point.speedup > reference.speedup and point.quality > reached:
            area += (point.speedup - reference.speedup) * (point.quality - reached)
            reached = point.quality
    return area


def choose(points: Sequence[Point | None], vanilla_quality: float, tolerance: float) -> int | None:
    """Index of the fastest point whose quality is at least `vanilla_quality - tolerance`; None where there is no such point.

    Of equally fast points the better, then the first. A choice may be slower than vanilla: it is the fastest all the
    same.
    """
    enough = [
        (-point.speedup, -point.quality, place)
        for place, point in enumerate(points)
        if point is not None and point.quality >= vanilla_quality - tolerance - EDGE
    ]
    return min(enough)[2] if enough else None


def choose_rows(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], int | None]:
    """What is chosen for one drafter, for each method that is no baseline and each of `TOLERANCES`.

    Args:
        rows: of the drafter's sweep; only those of the validation split are compared.

    Returns:
        `{(method, choice): index into rows, or None}`; empty where there is no measured vanilla row to compare with.
    """
    points = [point_of(row) if row["split"] == CHOSEN_ON else None for row in rows]
    vanilla = [point for row, point in zip(rows, points, strict=True) if row["method"] == VANILLA and point is not None]
    if not vanilla:
        return {}
    found: dict[tuple[str, str], int | None] = {}
    for method in dict.fromkeys(row["method"] for row in rows if row["method"] not in BASELINES):
        own = [point if row["method"] == method else None for row, point in zip(rows, points, strict=True)]
        for name, tolerance in TOLERANCES.items():
            found[method, name] = choose(own, vanilla[-1].quality, tolerance)
    return found


def frontier_gap(first: Sequence[Point | None], second: Sequence[Point | None], latency_limit: float = 1.0) -> Gap | None:
    """Sets two frontiers against each other by their attainment curves, which are steps.

    The curve of quality is the best quality of the points within a latency; it is compared from where both curves have
    started to where both have reached their last step. The curve of speed is the best speed-up of the points of at
    least a quality; it is compared over the qualities that both frontiers span, or, where one lies above the other
    altogether, at the lower one's best. A range without width is compared at its one place.

    Args:
        first: the frontier that a positive difference, or a ratio above 1, speaks for; dominated points do no harm.
        second: the other one.
        latency_limit: slower points are left out, for what is slower than vanilla is no operating point.

    Returns:
        The gap; None where either has no point within the limit.
    """
    own, other = ([point for point in points if point and point.latency <= latency_limit] for points in (first, second))
    if not own or not other:
        return None
    curves = [[points[place] for place in frontier(points)] for points in (own, other)]
    start = max(curve[0].latency for curve in curves)
    stop = max(curve[-1].latency for curve in curves)
    # A step holds from its own latency to the next, so a piece is known by its left edge.
    edges = _edges(start, stop, [point.latency for curve in curves for point in curve])
    differences = [_attained(own, left) - _attained(other, left) for left, _ in edges]
    widths = [right - left for left, right in edges]
    top = min(curve[-1].quality for curve in curves)
    bottom = min(top, max(curve[0].quality for curve in curves))
    # And a step of the other curve from the quality below to its own, so there the right edge tells.
    bands = _edges(bottom, top, [point.quality for curve in curves for point in curve])
    ratios = [math.log(_fastest(own, right) / _fastest(other, right)) for _, right in bands]
    return Gap(
        latency_from=start,
        latency_to=stop,
        mean_quality_difference=_mean(differences, widths),
        share_above=_mean([float(difference > 0) for difference in differences], widths),
        share_below=_mean([float(difference < 0) for difference in differences], widths),
        quality_from=bottom,
        quality_to=top,
        mean_speedup_ratio=math.exp(_mean(ratios, [right - left for left, right in bands])),
    )


def _attained(points: Sequence[Point], latency: float) -> float:
    return max(point.quality for point in points if point.latency <= latency)


def _fastest(points: Sequence[Point], quality: float) -> float:
    return max(point.speedup for point in points if point.quality >= quality)


def _edges(start: float, stop: float, steps: Sequence[float]) -> list[tuple[float, float]]:
    """The pieces between `start` and `stop` in which no curve steps; one of no width where the two are the same."""
    inside = sorted({start, stop, *(step for step in steps if start < step < stop)})
    return list(itertools.pairwise(inside)) or [(start, stop)]


def _mean(values: Sequence[float], widths: Sequence[float]) -> float:
    """Mean by width; the plain value where the only piece has none."""
    total = sum(widths)
    return sum(value * width for value, width in zip(values, widths, strict=True)) / total if total else values[0]
