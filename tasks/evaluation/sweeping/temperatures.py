"""Sweep the grid on validation at further temperatures: each beside vanilla at the same one, in files of their own.

Nothing is chosen from these rows. Their split has the temperature in its name, so that no reader takes them for validation's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

from tasks.decoding.settings import GREEDY_ONLY
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.rows import SweepRow
from tasks.evaluation.results.summary import STEM, split_at
from tasks.evaluation.sweeping.fan_out import FanOut
from tasks.evaluation.sweeping.grid import SweepPoint
from tasks.evaluation.sweeping.outputs import Split
from tasks.evaluation.sweeping.point_evaluator import PointEvaluator
from tasks.evaluation.sweeping.row_writer import RowWriter
from tasks.evaluation.sweeping.runner import SweepRunner
from tasks.files import remove
from tasks.fingerprint import fingerprint


def points_at(temperature: float, points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """The points that a temperature is swept with: above 0 those whose methods draw tokens."""
    return [point for point in points if temperature == 0 or point.method not in GREEDY_ONLY]


def measure_temperatures(
    temperatures: Sequence[float],
    evaluator_at: Callable[[float], PointEvaluator],
    main: RowWriter,
    validation: Split,
    points: Sequence[SweepPoint],
    cache: Path,
    fan_out: FanOut,
) -> list[SweepRow]:
    """Measure the grid at each temperature, and remove the files of temperatures that are no longer asked for.

    Args:
        temperatures: Beside the sweep's own.
        evaluator_at: Makes what evaluates points at a temperature.
        main: Writes the rows of the sweep's own temperature; the others stand beside them.
        validation: The examples.
        points: The grid, see `points_at`.
        cache: See `SweepRunner`; what it keeps bears the name of the split.
        fan_out: See `SweepRunner`.

    Returns:
        The rows, the baselines of each temperature among them.
    """
    folder, found = main.rows.path.parent, list[SweepRow]()
    names = {split_at(temperature) for temperature in temperatures}
    for file in [*folder.glob(f"rows-{STEM}*.jsonl"), *folder.glob(f"hypotheses-{STEM}*.parquet")]:
        if file.stem.partition("-")[2] not in names:
            remove(file)
    for temperature in temperatures:
        split = copy.copy(validation)
        split.name = split_at(temperature)
        work = fingerprint({"work": main.rows.fingerprint, "temperature": temperature}, [], [])
        rows = SweepRowFile(folder / f"rows-{split.name}.jsonl", work)
        writer = RowWriter(evaluator_at(temperature), rows, main.task, main.arm, main.on_row)
        found += SweepRunner(writer, cache, fan_out).validate(points_at(temperature, points), split)
        rows.compact()
    return found
