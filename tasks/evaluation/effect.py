"""What alignment gives, by counts: how often the large model runs, over how many positions, and how many steps are drafted.

The drafters of both arms have one architecture, so a run of the large model, a checked position and a drafter's step cost the
same in both; what alignment changes is how many there are. They are counted by replay, exactly, on every text of a split, and
turned into time by one cost model for both arms. No clock enters but that of the cost model, so that a busy machine cannot
decide what alignment gives.

The effect is a ratio of these times, unaligned over aligned, on the logarithm: of each seed, then their mean. Its interval
adds two errors in quadrature, each with its own quantile. The spread over seeds (Student's t) says what other trainings would
give. The bootstrap over texts (normal) says what other texts would give; both arms and all seeds read the same texts, so
further seeds do not reduce this error. Of it the part that differs from seed to seed is left out, since the spread over seeds
holds it already. docs/selection.md has simulations of its coverage.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tasks.evaluation.results.files import WORK
from tasks.evaluation.results.pair import MeasuredCosts
from tasks.evaluation.results.summary import AlignmentEffect, CostModel, Finding
from tasks.evaluation.scoring.metrics import Floats
from tasks.evaluation.scoring.quality import values_of
from tasks.evaluation.scoring.statistics import resampled_sums, student
from tasks.paths import ARMS

_NORMAL = float(ndtri(0.975))
_SAMPLES, _SEED = 1000, 1
_REACH = 5.0
"""Frontiers are compared over the qualities from this many points below vanilla's: what a user might trade for speed."""
_QUALITIES = 101
"""Qualities at which two frontiers are compared."""
_CLEARLY = 1.0
"""A point is left out of a frontier's resamples where another one is as cheap and this many points better."""


class Counted(NamedTuple):
    """One setting of one drafter on the texts of a split."""

    work: NDArray[np.int32]
    """`[texts, 3]`: see `WORK`."""
    statistics: NDArray[np.generic]
    """`[texts, values]`: statistics of the outputs (`quality.example_statistics`)."""


Seeds = Mapping[int, Sequence[Counted]]
"""The settings of one arm's drafters by seed; the settings of a frontier, or the one that was chosen."""


def cost_model(measured: Sequence[MeasuredCosts]) -> CostModel | None:
    """One cost model for all drafters of a task: the median over their sweeps of each part; None where none was measured.

    The time of a run over w positions is taken as linear in w, by least squares over the measured widths.
    """
    whole = [one for one in measured if one.verify_ms and one.encode_large_ms is not None and one.small_step_ms is not None]
    if not whole:
        return None
    widths = sorted(set.intersection(*(set(one.verify_ms or ()) for one in whole)))
    verify = [statistics.median((one.verify_ms or {})[width] for one in whole) for width in widths]
    slope, constant = np.polyfit(widths, verify, 1).tolist() if len(widths) > 1 else (0.0, verify[0])
    return CostModel(
        text_ms=statistics.median((one.encode_large_ms or 0.0) + (one.encode_small_ms or 0.0) for one in whole),
        large_call_ms=max(constant, 0.0),
        checked_position_ms=max(slope, 0.0),
        drafter_step_ms=statistics.median(one.small_step_ms or 0.0 for one in whole),
    )


def milliseconds(work: NDArray[np.int32], costs: CostModel) -> Floats:
    """The time of each text, `[…]`, from its counts `[…, 3]`."""
    parts = np.array([costs.large_call_ms, costs.checked_position_ms, costs.drafter_step_ms])
    found: Floats = costs.text_ms + work @ parts
    return found


def effect_of_choices(
    purpose: str, split: str, arms: Mapping[str, Mapping[int, NDArray[np.int32]]], costs: CostModel
) -> AlignmentEffect | None:
    """The effect at the settings that each arm's sweep chose for one purpose; None where no seed has both arms.

    Args:
        purpose: A key of `report.tables.PURPOSES`.
        split: That of the texts: test, since validation chose.
        arms: For each arm the work `[texts, 3]` of its choice by seed.
        costs: The cost model of both arms.
    """
    seeds = [seed for seed in arms["unaligned"] if seed in arms["aligned"]]
    if not seeds:
        return None
    times = {arm: np.stack([milliseconds(arms[arm][seed], costs) for seed in seeds], axis=1) for arm in ARMS}
    unaligned, aligned = (times[arm] for arm in ("unaligned", "aligned"))
    sums = resampled_sums(np.hstack([unaligned, aligned]), _SAMPLES, _SEED)
    drawn = np.log(sums[:, : len(seeds)] / sums[:, len(seeds) :])
    logs = np.log(unaligned.sum(axis=0) / aligned.sum(axis=0))
    counts = {
        arm: dict(zip(WORK, np.mean([arms[arm][seed].mean(axis=0) for seed in seeds], axis=0).tolist(), strict=True))
        for arm in ARMS
    }
    return _effect(purpose, split, len(unaligned), dict(zip(seeds, logs.tolist(), strict=True)), drawn, counts)


