from __future__ import annotations

import numpy as np
import pytest

from tasks.evaluation.statistics import percentile_interval, ratio_interval, resampled_sums


def test_the_interval_holds_the_ratio_of_sums_and_narrows_with_examples() -> None:
    draws = np.random.default_rng(5)
    numerator, denominator = draws.uniform(20, 60, 800), draws.uniform(10, 30, 800)
    few = ratio_interval(numerator[:50].tolist(), denominator[:50].tolist(), samples=500, seed=0)
    many = ratio_interval(numerator.tolist(), denominator.tolist(), samples=500, seed=0)
    assert many[0] < numerator.sum() / denominator.sum() < many[1]
    assert many[1] - many[0] < (few[1] - few[0]) / 2


def test_pairs_are_resampled_together() -> None:
    sums = resampled_sums([[1.0, 10.0], [2.0, 20.0], [5.0, 50.0]], samples=50, seed=3)
    assert sums.shape == (50, 2)
    assert np.array_equal(sums[:, 1], 10 * sums[:, 0])
    assert sums[:, 0].min() >= 3 and sums[:, 0].max() <= 15
    assert len(set(sums[:, 0])) > 3


def test_the_seed_decides_the_draws() -> None:
    columns = np.arange(20.0).reshape(-1, 1)
    assert np.array_equal(resampled_sums(columns, 10, seed=4), resampled_sums(columns, 10, seed=4))
    assert not np.array_equal(resampled_sums(columns, 10, seed=4), resampled_sums(columns, 10, seed=5))


def test_percentiles_of_a_ladder() -> None:
    assert percentile_interval(np.arange(0, 1001)) == (25.0, 975.0)


@pytest.mark.parametrize(
    ("numerator", "denominator"), [([], []), ([1.0], [1.0, 2.0]), ([1.0, 1.0], [1.0, 0.0]), ([1.0], [-1.0])]
)
def test_what_is_no_pair_of_latencies_is_refused(numerator: list[float], denominator: list[float]) -> None:
    with pytest.raises(ValueError, match="denominator"):
        ratio_interval(numerator, denominator, samples=10, seed=0)


def test_nothing_cannot_be_resampled() -> None:
    with pytest.raises(ValueError, match="resamples"):
        resampled_sums(np.empty((0, 2)), samples=10, seed=0)
