"""Plans on synthetic candidates whose true speeds are known: which points are timed, and in which order."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.decoding.generation import Counts
from tasks.evaluation.frontier import TOLERANCES, TradeOff, choose, frontier
from tasks.evaluation.results.pair import PredictionError
from tasks.evaluation.sweeping.costs import Costs
from tasks.evaluation.sweeping.planning import Candidate, Plan, prediction_error

LARGE_MS, SMALL_MS, TOKENS = 10.0, 1.0, 20
Truth = Callable[[int], float]


def counts(small_steps: int, large_calls: int) -> Counts:
    return Counts(tokens=TOKENS, small_steps=small_steps, large_calls=large_calls, verified=Counter({1: large_calls}))


def candidate(method: str, quality: float, small_steps: int, large_calls: int) -> Candidate:
    return Candidate(method, quality, [counts(small_steps, large_calls)])


VANILLA = candidate("vanilla_large", 30.0, 0, TOKENS)


def plan_of(
    candidates: Mapping[int, Candidate],
    known: tuple[TradeOff, ...] = (TradeOff(30.0, 1.0),),
    near: float = 0.02,
    sample: int = 0,
    seed: int = 0,
) -> Plan:
    costs = Costs(0.0, 0.0, SMALL_MS, {1: LARGE_MS})
    return Plan(candidates, known, costs, VANILLA, near=near, sample=sample, seed=seed)


def true_speedups(candidates: Mapping[int, Candidate], beside: Mapping[str, tuple[float, float]] | None = None) -> Truth:
    """True speed-ups: the runs' costs, plus an overhead for each text and each call of a method."""

    def speedup(number: int) -> float:
        one = candidates[number]
        text, call = (beside or {}).get(one.method, (0.0, 0.0))
        return (
            TOKENS
            * LARGE_MS
            / (one.by_example[0].small_steps * SMALL_MS + one.by_example[0].large_calls * (LARGE_MS + call) + text)
        )

    return speedup


def followed(plan: Plan, truth: Truth, failing: frozenset[int] = frozenset()) -> list[list[int]]:
    """The points that the plan asks for, round by round, until it is done."""
    rounds = []
    while wanted := plan.next():
        rounds.append(wanted)
        for number in wanted:
            if number not in failing:
                plan.record(number, truth(number))
    return rounds


def grid(seed: int, methods: int = 3, points: int = 40) -> dict[int, Candidate]:
    """Methods that trade quality for speed, with noise around each method's curve."""
    rng, found = random.Random(seed), {}
    for number in range(methods * points):
        calls = rng.randint(3, TOKENS)
        quality = 20 + 10 * (calls / TOKENS) ** 0.5 + rng.gauss(0, 1.5)
        found[number] = candidate(f"method {number % methods}", quality, rng.randint(10, 40), calls)
    return found


def represented(point: TradeOff, plan: Plan, near: float = 0.02) -> bool:
    """Whether the point was timed, or one within `near` of its speed and 0.1 point or a fifth of its loss of its quality."""
    timed = [TradeOff(plan.candidates[number].quality, speedup) for number, speedup in plan.timed.items()]
    least = point.quality - max(0.1, (VANILLA.quality - point.quality) / 5) - 1e-8
    return any(one.quality >= least and one.speedup * (1 + near) >= point.speedup - 1e-9 for one in timed)


def missed(plan: Plan, truth: Truth, known: tuple[TradeOff, ...]) -> list[TradeOff]:
    """Points of the true frontier that are not represented by a timed point."""
    points = [TradeOff(one.quality, truth(number)) for number, one in plan.candidates.items()]
    return [
        points[index] for index in frontier([*points, *known]) if index < len(points) and not represented(points[index], plan)
    ]


KNOWN = (TradeOff(30.0, 1.0), TradeOff(21.0, 6.0))


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


@pytest.mark.parametrize("seed", range(6))
def test_with_exact_predictions_the_frontier_is_timed_and_little_else(seed: int) -> None:
    candidates = grid(seed)
    plan, truth = plan_of(candidates, KNOWN), true_speedups(candidates)
    followed(plan, truth)
    assert missed(plan, truth, KNOWN) == []
    assert plan.predicted == pytest.approx(plan.timed)
    assert len(plan.timed) < len(candidates) / 3


