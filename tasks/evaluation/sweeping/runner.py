"""Run a sweep from its baselines to its chosen points.

On validation the grid is replayed and planned (`planning`), and the points of the plan are timed. On test the chosen points are
replayed and timed. A point is timed in several rounds, and all other points between two of its rounds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tasks.console import log, progress
from tasks.evaluation.frontier import CHOSEN_ON, tradeoff_of
from tasks.evaluation.metrics import metric_of
from tasks.evaluation.results.pair import SweepPlan
from tasks.evaluation.results.rows import Outcome, Prediction, SweepRow, TimedRow
from tasks.evaluation.risk_control import controlled
from tasks.evaluation.selection.choosing import choose_rows
from tasks.evaluation.settings import SweepSettings
from tasks.evaluation.sweeping.assessed_grid import AssessedGrid
from tasks.evaluation.sweeping.costs import Costs, load_or_measure_costs, measure_costs, slow_step_warning
from tasks.evaluation.sweeping.decoding_ahead import PointDecoder, decode_points
from tasks.evaluation.sweeping.fan_out import ALONE, FanOut
from tasks.evaluation.sweeping.grid import BASELINES, VANILLA, SweepPoint
from tasks.evaluation.sweeping.outputs import Outputs, Split
from tasks.evaluation.sweeping.planning import Candidate, Plan, prediction_error
from tasks.evaluation.sweeping.point_evaluator import is_vanillas_output
from tasks.evaluation.sweeping.replaying import ReplayedGrid, duplicates, replay_grid
from tasks.evaluation.sweeping.row_writer import RowWriter
from tasks.evaluation.timing import on_threads

_COST_SOURCES = 24
"""Timed examples on which the parts of decoding are timed."""

_Item = TypeVar("_Item")


@dataclass(frozen=True)
class _Visit:
    """Why a point is timed, and what is known of it before."""

    why: str
    known: tuple[Outputs, Outcome] | None = None
    predicted: Prediction | None = None

    def time(self, writer: RowWriter, point: SweepPoint, split: Split) -> SweepRow:
        """One more round of the point."""
        return writer.write_timed(point, split, self.why, self.known, self.predicted)


_BASELINES = dict.fromkeys(BASELINES, _Visit("baseline"))


class SweepRunner:
    """Runs one sweep."""

    def __init__(self, writer: RowWriter, cache: Path, fan_out: FanOut = ALONE) -> None:
        """Take what a sweep works with.

        Args:
            writer: Writes the rows.
            cache: Folder of cached predictions for a sweep that is interrupted or grows.
            fan_out: The processes that replay and decode; only this one times.
        """
        self.plan: SweepPlan | None = None
        """How the grid was worked through, for `pair.json`; None in a sweep that does not plan."""
        self._writer = writer
        self._evaluator = writer.evaluator
        self._cache = cache
        self._fan_out = fan_out

    def validate(self, points: Sequence[SweepPoint], split: Split) -> list[SweepRow]:
        """Rows of the baselines and of every point; a sweep that plans times only the points of its plan."""
        begun = time.monotonic()
        self._evaluator.compare(points, split)
        costs = self._writer.costs = self._costs(split) if self._evaluator.sweep.plan else None
        # The plan compares with a first round of the baselines; their other rounds are spread over the sweep.
        rows = {point: self._writer.write_timed(point, split, "baseline") for point in BASELINES}
        known = [point for point in map(tradeoff_of, rows.values()) if point is not None]
        if costs is None or len(known) < len(BASELINES):
            self._decode_ahead(points, split)
            return list(self._time(_BASELINES | dict.fromkeys(points, _Visit("grid")), split, rows).values())
        grid = self._replay(points, split)
        self._decode_ahead(grid.not_replayed(), split)
        replayed = time.monotonic()
        sweep, metric = self._evaluator.sweep, self._evaluator.metric
        vanilla = Candidate(VANILLA.method, known[0].quality, self._evaluator.vanilla(split).timed(split))
        candidates = grid.candidates(metric_of(metric).name, split)
        small = self._evaluator.decoded(BASELINES[1], split).timed(split)
        alone = Candidate(BASELINES[1].method, known[1].quality, small), known[1].speedup
        plan = Plan(
            *(candidates, known, costs, vanilla),
            margins=sweep.margins,
            near=sweep.near,
            sample=sweep.sample,
            seed=sweep.seed,
            alone=alone,
        )
        timed = self._time_planned(plan, grid, split, rows)
        self.plan = SweepPlan(
            points=len(points),
            replayed=len(grid.outcomes),
            distinct=len(grid.outcomes) - len(grid.duplicate_of),
            timed=len(rows) - len(BASELINES),
            replay_seconds=replayed - begun,
            timing_seconds=time.monotonic() - replayed,
            prediction_error=prediction_error(plan),
        )
        return [*rows.values(), *self._write_untimed(plan, grid, split, timed)]

    def report(self, rows: Sequence[SweepRow], points: Sequence[SweepPoint], split: Split) -> list[SweepRow]:
        """Rows, on another split, of the baselines and of the points that the validation rows choose."""
        chosen = {(row.method, str(row.settings)) for row in _chosen(rows, self._evaluator.sweep)}
        wanted = [point for point in points if (point.method, str(point.row_settings)) in chosen]
        waiting = [point for point in wanted if not self._writer.is_finished(point, split)]
        known = self._known(waiting, split) if waiting and self._evaluator.sweep.plan else {}
        self._decode_ahead([point for point in waiting if point not in known], split)
        visits = {point: _Visit("chosen", known.get(point)) for point in wanted}
        return list(self._time(_BASELINES | visits, split, {}).values())

    def _time(
        self, visits: Mapping[SweepPoint, _Visit], split: Split, rows: dict[SweepPoint, SweepRow]
    ) -> dict[SweepPoint, SweepRow]:
        """Time every point in rounds, each in another random order, until all points have all rounds.

        Args:
            visits: The points.
            split: The examples.
            rows: Those of earlier rounds; gains the others.

        Returns:
            `rows`.
        """
        number = 0
        while waiting := [point for point in visits if point not in rows or not self._writer.finished(rows[point])]:
            number += 1
            label = f"{self._label('sweep', split)}, pass {number}"
            for point in progress(_shuffled(waiting, f"{self._evaluator.sweep.seed} {number}"), desc=label, unit="point"):
                rows[point] = visits[point].time(self._writer, point, split)
        return rows

    def _costs(self, split: Split) -> Costs | None:
        """The cost model; None where a model cannot run, which the rows of the baselines then report."""
        evaluator = self._evaluator
        sources = [split.sources[example] for example in split.timed[:_COST_SOURCES]]

        def measure() -> Costs:
            with on_threads(evaluator.sweep.latency_threads):
                return measure_costs(evaluator.pair, sources, evaluator.request, evaluator.clock)

        try:
            costs = load_or_measure_costs(self._cache / "costs.json", measure)
        except RuntimeError:
            return None
        if warning := slow_step_warning(evaluator.pair.large, costs):
            log.warning("%s", warning)
        # Methods that use the ratio decode with the same value as they are replayed with.
        evaluator.pair.cost_ratios.setdefault("small", costs.cost_ratio)
        return costs

    def _replay(self, points: Sequence[SweepPoint], split: Split) -> AssessedGrid:
        replayed = self._replayed(points, split)
        outcomes = self._evaluator.assess_grid(points, replayed.outputs, split)
        self._writer.keep({points[index]: outputs for index, outputs in replayed.outputs.items()}, split)
        return AssessedGrid(points, replayed, outcomes, duplicates(replayed.outputs, points))

    def _known(self, points: Sequence[SweepPoint], split: Split) -> dict[SweepPoint, tuple[Outputs, Outcome]]:
        """Outputs and outcomes of the points that can be replayed; each is assessed by itself, without a correction."""
        try:
            outputs = {points[index]: one for index, one in self._replayed(points, split).outputs.items()}
        except RuntimeError:  # a model that cannot run, which the rows of the baselines report
            return {}
        self._writer.keep(outputs, split)
        return {
            point: (one, self._evaluator.assess(one, split, lossless=is_vanillas_output(point)))
            for point, one in outputs.items()
        }

    def _replayed(self, points: Sequence[SweepPoint], split: Split) -> ReplayedGrid:
        evaluator, label = self._evaluator, self._label("replay", split)
        with on_threads(evaluator.sweep.latency_threads):
            known = [evaluator.vanilla(split).tokens]
            return replay_grid(points, evaluator.pair, evaluator.request, split, self._cache, label, known, self._fan_out)

    def _decode_ahead(self, points: Sequence[SweepPoint], split: Split) -> None:
        """Decode points in several processes, before any is timed; one process alone decodes each before its first round."""
        waiting = [point for point in points if point not in BASELINES and not self._writer.is_finished(point, split)]
        if self._fan_out.size > 1 and waiting:
            evaluator = self._evaluator
            decoder = PointDecoder(evaluator.request, evaluator.sweep.quality_batch, split, self._cache, evaluator.pair)
            for point, outputs in decode_points(waiting, decoder, self._fan_out, self._label("decode", split)).items():
                self._writer.know(point, outputs, split)

    def _time_planned(self, plan: Plan, grid: AssessedGrid, split: Split, rows: dict[SweepPoint, SweepRow]) -> set[int]:
        """Time the points that the plan asks for, until it asks for none, and those that cannot be replayed.

        The plan proceeds by first rounds. When it asks for none, all points go through their other rounds together; what these
        change may make it ask for more.

        Args:
            plan: The plan.
            grid: The replayed points.
            split: The examples.
            rows: Those of the baselines; gains the others.

        Returns:
            The indices of the points that the plan asked for.
        """
        visits = _BASELINES | dict.fromkeys(grid.not_replayed(), _Visit("grid"))
        while (wanted := plan.next()) or not all(point in rows and self._writer.finished(rows[point]) for point in visits):
            for index in _shuffled(wanted, self._evaluator.sweep.seed):
                point, known = grid.points[index], (grid.replayed.outputs[index], grid.outcomes[index])
                visits[point] = _Visit(plan.why[index], known, _prediction(plan, plan.predict(index)))
                rows[point] = visits[point].time(self._writer, point, split)
                plan.record(index, *_speedups(rows[point]))
            if not wanted:
                self._time(visits, split, rows)
                for index in plan.why:
                    plan.record(index, *_speedups(rows[grid.points[index]]))
        return set(plan.why)

    def _write_untimed(self, plan: Plan, grid: AssessedGrid, split: Split, timed: set[int]) -> list[SweepRow]:
        """Rows of the points that are not timed, with their final predictions, and of the points that failed."""
        rows = []
        for index, outcome in grid.outcomes.items():
            if index not in timed:
                first = grid.duplicate_of.get(index, index)
                same_as = None if first == index else grid.points[first].row_settings
                predicted = _prediction(plan, plan.speedup(first)) if first in plan.candidates else None
                rows.append(self._writer.write_untimed(grid.points[index], split, outcome, predicted, same_as))
        failed = grid.replayed.errors.items()
        return rows + [self._writer.write_failed(grid.points[index], split, error) for index, error in failed]

    def _label(self, activity: str, split: Split) -> str:
        return f"{activity} {self._writer.arm} {split.name}"


def _speedups(row: SweepRow) -> tuple[float | None, float | None]:
    """Measured speed-up, and the one predicted before the first round, which may be that of an interrupted sweep."""
    if not isinstance(row, TimedRow):
        return None, None
    return row.speedup, None if row.predicted is None else row.predicted.speedup


def _prediction(plan: Plan, speedup: float) -> Prediction:
    return Prediction(latency_ms=plan.vanilla_ms / speedup, speedup=speedup)


def _chosen(rows: Sequence[SweepRow], sweep: SweepSettings) -> list[SweepRow]:
    """The rows that are chosen on validation, by margins or for their risk; none without a measured vanilla row."""
    found = [rows[index] for index in choose_rows(rows, sweep.margins).values() if index is not None]
    timed = [row for row in rows if isinstance(row, TimedRow) and row.split == CHOSEN_ON]
    valid = [one.chosen for one in controlled(timed, sweep.risk)]
    return [*found, *(row for row in valid if row is not None)]


def _shuffled(items: Iterable[_Item], seed: int | str) -> list[_Item]:
    """The items in an order that favours no method."""
    items = list(items)
    return random.Random(seed).sample(items, len(items))  # noqa: S311 (an order, not a secret)
