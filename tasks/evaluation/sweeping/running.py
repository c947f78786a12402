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
from tasks.evaluation.sweeping.costs import Costs, kept_costs, measure_costs
from tasks.evaluation.sweeping.finishing import Finisher
from tasks.evaluation.sweeping.planning import Candidate, Plan, prediction_error
from tasks.evaluation.sweeping.points import BASELINES, VANILLA, Point, Split
from tasks.evaluation.sweeping.replaying import Replayed, replay, twins
from tasks.evaluation.timing import on_threads

_COST_SOURCES = 24
"""Timed examples on which the parts of decoding are timed."""

_Item = TypeVar("_Item")


@dataclass
class _Grid:
    """A replayed grid, by the places of its points."""

    points: Sequence[Point]
    replayed: Replayed
    judged: dict[int, Row]
    """What the row of a replayed point says of its outputs."""
    alike: dict[int, int]
    """Points that behave like an earlier one."""

    def candidates(self, metric: str, split: Split) -> dict[int, Candidate]:
        """What may be timed: each behaviour once, and no oracle, of which the outputs are all that matters."""
        return {
            place: self._candidate(place, self.judged[place]["quality"][metric], outputs.timed(split))
            for place, outputs in self.replayed.outputs.items()
            if place not in self.alike and self.points[place].method not in ORACLES
        }

    def _candidate(self, place: int, quality: float, by_example: Sequence[Counts]) -> Candidate:
        point = self.points[place]
        return Candidate(point.method, quality, by_example, getattr(point.settings, "rule", ""))

    def not_replayed(self) -> list[Point]:
        """What has to be decoded."""
        known = self.replayed.outputs.keys() | self.replayed.errors.keys()
        return [point for place, point in enumerate(self.points) if place not in known]


class Running:
    """One sweep on its way."""

    def __init__(self, finisher: Finisher, notes: Path) -> None:
        """Takes what makes rows, and where readings are kept for a sweep that is killed or grows."""
        self.planned: Row = {}
        """How the grid was gone through, for `pair.json`."""
        self._finish = finisher
        self._bench = finisher.bench
        self._notes = notes

    def validate(self, points: Sequence[Point], split: Split) -> list[Row]:
        """Rows of the baselines and of every point; where the sweep plans, only what is worth it is timed."""
        begun = time.monotonic()
        costs = self._finish.costs = self._costs(split) if self._bench.sweep.plan else None
        baselines = self._baselines(split)
        known = [point for point in map(point_of, baselines) if point is not None]
        if costs is None or len(known) < len(baselines):
            return baselines + self._time(_shuffled(points, self._bench.sweep.seed), split, "grid")
        grid = self._replay(points, split)
        between = time.monotonic()
        sweep, metric = self._bench.sweep, self._bench.metric
        vanilla = Candidate(VANILLA.method, baselines[0]["quality"][metric], self._bench.vanilla(split).timed(split))
        candidates = grid.candidates(metric, split)
        plan = Plan(candidates, known, costs, vanilla, near=sweep.near, sample=sweep.sample, seed=sweep.seed)
        timed = self._follow(plan, grid, split)
        decoded = self._time(_shuffled(grid.not_replayed(), sweep.seed), split, "grid")
        self.planned = {
            "points": len(points),
            "replayed": len(grid.judged),
            "distinct": len(grid.judged) - len(grid.alike),
            "timed": len(timed) + len(decoded),
            "replay_seconds": between - begun,
            "timing_seconds": time.monotonic() - between,
            "prediction_error": prediction_error(plan),
        }
        return [*baselines, *timed.values(), *decoded, *self._leave(plan, grid, split, timed)]

    def report(self, rows: Sequence[Row], points: Sequence[Point], split: Split) -> list[Row]:
        """Rows of the baselines, and of what the validation rows single out, on another split."""
        chosen = [rows[place] for place in choose_rows(rows).values() if place is not None]
        named = [{"method": row["method"], "settings": row["settings"]} for row in chosen]
        return self._baselines(split) + self._time([point for point in points if point.fields() in named], split, "chosen")

    def _baselines(self, split: Split) -> list[Row]:
        return [self._finish.timed(point, split, "baseline") for point in BASELINES]

    def _time(self, points: Sequence[Point], split: Split, why: str) -> list[Row]:
        bar = tqdm(points, desc=self._label("sweep", split), unit="point", disable=not points)
        return [self._finish.timed(point, split, why) for point in bar]

    def _costs(self, split: Split) -> Costs | None:
        """None where a model cannot be run: the baselines' rows will say why."""
        bench = self._bench
        sources = [split.sources[example] for example in split.timed[:_COST_SOURCES]]

        def measure() -> Costs:
            with self._finish.quiet(), on_threads(bench.sweep.latency_threads):
                return measure_costs(bench.pair, sources, bench.request, bench.clock)

        try:
            costs = kept_costs(self._notes / "costs.json", measure)
        except RuntimeError:
            return None
        # Methods that go by it decode, and are replayed, by the same.
        bench.pair.cost_ratios.setdefault("small", costs.cost_ratio)
        return costs

    def _replay(self, points: Sequence[Point], split: Split) -> _Grid:
        bench = self._bench
        with on_threads(bench.sweep.latency_threads):
            known = [bench.vanilla(split).tokens]
            found = replay(points, bench.pair, bench.request, split, self._notes, self._label("replay", split), known)
        judged = {place: bench.judged(outputs, split) for place, outputs in found.outputs.items()}
        return _Grid(points, found, judged, twins(found.outputs, points))

    def _follow(self, plan: Plan, grid: _Grid, split: Split) -> dict[int, Row]:
        """Times what the plan asks for, until it asks for nothing."""
        timed: dict[int, Row] = {}
        with tqdm(desc=self._label("sweep", split), unit="point") as bar:
            while wanted := plan.next():
                bar.total = len(timed) + len(wanted)
                for place in _shuffled(wanted, self._bench.sweep.seed):
                    predicted = _predicted(plan, plan.predicted[place])
                    known = (grid.replayed.outputs[place], {**grid.judged[place], "predicted": predicted})
                    row = timed[place] = self._finish.timed(grid.points[place], split, plan.why[place], known)
                    if "error" not in row:
                        # The row of a sweep that was killed holds what was predicted then.
                        plan.predicted[place] = row.get("predicted", predicted)["speedup"]
                        plan.note(place, row["speedup"])
                    bar.update()
        return timed

    def _leave(self, plan: Plan, grid: _Grid, split: Split, timed: dict[int, Row]) -> list[Row]:
        """The rows of points that are not timed, with what is predicted of them in the end; and of those that failed."""
        rows = []
        for place, judged in grid.judged.items():
            if place not in timed:
                first = grid.alike.get(place, place)
                same = {} if first == place else {"same_as": grid.points[first].fields()["settings"]}
                known = {"predicted": _predicted(plan, plan.speedup(first))} if first in plan.candidates else {}
                rows.append(self._finish.untimed(grid.points[place], split, {**judged, **known, **same}))
        return rows + [self._finish.failed(grid.points[place], split, error) for place, error in grid.replayed.errors.items()]

    def _label(self, what: str, split: Split) -> str:
        return f"{what} {self._finish.labels['drafter']} {split.name}"


def _predicted(plan: Plan, speedup: float) -> Row:
    return {"latency_ms": plan.vanilla_ms / speedup, "speedup": speedup}


def _shuffled(items: Iterable[_Item], seed: int) -> list[_Item]:
    """An order that no method profits from."""
    items = list(items)
    return random.Random(seed).sample(items, len(items))  # noqa: S311 (an order, not a secret)
