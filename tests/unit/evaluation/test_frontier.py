import dataclasses

import pytest

from tasks.evaluation.frontier import TradeOff, frontier, frontier_gap, tradeoff_of
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.rows import FailedRow, MeasuredRow, Prediction, SweepRow
from tests.unit.evaluation.conftest import timed


def at(latency: float, quality: float) -> TradeOff:
    return TradeOff(quality, 1.0 / latency)


def test_the_frontier_drops_what_is_beaten_and_keeps_indices() -> None:
    points = [TradeOff(50, 2.0), TradeOff(49, 1.5), None, TradeOff(60, 1.2), TradeOff(60, 1.1), TradeOff(61, 0.9)]
    assert frontier([*points, points[0]]) == [0, 3, 5]
    assert frontier([TradeOff(50, 2.0), TradeOff(51, 2.0)]) == [1], "of equally fast points the better"


@pytest.mark.parametrize(
    "broken",
    [
        timed("bild", 1.0, float("nan")),
        timed("bild", float("inf")),
        timed("bild", 0.0),
        dataclasses.replace(timed("bild", 1.0), metric="rougeL"),
        joined(FailedRow, timed("bild", 1.0), error="out of memory"),
        joined(MeasuredRow, timed("bild", 2.0), predicted=Prediction(latency_ms=1.0, speedup=2.0)),
    ],
)
def test_rows_without_finite_measurements_are_no_points(broken: SweepRow) -> None:
    assert tradeoff_of(broken) is None


def test_the_gap_of_two_staircases_by_hand() -> None:
    # Quality within a latency: first 10 from 0.25, 20 from 0.5; second 12 from 0.4, 16 from 0.8.
    gap = frontier_gap([at(0.25, 10), at(0.5, 20)], [at(0.4, 12), at(0.8, 16)])
    # From 0.4 to 0.5 the first lies 2 below, from 0.5 to 0.8 it lies 8 above.
    assert (gap.latency_from, gap.latency_to) == pytest.approx((0.4, 0.8))
    assert gap.mean_quality_difference == pytest.approx((0.1 * -2 + 0.3 * 8) / 0.4)
    assert (gap.share_above, gap.share_below) == pytest.approx((0.75, 0.25))
    # Qualities from 12 to 16: the first needs 0.5, the second 0.8.
    assert (gap.quality_from, gap.quality_to) == (12, 16)
    assert gap.mean_speedup_ratio == pytest.approx(0.8 / 0.5)


def test_the_speed_ratio_is_a_geometric_mean_over_qualities() -> None:
    first, second = [at(0.1, 0), at(0.2, 10), at(0.4, 20)], [at(0.2, 0), at(0.2, 10), at(0.1, 20)]
    gap = frontier_gap(first, second)
    # The second is one point, (0.1, 20): beyond it nothing is on the frontier, and only quality 20 is common.
    assert gap.mean_speedup_ratio == pytest.approx(0.25)
    gap = frontier_gap([at(0.1, 0), at(0.2, 10), at(0.4, 20)], [at(0.1, 0), at(0.4, 10), at(0.4, 20)])
    # Half of the qualities come twice as fast, the other half as fast.
    assert gap.mean_speedup_ratio == pytest.approx(2**0.5)


def test_a_faster_point_of_equal_quality_shows_in_the_speed_ratio() -> None:
    gap = frontier_gap([at(0.5, 60)], [at(0.8, 60)])
    assert gap.latency_from == gap.latency_to == pytest.approx(0.8)
    assert gap.mean_quality_difference == 0
    assert gap.mean_speedup_ratio == pytest.approx(1.6)


def test_one_frontier_wholly_above_the_other() -> None:
    gap = frontier_gap([at(0.5, 60), at(0.6, 61)], [at(0.7, 50), at(0.8, 51)])
    assert gap.mean_quality_difference == pytest.approx(11.0)
    assert gap.share_above == 1.0
    assert gap.quality_from == gap.quality_to == 51
    assert gap.mean_speedup_ratio == pytest.approx(0.8 / 0.5)


def test_what_is_slower_than_vanilla_is_left_out() -> None:
    assert frontier_gap([at(0.5, 60)], [at(1.2, 61)]) is None
    assert frontier_gap([at(0.5, 60)], [at(1.2, 61)], latency_limit=2.0) is not None
    assert frontier_gap([], [at(0.5, 60)]) is None
