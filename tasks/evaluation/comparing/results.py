"""A finished result, read back: the summary of a task and the rows behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.errors import InputError
from tasks.evaluation.changes import Curve, Measured, error_of, log_error_of
from tasks.evaluation.comparing.provenance import same_examples
from tasks.evaluation.frontier import CHOSEN_ON
from tasks.evaluation.measurements import Row
from tasks.evaluation.report.table import settings_text
from tasks.evaluation.rows import read_rows
from tasks.paths import DRAFTERS

SUMMARY = "summary.json"
_HELD = ("metric", "vanilla", "points", "choices")

Entry = Mapping[str, Any]
"""A point of a summary, a model of its `vanilla`, or either's `test`."""


@dataclass(frozen=True)
class Result:
    """One result, as it was read."""

    name: str
    """What the user called it."""
    summary: Mapping[str, Any]
    rows: Mapping[str, Sequence[Row]]
    """Of each drafter's sweep, for the latencies behind the speed-ups; none where only the summary is at hand."""

    def pair(self, drafter: str) -> Mapping[str, Any] | None:
        """What the sweep noted of its two models (pair.json)."""
        found: Mapping[str, Any] | None = (self.summary.get("pairs") or {}).get(drafter)
        return found

    def vanilla(self, split: str) -> Entry | None:
        """The large model alone on a split."""
        return on_split(self.summary["vanilla"].get("large"), split)

    def chosen(self) -> dict[tuple[str, str, str], int | None]:
        """`{(drafter, method, choice): index of the point, or None}`."""
        return {(one["drafter"], one["method"], one["choice"]): one["point"] for one in self.summary["choices"]}

    def measured(self, point: Entry, split: str) -> Measured:
        """A point of the summary with its latencies, where the rows are at hand."""
        entry = on_split(point, split) or point
        wanted = (split, point["method"], settings_text(point["settings"]))
        rows = [row for row in self.rows.get(point["drafter"], ()) if "latency_ms" in row and _key(row) == wanted]
        latencies = np.array([rows[-1]["vanilla_latency_ms"], rows[-1]["latency_ms"]], dtype=np.float64) if rows else None
        return Measured(
            quality=entry["quality"],
            quality_error=error_of(entry.get("quality_interval")),
            loss_error=error_of(entry.get("quality_difference_interval")),
            speedup=entry["speedup"],
            speedup_error=log_error_of(entry.get("speedup_interval")),
            latencies=None if latencies is None else latencies.T,
        )

    def curve(self, drafter: str) -> Curve | None:
        """Every timed point of a drafter on validation, whatever the method; None without a vanilla to compare with."""
        vanilla = self.vanilla(CHOSEN_ON)
        if vanilla is None:
            return None
        timed = [one for one in self.summary["points"] if one["drafter"] == drafter and one["speedup"] is not None]
        points = [self.measured(point, CHOSEN_ON) for point in timed]
        return Curve(points, vanilla["quality"])


def read_result(place: Path, name: str) -> Result:
    """Reads the folder of a task's results, or a summary alone.

    Raises:
        InputError: there is no summary, or it is none.
    """
    path = place / SUMMARY if place.is_dir() else place
    if not path.is_file():
        raise InputError(f"{name}: no {path.name} there; write it by: python -m tasks.report --task NAME")
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{name}: {path.name} is not JSON: {error}") from None
    lacking = [key for key in _HELD if not isinstance(summary, dict) or key not in summary]
    if lacking:
        raise InputError(f"{name}: {path.name} has no {lacking[0]!r}; give the summary that tasks.report wrote")
    sweeps = path.parent / "sweep"
    return Result(name, summary, {drafter: read_rows(sweeps / drafter / "rows.jsonl") for drafter in DRAFTERS})


def on_split(entry: Entry | None, split: str) -> Entry | None:
    """What an entry of a summary measured on that split."""
    return entry if split == CHOSEN_ON or entry is None else entry.get("test")


def same_timed(first: Result, second: Result, drafter: str, split: str) -> bool:
    """Whether both are known to have timed the same examples: by what they noted, or because their settings, data and code
    were all the same."""
    prints = [{row.get("fingerprint") for row in one.rows.get(drafter, ())} for one in (first, second)]
    one_print = len(prints[0]) == 1 and prints[0] == prints[1] and None not in prints[0]
    return one_print or same_examples(first.pair(drafter), second.pair(drafter), split)


def alike(points: Sequence[Measured]) -> bool:
    """Whether all hold latencies, and of equally many examples."""
    lengths = {None if one.latencies is None else len(one.latencies) for one in points}
    return len(lengths) == 1 and None not in lengths


def _key(row: Row) -> tuple[str, str, str]:
    return row["split"], row["method"], settings_text(row["settings"])
