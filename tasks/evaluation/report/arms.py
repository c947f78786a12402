"""What alignment gives beyond seeds and examples.

For each seed an aligned and an unaligned drafter were trained alike, swept, and measured on test at the points that validation
chose. The effect is the ratio of the two speed-ups of a seed. Its interval combines two errors, each with its own quantile: the
spread over seeds (Student's t), and the error over examples and rounds (normal), which further seeds do not reduce since all
drafters are timed on the same examples.

The interval is conservative. The two arms' errors are added although they share their examples, and the scatter of rounds is in
both errors. An open finding may therefore be a lack of power.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from tasks.decoding.method import OF_SMALL
from tasks.evaluation.report.points import SweepPoints, latest
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import Choice, OperatingPoint, SweepRow, TimedPoint
from tasks.evaluation.results.summary import AlignmentEffect, ArmComparison, ArmPoint, ArmResult, Finding
from tasks.evaluation.selection import DEFAULT_MARGINS
from tasks.evaluation.statistics import Interval
from tasks.paths import ARMS

SPECULATIVE, NO_LOSS, ONE_POINT = "speculative", "bild_no_loss", "bild_one_point"
PURPOSES = {
    SPECULATIVE: ("speculative", "no_loss"),
    NO_LOSS: ("bild", "no_loss"),
    ONE_POINT: ("bild", "one_point"),
}
"""Method and choice of each purpose."""
_NORMAL = statistics.NormalDist().inv_cdf(0.975)

Swept = tuple[Sequence[SweepRow], PairRecord | None]
"""The rows of one sweep and what it recorded of its pair."""


def compare_arms(task: str, sweeps: Mapping[tuple[str, int], Swept]) -> ArmComparison:
    """Both arms over all seeds.

    Args:
        task: Its name, for errors.
        sweeps: By drafter and seed.

    Raises:
        InputError: a sweep has no measured vanilla large row on validation.
    """
    results = [_arm_result(task, arm, seed, rows, pair or PairRecord()) for (arm, seed), (rows, pair) in sweeps.items()]
    effects = (effect_of(purpose, results) for purpose in PURPOSES)
    return ArmComparison(results=results, effects=[effect for effect in effects if effect is not None])


def _arm_result(task: str, arm: str, seed: int, rows: Sequence[SweepRow], pair: PairRecord) -> ArmResult:
    found = SweepPoints()
    found.add(task, arm, latest(rows), pair, pair.margins or DEFAULT_MARGINS)
    chosen = {(one.method, one.choice): one for one in found.choices}
    points = [
        _arm_point(purpose, choice, None if choice.point is None else found.points[choice.point])
        for purpose, wanted in PURPOSES.items()
        if (choice := chosen.get(wanted)) is not None
    ]
    measured = [point for point in points if point is not None]
    return ArmResult(arm=arm, seed=seed, training=pair.training, points=measured)


def _arm_point(purpose: str, choice: Choice, point: OperatingPoint | None) -> ArmPoint | None:
    """The chosen point on test, or vanilla where none was chosen; None where the chosen one was not measured on test."""
    if point is None:
        return ArmPoint(purpose=purpose)
    if not isinstance(point, TimedPoint) or point.test is None:
        return None
    return ArmPoint(
        purpose=purpose,
        settings=point.settings,
        speedup=point.test.speedup,
        speedup_interval=point.test.speedup_interval,
        quality_difference=point.test.quality_difference or 0.0,
        quality_difference_interval=point.test.quality_difference_interval,
        margin=choice.margin,
        test=choice.test,
    )


def effect_of(purpose: str, results: Sequence[ArmResult]) -> AlignmentEffect | None:
    """The effect for one purpose; None where no seed has both arms.

    A seed counts only where the arms' own models draft: a copy or a table drafts alike in both, and its speed is no effect.
    """
    by_arm: dict[str, dict[int, ArmPoint]] = {arm: {} for arm in ARMS}
    for result in results:
        for point in result.points:
            if point.purpose == purpose and _drafts_by_model(point):
                by_arm[result.arm][result.seed] = point
    seeds = [seed for seed in by_arm["unaligned"] if seed in by_arm["aligned"]]
    if not seeds:
        return None
    pairs = [(by_arm["aligned"][seed], by_arm["unaligned"][seed]) for seed in seeds]
    logs = [math.log(aligned.speedup / unaligned.speedup) for aligned, unaligned in pairs]
    errors = [_log_error(aligned) ** 2 + _log_error(unaligned) ** 2 for aligned, unaligned in pairs]
    mean = statistics.fmean(logs)
    interval = None
    if len(seeds) > 1:
        from scipy.special import stdtrit

        over_seeds = float(stdtrit(len(logs) - 1, 0.975)) * statistics.stdev(logs) / math.sqrt(len(logs))
        reach = math.hypot(over_seeds, _NORMAL * math.sqrt(statistics.fmean(errors)))
        interval = math.exp(mean - reach), math.exp(mean + reach)
    by_seed = {seed: math.exp(value) for seed, value in zip(seeds, logs, strict=True)}
    return AlignmentEffect(purpose=purpose, by_seed=by_seed, mean=math.exp(mean), interval=interval, finding=_finding(interval))


def _drafts_by_model(point: ArmPoint) -> bool:
    """Whether the arm's model drafts, or the large one writes alone."""
    return point.settings is None or point.settings.get("drafter", "small") in OF_SMALL


def _log_error(point: ArmPoint) -> float:
    """The standard error of the logarithm of a speed-up over examples and rounds."""
    if point.speedup_interval is None:
        return 0.0
    low, high = point.speedup_interval
    return (math.log(high) - math.log(low)) / (2.0 * _NORMAL)


def _finding(interval: Interval | None) -> Finding:
    if interval is None or interval[0] <= 1.0 <= interval[1]:
        return "open"
    return "helps" if interval[0] > 1.0 else "hurts"
