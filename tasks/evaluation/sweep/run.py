"""Run a sweep from its baselines to its chosen points.

On validation the grid is replayed and planned, and the points of the plan are timed. On test the chosen points are replayed and
timed. A point is timed in several rounds, and all other points between two of its rounds. Beside the grid, a sweep measures it
at further temperatures, and the fastest choices at several batch sizes.
"""

from __future__ import annotations

import copy
import math
import random
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from tasks.console import log, progress
from tasks.decoding.decoder import TokenGuarantee
from tasks.decoding.generation import Generation
from tasks.decoding.method import DecodingMethod
from tasks.decoding.registry import GREEDY_ONLY, METHODS, ORACLES
from tasks.evaluation.results.files import STEM, SweepRowFile, split_at
from tasks.evaluation.results.pair import BatchTiming, BatchTimings, SweepPlan, VanillaBatch, VanillaScatter
from tasks.evaluation.results.rows import Outcome, Prediction, SweepRow, TimedRow
from tasks.evaluation.scoring.metrics import metric_of
from tasks.evaluation.selection import choose_rows, controlled, tradeoff_of
from tasks.evaluation.settings import CHOICES, CHOSEN_ON, MarginSettings, SweepSettings
from tasks.evaluation.sweep.fan_out import FanOut
from tasks.evaluation.sweep.grid import BASELINES, VANILLA, SweepPoint
from tasks.evaluation.sweep.plan import (
    Candidate,
    Costs,
    Plan,
    load_or_measure_costs,
    measure_costs,
    prediction_error,
    slow_step_warning,
)
from tasks.evaluation.sweep.replay import Outputs, PointDecoder, ReplayedGrid, Split, decode_points, duplicates, replay_grid
from tasks.evaluation.sweep.rows import PointEvaluator, RowWriter, is_vanillas_output
from tasks.evaluation.timing import TimedTokensError, guarantee_of, on_threads
from tasks.files import remove
from tasks.fingerprint import fingerprint


@dataclass
class AssessedGrid:
    """A replayed grid with the quality of its points, by the index of a point in it."""

    points: Sequence[SweepPoint]
    replayed: ReplayedGrid
    outcomes: dict[int, Outcome]
    """Of the replayed points."""
    duplicate_of: dict[int, int]
    """Points that behave like an earlier one, and the index of that one."""

    def candidates(self, metric: str, split: Split, costs: Costs) -> dict[int, Candidate]:
        """Points that may be timed: one of each behaviour, and no oracle, since only an oracle's outputs matter."""
        found = {}
        for index, outputs in self.replayed.outputs.items():
            point, outcome = self.points[index], self.outcomes[index]
            if index not in self.duplicate_of and point.method not in ORACLES:
                lower = None if outcome.difference_bounds is None else outcome.difference_bounds.lower
                rule = getattr(point.settings, "rule", "")
                found[index] = Candidate(point.method, outcome.quality[metric], costs.work(outputs.timed(split)), lower, rule)
        return found

    def not_replayed(self) -> list[SweepPoint]:
        """Points that have to be decoded."""
        done = self.replayed.outputs.keys() | self.replayed.errors.keys()
        return [point for index, point in enumerate(self.points) if index not in done]


_COST_SOURCES = 24
"""Timed examples on which the parts of decoding are timed."""

_Item = TypeVar("_Item")


class _Visit(NamedTuple):
    """Why a point is timed, and what is known of it before."""

    why: str
    known: tuple[Outputs, Outcome] | None = None
    predicted: Prediction | None = None


_BASELINES = dict.fromkeys(BASELINES, _Visit("baseline"))


