"""Latencies of several rounds: combined, with an interval from examples and rounds, and the scatter of vanilla's own times.

A round is one visit to a point: its examples are timed once, each beside vanilla; other points are timed between two rounds.
Examples of one round share the state of the machine at that moment, so that timing more examples does not replace rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from tasks.evaluation.results.pair import VanillaScatter
from tasks.evaluation.results.rows import SweepRow, TimedRound, TimedRow
from tasks.evaluation.statistics import Interval, percentile_interval, ratio_interval, resampled_sums

_FEWEST_VISITS = 4
"""Visits below which nothing is said about the machine."""
_STALLED = 2.0
"""Where the scatter of rounds is measured, a call counts for at most this many times what was to be expected of it."""


def combined(rounds: Sequence[TimedRound]) -> tuple[list[float], list[float]]:
    """Milliseconds of each example with the method and with vanilla: medians over the rounds, against single slow calls."""
    method, vanilla = (np.median(_table(rounds, name), axis=0) for name in ("latency_ms", "vanilla_latency_ms"))
    return method.tolist(), vanilla.tolist()


def speedup_of(rounds: Sequence[TimedRound]) -> float:
    """Σ vanilla's time / Σ the method's, each example at its median over the rounds."""
    method, vanilla = combined(rounds)
    return sum(vanilla) / sum(method)


def speedup_interval(rounds: Sequence[TimedRound], samples: int, seed: int) -> Interval:
    """The 95 % interval of a speed-up: for other examples, and for what another sweep of this machine would measure.

    Two errors are added in quadrature, on the logarithm: the paired bootstrap over examples of the combined latencies, and
    the scatter of rounds (`rounds_reach`). Both hold the noise of single calls, so that the interval is conservative.
    With a single round it covers examples only.

    Args:
        rounds: Of the same examples in the same order, at least one.
        samples: Bootstrap resamples.
        seed: Of the resamples.
    """
    method, vanilla = combined(rounds)
    speedup = sum(vanilla) / sum(method)
    return _widened(speedup, ratio_interval(vanilla, method, samples, seed), rounds_reach(rounds))


def speed_ratio(method: Sequence[TimedRound], other: Sequence[TimedRound], samples: int, seed: int) -> tuple[float, Interval]:
    """How many times as fast a method is as another one, each against vanilla beside it, with its 95 % interval.

    The ratio of two speed-ups, so that a slow moment of the machine, which slows vanilla as well, counts for neither. Examples
    are resampled for both together; the scatter of the rounds of both is added in quadrature, as in `speedup_interval`.

    Args:
        method: Rounds of the one, at least one.
        other: Rounds of the other on the same examples in the same order.
        samples: Bootstrap resamples.
        seed: Of the resamples.

    Raises:
        ValueError: the two were timed on different numbers of examples.
    """
    columns = np.column_stack([*combined(method), *combined(other)])
    ratios = _ratio_of_speedups(resampled_sums(columns, samples, seed))
    ratio = float(_ratio_of_speedups(columns.sum(axis=0)))
    reach = math.hypot(rounds_reach(method), rounds_reach(other))
    return ratio, _widened(ratio, percentile_interval(ratios), reach)


def _widened(ratio: float, interval: Interval, reach: float) -> Interval:
    """The interval over examples with another error of its logarithm added in quadrature."""
    below, above = (math.hypot(math.log(ratio / interval[0]), reach), math.hypot(math.log(interval[1] / ratio), reach))
    return ratio * math.exp(-below), ratio * math.exp(above)


def _ratio_of_speedups(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of sums `[…, 4]`: the method, vanilla beside it, the other, vanilla beside that."""
    ratios: NDArray[np.float64] = (sums[..., 1] / sums[..., 0]) / (sums[..., 3] / sums[..., 2])
    return ratios


def rounds_reach(rounds: Sequence[TimedRound]) -> float:
    """Half the width of the 95 % interval of the logarithm of a speed-up, from the scatter of its rounds; 0 for one round.

    It is Student's prediction interval for the mean of as many rounds of another sweep, √2 times as wide as that of the mean.
    A single stalled call (once 430 ms for a text of 0.6 ms) does not count in full: the medians of `combined`, whose error
    this is, do not hold it either. A round that is slow as a whole does.
    """
    if len(rounds) < 2:
        return 0.0
    method, vanilla = (_capped(rounds, name).sum(axis=1) for name in ("latency_ms", "vanilla_latency_ms"))
    logs: list[float] = np.log(vanilla / method).tolist()
    return student(len(rounds) - 1) * statistics.stdev(logs) * math.sqrt(2 / len(rounds))


def student(freedom: int) -> float:
    """The 97.5th percentile of Student's t."""
    return float(stdtrit(freedom, 0.975))


def vanilla_scatter(rows: Iterable[SweepRow], split: str) -> VanillaScatter | None:
    """How much vanilla's own time for the same examples varied from visit to visit; None for too few visits.

    Args:
        rows: Of one sweep, each point once.
        split: The split whose visits are compared; another split has other examples.
    """
    visits = [sum(one.vanilla_latency_ms) for row in rows if row.split == split for one in _rounds_of(row)]
    if len(visits) < _FEWEST_VISITS:
        return None
    low, middle, high = np.percentile(visits, (5, 50, 95)).tolist()
    return VanillaScatter(visits=len(visits), median_ms=middle, low_ms=low, high_ms=high)


def scatter_text(scatter: VanillaScatter, arm: str) -> str:
    """One sentence about the machine during a sweep."""
    fact = (
        f"vanilla's own time for the same texts varied by {scatter.share:.0%} "
        f"(5th to 95th percentile of {scatter.visits} visits, over the median)"
    )
    if scatter.busy:
        return f"The machine was busy during the {arm} sweep: {fact}; repeat it on an idle machine."
    return f"The machine was steady during the {arm} sweep: {fact}."


def _rounds_of(row: SweepRow) -> Sequence[TimedRound]:
    return row.rounds or () if isinstance(row, TimedRow) else ()


def _capped(rounds: Sequence[TimedRound], name: str) -> NDArray[np.float64]:
    """`[rounds, examples]`, each call at most `_STALLED` times what its example takes at the pace of its round."""
    table = _table(rounds, name)
    usual = np.median(table, axis=0)
    pace = np.median(table / usual, axis=1, keepdims=True)
    capped: NDArray[np.float64] = np.minimum(table, _STALLED * pace * usual)
    return capped


def _table(rounds: Sequence[TimedRound], name: str) -> NDArray[np.float64]:
    """`[rounds, examples]`."""
    return np.array([getattr(one, name) for one in rounds], dtype=np.float64)
