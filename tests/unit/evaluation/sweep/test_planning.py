"""Plans for a few candidates: which points are timed, why, and in which order."""

from __future__ import annotations

import dataclasses

import pytest

from tasks.evaluation.frontier import TradeOff
from tasks.evaluation.results.pair import PredictionError
from tasks.evaluation.sweep.plan import Candidate, prediction_error
from tests.unit.evaluation.sweep.plans import (
    LARGE_MS,
    TOKENS,
    candidate,
    plan_of,
    run_plan,
    true_speedups,
)


def test_the_best_point_of_each_method_is_timed_first() -> None:
    candidates = {
        0: candidate("bild", 29.5, 20, 10),
        1: candidate("bild", 29.6, 20, 8),  # the fastest within a point of the large model
        2: candidate("bild", 25.0, 20, 2),
        3: candidate("speculative", 20.0, 20, 9),
        4: candidate("speculative", 28.0, 20, 9),  # none is within a point: the best
    }
    plan = plan_of(candidates)
    assert plan.next() == [1, 4]
    assert plan.why == {1: "anchor", 4: "anchor"}


@pytest.mark.parametrize("near", [0.0, 0.02])
def test_points_near_the_frontier_are_timed(near: float) -> None:
    candidates = {
        0: candidate("bild", 25.0, 1, 10),  # 1 % slower than the small model
        1: candidate("bild", 25.0, 5, 10),  # 5 % slower
        2: candidate("bild", 29.9, 20, 15),
    }
    plan = plan_of(candidates, (TradeOff(30.0, 1.0), TradeOff(25.0, 2.0)), near)
    run_plan(plan, true_speedups(candidates))
    assert plan.why == {2: "anchor"} | ({0: "frontier"} if near else {})


def test_one_of_several_similar_points_is_timed() -> None:
    candidates = {
        0: candidate("bild", 28.0, 0, 10),  # twice as fast as the large model, and 2 points lost
        1: candidate("bild", 28.0, 1, 10),  # 1 % slower
        2: candidate("bild", 28.3, 2, 10),  # and better by less than a fifth of what is lost
        3: candidate("bild", 28.5, 3, 10),  # and by more
        4: candidate("bild", 29.9, 20, 15),
        5: candidate("bild", 29.99, 21, 15),  # less than 0.1 point above the one before
    }
    plan = plan_of(candidates)
    run_plan(plan, true_speedups(candidates))
    assert plan.why == {4: "anchor", 0: "frontier", 3: "frontier"}


def test_choices_of_a_method_are_timed_even_behind_another_method() -> None:
    candidates = {
        0: candidate("better", 30.5, 0, 5),
        1: candidate("bild", 29.95, 0, 10),  # no loss
        2: candidate("bild", 29.2, 0, 8),  # within a point
        3: candidate("bild", 27.0, 0, 6),
        4: candidate("bild", 29.97, 0, 12),
    }
    plan = plan_of(candidates)
    run_plan(plan, true_speedups(candidates))
    assert plan.why == {0: "anchor", 2: "anchor", 1: "choice"}


def test_each_rule_of_a_method_is_timed_at_no_loss() -> None:
    def ruled(rule: str, quality: float, calls: int) -> Candidate:
        return dataclasses.replace(candidate("cascade", quality, 0, calls), rule=rule)

    candidates = {
        0: ruled("opt", 30.5, 5),
        1: ruled("chow", 30.0, 8),
        2: ruled("chow", 29.5, 7),  # within a point, which is asked of the method
        3: ruled("diff", 30.0, 25),  # slower than the large model
    }
    plan = plan_of(candidates)
    run_plan(plan, true_speedups(candidates))
    assert plan.why == {0: "anchor", 1: "choice"}


def test_points_behind_a_baseline_are_not_timed() -> None:
    candidates = {
        0: candidate("bild", 29.95, 10, 10),
        1: candidate("bild", 20.0, 10, 6),  # 2.9 times as fast, and worse than the small model
        2: candidate("bild", 26.0, 10, 6),
    }
    plan = plan_of(candidates, (TradeOff(30.0, 1.0), TradeOff(25.0, 3.5)))
    run_plan(plan, true_speedups(candidates))
    assert plan.timed.keys() == {0, 2}


