"""What figures, tables and the recommendation ask of a summary's points: which is chosen, fastest, measured where.

A row without times is a point with exact quality and counts and a predicted latency. Such a point is shown as such; it is never
chosen and lies on no frontier.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from tasks.decoding.method import LOOK_UPS, SamplingSettings
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.results.codec import Settings
from tasks.evaluation.results.pair import AcceptanceRate, PairRecord
from tasks.evaluation.results.rows import (
    MeasuredRow,
    OperatingPoint,
    SweepRow,
    TestStatus,
    TimedMeasurements,
    TimedPoint,
    TimedRow,
)
from tasks.evaluation.results.summary import Summary
from tasks.evaluation.scoring.statistics import status_of
from tasks.evaluation.settings import CHOICES

Sweeps = Mapping[str, Sequence[SweepRow]]
"""The rows of both sweeps by arm."""


def test_status(test: TimedMeasurements | None, margin: float) -> TestStatus | None:
    """What the test split says of a point that may lose `margin` points; None where it was not measured there."""
    if test is None:
        return None
    bounds, speedup = test.difference_bounds, test.speedup_interval
    return TestStatus(
        quality=None if bounds is None else status_of((bounds.lower, bounds.upper), -margin),
        speed=None if speedup is None else status_of(speedup, 1.0),
    )


def sweep_command(task: str, arm: str) -> str:
    """The command that makes the rows of a sweep."""
    return f"python -m tasks.sweep --task {task} --arm {arm}"


def is_faster(measured: TimedMeasurements) -> bool:
    """Faster than vanilla beyond the noise of its timing: the whole interval of the speed-up lies above 1."""
    interval = measured.speedup_interval
    return (interval[0] if interval else measured.speedup) > 1.0


def reported(point: TimedPoint) -> tuple[TimedMeasurements, str]:
    """The measurements to report of a point, and their split: test where it was measured there, else validation."""
    return (point.test, REPORTED_ON) if point.test else (point, CHOSEN_ON)


def fastest(points: Iterable[TimedPoint]) -> TimedPoint | None:
    """The fastest of these points; of equally fast ones the better, then the first."""
    return max(points, key=lambda point: (point.speedup, point.quality), default=None)


def chosen(summary: Summary, choice: str, arm: str | None = None) -> list[TimedPoint]:
    """The points of all methods, or of an arm's, that were chosen for one of `CHOICES`, in the order of the points."""
    found = {one.point for one in summary.choices if one.choice == choice and arm in (None, one.arm)}
    return [summary.timed_point(index) for index in range(len(summary.points)) if index in found]


def fastest_lossless(summary: Summary) -> TimedPoint | None:
    """The fastest timed point that beats vanilla and gives its exact output; beam search gives another search's output."""
    lossless = (point for point in summary.timed_points() if point.lossless and "beam" not in point.method)
    return fastest(filter(is_faster, lossless))


def fastest_choice(summary: Summary, arm: str) -> tuple[str, TimedPoint] | None:
    """An arm's fastest chosen point, and what it was chosen for: no loss or, where nothing was, one point of loss."""
    found = ((choice, fastest(chosen(summary, choice, arm))) for choice in CHOICES)
    return next(((choice, point) for choice, point in found if point is not None), None)


def strictest_choices(summary: Summary) -> list[TimedPoint]:
    """For each arm and method the chosen point, by the strictest choice that found one."""
    found: dict[tuple[str, str], TimedPoint] = {}
    for choice, point in summary.chosen_points():
        found.setdefault((choice.arm, choice.method), point)
    return list(found.values())


def speedup_of(point: OperatingPoint, points: Sequence[OperatingPoint]) -> tuple[float | None, bool]:
    """A point's speed-up, and whether it was measured on it or on a point that behaves the same; else it is predicted."""
    same = _key(point, point.settings if point.same_as is None else point.same_as)
    for other in (point, *points):
        if other.speedup is not None and _key(other, other.settings) == same:
            return other.speedup, True
    return (point.predicted.speedup if point.predicted else None), False


def rows_of(point: OperatingPoint, sweeps: Sweeps) -> list[MeasuredRow]:
    """The measured rows behind a point, the reported split first; of several rows of a split the last counts."""
    wanted = _key(point, point.settings)
    rows = [row for row in sweeps[point.arm] if isinstance(row, MeasuredRow) and _key(row, row.settings) == wanted]
    by_split = {row.split: row for row in rows}
    return [by_split[split] for split in (REPORTED_ON, CHOSEN_ON) if split in by_split]


def reported_row(point: OperatingPoint, sweeps: Sweeps) -> TimedRow | None:
    """The timed row that is reported for a point: of the test split, else of the validation split."""
    return next((row for row in rows_of(point, sweeps) if isinstance(row, TimedRow)), None)


def _key(point: OperatingPoint | MeasuredRow, settings: Settings) -> str:
    """Identifies a point to the six digits that a summary keeps."""
    short = {name: f"{value:.6g}" if type(value) in (int, float) else value for name, value in settings.items()}
    return json.dumps([point.method, point.arm, short, repr(point.sampling)], sort_keys=True)


def temperature(point: OperatingPoint) -> float:
    """The temperature of sampling; 0 is greedy."""
    return 0.0 if point.sampling is None else point.sampling.temperature


def acceptance_of(pair: PairRecord, point: OperatingPoint) -> AcceptanceRate | None:
    """α of what drafts at a point, by the point's sampling and lenience; None where it was measured for others only."""
    used, lenience = point.sampling or SamplingSettings(), point.settings.get("lenience")
    drafter, lenience = str(point.settings.get("drafter", "small")), 1.0 if lenience is None else float(lenience)
    found = pair.acceptance_rate(sampled=used.temperature > 0, drafter=drafter, lenience=lenience)
    # Greedy decoding takes the argmax, whatever is left out below it.
    untruncated = used.temperature == 0 or (not used.top_k and used.top_p == 1)
    return found if found is not None and untruncated and found.temperature == used.temperature else None


def cost_of(pair: PairRecord, point: OperatingPoint) -> float | None:
    """c of what drafts at a point: measured for the small model, 0 without a model as in the paper, else None."""
    drafter = point.settings.get("drafter", "small")
    return 0.0 if drafter in LOOK_UPS else pair.cost_ratio if drafter == "small" else None


def work_of(pair: PairRecord, point: OperatingPoint) -> float | None:
    """ĉ of what drafts at a point: weights of its decoder over those of the large one, 0 without a model."""
    drafter = point.settings.get("drafter", "small")
    if drafter in LOOK_UPS:
        return 0.0
    return pair.sizes.decoder_ratio if pair.sizes is not None and drafter == "small" else None
