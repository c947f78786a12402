"""How much a number changed between two results, and whether the change is more than noise.

*Noise* is the change that another sample of examples, timed once more, would cause. Every change comes with a standard error,
an interval of 1.96 standard errors to either side, and the p-value of no change, all by the normal approximation. The intervals
do not cover differences between whole runs, such as the load of the machine or the seed of the training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tasks.evaluation.frontier import Gap, TradeOff, frontier_gap
from tasks.evaluation.results.rows import TimedMeasurements, TimedRow
from tasks.evaluation.statistics import Interval, resampled_sums

LEVEL = 0.05
"""The share of comparisons in which pure noise may be called more than noise."""
SAMPLES = 1000
_CURVES = 200
"""Resamples of whole frontiers; each takes milliseconds."""
_NORMAL = float(ndtri(0.975))
"""Standard errors on either side that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class Change:
    """The change of a number: `second - first`, or `second / first` where it is a ratio."""

    value: float
    interval: Interval | None
    """95 %; None where a result has no interval, so that its error is unknown."""
    p: float | None
    """Probability of a change at least this large by chance alone."""


@dataclass(frozen=True)
class MeasuredPoint:
    """One operating point of one result."""

    quality: float
    quality_error: float | None
    """Standard error of `quality`, in points."""
    loss_error: float | None
    """Standard error of quality minus vanilla large's quality on the same examples."""
    speedup: float | None
    speedup_error: float | None
    """Standard error of the logarithm of `speedup`, used where there are no latencies to resample."""
    latencies: NDArray[np.float64] | None
    """`[timed examples, 2]`: milliseconds of vanilla, and of the method."""


@dataclass(frozen=True)
class MeasuredCurve:
    """The measured points of one drafter."""

    points: list[MeasuredPoint]
    vanilla: float
    """Quality of the large model alone, in points."""


def error_of(interval: Sequence[float] | None) -> float | None:
    """The standard error behind a 95 % interval: half its width over 1.96. A bootstrap interval need not be symmetric."""
    return None if not interval else (interval[1] - interval[0]) / (2 * _NORMAL)


def log_error_of(interval: Sequence[float] | None) -> float | None:
    """The standard error of the logarithm of a positive number, from the number's interval."""
    return None if not interval or interval[0] <= 0 else error_of([math.log(end) for end in interval])


def measured_point(measured: TimedMeasurements, row: TimedRow | None) -> MeasuredPoint:
    """A point with its errors from its intervals, and with the latencies of its row where there is one."""
    return MeasuredPoint(
        quality=measured.quality,
        quality_error=error_of(measured.quality_interval),
        loss_error=error_of(measured.quality_difference_interval),
        speedup=measured.speedup,
        speedup_error=log_error_of(measured.speedup_interval),
        latencies=None if row is None else np.array([row.vanilla_latency_ms, row.latency_ms], dtype=np.float64).T,
    )


def difference(first: float, second: float, first_error: float | None, second_error: float | None) -> Change:
    """The change of a quality or a share, from the two standard errors as if the two results were independent.

    On one split they are not independent: an example that is hard for one is hard for the other. The true error is smaller, so
    this estimate is conservative.
    """
    error = None if first_error is None or second_error is None else math.hypot(first_error, second_error)
    return _change(second - first, error)


def speedup_ratio(
    first: MeasuredPoint, second: MeasuredPoint, paired: bool, seed: int = 0, samples: int = SAMPLES
) -> Change | None:
    """The change of a speed-up as a ratio; its error comes from the bootstrap over timed examples, on the logarithm.

    Args:
        first: the earlier result.
        second: the later result.
        paired: whether both timed the same examples in the same order, so that they are resampled alike.
        seed: of the resamples.
        samples: how many resamples.

    Returns:
        The change; None where one of the two was not timed.
    """
    if first.speedup is None or second.speedup is None:
        return None
    if first.latencies is not None and second.latencies is not None:
        logs = [
            np.log(_speedups(one.latencies, samples, draw)[:, 0])
            for one, draw in ((first, seed), (second, seed if paired else seed + 1))
            if one.latencies is not None
        ]
        error: float | None = float(np.std(logs[1] - logs[0], ddof=1))
    elif first.speedup_error is None or second.speedup_error is None:
        error = None
    else:
        error = math.hypot(first.speedup_error, second.speedup_error)
    return _ratio(math.log(second.speedup / first.speedup), error)


