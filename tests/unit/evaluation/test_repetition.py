"""What counts as a loop: long enough, often enough, anywhere."""

from __future__ import annotations

import random

import pytest

from tasks.evaluation.sweep.point import is_looping

START, REST = [50, 51, 52, 53], [60, 61, 62, 63, 1]


@pytest.mark.parametrize(
    ("group", "times", "loops"),
    [
        ([7], 12, True),
        ([7], 11, False),
        ([7, 8], 6, True),
        ([7, 8], 5, False),
        ([7, 8, 9], 4, True),
        ([7, 8, 9], 3, False),
        ([7, 8, 9, 10], 3, True),
        ([7, 8, 9, 10], 2, False),
        (list(range(16)), 3, True),
        (list(range(16)), 2, False),
        (list(range(17)), 3, False),
    ],
)
@pytest.mark.parametrize("before", [[], START])
@pytest.mark.parametrize("after", [[], REST])
def test_the_shortest_loops_of_each_length(
    group: list[int], times: int, loops: bool, before: list[int], after: list[int]
) -> None:
    assert is_looping(before + group * times + after) is loops


def test_text_without_a_stretch_that_repeats_itself_is_no_loop() -> None:
    rng = random.Random(1)
    assert not any(is_looping([rng.randrange(40) for _ in range(60)]) for _ in range(300))
    assert not is_looping([])
    often = [number for pause in range(20) for number in (7, 100 + pause)]
    assert not is_looping(often)
