"""Evaluation of a drafter beside the large model: acceptance, and speed of the pair."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tasks.bench.alignment.drafters import Comparison
from tasks.bench.alignment.rows import BildResult, DrafterMeasurements
from tasks.corpora.example import read_jsonl
from tasks.decoding.registry import Request
from tasks.decoding.settings import BildSettings, SamplingSettings, SpeculativeSettings
from tasks.evaluation.acceptance import measure_acceptance
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON, TOLERANCES, TradeOff, choose
from tasks.evaluation.measurements import measure, measure_timed
from tasks.evaluation.results.codec import joined
from tasks.evaluation.results.pair import AcceptanceRate
from tasks.evaluation.results.points import Measurements, TimedMeasurements
from tasks.evaluation.results.rows import MeasuredRow, Outcome, RowHeader, TimedRow
from tasks.evaluation.settings import GridSettings, SweepSettings
from tasks.evaluation.sweeping.costs import Costs, measure_costs
from tasks.evaluation.sweeping.grid import VANILLA, SweepPoint, expand
from tasks.evaluation.sweeping.outputs import Outputs, Split
from tasks.evaluation.sweeping.point_evaluator import PointEvaluator
from tasks.evaluation.sweeping.replaying import duplicates, replay_grid
from tasks.evaluation.timing import on_threads
from tasks.fingerprint import fingerprint
from tasks.locks import timing_lock
from tasks.paths import TaskPaths
from tasks.sweep import LoadedPair, load_pair

FIXED = SweepPoint("bild", BildSettings(fallback_threshold=0.6, rollback_threshold=2.0, max_draft=10))
"""BiLD at the thresholds at which fallback and rollback rates are compared."""
SPECULATIVE = SweepPoint("speculative", SpeculativeSettings(draft_length=5))
_GRID = GridSettings(
    method="bild",
    values={
        "fallback_threshold": [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
        "rollback_threshold": [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0],
        "max_draft": [10],
    },
)
"""The ranges of both papers, and lower rollback thresholds, at which even a poor drafter loses no quality."""
_TIMED = 2
"""Points without loss that are timed on validation: those with the highest predicted speed."""
_COST_SOURCES = 12
_MOST_EXAMPLES = 60
_SAMPLED = SamplingSettings(temperature=1.0)


@dataclass(frozen=True)
class _DrafterPaths(TaskPaths):
    """The paths of a task, with the drafter of a recipe in place of the aligned one."""

    drafter: Path

    def model(self, name: str) -> Path:
        return self.drafter if name == "aligned" else super().model(name)


def sweep_settings(task_sweep: SweepSettings) -> SweepSettings:
    """Return the settings of the measurement: greedy, with at most 60 of the task's timed examples."""
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
        self.evaluator = PointEvaluator(
            self.opened.pair, self.opened.tokenizer, task.metric, self.request, self.sweep, self.opened.device
        )
        self.validation, self.test = (
            Split(name, read_jsonl(paths.split(name)), self.opened.tokenizer, task.text.max_source_tokens, self.sweep)
            for name in (CHOSEN_ON, REPORTED_ON)
        )

    def measure(self, folder: Path) -> DrafterMeasurements:
        """Measure the drafter on test.

        Args:
            folder: An empty folder for the predictions that BiLD's points are replayed from.
        """
        with timing_lock(self.opened.device):
            fixed, speculative = self._measured(FIXED), self._timed(SPECULATIVE)
            bild = self.bild(folder)
            sampled, greedy = self._acceptance(_SAMPLED), self._acceptance(SamplingSettings())
            return DrafterMeasurements(
                acceptance_rate=sampled.rate,
                acceptance_rate_interval=sampled.interval,
                acceptance_rate_tokens=sampled.tokens,
                acceptance_greedy=greedy.rate,
                acceptance_greedy_interval=greedy.interval,
                acceptance_greedy_tokens=greedy.tokens,
                accepted_length=speculative.mean_accepted_length,
                speculative_speedup=speculative.speedup,
                fallback_rate=fixed.fallback_rate,
                rollback_rate=fixed.rollback_rate,
                vanilla_quality=self._vanilla_quality(self.test),
                bild_speedup=None if bild is None else bild.speedup,
                bild_quality_difference=None if bild is None else bild.quality_difference,
                bild=bild,
            )

    def _acceptance(self, sampling: SamplingSettings) -> AcceptanceRate:
        """Measure α of the pair on test for one way of sampling."""
        return measure_acceptance(
            *(self.opened.pair, self.test.sources, sampling, self.sweep.seed),
            *(self.request.max_new_tokens, self.sweep.quality_batch),
            samples=self.sweep.bootstrap_samples,
        )

    def bild(self, folder: Path) -> BildResult | None:
        """Choose BiLD's thresholds on validation and measure them on test; None if all of them lose too much quality."""
        point = self._choice(folder)
        if point is None:
            return None
        found = self._timed(point)
        difference = found.quality - self._vanilla_quality(self.test)
        return joined(BildResult, found, method=point.method, settings=point.row_settings, quality_difference=difference)

    def _choice(self, folder: Path) -> SweepPoint | None:
        """Return the grid's fastest point without loss on validation; only the points predicted to be fastest are timed."""
        points = expand([_GRID])
        evaluator, split = self.evaluator, self.validation
        with on_threads(self.sweep.latency_threads):
            known = [evaluator.vanilla(split).tokens]
            found = replay_grid(points, evaluator.pair, evaluator.request, split, folder, "replay", known)
        same = duplicates(found.outputs, points)
        quality = {
            index: evaluator.assess(outputs, split).quality[evaluator.metric]
            for index, outputs in found.outputs.items()
            if index not in same
        }
        least = self._vanilla_quality(split) - TOLERANCES["no_loss"]
        left = {index: found.outputs[index] for index, value in quality.items() if value >= least}
        speedups: dict[int, float] = {}
        vanilla = self._costs.latency(VANILLA.method, evaluator.vanilla(split).timed(split))
        while left and len(speedups) < _TIMED:
            index = min(left, key=lambda one: self._costs.latency("bild", left[one].timed(split)))
            speedups[index] = evaluator.time(points[index], left.pop(index), split, None).speedup
            # The points timed so far show how much time a point takes beyond the runs of its models.
            self._costs.fit_overheads(
                [("bild", found.outputs[one].timed(split), vanilla / speedup) for one, speedup in speedups.items()]
            )
        timed = list(speedups)
        best = choose([TradeOff(quality[index], speedups[index]) for index in timed], least, 0.0)
        return None if best is None else points[timed[best]]

    @cached_property
    def _costs(self) -> Costs:
        sources = [self.validation.sources[example] for example in self.validation.timed[:_COST_SOURCES]]
        with on_threads(self.sweep.latency_threads):
            return measure_costs(self.evaluator.pair, sources, self.request, self.evaluator.clock)

    def _measured(self, point: SweepPoint) -> Measurements:
        """Measure a point on test without timing it."""
        header, outcome, _ = self._outcome(point)
        return measure(joined(MeasuredRow, header, outcome))

    def _timed(self, point: SweepPoint) -> TimedMeasurements:
        """Measure and time a point on test."""
        header, outcome, outputs = self._outcome(point)
        return measure_timed(joined(TimedRow, header, outcome, self.evaluator.time(point, outputs, self.test, None)))

    def _outcome(self, point: SweepPoint) -> tuple[RowHeader, Outcome, Outputs]:
        outputs = self.evaluator.decoded(point, self.test)
        header = self.evaluator.header(point, self.test, "", "aligned")
        return header, self.evaluator.assess(outputs, self.test), outputs

    def _vanilla_quality(self, split: Split) -> float:
        return float(self.evaluator.assess(self.evaluator.vanilla(split), split).quality[self.evaluator.metric])


def measurement_fingerprint(comparison: Comparison, drafter: str) -> str:
    """Return the fingerprint of a drafter, which has the fingerprint `drafter`, and of the settings of its measurement."""
    return fingerprint({"drafter": drafter, "sweep": sweep_settings(comparison.task.sweep), "grid": _GRID}, [], [])
