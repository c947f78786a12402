"""How much a number changed between two results, and whether the change is more than noise.

*Noise* is what another sample of examples, timed once more, would have changed. Every change comes with a standard error, an
interval of 1.96 of them to either side, and the p of no change at all, by the normal approximation. What a whole run has in
common (another load on the machine, another seed of the training) is in no interval and is not covered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.frontier import Gap, Point, frontier_gap
from tasks.evaluation.statistics import Interval, resampled_sums

LEVEL = 0.05
"""How often pure noise may be called more than noise."""
SAMPLES = 1000
_CURVES = 200
"""Resamples of whole frontiers, each of which takes milliseconds."""
_NORMAL = 1.959964
"""Standard errors on either side that hold 95 % of a normal distribution."""


@dataclass(frozen=True)
class Change:
    """What became of a number: `second - first`, or `second / first` where it is a ratio."""

    value: float
    interval: Interval | None
    """95 %; None where a result has no interval, so that nothing can be said."""
    p: float | None
    """Of a change at least so large by chance alone."""


@dataclass(frozen=True)
class Measured:
    """One operating point of one result."""

    quality: float
    quality_error: float | None
    """Standard error of `quality`, in points."""
    loss_error: float | None
    """Standard error of the quality minus vanilla large's on the same examples."""
    speedup: float | None
    speedup_error: float | None
    """Standard error of its logarithm, where there are no latencies to resample."""
    latencies: NDArray[np.float64] | None
    """`[timed examples, 2]`: vanilla's milliseconds, and the method's."""


@dataclass(frozen=True)
class Curve:
    """The measured points of one drafter."""

    points: Sequence[Measured]
    vanilla: float
    """Quality of the large model alone, in points."""


def error_of(interval: Sequence[float] | None) -> float | None:
    """The standard error behind a 95 % interval: half its width over 1.96. A bootstrap interval need not be symmetric."""
    return None if not interval else (interval[1] - interval[0]) / (2 * _NORMAL)


def log_error_of(interval: Sequence[float] | None) -> float | None:
    """The same of the logarithm of a positive number."""
    return None if not interval or interval[0] <= 0 else error_of([math.log(end) for end in interval])


def difference(first: float, second: float, first_error: float | None, second_error: float | None) -> Change:
    """The change of a quality or a share, from the two standard errors as if the two results were independent.

    On one split they are not: what is hard for one is hard for the other, the true error is smaller, and this is on the side
    of noise.
    """
    error = None if first_error is None or second_error is None else math.hypot(first_error, second_error)
    return _change(second - first, error)


