"""Two sweeps of one pair compared: disagreement, and intervals that hold each other's speed-up."""

from __future__ import annotations

import dataclasses

import pytest

from tasks.bench.repeat import agreement
from tasks.errors import InputError
from tasks.evaluation.results.rows import MeasuredRow, TimedRow
from tests.unit.bench.test_sweep_bench import VANILLA, row


def again(one: MeasuredRow, factor: float) -> MeasuredRow:
    """The point as another sweep timed it, with an interval of 4 % to either side."""
    assert isinstance(one, TimedRow)
    speedup = one.speedup * factor
    return dataclasses.replace(one, speedup=speedup, speedup_interval=(0.96 * speedup, 1.04 * speedup))


def test_two_sweeps_by_hand() -> None:
    first = [VANILLA, *(row(number, 90.0, 2.0) for number in range(1, 5)), row(9, 90.0, None)]
    second = [VANILLA, *map(again, first[1:4], (1.0, 1.02, 1.3)), row(4, 90.0, None), row(8, 90.0, 3.0)]
    assert agreement(first, second) == {
        "points": 3,
        "disagreement": 0.02,
        "worst": 0.3,
        "covered": pytest.approx(2 / 3, abs=1e-4),
        "half_width": 0.04,
    }


def test_each_interval_has_to_hold_the_other() -> None:
    wide = dataclasses.replace(row(1, 90.0, 2.0), speedup_interval=(1.0, 4.0))  # type: ignore[call-arg]
    narrow = row(1, 90.0, 2.2)
    assert agreement([wide], [narrow])["covered"] == agreement([narrow], [wide])["covered"] == 0


def test_sweeps_without_a_common_point_are_refused() -> None:
    with pytest.raises(InputError, match="no point in common"):
        agreement([VANILLA, row(1, 90.0, 2.0)], [VANILLA, row(2, 90.0, 2.0)])
