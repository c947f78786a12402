"""Run the sweeps of all drafters of a task, from their baselines to their chosen points.

On validation the grid of each drafter is replayed and planned, and the points of all plans are timed in turn. On test the
chosen points are decoded and timed alike. A point is timed in several rounds, each in a process of its own. Beside the grid, a
sweep measures it at further temperatures, and the fastest choices at several batch sizes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tasks.console import log, progress
from tasks.decoding.method import Request
from tasks.decoding.registry import GREEDY_ONLY, ORACLES
from tasks.errors import InputError
from tasks.evaluation.results.files import STEM, SweepRowFile, split_at
from tasks.evaluation.results.pair import Costs, NullTest, SweepPlan
from tasks.evaluation.results.rows import Outcome, Prediction, SweepRow, TimedRound, TimedRow
from tasks.evaluation.scoring.metrics import metric_of
from tasks.evaluation.scoring.statistics import Equals, null_test, speedup_of
from tasks.evaluation.selection import TradeOff, choose_rows
from tasks.evaluation.sweep import plan as planning
from tasks.evaluation.sweep import replay
from tasks.evaluation.sweep.clock import Lap, Laps, PointTimer, Start, Visit, named
from tasks.evaluation.sweep.fan_out import FanOut
from tasks.evaluation.sweep.grid import BASELINES, VANILLA, Drafter, SweepPoint, is_vanillas_output, runs_no_small_model
from tasks.evaluation.sweep.plan import Candidate, Plan, work_of
from tasks.evaluation.sweep.replay import GridReplay, Outputs, ReplayedGrid, Split, replay_grid
from tasks.evaluation.sweep.rows import Asked, Known, PointEvaluator, RowWriter
from tasks.evaluation.timing import Expected
from tasks.files import remove
from tasks.fingerprint import fingerprint
from tasks.machine import on_threads
from tasks.paths import ARMS


@dataclass
class AssessedGrid:
    """A replayed grid with the quality of its points, by the index of a point in it."""

    points: Sequence[SweepPoint]
    replayed: ReplayedGrid
    outcomes: dict[int, Outcome]
    """Of the replayed points."""
    duplicate_of: dict[int, int]
    """Points that behave like an earlier one, and the index of that one."""
    seconds: float
    """That the replay took."""
    costs: Costs
    """What the parts of decoding cost."""


@dataclass
class SplitSweep:
    """What one drafter's sweep times on one split, and its rows."""

    drafter: Drafter
    writer: RowWriter
    split: Split
    rows: dict[SweepPoint, SweepRow] = field(default_factory=dict)
    """Of the points that were timed or failed."""
    asked: dict[SweepPoint, Asked] = field(default_factory=dict)
    """The points that are timed."""
    grid: AssessedGrid | None = None
    """The replayed grid, whose points a plan asks for; None where every point is timed."""
    plan: Plan | None = None
    """Begins when the baselines are timed."""

    def time(self, point: SweepPoint, asked: Asked) -> None:
        """Let a point be timed; the rounds of an earlier process count."""
        self.asked[point] = asked
        found = self.writer.resumed(point, self.split, None if point in BASELINES else asked.known[1])
        if found is not None:
            self._keep(point, found)

    def waiting(self) -> list[SweepPoint]:
        """The points that have rounds left; with a plan, of those on which something depends."""
        rows, finished = self.rows, self.writer.finished
        known = ((why.index, rows.get(one)) for one, why in self.asked.items())
        speedups = {index: row.speedup for index, row in known if index is not None and isinstance(row, TimedRow)}
        out = set[int]() if self.plan is None else self.plan.timed.keys() - self.plan.contenders(speedups)
        return [one for one, why in self.asked.items() if one not in rows or not (finished(rows[one]) or why.index in out)]

    def record(self, point: SweepPoint, lap: Lap | str) -> None:
        """Write a round of a point, or its error."""
        asked = self.asked[point]
        if isinstance(lap, str):
            self._keep(point, self.fail(point, lap))
        else:
            self._keep(point, self.writer.write_round(point, self.split, lap, asked))

    def fail(self, point: SweepPoint, error: str) -> SweepRow:
        """Write the row of a point that cannot be measured.

        Raises:
            InputError: it is the large model alone, with which every point is compared.
        """
        if point == VANILLA:
            batch = self.writer.evaluator.sweep.quality_batch
            fix = f"train the model again or, where memory ran out, set sweep.quality_batch below {batch}"
            raise InputError(f"the large model cannot run alone on {self.split.name}: {error}; {fix}")
        return self.writer.write_failed(point, self.split, error)

    def _keep(self, point: SweepPoint, row: SweepRow) -> None:
        self.rows[point] = row
        index = self.asked[point].index
        if self.plan is not None and index is not None:
            speedup, predicted = (_first_speedup(row), row.predicted) if isinstance(row, TimedRow) else (None, None)
            # The prediction was made before the first round, which may be that of an interrupted sweep.
            self.plan.record(index, speedup, None if predicted is None else predicted.speedup)

    def ask(self) -> int:
        """Let the plan ask for further points, once all others have a round; how many it asks for."""
        before, grid = len(self.asked), self.grid
        if grid is not None and all(one in self.rows for one in self.asked):
            plan = self.plan = self.plan or self._new_plan(grid)
            for index in plan.next():
                known = grid.replayed.outputs[index], grid.outcomes[index]
                self.time(grid.points[index], Asked(plan.why[index], known, index, _prediction(plan, plan.predicted[index])))
        return len(self.asked) - before

    def _new_plan(self, grid: AssessedGrid) -> Plan:
        """A plan that knows the large model alone and, where it could be measured, the small one.

        Points that may be timed are one of each behaviour, and no oracle, since only an oracle's outputs matter.
        """
        candidates, evaluator = dict[int, Candidate](), self.writer.evaluator
        for index, outputs in grid.replayed.outputs.items():
            point, outcome = grid.points[index], grid.outcomes[index]
            if index not in grid.duplicate_of and point.method not in ORACLES:
                quality, bounds = outcome.quality[metric_of(evaluator.metric).name], outcome.difference_bounds
                work, rule = work_of(outputs.timed(self.split), grid.costs), getattr(point.settings, "rule", "")
                candidates[index] = Candidate(point.method, quality, work, None if bounds is None else bounds.lower, rule)
        rows = {one: row for one in BASELINES if isinstance(row := self.rows[one], TimedRow)}
        known = {one: TradeOff(row.value, _first_speedup(row)) for one, row in rows.items()}
        vanilla, *small = (
            Candidate(one.method, found.quality, work_of(self.asked[one].known[0].timed(self.split), grid.costs))
            for one, found in known.items()
        )
        learned = (small[0], known[BASELINES[1]].speedup) if small else None
        return Plan(candidates, list(known.values()), grid.costs, vanilla, evaluator.sweep, learned)

    def in_order(self) -> list[SweepRow]:
        """The rows of the points that were timed or failed: the baselines, then all others as they were asked for."""
        order = dict.fromkeys((*BASELINES, *self.asked, *self.rows))
        return [self.rows[point] for point in order if point in self.rows]

    def finish(self, seconds: float) -> tuple[list[SweepRow], SweepPlan | None]:
        """All rows: also those of the points that were not timed, with their final predictions, and of those that failed.

        Args:
            seconds: That the timing took.
        """
        rows = self.in_order()
        for row in rows:
            if not self.writer.finished(row):  # it fell behind
                self.writer.on_row(row)
        if self.plan is None or self.grid is None:
            return rows, None
        grid, plan = self.grid, self.plan
        for index, outcome in grid.outcomes.items():
            if index not in plan.why:
                first = grid.duplicate_of.get(index, index)
                same_as = None if first == index else grid.points[first].plain_settings
                predicted = _prediction(plan, plan.speedup(first)) if first in plan.candidates else None
                rows.append(self.writer.write_untimed(grid.points[index], self.split, outcome, predicted, same_as))
        for index, error in grid.replayed.errors.items():
            rows.append(self.writer.write_failed(grid.points[index], self.split, error))
        return rows, SweepPlan(
            points=len(grid.points),
            replayed=len(grid.outcomes),
            distinct=len(grid.outcomes) - len(grid.duplicate_of),
            timed=len(self.rows) - len(BASELINES),
            replay_seconds=grid.seconds,
            timing_seconds=seconds,
            prediction_error=planning.prediction_error(plan),
        )


