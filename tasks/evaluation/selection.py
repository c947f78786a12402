"""The choice of operating points: frontiers, margins, and lower bounds that are corrected for comparing many points.

For each method the fastest timed point is chosen whose quality is not inferior to vanilla's by more than a margin: the lower
bound of its paired difference lies above minus the margin. Whoever takes the fastest of many points tends to take one whose
difference came out too high by chance, so the bounds of all points have to hold at once. A difference that merely was not
proven does not suffice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.decoding.methods.baselines import VANILLA
from tasks.evaluation.results.rows import DifferenceBounds, MeasuredRow, SweepRow, TimedRow
from tasks.evaluation.scoring.metrics import Floats
from tasks.evaluation.scoring.quality import Quality, gradients_of, values_of, worthless
from tasks.evaluation.settings import CHOICES, CHOSEN_ON, MarginSettings
from tasks.paths import ARMS

# Frontiers. Lists hold None for points that failed or were not timed, so that indices stay those of the rows.

BASELINES = (VANILLA, "vanilla_small")
_RESOLUTION = 0.1
# 61.2 - 0.1 is slightly more than 61.1 in floating point, and 0.07 * 100 slightly more than 7.
_EDGE = 1e-9


class TradeOff(NamedTuple):
    """Quality, in points, and speed-up of one setting over the vanilla large model; higher is better for both."""

    quality: float
    speedup: float


def tradeoff_of(row: SweepRow) -> TradeOff | None:
    """Quality and speed-up of a timed row; None for a row that failed or was not timed."""
    return TradeOff(row.value, row.speedup) if isinstance(row, TimedRow) else None


def frontier(points: Sequence[TradeOff | None]) -> list[int]:
    """Indices of the points that no other point beats in both quality and speed-up, the fastest first.

    Only the first of equal points is kept.
    """
    measured = [(index, point) for index, point in enumerate(points) if point is not None]
    kept: list[int] = []
    best = -math.inf
    for index, point in sorted(measured, key=lambda item: (-item[1].speedup, -item[1].quality, item[0])):
        if point.quality > best:
            kept.append(index)
            best = point.quality
    return kept


def resolution(quality: float, vanilla: float) -> float:
    """Differences in quality that do not matter, in points: 0.1 near vanilla, a fifth of the loss further below."""
    return max(_RESOLUTION, (vanilla - quality) / 5) + _EDGE


# Paired differences, with the influence of each example on them: the derivative of the corpus metric in the example's weight
# (Hampel, 1974). Its mean is 0 and its variance over n is the squared standard error of the difference; for a mean, such as
# ROUGE, it is the example's own deviation.


@dataclass(frozen=True)
class PairedDifferences:
    """Differences of points from vanilla on the same examples."""

    values: Floats
    """`[points]`: quality minus vanilla's, in points of the metric."""
    influence: Floats
    """`[points, examples]`: in points of the metric, mean 0; zero where a point cannot be told from vanilla."""
    possible: float = 0.0
    """Points that a further example may lose (`possible_loss`)."""


def paired_differences(points: NDArray[np.generic], vanilla: NDArray[np.generic]) -> PairedDifferences:
    """The differences of points from vanilla.

    Args:
        points: `[points, examples, values]`, statistics of each example (`quality.example_statistics`).
        vanilla: `[examples, values]`, those of the vanilla large model on the same examples.

    Raises:
        ValueError: the shapes do not fit, or there is no example.
    """
    if points.ndim != 3 or points.shape[1:] != vanilla.shape or not len(vanilla):
        raise ValueError(f"statistics of shape {points.shape} beside vanilla's {vanilla.shape}; [points, examples, values]")
    statistics, examples = np.concatenate((vanilla[None], points)).astype(np.float64), len(vanilla)
    sums = statistics.sum(axis=1)
    values = values_of(sums, examples)
    influence = examples * np.matmul(statistics, gradients_of(sums, examples)[:, :, None])[:, :, 0]
    influence -= influence.mean(axis=1, keepdims=True)
    return PairedDifferences(values[1:] - values[0], influence[1:] - influence[0], possible_loss(vanilla))


def possible_loss(vanilla: NDArray[np.generic]) -> float:
    """What one example may lose, in points: its share of the metric if its output were worth nothing.

    It is the 95th percentile over the examples that have something to lose, so that it holds as well where only good outputs
    fail; 0 for a perplexity, which no output bounds.

    Args:
        vanilla: `[examples, values]`, statistics of the vanilla large model.
    """
    nothing = worthless(vanilla)
    if nothing is None:
        return 0.0
    own = vanilla.astype(np.float64)
    losses = len(own) * (own - nothing) @ gradients_of(own.sum(axis=0, keepdims=True), len(own))[0]
    return float(np.percentile(losses[losses > 0], 95)) if (losses > 0).any() else 0.0


