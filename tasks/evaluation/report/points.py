"""The points of both sweeps, one for each row that did not fail, and which of them is chosen or fastest.

A row without times is a point with exact quality and counts and a predicted latency. Such a point is shown as such; it is never
chosen and lies on no frontier.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from tasks.decoding.method import LOOK_UPS
from tasks.decoding.methods.baselines import VANILLA
from tasks.errors import InputError
from tasks.evaluation.frontier import BASELINES, CHOSEN_ON, REPORTED_ON, tradeoff_of
from tasks.evaluation.operations import relative_operations
from tasks.evaluation.results.codec import Settings, joined
from tasks.evaluation.results.pair import AcceptanceRate, PairRecord
from tasks.evaluation.results.rows import (
    Choice,
    DecodingCounts,
    FailedRow,
    MeasuredRow,
    ModelAlone,
    OperatingPoint,
    Operations,
    SweepRow,
    TestStatus,
    TimedMeasurements,
    TimedPoint,
    TimedRow,
    UntimedPoint,
    numbers_of,
)
from tasks.evaluation.results.summary import Summary, VanillaModels
from tasks.evaluation.selection import DEFAULT_MARGINS, choose_rows
from tasks.evaluation.settings import CHOICES, MarginSettings
from tasks.evaluation.statistics import status_of
from tasks.paths import ARMS

Sweeps = Mapping[str, Sequence[SweepRow]]
"""The rows of both sweeps by arm."""


@dataclass(frozen=True)
class SweepPoints:
    """The points of both sweeps, without failed rows; those of a sweep follow one another."""

    points: list[TimedPoint | UntimedPoint] = field(default_factory=list)
    """On validation, baselines left out, in the order of the rows."""
    rows: list[MeasuredRow] = field(default_factory=list)
    """The row behind each point."""
    choices: list[Choice] = field(default_factory=list)

    def add(
        self, task: str, arm: str, rows: Sequence[SweepRow], pair: PairRecord, margins: MarginSettings = DEFAULT_MARGINS
    ) -> None:
        """Adds the points of one sweep and the choices among them.

        Args:
            task: Its name, for errors.
            arm: One of `ARMS`.
            rows: Both splits, each point once (`latest`).
            pair: What the sweep recorded of its two models.
            margins: What a choice may lose.

        Raises:
            InputError: there is no timed vanilla large row on the validation split.
        """
        timed = _timed_rows(rows)
        vanilla = {row.split: row.value for row in timed if row.method == VANILLA}
        if CHOSEN_ON not in vanilla:
            raise InputError(
                f"the {arm} sweep of task {task} has no measured {VANILLA} row on the {CHOSEN_ON} split; "
                f"make it by: {sweep_command(task, arm)}"
            )

        def tested(row: MeasuredRow) -> TimedMeasurements | None:
            """The row's point on test, if it was timed there."""
            test = tests.get(_setting_key(row))
            if test is None:
                return None
            difference = test.value - vanilla[test.split] if test.split in vanilla else None
            return joined(TimedMeasurements, test, **numbers_of(test), quality_difference=difference)

        swept = [row for row in rows if row.split == CHOSEN_ON]
        tests = {_setting_key(row): row for row in timed if row.split == REPORTED_ON}
        choices = choose_rows(swept, margins)
        index_of: dict[int | None, int] = {}
        for position, row in enumerate(swept):
            if isinstance(row, MeasuredRow) and row.method not in BASELINES and not has_failed(row):
                index_of[position] = len(self.points)
                recorded = row.counts.kept is not None
                kind: type[TimedPoint | UntimedPoint] = TimedPoint if isinstance(row, TimedRow) else UntimedPoint
                point = joined(
                    kind,
                    row,
                    **numbers_of(row),
                    quality_difference=row.value - vanilla[CHOSEN_ON],
                    accepted_lengths=accepted_lengths(row.counts) if recorded else None,
                    acceptance_by_position=acceptance_by_position(row.counts) if recorded else None,
                    operations=_operations(row, pair),
                    # The stricter choice names a point that is both; `choices` lists each choice by itself.
                    chosen=next((name for name in CHOICES if choices[row.method, name] == position), None),
                    test=tested(row),
                )
                self.points.append(point)
                self.rows.append(row)
        for (method, name), found in choices.items():
            index, margin = index_of.get(found), margins.of(name)
            status = None if index is None else test_status(self.points[index].test, margin)
            self.choices.append(Choice(method=method, arm=arm, choice=name, margin=margin, point=index, test=status))


def test_status(test: TimedMeasurements | None, margin: float) -> TestStatus | None:
    """What the test split says of a point that may lose `margin` points; None where it was not measured there."""
    if test is None:
        return None
    bounds, speedup = test.difference_bounds, test.speedup_interval
    return TestStatus(
        quality=None if bounds is None else status_of((bounds.lower, bounds.upper), -margin),
        speed=None if speedup is None else status_of(speedup, 1.0),
    )


