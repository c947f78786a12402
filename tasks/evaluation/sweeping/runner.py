"""A sweep from its baselines to its chosen points.

On validation the grid is replayed and planned (`planning`), and what the plan asks for is timed; on test the chosen points are
decoded and timed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from tasks.decoding.generation import Counts
from tasks.decoding.settings import ORACLES
from tasks.evaluation.frontier import choose_rows, point_of
from tasks.evaluation.rows import Row
from tasks.evaluation.sweeping.costs import Costs, load_or_measure_costs, measure_costs
from tasks.evaluation.sweeping.planning import Candidate, Plan, prediction_error
from tasks.evaluation.sweeping.points import BASELINES, VANILLA, Split, SweepPoint
from tasks.evaluation.sweeping.replaying import ReplayedGrid, duplicates, replay_grid
from tasks.evaluation.sweeping.row_writer import RowWriter
from tasks.evaluation.timing import on_threads

_COST_SOURCES = 24
"""Timed examples on which the parts of decoding are timed."""

_Item = TypeVar("_Item")


@dataclass
class _Grid:
    """A replayed grid, by the places of its points."""

    points: Sequence[SweepPoint]
    replayed: ReplayedGrid
    assessed: dict[int, Row]
    """What the row of a replayed point says of its outputs."""
    duplicates_of: dict[int, int]
    """Points that behave like an earlier one."""

    def candidates(self, metric: str, split: Split) -> dict[int, Candidate]:
        """What may be timed: each behaviour once, and no oracle, of which the outputs are all that matters."""
        return {
            index: self._candidate(index, self.assessed[index]["quality"][metric], outputs.timed(split))
            for index, outputs in self.replayed.outputs.items()
            if index not in self.duplicates_of and self.points[index].method not in ORACLES
        }

    def _candidate(self, index: int, quality: float, by_example: Sequence[Counts]) -> Candidate:
        point = self.points[index]
        return Candidate(point.method, quality, by_example, getattr(point.settings, "rule", ""))

    def not_replayed(self) -> list[SweepPoint]:
        """What has to be decoded."""
        known = self.replayed.outputs.keys() | self.replayed.errors.keys()
        return [point for index, point in enumerate(self.points) if index not in known]


class SweepRunner:
    """One sweep on its way."""

    def __init__(self, writer: RowWriter, notes: Path) -> None:
        """Takes what makes rows, and where readings are kept for a sweep that is killed or grows."""
        self.planned: Row = {}
        """How the grid was gone through, for `pair.json`."""
        self._finish = writer
        self._evaluator = writer.evaluator
        self._notes = notes

    def validate(self, points: Sequence[SweepPoint], split: Split) -> list[Row]:
        """Rows of the baselines and of every point; where the sweep plans, only what is worth it is timed."""
        begun = time.monotonic()
        costs = self._finish.costs = self._costs(split) if self._evaluator.sweep.plan else None
        baselines = self._baselines(split)
        known = [point for point in map(point_of, baselines) if point is not None]
        if costs is None or len(known) < len(baselines):
            return baselines + self._time(_shuffled(points, self._evaluator.sweep.seed), split, "grid")
        grid = self._replay(points, split)
        between = time.monotonic()
        sweep, metric = self._evaluator.sweep, self._evaluator.metric
        vanilla = Candidate(VANILLA.method, baselines[0]["quality"][metric], self._evaluator.vanilla(split).timed(split))
        candidates = grid.candidates(metric, split)
        plan = Plan(candidates, known, costs, vanilla, near=sweep.near, sample=sweep.sample, seed=sweep.seed)
        timed = self._time_planned(plan, grid, split)
        decoded = self._time(_shuffled(grid.not_replayed(), sweep.seed), split, "grid")
        self.planned = {
            "points": len(points),
            "replayed": len(grid.assessed),
            "distinct": len(grid.assessed) - len(grid.duplicates_of),
            "timed": len(timed) + len(decoded),
            "replay_seconds": between - begun,
            "timing_seconds": time.monotonic() - between,
            "prediction_error": prediction_error(plan),
        }
        return [*baselines, *timed.values(), *decoded, *self._write_untimed(plan, grid, split, timed)]

    def report(self, rows: Sequence[Row], points: Sequence[SweepPoint], split: Split) -> list[Row]:
        """Rows of the baselines, and of what the validation rows single out, on another split."""
        chosen = [rows[index] for index in choose_rows(rows).values() if index is not None]
        named = [{"method": row["method"], "settings": row["settings"]} for row in chosen]
        return self._baselines(split) + self._time([point for point in points if point.fields() in named], split, "chosen")

    def _baselines(self, split: Split) -> list[Row]:
        return [self._finish.timed(point, split, "baseline") for point in BASELINES]

    def _time(self, points: Sequence[SweepPoint], split: Split, why: str) -> list[Row]:
        bar = tqdm(points, desc=self._label("sweep", split), unit="point", disable=not points)
        return [self._finish.timed(point, split, why) for point in bar]

    def _costs(self, split: Split) -> Costs | None:
        """None where a model cannot be run: the baselines' rows will say why."""
        evaluator = self._evaluator
        sources = [split.sources[example] for example in split.timed[:_COST_SOURCES]]

        def measure() -> Costs:
            with self._finish.quiet(), on_threads(evaluator.sweep.latency_threads):
                return measure_costs(evaluator.pair, sources, evaluator.request, evaluator.clock)

        try:
            costs = load_or_measure_costs(self._notes / "costs.json", measure)
        except RuntimeError:
            return None
        # Methods that go by it decode, and are replayed, by the same.
        evaluator.pair.cost_ratios.setdefault("small", costs.cost_ratio)
        return costs

    def _replay(self, points: Sequence[SweepPoint], split: Split) -> _Grid:
        evaluator = self._evaluator
        with on_threads(evaluator.sweep.latency_threads):
            known = [evaluator.vanilla(split).tokens]
            found = replay_grid(
                points, evaluator.pair, evaluator.request, split, self._notes, self._label("replay", split), known
            )
        assessed = {index: evaluator.assessed(outputs, split) for index, outputs in found.outputs.items()}
        return _Grid(points, found, assessed, duplicates(found.outputs, points))

    def _time_planned(self, plan: Plan, grid: _Grid, split: Split) -> dict[int, Row]:
        """Times what the plan asks for, until it asks for nothing."""
        timed: dict[int, Row] = {}
        with tqdm(desc=self._label("sweep", split), unit="point") as bar:
            while wanted := plan.next():
                bar.total = len(timed) + len(wanted)
                for index in _shuffled(wanted, self._evaluator.sweep.seed):
                    predicted = _predicted(plan, plan.predicted[index])
                    known = (grid.replayed.outputs[index], {**grid.assessed[index], "predicted": predicted})
                    row = timed[index] = self._finish.timed(grid.points[index], split, plan.why[index], known)
                    if "error" not in row:
                        # The row of a sweep that was killed holds what was predicted then.
                        plan.predicted[index] = row.get("predicted", predicted)["speedup"]
                        plan.note(index, row["speedup"])
                    bar.update()
        return timed

    def _write_untimed(self, plan: Plan, grid: _Grid, split: Split, timed: dict[int, Row]) -> list[Row]:
        """The rows of points that are not timed, with what is predicted of them in the end; and of those that failed."""
        rows = []
        for index, assessed in grid.assessed.items():
            if index not in timed:
                first = grid.duplicates_of.get(index, index)
                same = {} if first == index else {"same_as": grid.points[first].fields()["settings"]}
                known = {"predicted": _predicted(plan, plan.speedup(first))} if first in plan.candidates else {}
                rows.append(self._finish.untimed(grid.points[index], split, {**assessed, **known, **same}))
        return rows + [self._finish.failed(grid.points[index], split, error) for index, error in grid.replayed.errors.items()]

    def _label(self, what: str, split: Split) -> str:
        return f"{what} {self._finish.labels['drafter']} {split.name}"


def _predicted(plan: Plan, speedup: float) -> Row:
    return {"latency_ms": plan.vanilla_ms / speedup, "speedup": speedup}


def _shuffled(items: Iterable[_Item], seed: int) -> list[_Item]:
    """An order that no method profits from."""
    items = list(items)
    return random.Random(seed).sample(items, len(items))  # noqa: S311 (an order, not a secret)