@pytest.mark.parametrize(
    "beside",
    [
        {"method 0": (0.0, 4.0)},
        {"method 0": (30.0, 0.0), "method 1": (0.0, 1.0)},
        {"method 0": (0.0, -4.0), "method 2": (10.0, 2.0)},
    ],
    ids=["per call", "per text", "both, and a negative one"],
)
@pytest.mark.parametrize("seed", range(6))
def test_the_plan_fits_the_overhead_of_a_method(seed: int, beside: dict[str, tuple[float, float]]) -> None:
    candidates = grid(seed)
    plan, truth = plan_of(candidates, KNOWN), true_speedups(candidates, beside)
    rounds = followed(plan, truth)
    assert missed(plan, truth, KNOWN) == []
    assert len(plan.timed) < len(candidates) / 2
    for number in rounds[0]:  # anchors are predicted from the runs alone
        off = plan.predicted[number] / plan.timed[number] - 1
        assert (abs(off) > 0.05) == (candidates[number].method in beside)
    errors = [abs(plan.speedup(number) / truth(number) - 1) for number in candidates]
    before = plan_of(candidates)
    assert sum(errors) < 0.4 * sum(abs(before.speedup(number) / truth(number) - 1) for number in candidates)


@pytest.mark.parametrize("near", [0.0, 0.02])
def test_points_near_the_frontier_are_timed(near: float) -> None:
    candidates = {
        0: candidate("bild", 25.0, 1, 10),  # 1 % slower than the small model
        1: candidate("bild", 25.0, 5, 10),  # 5 % slower
        2: candidate("bild", 29.9, 20, 15),
    }
    plan = plan_of(candidates, (TradeOff(30.0, 1.0), TradeOff(25.0, 2.0)), near)
    followed(plan, true_speedups(candidates))
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
    followed(plan, true_speedups(candidates))
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
    followed(plan, true_speedups(candidates))
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
    followed(plan, true_speedups(candidates))
    assert plan.why == {0: "anchor", 1: "choice"}


def test_points_behind_a_baseline_are_not_timed() -> None:
    candidates = {
        0: candidate("bild", 29.95, 10, 10),
        1: candidate("bild", 20.0, 10, 6),  # 2.9 times as fast, and worse than the small model
        2: candidate("bild", 26.0, 10, 6),
    }
    plan = plan_of(candidates, (TradeOff(30.0, 1.0), TradeOff(25.0, 3.5)))
    followed(plan, true_speedups(candidates))
    assert plan.timed.keys() == {0, 2}


def dominated(count: int) -> dict[int, Candidate]:
    """One good point and others far behind it."""
    return {0: candidate("bild", 30.0, 0, 4)} | {one: candidate("bild", 20.0, one, 10) for one in range(1, count)}


def test_the_sample_is_drawn_once_by_its_seed() -> None:
    candidates = dominated(30)
    drawn = []
    for seed in (0, 0, 1):
        plan = plan_of(candidates, sample=4, seed=seed)
        rounds = followed(plan, true_speedups(candidates))
        drawn.append({number for number, why in plan.why.items() if why == "sample"})
        assert [len(one) for one in rounds] == [1, 4]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_sample_is_at_most_the_rest() -> None:
    candidates = dominated(3)
    plan = plan_of(candidates, sample=10)
    followed(plan, true_speedups(candidates))
    assert plan.timed.keys() == candidates.keys()


def test_surprises_of_the_sample_are_followed_up() -> None:
    """All points but the anchor are far faster than predicted, which a point of the sample reveals."""
    candidates = {
        0: candidate("bild", 30.0, 0, 8),
        **{number: candidate("cascade", 25.0 - number, 0, 9 + number) for number in range(1, 6)},
    }
    runs = true_speedups(candidates)

    def truth(number: int) -> float:
        return runs(number) * (3 if number > 1 else 1)

    plan = plan_of(candidates, sample=1)
    rounds = followed(plan, truth)
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
    assert followed(plan, true_speedups(candidates), failing=frozenset({0})) == [[0], [1]]
    assert plan.timed.keys() == {1}