def dominated(count: int) -> dict[int, Candidate]:
    """One good point and others far behind it."""
    return {0: candidate("bild", 30.0, 0, 4)} | {one: candidate("bild", 20.0, one, 10) for one in range(1, count)}


def test_the_sample_is_drawn_once_by_its_seed() -> None:
    candidates = dominated(30)
    drawn = []
    for seed in (0, 0, 1):
        plan = plan_of(candidates, sample=4, seed=seed)
        rounds = run_plan(plan, true_speedups(candidates))
        drawn.append({number for number, why in plan.why.items() if why == "sample"})
        assert [len(one) for one in rounds] == [1, 4]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_sample_is_at_most_the_rest() -> None:
    candidates = dominated(3)
    plan = plan_of(candidates, sample=10)
    run_plan(plan, true_speedups(candidates))
    assert plan.timed.keys() == candidates.keys()


def test_a_surprising_sample_point_leads_to_more_timings() -> None:
    """All points but the anchor are far faster than predicted, which a point of the sample reveals."""
    candidates = {
        0: candidate("bild", 30.0, 1, 8),
        **{number: candidate("cascade", 25.0 - number, 1, 9 + number) for number in range(1, 6)},
    }
    runs = true_speedups(candidates)

    def truth(number: int) -> float:
        return runs(number) * (3 if number > 1 else 1)

    plan = plan_of(candidates, sample=1)
    rounds = run_plan(plan, truth)
    assert rounds[0] == [0, 1]
    assert [plan.why[number] for number in rounds[1]] == ["sample"]
    assert {plan.why[number] for wanted in rounds[2:] for number in wanted} == {"frontier"}
    assert rounds[2:]
    assert plan_of(candidates, sample=0).next() == [0, 1]


def test_after_a_failed_point_the_next_best_is_timed() -> None:
    candidates = {
        0: candidate("bild", 29.95, 0, 5),  # fails
        1: candidate("bild", 29.95, 0, 9),
        2: candidate("bild", 29.95, 0, 15),
    }
    plan = plan_of(candidates)
    assert run_plan(plan, true_speedups(candidates), failing=frozenset({0})) == [[0], [1]]
    assert plan.timed.keys() == {1}


def test_predictions_do_not_depend_on_the_speed_of_the_machine() -> None:
    """Overheads are fitted to speed-ups, which are ratios to vanilla, not to milliseconds."""
    candidates = {0: candidate("bild", 29.95, 10, 10), 1: candidate("bild", 25.0, 10, 5)}
    plan = plan_of(candidates)
    assert plan.vanilla_ms == TOKENS * LARGE_MS
    plan.record(0, plan.speedup(0) / 1.25)
    assert plan.speedup(0) == pytest.approx(TOKENS * LARGE_MS / 110 / 1.25, rel=0.01)
    assert plan.speedup(1) < TOKENS * LARGE_MS / 60


def test_an_empty_grid_has_an_empty_plan() -> None:
    plan = plan_of({})
    assert plan.next() == []
    assert prediction_error(plan) == PredictionError()


def test_prediction_errors_are_relative_to_measured_speedups() -> None:
    plan = plan_of(dominated(5))
    plan.predicted = {0: 9.0, 1: 1.5, 2: 2.2, 3: 1.0, 4: 7.0}
    plan.timed = {0: 2.0, 1: 1.0, 2: 2.0, 3: 2.0}  # 4 failed
    plan.why = {0: "anchor", 1: "frontier", 2: "sample", 3: "sample", 4: "sample"}
    found = prediction_error(plan)
    assert found.sample is not None and found.frontier is not None and found.all is not None
    wanted = {
        "sample": (2, 0.3, 0.5, -0.2),
        "frontier": (1, 0.5, 0.5, 0.5),
        "all": (4, (3.5 + 0.5 + 0.1 + 0.5) / 4, 3.5, (3.5 + 0.5 + 0.1 - 0.5) / 4),
    }
    for name, numbers in wanted.items():
        assert dataclasses.astuple(getattr(found, name)) == pytest.approx(numbers)
