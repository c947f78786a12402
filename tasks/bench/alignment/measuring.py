"""Evaluation of a drafter beside the large model by replay: exact counts and texts, and speed from one cost model for all.

All drafters have one architecture, so that one model's times are those of all. Nothing is timed for a drafter of its own:
evaluations may run side by side, and a busy machine does not change them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.bench.alignment.drafters import Comparison
from tasks.bench.alignment.rows import DrafterMeasurements, PointResult
from tasks.corpora.example import read_jsonl
from tasks.decoding.batches import decode_all
from tasks.decoding.decoder import Rows, Runtime
from tasks.decoding.registry import Pair, Request
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.settings import SamplingSettings, VanillaSettings
from tasks.evaluation.acceptance import measure_acceptance
from tasks.evaluation.metrics import metric_of
from tasks.evaluation.quality import example_statistics, values_of
from tasks.evaluation.selection.bounds import max_t_bounds, normal_bounds
from tasks.evaluation.selection.differences import paired_differences
from tasks.evaluation.selection.row_bounds import level_of_drafter
from tasks.evaluation.settings import GridSettings, SweepSettings
from tasks.evaluation.sweeping.costs import Costs, load_or_measure_costs, measure_costs
from tasks.evaluation.sweeping.grid import VANILLA, SweepPoint, expand
from tasks.evaluation.sweeping.outputs import Outputs, Split, collect_outputs
from tasks.evaluation.sweeping.replaying import replay_grid
from tasks.evaluation.timing import on_threads, synchronised_clock
from tasks.fingerprint import fingerprint
from tasks.locks import timing_lock, working_lock
from tasks.machine import set_up
from tasks.models.checkpoints import load_model
from tasks.models.pair import vocabulary_size
from tasks.models.tokenizers import load_tokenizer

MEASURED_BY = [
    "decoding",
    "models",
    "bench/alignment/measuring",
    "evaluation/selection",
    *(f"evaluation/{module}" for module in ("acceptance", "quality", "scoring", "statistics")),
    *(f"evaluation/sweeping/{module}" for module in ("costs", "outputs", "replaying")),
]
"""Code that a measurement depends on."""
ALONE = SweepPoint("vanilla_small", VanillaSettings())
"""The drafter alone."""
_PRESETS = {"bleu": "translation"}
"""BiLD's range for the task's metric; summaries otherwise."""
_COST_SOURCES = 24
_ACCEPTANCE_TOKENS = 5_000
_SAMPLED = SamplingSettings(temperature=1.0)


def grid_of(metric: str) -> list[SweepPoint]:
    """Return BiLD's points for a task of this metric: the paper's range."""
    return expand([GridSettings(method="bild", preset=_PRESETS.get(metric_of(metric).name, "summarization"))])


SPECULATIVE = expand([GridSettings(method="speculative", preset="block_sizes")])


def sweep_settings(task_sweep: SweepSettings, examples: int) -> SweepSettings:
    """Return the settings of the measurement: greedy, with counts of all examples."""
    return dataclasses.replace(task_sweep, grid=[], sampling=SamplingSettings(), latency_examples=max(2, examples))


class PairEvaluation:
    """A drafter and the large model on one split."""

    def __init__(self, comparison: Comparison, drafter: Path, split: str) -> None:
        """Load both models, and the first examples of the split."""
        task, paths = comparison.task, comparison.paths
        self.device, dtype = set_up(comparison.params.machine)
        self.sweep = sweep_settings(task.sweep, comparison.examples)
        self.tokenizer = load_tokenizer(paths.model("large"))
        small, large = (load_model(folder, self.device, dtype) for folder in (drafter, paths.model("large")))
        runtime = Runtime.of(comparison.params.machine.runtime, comparison.params.machine.dtype)
        self.pair: Pair = open_pair(small, large, vocabulary_size(self.tokenizer, small, large), [], runtime)
        self.request = Request(task.text.max_target_tokens, self.sweep.sampling, self.sweep.seed)
        self.metric = task.metric
        examples = read_jsonl(paths.split(split))[: comparison.examples]
        self.split = Split(split, examples, self.tokenizer, task.text, self.sweep)
        self._text = lru_cache(maxsize=1 << 16)(self._detokenise)

    def measure(self, costs: Costs, folder: Path) -> DrafterMeasurements:
        """Measure the drafter.

        Args:
            costs: The comparison's cost model.
            folder: An empty folder for the predictions that points are replayed from.
        """
        with working_lock(self.device.type):
            grid = grid_of(self.metric)
            outputs = self._replayed([*grid, *SPECULATIVE, ALONE], folder)
            speculative = [self._speedup(outputs[point], point, costs) for point in SPECULATIVE if point in outputs]
            return DrafterMeasurements(
                points=self._results({point: outputs[point] for point in grid if point in outputs}, costs, in_advance=False),
                speculative_speedup=max(speculative),
                acceptance_rate=self._acceptance(_SAMPLED),
                acceptance_greedy=self._acceptance(SamplingSettings()),
                drafter_quality=self._quality(self._statistics(outputs[ALONE])),
                vanilla_quality=self._quality(self._vanilla_statistics),
            )

    def measure_point(self, point: SweepPoint, costs: Costs, folder: Path) -> PointResult:
        """Measure a point that was chosen elsewhere; `costs` and `folder` as for `measure`."""
        with working_lock(self.device.type):
            [found] = self._results(self._replayed([point], folder), costs, in_advance=True)
            return found

    def costs(self) -> Costs:
        """Time the parts of decoding with this pair."""
        sources = self.split.sources[:_COST_SOURCES]
        with timing_lock(self.device.type), on_threads(self.sweep.latency_threads):
            return measure_costs(self.pair, sources, self.request, synchronised_clock(self.device.type))

    def _replayed(self, points: Sequence[SweepPoint], folder: Path) -> dict[SweepPoint, Outputs]:
        with on_threads(self.sweep.latency_threads):
            known: list[Rows] = [[list(tokens) for tokens in self._vanilla.tokens]]
            found = replay_grid(points, self.pair, self.request, self.split, folder, "replay", known)
        return {points[index]: outputs for index, outputs in found.outputs.items()}

    @cached_property
    def _vanilla(self) -> Outputs:
        batch = self.sweep.quality_batch
        generations = decode_all(VANILLA.method, VANILLA.settings, self.pair, self.split.sources, self.request, batch)
        return collect_outputs("decoded", generations, self.split)

    @cached_property
    def _vanilla_statistics(self) -> NDArray[np.generic]:
        return self._statistics(self._vanilla)

    def _statistics(self, outputs: Outputs) -> NDArray[np.generic]:
        """What determines the quality, by example: `[examples, values]`."""
        texts = [self._text(tuple(tokens)) for tokens in outputs.tokens]
        return example_statistics(texts, [example.references for example in self.split.examples], self.metric)

    def _quality(self, statistics: NDArray[np.generic]) -> float:
        return float(values_of(statistics.sum(axis=0, dtype=np.float64)[None], len(statistics))[0])

    def _detokenise(self, tokens: tuple[int, ...]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _results(self, outputs: Mapping[SweepPoint, Outputs], costs: Costs, *, in_advance: bool) -> list[PointResult]:
        """Measure points beside the large model alone.

        Args:
            outputs: By point; the lower bounds of all of them hold at once, since the fastest will be chosen.
            costs: The cost model.
            in_advance: There is one point, and these examples did not choose it.
        """
        if not outputs:
            return []
        statistics = np.stack([self._statistics(one) for one in outputs.values()])
        differences = paired_differences(statistics, self._vanilla_statistics)
        margins = self.sweep.margins
        if in_advance:
            bounds = normal_bounds(differences, 1 - margins.confidence)
        else:
            bounds = max_t_bounds(differences, level_of_drafter(margins), self.sweep.seed)
        return [
            PointResult(
                settings=point.row_settings,
                quality_difference=float(difference),
                lower_bound=float(bound),
                speedup=self._speedup(one, point, costs),
            )
            for (point, one), difference, bound in zip(outputs.items(), differences.values, bounds, strict=True)
        ]

    def _speedup(self, outputs: Outputs, point: SweepPoint, costs: Costs) -> float:
        vanilla = costs.latency(VANILLA.method, self._vanilla.timed(self.split))
        return vanilla / costs.latency(point.method, outputs.timed(self.split))

    def _acceptance(self, sampling: SamplingSettings) -> float:
        """Measure α of the pair for one way of sampling."""
        return measure_acceptance(
            *(self.pair, self.split.sources, sampling, self.sweep.seed, self.request.max_new_tokens, self.sweep.quality_batch),
            most_tokens=_ACCEPTANCE_TOKENS,
            samples=self.sweep.bootstrap_samples,
        ).rate


def cost_model(comparison: Comparison, split: str) -> Costs:
    """Return the comparison's cost model: the start beside the large model, timed once and kept with the drafters."""
    machine = dataclasses.replace(comparison.params.machine, processes=0)
    named = fingerprint({"of": comparison.data, "machine": machine}, [], ["evaluation/sweeping/costs"])
    path = comparison.out / "costs" / f"{named}.json"
    return load_or_measure_costs(path, lambda: PairEvaluation(comparison, comparison.paths.model("small"), split).costs())


def measurement_fingerprint(comparison: Comparison, drafter: str, split: str, costs: Costs) -> str:
    """Return the fingerprint of a measurement on a split of the drafter with the fingerprint `drafter`."""
    points = [str(point) for point in (*grid_of(comparison.task.metric), *SPECULATIVE)]
    sweep = sweep_settings(comparison.task.sweep, comparison.examples)
    how = {"drafter": drafter, "sweep": sweep, "points": points, "costs": costs.record()}
    return fingerprint(how, [comparison.paths.split(split)], MEASURED_BY)