def _first_speedup(row: TimedRow) -> float:
    """Of the first round: a plan learns from no other, so that it asks for the same points when a later process goes on."""
    return speedup_of(row.rounds[:1]) if row.rounds else row.speedup


def _prediction(plan: Plan, speedup: float) -> Prediction:
    return Prediction(latency_ms=plan.vanilla_ms / speedup, speedup=speedup)


# The clock: the points of all drafters in turn.

_TOGETHER = 20
"""Points of a grid that are timed together, beside one call of the large model for each example."""
_FURTHER_ROUNDS = 2
"""At most, where the small models of the two arms differ in a round more than by chance."""
_TOLERATED = 0.05
"""Largest error of the null test's ratio that is tolerated where its interval excludes 1."""


def time_in_turn(sweeps: Sequence[SplitSweep], start: Start, together: int | None = _TOGETHER) -> float:
    """Time the points of all sweeps until every one has all its rounds; the seconds that it took.

    Each pass over the points is a start of the process that times. In the first, plans ask for more as they learn; later only
    in place of a point that failed. Two small models of one architecture must come out equal: where they do not, all points
    get further rounds.

    Args:
        sweeps: Of one split and request.
        start: Starts a process that times.
        together: Points that are timed together; None: all.
    """

    def unseen() -> list[tuple[SplitSweep, SweepPoint]]:
        # What an earlier process has timed may let a plan ask for more at once.
        while sum(sweep.ask() for sweep in sweeps):
            pass
        return [(sweep, one) for sweep in sweeps for one in sweep.asked if one not in sweep.rows]

    begun, further = time.monotonic(), 0
    while True:
        if batch := unseen():
            with start() as lap:
                while batch:
                    _time_each(batch, lap, together)
                    batch = unseen()
        while batch := [(sweep, one) for sweep in sweeps for one in sweep.waiting()]:
            with start() as lap:
                _time_each(batch, lap, together)
        if unseen():  # in place of a point that failed in a later round
            continue
        found = null_test_of(sweeps)
        if found is None:
            break
        said = "%s: null test of the clock, the small models of both arms at equal work: %.3f [%.3f, %.3f], should be 1"
        log.info(said, found.split, found.ratio, *found.interval)
        if found.finding == "equal":
            break
        if further == _FURTHER_ROUNDS:
            log.warning("%s: the clock cannot be trusted: equal models stay unequal; sweep on an idle machine", found.split)
            break
        log.info("%s: equal models must come out equal; all points get another round", found.split)
        further += 1
        for sweep in sweeps:
            sweep.writer.further_rounds += 1
    return time.monotonic() - begun


