"""Stage `sweep`: plan and time the grids of all drafters on validation, and measure the chosen points on test.

The drafters of both arms are timed in turn, so that they can be compared. Those of the first seed are swept over the whole
grid, those of the others over `sweep.seed_methods`.

`python -m tasks.sweep --task translation --workers 2`
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import JsonValue

from tasks import loaded_pair
from tasks.config import Params, Task, load, task_parser
from tasks.console import log
from tasks.corpora.example import read_jsonl
from tasks.decoding.method import Request, SamplingSettings
from tasks.errors import stage
from tasks.evaluation.acceptance import agreeing_layers
from tasks.evaluation.record import SweepRecord, uploaded_hypotheses
from tasks.evaluation.results import codec
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.pair import BatchTimings, Costs, GridPoint, PairRecord
from tasks.evaluation.results.rows import FailedRow, TimedRow
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.settings import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.sweep.clock import points_by_batch, start_elsewhere
from tasks.evaluation.sweep.fan_out import FanOut
from tasks.evaluation.sweep.given_text import GivenTextEvaluator
from tasks.evaluation.sweep.grid import Drafter, expand
from tasks.evaluation.sweep.replay import Split
from tasks.evaluation.sweep.rows import PointEvaluator, RowWriter
from tasks.evaluation.sweep.run import Grids, Rows, SweepRunner, TaskSweep, expected, measured_costs, points_at
from tasks.files import atomic_write, remove
from tasks.fingerprint import discard_others
from tasks.lineage import lineage
from tasks.locks import timing_lock
from tasks.machine import worker_count
from tasks.models.settings import read_training_record
from tasks.models.spread import places_of
from tasks.paths import ARMS, TaskPaths
from tasks.workers import Workers


def grids_of(task: Task, arms: Sequence[str] = ARMS) -> Grids:
    """The points of each drafter, those of the first seed before the others."""
    fewer = [entry for entry in task.sweep.grid if entry.method in task.sweep.seed_methods]
    whole = expand(task.sweep.grid)
    return {Drafter(arm, seed): whole if seed == task.seeds[0] else expand(fewer) for seed in task.seeds for arm in arms}


def remove_other_seeds(paths: TaskPaths, seeds: Sequence[int]) -> None:
    """Remove the sweeps of drafters of seeds that are no longer asked for."""
    for folder in [one for arm in ARMS for one in paths.sweep(arm, seeds[0]).parent.glob("*")]:
        if folder.name not in map(str, seeds[1:]):
            remove(folder)


class DrafterSweep:
    """What the stage knows of one drafter: its rows' file, its run in MLflow, and what its sweep records of the pair."""

    def __init__(
        self, params: Params, task: Task, paths: TaskPaths, drafter: Drafter, pairs: loaded_pair.LoadedPairs, grids: Grids
    ) -> None:
        """Load the pair, refuse points that it cannot run, and open the files.

        Raises:
            InputError: a model is missing, the two do not fit, or a point cannot be run.
        """
        settings, grid = task.sweep, grids[drafter]
        self.params, self.task, self.paths, self.drafter, self.grid = params, task, paths, drafter, grid
        self.first = drafter.seed == task.seeds[0]
        self._pairs, self._other = pairs, None if self.first else drafter.seed
        loaded = pairs.of(drafter)
        self.request = Request(task.text.max_target_tokens, settings.sampling, settings.seed, drafter=settings.drafter_sampling)
        loaded_pair.require_composable(grid, loaded.pair, self.request)
        for temperature in settings.temperatures if self.first else ():
            loaded_pair.require_composable(points_at(temperature, grid), loaded.pair, self.request.at(temperature))
        # The rows of an interrupted sweep are valid while what they depend on stays the same, predictions longer: they depend
        # on one drafter, rows on all that are timed in turn.
        self._inputs = [*loaded.inputs, *map(paths.split, paths.further_tests())]
        inputs = list(map(str, self._inputs))
        self._origin = {name: value for name, value in lineage(inputs=inputs).items() if not name.startswith("mlflow.")}
        work_of = functools.partial(loaded_pair.work_fingerprint, params, task, loaded, self._origin)
        self.cache = paths.resume(f"sweep-{drafter.arm}-{drafter.seed}") / work_of()
        discard_others(self.cache)
        folders = [paths.model(*one) for one in grids if one != drafter]
        self.rows = SweepRowFile(paths.rows(drafter.arm, self._other), work_of(folders))
        described = {
            "points": len(grid),
            "latency_examples": settings.latency_examples,
            "seed": settings.seed,
            "drafter_seed": drafter.seed,
        }
        self.record = SweepRecord(paths, drafter.arm, loaded.pair.described, described, self._inputs, self._other)
        self.evaluator = self.evaluator_at(self.request.sampling.temperature)

    def evaluator_at(self, temperature: float) -> PointEvaluator:
        """What evaluates points at a temperature. Perplexity is of given texts: nothing is generated."""
        kind = GivenTextEvaluator if metric_of(self.task.metric).name == PERPLEXITY else PointEvaluator
        tokenizer, request = self._pairs.of(self.drafter).opened.tokenizer, self.request.at(temperature)
        # One cost model serves all seeds, and the first seed's random points say how well it predicts.
        settings = self.task.sweep if self.first else dataclasses.replace(self.task.sweep, sample=0)
        known = self._pairs.outputs[temperature]
        return kind(lambda: self._pairs.of(self.drafter).pair, tokenizer, self.task.metric, request, settings, known)

    def measure(self, validation: Split) -> None:
        """Measure what does not depend on the method."""
        machine, task, loaded = self.params.machine, self.task, self._pairs.of(self.drafter)
        texts = self._pairs.large_texts
        acceptance, sizes = loaded_pair.measure_pair(loaded, validation.sources, self.request, task, machine, self.grid, texts)
        if task.sweep.agreeing_layers and self._pairs.agreeing_layers is None:
            with loaded_pair.failures_named(task.sweep.quality_batch):
                self._pairs.agreeing_layers = agreeing_layers(loaded.pair.large, validation.sources, texts[SamplingSettings()])
        self.pair = PairRecord(
            arm=self.drafter.arm,
            seed=self.drafter.seed,
            training=read_training_record(self.paths.model(*self.drafter)),
            runtime=loaded.pair.described,
            acceptance=acceptance,
            agreeing_layers=self._pairs.agreeing_layers,
            sizes=sizes,
            margins=task.sweep.margins,
        )
        self.record.pair(self.pair)

    def runner(self, costs: Costs | None, workers: Workers) -> SweepRunner:
        """What prepares this drafter's points, in several processes where there are some."""
        fan_out = None if metric_of(self.task.metric).name == PERPLEXITY else self._fan_out(workers)
        writer = RowWriter(self.evaluator, self.rows, self.paths.task, self.drafter.arm, self.record.point)
        return SweepRunner(self.drafter, writer, self.cache, fan_out, costs)

    def _fan_out(self, workers: Workers) -> FanOut | None:
        """The processes of this machine that share what is not timed; None: this one alone."""
        size, task = worker_count(self.params.machine), (self.params, self.task, self.paths)
        own = functools.partial(loaded_pair.worker_pair, *task, self.paths.model(*self.drafter), self.grid)
        if self._pairs.handed is not None:
            own = functools.partial(loaded_pair.handed_pair, self._pairs.handed[0], self.drafter)
        elif size > 1 and places_of(self._pairs.of(self.drafter).opened.models["large"]):
            size = 1  # a large model that is spread over the cards takes all of them
        return None if size == 1 else FanOut(size, own, workers)

    def finish(self, known: Mapping[str, Any]) -> PairRecord:
        """Write the record of the pair, and attach all files to the run."""
        recorded: dict[str, JsonValue] = {
            "sweep": codec.encode(self.task.sweep),
            "machine": codec.encode(self.params.machine.alone()),
        }
        self.pair = dataclasses.replace(
            self.pair,
            lineage={**self._origin, "settings": recorded},
            grid=[GridPoint(method=point.method, settings=point.plain_settings) for point in self.grid],
            **known,
        )
        self.record.pair(self.pair)
        written = atomic_write(self.paths.sweep(self.drafter.arm, self._other) / "pair.json", codec.text_of(self.pair))
        kept = sorted(written.parent.glob("rows*.jsonl"))
        self.record.keep([*kept, written, *uploaded_hypotheses(written.parent)])
        return self.pair