def speedup_ratio(first: Measured, second: Measured, paired: bool, seed: int = 0, samples: int = SAMPLES) -> Change | None:
    """The change of a speed-up as a ratio, its error by the bootstrap over timed examples on the logarithm.

    Args:
        first: what came before.
        second: what came after.
        paired: both timed the same examples in the same order, so that they are resampled alike.
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


def frontier_changes(first: Curve, second: Curve, paired: bool, seed: int = 0) -> tuple[Change, Change] | None:
    """How far the second frontier lies above the first, each beside its own vanilla (`frontier.frontier_gap`).

    Quality is that minus vanilla large's, as speed-up is that over vanilla large's: another large model is told by its own
    number. Errors come from frontiers of resampled points: speed-ups by resampling examples, all points of a result alike;
    qualities by adding to each its paired error, as if those were independent. That is cautious: resampling a best adds to
    its spread, and in simulations pure noise passes for a change in 1 to 4 % of comparisons.

    Returns:
        The change of quality at equal latency and the ratio of speed-ups at equal quality; None where a result has no
        measured point that is at least as fast as vanilla.
    """
    gap = frontier_gap(_points(second), _points(first))
    if gap is None:
        return None
    chance = np.random.default_rng(seed)
    before = _resampled(first, seed, chance)
    after = _resampled(second, seed if paired else seed + 1, chance)
    gaps = [frontier_gap(ours, theirs) for theirs, ours in zip(before, after, strict=True)]
    return (
        _change(gap.mean_quality_difference, _spread(gaps, lambda one: one.mean_quality_difference)),
        _ratio(math.log(gap.mean_speedup_ratio), _spread(gaps, lambda one: math.log(one.mean_speedup_ratio))),
    )


def more_than_noise(changes: Sequence[Change]) -> list[bool]:
    """Which changes are more than noise, all of them looked at together (Holm, 1979).

    Of many numbers some leave their interval by chance. Where nothing changed at all, the chance that any is named here is at
    most `LEVEL`; a number alone is named when its interval leaves out no change.
    """
    judged = sorted((change.p, place) for place, change in enumerate(changes) if change.p is not None)
    found = [False] * len(changes)
    for rank, (p, place) in enumerate(judged):
        if p > LEVEL / (len(judged) - rank):
            break
        found[place] = True
    return found


def _change(value: float, error: float | None) -> Change:
    if error is None:
        return Change(value, None, None)
    reach = _NORMAL * error
    return Change(value, (value - reach, value + reach), _p(value, error))


def _ratio(log_ratio: float, error: float | None) -> Change:
    """A change of logarithms, told as a ratio."""
    change = _change(log_ratio, error)
    interval = None if change.interval is None else (math.exp(change.interval[0]), math.exp(change.interval[1]))
    return Change(math.exp(log_ratio), interval, change.p)


def _p(value: float, error: float) -> float:
    """Two-sided; without any error a change is certain, and no change is none."""
    if error == 0:
        return float(math.isclose(value, 0, abs_tol=1e-9))
    return math.erfc(abs(value) / error / math.sqrt(2))


def _points(curve: Curve) -> list[Point | None]:
    return [None if one.speedup is None else Point(one.quality - curve.vanilla, one.speedup) for one in curve.points]


def _speedups(latencies: NDArray[np.float64], samples: int, seed: int) -> NDArray[np.float64]:
    """Resampled speed-ups `[samples, points]` of latencies `[examples, 2 * points]`, vanilla's before each method's."""
    sums = resampled_sums(latencies, samples, seed)
    speedups: NDArray[np.float64] = sums[:, 0::2] / sums[:, 1::2]
    return speedups


def _resampled(curve: Curve, seed: int, chance: np.random.Generator) -> list[list[Point | None]]:
    """`_CURVES` versions of the curve's timed points; of none where an error is unknown, so that no gap comes of them."""
    timed = [one for one in curve.points if one.speedup is not None]
    latencies = [one.latencies for one in timed if one.latencies is not None]
    if len(latencies) == len(timed) and len({len(one) for one in latencies}) == 1:
        speedups = _speedups(np.hstack(latencies), _CURVES, seed)
    else:
        speedups = np.array([one.speedup for one in timed]) * np.exp(_noise([one.speedup_error for one in timed], chance))
    errors = [one.quality_error if one.loss_error is None else one.loss_error for one in timed]
    qualities = np.array([one.quality - curve.vanilla for one in timed]) + _noise(errors, chance)
    if not (np.isfinite(speedups).all() and np.isfinite(qualities).all()):
        return [[] for _ in range(_CURVES)]
    draws = zip(qualities.tolist(), speedups.tolist(), strict=True)
    return [[Point(*both) for both in zip(*draw, strict=True)] for draw in draws]


def _noise(errors: Sequence[float | None], chance: np.random.Generator) -> NDArray[np.float64]:
    """Normal noise `[_CURVES, points]` of those standard errors, NaN where one is unknown."""
    spreads = np.array([math.nan if error is None else error for error in errors])
    noise: NDArray[np.float64] = chance.normal(size=(_CURVES, len(spreads))) * spreads
    return noise


def _spread(gaps: Sequence[Gap | None], value: Callable[[Gap], float]) -> float | None:
    """Standard deviation over the resampled pairs of frontiers that can be compared; None where most cannot."""
    found = [value(gap) for gap in gaps if gap is not None]
    return float(np.std(found, ddof=1)) if 2 * len(found) > len(gaps) else None
