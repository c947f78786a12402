"""Bounds of many points: influence by hand, levels by simulation with a known truth."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.evaluation.metrics import bleus_of
from tasks.evaluation.selection import (
    PairedDifferences,
    bonferroni_bounds,
    max_t_bounds,
    max_t_quantile,
    normal_bounds,
    paired_differences,
    upper_bounds,
)

_Floats = NDArray[np.float64]


def bleu_counts(rng: np.random.Generator, points: int, examples: int, share: float) -> NDArray[np.int32]:
    """Statistics of sentences of 8 to 12 words, some of them with up to four words wrong, `[points, examples, 10]`."""
    lengths = rng.integers(8, 13, size=(points, examples))
    lengths[:] = lengths[0]
    wrong = rng.integers(1, 5, size=lengths.shape) * (rng.random(lengths.shape) < share)
    totals = np.stack([lengths - order for order in range(4)], axis=2)
    matched = np.maximum(0, totals - wrong[:, :, None] * np.arange(1, 5))
    return np.concatenate([np.stack([lengths, lengths + (wrong > 3)], axis=2), matched, totals], axis=2).astype(np.int32)


def test_the_influence_is_the_derivative_in_the_weight_of_an_example() -> None:
    vanilla, point = bleu_counts(np.random.default_rng(0), 2, 50, 0.3)
    found = paired_differences(point[None], vanilla)
    whole = np.stack([point.sum(axis=0), vanilla.sum(axis=0)]).astype(float)
    assert found.values[0] == pytest.approx(bleus_of(whole)[0] - bleus_of(whole)[1])
    step = 1e-4
    for example in range(10):
        more = bleus_of(whole + step * np.stack([point[example], vanilla[example]]))
        slope = 50 * (more[0] - more[1] - found.values[0]) / step
        assert found.influence[0, example] == pytest.approx(slope, abs=0.05)


def test_of_a_mean_the_influence_is_the_deviation() -> None:
    found = paired_differences(np.array([[[1.0], [2.0], [6.0]]]), np.array([[2.0], [2.0], [2.0]]))
    assert found.values.tolist() == [1.0]
    assert found.influence.tolist() == [[-2.0, -1.0, 3.0]]


def test_more_points_need_more_and_points_that_err_alike_less() -> None:
    rng = np.random.default_rng(1)
    apart, common = rng.normal(size=(40, 400)), rng.normal(size=400)
    alike = common + 0.3 * rng.normal(size=(40, 400))
    single = NormalDist().inv_cdf(0.975)
    of_40 = NormalDist().inv_cdf(1 - 0.025 / 40)
    assert max_t_quantile(apart[:1], 0.025) == pytest.approx(single)
    assert max_t_quantile(apart, 0.025) == pytest.approx(of_40, abs=0.1)
    assert single < max_t_quantile(alike, 0.025) < of_40 - 0.3
    # Points without any influence are no further chance to err.
    assert max_t_quantile(np.vstack([apart[:1], np.zeros((5, 400))]), 0.025) == pytest.approx(single)


def losses(rng: np.random.Generator, points: int, examples: int, rate: float, loss: float) -> PairedDifferences:
    """Points that lose `loss` on a share `rate` of the examples, each on others."""
    lost = -loss * (rng.random((points, examples)) < rate)
    return PairedDifferences(lost.mean(axis=1), lost - lost.mean(axis=1, keepdims=True))


@pytest.mark.parametrize(("examples", "rate", "loss"), [(400, 0.25, 2.0), (1000, 0.01, 50.0)])
def test_the_corrected_bounds_hold_for_all_points_at_once(examples: int, rate: float, loss: float) -> None:
    """All points lose half a point: a bound above that is an error. The cases go from frequent to rare and large losses."""
    rng = np.random.default_rng(2)
    wrong = dict.fromkeys(("normal", "bonferroni", "max_t"), 0)
    for _ in range(60):
        drawn = losses(rng, 20, examples, rate, loss)
        bounds = {
            "normal": normal_bounds(drawn, 0.05),
            "bonferroni": bonferroni_bounds(drawn, 0.05, 20),
            "max_t": max_t_bounds(drawn, 0.05),
        }
        for name, lower in bounds.items():
            wrong[name] += bool((lower > -rate * loss).any())
    assert wrong["max_t"] <= 7 and wrong["bonferroni"] <= 7  # 3 expected, 7 is the 99th percentile
    assert wrong["normal"] >= 18


def test_a_point_that_never_differed_may_still_lose() -> None:
    """Of 400 examples none differed for the first point; others show that a difference costs 100 points."""
    rng = np.random.default_rng(3)
    seen = losses(rng, 5, 400, 0.05, 100.0)
    drawn = PairedDifferences(np.append(0.0, seen.values), np.vstack([np.zeros(400), seen.influence]))
    # Losing on 1 example of 100 would have gone unseen in 2 % of all samples.
    assert max_t_bounds(drawn, 0.025)[0] < -1.0


def test_the_upper_bound_mirrors_the_lower_one() -> None:
    drawn = losses(np.random.default_rng(4), 3, 500, 0.1, 10.0)
    mirrored = PairedDifferences(-drawn.values, -drawn.influence)
    assert upper_bounds(drawn, 0.05) == pytest.approx(-normal_bounds(mirrored, 0.05))
    assert (normal_bounds(drawn, 0.05) < drawn.values).all() and (drawn.values < upper_bounds(drawn, 0.05)).all()