def _operations(row: MeasuredRow, pair: PairRecord) -> Operations | None:
    """The theoretical work of a point over that of the large model alone; None where sizes were not recorded."""
    sizes = pair.sizes
    if sizes is None or sizes.large is None or sizes.source_tokens is None or not row.examples:
        return None
    small = sizes.small if row.settings.get("drafter", "small") == "small" else None
    shares = sizes.shares_encoder
    return relative_operations(row.counts, row.examples, sizes.source_tokens, small, sizes.large, shares_encoder=shares)


def accepted_lengths(counts: DecodingCounts) -> dict[int, int]:
    """Verified drafts by how many of their tokens were kept, from none to the longest draft's length; empty without `kept`."""
    drafts = _drafts(counts)
    found: Counter[int] = Counter()
    for (_, kept), number in drafts.items():
        found[kept] += number
    return {kept: found[kept] for kept in range(max((drafted for drafted, _ in drafts), default=-1) + 1)}


def acceptance_by_position(counts: DecodingCounts) -> list[float]:
    """P(token i of a draft is kept | all before it were, and it exists), for i = 1, 2, …, up to the last position reached."""
    drafts = _drafts(counts)
    shares = []
    for position in range(1, max((drafted for drafted, _ in drafts), default=0) + 1):
        reached = sum(number for (drafted, kept), number in drafts.items() if drafted >= position and kept >= position - 1)
        if not reached:
            break
        shares.append(sum(number for (_, kept), number in drafts.items() if kept >= position) / reached)
    return shares


def _drafts(counts: DecodingCounts) -> dict[tuple[int, int], int]:
    """Drafts by the numbers of drafted and of kept tokens."""
    split = ((key.split("/"), number) for key, number in (counts.kept or {}).items())
    return {(int(drafted), int(kept)): number for (drafted, kept), number in split}


def models_alone(sweeps: Sweeps) -> VanillaModels:
    """The models alone: large and small of the unaligned sweep, and the aligned small model.

    Args:
        sweeps: By arm; the unaligned one holds vanilla large on validation (`SweepPoints`).
    """

    def alone(arm: str, method: str) -> ModelAlone | None:
        rows = {row.split: row for row in _timed_rows(sweeps[arm]) if row.method == method}
        own, test = rows.get(CHOSEN_ON), rows.get(REPORTED_ON)
        tested = None if test is None else joined(TimedMeasurements, test, **numbers_of(test))
        return None if own is None else joined(ModelAlone, own, **numbers_of(own), test=tested)

    large = alone("unaligned", VANILLA)
    assert large is not None  # noqa: S101 (`SweepPoints` refuses such a sweep)
    return VanillaModels(
        large=large, small=alone("unaligned", "vanilla_small"), small_aligned=alone("aligned", "vanilla_small")
    )


def failures(sweeps: Sweeps) -> list[FailedRow]:
    """The rows that hold an error, or numbers that are not finite."""
    other = "no finite quality and speed-up"
    rows = [row for arm in ARMS for row in sweeps[arm] if has_failed(row)]
    return [joined(FailedRow, row, error=getattr(row, "error", other)) for row in rows]


def has_failed(row: SweepRow) -> bool:
    """Whether a row holds an error, no finite quality, or no positive finite speed-up; not being timed is no failure."""
    if isinstance(row, TimedRow):
        return tradeoff_of(row) is None
    return isinstance(row, FailedRow) or not math.isfinite(row.value)


def _timed_rows(rows: Iterable[SweepRow]) -> list[TimedRow]:
    """The timed rows with finite measurements."""
    return [row for row in rows if isinstance(row, TimedRow) and not has_failed(row)]


def _setting_key(row: SweepRow) -> str:
    """Names the point of a row whatever its split: method, settings and sampling."""
    return json.dumps([row.method, row.settings, row.sampling and asdict(row.sampling)], sort_keys=True)


def latest(rows: Iterable[SweepRow]) -> list[SweepRow]:
    """One row for each point and split, the last written: a point that failed and was run again counts as it ended."""
    return list({(row.split, _setting_key(row)): row for row in rows}.values())


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
    sampling, lenience = point.sampling, point.settings.get("lenience")
    drafter, lenience = str(point.settings.get("drafter", "small")), 1.0 if lenience is None else float(lenience)
    if sampling is None or sampling.temperature == 0:
        return pair.acceptance_rate(drafter=drafter, lenience=lenience)
    sampled = pair.acceptance_rate(sampled=True, drafter=drafter, lenience=lenience)
    untruncated = not sampling.top_k and sampling.top_p == 1
    return sampled if sampled is not None and untruncated and sampled.temperature == sampling.temperature else None


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
