"""Evaluation of a drafter beside the large model: acceptance, and speed of the pair."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tasks.bench.alignment.drafters import Comparison
from tasks.bench.alignment.rows import Row
from tasks.bench.timing import Found
from tasks.corpora.example import read_jsonl
from tasks.decoding.registry import Request
from tasks.decoding.settings import BildSettings, SamplingSettings, SpeculativeSettings
from tasks.evaluation.acceptance import measure_acceptance
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON, TOLERANCES, TradeOff, choose
from tasks.evaluation.measurements import measure
from tasks.evaluation.results.codec import encode, joined
from tasks.evaluation.results.rows import MeasuredRow, TimedRow
from tasks.evaluation.settings import GridSettings, SweepSettings
from tasks.evaluation.sweeping.costs import Costs, measure_costs
from tasks.evaluation.sweeping.grid import VANILLA, SweepPoint, expand
from tasks.evaluation.sweeping.outputs import Split
from tasks.evaluation.sweeping.point_evaluator import PointEvaluator
from tasks.evaluation.sweeping.replaying import duplicates, replay_grid
from tasks.evaluation.timing import on_threads
from tasks.locks import timing_lock
from tasks.paths import TaskPaths
from tasks.sweep import LoadedPair, load_pair

FIXED = SweepPoint("bild", BildSettings(fallback_threshold=0.6, rollback_threshold=2.0, max_draft=10))
"""BiLD at the thresholds at which shares of fallbacks and rollbacks are compared."""
SPECULATIVE = SweepPoint("speculative", SpeculativeSettings(draft_length=5))
_GRID = GridSettings(
    method="bild",
    values={
        "fallback_threshold": [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
        "rollback_threshold": [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0],
        "max_draft": [10],
    },
)
"""Both papers' ranges, and lower rollback thresholds, at which even a poor drafter loses nothing."""
_TIMED = 2
"""Points without loss that are timed on validation: those predicted to be fastest."""
_COST_SOURCES = 12
_MOST_EXAMPLES = 60
_SAMPLED = SamplingSettings(temperature=1.0)


@dataclass(frozen=True)
class _DrafterPaths(TaskPaths):
    """A task's, with the drafter of a recipe for its aligned one."""

    drafter: Path

    def model(self, name: str) -> Path:
        return self.drafter if name == "aligned" else super().model(name)


def sweep_settings(task_sweep: SweepSettings) -> SweepSettings:
    """How decoding is measured here: greedy, and of the task's timed examples at most so many."""
    examples = min(task_sweep.latency_examples, _MOST_EXAMPLES)
    return dataclasses.replace(task_sweep, grid=[], sampling=SamplingSettings(), latency_examples=examples)


