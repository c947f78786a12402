"""Choices by hand: the fastest whose bound keeps the margin, on validation alone."""

from __future__ import annotations

import pytest

from tasks.evaluation.frontier import TradeOff
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.rows import DecodingCounts, DifferenceBounds, FailedRow, SweepRow, TimedRow
from tasks.evaluation.selection import choose, choose_rows, keeps_quality
from tasks.evaluation.settings import MarginSettings


@pytest.mark.parametrize(
    ("lower", "margin", "kept"),
    [(-0.4, 0.5, True), (-0.5, 0.5, False), (-0.6, 0.5, False), (0.3, 0.5, True), (0.0, 0.5, True), (None, 100.0, False)],
)
def test_the_bound_has_to_lie_above_minus_the_margin(lower: float | None, margin: float, kept: bool) -> None:
    assert keeps_quality(lower, margin) is kept


def test_the_fastest_that_keeps_the_quality_is_chosen() -> None:
    points = [TradeOff(60, 3.0), TradeOff(60, 1.5), TradeOff(60, 2.0), None]
    assert choose(points, [False, True, True, True]) == 2
    assert choose(points, [False] * 4) is None


def test_ties_go_to_the_better_then_to_the_first_and_a_choice_may_be_slower_than_vanilla() -> None:
    assert choose([TradeOff(60, 2.0), TradeOff(61, 2.0), TradeOff(61, 2.0)], [True] * 3) == 1
    assert choose([TradeOff(60, 0.5), TradeOff(60, 0.8)], [True, True]) == 1


def timed(method: str, lower: float | None, speedup: float, split: str = "validation") -> TimedRow:
    return TimedRow(
        arm="aligned",
        split=split,
        method=method,
        settings={},
        lossless=False,
        metric="bleu",
        quality={"bleu": 60.0},
        difference_bounds=None if lower is None else DifferenceBounds(lower=lower, upper=0.0, compared=1),
        counts=DecodingCounts(tokens=1),
        latency_ms=[1.0],
        vanilla_latency_ms=[speedup],
        speedup=speedup,
    )


VANILLA = timed("vanilla_large", 0.0, 1.0)


def test_rows_are_chosen_by_method_on_validation_alone() -> None:
    rows: list[SweepRow] = [
        timed("bild", -0.7, 2.0),
        VANILLA,
        timed("vanilla_small", 0.0, 9.0),
        timed("bild", -0.3, 1.4),
        timed("speculative", 0.0, 1.2),
        timed("bild", 0.0, 5.0, split="test"),
        joined(FailedRow, timed("bild", 0.0, 4.0), error="out of memory"),
        timed("bild", None, 8.0),
    ]
    assert choose_rows(rows) == {
        ("bild", "no_loss"): 3,
        ("bild", "one_point"): 0,
        ("speculative", "no_loss"): 4,
        ("speculative", "one_point"): 4,
    }
    assert choose_rows(rows, MarginSettings(no_loss=0.8))["bild", "no_loss"] == 0


def test_without_vanilla_or_without_a_good_point_nothing_is_chosen() -> None:
    assert choose_rows([timed("bild", 0.0, 2.0)]) == {}
    assert choose_rows([VANILLA, timed("bild", -10.0, 2.0)])["bild", "one_point"] is None


def test_margins_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one_point is 0.4; it must be at least no_loss"):
        MarginSettings(one_point=0.4)