class SweepRunner:
    """Runs one sweep."""

    def __init__(self, writer: RowWriter, cache: Path, fan_out: FanOut | None = None) -> None:
        """Take what a sweep works with.

        Args:
            writer: Writes the rows.
            cache: Folder of cached predictions for a sweep that is interrupted or grows.
            fan_out: The processes that replay and decode, if not this one, which alone times.
        """
        self.plan: SweepPlan | None = None
        """How the grid was worked through, for `pair.json`; None in a sweep that does not plan."""
        self.costs: Costs | None = None
        """Of the parts of decoding; None in a sweep that does not plan."""
        self._writer = writer
        self._evaluator = writer.evaluator
        self._cache = cache
        self._fan_out = fan_out

    def for_split(
        self, name: str, differs: Mapping[str, object], files: list[Path], evaluator: PointEvaluator | None = None
    ) -> SweepRunner:
        """A runner of a further split, whose rows have a file of their own: the main rows stay valid whatever becomes of them.

        Args:
            name: The split's.
            differs: What its rows depend on beside the main rows' dependencies.
            files: Files that they depend on.
            evaluator: None: that of the main rows.
        """
        main = self._writer
        work = fingerprint({"work": main.rows.fingerprint, **differs}, files, [])
        rows = SweepRowFile(main.rows.path.with_name(f"rows-{name}.jsonl"), work)
        writer = RowWriter(evaluator or main.evaluator, rows, main.task, main.arm, main.on_row)
        return SweepRunner(writer, self._cache, self._fan_out)

    def remove_other_splits(self, stem: str, names: Collection[str]) -> None:
        """Remove the rows and outputs of further splits whose names begin with `stem`, except these."""
        folder = self._writer.rows.path.parent
        for file in [*folder.glob(f"rows-{stem}*.jsonl"), *folder.glob(f"hypotheses-{stem}*.parquet")]:
            if file.stem.partition("-")[2] not in names:
                remove(file)

    def compact(self) -> None:
        """Leave one row of each point in the file."""
        self._writer.rows.compact()

    def validate(self, points: Sequence[SweepPoint], split: Split) -> list[SweepRow]:
        """Rows of the baselines and of every point; a sweep that plans times only the points of its plan."""
        begun = time.monotonic()
        self._evaluator.compare(points, split)
        costs = self.costs = self._costs(split) if self._evaluator.sweep.plan else None
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
        vanilla = Candidate(VANILLA.method, known[0].quality, costs.work(self._evaluator.vanilla(split).timed(split)))
        candidates = grid.candidates(metric_of(metric).name, split, costs)
        small = costs.work(self._evaluator.decoded(BASELINES[1], split).timed(split))
        small_model = Candidate(BASELINES[1].method, known[1].quality, small), known[1].speedup
        plan = Plan(candidates, known, costs, vanilla, sweep, small_model)
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
                rows[point] = self._writer.write_timed(point, split, *visits[point])
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
            known = evaluator.vanilla(split).tokens
            return replay_grid(points, evaluator.pair, evaluator.request, split, self._cache, label, known, self._fan_out)

    def _decode_ahead(self, points: Sequence[SweepPoint], split: Split) -> None:
        """Decode points in several processes, before any is timed; one process alone decodes each before its first round."""
        waiting = [point for point in points if point not in BASELINES and not self._writer.is_finished(point, split)]
        if self._fan_out is not None and waiting:
            evaluator = self._evaluator
            decoder = PointDecoder(evaluator.request, evaluator.sweep.quality_batch, split, evaluator.pair)
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
                rows[point] = self._writer.write_timed(point, split, *visits[point])
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


_FEWEST_VISITS = 4
"""Visits below which nothing is said about the machine."""


def vanilla_scatter(rows: Iterable[SweepRow], split: str) -> VanillaScatter | None:
    """How much vanilla's own time for the same examples varied from visit to visit; None for too few visits.

    Args:
        rows: Of one sweep, each point once.
        split: The split whose visits are compared; another split has other examples.
    """
    visits = [
        sum(one.vanilla_latency_ms)
        for row in rows
        if isinstance(row, TimedRow) and row.split == split
        for one in row.rounds or ()
    ]
    if len(visits) < _FEWEST_VISITS:
        return None
    low, middle, high = np.percentile(visits, (5, 50, 95)).tolist()
    return VanillaScatter(visits=len(visits), median_ms=middle, low_ms=low, high_ms=high)


