"""Plans on made-up candidates whose true speeds are known: what is asked for, in which order, and what is left."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.decoding.generation import Counts
from tasks.evaluation.frontier import TOLERANCES, Point, choose, frontier
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
    known: tuple[Point, ...] = (Point(30.0, 1.0),),
    near: float = 0.02,
    sample: int = 0,
    seed: int = 0,
) -> Plan:
    costs = Costs(0.0, 0.0, SMALL_MS, {1: LARGE_MS})
    return Plan(candidates, known, costs, VANILLA, near=near, sample=sample, seed=seed)


def law(candidates: Mapping[int, Candidate], beside: Mapping[str, tuple[float, float]] | None = None) -> Truth:
    """True speed-ups: of runs as the costs have them, and what a text and a call of each method cost besides."""

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
    """What the plan asks for, round by round, until it asks for nothing."""
    rounds = []
    while wanted := plan.next():
        rounds.append(wanted)
        for number in wanted:
            if number not in failing:
                plan.note(number, truth(number))
    return rounds


def grid(seed: int, methods: int = 3, points: int = 40) -> dict[int, Candidate]:
    """Methods that trade quality for speed, each point a little off its method's line."""
    rng, found = random.Random(seed), {}
    for number in range(methods * points):
        calls = rng.randint(3, TOKENS)
        quality = 20 + 10 * (calls / TOKENS) ** 0.5 + rng.gauss(0, 1.5)
        found[number] = candidate(f"method {number % methods}", quality, rng.randint(10, 40), calls)
    return found


def told(point: Point, plan: Plan, near: float = 0.02) -> bool:
    """Whether that point, or one that is alike to within `near` and 0.1 point, or a fifth of what it loses, was timed."""
    timed = [Point(plan.candidates[number].quality, speedup) for number, speedup in plan.timed.items()]
    least = point.quality - max(0.1, (VANILLA.quality - point.quality) / 5) - 1e-8
    return any(one.quality >= least and one.speedup * (1 + near) >= point.speedup - 1e-9 for one in timed)


def missed(plan: Plan, truth: Truth, known: tuple[Point, ...]) -> list[Point]:
    """What of the true frontier of everything was not timed, nor anything alike."""
    points = [Point(one.quality, truth(number)) for number, one in plan.candidates.items()]
    return [points[index] for index in frontier([*points, *known]) if index < len(points) and not told(points[index], plan)]


KNOWN = (Point(30.0, 1.0), Point(21.0, 6.0))


def test_anchors_come_first_one_a_method_the_best_by_the_runs() -> None:
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
def test_where_predictions_are_right_the_whole_frontier_is_timed_and_little_else(seed: int) -> None:
    candidates = grid(seed)
    plan, truth = plan_of(candidates, KNOWN), law(candidates)
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
    ids=["a call", "a text", "both, and one that is cheaper than its runs"],
)
@pytest.mark.parametrize("seed", range(6))
def test_where_a_method_costs_more_than_its_runs_the_plan_learns_it(seed: int, beside: dict[str, tuple[float, float]]) -> None:
    candidates = grid(seed)
    plan, truth = plan_of(candidates, KNOWN), law(candidates, beside)
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
def test_what_is_nearly_as_fast_as_something_better_is_timed_too(near: float) -> None:
    candidates = {
        0: candidate("bild", 25.0, 1, 10),  # 1 % slower than the small model
        1: candidate("bild", 25.0, 5, 10),  # 5 % slower
        2: candidate("bild", 29.9, 20, 15),
    }
    plan = plan_of(candidates, (Point(30.0, 1.0), Point(25.0, 2.0)), near)
    followed(plan, law(candidates))
    assert plan.why == {2: "anchor"} | ({0: "frontier"} if near else {})


def test_of_points_alike_one_is_timed() -> None:
    candidates = {
        0: candidate("bild", 28.0, 0, 10),  # twice as fast as the large model, and 2 points lost
        1: candidate("bild", 28.0, 1, 10),  # 1 % slower
        2: candidate("bild", 28.3, 2, 10),  # and better by less than a fifth of what is lost
        3: candidate("bild", 28.5, 3, 10),  # and by more
        4: candidate("bild", 29.9, 20, 15),
        5: candidate("bild", 29.99, 21, 15),  # less than 0.1 point above the one before
    }
    plan = plan_of(candidates)
    followed(plan, law(candidates))
    assert plan.why == {4: "anchor", 0: "frontier", 3: "frontier"}


def test_what_a_method_would_be_chosen_for_is_timed_though_another_method_is_better() -> None:
    candidates = {
        0: candidate("better", 30.5, 0, 5),
        1: candidate("bild", 29.95, 0, 10),  # no loss
        2: candidate("bild", 29.2, 0, 8),  # within a point
        3: candidate("bild", 27.0, 0, 6),
        4: candidate("bild", 29.97, 0, 12),
    }
    plan = plan_of(candidates)
    followed(plan, law(candidates))
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
    followed(plan, law(candidates))
    assert plan.why == {0: "anchor", 1: "choice"}


