"""A finished result, read back: the summary of a task and the rows behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from tasks.errors import InputError
from tasks.evaluation.changes import MeasuredCurve, MeasuredPoint, measured_point
from tasks.evaluation.comparing.provenance import same_examples
from tasks.evaluation.frontier import CHOSEN_ON
from tasks.evaluation.report.formatting import settings_text
from tasks.evaluation.results.rows import (
    ModelAlone,
    OperatingPoint,
    SweepRow,
    TimedMeasurements,
    TimedPoint,
    TimedRow,
    read_rows,
)
from tasks.evaluation.results.summary import Summary, read_summary
from tasks.paths import ARMS

SUMMARY = "summary.json"
_FIX = "write it with this revision's tasks.report, from rows of this revision"


@dataclass(frozen=True)
class LoadedResult:
    """One result."""

    name: str
    """What the user called it."""
    summary: Summary
    rows: Mapping[str, Sequence[SweepRow]]
    """Of each drafter's sweep, for the latencies behind the speed-ups; empty where only the summary is available."""
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    """What `params.yaml` of the result's revision says of its task; empty for a folder, whose file may have changed since."""

    def chosen(self) -> dict[tuple[str, str, str], int | None]:
        """`{(drafter, method, choice): index of the point, or None}`."""
        return {(one.arm, one.method, one.choice): one.point for one in self.summary.choices}

    def measured(self, point: TimedPoint, split: str) -> MeasuredPoint:
        """A point on a split, or on validation if it was not measured there, with its latencies where there are rows."""
        shown = on_split(point, split) or point
        wanted = (split, point.method, settings_text(point.settings))
        rows = [row for row in self.rows.get(point.arm, ()) if isinstance(row, TimedRow) and _key(row) == wanted]
        return measured_point(shown, rows[-1] if rows else None)

    def curve(self, arm: str) -> MeasuredCurve:
        """Every timed point of a drafter on validation, whatever the method."""
        points = [self.measured(point, CHOSEN_ON) for point in self.summary.timed_points(arm)]
        return MeasuredCurve(points, self.summary.vanilla.large.quality)


def load_result(path: Path, name: str) -> LoadedResult:
    """Reads a result.

    Args:
        path: the folder of a task's results, or a summary alone.
        name: what the user calls it.

    Raises:
        InputError: there is no summary, or a file is damaged or of another version.
    """
    summary = path / SUMMARY if path.is_dir() else path
    if not summary.is_file():
        raise InputError(f"{name}: no {summary.name} there; write it by: python -m tasks.report --task NAME")
    files = {arm: Path("sweep", arm, "rows.jsonl") for arm in ARMS}
    rows = {arm: read_rows(summary.parent / file, _FIX, f"{name}: {file}") for arm, file in files.items()}
    return LoadedResult(name, read_summary(summary, f"{name}: {summary.name}", _FIX), rows)


def on_split(measured: TimedPoint | ModelAlone | None, split: str) -> TimedMeasurements | None:
    """The measurements on that split, if there are any."""
    return measured if measured is None or split == CHOSEN_ON else measured.test


def same_timed(first: LoadedResult, second: LoadedResult, arm: str, split: str) -> bool:
    """Whether both are known to have timed the same examples: by what they recorded, or by one and the same fingerprint of
    settings, data and code."""
    prints = [{row.fingerprint for row in one.rows.get(arm, ())} for one in (first, second)]
    one_print = len(prints[0]) == 1 and prints[0] == prints[1] and "" not in prints[0]
    return one_print or same_examples(first.summary.pairs.of(arm), second.summary.pairs.of(arm), split)


def alike(points: Sequence[MeasuredPoint]) -> bool:
    """Whether all hold latencies, and of equally many examples."""
    lengths = {None if one.latencies is None else len(one.latencies) for one in points}
    return len(lengths) == 1 and None not in lengths


def _key(row: SweepRow) -> tuple[str, str, str]:
    return row.split, row.method, settings_text(row.settings)


def point_key(point: OperatingPoint) -> tuple[str, str, str]:
    """Names a point in both results: drafter, method and settings."""
    return point.arm, point.method, settings_text(point.settings)
