"""Stage `sweep`: plan and time the grid of one drafter on validation, and measure the chosen points on test.

The drafter of the first seed is swept over the whole grid, those of the others over `sweep.seed_methods`.

`python -m tasks.sweep --task translation --arm aligned --workers 2`
"""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import JsonValue

from tasks.config import Params, Task
from tasks.console import log
from tasks.corpora.example import read_jsonl
from tasks.decoding.method import Request
from tasks.errors import InputError, stage
from tasks.evaluation.operations import pair_memory
from tasks.evaluation.record import SweepRecord, uploaded_hypotheses
from tasks.evaluation.results import codec
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.pair import GridPoint, PairRecord, write_pair
from tasks.evaluation.results.rows import FailedRow, SweepRow, TimedRow
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.scoring.quality import unsupported_script
from tasks.evaluation.settings import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.sweep.given_text import GivenTextEvaluator
from tasks.evaluation.sweep.grid import expand
from tasks.evaluation.sweep.replay import Split
from tasks.evaluation.sweep.rows import PointEvaluator, RowWriter
from tasks.evaluation.sweep.run import (
    BatchTimer,
    SweepRunner,
    measure_temperatures,
    measure_tests,
    points_at,
    points_by_batch,
    vanilla_scatter,
)
from tasks.files import remove
from tasks.fingerprint import discard_others
from tasks.lineage import lineage
from tasks.loaded_pair import fan_out_of, load_for_sweep, measure_pair, require_composable, work_fingerprint
from tasks.locks import timing_lock
from tasks.models.checkpoints import read_training_record
from tasks.paths import ARMS, TaskPaths


def sweep_seeds(params: Params, task: Task, paths: TaskPaths, arm: str) -> tuple[list[SweepRow], list[PairRecord]]:
    """Sweep the drafter of each seed; folders of seeds that are no longer asked for are removed.

    Returns:
        The rows of all seeds, and what each sweep recorded of its pair.
    """
    first, *others = task.seeds
    for folder in paths.sweep(arm, first).parent.glob("*"):
        if folder.name not in map(str, others):
            remove(folder)
    done, pair = sweep(params, task, paths, arm, first)
    pairs = [pair]
    fewer = [entry for entry in task.sweep.grid if entry.method in task.sweep.seed_methods]
    task = task.model_copy(update={"sweep": dataclasses.replace(task.sweep, grid=fewer, sample=0)})
    for seed in others:
        rows, pair = sweep(params, task, paths, arm, seed, first=False)
        done, pairs = done + rows, [*pairs, pair]
    return done, pairs


