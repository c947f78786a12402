"""The criterion of the comparison, and the rule that makes one recipe the default. docs/alignment.md states both in words.

The criterion is the speed at kept quality of greedy BiLD: of the points of its grid whose loss of quality on validation is
shown to be below a margin, the predicted speed-up of the fastest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.bench.alignment.recipes import FAMILIES, RECIPES, simplicity
from tasks.evaluation.selection.choosing import keeps_quality

if TYPE_CHECKING:
    from tasks.bench.alignment.rows import PointResult

MARGIN = 0.5
"""In points of quality: a point is eligible if the bound of its difference to vanilla is above minus this."""
_LEVEL = 0.95
"""Of the intervals over seeds."""

Speeds = Mapping[str, Mapping[int, float]]
"""The criterion by recipe and seed."""


def fastest_kept(points: Sequence[PointResult]) -> PointResult | None:
    """The fastest eligible point; None where none is eligible, or none is faster than the large model alone."""
    eligible = [point for point in points if keeps_quality(point.lower_bound, MARGIN) and point.speedup > 1]
    return max(eligible, key=lambda point: point.speedup, default=None)


def speed_at_kept_quality(points: Sequence[PointResult]) -> float:
    """The criterion; 1 where the large model alone is the fastest choice that keeps the quality."""
    found = fastest_kept(points)
    return 1.0 if found is None else found.speedup


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference between two recipes, paired by seed."""

    recipe: str
    against: str
    mean: float
    interval: tuple[float, float] | None
    """Two-sided 95 % interval of Student's t over seeds; None for fewer than two shared seeds."""

    @property
    def is_beyond_seeds(self) -> bool:
        """Whether the first recipe is better by more than the seeds explain."""
        return self.interval is not None and self.interval[0] > 0


def difference(speeds: Speeds, recipe: str, against: str) -> Difference:
    """Compare two recipes on the seeds that both have; the mean is NaN if they share none."""
    shared = sorted(speeds[recipe].keys() & speeds[against].keys())
    values = [speeds[recipe][seed] - speeds[against][seed] for seed in shared]
    mean = statistics.fmean(values) if values else math.nan
    return Difference(recipe=recipe, against=against, mean=mean, interval=_interval(values, mean))


def _interval(values: Sequence[float], mean: float) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    from scipy.stats import t

    half = float(t.ppf((1 + _LEVEL) / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choice for one budget, and the comparisons that led to it."""

    recipe: str
    comparisons: list[Difference]


def choose(speeds: Speeds) -> Choice:
    """Walk up the families from the simplest, and leave a recipe only for one that is better beyond seeds.

    A family is represented by its recipe with the highest mean. `speeds` holds at least one recipe, each with a seed or more.
    """
    means = {recipe: statistics.fmean(by_seed.values()) for recipe, by_seed in speeds.items()}
    kept = ""
    comparisons = []
    for family in FAMILIES:
        members = [recipe for recipe in means if RECIPES[recipe].family == family]
        if not members:
            continue
        best = max(members, key=means.__getitem__)
        if kept:
            found = difference(speeds, best, kept)
            comparisons.append(found)
            if not found.is_beyond_seeds:
                continue
        kept = best
    return Choice(recipe=kept, comparisons=comparisons)


def default_of(choices: Mapping[str, Choice]) -> str:
    """The default: the simplest of the choices for the budgets; of two of one family, that of the first budget."""
    return min((choice.recipe for choice in choices.values()), key=simplicity)