def _time_each(batch: Sequence[tuple[SplitSweep, SweepPoint]], lap: Laps, together: int | None) -> None:
    """One round of each of these points."""
    evaluator, split = batch[0][0].writer.evaluator, batch[0][0].split
    vanilla = expected(evaluator.vanilla(split), split)
    number = max(len(getattr(sweep.rows.get(one), "rounds", None) or ()) for sweep, one in batch) + 1
    # What runs no small model is the same in all sweeps: one visit serves them.
    served = dict[tuple[Drafter | None, SweepPoint], list[SplitSweep]]()
    for sweep, one in batch:
        served.setdefault((None if runs_no_small_model(one) else sweep.drafter, one), []).append(sweep)
    log.info("%s: timing %d settings, round %d", split.name, len(served), number)
    asked = [(sweeps, one) for (_, one), sweeps in served.items()]
    groups = list(_groups(asked, f"{evaluator.sweep.seed} {number}", together))
    for index, group in enumerate(progress(groups, desc=f"time {split.name}, round {number}", unit="group")):
        visits = [Visit(first.drafter, one, expected(first.asked[one].known[0], split)) for [first, *_], one in group]
        laps = lap(visits, vanilla, split, evaluator.request, f"{split.name} {number} {index}")
        for (sweeps, one), own in zip(group, laps, strict=True):
            for sweep in sweeps:
                sweep.record(one, own)


def expected(outputs: Outputs, split: Split | None = None) -> Expected:
    """What timed calls have to generate: on the timed examples of a split, or on all."""
    examples = range(len(outputs.tokens)) if split is None else split.timed
    return Expected(outputs.how, {example: outputs.tokens[example] for example in examples})


