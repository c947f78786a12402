"""Changes with known answers, and noise that is found as often as it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.evaluation.changes import (
    LEVEL,
    Change,
    MeasuredCurve,
    MeasuredPoint,
    difference,
    error_of,
    frontier_changes,
    log_error_of,
    more_than_noise,
    speedup_ratio,
)

Latencies = NDArray[np.float64]


def measured(quality: float, speedup: float, latencies: Latencies | None = None, error: float | None = 0.1) -> MeasuredPoint:
    return MeasuredPoint(
        quality=quality, quality_error=1.0, loss_error=error, speedup=speedup, speedup_error=error, latencies=latencies
    )


def timed(speedup: float, rng: np.random.Generator, lengths: Latencies) -> MeasuredPoint:
    """A method that is on average `speedup` times as fast as vanilla, both timed with noise of a tenth."""
    noise = np.exp(0.1 * rng.normal(size=(len(lengths), 2)))
    latencies = np.column_stack((lengths, lengths / speedup)) * noise
    sums = latencies.sum(axis=0)
    return measured(60.0, float(sums[0] / sums[1]), latencies)


def test_the_error_behind_an_interval_is_half_its_width() -> None:
    assert error_of([10 - 1.959964, 10 + 1.959964]) == pytest.approx(1.0)
    assert log_error_of([math.exp(-1.959964), math.exp(1.959964)]) == pytest.approx(1.0)
    assert error_of(None) is None
    assert log_error_of([0.0, 1.0]) is None


def test_a_difference_by_hand() -> None:
    change = difference(30.0, 31.0, 0.3, 0.4)
    assert change.value == 1.0
    assert change.interval == pytest.approx((1 - 0.98, 1 + 0.98), abs=1e-4)
    assert change.p == pytest.approx(math.erfc(2 / math.sqrt(2)))


def test_a_point_against_itself_is_no_change() -> None:
    rng = np.random.default_rng(1)
    one = timed(1.5, rng, rng.uniform(10, 50, 40))
    for paired in (True, False):
        change = speedup_ratio(one, one, paired)
        assert change is not None and change.value == 1 and change.p == 1
    assert speedup_ratio(one, one, paired=True) == Change(1.0, (1.0, 1.0), 1.0)


def test_a_faster_copy_is_found_and_pairing_sees_more() -> None:
    rng = np.random.default_rng(2)
    lengths = rng.uniform(10, 50, 40)
    # Long examples gain more in both results: what they share is noise unless they are paired.
    gains = 1 + lengths / 20
    before = np.column_stack((lengths, lengths / gains))
    after = before / np.array([1.0, 1.06])
    first, second = (measured(60.0, float(one[:, 0].sum() / one[:, 1].sum()), one) for one in (before, after))
    paired, unpaired = (speedup_ratio(first, second, paired) for paired in (True, False))
    assert paired is not None and unpaired is not None and paired.interval is not None and unpaired.interval is not None
    assert paired.value == unpaired.value == pytest.approx(1.06)
    assert paired.interval == pytest.approx((1.06, 1.06))
    assert paired.p == pytest.approx(0)
    assert unpaired.interval[0] < 1 < unpaired.interval[1]


@pytest.mark.parametrize("paired", [True, False])
def test_noise_is_called_a_change_of_speed_in_about_five_per_cent(paired: bool) -> None:
    rng = np.random.default_rng(3)
    found, runs = 0, 400
    for _ in range(runs):
        lengths = [rng.uniform(10, 50, 60) for _ in range(2)]
        both = [timed(1.5, rng, lengths[0 if paired else index]) for index in range(2)]
        change = speedup_ratio(both[0], both[1], paired, samples=200)
        assert change is not None and change.p is not None
        found += change.p < LEVEL
    assert 0.025 < found / runs < 0.085


def test_noise_is_called_a_change_of_quality_in_about_five_per_cent() -> None:
    draws = np.random.default_rng(4).normal(30.0, 0.7, size=(2000, 2))
    found = [difference(ours, theirs, 0.7, 0.7).p for ours, theirs in draws.tolist()]
    assert 0.04 < sum(p is not None and p < LEVEL for p in found) / len(found) < 0.06


def test_of_many_unchanged_numbers_any_is_named_in_at_most_five_per_cent() -> None:
    draws = np.random.default_rng(5).normal(size=(1000, 20, 2))
    named = [
        any(more_than_noise([difference(ours, theirs, 1.0, 1.0) for ours, theirs in numbers])) for numbers in draws.tolist()
    ]
    assert sum(named) / len(named) < 0.07
    alone = [
        any(more_than_noise([difference(ours, theirs, 1.0, 1.0)])[0] for ours, theirs in numbers) for numbers in draws.tolist()
    ]
    assert sum(alone) / len(alone) > 0.5, "without looking at them together, most runs would name one"


def test_holm_continues_after_the_smallest_p_value() -> None:
    changes = [Change(0.0, None, p) for p in (0.04, 0.001, 0.02)]
    assert more_than_noise(changes) == [True, True, True]
    changes = [Change(0.0, None, p) for p in (0.04, 0.001, 0.03, None)]
    assert more_than_noise(changes) == [False, True, False, False]


def curve(rng: np.random.Generator, lengths: Latencies, faster: float = 1.0, vanilla: float = 60.0) -> MeasuredCurve:
    points = []
    for loss, speedup in ((0.0, 1.2), (0.5, 1.5), (1.5, 2.0)):
        one = timed(speedup * faster, rng, lengths)
        points.append(measured(vanilla - loss + 0.05 * rng.normal(), one.speedup or 0, one.latencies, error=0.05))
    return MeasuredCurve(points, vanilla)


def test_a_frontier_against_itself_is_no_change() -> None:
    rng = np.random.default_rng(6)
    one = curve(rng, rng.uniform(10, 50, 40))
    found = frontier_changes(one, one, paired=True)
    assert found is not None
    assert [change.value for change in found] == [0, 1]
    assert more_than_noise(list(found)) == [False, False]


def test_a_faster_frontier_is_found_and_another_vanilla_is_not() -> None:
    rng = np.random.default_rng(7)
    lengths = rng.uniform(10, 50, 40)
    first = curve(rng, lengths)
    faster = frontier_changes(first, curve(rng, lengths, faster=1.3), paired=True)
    assert faster is not None
    assert faster[1].value == pytest.approx(1.3, rel=0.1)
    assert more_than_noise(list(faster))[1]
    better = frontier_changes(first, curve(rng, lengths, vanilla=70.0), paired=True)
    assert better is not None
    assert more_than_noise(list(better)) == [False, False]


def test_frontiers_without_errors_are_compared_but_not_tested() -> None:
    blind = [MeasuredPoint(60 - index, None, None, 1.2 + index, None, None) for index in range(3)]
    found = frontier_changes(MeasuredCurve(blind, 60.0), MeasuredCurve(blind, 60.0), paired=False)
    assert found == (Change(0.0, None, None), Change(1.0, None, None))
    assert frontier_changes(MeasuredCurve([], 60.0), MeasuredCurve(blind, 60.0), paired=False) is None
