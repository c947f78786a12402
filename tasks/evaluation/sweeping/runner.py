"""Run a sweep from its baselines to its chosen points.

On validation the grid is replayed and planned (`planning`), and the points of the plan are timed. On test the chosen points are
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

from tasks.decoding.decoder import Decoder
from tasks.decoding.generation import Counts
from tasks.decoding.runtimes.machine_limits import LEAST_SHARE, bandwidth_share
from tasks.decoding.settings import ORACLES
from tasks.evaluation.frontier import tradeoff_of
from tasks.evaluation.results.pair import SweepPlan
from tasks.evaluation.results.rows import Outcome, Prediction, SweepRow, TimedRow
from tasks.evaluation.selection.choosing import choose_rows
from tasks.evaluation.settings import MarginSettings
from tasks.evaluation.sweeping.costs import Costs, load_or_measure_costs, measure_costs
from tasks.evaluation.sweeping.grid import BASELINES, VANILLA, SweepPoint
from tasks.evaluation.sweeping.outputs import Split
from tasks.evaluation.sweeping.planning import Candidate, Plan, prediction_error
from tasks.evaluation.sweeping.replaying import ReplayedGrid, duplicates, replay_grid
from tasks.evaluation.sweeping.row_writer import RowWriter
from tasks.evaluation.timing import on_threads

_COST_SOURCES = 24
"""Timed examples on which the parts of decoding are timed."""

_Item = TypeVar("_Item")


@dataclass
class _AssessedGrid:
    """A replayed grid with the quality of its points, by the index of a point in it."""

    points: Sequence[SweepPoint]
    replayed: ReplayedGrid
    outcomes: dict[int, Outcome]
    """Of the replayed points."""
    duplicate_of: dict[int, int]
    """Points that behave like an earlier one, and the index of that one."""

    def candidates(self, metric: str, split: Split) -> dict[int, Candidate]:
        """Points that may be timed: one of each behaviour, and no oracle, since only an oracle's outputs matter."""
        return {
            index: self._candidate(index, self.outcomes[index].quality[metric], outputs.timed(split))
            for index, outputs in self.replayed.outputs.items()
            if index not in self.duplicate_of and self.points[index].method not in ORACLES
        }

    def _candidate(self, index: int, quality: float, by_example: Sequence[Counts]) -> Candidate:
        point, bounds = self.points[index], self.outcomes[index].difference_bounds
        lower = None if bounds is None else bounds.lower
        return Candidate(point.method, quality, by_example, lower, getattr(point.settings, "rule", ""))

    def not_replayed(self) -> list[SweepPoint]:
        """Points that have to be decoded."""
        done = self.replayed.outputs.keys() | self.replayed.errors.keys()
        return [point for index, point in enumerate(self.points) if index not in done]