def _groups(
    batch: Sequence[tuple[list[SplitSweep], SweepPoint]], seed: str, size: int | None
) -> Iterator[list[tuple[list[SplitSweep], SweepPoint]]]:
    """The points that are timed together: all, or the small models alone, which are compared as equals, and random others."""
    small = [] if size is None else [one for one in batch if one[1] == BASELINES[1]]
    others = [one for one in batch if one not in small]
    others = random.Random(seed).sample(others, len(others))  # noqa: S311 (an order, not a secret)
    count = size or len(batch)
    yield from filter(None, (small, *(others[begin : begin + count] for begin in range(0, len(others), count))))


def null_test_of(sweeps: Sequence[SplitSweep]) -> NullTest | None:
    """Whether the small models alone, of one architecture, come out equal on a split; None where they were not compared.

    Those that draw from the top k or a nucleus cannot be: to find it in a flat distribution takes longer than in a sharp one.
    """
    sampling = sweeps[0].writer.evaluator.request.sampling
    found = null_test(_equal_models(sweeps)) if sampling.greedy or (sampling.top_k, sampling.top_p) == (0, 1) else None
    if found is None:
        return None
    ratio, (low, high) = found
    finding: Literal["equal", "unequal"] = "equal" if low <= 1 <= high or abs(ratio - 1) <= _TOLERATED else "unequal"
    return NullTest(split=sweeps[0].split.name, ratio=ratio, interval=(low, high), finding=finding)


def _equal_models(sweeps: Sequence[SplitSweep]) -> list[Equals]:
    """Rounds and steps of the small models alone, unaligned and aligned, of each seed that has both."""
    small, found = BASELINES[1], dict[Drafter, tuple[Sequence[TimedRound], list[int]]]()
    for sweep in sweeps:
        row = sweep.rows.get(small)
        if isinstance(row, TimedRow):
            found[sweep.drafter] = row.rounds or [], sweep.writer.drafter_steps(small, sweep.split)
    pairs = ([Drafter(arm, seed) for arm in ARMS] for _, seed in found)
    return [(found[one], found[other]) for one, other in dict.fromkeys(map(tuple, pairs)) if one in found and other in found]


# What is replayed and decoded before anything is timed.

_COST_SOURCES = 24
"""Timed examples on which the parts of decoding are timed."""


def measured_costs(path: Path, split: Split, request: Request, timer: Callable[[], PointTimer]) -> Costs:
    """The cost model of all drafters.

    Args:
        path: Keeps it for a sweep that is interrupted.
        split: The examples.
        request: Length limit and sampling.
        timer: Times the parts.
    """
    sources = [split.sources[example] for example in split.timed[:_COST_SOURCES]]

    def measure() -> Costs:
        log.info("%s: timing a step, a check and the encoders on %d examples", split.name, len(sources))
        return planning.common_costs(timer().costs(sources, request))

    costs = planning.load_or_measure_costs(path, measure)
    if costs.baseline_warning:
        log.warning("%s; python -m tasks.bench decoding measures where the time goes", costs.baseline_warning)
    return costs


