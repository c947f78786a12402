"""What alignment gives, by counts and by the clock.

The drafters of both arms have one architecture, so a run of the large model, a checked position and a drafter's step cost the
same in both; what alignment changes is how many there are. They are counted by replay, exactly, on every text of a split, and
turned into time by one cost model for both arms. No clock enters but that of the cost model, so that a busy machine cannot
decide what alignment gives. The clock confirms it: the same ratio from the times of the settings that were timed, both arms in
turn.

The effect is a ratio of these times, unaligned over aligned, on the logarithm: of each seed, then their mean. Its interval
adds errors in quadrature, each with its own quantile. The spread over seeds (Student's t) says what other trainings would
give. The bootstrap over texts (normal) says what other texts would give; both arms and all seeds read the same texts, so
further seeds do not reduce this error. Of it the part that differs from seed to seed is left out, since the spread over seeds
holds it already. By the clock the spread over rounds (Student's t) is added, each of which was a start of the process.
docs/selection.md has simulations of the coverage.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.results.files import WORK
from tasks.evaluation.results.pair import Costs
from tasks.evaluation.results.rows import TimedRound
from tasks.evaluation.results.summary import AlignmentEffect, CostModel, Finding
from tasks.evaluation.scoring.metrics import Floats
from tasks.evaluation.scoring.quality import values_of
from tasks.evaluation.scoring.statistics import NORMAL, combined, resampled_sums, speedup_of, student
from tasks.paths import ARMS

_SAMPLES, _SEED = 1000, 1
_REACH = 5.0
"""Frontiers are compared over the qualities from this many points below vanilla's: what a user might trade for speed."""
_QUALITIES = 101
"""Qualities at which two frontiers are compared."""
_NO_ROUNDS: Floats = np.empty(0)
_CLEARLY = 1.0
"""A point is left out of a frontier's resamples where another one is as cheap and this many points better."""


class Curves(NamedTuple):
    """The settings of one drafter by quality and mean time, from which its frontier is made."""

    quality: Floats
    """`[1 + samples, settings]` in points: on all texts, then on resamples of them."""
    time: Floats
    """`[1 + samples, settings]`, in any unit that both arms share."""
    by_round: Floats
    """`[rounds, settings]`: the same time in each round of the clock; no rounds where it is counted."""
    texts: int
    """On which the time was counted or taken."""


def cost_model(costs: Costs) -> CostModel:
    """The prices of what is counted: the time of a run over w positions is taken as linear in w, by least squares."""
    widths, verify = list(costs.verify_ms), list(costs.verify_ms.values())
    slope, constant = np.polyfit(widths, verify, 1).tolist() if len(widths) > 1 else (0.0, verify[0])
    return CostModel(
        text_ms=costs.encode_large_ms + costs.encode_small_ms,
        large_call_ms=max(constant, 0.0),
        checked_position_ms=max(slope, 0.0),
        drafter_step_ms=costs.small_step_ms,
    )


def milliseconds(work: NDArray[np.int32], costs: CostModel) -> Floats:
    """The time of each text, `[…]`, from its counts `[…, 3]`."""
    parts = np.array([costs.large_call_ms, costs.checked_position_ms, costs.drafter_step_ms])
    found: Floats = costs.text_ms + work @ parts
    return found