def sweep(
    params: Params, task: Task, paths: TaskPaths, arm: str, seed: int, *, first: bool = True
) -> tuple[list[SweepRow], PairRecord]:
    """Measure the points that have no row yet, write rows.jsonl and pair.json, and record every point in MLflow.

    Args:
        params: The whole file.
        task: The task's part of it.
        paths: Its files.
        arm: One of `paths.ARMS`.
        seed: Which of its drafters.
        first: Whether this is the first seed, whose sweep is the main one.

    Returns:
        The rows of this grid, and what it recorded of the pair.
    """
    # 1. Load the pair once for all points, and refuse points that it cannot run.
    grid, settings = expand(task.sweep.grid), task.sweep
    temperatures = settings.temperatures if first else ()
    model, other = paths.model(arm, seed), None if first else seed
    loaded = load_for_sweep(params, task, paths, model, grid)
    request = Request(task.text.max_target_tokens, settings.sampling, settings.seed)
    require_composable(grid, loaded.pair, request)
    for temperature in temperatures:
        require_composable(points_at(temperature, grid), loaded.pair, request.at(temperature))

    # 2. Perplexity is of given texts: there is nothing to generate at a further temperature or in batches, or in other
    # processes.
    given = metric_of(task.metric).name == PERPLEXITY
    kind = GivenTextEvaluator if given else PointEvaluator
    fan_out = None if given else fan_out_of(params, task, paths, model, grid, loaded)

    def evaluator_at(temperature: float) -> PointEvaluator:
        return kind(loaded.pair, loaded.tokenizer, task.metric, request.at(temperature), settings, loaded.device)

    evaluator = evaluator_at(request.sampling.temperature)
    validation, test, *further = (
        Split(name, read_jsonl(paths.split(name)), loaded.tokenizer, task.text, settings)
        for name in (CHOSEN_ON, REPORTED_ON, *paths.further_tests())
    )

    # 3. The rows of an interrupted sweep are valid while what they depend on stays the same.
    tests = [paths.split(split.name) for split in further]
    inputs = [*loaded.inputs, *tests]
    origin = {name: value for name, value in lineage(inputs=list(map(str, inputs))).items() if not name.startswith("mlflow.")}
    work = work_fingerprint(params, task, loaded, origin)
    rows = SweepRowFile(paths.rows(arm, other), work)
    cache = paths.resume(f"sweep-{arm}-{seed}") / work
    discard_others(cache)
    described = {
        "points": len(grid),
        "latency_examples": settings.latency_examples,
        "seed": settings.seed,
        "drafter_seed": seed,
    }
    record = SweepRecord(paths, arm, loaded.pair.described, described, inputs, other)
    # The record is sent when it ends, inside the lock, so that nothing is sent during another sweep's timing.
    with timing_lock(loaded.device), record:
        # 4. What is measured of the pair whatever the method.
        acceptance, sizes = measure_pair(loaded, validation.sources, request, task, params.machine.dtype == "int8", grid)
        pair = PairRecord(
            arm=arm,
            seed=seed,
            training=read_training_record(model),
            draft_vocabulary=loaded.draft_vocabulary,
            runtime=loaded.pair.described,
            acceptance=acceptance,
            sizes=sizes,
            memory=pair_memory(loaded.pair, sizes, task.text.max_source_tokens, task.text.max_target_tokens),
            margins=settings.margins,
            risk=settings.risk,
        )
        record.pair(pair)
        # 5. The grid on validation, and its choices on test.
        writer = RowWriter(evaluator, rows, paths.task, arm, record.point)
        runner = SweepRunner(writer, cache, fan_out)
        done = runner.validate(grid, validation)
        done += runner.report(done, grid, test)
        runner.compact()
        # 6. Further test sets, temperatures and batch sizes.
        tested = measure_tests(runner, further, tests, done, grid)
        varied = measure_temperatures(runner, temperatures, evaluator_at, validation, grid)
        batches = None
        if first and settings.batch_sizes and not given:
            batches = BatchTimer(evaluator, test).measure(points_by_batch(done, grid, settings.margins))
        # 7. The record of the pair.
        references = (text for example in validation.examples for text in example.references)
        recorded: dict[str, JsonValue] = {"sweep": codec.encode(settings), "machine": codec.encode(params.machine.alone())}
        pair = dataclasses.replace(
            pair,
            batches=batches,
            outputs=evaluator.check_vanilla(validation),
            unsupported_script=unsupported_script(references, task.metric),
            vanilla_scatter=vanilla_scatter(done, CHOSEN_ON),
            costs=None if runner.costs is None else runner.costs.record(),
            plan=runner.plan,
            lineage={**origin, "settings": recorded},
            grid=[GridPoint(method=point.method, settings=point.row_settings) for point in grid],
        )
        record.pair(pair)
        written = write_pair(pair, paths.sweep(arm, other) / "pair.json")
        kept = sorted(written.parent.glob("rows*.jsonl"))
        record.keep([*kept, written, *uploaded_hypotheses(written.parent)])
    return [*done, *tested, *varied], pair


def with_workers(params: Params, workers: int | None, dask: str | None = None) -> Params:
    """The parameters with the processes and the Dask scheduler of the command line, if they are given there.

    Raises:
        InputError: it is out of bounds.
    """
    given: dict[str, Any] = {name: value for name, value in (("workers", workers), ("dask", dask)) if value is not None}
    if not given:
        return params
    try:
        return params.model_copy(update={"machine": dataclasses.replace(params.machine, **given)})
    except ValueError as error:
        raise InputError(f"--workers: {error}") from None


def main() -> None:
    """Sweep the drafters of one arm, resuming an interrupted sweep; failed points are listed on standard error."""
    from tasks.config import load, task_parser

    parser = task_parser(__doc__)
    parser.add_argument("--arm", required=True, choices=ARMS)
    workers = "processes that replay and decode (default: machine.workers in the parameter file); one alone does the timing"
    parser.add_argument("--workers", type=int, metavar="N", help=workers)
    dask = "Dask scheduler whose workers replay and decode instead, such as tcp://127.0.0.1:8786"
    parser.add_argument("--dask", metavar="ADDRESS", help=dask)
    arguments = parser.parse_args()
    params = with_workers(load(arguments.params), arguments.workers, arguments.dask)
    paths = TaskPaths(arguments.task)
    done, pairs = sweep_seeds(params, params.task(arguments.task), paths, arguments.arm)
    timed = sum(isinstance(row, TimedRow) for row in done)
    failed = [row for row in done if isinstance(row, FailedRow)]
    for row in failed:
        log.warning("failed: %s %s %s: %s", row.split, row.method, row.settings, row.error)
    counts = f"{len(done)} points, {timed} timed, {len(failed)} failed"
    log.info("%s/%s: %s (%s)", arguments.task, arguments.arm, counts, pairs[0].runtime)
    for pair in pairs:
        if pair.vanilla_scatter is not None:
            log.info("%s", pair.vanilla_scatter.sentence(f"{arguments.arm}, seed {pair.seed}"))
    if len(failed) == len(done):
        raise InputError(f"every point of the sweep failed; the first: {failed[0].error}")


if __name__ == "__main__":
    with stage():
        main()