@dataclass(frozen=True)
class SweepRunner:
    """Prepares the sweeps of one drafter."""

    drafter: Drafter
    writer: RowWriter
    cache: Path
    """Folder of cached predictions for a sweep that is interrupted or grows."""
    fan_out: FanOut | None = None
    """The processes that replay and decode, if not this one."""
    costs: Costs | None = None
    """The cost model; None in a sweep that does not plan."""

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
        main = self.writer
        work = fingerprint({"work": main.rows.fingerprint, **differs}, files, [])
        rows = SweepRowFile(main.rows.path.with_name(f"rows-{name}.jsonl"), work)
        writer = RowWriter(evaluator or main.evaluator, rows, main.task, main.arm, main.on_row)
        return dataclasses.replace(self, writer=writer)

    def remove_other_splits(self, stem: str, names: Collection[str]) -> None:
        """Remove the rows and outputs of further splits whose names begin with `stem`, except these."""
        folder = self.writer.rows.path.parent
        for file in [*folder.glob(f"rows-{stem}*.jsonl"), *folder.glob(f"hypotheses-{stem}*.parquet")]:
            if file.stem.partition("-")[2] not in names:
                remove(file)

    def prepare(self, points: Sequence[SweepPoint], split: Split) -> SplitSweep:
        """Replay the grid and decode what cannot be replayed, with the baselines; without a cost model all points."""
        evaluator, found = self.writer.evaluator, SplitSweep(self.drafter, self.writer, split)
        evaluator.compare(points, split)
        costs = self.costs if evaluator.sweep.plan else None
        self._decode(found, dict.fromkeys(BASELINES, "baseline"))
        if costs is None:
            self._decode(found, dict.fromkeys(points, "grid"))
            return found
        begun = time.monotonic()
        replayed = self._outputs(points, split, decoded=not evaluator.request.sampling.greedy)
        outcomes = evaluator.assess_grid(points, replayed.outputs, split)
        self.writer.keep({points[index]: outputs for index, outputs in replayed.outputs.items()}, split)
        seconds = time.monotonic() - begun
        found.grid = AssessedGrid(points, replayed, outcomes, replay.duplicates(replayed.outputs, points), seconds, costs)
        done = replayed.outputs.keys() | replayed.errors.keys()
        self._decode(found, {point: "grid" for index, point in enumerate(points) if index not in done})
        return found

    def prepare_chosen(self, rows: Sequence[SweepRow], points: Sequence[SweepPoint], split: Split) -> SplitSweep:
        """Decode the baselines and the points that the validation rows choose, on another split: too few for a replay."""
        choices = choose_rows(rows, self.writer.evaluator.sweep.margins).values()
        chosen = {(rows[index].method, str(rows[index].settings)) for index in choices if index is not None}
        wanted = [point for point in points if (point.method, str(point.plain_settings)) in chosen]
        found = SplitSweep(self.drafter, self.writer, split)
        self._decode(found, dict.fromkeys(BASELINES, "baseline") | dict.fromkeys(wanted, "chosen"))
        return found

    def _outputs(self, points: Sequence[SweepPoint], split: Split, *, decoded: bool) -> ReplayedGrid:
        evaluator, texts = self.writer.evaluator, self.writer.evaluator.vanilla(split).tokens
        request, sweep = evaluator.request, evaluator.sweep
        samples = 1 if request.sampling.greedy else sweep.samples
        grid = GridReplay(points, request, split, self.cache, texts, decoded, samples, sweep.quality_batch)
        label = f"{'decode' if decoded else 'replay'} {split.name}, {self.drafter}"
        with contextlib.nullcontext() if decoded else on_threads(sweep.latency_threads):
            return replay_grid(grid, evaluator.pair, label, self.fan_out)

    def _decode(self, sweep: SplitSweep, why: Mapping[SweepPoint, str]) -> None:
        """Decode points before anything is timed, in several processes where there are some; one that fails has its row.

        Args:
            sweep: Gains the points.
            why: Points, and the reason for timing each. Baselines are decoded even where their rows are whole, since a plan
                needs their outputs.
        """
        split, evaluator, decoded = sweep.split, self.writer.evaluator, dict[SweepPoint, Outputs]()
        new = [point for point in why if point not in sweep.asked]
        waiting = [point for point in new if point not in BASELINES and not self.writer.is_finished(point, split)]
        waiting = [point for point in waiting if not evaluator.has_outputs(point, split)]
        if waiting and (self.fan_out is not None or evaluator.decodes_together):
            together = self._outputs(waiting, split, decoded=True).outputs
            decoded = {waiting[index]: outputs for index, outputs in together.items()}
        known = dict[SweepPoint, Known]()
        for point in new:
            if point not in BASELINES and self.writer.is_finished(point, split):
                if (row := self.writer.resumed(point, split)) is not None:
                    sweep.rows[point] = row
                continue
            try:
                outputs = evaluator.outputs(point, split, decoded.get(point))
                known[point] = outputs, evaluator.assess(outputs, split, lossless=is_vanillas_output(point))
            except RuntimeError as error:
                sweep.rows[point] = sweep.fail(point, named(error))
        # All at once: the file is written as a whole each time.
        self.writer.keep({point: outputs for point, (outputs, _) in known.items()}, split)
        for point, found in known.items():
            sweep.time(point, Asked(why[point], found))


