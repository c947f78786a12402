"""The paired bootstrap: examples are resampled with replacement, and all values of an example are resampled together.

Efron and Tibshirani, *An Introduction to the Bootstrap*, chapter 13 (percentile intervals); Koehn, *Statistical
Significance Tests for Machine Translation Evaluation*, 2004 (resampling sentences for BLEU).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Interval = tuple[float, float]
"""Lower and upper end of a 95 % confidence interval."""

_PERCENTILES = (2.5, 97.5)


def resampled_sums(columns: ArrayLike, samples: int, seed: int) -> NDArray[np.float64]:
    """Sums of `columns` over bootstrap resamples of its rows.

    The resamples depend only on the seed, the number of samples and the number of rows, so that two methods measured on the
    same examples are resampled alike.

    Args:
        columns: `[examples, values]`, a row for each example.
        samples: how many resamples, at least 1.
        seed: of the draws.

    Returns:
        `[samples, values]`, float64.
    """
    table = np.asarray(columns, dtype=np.float64)
    if table.ndim != 2 or not len(table) or samples < 1:
        raise ValueError(f"{samples} resamples of an array of shape {table.shape}; at least one of one row is needed")
    sums: NDArray[np.float64] = _times_drawn(len(table), samples, seed) @ table
    return sums


# All points of a sweep use the same resamples, which take longer to draw than to apply.
@functools.lru_cache(maxsize=4)
def _times_drawn(rows: int, samples: int, seed: int) -> NDArray[np.float64]:
    """How often each resample contains each row: `[samples, rows]`, whole numbers."""
    draws = np.random.default_rng(seed)
    times = [np.bincount(draws.integers(rows, size=rows), minlength=rows) for _ in range(samples)]
    return np.array(times, dtype=np.float64)


def percentile_interval(statistics: ArrayLike) -> Interval:
    """The 2.5th and the 97.5th percentile of the resampled `statistics`, shape `[samples]`."""
    low, high = np.percentile(np.asarray(statistics, dtype=np.float64), _PERCENTILES)
    return float(low), float(high)


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float], samples: int, seed: int) -> Interval:
    """The interval of sum(numerator) / sum(denominator) over the same examples; for latencies, of a speed-up.

    Raises:
        ValueError: the lengths differ, there is no example, or a denominator is not positive.
    """
    if len(numerator) != len(denominator) or not len(numerator):
        raise ValueError(f"{len(numerator)} numerators and {len(denominator)} denominators; each example needs both")
    if min(denominator) <= 0:
        raise ValueError("a denominator is zero or negative; latencies are positive")
    sums = resampled_sums(np.column_stack((numerator, denominator)), samples, seed)
    return percentile_interval(sums[:, 0] / sums[:, 1])


Status = Literal["confirmed", "open", "contradicted"]
"""`confirmed`: the lower bound is above the limit. `contradicted`: the upper bound is below it. `open`: neither."""


def status_of(bounds: Interval, limit: float) -> Status:
    """The status of a quantity with these one-sided bounds that has to lie above `limit`."""
    lower, upper = bounds
    if lower > limit:
        return "confirmed"
    return "contradicted" if upper < limit else "open"
