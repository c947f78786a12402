"""Bounds of rows: what shares the level, and what loses nothing by construction."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from tasks.evaluation.quality import Quality, score
from tasks.evaluation.selection import grid_bounds, level_of_arm, normal_bounds, paired_differences, point_bounds
from tasks.evaluation.settings import MarginSettings

MARGINS = MarginSettings(confidence=0.9)
REFERENCES = [(f"the {word} house stands on a hill",) for word in ("red", "old", "blue", "tall") * 10]


def quality(wrong: int) -> Quality:
    texts = [reference for (reference,) in REFERENCES]
    return score([*("a house" for _ in range(wrong)), *texts[wrong:]], REFERENCES, "bleu", 100, 1)


VANILLA = quality(2)


def test_a_point_on_test_has_the_whole_level_and_one_of_many_its_share() -> None:
    point = quality(9)
    differences = paired_differences(point.statistics[None], VANILLA.statistics)
    on_test = point_bounds(point, VANILLA, MARGINS, None, lossless=False, sampled=False)
    assert on_test.compared == 1 and on_test.lower == pytest.approx(normal_bounds(differences, 0.1)[0])
    assert level_of_arm(MARGINS) == pytest.approx(0.05)
    on_validation = point_bounds(point, VANILLA, MARGINS, 20, lossless=False, sampled=False)
    assert on_validation.compared == 20 and on_validation.lower == pytest.approx(normal_bounds(differences, 0.05 / 20)[0])
    assert on_validation.upper == on_test.upper
    assert NormalDist().inv_cdf(0.9) < NormalDist().inv_cdf(1 - 0.05 / 20)


def test_the_points_of_a_grid_are_bounded_together_at_their_share() -> None:
    points = {3: quality(9), 5: quality(4), 8: quality(2), 9: quality(2)}
    alone = point_bounds(points[3], VANILLA, MARGINS, 1, lossless=False, sampled=False)
    found = grid_bounds(points, VANILLA, MARGINS, lossless={9}, compared=4, seed=1)
    assert found.keys() == points.keys() and found[3].lower < alone.lower and found[3].compared == 4
    shared = grid_bounds(points, VANILLA, MARGINS, lossless={9}, compared=40, seed=1)
    assert shared[3].lower < found[3].lower
    # Points 8 and 9 score like vanilla everywhere, but only the lossless one must.
    assert (found[9].lower, found[9].upper) == (0.0, 0.0) and found[8].lower < 0
    assert np.isfinite([one.lower for one in found.values()]).all()


def test_lossless_points_lose_nothing_where_they_score_alike_or_tokens_are_drawn() -> None:
    for wrong, sampled, lower in ((2, False, 0.0), (9, True, 0.0)):
        assert point_bounds(quality(wrong), VANILLA, MARGINS, 5, lossless=True, sampled=sampled).lower == lower
    assert point_bounds(quality(9), VANILLA, MARGINS, 5, lossless=True, sampled=False).lower < 0