class DrafterEvaluation:
    """One drafter and the large model on validation and test."""

    def __init__(self, comparison: Comparison, drafter: Path) -> None:
        task = comparison.task
        paths = _DrafterPaths(comparison.name, drafter)
        self.sweep = sweep_settings(task.sweep)
        self.opened: LoadedPair = load_pair(comparison.params, task, paths, "aligned", [])
        self.request = Request(task.text.max_target_tokens, self.sweep.sampling, self.sweep.seed)
        self.bench = PointEvaluator(
            self.opened.pair, self.opened.tokenizer, task.metric, self.request, self.sweep, self.opened.device
        )
        self.validation, self.test = (
            Split(name, read_jsonl(paths.split(name)), self.opened.tokenizer, task.text.max_source_tokens, self.sweep)
            for name in (CHOSEN_ON, REPORTED_ON)
        )

    def row(self, folder: Path) -> Row:
        """All that is measured of a drafter.

        Args:
            folder: Empty, for the readings that BiLD's points are played from.
        """
        with timing_lock(self.opened.device):
            fixed, speculative = self._read(FIXED, timed=False), self._read(SPECULATIVE, timed=True)
            bild = self.bild(folder)
            return {
                **self.acceptance(),
                "accepted_length": speculative["mean_accepted_length"],
                "speculative_speedup": speculative["speedup"],
                "fallback_rate": fixed["fallback_rate"],
                "rollback_rate": fixed["rollback_rate"],
                "vanilla_quality": self._vanilla_quality(self.test),
                "bild_speedup": bild.get("speedup"),
                "bild_quality_difference": bild.get("quality_difference"),
                "bild": bild,
            }

    def acceptance(self) -> Row:
        """α of the pair on test, for sampling at temperature 1 and for greedy decoding (SD, Definition 3.2)."""
        found: Row = {}
        for name, sampling in (("acceptance_rate", _SAMPLED), ("acceptance_greedy", SamplingSettings())):
            rate = measure_acceptance(
                *(self.opened.pair, self.test.sources, sampling, self.sweep.seed),
                *(self.request.max_new_tokens, self.sweep.quality_batch),
                samples=self.sweep.bootstrap_samples,
            )
            found |= {name: rate.rate, f"{name}_interval": list(rate.interval), f"{name}_tokens": rate.tokens}
        return found

    def bild(self, folder: Path) -> Row:
        """BiLD at no loss: thresholds chosen on validation, measured on test; nothing where all of them lose too much."""
        point = self._choice(folder)
        if point is None:
            return {}
        found = self._read(point, timed=True)
        names = ("quality", "quality_difference_interval", "speedup", "speedup_interval", "large_calls_per_token")
        difference = found["quality"] - self._vanilla_quality(self.test)
        return {
            "method": point.method,
            "settings": point.row_settings,
            "quality_difference": difference,
            **{name: found[name] for name in names},
        }

    def _choice(self, folder: Path) -> SweepPoint | None:
        """The fastest point of the grid that loses nothing on validation, of the few that are predicted to be it."""
        points = expand([_GRID])
        bench, split = self.bench, self.validation
        with on_threads(self.sweep.latency_threads):
            known = [bench.vanilla(split).tokens]
            found = replay_grid(points, bench.pair, bench.request, split, folder, "replay", known)
        alike = duplicates(found.outputs, points)
        quality = {
            place: bench.assess(outputs, split).quality[bench.metric]
            for place, outputs in found.outputs.items()
            if place not in alike
        }
        least = self._vanilla_quality(split) - TOLERANCES["no_loss"]
        left = {place: found.outputs[place] for place, value in quality.items() if value >= least}
        timed: dict[int, float] = {}
        vanilla = self._costs.latency(VANILLA.method, bench.vanilla(split).timed(split))
        while left and len(timed) < _TIMED:
            place = min(left, key=lambda one: self._costs.latency("bild", left[one].timed(split)))
            timed[place] = bench.time(points[place], left.pop(place), split, None).speedup
            # What a point takes besides the runs of its models shows in those that were timed.
            self._costs.fit_overhead(
                "bild", [(found.outputs[one].timed(split), vanilla / speed) for one, speed in timed.items()]
            )
        places = list(timed)
        best = choose([TradeOff(quality[place], timed[place]) for place in places], least, 0.0)
        return None if best is None else points[places[best]]

    @cached_property
    def _costs(self) -> Costs:
        sources = [self.validation.sources[example] for example in self.validation.timed[:_COST_SOURCES]]
        with on_threads(self.sweep.latency_threads):
            return measure_costs(self.bench.pair, sources, self.request, self.bench.clock)

    def _read(self, point: SweepPoint, *, timed: bool) -> Found:
        """A point on test, as a report reads its row."""
        outputs = self.bench.decoded(point, self.test)
        header, outcome = self.bench.header(point, self.test, "", "aligned"), self.bench.assess(outputs, self.test)
        if not timed:
            return encode(measure(joined(MeasuredRow, header, outcome)))
        return encode(measure(joined(TimedRow, header, outcome, self.bench.time(point, outputs, self.test, None))))

    def _vanilla_quality(self, split: Split) -> float:
        return float(self.bench.assess(self.bench.vanilla(split), split).quality[self.bench.metric])


def work_of(comparison: Comparison, drafter: str) -> dict[str, object]:
    """What a row depends on besides code and text."""
    settings = json.loads(json.dumps([dataclasses.asdict(sweep_settings(comparison.task.sweep)), _GRID.values], default=str))
    return {"drafter": drafter, "sweep": settings}
