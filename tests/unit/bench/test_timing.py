"""Interleaved timing and ratios, with clocks whose readings are given."""

from __future__ import annotations

import random

import torch

from tasks.bench.timing import fastest, median_ratio, time_interleaved, timed_by


def test_work_is_timed_by_the_given_clock() -> None:
    readings = iter((10.0, 12.5))
    rounds: list[int] = []
    timed = timed_by(rounds.append, lambda: next(readings))
    assert timed(7) == 2.5
    assert rounds == [7]


def test_threads_are_set_during_the_work_only() -> None:
    before = torch.get_num_threads()
    seen: list[int] = []
    timed_by(lambda _index: seen.append(torch.get_num_threads()), threads=before + 1)(0)
    assert (seen, torch.get_num_threads()) == ([before + 1], before)


def test_all_contenders_do_each_round_and_the_first_is_not_counted() -> None:
    log: list[tuple[str, int]] = []

    def contender(name: str, seconds: float) -> object:
        def timed(index: int) -> float:
            log.append((name, index))
            return 100.0 if index == 0 else seconds + index

        return timed

    taken = time_interleaved({"a": contender("a", 0.0), "b": contender("b", 10.0)}, 20, random.Random(1))  # type: ignore[dict-item]
    assert taken == {"a": [float(index) for index in range(1, 21)], "b": [10.0 + index for index in range(1, 21)]}
    orders = {tuple(name for name, index in log if index == one) for one in range(21)}
    assert [index for _name, index in log] == [index for index in range(21) for _ in range(2)]
    assert orders == {("a", "b"), ("b", "a")}


def test_the_ratio_is_the_median_of_the_rounds_not_of_the_times() -> None:
    ours, theirs = [1.0, 2.0, 10.0], [3.0, 4.0, 50.0]
    assert median_ratio(ours, theirs) == 3.0  # of 3, 2 and 5; the medians themselves are 2 and 4
    assert median_ratio(theirs, ours) == 1 / 3


def test_the_fastest_has_the_smallest_median() -> None:
    assert fastest({"lucky once": [0.1, 5.0, 5.0], "steady": [2.0, 2.0, 2.0], "slow": [3.0, 3.0, 3.0]}) == "steady"