# One-sided bounds of the differences, with and without a correction for comparing many points.


_TINY = 1e-12
_DRAWS = 10_000
"""Draws of the maximum over the points; the error of a quantile at 2.5 % is then below 0.03 standard errors."""


def normal_bounds(differences: PairedDifferences, alpha: float) -> Floats:
    """Lower bounds `[points]` that miss with probability `alpha` each, as if every point were the only one."""
    return _lower(differences, NormalDist().inv_cdf(1.0 - alpha))


def max_t_bounds(differences: PairedDifferences, alpha: float, seed: int = 0) -> Floats:
    """Lower bounds `[points]` of which any misses with probability at most `alpha`, by the distribution of the largest error.

    Points of one grid err alike, so this correction costs less than Bonferroni's (Westfall and Young, 1993; the multiplier
    bootstrap of Chernozhukov, Chetverikov and Kato, 2013).

    Args:
        differences: of all points that are compared.
        alpha: probability that at least one bound lies above the true difference.
        seed: of the draws.
    """
    return _lower(differences, max_t_quantile(differences.influence, alpha, seed))


def max_t_quantile(influence: Floats, alpha: float, seed: int = 0) -> float:
    """How many standard errors the largest of the points' studentised errors exceeds with probability `alpha`.

    Args:
        influence: `[points, examples]`; points without any influence cannot err and are left out.
        alpha: the probability.
        seed: of the draws.
    """
    norms = np.linalg.norm(influence, axis=1)
    scaled = influence[norms > 0] / norms[norms > 0, None]
    single = NormalDist().inv_cdf(1.0 - alpha)
    if len(scaled) < 2:
        return single
    # Multiplying every example by a normal draw gives normal errors with this correlation, so these are drawn at once.
    eigenvalues, vectors = np.linalg.eigh(scaled @ scaled.T)
    root = vectors * np.sqrt(np.clip(eigenvalues, 0.0, None))
    draws = _normal_draws(len(scaled), seed) @ root.T.astype(np.float32)
    return max(single, float(np.quantile(draws.max(axis=1), 1.0 - alpha)))


