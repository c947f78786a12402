"""The comparison of a planned sweep with an exhaustive one: missed points and differing outcomes."""

import dataclasses
from typing import Any

import pytest

from tasks.bench.sweep import missed_share, retiming, unequal
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.rows import DecodingCounts, MeasuredRow
from tests.unit.evaluation.conftest import timed


def row(name: int, quality: float, speedup: float | None, method: str = "bild") -> MeasuredRow:
    about: dict[str, Any] = {"arm": "unaligned", "settings": {"max_draft": name}, "counts": DecodingCounts(tokens=10 * name)}
    if speedup is None:
        return joined(MeasuredRow, timed(method, 1.0, quality, **about))
    return timed(method, speedup, quality, speedup_interval=(0.96 * speedup, 1.04 * speedup), **about)


VANILLA = row(0, 94.0, 1.0, "vanilla_large")
SPEEDS = {90.0: 3.0, 92.0: 2.5, 92.05: 2.45, 94.0: 1.5, 91.0: 1.0}
WHOLE: list[MeasuredRow] = [VANILLA, *(row(number, *one) for number, one in enumerate(SPEEDS.items(), 1))]


def planned(timed: set[int]) -> list[MeasuredRow]:
    """The planned sweep, whose own times are not compared."""
    return [row(name, one.quality["bleu"], 1.1 if name in timed else None) for name, one in enumerate(WHOLE[1:], start=1)]


def test_the_whole_frontier_was_timed() -> None:
    assert missed_share(planned({1, 2, 3, 4}), WHOLE) == {"frontier": 4, "points": 0, "mean": 0.0, "worst": 0.0}


def test_a_similar_point_represents_another_within_a_tenth_of_a_point_and_the_interval() -> None:
    assert missed_share(planned({1, 3, 4}), WHOLE) == {"frontier": 4, "points": 0, "mean": 0.005, "worst": 0.02}
    assert missed_share(planned({1, 2, 4}), WHOLE) == {"frontier": 4, "points": 0, "mean": 0.0, "worst": 0.0}


def test_a_frontier_point_far_from_all_timed_points_is_missed() -> None:
    # In place of 2.5 and 2.45 there is 1.5; in place of 1.5 nothing.
    assert missed_share(planned({1, 4}), WHOLE) == {"frontier": 4, "points": 2, "mean": 0.1969, "worst": 0.4}
    assert missed_share(planned({1, 2}), WHOLE) == {"frontier": 4, "points": 1, "mean": 0.25, "worst": 1.0}


def test_a_point_within_timing_noise_is_not_missed() -> None:
    assert missed_share(planned({1, 4}), WHOLE, apart=0.39)["points"] == 1
    assert missed_share(planned({1, 4}), WHOLE, apart=0.41)["points"] == 0
    # 1.1 twice, in place of 3 and 1.5.
    assert retiming(planned({1, 4}), WHOLE) == pytest.approx((1.9 / 3 + 0.4 / 1.5) / 2)


def test_differences_of_replayed_and_decoded_quality_or_counts_are_counted() -> None:
    found = planned({1})
    assert unequal(found, WHOLE) == 0
    found[1] = dataclasses.replace(found[1], quality={"bleu": 92.1})
    found[3] = dataclasses.replace(found[3], counts=DecodingCounts(tokens=41))
    assert unequal(found, WHOLE) == 2
