import dataclasses

import pytest

from tasks.evaluation.frontier import TradeOff, frontier, tradeoff_of
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