def sweep(params: Params, task: Task, paths: TaskPaths, arms: Sequence[str] = ARMS) -> tuple[Rows, dict[Drafter, PairRecord]]:
    """Measure the points that have no row yet, write rows.jsonl and pair.json, and record every point in MLflow.

    Args:
        params: The whole file.
        task: The task's part of it.
        paths: Its files.
        arms: Whose drafters; those of both are compared.

    Returns:
        The rows of each drafter, and what its sweep recorded of the pair.
    """
    # 1. Load the pair of each drafter; replay reads one at a time, and none is open while another process times.
    grids = grids_of(task, arms)
    remove_other_seeds(paths, task.seeds)
    pairs = loaded_pair.LoadedPairs(functools.partial(loaded_pair.load_drafter, params, task, paths, grids))
    task = loaded_pair.with_fitting_batch(task, pairs.of(next(iter(grids))), params.machine)
    drafters = {drafter: DrafterSweep(params, task, paths, drafter, pairs, grids) for drafter in grids}
    settings, workers = task.sweep, Workers()

    def close() -> None:
        pairs.close()
        workers.close()

    [main, *_] = drafters.values()
    first = {drafter: one for drafter, one in drafters.items() if one.first}
    # No name here holds a pair, which would keep it in memory while another process times.
    tokenizer, device = pairs.of(main.drafter).opened.tokenizer, pairs.of(main.drafter).opened.device
    validation, test, *further = (
        Split(name, read_jsonl(paths.split(name)), tokenizer, task.text, settings)
        for name in (CHOSEN_ON, REPORTED_ON, *paths.further_tests())
    )
    with contextlib.ExitStack() as held:
        # The records are sent when they end, inside the lock, so that nothing is sent during another sweep's timing.
        held.enter_context(timing_lock(device))
        paths.forget_metrics()
        held.callback(workers.close)
        for one in drafters.values():
            held.enter_context(one.record)
        for name in ("pairs.pt", "pairs-reversed.pt"):
            held.callback(remove, main.cache / name)
        pairs.hand_over(grids, main.cache / "pairs.pt")
        # 2. What is measured of the pairs whatever the method, and one cost model for all of them.
        for one in drafters.values():
            one.measure(validation)
        given = metric_of(task.metric).name == PERPLEXITY
        costs = None
        if settings.plan and not given:
            timer = functools.partial(loaded_pair.point_timer, pairs, task, grids)
            costs = measured_costs(main.cache / "costs.json", validation, main.request, timer)
        # 3. The grids on validation, and their choices on test.
        start = start_elsewhere(functools.partial(loaded_pair.open_timer, params, task, paths, grids, pairs.handed), close)
        whole = TaskSweep({drafter: one.runner(costs, workers) for drafter, one in drafters.items()}, grids, start)
        done = whole.validate(validation)
        tested = whole.report(done, test)
        # 4. Further test sets, temperatures and batch sizes, these for the first seed alone.
        more = [*whole.report_further(done, further, [paths.split(split.name) for split in further])]
        few = dataclasses.replace(whole, runners={drafter: whole.runners[drafter] for drafter in first})
        evaluators = {drafter: one.evaluator_at for drafter, one in first.items()}
        more += few.vary_temperature(settings.temperatures, evaluators, validation)
        batches = dict[Drafter, BatchTimings]()
        if settings.batch_sizes and not given:
            points = {drafter: points_by_batch(done[drafter], grids[drafter], settings.margins) for drafter in first}
            vanilla = expected(main.evaluator.vanilla(test))
            batches = loaded_pair.point_timer(pairs, task, grids).batches(points, vanilla, test, main.request)
        # 5. The records of the pairs.
        of_all = {"outputs": main.evaluator.check_vanilla(validation), "costs": costs, "null_test": whole.null_test()}
        found = {
            drafter: one.finish({**of_all, "batches": batches.get(drafter), "plan": whole.plans.get(drafter)})
            for drafter, one in drafters.items()
        }
    for part in (tested, *more):
        for drafter, rows in part.items():
            done[drafter] += rows
    return done, found


def main() -> None:
    """Sweep the drafters of both arms, resuming an interrupted sweep; failed points are listed on standard error."""
    arguments = task_parser(__doc__).parse_args()
    params = load(arguments.params)
    found, pairs = sweep(params, params.task(arguments.task), TaskPaths(arguments.task))
    done = [row for rows in found.values() for row in rows]
    failed = [row for row in done if isinstance(row, FailedRow)]
    for row in failed:
        log.warning("failed: %s %s %s: %s", row.split, row.method, row.settings, row.error)
    counts = f"{len(done)} points, {sum(isinstance(row, TimedRow) for row in done)} timed, {len(failed)} failed"
    log.info("%s: %s (%s)", arguments.task, counts, next(iter(pairs.values())).runtime)


if __name__ == "__main__":
    with stage():
        main()
