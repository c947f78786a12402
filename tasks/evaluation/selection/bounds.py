"""One-sided lower bounds of paired quality differences, with and without a correction for comparing many points.

A point is not inferior to vanilla where its bound lies above minus the margin. Whoever takes the fastest of many points
tends to take one whose difference came out too high by chance, so the bounds of all points have to hold at once.
"""

from __future__ import annotations

import functools
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.selection.differences import PairedDifferences

_Floats = NDArray[np.float64]

_TINY = 1e-12
_DRAWS = 10_000
"""Draws of the maximum over the points; the error of a quantile at 2.5 % is then below 0.03 standard errors."""


def normal_bounds(differences: PairedDifferences, alpha: float) -> _Floats:
    """Lower bounds `[points]` that miss with probability `alpha` each, as if every point were the only one."""
    return _lower(differences, NormalDist().inv_cdf(1.0 - alpha))


def bonferroni_bounds(differences: PairedDifferences, alpha: float, points: int) -> _Floats:
    """Lower bounds `[points]` of which any misses with probability at most `alpha`, for a family of so many points."""
    return normal_bounds(differences, alpha / max(points, 1))


def max_t_bounds(differences: PairedDifferences, alpha: float, seed: int = 0) -> _Floats:
    """Lower bounds `[points]` of which any misses with probability at most `alpha`, by the distribution of the largest error.

    Points of one grid err alike, so this correction costs less than Bonferroni's (Westfall and Young, 1993; the multiplier
    bootstrap of Chernozhukov, Chetverikov and Kato, 2013).

    Args:
        differences: of all points that are compared.
        alpha: probability that at least one bound lies above the true difference.
        seed: of the draws.
    """
    return _lower(differences, max_t_quantile(differences.influence, alpha, seed))


def max_t_quantile(influence: _Floats, alpha: float, seed: int = 0) -> float:
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


def upper_bounds(differences: PairedDifferences, alpha: float) -> _Floats:
    """Upper bounds `[points]` that miss with probability `alpha` each."""
    return -normal_bounds(PairedDifferences(-differences.values, -differences.influence), alpha)


def _lower(differences: PairedDifferences, quantile: float) -> _Floats:
    """Values minus `quantile` standard errors, and more where losses are rare and large.

    Where few examples lose much, a sample with few of them shows a small loss and a small error at once. The first term of the
    Edgeworth expansion of Student's statistic (Hall, 1992, section 2.6) accounts for it; a correction in favour is not made.
    A sample without any such example shows no error at all: therefore every point's error and skewness are computed as if one
    more example had lost as much as examples that differ from vanilla typically do.
    """
    examples = differences.examples
    second = (differences.influence**2).sum(axis=1)
    third = (differences.influence**3).sum(axis=1)
    typical = np.abs(differences.influence**3).sum() / max(second.sum(), _TINY)
    second, third = second + typical**2, third - typical**3
    skewness = np.maximum(0.0, -third) / np.maximum(second, _TINY) ** 1.5
    factors = quantile + skewness * (2.0 * quantile**2 + 1.0) / 6.0
    bounds: _Floats = differences.values - factors * np.sqrt(second) / examples
    return bounds