class SweepRunner:
    """Runs one sweep."""

    def __init__(self, writer: RowWriter, cache: Path) -> None:
        """Take the writer of rows, and the folder of cached predictions for a sweep that is interrupted or grows."""
        self.plan: SweepPlan | None = None
        """How the grid was worked through, for `pair.json`; None in a sweep that does not plan."""
        self._writer = writer
        self._evaluator = writer.evaluator
        self._cache = cache

    def validate(self, points: Sequence[SweepPoint], split: Split) -> list[SweepRow]:
        """Rows of the baselines and of every point; a sweep that plans times only the points of its plan."""
        begun = time.monotonic()
        self._evaluator.compare(points, split)
        costs = self._writer.costs = self._costs(split) if self._evaluator.sweep.plan else None
        baselines = self._time_baselines(split)
        known = [point for point in map(tradeoff_of, baselines) if point is not None]
        if costs is None or len(known) < len(baselines):
            return baselines + self._time(_shuffled(points, self._evaluator.sweep.seed), split, "grid")
        grid = self._replay(points, split)
        replayed = time.monotonic()
        sweep, metric = self._evaluator.sweep, self._evaluator.metric
        vanilla = Candidate(VANILLA.method, known[0].quality, self._evaluator.vanilla(split).timed(split))
        candidates = grid.candidates(metric, split)
        plan = Plan(
            *(candidates, known, costs, vanilla),
            margins=sweep.margins,
            near=sweep.near,
            sample=sweep.sample,
            seed=sweep.seed,
        )
        timed = self._time_planned(plan, grid, split)
        decoded = self._time(_shuffled(grid.not_replayed(), sweep.seed), split, "grid")
        self.plan = SweepPlan(
            points=len(points),
            replayed=len(grid.outcomes),
            distinct=len(grid.outcomes) - len(grid.duplicate_of),
            timed=len(timed) + len(decoded),
            replay_seconds=replayed - begun,
            timing_seconds=time.monotonic() - replayed,
            prediction_error=prediction_error(plan),
        )
        return [*baselines, *timed.values(), *decoded, *self._write_untimed(plan, grid, split, timed)]

    def report(self, rows: Sequence[SweepRow], points: Sequence[SweepPoint], split: Split) -> list[SweepRow]:
        """Rows, on another split, of the baselines and of the points that the validation rows choose."""
        chosen = {(row.method, str(row.settings)) for row in _chosen(rows, self._evaluator.sweep.margins)}
        wanted = [point for point in points if (point.method, str(point.row_settings)) in chosen]
        return self._time_baselines(split) + self._time(wanted, split, "chosen")

    def _time_baselines(self, split: Split) -> list[SweepRow]:
        return [self._writer.write_timed(point, split, "baseline") for point in BASELINES]

    def _time(self, points: Sequence[SweepPoint], split: Split, why: str) -> list[SweepRow]:
        bar = tqdm(points, desc=self._label("sweep", split), unit="point", disable=not points)
        return [self._writer.write_timed(point, split, why) for point in bar]

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
            tqdm.write(warning)
        # Methods that use the ratio decode with the same value as they are replayed with.
        evaluator.pair.cost_ratios.setdefault("small", costs.cost_ratio)
        return costs

    def _replay(self, points: Sequence[SweepPoint], split: Split) -> _AssessedGrid:
        evaluator, label = self._evaluator, self._label("replay", split)
        with on_threads(evaluator.sweep.latency_threads):
            known = [evaluator.vanilla(split).tokens]
            replayed = replay_grid(points, evaluator.pair, evaluator.request, split, self._cache, label, known)
        outcomes = evaluator.assess_grid(points, replayed.outputs, split)
        return _AssessedGrid(points, replayed, outcomes, duplicates(replayed.outputs, points))

    def _time_planned(self, plan: Plan, grid: _AssessedGrid, split: Split) -> dict[int, SweepRow]:
        """Time the points that the plan asks for, until it asks for none."""
        timed: dict[int, SweepRow] = {}
        with tqdm(desc=self._label("sweep", split), unit="point") as bar:
            while wanted := plan.next():
                bar.total = len(timed) + len(wanted)
                for index in _shuffled(wanted, self._evaluator.sweep.seed):
                    predicted = _prediction(plan, plan.predicted[index])
                    known = grid.replayed.outputs[index], grid.outcomes[index]
                    row = self._writer.write_timed(grid.points[index], split, plan.why[index], known, predicted)
                    timed[index] = row
                    if isinstance(row, TimedRow):
                        # A row of an interrupted sweep holds the prediction of that time.
                        plan.predicted[index] = (row.predicted or predicted).speedup
                        plan.record(index, row.speedup)
                    bar.update()
        return timed

    def _write_untimed(self, plan: Plan, grid: _AssessedGrid, split: Split, timed: dict[int, SweepRow]) -> list[SweepRow]:
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
        return f"{activity} {self._writer.drafter} {split.name}"


def _prediction(plan: Plan, speedup: float) -> Prediction:
    return Prediction(latency_ms=plan.vanilla_ms / speedup, speedup=speedup)


def _chosen(rows: Sequence[SweepRow], margins: MarginSettings) -> list[SweepRow]:
    """The rows that are chosen on validation; none without a measured vanilla row."""
    return [rows[index] for index in choose_rows(rows, margins).values() if index is not None]


def _shuffled(items: Iterable[_Item], seed: int) -> list[_Item]:
    """The items in an order that favours no method."""
    items = list(items)
    return random.Random(seed).sample(items, len(items))  # noqa: S311 (an order, not a secret)


def slow_step_warning(large: Decoder, costs: Costs) -> str:
    """A warning where vanilla uses less than half of the machine, so that every speed-up over it flatters; otherwise empty."""
    share = bandwidth_share(large.capabilities.step_bytes, costs.verify_ms[1] / 1000)
    if share is None or share >= LEAST_SHARE:
        return ""
    return (
        f"warning: a step of the large model uses {share:.0%} of this machine's bandwidth for its weights, so that "
        "speed-ups over vanilla look better than they are; python -m tasks.bench measures where the time goes"
    )
