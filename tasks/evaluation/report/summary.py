"""Rows of the two sweeps, put together as the summary that a user, a figure and a table read.

Choices are made on the validation split, from unrounded numbers, each drafter against the vanilla large model of its
own sweep; what is chosen is then looked up on the test split. Ratios are made from raw counts, once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tasks.evaluation.frontier import CHOSEN_ON
from tasks.evaluation.measurements import Row
from tasks.evaluation.report.curves import bild_frontier, pareto_fronts, reference_point
from tasks.evaluation.report.definitions import DEFINITIONS
from tasks.evaluation.report.points import Entry, failures, latest, models_alone, sweep_points
from tasks.evaluation.report.tables import paper_tables
from tasks.evaluation.report.verdict import verdict
from tasks.paths import DRAFTERS

Pairs = Mapping[str, Mapping[str, Any] | None]
"""For each of `DRAFTERS` what its sweep found out about the two models (pair.json), or None where it left no such file."""


def summarize(task: str, metric: str, sweeps: Mapping[str, Sequence[Row]], pairs: Pairs | None = None) -> dict[str, Any]:
    """The summary of one task.

    Args:
        task: its name.
        metric: its metric.
        sweeps: for each of `DRAFTERS` the rows of its sweep, both splits; of rows for the same point the last counts.
        pairs: about the models of each sweep; costs, acceptance rates and the plan are left out without.

    Returns:
        What is written to summary.json but for the table: plain JSON values, rounded, without NaN or infinity.

    Raises:
        InputError: a sweep lacks a measured vanilla large row on the validation split.
    """
    about = {drafter: (pairs or {}).get(drafter) for drafter in DRAFTERS}
    rows = {drafter: latest(sweeps[drafter]) for drafter in DRAFTERS}
    points: list[Entry] = []
    sources: list[Row] = []
    choices: list[dict[str, Any]] = []
    for drafter in DRAFTERS:
        found = sweep_points(task, drafter, rows[drafter], about[drafter])
        choices += [
            {"method": method, "drafter": drafter, "choice": name, "point": None if place is None else len(points) + place}
            for (method, name), place in found.chosen.items()
        ]
        points += found.entries
        sources += found.rows
    vanilla = models_alone(rows)
    reference = reference_point(vanilla)
    summary: dict[str, Any] = {
        "task": task,
        "metric": metric,
        "split": CHOSEN_ON,
        "signature": next((row["signature"] for found in rows.values() for row in found if row.get("signature")), None),
        "vanilla": vanilla,
        "points": points,
        "choices": choices,
        "frontier": bild_frontier(points, sources),
        "pareto": pareto_fronts(points, reference),
        "hypervolume_reference": None if reference is None else {"speedup": reference.speedup, "quality": reference.quality},
        "pairs": about,
        "failed": failures(rows),
        "definitions": DEFINITIONS,
    }
    summary["tables"] = paper_tables(summary)
    summary["verdict"] = verdict(summary)
    return {name: _plain(value) for name, value in summary.items()}


def _plain(value: Any) -> Any:
    """`value` as strict JSON: floats to six digits, infinity as text (a threshold), NaN as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        if math.isfinite(value):
            return float(f"{value:.6g}")
        return None if math.isnan(value) else str(float(value))
    return value