def test_what_a_baseline_beats_is_not_wanted() -> None:
    candidates = {
        0: candidate("bild", 29.95, 10, 10),
        1: candidate("bild", 20.0, 10, 6),  # 2.9 times as fast, and worse than the small model
        2: candidate("bild", 26.0, 10, 6),
    }
    plan = plan_of(candidates, (Point(30.0, 1.0), Point(25.0, 3.5)))
    followed(plan, law(candidates))
    assert plan.timed.keys() == {0, 2}


def dominated(count: int) -> dict[int, Candidate]:
    """One good point, and others that it beats by far."""
    return {0: candidate("bild", 30.0, 0, 4)} | {one: candidate("bild", 20.0, one, 10) for one in range(1, count)}


def test_the_sample_is_drawn_once_by_its_seed() -> None:
    candidates = dominated(30)
    drawn = []
    for seed in (0, 0, 1):
        plan = plan_of(candidates, sample=4, seed=seed)
        rounds = followed(plan, law(candidates))
        drawn.append({number for number, why in plan.why.items() if why == "sample"})
        assert [len(one) for one in rounds] == [1, 4]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_sample_of_more_than_is_left_is_all_that_is_left() -> None:
    candidates = dominated(3)
    plan = plan_of(candidates, sample=10)
    followed(plan, law(candidates))
    assert plan.timed.keys() == candidates.keys()


def test_what_the_sample_teaches_is_followed_up() -> None:
    """All but the anchor are far faster than predicted, which a point of the sample brings to light."""
    candidates = {
        0: candidate("bild", 30.0, 0, 8),
        **{number: candidate("cascade", 25.0 - number, 0, 9 + number) for number in range(1, 6)},
    }
    runs = law(candidates)

    def truth(number: int) -> float:
        return runs(number) * (3 if number > 1 else 1)

    plan = plan_of(candidates, sample=1)
    rounds = followed(plan, truth)
    assert rounds[0] == [0, 1]
    assert [plan.why[number] for number in rounds[1]] == ["sample"]
    assert {plan.why[number] for wanted in rounds[2:] for number in wanted} == {"frontier"}
    assert rounds[2:]
    assert plan_of(candidates, sample=0).next() == [0, 1]


def test_a_point_that_failed_is_not_asked_for_again_and_the_next_best_is() -> None:
    candidates = {
        0: candidate("bild", 29.95, 0, 5),  # fails
        1: candidate("bild", 29.95, 0, 9),
        2: candidate("bild", 29.95, 0, 15),
    }
    plan = plan_of(candidates)
    assert followed(plan, law(candidates), failing=frozenset({0})) == [[0], [1]]
    assert plan.timed.keys() == {1}


def test_a_fast_machine_and_a_slow_one_predict_alike() -> None:
    """Latencies are learned as ratios to vanilla: what matters is the speed-up that is noted."""
    candidates = {0: candidate("bild", 29.95, 10, 10), 1: candidate("bild", 25.0, 10, 5)}
    plan = plan_of(candidates)
    assert plan.vanilla_ms == TOKENS * LARGE_MS
    plan.note(0, plan.speedup(0) / 1.25)
    assert plan.speedup(0) == pytest.approx(TOKENS * LARGE_MS / 110 / 1.25, rel=0.01)
    assert plan.speedup(1) < TOKENS * LARGE_MS / 60


def test_nothing_to_plan() -> None:
    plan = plan_of({})
    assert plan.next() == []
    assert prediction_error(plan) == {}


def test_prediction_errors_are_shares_of_what_was_measured() -> None:
    plan = plan_of(dominated(5))
    plan.predicted = {0: 9.0, 1: 1.5, 2: 2.2, 3: 1.0, 4: 7.0}
    plan.timed = {0: 2.0, 1: 1.0, 2: 2.0, 3: 2.0}  # 4 failed
    plan.why = {0: "anchor", 1: "frontier", 2: "sample", 3: "sample", 4: "sample"}
    found = prediction_error(plan)
    assert found["sample"] == pytest.approx({"points": 2, "mean": 0.3, "worst": 0.5})
    assert found["all"] == pytest.approx({"points": 3, "mean": 1.1 / 3, "worst": 0.5})


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


@settings(max_examples=150, deadline=None)
@given(
    candidates=CANDIDATES,
    speeds=st.lists(st.floats(0.2, 8.0), min_size=25, max_size=25),
    failing=st.frozensets(st.integers(0, 24), max_size=5),
    near=st.sampled_from([0.0, 0.02, 0.5]),
    sample=st.integers(0, 4),
)
def test_whatever_the_clock_says_a_plan_ends_with_nothing_promising_left(
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
    # Predictions are by what is known in the end; a point that failed has none.
    points = {number: Point(one.quality, plan.timed.get(number) or plan.speedup(number)) for number, one in candidates.items()}
    rest = [number for number in candidates if number not in asked]
    alive = [points[number] for number in candidates if number in plan.timed or number in rest]
    for number in rest:
        assert told(points[number], plan, near) or any(
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
