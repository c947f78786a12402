"""Frontiers of operating points, and the gap between two frontiers.

A trade-off is a pair of quality and speed-up over the vanilla large model; higher is better for both. Its latency relative to
vanilla is one over its speed-up. Lists hold None for points that failed or were not timed, so that indices stay those of the
rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tasks.decoding.methods.baselines import VANILLA
from tasks.evaluation.results.rows import SweepRow, TimedRow
from tasks.evaluation.scoring.statistics import Interval

BASELINES = (VANILLA, "vanilla_small")
CHOSEN_ON, REPORTED_ON = "validation", "test"
"""The split on which settings are chosen, and the split on which they are reported."""
_RESOLUTION = 0.1
# 61.2 - 0.1 is slightly more than 61.1 in floating point; a difference of exactly the resolution does not matter either.
_EDGE = 1e-9


class TradeOff(NamedTuple):
    """Quality, in points, and speed-up of one setting."""

    quality: float
    speedup: float

    @property
    def latency(self) -> float:
        """Relative to vanilla, which is 1."""
        return 1.0 / self.speedup


@dataclass(frozen=True)
class Gap:
    """How far one frontier lies above another, at equal latency and at equal quality."""

    latency_from: float
    """Relative to vanilla: where the range of latencies begins over which qualities are compared."""
    latency_to: float
    mean_quality_difference: float
    """Mean over that range of the best quality attained within a latency, first minus second, in points."""
    share_above: float
    """Share of the range in which the first attains more quality than the second."""
    share_below: float
    """Share of the range in which the first attains less quality."""
    quality_from: float
    """In points: where the range of qualities begins over which speeds are compared."""
    quality_to: float
    mean_speedup_ratio: float
    """Geometric mean over that range of the best speed-up that attains a quality, first over second."""
    quality_interval: Interval | None = None
    """95 %, of `mean_quality_difference`; None where an error is unknown."""
    speedup_interval: Interval | None = None
    """Of `mean_speedup_ratio`."""


def tradeoff_of(row: SweepRow) -> TradeOff | None:
    """Quality and speed-up of a timed row; None for a row that failed, was not timed, or holds no finite measurements."""
    if not isinstance(row, TimedRow):
        return None
    measurable = math.isfinite(row.value) and math.isfinite(row.speedup) and row.speedup > 0
    return TradeOff(row.value, row.speedup) if measurable else None


def frontier(points: Sequence[TradeOff | None]) -> list[int]:
    """Indices of the points that no other point beats in both quality and speed-up, the fastest first.

    Only the first of equal points is kept.
    """
    measured = [(index, point) for index, point in enumerate(points) if point is not None]
    kept: list[int] = []
    best = -math.inf
    for index, point in sorted(measured, key=lambda item: (-item[1].speedup, -item[1].quality, item[0])):
        if point.quality > best:
            kept.append(index)
            best = point.quality
    return kept


def resolution(quality: float, vanilla: float) -> float:
    """Differences in quality that do not matter, in points: 0.1 near vanilla, a fifth of the loss further below."""
    return max(_RESOLUTION, (vanilla - quality) / 5) + _EDGE


def frontier_gap(first: Sequence[TradeOff | None], second: Sequence[TradeOff | None], latency_limit: float = 1.0) -> Gap | None:
    """The gap between two frontiers, by their attainment curves, which are step functions.

    The quality curve gives the best quality of the points within a latency; the two are compared from where both have started
    to where both have reached their last step. The speed curve gives the best speed-up of the points of at least a quality; the
    two are compared over the qualities that both frontiers span, or, if one frontier lies entirely above the other, at the best
    quality of the lower one. A range without width is compared at its single value.

    Args:
        first: the frontier that a positive difference, or a ratio above 1, favours; dominated points change nothing.
        second: the other frontier.
        latency_limit: slower points are left out: a point slower than vanilla is not an operating point.

    Returns:
        The gap; None where either frontier has no point within the limit.
    """
    own, other = ([point for point in points if point and point.latency <= latency_limit] for points in (first, second))
    if not own or not other:
        return None
    curves = [[points[index] for index in frontier(points)] for points in (own, other)]
    start = max(curve[0].latency for curve in curves)
    stop = max(curve[-1].latency for curve in curves)
    # A step of the quality curve holds from its own latency to the next, so the left edge gives the value of a piece.
    edges = _edges(start, stop, [point.latency for curve in curves for point in curve])
    differences = [_attained(own, left) - _attained(other, left) for left, _ in edges]
    widths = [right - left for left, right in edges]
    top = min(curve[-1].quality for curve in curves)
    bottom = min(top, max(curve[0].quality for curve in curves))
    # A step of the speed curve holds from the quality below it to its own, so the right edge gives the value.
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


def _attained(points: Sequence[TradeOff], latency: float) -> float:
    return max(point.quality for point in points if point.latency <= latency)


def _fastest(points: Sequence[TradeOff], quality: float) -> float:
    return max(point.speedup for point in points if point.quality >= quality)


def _edges(start: float, stop: float, steps: Sequence[float]) -> list[tuple[float, float]]:
    """The pieces between `start` and `stop` without a step; a single piece without width if the two are equal."""
    inside = sorted({start, stop, *(step for step in steps if start < step < stop)})
    return list(itertools.pairwise(inside)) or [(start, stop)]


def _mean(values: Sequence[float], widths: Sequence[float]) -> float:
    """Mean weighted by width; the value itself for a single piece without width."""
    total = sum(widths)
    return sum(value * width for value, width in zip(values, widths, strict=True)) / total if total else values[0]