# The splits, one after the other; of each the sweeps of all drafters.

Grids = Mapping[Drafter, Sequence[SweepPoint]]
Rows = dict[Drafter, list[SweepRow]]


@dataclass
class TaskSweep:
    """The sweeps of all drafters of a task."""

    runners: Mapping[Drafter, SweepRunner]
    grids: Grids
    start: Start
    plans: dict[Drafter, SweepPlan | None] = field(default_factory=dict)
    """How the grids were worked through, for `pair.json`; None in a sweep that does not plan."""
    null_tests: list[NullTest] = field(default_factory=list)
    """Of the clock, on the splits so far."""

    def null_test(self) -> NullTest | None:
        """The worst of the splits so far."""
        return max(self.null_tests, key=lambda one: (one.finding == "unequal", abs(math.log(one.ratio))), default=None)

    def validate(self, split: Split) -> Rows:
        """Rows of the baselines and of every point; a sweep that plans times only the points of its plan."""
        sweeps = {drafter: runner.prepare(self.grids[drafter], split) for drafter, runner in self.runners.items()}
        seconds, found = time_in_turn(list(sweeps.values()), self.start), Rows()
        self.null_tests += filter(None, [null_test_of(list(sweeps.values()))])
        for drafter, sweep in sweeps.items():
            found[drafter], self.plans[drafter] = sweep.finish(seconds)
            sweep.writer.rows.compact()
        return found

    def report(self, done: Rows, split: Split) -> Rows:
        """Rows, on another split, of the baselines and of the points that the validation rows choose."""
        sweeps = [one.prepare_chosen(done[drafter], self.grids[drafter], split) for drafter, one in self.runners.items()]
        # All in one group: what the report compares was timed beside the same runs of the large model.
        time_in_turn(sweeps, self.start, together=None)
        self.null_tests += filter(None, [null_test_of(sweeps)])
        for sweep in sweeps:
            sweep.writer.rows.compact()
        return {sweep.drafter: sweep.in_order() for sweep in sweeps}

    def report_further(self, done: Rows, splits: Sequence[Split], files: Sequence[Path]) -> Iterator[Rows]:
        """The same on each further test set, whose rows have files of their own; those of other sets are removed."""
        for runner in self.runners.values():
            runner.remove_other_splits("test.", {split.name for split in splits})
        for split, file in zip(splits, files, strict=True):
            runners = {drafter: runner.for_split(split.name, {}, [file]) for drafter, runner in self.runners.items()}
            yield dataclasses.replace(self, runners=runners).report(done, split)

    def vary_temperature(
        self, temperatures: Sequence[float], evaluators: Mapping[Drafter, Callable[[float], PointEvaluator]], validation: Split
    ) -> Iterator[Rows]:
        """Measure the grids on validation at each further temperature, beside vanilla at the same one.

        Nothing is chosen from these rows. Their split has the temperature in its name, so that no reader takes them for
        validation's.

        Args:
            temperatures: Further ones; rows of others are removed.
            evaluators: Make what evaluates a drafter's points at a temperature.
            validation: The examples.
        """
        for runner in self.runners.values():
            runner.remove_other_splits(STEM, {split_at(temperature) for temperature in temperatures})
        for temperature in temperatures:
            split = copy.copy(validation)
            split.name = split_at(temperature)
            runners = {
                drafter: runner.for_split(split.name, {"temperature": temperature}, [], evaluators[drafter](temperature))
                for drafter, runner in self.runners.items()
            }
            if temperature > 0:  # every point is timed: nothing is chosen from these rows, and figures draw them by rule
                runners = {drafter: dataclasses.replace(runner, costs=None) for drafter, runner in runners.items()}
            grids = {drafter: points_at(temperature, points) for drafter, points in self.grids.items()}
            yield TaskSweep(runners, grids, self.start).validate(split)


def points_at(temperature: float, points: Sequence[SweepPoint]) -> list[SweepPoint]:
    """The points that a temperature is swept with: above 0 those whose methods draw tokens."""
    return [point for point in points if temperature == 0 or point.method not in GREEDY_ONLY]