def effect_of_frontiers(
    purpose: str, split: str, arms: Mapping[str, Seeds], vanilla: float, costs: CostModel
) -> AlignmentEffect | None:
    """The effect at equal quality along the frontiers; None where the frontiers of no seed have a quality in common.

    A frontier is the least time by quality, linear on the logarithm between its settings. The ratio is the mean over all
    qualities that both frontiers reach, from `_REACH` points below vanilla's. Each resample of the texts has frontiers of its
    own.

    Args:
        purpose: What the settings are.
        split: That of the texts; the frontiers are made of the same ones, so that both arms are flattered alike.
        arms: For each arm its settings by seed.
        vanilla: Quality of the large model alone, in points.
        costs: The cost model of both arms.
    """
    logs, drawn, texts = dict[int, float](), list[Floats](), 0
    for seed in (seed for seed in arms["unaligned"] if arms["aligned"].get(seed) and arms["unaligned"][seed]):
        unaligned, aligned = (_curves(arms[arm][seed], costs) for arm in ("unaligned", "aligned"))
        ratios = [_log_ratio(*both, vanilla - _REACH) for both in zip(unaligned, aligned, strict=True)]
        if all(map(math.isfinite, ratios)):
            logs[seed], texts = ratios[0], len(arms["aligned"][seed][0].work)
            drawn.append(np.array(ratios[1:]))
    return _effect(purpose, split, texts, logs, np.stack(drawn, axis=1), {}) if logs else None


def _curves(settings: Sequence[Counted], costs: CostModel) -> list[tuple[Floats, Floats]]:
    """Quality and mean time of the settings, on all texts and then on each resample of them: pairs of `[settings]`."""
    tables = [np.column_stack([one.statistics, milliseconds(one.work, costs)]).astype(np.float64) for one in settings]
    texts, values = tables[0].shape
    whole = np.stack([table.sum(axis=0) for table in tables])
    kept = _not_clearly_beaten(values_of(whole[:, :-1], texts), whole[:, -1])
    resampled = resampled_sums(np.hstack([tables[index] for index in kept]), _SAMPLES, _SEED)
    sums = np.concatenate([whole[None, kept], resampled.reshape(_SAMPLES, len(kept), values)])
    qualities = values_of(sums[:, :, :-1].reshape(-1, values - 1), texts).reshape(sums.shape[:2])
    return list(zip(qualities, sums[:, :, -1] / texts, strict=True))


def _not_clearly_beaten(quality: Floats, time: Floats) -> list[int]:
    """The settings that may lie on the frontier of a resample."""
    return [
        index for index in range(len(quality)) if not ((time <= time[index]) & (quality >= quality[index] + _CLEARLY)).any()
    ]


def _log_ratio(unaligned: tuple[Floats, Floats], aligned: tuple[Floats, Floats], lowest: float) -> float:
    """The mean log ratio of the times of two frontiers at equal quality; NaN where they have none in common."""
    curves = [_frontier(*points) for points in (unaligned, aligned)]
    low = max(lowest, *(quality[0] for quality, _ in curves))
    high = min(quality[-1] for quality, _ in curves)
    if low > high:
        return math.nan
    at = np.linspace(low, high, _QUALITIES)
    first, second = (np.interp(at, quality, logs) for quality, logs in curves)
    return float(np.mean(first - second))


def _frontier(quality: Floats, time: Floats) -> tuple[Floats, Floats]:
    """Qualities of the settings that no cheaper one reaches, ascending, and the logarithms of their times."""
    order = np.lexsort((-quality, time))
    best = np.maximum.accumulate(quality[order])
    first = np.append(True, best[1:] > best[:-1])
    kept = order[first]
    return quality[kept], np.log(time[kept])


def _effect(
    purpose: str, split: str, texts: int, logs: Mapping[int, float], drawn: Floats, counts: dict[str, dict[str, float]]
) -> AlignmentEffect:
    """The effect from the log ratio of each seed and its resamples, `[samples, seeds]`; one seed proves nothing."""
    mean, interval = statistics.fmean(logs.values()), None
    if len(logs) > 1:
        reach = reach_of(list(logs.values()), drawn)
        interval = math.exp(mean - reach), math.exp(mean + reach)
    is_open = interval is None or interval[0] <= 1.0 <= interval[1]
    finding: Finding = "open" if is_open else "helps" if mean > 0 else "hurts"
    by_seed = {seed: math.exp(value) for seed, value in logs.items()}
    return AlignmentEffect(
        purpose=purpose,
        split=split,
        texts=texts,
        by_seed=by_seed,
        ratio=math.exp(mean),
        interval=interval,
        finding=finding,
        counts=counts,
    )


def reach_of(logs: Sequence[float], drawn: Floats) -> float:
    """Half the width of the 95 % interval of the mean over seeds.

    Args:
        logs: Of at least two seeds.
        drawn: `[samples, seeds]`: the same on resampled texts, all seeds on the same ones.
    """
    over_seeds = student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    together = drawn.mean(axis=1)
    own = float(np.mean(np.var(drawn - together[:, None], axis=0, ddof=1))) / len(logs)
    return math.hypot(over_seeds, _NORMAL * math.sqrt(max(0.0, float(np.var(together, ddof=1)) - own)))
