"""Summarises drafters: means over seeds for each recipe and budget, the choices, and what test says of the default."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.bench.alignment.criterion import Choice, choose, default_of, fastest_kept, speed_at_kept_quality
from tasks.bench.alignment.recipes import RECIPES, control_of
from tasks.bench.alignment.rows import DrafterRow, PointResult, Run

BUDGETS = ("steps", "time")
"""Equal steps, which decide between two recipes of one family, and equal training time."""


@dataclass(frozen=True)
class Spread:
    """A number over seeds."""

    mean: float
    spread: float | None
    """Sample standard deviation; None for a single value."""
    values: list[float]


def spread(values: Sequence[float]) -> Spread:
    """Return the mean and the standard deviation of at least one value."""
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation, list(values))


@dataclass(frozen=True, kw_only=True)
class RecipeSummary:
    """A recipe over its seeds, for one budget."""

    family: str
    start: str
    """The model that training began with."""
    source: str
    """The paper."""
    steps: int
    seeds: list[int]
    thresholds: list[str]
    """By seed: fallback and rollback threshold of the fastest eligible point; `vanilla` without one."""
    columns: dict[str, Spread]
    """By the name of the number: those of `numbers_of`."""


@dataclass(frozen=True, kw_only=True)
class BudgetSummary:
    """All recipes for one budget."""

    recipes: dict[str, RecipeSummary]
    choice: Choice


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """A recipe on the test split, at the thresholds that validation chose for each seed."""

    __test__ = False  # no test of pytest's

    recipe: str
    seeds: list[int]
    speedup: Spread
    """Predicted, as on validation; 1 for a seed whose choice is the large model alone."""
    quality_difference: Spread
    lower_bound: Spread


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The comparison."""

    budgets: dict[str, BudgetSummary]
    default: str


def numbers_of(row: DrafterRow) -> dict[str, float]:
    """Return what the tables show of a drafter."""
    kept = fastest_kept(row.points)
    return {
        "bild_speedup": speed_at_kept_quality(row.points),
        "bild_quality_difference": 0.0 if kept is None else kept.quality_difference,
        "acceptance_greedy": row.acceptance_greedy,
        "acceptance_rate": row.acceptance_rate,
        "speculative_speedup": row.speculative_speedup,
        "drafter_quality": row.drafter_quality,
        "training_seconds": row.training_seconds,
        "target_tokens": float(row.target_tokens),
    }


def summarize(steps: Mapping[str, Mapping[str, int]], rows: Mapping[Run, DrafterRow]) -> Summary:
    """Return the summary.

    Args:
        steps: By budget and recipe: the steps of its drafters.
        rows: The drafters that finished; at least one for each budget.
    """
    budgets = {}
    for budget, by_recipe in steps.items():
        found = {recipe: _by_seed(rows, recipe, count) for recipe, count in by_recipe.items()}
        measured = {recipe: seeds for recipe, seeds in found.items() if seeds}
        speeds = {
            recipe: {seed: speed_at_kept_quality(row.points) for seed, row in seeds.items()}
            for recipe, seeds in measured.items()
        }
        summaries = {recipe: _summarize_recipe(recipe, by_recipe[recipe], seeds) for recipe, seeds in measured.items()}
        budgets[budget] = BudgetSummary(recipes=summaries, choice=choose(speeds))
    return Summary(budgets=budgets, default=default_of({budget: one.choice for budget, one in budgets.items()}))


def _by_seed(rows: Mapping[Run, DrafterRow], recipe: str, steps: int) -> dict[int, DrafterRow]:
    return {run.seed: row for run, row in sorted(rows.items()) if (run.recipe, run.steps) == (recipe, steps)}


def _summarize_recipe(recipe: str, steps: int, seeds: Mapping[int, DrafterRow]) -> RecipeSummary:
    numbers = [numbers_of(row) for row in seeds.values()]
    known = RECIPES[recipe]
    return RecipeSummary(
        family=known.family,
        start=known.start,
        source=known.source,
        steps=steps,
        seeds=list(seeds),
        thresholds=[_thresholds(fastest_kept(row.points)) for row in seeds.values()],
        columns={name: spread([one[name] for one in numbers]) for name in numbers[0]},
    )


def _thresholds(point: PointResult | None) -> str:
    return "vanilla" if point is None else f"{point.settings['fallback_threshold']}/{point.settings['rollback_threshold']}"


def to_test(summary: Summary) -> list[str]:
    """Return the recipes that are measured on test: the default, and the control of its start if that is another one."""
    known = next(iter(summary.budgets.values())).recipes
    return [name for name in dict.fromkeys((summary.default, control_of(summary.default))) if name in known]


def summarize_test(recipe: str, points: Mapping[int, PointResult | None]) -> TestResult:
    """Return what test says of a recipe, by seed; None where the large model alone was chosen."""
    found = list(points.values())
    return TestResult(
        recipe=recipe,
        seeds=list(points),
        speedup=spread([1.0 if point is None else point.speedup for point in found]),
        quality_difference=spread([0.0 if point is None else point.quality_difference for point in found]),
        lower_bound=spread([0.0 if point is None else point.lower_bound for point in found]),
    )