def measure_tests(
    main: SweepRunner, splits: Sequence[Split], files: Sequence[Path], done: Sequence[SweepRow], grid: Sequence[SweepPoint]
) -> list[SweepRow]:
    """Measure the baselines and the chosen points on further test sets.

    Args:
        main: Runs the sweep on validation and on the main test set.
        splits: The test sets; rows of others are removed.
        files: Of the test sets.
        done: The rows of validation, on which points are chosen.
        grid: The points.
    """
    main.remove_other_splits("test.", {split.name for split in splits})
    found = list[SweepRow]()
    for split, file in zip(splits, files, strict=True):
        runner = main.for_split(split.name, {}, [file])
        found += runner.report(done, grid, split)
        runner.compact()
    return found


def points_at(temperature: float, points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """The points that a temperature is swept with: above 0 those whose methods draw tokens."""
    return [point for point in points if temperature == 0 or point.method not in GREEDY_ONLY]


def measure_temperatures(
    main: SweepRunner,
    temperatures: Sequence[float],
    evaluator_at: Callable[[float], PointEvaluator],
    validation: Split,
    grid: Sequence[SweepPoint],
) -> list[SweepRow]:
    """Measure the grid on validation at each further temperature, beside vanilla at the same one.

    Nothing is chosen from these rows. Their split has the temperature in its name, so that no reader takes them for
    validation's.

    Args:
        main: Runs the sweep at its own temperature.
        temperatures: Further ones; rows of others are removed.
        evaluator_at: Makes what evaluates points at a temperature.
        validation: The examples.
        grid: The points.
    """
    main.remove_other_splits(STEM, {split_at(temperature) for temperature in temperatures})
    found = list[SweepRow]()
    for temperature in temperatures:
        split = copy.copy(validation)
        split.name = split_at(temperature)
        runner = main.for_split(split.name, {"temperature": temperature}, [], evaluator_at(temperature))
        found += runner.validate(points_at(temperature, grid), split)
        runner.compact()
    return found


# Batches: vanilla and the fastest chosen points at several batch sizes, on the same texts, side by side. At batch 1 the fastest
# executor runs each method, as in the sweep. Larger batches of a speculative method run in the general loop, which decides
# between two model runs in Python; so does vanilla.

_ROUNDS = 3


def points_by_batch(rows: Sequence[SweepRow], points: Sequence[SweepPoint], margins: MarginSettings) -> list[SweepPoint]:
    """The points to time: the fastest choice for each of `CHOICES`, and the fastest one with vanilla's own output.

    Args:
        rows: Of the sweep; the choices are those of the validation split.
        points: The grid.
        margins: What a choice may lose.
    """
    found = {key: rows[index] for key, index in choose_rows(rows, margins).items() if index is not None}
    groups: list[Iterable[SweepRow]] = [[row for (_, choice), row in found.items() if choice == wanted] for wanted in CHOICES]
    by_row = {(point.method, str(point.row_settings)): point for point in points}
    own_output = [row for row in found.values() if is_vanillas_output(by_row[row.method, str(row.settings)])]
    fastest = [max(group, key=_speedup, default=None) for group in (*groups, own_output)]
    wanted_rows = [row for row in fastest if row is not None]
    return list(dict.fromkeys(by_row[row.method, str(row.settings)] for row in wanted_rows))


def _speedup(row: SweepRow) -> float:
    return row.speedup if isinstance(row, TimedRow) else 0.0


_Laps = dict[tuple[SweepPoint, int], list[list[float]]]
"""By contender and batch size: the seconds of every batch, round by round; all rounds have the same batches."""


class BatchTimer:
    """Times points on a few examples of a split in batches."""

    def __init__(self, evaluator: PointEvaluator, split: Split) -> None:
        """Take the evaluator of the sweep and the examples."""
        sweep = evaluator.sweep
        rng = random.Random(f"{sweep.seed} batches {split.name}")  # noqa: S311 (a sample, not a secret)
        count = min(sweep.batch_examples, len(split.examples))
        # In random order, so that texts of unequal length share a batch.
        self._examples = rng.sample(range(len(split.examples)), count)
        self._sizes = [size for size in sweep.batch_sizes if size <= count]
        self._evaluator, self._split, self._rng = evaluator, split, rng
        self._known: dict[SweepPoint, dict[int, Sequence[int]]] = {}

    def measure(self, points: Sequence[SweepPoint]) -> BatchTimings:
        """Time the points and vanilla in rounds: in each, all batch sizes, and at each batch all contenders back to back.

        What cannot be measured leaves its error in the record, and does not fail the sweep.
        """
        about: dict[str, Any] = {"split": self._split.name, "examples": len(self._examples)}
        evaluator = self._evaluator
        try:
            contenders = {
                point: METHODS[point.method].make(point.settings, evaluator.pair, evaluator.request)
                for point in (VANILLA, *points)
            }
            with on_threads(evaluator.sweep.latency_threads):
                self._known = {point: self._outputs(point, method) for point, method in contenders.items()}
                laps: _Laps = {(point, size): [] for point in contenders for size in self._sizes}
                for _ in range(_ROUNDS):
                    self._round(contenders, laps)
        except RuntimeError as error:
            return BatchTimings(**about, error=f"{type(error).__name__}: {error}")
        tokens = {
            size: sum(len(self._known[VANILLA][one]) for batch in self._batches(size) for one in batch) for size in self._sizes
        }
        rates = {size: tokens[size] / _seconds(laps[VANILLA, size]) for size in self._sizes}
        return BatchTimings(
            **about,
            vanilla=[
                VanillaBatch(batch_size=size, tokens_per_second=rate, throughput=rate / rates[self._sizes[0]])
                for size, rate in rates.items()
            ],
            points=[batch_timing(point, size, laps) for point in points for size in self._sizes],
        )

    def _outputs(self, point: SweepPoint, method: DecodingMethod) -> dict[int, Sequence[int]]:
        """The tokens that timed calls have to generate, by example; decoding them warms the caches as well."""
        decoded = self._decode(method, self._examples)
        if is_vanillas_output(point):
            outputs = self._evaluator.vanilla(self._split).tokens
            return {example: outputs[example] for example in self._examples}
        return {example: one.tokens for example, one in zip(self._examples, decoded, strict=True)}

    def _batches(self, size: int) -> list[list[int]]:
        """Examples that are decoded side by side; an incomplete last batch is left out."""
        return [self._examples[begin : begin + size] for begin in range(0, len(self._examples) // size * size, size)]

    def _round(self, contenders: Mapping[SweepPoint, DecodingMethod], laps: _Laps) -> None:
        for size in self._rng.sample(self._sizes, len(self._sizes)):
            for point in contenders:
                laps[point, size].append([])
            for batch in self._batches(size):
                for point in self._rng.sample(list(contenders), len(contenders)):
                    begun = self._evaluator.clock()
                    generations = self._decode(contenders[point], batch)
                    laps[point, size][-1].append(self._evaluator.clock() - begun)
                    self._check(point, batch, generations)

    def _decode(self, method: DecodingMethod, batch: list[int]) -> list[Generation]:
        return method.run([self._split.sources[example] for example in batch], batch, self._evaluator.request.max_new_tokens)

    def _check(self, point: SweepPoint, batch: list[int], generations: Sequence[Generation]) -> None:
        """Refuse other tokens than those known, where the runtimes and the sampling promise the same."""
        evaluator = self._evaluator
        if not evaluator.request.sampling.greedy or guarantee_of(evaluator.pair) is not TokenGuarantee.EQUAL:
            return
        for example, one in zip(batch, generations, strict=True):
            if tuple(one.tokens) != tuple(self._known[point][example]):
                raise TimedTokensError(f"{point}: batches of {len(batch)} changed the tokens of {self._split.name} {example}")


def batch_timing(point: SweepPoint, size: int, laps: _Laps) -> BatchTiming:
    """A point beside vanilla at the same batch size."""
    rounds = [sum(theirs) / sum(ours) for theirs, ours in zip(laps[VANILLA, size], laps[point, size], strict=True)]
    return BatchTiming(
        method=point.method,
        settings=point.row_settings,
        batch_size=size,
        # Of the rounds' ratios, so that it lies within their range; a ratio of medians need not.
        speedup=statistics.median(rounds),
        rounds=rounds,
    )


def _seconds(laps: Sequence[Sequence[float]]) -> float:
    """All batches, each the median of its rounds: against single slow calls."""
    return math.fsum(statistics.median(rounds) for rounds in zip(*laps, strict=True))
