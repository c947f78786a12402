"""Stage `sweep`: plan and time the grid of one drafter on validation, and measure the chosen points on test.

The drafter of the first seed is swept over the whole grid, those of the others over `sweep.seed_methods`.

`python -m tasks.sweep --task translation --arm aligned --workers 2`
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from tasks.console import log
from tasks.corpora.example import read_jsonl
from tasks.decoding.method import Request
from tasks.errors import InputError, stage
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.metrics import PERPLEXITY, metric_of
from tasks.evaluation.model_sizes import pair_memory
from tasks.evaluation.quality import unsupported_script
from tasks.evaluation.record import SweepRecord, uploaded_hypotheses
from tasks.evaluation.results import codec
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.pair import GridPoint, PairRecord, write_pair
from tasks.evaluation.results.rows import FailedRow, SweepRow, TimedRow
from tasks.evaluation.rounds import scatter_text, vanilla_scatter
from tasks.evaluation.sweep.fan_out import ALONE, FanOut, find_cluster
from tasks.evaluation.sweep.given_text import GivenTextEvaluator
from tasks.evaluation.sweep.grid import SweepPoint, expand
from tasks.evaluation.sweep.point import PointEvaluator
from tasks.evaluation.sweep.replay import Split
from tasks.evaluation.sweep.rows import RowWriter
from tasks.evaluation.sweep.run import BatchTimer, SweepRunner, measure_temperatures, points_at, points_by_batch
from tasks.files import remove
from tasks.fingerprint import fingerprint
from tasks.lineage import lineage
from tasks.loaded_pair import (
    LoadedPair,
    cache_folder,
    files_fingerprint,
    load_pair,
    load_pair_alone,
    load_pair_elsewhere,
    measure_pair,
    require_composable,
    work_fingerprint,
)
from tasks.locks import timing_lock
from tasks.models.checkpoints import read_training_record
from tasks.paths import ARMS, TaskPaths
from tasks.schema import Params, Task


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
    grid = expand(task.sweep.grid)
    model, other = paths.model(arm, seed), None if first else seed
    loaded = load_pair(params, task, paths, model, grid)
    request = Request(task.text.max_target_tokens, task.sweep.sampling, task.sweep.seed)
    require_composable(grid, loaded.pair, request)
    temperatures = task.sweep.temperatures if first else ()
    for temperature in temperatures:
        require_composable(points_at(temperature, grid), loaded.pair, request.at(temperature))

    # Perplexity is of given texts: there is nothing to generate at a further temperature or in batches, or in other processes.
    given = metric_of(task.metric).name == PERPLEXITY
    kind = GivenTextEvaluator if given else PointEvaluator
    fan_out = ALONE if given else fan_out_of(params, task, paths, model, grid, loaded)

    def evaluator_at(temperature: float) -> PointEvaluator:
        asked = request.at(temperature)
        return kind(loaded.pair, loaded.tokenizer, task.metric, asked, task.sweep, loaded.device)

    evaluator = evaluator_at(request.sampling.temperature)
    validation, test, *further = (
        Split(name, read_jsonl(paths.split(name)), loaded.tokenizer, task.text, task.sweep)
        for name in (CHOSEN_ON, REPORTED_ON, *paths.further_tests())
    )
    inputs = [*loaded.inputs, *(paths.split(split.name) for split in further)]
    origin = {name: value for name, value in lineage(inputs=list(map(str, inputs))).items() if not name.startswith("mlflow.")}
    work = work_fingerprint(params, task, loaded, origin)
    rows = SweepRowFile(paths.rows(arm, other), work)
    measured_as = {"latency_examples": task.sweep.latency_examples, "seed": task.sweep.seed}
    settings = {"points": len(grid), **measured_as, "drafter_seed": seed}
    # The record is sent when it ends, inside the lock, so that nothing is sent during another sweep's timing.
    about = (paths, arm, loaded.described, settings, inputs, other)
    with timing_lock(loaded.device), SweepRecord(*about) as record:
        acceptance, sizes = measure_pair(*(loaded, validation.sources, request, task, params.machine.dtype == "int8", grid))
        training = read_training_record(model)
        pair = PairRecord(
            arm=arm,
            seed=seed,
            training=training,
            draft_vocabulary=loaded.draft_vocabulary,
            runtime=loaded.described,
            acceptance=acceptance,
            sizes=sizes,
            memory=pair_memory(loaded.pair, sizes, task.text.max_source_tokens, task.text.max_target_tokens),
        )
        record.pair(pair)
        writer = RowWriter(evaluator, rows, paths.task, arm, record.point)
        cache = cache_folder(work, paths.resume(f"sweep-{arm}-{seed}"))
        runner = SweepRunner(writer, cache, fan_out)
        done = runner.validate(grid, validation)
        done += runner.report(done, grid, test)
        rows.compact()
        tested = measure_tests(further, writer, cache, done, grid, paths, fan_out)
        varied = measure_temperatures(temperatures, evaluator_at, writer, validation, grid, cache, fan_out)
        by_batch = first and task.sweep.batch_sizes and not given
        wanted = points_by_batch(done, grid, task.sweep.margins) if by_batch else []
        pair = dataclasses.replace(
            pair,
            batches=BatchTimer(evaluator, test).load_or_measure(wanted, cache) if by_batch else None,
            outputs=evaluator.check_vanilla(validation),
            unsupported_script=unsupported_script(
                (text for example in validation.examples for text in example.references), task.metric
            ),
            vanilla_scatter=vanilla_scatter(done, CHOSEN_ON),
            costs=None if writer.costs is None else writer.costs.record(),
            plan=runner.plan,
            margins=task.sweep.margins,
            risk=task.sweep.risk,
            lineage={**origin, "settings": _settings_record(params, task)},
            grid=[GridPoint(method=point.method, settings=point.row_settings) for point in grid],
        )
        record.pair(pair)
        written = write_pair(pair, paths.sweep(arm, other) / "pair.json")
        kept = sorted(written.parent.glob("rows*.jsonl"))
        record.keep([*kept, written, *uploaded_hypotheses(written.parent)])
    return [*done, *tested, *varied], pair


def measure_tests(
    splits: Sequence[Split],
    main: RowWriter,
    cache: Path,
    done: Sequence[SweepRow],
    grid: Sequence[SweepPoint],
    paths: TaskPaths,
    fan_out: FanOut,
) -> list[SweepRow]:
    """Measure the baselines and the chosen points on the test sets beside the main one.

    The rows of each are in a file of their own, so that a set that is added, changed or removed leaves all other rows valid.

    Args:
        splits: The test sets.
        main: What writes the rows of validation and of the main test set; theirs stand beside them.
        cache: See `SweepRunner`.
        done: The rows of validation, on which points are chosen.
        grid: The points.
        paths: The task's files.
        fan_out: See `SweepRunner`.

    Returns:
        The rows.
    """
    folder, found = main.rows.path.parent, list[SweepRow]()
    names = {split.name for split in splits}
    for file in [*folder.glob("rows-test.*.jsonl"), *folder.glob("hypotheses-test.*.parquet")]:
        if file.stem.partition("-")[2] not in names:
            remove(file)
    for split in splits:
        work = fingerprint({"work": main.rows.fingerprint}, [paths.split(split.name)], [])
        rows = SweepRowFile(folder / paths.rows(main.arm, test=split.name).name, work)
        writer = RowWriter(main.evaluator, rows, main.task, main.arm, main.on_row, main.costs)
        found += SweepRunner(writer, cache, fan_out).report(done, grid, split)
        rows.compact()
    return found


def _settings_record(params: Params, task: Task) -> dict[str, JsonValue]:
    return {"sweep": codec.encode(task.sweep), "machine": codec.encode(params.machine.alone())}


def fan_out_of(
    params: Params, task: Task, paths: TaskPaths, model: Path, grid: Sequence[SweepPoint], loaded: LoadedPair
) -> FanOut:
    """The processes that share what is not timed: those of `machine.workers`, and the workers of `machine.dask`."""
    what = (params, task, paths, model, grid)
    cluster = None
    if params.machine.dask is not None:
        there = functools.partial(load_pair_elsewhere, *what, files_fingerprint(loaded))
        cluster = find_cluster(params.machine.dask, there, loaded.device)
    return FanOut(params.machine.workers, functools.partial(load_pair_alone, *what), cluster)


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
    dask = "Dask scheduler whose workers replay and decode too, such as tcp://127.0.0.1:8786 (default: machine.dask)"
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
            log.info("%s", scatter_text(pair.vanilla_scatter, f"{arguments.arm}, seed {pair.seed}"))
    if len(failed) == len(done):
        raise InputError(f"every point of the sweep failed; the first: {failed[0].error}")


if __name__ == "__main__":
    with stage():
        main()
