"""The rule by which a candidate replaces a champion, on paired intervals of quality and of speed.

There are two ways to be promoted, and each has half of the 5 % of false promotions: the end of a 95 % interval, beyond which
lie 2.5 %. A candidate may be *faster* and keep the quality within a margin, or *better* and keep the speed within a share.
The second condition of a way costs no level, because both have to hold (Berger, 1982: intersection-union tests).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.report.formatting import metric_name, number_text, points_text
from tasks.evaluation.results.rows import TimedRound
from tasks.evaluation.rounds import combined, speedup_interval
from tasks.evaluation.selection import normal_bounds, paired_differences, upper_bounds
from tasks.evaluation.statistics import Interval

SLOWER = 0.05
"""The share of its speed that a better candidate may lose."""
_TAIL = 0.025
"""What lies beyond either end of an interval."""


@dataclass(frozen=True)
class Gain:
    """What a candidate gives beside a reference on the same examples."""

    quality_difference: float
    """Quality minus the reference's, in points of the metric."""
    quality_interval: Interval
    """95 %, over examples."""
    speed_ratio: float
    """Σ time of the reference / Σ time of the candidate."""
    speed_interval: Interval
    """95 %, over examples and rounds."""


@dataclass(frozen=True)
class Decision:
    """Whether a candidate is promoted, and why in a line."""

    promoted: bool
    why: str


def gain(
    candidate: NDArray[np.generic], reference: NDArray[np.generic], rounds: Sequence[TimedRound], samples: int, seed: int
) -> Gain:
    """Return what a candidate gives beside a reference.

    The interval of quality is that by which a sweep chooses (`selection.bounds`), here of a single difference: where losses are
    rare and large it is wider than a bootstrap's. The interval of speed is that of a sweep's speed-ups (`rounds`).

    Args:
        candidate: `[examples, values]`, its `quality.example_statistics`.
        reference: The same of the reference, on the same examples.
        rounds: Milliseconds of both, the reference in the place of vanilla.
        samples: Bootstrap resamples.
        seed: Of the resamples.
    """
    found = paired_differences(candidate[None], reference)
    ours, theirs = combined(rounds)
    return Gain(
        float(found.values[0]),
        (float(normal_bounds(found, _TAIL)[0]), float(upper_bounds(found, _TAIL)[0])),
        sum(theirs) / sum(ours),
        speedup_interval(rounds, samples, seed),
    )


def decide(found: Gain, metric: str, margin: float, reference: str) -> Decision:
    """Apply the rule.

    Args:
        found: What the candidate gives.
        metric: Of the quality, for the line.
        margin: Points that a faster candidate may lose.
        reference: What the candidate is compared with, for the line: `the champion`.
    """
    faster, kept = found.speed_interval[0] > 1, found.quality_interval[0] > -margin
    better, not_slower = found.quality_interval[0] > 0, found.speed_interval[0] > 1 - SLOWER
    speed = f"{number_text(found.speed_ratio, found.speed_interval, unit='×')} as fast as {reference}"
    quality = f"{metric_name(metric)} {number_text(found.quality_difference, found.quality_interval, sign='+')}"
    if faster and kept:
        gained = " and better" if better else f", and loses less than {points_text(margin)}"
        return Decision(True, f"faster{gained}: {speed}, {quality}")
    if better and not_slower:
        return Decision(True, f"better, and loses less than {SLOWER:.0%} of the speed: {speed}, {quality}")
    if faster:
        reason = f"faster, but it may lose {points_text(margin)} or more"
    elif better:
        reason = f"better, but it may lose {SLOWER:.0%} of the speed or more"
    else:
        reason = "neither faster nor better beyond noise"
    return Decision(False, f"{reason}: {speed}, {quality}")
