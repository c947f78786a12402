"""Plans for many candidates: the frontier is timed, overheads are fitted, and no promising point is left."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.evaluation.frontier import TradeOff
from tasks.evaluation.selection import choose, keeps_quality
from tasks.evaluation.settings import CHOICES
from tasks.evaluation.sweep.plan import Candidate
from tests.unit.evaluation.sweep.plans import (
    KNOWN,
    MARGINS,
    TOKENS,
    candidate,
    grid,
    missed,
    plan_of,
    represented,
    run_plan,
    true_speedups,
)


@pytest.mark.parametrize("seed", range(6))
def test_exact_predictions_time_the_frontier_and_few_other_points(seed: int) -> None:
    candidates = grid(seed)
    plan, truth = plan_of(candidates, KNOWN), true_speedups(candidates)
    run_plan(plan, truth)
    assert missed(plan, truth, KNOWN) == []
    assert plan.predicted == pytest.approx(plan.timed)
    assert len(plan.timed) < len(candidates) / 3


@pytest.mark.parametrize(
    "overheads",
    [
        {"method 0": (0.0, 4.0)},
        {"method 0": (30.0, 0.0), "method 1": (0.0, 1.0)},
        {"method 0": (0.0, -4.0), "method 2": (10.0, 2.0)},
    ],
    ids=["per call", "per text", "both, and a negative one"],
)
@pytest.mark.parametrize("seed", range(6))
def test_the_plan_fits_the_overhead_of_each_method(seed: int, overheads: dict[str, tuple[float, float]]) -> None:
    candidates = grid(seed)
    plan, truth = plan_of(candidates, KNOWN), true_speedups(candidates, overheads)
    rounds = run_plan(plan, truth)
    assert missed(plan, truth, KNOWN) == []
    assert len(plan.timed) < len(candidates) / 2
    for number in rounds[0]:  # anchors are predicted from the runs alone
        off = plan.predicted[number] / plan.timed[number] - 1
        assert (abs(off) > 0.05) == (candidates[number].method in overheads)
    errors = [abs(plan.speedup(number) / truth(number) - 1) for number in candidates]
    unfitted = plan_of(candidates)
    assert sum(errors) < 0.4 * sum(abs(unfitted.speedup(number) / truth(number) - 1) for number in candidates)


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
def test_no_promising_point_is_left_untimed(
    candidates: dict[int, Candidate], speeds: list[float], failing: frozenset[int], near: float, sample: int
) -> None:
    plan = plan_of(candidates, KNOWN, near, sample)
    rounds = run_plan(plan, speeds.__getitem__, failing)
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
        for choice in CHOICES:
            kept = [keeps_quality(candidates[number].lower, MARGINS.of(choice)) for number in own]
            index = choose([points[number] for number in own], kept)
            assert index is None or own[index] in plan.timed or points[own[index]].speedup * (1 + near) <= 1
