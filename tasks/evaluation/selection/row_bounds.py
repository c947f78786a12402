"""The bounds of a row's quality difference: for all replayed points of a grid at once, or for one point at its share."""

from __future__ import annotations

from collections.abc import Container, Mapping

import numpy as np

from tasks.evaluation.quality import Quality
from tasks.evaluation.results.rows import DifferenceBounds
from tasks.evaluation.selection.bounds import bonferroni_bounds, max_t_bounds, upper_bounds
from tasks.evaluation.selection.differences import paired_differences
from tasks.evaluation.settings import MarginSettings
from tasks.paths import ARMS

_EQUAL = DifferenceBounds(lower=0.0, upper=0.0, compared=0)
"""Of a point whose output is vanilla's: there is nothing to compare."""


def level_of_arm(margins: MarginSettings) -> float:
    """The level at which one drafter's bounds may miss: the fastest point is taken over all drafters, which share it."""
    return (1.0 - margins.confidence) / len(ARMS)


def grid_bounds(
    points: Mapping[int, Quality],
    vanilla: Quality,
    margins: MarginSettings,
    *,
    lossless: Container[int],
    compared: int,
    seed: int,
) -> dict[int, DifferenceBounds]:
    """Bounds of points whose lower ends hold at once.

    Args:
        points: quality by index, all on the same examples.
        vanilla: of the large model on them.
        margins: with the confidence.
        lossless: indices of points whose output is vanilla's by construction. Where they score like vanilla on every example
            they lose nothing; any other point may still differ on examples that were not seen.
        compared: points that are compared with each other, of which some may be bounded one by one (`point_bounds`); each has
            the same share of the level.
        seed: of the draws of the largest error.
    """
    bounds = {index: _EQUAL for index, quality in points.items() if index in lossless and _equals(quality, vanilla)}
    others = [index for index in points if index not in bounds]
    if others:
        level = level_of_arm(margins) * min(1.0, len(points) / max(compared, 1))
        differences = paired_differences(np.stack([points[index].statistics for index in others]), vanilla.statistics)
        lower = max_t_bounds(differences, level, seed)
        upper = upper_bounds(differences, 1.0 - margins.confidence)
        bounds |= {
            index: DifferenceBounds(lower=float(low), upper=float(high), compared=len(points))
            for index, low, high in zip(others, lower, upper, strict=True)
        }
    return bounds


def point_bounds(
    quality: Quality, vanilla: Quality, margins: MarginSettings, compared: int | None, *, lossless: bool, sampled: bool
) -> DifferenceBounds:
    """Bounds of one point.

    Args:
        quality: of the point.
        vanilla: of the large model on the same examples.
        margins: with the confidence.
        compared: points among which the split chooses (Bonferroni's correction); None where it chooses none, as test does.
        lossless: whether its output is vanilla's by construction.
        sampled: whether tokens are drawn, so that a lossless output is vanilla's in distribution only.
    """
    if lossless and (sampled or _equals(quality, vanilla)):
        return _EQUAL
    differences = paired_differences(quality.statistics[None], vanilla.statistics)
    level = 1.0 - margins.confidence
    own = level if compared is None else level_of_arm(margins)
    [lower], [upper] = bonferroni_bounds(differences, own, compared or 1), upper_bounds(differences, level)
    return DifferenceBounds(lower=float(lower), upper=float(upper), compared=compared or 1)


def _equals(quality: Quality, vanilla: Quality) -> bool:
    """Whether a point scores like vanilla on every example."""
    return bool(np.array_equal(quality.statistics, vanilla.statistics))
