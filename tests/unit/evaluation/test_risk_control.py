"""Learn then Test: p-values by hand and by scipy, sequences that stop, and invalid settings accepted rarely."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import scipy.stats

from tasks.evaluation.results.codec import Settings
from tasks.evaluation.selection import controlled, fixed_sequence, hoeffding_bentkus
from tasks.evaluation.settings import RiskSettings

TOLERANCE, LEVEL, SETS = 0.1, 0.05, 1000
NOISE = LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / SETS)
"""What three standard errors above the level allow of so many calibration sets."""
Draw = Callable[[np.random.Generator, float, int], np.ndarray]


@dataclass(frozen=True)
class Point:
    """A setting of CALM with its mean loss."""

    threshold: float
    loss_share: float | None
    examples: int | None = 100
    method: str = "calm"
    decay: float = 0.0
    settings: Settings = field(init=False)

    def __post_init__(self) -> None:
        values: Settings = {"confidence": "softmax", "threshold": self.threshold, "decay": self.decay}
        object.__setattr__(self, "settings", values)


def test_p_values_by_hand() -> None:
    # No loss in ten texts at δ = 0.5: Hoeffding gives (1 - δ)^10; e times the binomial probability is larger.
    assert hoeffding_bentkus(0.0, 10, 0.5) == pytest.approx(0.5**10)
    # Two lost of four at δ = 0.75: h = log(2/3)/2 + log(2)/2 = log(4/3)/2, so exp(-4 h) = 9/16;
    # P(at most 2 of 4) = 1 - 4 (3/4)^3 / 4 - (3/4)^4 = 67/256, times e more than that.
    assert hoeffding_bentkus(0.5, 4, 0.75) == pytest.approx(9 / 16)
    # Where the mean loss exceeds the tolerance Hoeffding says nothing.
    assert hoeffding_bentkus(0.3, 50, 0.2) == 1.0


@pytest.mark.parametrize("tolerance", [0.01, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("examples", [1, 7, 100, 2500])
def test_p_values_are_the_smaller_of_both_inequalities_by_scipy(examples: int, tolerance: float) -> None:
    for lost in {0, 1, examples // 20, examples // 3, examples - 1, examples}:
        law = scipy.stats.binom(examples, tolerance)
        risk = lost / examples
        least = min(risk, tolerance)
        both = scipy.stats.entropy([least, 1 - least], [tolerance, 1 - tolerance])
        expected = min(math.exp(-examples * both), math.e * law.cdf(lost), 1.0)
        assert hoeffding_bentkus(risk, examples, tolerance) == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_bentkus_rounds_losses_up_and_is_the_smaller_for_some() -> None:
    law = scipy.stats.binom(1000, 0.05)
    assert hoeffding_bentkus(0.0295, 1000, 0.05) == pytest.approx(math.e * law.cdf(30), rel=1e-9)
    assert hoeffding_bentkus(0.03, 1000, 0.05) == pytest.approx(math.e * law.cdf(30), rel=1e-9)
    assert hoeffding_bentkus(0.0301, 1000, 0.05) == pytest.approx(math.e * law.cdf(31), rel=1e-9)


def test_a_p_value_grows_with_the_loss_and_falls_with_the_examples() -> None:
    by_loss = [hoeffding_bentkus(risk / 1000, 200, 0.1) for risk in range(0, 200)]
    assert by_loss == sorted(by_loss)
    by_examples = [hoeffding_bentkus(0.05, examples, 0.1) for examples in (20, 100, 400, 2000)]
    assert by_examples == sorted(by_examples, reverse=True)


def test_a_sequence_stops_at_the_first_failure() -> None:
    assert fixed_sequence([0.01, 0.05, 0.2, 0.001], 0.05) == 2
    assert fixed_sequence([0.2, 0.001, 0.001], 0.05) == 0
    assert fixed_sequence([0.01, 0.02], 0.05) == 2
    assert fixed_sequence([], 0.05) == 0


def test_the_smallest_threshold_before_the_first_failure_is_chosen_whatever_the_order_of_rows() -> None:
    points = [Point(0.7, 0.0), Point(0.9, 0.01), Point(0.98, 0.0), Point(0.8, 0.3)]
    [sequence] = controlled(points, RiskSettings(tolerance=TOLERANCE, level=LEVEL))
    assert [point.threshold for point in sequence.points] == [0.98, 0.9, 0.8, 0.7]
    assert sequence.accepted == 2 and sequence.chosen == points[1]
    assert sequence.p_values[3] < LEVEL, "λ = 0.7 would pass, but is not reached"
    [refused] = controlled([Point(0.9, 0.2), Point(0.8, 0.0)], RiskSettings(tolerance=TOLERANCE, level=LEVEL))
    assert (refused.accepted, refused.chosen) == (0, None)


def test_sequences_of_other_settings_share_the_level_and_other_rows_are_left_out() -> None:
    points = [Point(0.9, 0.0), Point(0.9, 0.0, decay=4.0), Point(0.8, None), Point(0.7, 0.0, method="bild")]
    points.append(Point(0.6, 0.0, examples=None))
    found = controlled(points, RiskSettings(tolerance=TOLERANCE, level=LEVEL))
    assert [one.fixed for one in found] == [{"confidence": "softmax", "decay": decay} for decay in (0.0, 4.0)]
    assert [one.points for one in found] == [[points[0]], [points[1]]]
    assert {one.level for one in found} == {LEVEL / 2}


def bernoulli(rng: np.random.Generator, risk: float, examples: int) -> np.ndarray:
    return (rng.random((SETS, examples)) < risk).astype(float)


def beta(rng: np.random.Generator, risk: float, examples: int) -> np.ndarray:
    return rng.beta(2 * risk, 2 * (1 - risk), (SETS, examples))


def rare_and_whole(rng: np.random.Generator, risk: float, examples: int) -> np.ndarray:
    """Most texts lose a little, a few lose all."""
    return np.where(rng.random((SETS, examples)) < risk / 2, 1.0, (risk / 2) / (1 - risk / 2))


@pytest.mark.parametrize("draw", [bernoulli, beta, rare_and_whole])
@pytest.mark.parametrize("examples", [40, 400])
def test_a_risk_above_the_tolerance_is_accepted_in_no_more_sets_than_the_level(draw: Draw, examples: int) -> None:
    rng = np.random.default_rng(7)
    risks = draw(rng, TOLERANCE * 1.001, examples).mean(axis=1)
    accepted = np.mean([hoeffding_bentkus(float(risk), examples, TOLERANCE) <= LEVEL for risk in risks])
    assert accepted <= NOISE
    # The test is worth something: a third of the tolerance passes in most sets of 400, and a mean below δ alone never suffices.
    good = draw(rng, TOLERANCE / 3, 400).mean(axis=1)
    assert np.mean([hoeffding_bentkus(float(risk), 400, TOLERANCE) <= LEVEL for risk in good]) > 0.9
    assert np.mean(risks <= TOLERANCE) > 0.3


def test_a_grid_accepts_an_invalid_threshold_in_no_more_sets_than_the_level() -> None:
    """Two sequences of eight thresholds on the same texts, of which the lower ones are invalid."""
    rng, examples, thresholds = np.random.default_rng(11), 300, (0.98, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6)
    risks = (0.02, 0.04, 0.06, 0.08, 0.1001, 0.101, 0.105, 0.11)
    uniform = rng.random((SETS, 2, examples))
    means = np.stack([(uniform < risk).mean(axis=2) for risk in risks], axis=2)
    wrong = reached = 0
    for own in means:
        points = [
            Point(threshold, float(own[decay, index]), examples, decay=float(decay))
            for decay in range(2)
            for index, threshold in enumerate(thresholds)
        ]
        found = controlled(points, RiskSettings(tolerance=TOLERANCE, level=LEVEL))
        wrong += any(one.chosen is not None and one.chosen.threshold <= 0.8 for one in found)
        reached += any(one.chosen is not None and one.chosen.threshold <= 0.95 for one in found)
    assert wrong / SETS <= NOISE
    assert reached / SETS > 0.9