def test_a_fast_machine_and_a_slow_one_predict_alike() -> None:
    """Overheads are fitted to speed-ups, which are ratios to vanilla, not to milliseconds."""
    candidates = {0: candidate("bild", 29.95, 10, 10), 1: candidate("bild", 25.0, 10, 5)}
    plan = plan_of(candidates)
    assert plan.vanilla_ms == TOKENS * LARGE_MS
    plan.record(0, plan.speedup(0) / 1.25)
    assert plan.speedup(0) == pytest.approx(TOKENS * LARGE_MS / 110 / 1.25, rel=0.01)
    assert plan.speedup(1) < TOKENS * LARGE_MS / 60


def test_nothing_to_plan() -> None:
    plan = plan_of({})
    assert plan.next() == []
    assert prediction_error(plan) == PredictionError()


def test_prediction_errors_are_relative_to_measured_speedups() -> None:
    plan = plan_of(dominated(5))
    plan.predicted = {0: 9.0, 1: 1.5, 2: 2.2, 3: 1.0, 4: 7.0}
    plan.timed = {0: 2.0, 1: 1.0, 2: 2.0, 3: 2.0}  # 4 failed
    plan.why = {0: "anchor", 1: "frontier", 2: "sample", 3: "sample", 4: "sample"}
    found = prediction_error(plan)
    assert found.sample is not None and found.all is not None
    assert (found.sample.points, found.sample.mean, found.sample.worst) == pytest.approx((2, 0.3, 0.5))
    assert (found.all.points, found.all.mean, found.all.worst) == pytest.approx((3, 1.1 / 3, 0.5))


CANDIDATES = st.lists(
    st.builds(
        candidate,
        method=st.sampled_from(["bild", "speculative", "token_cascade"]),
        quality=st.integers(0, 35).map(float),
        small_steps=st.integers(0, 40),
        large_calls=st.integers(1, TOKENS),
    ),
    max_size=25,
).map(lambda found: dict(enumerate(found)))


@settings(max_examples=100, deadline=None)
@given(
    candidates=CANDIDATES,
    speeds=st.lists(st.floats(0.2, 8.0), min_size=25, max_size=25),
    failing=st.frozensets(st.integers(0, 24), max_size=5),
    near=st.sampled_from([0.0, 0.02, 0.5]),
    sample=st.integers(0, 4),
)
def test_every_plan_ends_with_no_promising_point_left(
    candidates: dict[int, Candidate], speeds: list[float], failing: frozenset[int], near: float, sample: int
) -> None:
    plan = plan_of(candidates, KNOWN, near, sample)
    rounds = followed(plan, speeds.__getitem__, failing)
    asked = [number for wanted in rounds for number in wanted]
    assert len(asked) == len(set(asked))
    assert set(asked) == plan.why.keys() == plan.predicted.keys()
    assert plan.timed.keys() == set(asked) - failing
    assert sum(why == "sample" for why in plan.why.values()) <= sample
    assert all(plan.speedup(number) > 0 for number in candidates)
    # Predictions of the final cost model; a failed point has none.
    points = {
        number: TradeOff(one.quality, plan.timed.get(number) or plan.speedup(number)) for number, one in candidates.items()
    }
    rest = [number for number in candidates if number not in asked]
    alive = [points[number] for number in candidates if number in plan.timed or number in rest]
    for number in rest:
        assert represented(points[number], plan, near) or any(
            other.quality >= points[number].quality and other.speedup > points[number].speedup * (1 + near)
            for other in [*alive, *KNOWN]
        )
    for method in {one.method for one in candidates.values()}:
        own = [
            number for number in candidates if candidates[number].method == method and (number in plan.timed or number in rest)
        ]
        for tolerance in TOLERANCES.values():
            index = choose([points[number] for number in own], VANILLA.quality, tolerance)
            assert index is None or own[index] in plan.timed or points[own[index]].speedup * (1 + near) <= 1