def effect_of_choices(
    purpose: str, split: str, arms: Mapping[str, Mapping[int, NDArray[np.int32]]], costs: CostModel
) -> AlignmentEffect | None:
    """The effect at one setting of each drafter; None where no seed has both arms.

    Args:
        purpose: A key of `report.tables.PURPOSES`.
        split: That of the texts.
        arms: For each arm the work `[texts, 3]` of its setting by seed.
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


def counted_curves(settings: Sequence[tuple[NDArray[np.int32], NDArray[np.generic]]], costs: CostModel) -> Curves:
    """All settings of a drafter, by counts.

    Args:
        settings: Of each its work `[texts, 3]` (`WORK`) and the statistics of its outputs `[texts, values]`
            (`quality.example_statistics`).
        costs: The cost model of both arms.
    """
    times = np.column_stack([milliseconds(work, costs) for work, _ in settings])
    scores = [one for _, one in settings]
    kept = _not_clearly_beaten(_qualities(scores, samples=0)[0], times.sum(axis=0))
    quality = _qualities([scores[index] for index in kept])
    return Curves(quality, _sums(times[:, kept]) / len(times), np.empty((0, len(kept))), len(times))


def timed_curves(settings: Sequence[tuple[Sequence[TimedRound], NDArray[np.generic]]]) -> Curves:
    """The timed settings of a drafter by the clock, relative to vanilla beside them.

    Args:
        settings: Of each its rounds, as many for all, and the statistics of its outputs on all texts of the split.
    """
    both = [combined(rounds) for rounds, _ in settings]
    own, vanilla = (_sums(np.column_stack([one[side] for one in both])) for side in (0, 1))
    rounds = min(len(rounds) for rounds, _ in settings)
    by_round = np.array([[1 / speedup_of([one[number]]) for one, _ in settings] for number in range(rounds)])
    return Curves(_qualities([one for _, one in settings]), own / vanilla, by_round, len(both[0][0]))


def effect_of_frontiers(
    purpose: str, split: str, arms: Mapping[str, Mapping[int, Curves]], vanilla: float
) -> AlignmentEffect | None:
    """The effect at equal quality along the frontiers; None where no seed has frontiers that reach `_REACH` below vanilla's.

    A frontier is the least time by quality, linear on the logarithm between its settings; below its fastest setting that one
    serves. The ratio is the mean over all qualities that both frontiers reach, from `_REACH` points below vanilla's. Each
    resample of the texts has frontiers of its own, and so has each round of the clock.

    Args:
        purpose: What the settings are.
        split: That of the texts; the frontiers are made of the same ones, so that both arms are flattered alike.
        arms: For each arm its settings by seed.
        vanilla: Quality of the large model alone, in points.
    """
    lowest, logs, drawn, rounds, texts = vanilla - _REACH, dict[int, float](), list[Floats](), list[Floats](), 0
    for seed, unaligned in arms["unaligned"].items():
        aligned = arms["aligned"].get(seed)
        if aligned is None:
            continue
        ratios = [
            _log_ratio((quality, time), (other_quality, other_time), lowest)
            for quality, time, other_quality, other_time in zip(*unaligned[:2], *aligned[:2], strict=True)
        ]
        if all(map(math.isfinite, ratios)):
            logs[seed], texts = ratios[0], aligned.texts
            drawn.append(np.array(ratios[1:]))
            pairs = zip(unaligned.by_round, aligned.by_round, strict=False)
            curves = [((unaligned.quality[0], one), (aligned.quality[0], other)) for one, other in pairs]
            rounds.append(np.array([_log_ratio(*both, lowest) for both in curves]))
    if not logs:
        return None
    fewest = min(map(len, rounds))
    over_rounds = np.mean([one[:fewest] for one in rounds], axis=0)
    return _effect(purpose, split, texts, logs, np.stack(drawn, axis=1), {}, over_rounds)


def _sums(columns: Floats, samples: int = _SAMPLES) -> Floats:
    """Sums over all rows, then over each resample of them: `[1 + samples, columns]`."""
    whole = columns.sum(axis=0, keepdims=True)
    return np.concatenate([whole, resampled_sums(columns, samples, _SEED)]) if samples else whole


def _qualities(scores: Sequence[NDArray[np.generic]], samples: int = _SAMPLES) -> Floats:
    """Qualities of settings on all texts, then on each resample of them: `[1 + samples, settings]`.

    Args:
        scores: Of each setting the statistics of its outputs `[texts, values]` (`quality.example_statistics`).
        samples: Resamples.
    """
    texts, values = scores[0].shape
    sums = _sums(np.hstack(scores).astype(np.float64), samples)
    return values_of(sums.reshape(-1, values), texts).reshape(len(sums), len(scores))


def _not_clearly_beaten(quality: Floats, time: Floats) -> list[int]:
    """The settings that may lie on the frontier of a resample."""
    return [
        index for index in range(len(quality)) if not ((time <= time[index]) & (quality >= quality[index] + _CLEARLY)).any()
    ]


def _log_ratio(unaligned: tuple[Floats, Floats], aligned: tuple[Floats, Floats], lowest: float) -> float:
    """The mean log ratio of the times of two frontiers at equal quality; NaN where one of them does not reach `lowest`."""
    curves = [_frontier(*points) for points in (unaligned, aligned)]
    high = min(quality[-1] for quality, _ in curves)
    if lowest > high:
        return math.nan
    at = np.linspace(lowest, high, _QUALITIES)
    first, second = (np.interp(at, quality, logs) for quality, logs in curves)
    return float(np.mean(first - second))


def _frontier(quality: Floats, time: Floats) -> tuple[Floats, Floats]:
    """Qualities of the settings that no cheaper one reaches, ascending, and the logarithms of their times."""
    order = np.lexsort((-quality, time))
    best = np.maximum.accumulate(quality[order])
    kept = order[np.append(True, best[1:] > best[:-1])]
    return quality[kept], np.log(time[kept])


def _effect(
    purpose: str,
    split: str,
    texts: int,
    logs: Mapping[int, float],
    drawn: Floats,
    counts: dict[str, dict[str, float]],
    rounds: Floats = _NO_ROUNDS,
) -> AlignmentEffect:
    """The effect from the log ratio of each seed and its resamples, `[samples, seeds]`; one seed proves nothing.

    By the clock the log ratios of the rounds, `[rounds]`, add their scatter.
    """
    mean, interval = statistics.fmean(logs.values()), None
    if len(logs) > 1:
        reach = reach_of(list(logs.values()), drawn)
        if len(rounds) > 1:
            reach = math.hypot(reach, student(len(rounds) - 1) * float(np.std(rounds, ddof=1)) / math.sqrt(len(rounds)))
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
    return math.hypot(over_seeds, NORMAL * math.sqrt(max(0.0, float(np.var(together, ddof=1)) - own)))
