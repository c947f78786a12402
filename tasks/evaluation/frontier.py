"""Frontiers of operating points.

A trade-off is a pair of quality and speed-up over the vanilla large model; higher is better for both. Its latency relative to
vanilla is one over its speed-up. Lists hold None for points that failed or were not timed, so that indices stay those of the
rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tasks.decoding.methods.baselines import VANILLA
from tasks.evaluation.results.rows import SweepRow, TimedRow

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
