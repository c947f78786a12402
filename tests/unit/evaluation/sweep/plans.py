"""Synthetic candidates whose true speeds are known, and plans for them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping

from tasks.decoding.generation import Counts
from tasks.evaluation.frontier import TradeOff, frontier
from tasks.evaluation.settings import MarginSettings, SweepSettings
from tasks.evaluation.sweep.plan import Candidate, Costs, Plan

LARGE_MS, SMALL_MS, TOKENS = 10.0, 1.0, 20
MARGINS = MarginSettings(no_loss=0.11, one_point=1.01)
Truth = Callable[[int], float]


def counts(small_steps: int, large_calls: int) -> Counts:
    return Counts(tokens=TOKENS, small_steps=small_steps, large_calls=large_calls, verified=Counter({1: large_calls}))


def candidate(method: str, quality: float, small_steps: int, large_calls: int) -> Candidate:
    """A candidate whose bound is its difference to a vanilla of 30 points."""
    return Candidate(method, quality, [counts(small_steps, large_calls)], quality - 30.0)


VANILLA = candidate("vanilla_large", 30.0, 0, TOKENS)
KNOWN = (TradeOff(30.0, 1.0), TradeOff(21.0, 6.0))


def plan_of(
    candidates: Mapping[int, Candidate],
    known: tuple[TradeOff, ...] = (TradeOff(30.0, 1.0),),
    near: float = 0.02,
    sample: int = 0,
    seed: int = 0,
) -> Plan:
    costs = Costs(0.0, 0.0, SMALL_MS, {1: LARGE_MS})
    return Plan(candidates, known, costs, VANILLA, SweepSettings(margins=MARGINS, near=near, sample=sample, seed=seed))


def true_speedups(candidates: Mapping[int, Candidate], overheads: Mapping[str, tuple[float, float]] | None = None) -> Truth:
    """True speed-ups: the runs' costs, plus an overhead for each text and each call of a method."""

    def speedup(number: int) -> float:
        one = candidates[number]
        text, call = (overheads or {}).get(one.method, (0.0, 0.0))
        return (
            TOKENS
            * LARGE_MS
            / (one.by_example[0].small_steps * SMALL_MS + one.by_example[0].large_calls * (LARGE_MS + call) + text)
        )

    return speedup


def run_plan(plan: Plan, truth: Truth, failing: frozenset[int] = frozenset()) -> list[list[int]]:
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
