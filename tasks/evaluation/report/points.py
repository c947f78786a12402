"""The points of a sweep: one for each row that did not fail, timed or not.

A row without times is a point with exact quality and counts and a predicted latency. Such a point is shown as such; it is never
chosen and lies on no frontier.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields

from tasks.errors import InputError
from tasks.evaluation.accepted_drafts import acceptance_by_position, accepted_lengths
from tasks.evaluation.frontier import BASELINES, CHOSEN_ON, REPORTED_ON, VANILLA, tradeoff_of
from tasks.evaluation.measurements import measure, measure_timed
from tasks.evaluation.operations import relative_operations
from tasks.evaluation.results import rows as records
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import FailedRow, MeasuredRow, SweepRow, TimedRow
from tasks.evaluation.results.summary import VanillaModels
from tasks.evaluation.selection import DEFAULT_MARGINS, choose_rows
from tasks.evaluation.settings import CHOICES, MarginSettings
from tasks.evaluation.statistics import status_of
from tasks.paths import ARMS

_Point = records.TimedPoint | records.UntimedPoint
_FROM_ROW = {one.name for one in fields(records.PointHeader)} - {"timed"}


@dataclass(frozen=True)
class SweepPoints:
    """The points of both sweeps, without failed rows; those of a sweep follow one another."""

    points: list[_Point] = field(default_factory=list)
    """On validation, baselines left out, in the order of the rows."""
    rows: list[MeasuredRow] = field(default_factory=list)
    """The row behind each point."""
    choices: list[records.Choice] = field(default_factory=list)

    def add(
        self, task: str, arm: str, rows: Sequence[SweepRow], pair: PairRecord, margins: MarginSettings = DEFAULT_MARGINS
    ) -> None:
        """Adds the points of one sweep and the choices among them.

        Args:
            task: its name, for errors.
            drafter: one of `DRAFTERS`.
            rows: both splits, each point once (`latest`).
            pair: what the sweep recorded of its two models.
            margins: what a choice may lose.

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
        swept = [row for row in rows if row.split == CHOSEN_ON]
        tests = {_setting_key(row): row for row in timed if row.split == REPORTED_ON}
        choices = choose_rows(swept, margins)
        index_of: dict[int | None, int] = {}
        for position, row in enumerate(swept):
            if isinstance(row, MeasuredRow) and row.method not in BASELINES and not has_failed(row):
                # The stricter choice names a point that is both; `choices` lists each choice by itself.
                chosen = next((name for name in CHOICES if choices[row.method, name] == position), None)
                index_of[position] = len(self.points)
                self.points.append(_point(row, tests.get(_setting_key(row)), chosen, vanilla, pair))
                self.rows.append(row)
        for (method, name), found in choices.items():
            index, margin = index_of.get(found), margins.of(name)
            status = None if index is None else test_status(self.points[index].test, margin)
            self.choices.append(records.Choice(method=method, arm=arm, choice=name, margin=margin, point=index, test=status))


def test_status(test: records.TestMeasurements | None, margin: float) -> records.TestStatus | None:
    """What the test split says of a point that may lose `margin` points; None where it was not measured there."""
    if test is None:
        return None
    bounds, speedup = test.difference_bounds, test.speedup_interval
    return records.TestStatus(
        quality=None if bounds is None else status_of((bounds.lower, bounds.upper), -margin),
        speed=None if speedup is None else status_of(speedup, 1.0),
    )


def _point(
    row: MeasuredRow, test: TimedRow | None, chosen: str | None, vanilla: Mapping[str, float], pair: PairRecord
) -> _Point:
    """A point; `vanilla` is the quality of vanilla large in the same sweep by split."""
    recorded = row.counts.kept is not None
    kind: type[_Point] = records.TimedPoint if isinstance(row, TimedRow) else records.UntimedPoint
    return joined(
        kind,
        measure(row),
        **{name: getattr(row, name) for name in _FROM_ROW},
        quality_difference=row.value - vanilla[CHOSEN_ON],
        accepted_lengths=accepted_lengths(row.counts) if recorded else None,
        acceptance_by_position=acceptance_by_position(row.counts) if recorded else None,
        operations=_operations(row, pair),
        chosen=chosen,
        test=test and joined(records.TestMeasurements, measure(test), quality_difference=_difference(test, vanilla)),
    )


def _difference(row: MeasuredRow, vanilla: Mapping[str, float]) -> float | None:
    return row.value - vanilla[row.split] if row.split in vanilla else None


def _operations(row: MeasuredRow, pair: PairRecord) -> records.OperationsRatio | None:
    """Theory: work relative to vanilla large, from the row's counts; None where sizes or counts are not known."""
    sizes = pair.sizes
    if sizes is None or sizes.large is None or sizes.source_tokens is None or not row.examples:
        return None
    small = sizes.small if row.settings.get("drafter", "small") == "small" else None
    return relative_operations(
        row.counts, row.examples, sizes.source_tokens, small, sizes.large, shares_encoder=sizes.shares_encoder
    )


def models_alone(sweeps: Mapping[str, Sequence[SweepRow]]) -> VanillaModels:
    """The models alone: large and small of the unaligned sweep, and the aligned small model.

    Args:
        sweeps: by drafter; the unaligned one holds vanilla large on validation (`SweepPoints`).
    """
    large = _alone(sweeps["unaligned"], VANILLA)
    assert large is not None  # noqa: S101 (`SweepPoints` refuses such a sweep)
    small, small_aligned = (_alone(sweeps[arm], "vanilla_small") for arm in ("unaligned", "aligned"))
    return VanillaModels(large=large, small=small, small_aligned=small_aligned)


def _alone(rows: Sequence[SweepRow], method: str) -> records.ModelAlone | None:
    splits = {row.split: measure_timed(row) for row in _timed_rows(rows) if row.method == method}
    return joined(records.ModelAlone, splits[CHOSEN_ON], test=splits.get(REPORTED_ON)) if CHOSEN_ON in splits else None


def failures(sweeps: Mapping[str, Sequence[SweepRow]]) -> list[records.FailedPoint]:
    """The rows that hold an error, or numbers that are not finite."""
    failed = [(arm, row) for arm in ARMS for row in sweeps[arm] if has_failed(row)]
    other = "no finite quality and speed-up"
    return [joined(records.FailedPoint, row, arm=arm, error=getattr(row, "error", other)) for arm, row in failed]


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
