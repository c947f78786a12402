"""Evaluation of a drafter beside the large model by replay: exact counts and texts, and speed from one cost model for all.

All drafters have one architecture, so that one model's times are those of all. Nothing is timed for a drafter of its own:
evaluations may run side by side, and a busy machine does not change them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from tasks.bench.alignment.criterion import lower_bound
from tasks.bench.alignment.drafters import Comparison
from tasks.bench.alignment.rows import DrafterMeasurements, PointResult
from tasks.corpora.example import read_jsonl
from tasks.decoding.batches import decode_all
from tasks.decoding.decoder import Rows, Runtime
from tasks.decoding.registry import Pair, Request
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.settings import SamplingSettings, VanillaSettings
from tasks.evaluation.acceptance import measure_acceptance
from tasks.evaluation.quality import Quality, score
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
    *(f"bench/alignment/{module}" for module in ("criterion", "measuring")),
    *(f"evaluation/{module}" for module in ("acceptance", "quality", "statistics")),
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
    return expand([GridSettings(method="bild", preset=_PRESETS.get(metric, "summarization"))])


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
        self.split = Split(split, examples, self.tokenizer, task.text.max_source_tokens, self.sweep)
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
                points=[self._result(point, outputs[point], costs) for point in grid if point in outputs],
                speculative_speedup=max(speculative),
                acceptance_rate=self._acceptance(_SAMPLED),
                acceptance_greedy=self._acceptance(SamplingSettings()),
                drafter_quality=self._quality(outputs[ALONE]).value,
                vanilla_quality=self._vanilla_quality.value,
            )

    def measure_points(self, points: Sequence[SweepPoint], costs: Costs, folder: Path) -> list[PointResult]:
        """Measure these points alone; `costs` and `folder` as for `measure`."""
        with working_lock(self.device.type):
            outputs = self._replayed(points, folder)
            return [self._result(point, outputs[point], costs) for point in points]

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
    def _vanilla_quality(self) -> Quality:
        return self._quality(self._vanilla)

    def _quality(self, outputs: Outputs) -> Quality:
        texts = [self._text(tuple(tokens)) for tokens in outputs.tokens]
        references = [example.references for example in self.split.examples]
        return score(texts, references, self.metric, self.sweep.bootstrap_samples, self.sweep.seed)

    def _detokenise(self, tokens: tuple[int, ...]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _result(self, point: SweepPoint, outputs: Outputs, costs: Costs) -> PointResult:
        quality, vanilla = self._quality(outputs), self._vanilla_quality
        return PointResult(
            settings=point.row_settings,
            quality_difference=quality.value - vanilla.value,
            lower_bound=lower_bound(quality.resampled, vanilla.resampled),
            speedup=self._speedup(outputs, point, costs),
        )

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
