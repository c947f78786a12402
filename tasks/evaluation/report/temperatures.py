"""The points of the sweeps at further temperatures, each compared with vanilla at its own temperature."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from tasks.evaluation.frontier import CHOSEN_ON, VANILLA
from tasks.evaluation.report.points import SweepPoints, latest
from tasks.evaluation.results.pair import PairRecord
from tasks.evaluation.results.rows import MeasuredRow, SweepRow
from tasks.evaluation.results.summary import TemperaturePoints, split_at


def temperature_points(
    task: str, sweeps: Mapping[tuple[str, float], Sequence[SweepRow]], pairs: Mapping[str, PairRecord | None]
) -> list[TemperaturePoints]:
    """What each sweep measured at each further temperature.

    Args:
        task: its name, for errors.
        sweeps: rows by drafter and temperature.
        pairs: what each sweep recorded of its two models.

    Raises:
        InputError: a temperature lacks a measured vanilla row.
    """
    found = []
    for (arm, temperature), rows in sweeps.items():
        own = [dataclasses.replace(row, split=CHOSEN_ON) for row in latest(rows) if row.split == split_at(temperature)]
        swept = SweepPoints()
        swept.add(task, arm, own, pairs.get(arm) or PairRecord())
        vanilla = next(row.value for row in own if isinstance(row, MeasuredRow) and row.method == VANILLA)
        points = [dataclasses.replace(point, chosen=None) for point in swept.points]
        found.append(TemperaturePoints(arm=arm, temperature=temperature, vanilla_quality=vanilla, points=points))
    return found
