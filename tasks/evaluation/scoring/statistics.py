"""Intervals: the paired bootstrap over examples, and speed-ups from several rounds of timing.

In the bootstrap examples are resampled with replacement, and all values of an example are resampled together.
Efron and Tibshirani, *An Introduction to the Bootstrap*, chapter 13 (percentile intervals); Koehn, *Statistical
Significance Tests for Machine Translation Evaluation*, 2004 (resampling sentences for BLEU).
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from tasks.evaluation.results.rows import TimedRound

Interval = tuple[float, float]
"""Lower and upper end of a 95 % confidence interval."""

NORMAL = statistics.NormalDist().inv_cdf(0.975)
"""Standard errors on either side that hold 95 % of a normal distribution."""


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


def percentile_interval(resampled: ArrayLike) -> Interval:
    """The 2.5th and the 97.5th percentile of `resampled` values, shape `[samples]`."""
    low, high = np.percentile(np.asarray(resampled, dtype=np.float64), (2.5, 97.5))
    return float(low), float(high)


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float], samples: int, seed: int) -> Interval:
    """The interval of sum(numerator) / sum(denominator) over the same examples; for latencies, of a speed-up.

    Raises:
        ValueError: the lengths differ, there is no example, or a denominator is not positive.
    """
    sums = resampled_sums(np.column_stack((numerator, denominator)), samples, seed)
    if min(denominator) <= 0:
        raise ValueError("a denominator is zero or negative; latencies are positive")
    return percentile_interval(sums[:, 0] / sums[:, 1])


Status = Literal["confirmed", "open", "contradicted"]
"""`confirmed`: the lower bound is above the limit. `contradicted`: the upper bound is below it. `open`: neither."""


def status_of(bounds: Interval, limit: float) -> Status:
    """The status of a quantity with these one-sided bounds that has to lie above `limit`."""
    lower, upper = bounds
    if lower > limit:
        return "confirmed"
    return "contradicted" if upper < limit else "open"


# Rounds: a round is one visit to a point, in which its examples are timed once, each beside vanilla; other points are timed
# between two rounds. Examples of one round share the state of the machine at that moment, so that timing more examples does not
# replace rounds.

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
    speedup, reach = sum(vanilla) / sum(method), rounds_reach(rounds)
    low, high = ratio_interval(vanilla, method, samples, seed)
    below, above = math.hypot(math.log(speedup / low), reach), math.hypot(math.log(high / speedup), reach)
    return speedup * math.exp(-below), speedup * math.exp(above)


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


Equals = tuple[tuple[Sequence["TimedRound"], Sequence[int]], tuple[Sequence["TimedRound"], Sequence[int]]]
"""Two models of one architecture that decoded alone: rounds, and steps of each timed example."""


def null_test(pairs: Sequence[Equals]) -> tuple[float, Interval] | None:
    """How many times as long models take as others of one architecture for equal work: 1 but for the error of the clock.

    The two of a pair write other tokens for the same texts. Over the texts the difference of their times is taken as a
    constant, which is the error, plus a multiple of the difference of their steps. The interval adds two errors in quadrature:
    that of the constant over the texts, and Student's over the rounds, each of which is a start of a process.

    Args:
        pairs: Rounds and steps of both, on the same examples in the same order.

    Returns:
        The ratio with its 95 % interval; None without a pair, or with a single round.
    """
    rounds = min((len(one) for pair in pairs for one, _ in pair), default=0)
    if rounds < 2:
        return None
    logs, errors = np.zeros(rounds), []
    for (ours, steps), (theirs, other_steps) in pairs:
        apart = _capped(ours[:rounds], "latency_ms") - _capped(theirs[:rounds], "latency_ms")
        usual, more = _capped(theirs[:rounds], "latency_ms").mean(axis=1), np.subtract(steps, other_steps, dtype=np.float64)
        spread = more - more.mean()
        scale = float(spread @ spread)
        slope = float(apart.mean(axis=0) @ spread) / scale if scale else 0.0
        constant = apart.mean(axis=1) - slope * more.mean()
        logs += np.log1p(constant / usual) / len(pairs)
        rest = apart.mean(axis=0) - constant.mean() - slope * more
        share = 1 / len(more) + (float(more.mean()) ** 2 / scale if scale else 0.0)
        errors.append(float(np.std(rest)) * math.sqrt(share) / float(usual.mean()) / len(pairs))
    middle = float(logs.mean())
    over_rounds = student(rounds - 1) * float(np.std(logs, ddof=1)) / math.sqrt(rounds)
    reach = math.hypot(over_rounds, NORMAL * math.hypot(*errors))
    return math.exp(middle), (math.exp(middle - reach), math.exp(middle + reach))


def student(freedom: int) -> float:
    """The 97.5th percentile of Student's t."""
    from scipy.special import stdtrit  # the stages that train score texts too, and need not import it

    return float(stdtrit(freedom, 0.975))


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