@functools.lru_cache(maxsize=4)
def _normal_draws(points: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((_DRAWS, points), dtype=np.float32)


def upper_bounds(differences: PairedDifferences, alpha: float) -> Floats:
    """Upper bounds `[points]` that miss with probability `alpha` each."""
    return -normal_bounds(PairedDifferences(-differences.values, -differences.influence, differences.possible), alpha)


def _lower(differences: PairedDifferences, quantile: float) -> Floats:
    """Values minus `quantile` standard errors, and more where losses are rare and large.

    Where few examples lose much, a sample with few of them shows a small loss and a small error at once. The first term of the
    Edgeworth expansion of Student's statistic (Hall, 1992, section 2.6) accounts for it; a correction in favour is not made.
    A sample without any such example shows no error at all: therefore every point's error and skewness are computed as if one
    more example had lost as much as examples that differ from vanilla typically do, and at least what an example may lose.
    """
    examples = differences.influence.shape[1]
    second = (differences.influence**2).sum(axis=1)
    third = (differences.influence**3).sum(axis=1)
    further = max(differences.possible, np.abs(differences.influence**3).sum() / max(second.sum(), _TINY))
    second, third = second + further**2, third - further**3
    skewness = np.maximum(0.0, -third) / np.maximum(second, _TINY) ** 1.5
    factors = quantile + skewness * (2.0 * quantile**2 + 1.0) / 6.0
    bounds: Floats = differences.values - factors * np.sqrt(second) / examples
    return bounds


# The bounds of a row: for all replayed points of a grid at once, or for one point at its share of the level.

_EQUAL = DifferenceBounds(lower=0.0, upper=0.0, compared=0)
"""Of a point whose output is vanilla's: there is nothing to compare."""


def level_of_arm(margins: MarginSettings) -> float:
    """The level at which one drafter's bounds may miss: the fastest point is taken over all drafters, which share it."""
    return (1.0 - margins.confidence) / len(ARMS)


def grid_bounds(
    points: Mapping[int, Quality],
    vanilla: Quality,
    margins: MarginSettings,
    *,
    lossless: set[int],
    sampled: bool,
    compared: int,
    seed: int,
) -> dict[int, DifferenceBounds]:
    """Bounds of points whose lower ends hold at once.

    Args:
        points: quality by index, all on the same examples.
        vanilla: of the large model on them.
        margins: with the confidence.
        lossless: indices of points whose output is vanilla's by construction. Where they score like vanilla on every example
            they lose nothing; any other point may still differ on examples that were not seen.
        sampled: whether tokens are drawn, so that a lossless output is vanilla's in distribution only.
        compared: points that are compared with each other, of which some may be bounded one by one (`point_bounds`); each has
            the same share of the level.
        seed: of the draws of the largest error.
    """
    equal = (index for index, one in points.items() if index in lossless and (sampled or _equals(one, vanilla)))
    bounds = dict.fromkeys(equal, _EQUAL)
    others = [index for index in points if index not in bounds]
    if others:
        level = level_of_arm(margins) * min(1.0, len(points) / max(compared, 1))
        differences = paired_differences(np.stack([points[index].statistics for index in others]), vanilla.statistics)
        lower = max_t_bounds(differences, level, seed)
        upper = upper_bounds(differences, 1.0 - margins.confidence)
        bounds |= {
            index: DifferenceBounds(lower=float(low), upper=float(high), compared=len(points))
            for index, low, high in zip(others, lower, upper, strict=True)
        }
    return bounds


def point_bounds(
    quality: Quality, vanilla: Quality, margins: MarginSettings, compared: int | None, *, lossless: bool, sampled: bool
) -> DifferenceBounds:
    """Bounds of one point.

    Args:
        quality: of the point.
        vanilla: of the large model on the same examples.
        margins: with the confidence.
        compared: points among which the split chooses (Bonferroni's correction); None where it chooses none,
            as test does.
        lossless: whether its output is vanilla's by construction.
        sampled: whether tokens are drawn, so that a lossless output is vanilla's in distribution only.
    """
    if lossless and (sampled or _equals(quality, vanilla)):
        return _EQUAL
    differences = paired_differences(quality.statistics[None], vanilla.statistics)
    level = 1.0 - margins.confidence
    own = level if compared is None else level_of_arm(margins)
    # Bonferroni: of the family's bounds any misses with at most the probability of the level.
    [lower], [upper] = normal_bounds(differences, own / (compared or 1)), upper_bounds(differences, level)
    return DifferenceBounds(lower=float(lower), upper=float(upper), compared=compared or 1)


def _equals(quality: Quality, vanilla: Quality) -> bool:
    """Whether a point scores like vanilla on every example."""
    return bool(np.array_equal(quality.statistics, vanilla.statistics))


# The choice.


def keeps_quality(lower: float | None, margin: float) -> bool:
    """Whether a lower bound of the difference to vanilla proves that no more than the margin is lost; None proves nothing."""
    return lower is not None and lower > -margin


def choose(points: Sequence[TradeOff | None], kept: Sequence[bool]) -> int | None:
    """Index of the fastest point that keeps the quality; None where there is no such point.

    Of equally fast points the better one is chosen, then the first. A choice may be slower than vanilla and still be the
    fastest.
    """
    enough = [
        (-point.speedup, -point.quality, index)
        for index, (point, keeps) in enumerate(zip(points, kept, strict=True))
        if point is not None and keeps
    ]
    return min(enough)[2] if enough else None


def choose_rows(rows: Sequence[SweepRow], margins: MarginSettings) -> dict[tuple[str, str], int | None]:
    """The choice for one drafter of each method that is no baseline, for each of `CHOICES`.

    Args:
        rows: of the drafter's sweep; only those of the validation split are compared.
        margins: what a choice may lose.

    Returns:
        `{(method, choice): index into rows, or None}`; empty without a measured vanilla row to compare with.
    """
    points = [tradeoff_of(row) if row.split == CHOSEN_ON else None for row in rows]
    if not any(row.method == VANILLA and point is not None for row, point in zip(rows, points, strict=True)):
        return {}
    bounds = [row.difference_bounds if isinstance(row, MeasuredRow) else None for row in rows]
    lower = [None if bound is None else bound.lower for bound in bounds]
    found: dict[tuple[str, str], int | None] = {}
    for method in dict.fromkeys(row.method for row in rows if row.method not in BASELINES):
        own = [point if row.method == method else None for row, point in zip(rows, points, strict=True)]
        for choice in CHOICES:
            found[method, choice] = choose(own, [keeps_quality(bound, margins.of(choice)) for bound in lower])
    return found