def frontier_changes(first: MeasuredCurve, second: MeasuredCurve, paired: bool, seed: int = 0) -> tuple[Change, Change] | None:
    """How far the second frontier lies above the first, each beside its own vanilla (`frontier.frontier_gap`).

    Quality is taken relative to vanilla large's, like speed-up, so that a change of the large model does not count here. Errors
    come from frontiers of resampled points: speed-ups by resampling examples, the same examples for all points of a result;
    qualities by adding noise of their paired errors, as if those were independent. This is conservative: resampling a maximum
    widens its spread, and in simulations pure noise passes for a change in 1 to 4 % of comparisons.

    Returns:
        The change of quality at equal latency and the ratio of speed-ups at equal quality; None where a result has no
        measured point that is at least as fast as vanilla.
    """
    gap = frontier_gap(_points(second), _points(first))
    if gap is None:
        return None
    rng = np.random.default_rng(seed)
    before = _resampled(first, seed, rng)
    after = _resampled(second, seed if paired else seed + 1, rng)
    gaps = [frontier_gap(ours, theirs) for theirs, ours in zip(before, after, strict=True)]
    return (
        _change(gap.mean_quality_difference, _spread(gaps, lambda one: one.mean_quality_difference)),
        _ratio(math.log(gap.mean_speedup_ratio), _spread(gaps, lambda one: math.log(one.mean_speedup_ratio))),
    )


def more_than_noise(changes: Sequence[Change]) -> list[bool]:
    """Which changes are more than noise, tested together (Holm, 1979).

    Of many numbers some leave their interval by chance. If nothing changed at all, the probability that any of them is reported
    is at most `LEVEL`; a single number is reported when its interval does not contain "no change".
    """
    ordered = sorted((change.p, index) for index, change in enumerate(changes) if change.p is not None)
    found = [False] * len(changes)
    for rank, (p, index) in enumerate(ordered):
        if p > LEVEL / (len(ordered) - rank):
            break
        found[index] = True
    return found


def _change(value: float, error: float | None) -> Change:
    if error is None:
        return Change(value, None, None)
    reach = _NORMAL * error
    return Change(value, (value - reach, value + reach), _p(value, error))


def _ratio(log_ratio: float, error: float | None) -> Change:
    """A change of logarithms as a ratio."""
    change = _change(log_ratio, error)
    interval = None if change.interval is None else (math.exp(change.interval[0]), math.exp(change.interval[1]))
    return Change(math.exp(log_ratio), interval, change.p)


def _p(value: float, error: float) -> float:
    """The two-sided p-value; without any error, any change at all is significant."""
    if error == 0:
        return float(math.isclose(value, 0, abs_tol=1e-9))
    return math.erfc(abs(value) / error / math.sqrt(2))


def _points(curve: MeasuredCurve) -> list[TradeOff | None]:
    return [None if one.speedup is None else TradeOff(one.quality - curve.vanilla, one.speedup) for one in curve.points]


def _speedups(latencies: NDArray[np.float64], samples: int, seed: int) -> NDArray[np.float64]:
    """Resampled speed-ups `[samples, points]` of latencies `[examples, 2 * points]`: vanilla's column, then the method's."""
    sums = resampled_sums(latencies, samples, seed)
    speedups: NDArray[np.float64] = sums[:, 0::2] / sums[:, 1::2]
    return speedups


def _resampled(curve: MeasuredCurve, seed: int, rng: np.random.Generator) -> list[list[TradeOff | None]]:
    """`_CURVES` versions of the curve's timed points; empty versions where an error is unknown, so that there is no gap."""
    timed = [one for one in curve.points if one.speedup is not None]
    latencies = [one.latencies for one in timed if one.latencies is not None]
    if len(latencies) == len(timed) and len({len(one) for one in latencies}) == 1:
        speedups = _speedups(np.hstack(latencies), _CURVES, seed)
    else:
        speedups = np.array([one.speedup for one in timed]) * np.exp(_noise([one.speedup_error for one in timed], rng))
    errors = [one.quality_error if one.loss_error is None else one.loss_error for one in timed]
    qualities = np.array([one.quality - curve.vanilla for one in timed]) + _noise(errors, rng)
    if not (np.isfinite(speedups).all() and np.isfinite(qualities).all()):
        return [[] for _ in range(_CURVES)]
    draws = zip(qualities.tolist(), speedups.tolist(), strict=True)
    return [[TradeOff(*both) for both in zip(*draw, strict=True)] for draw in draws]


def _noise(errors: Sequence[float | None], rng: np.random.Generator) -> NDArray[np.float64]:
    """Normal noise `[_CURVES, points]` of those standard errors, NaN where one is unknown."""
    spreads = np.array([math.nan if error is None else error for error in errors])
    noise: NDArray[np.float64] = rng.normal(size=(_CURVES, len(spreads))) * spreads
    return noise


def _spread(gaps: Sequence[Gap | None], value: Callable[[Gap], float]) -> float | None:
    """Standard deviation over the resampled pairs of frontiers that can be compared; None where most pairs cannot."""
    found = [value(gap) for gap in gaps if gap is not None]
    return float(np.std(found, ddof=1)) if 2 * len(found) > len(gaps) else None
