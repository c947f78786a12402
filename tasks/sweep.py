"""Stage `sweep`: plan and time the grid of one drafter on validation, and measure the chosen points on test.

The drafter of the first seed is swept over the whole grid, those of the others over `sweep.seed_methods`.

`python -m tasks.sweep --task translation --drafter aligned`
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from tasks.corpora.example import read_jsonl
from tasks.decoding.registry import Request
from tasks.errors import InputError, stage
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.model_sizes import pair_memory
from tasks.evaluation.record import SweepRecord, uploaded_hypotheses
from tasks.evaluation.results import codec
from tasks.evaluation.results.pair import GridPoint, PairRecord, write_pair
from tasks.evaluation.results.rows import FailedRow, SweepRow, SweepRowFile, TimedRow
from tasks.evaluation.rounds import scatter_text, vanilla_scatter
from tasks.evaluation.scoring.scripts import misfit
from tasks.evaluation.sweeping.batches import BatchTimer, points_by_batch
from tasks.evaluation.sweeping.grid import SweepPoint, expand
from tasks.evaluation.sweeping.outputs import Split
from tasks.evaluation.sweeping.point_evaluator import PointEvaluator
from tasks.evaluation.sweeping.row_writer import RowWriter
from tasks.evaluation.sweeping.runner import SweepRunner
from tasks.files import remove
from tasks.fingerprint import fingerprint
from tasks.lineage import lineage
from tasks.loaded_pair import LoadedPair, load_pair, measure_pair, require_composable
from tasks.locks import timing_lock
from tasks.models.training_record import read_training_record
from tasks.paths import DRAFTERS, TaskPaths
from tasks.schema import Params, Task

_CODE = [
    "decoding",
    "models",
    *(
        f"evaluation/sweeping/{module}"
        for module in ("costs", "hypotheses", "outputs", "point_evaluator", "replaying", "shown_examples")
    ),
    "evaluation/scoring",
    "evaluation/selection",
    "evaluation/sweeping/token_check",
    *(
        f"evaluation/{module}"
        for module in ("chrf", "metrics", "mismatches", "quality", "repetition", "rounds", "statistics", "timing")
    ),
]
"""Code that a row depends on. How the grid is written, and which of its points are timed, changes no row."""
_PLANNING = ("grid", "plan", "near", "sample", "seed_methods", "margins", "batch_sizes", "batch_examples")
"""Settings that select points or come after them, and do not change how a point is measured; its row stays valid.

Margins select points by bounds that the rows hold; their confidence changes the bounds and is part of the fingerprint.
"""


def sweep_seeds(params: Params, task: Task, paths: TaskPaths, drafter: str) -> tuple[list[SweepRow], list[PairRecord]]:
    """Sweep the drafter of each seed; folders of seeds that are no longer asked for are removed.

    Returns:
        The rows of all seeds, and what each sweep recorded of its pair.
    """
    first, *others = task.seeds
    for folder in paths.sweep(drafter, first).parent.glob("*"):
        if folder.name not in map(str, others):
            remove(folder)
    done, pair = sweep(params, task, paths, drafter, first)
    pairs = [pair]
    fewer = [entry for entry in task.sweep.grid if entry.method in task.sweep.seed_methods]
    task = task.model_copy(update={"sweep": dataclasses.replace(task.sweep, grid=fewer, sample=0)})
    for seed in others:
        rows, pair = sweep(params, task, paths, drafter, seed, first=False)
        done, pairs = done + rows, [*pairs, pair]
    return done, pairs


def sweep(
    params: Params, task: Task, paths: TaskPaths, drafter: str, seed: int, *, first: bool = True
) -> tuple[list[SweepRow], PairRecord]:
    """Measure the points that have no row yet, write rows.jsonl and pair.json, and record every point in MLflow.

    Args:
        params: The whole file.
        task: The task's part of it.
        paths: Its files.
        drafter: One of `paths.DRAFTERS`.
        seed: Which of its drafters.
        first: Whether this is the first seed, whose sweep is the main one.

    Returns:
        The rows of this grid, and what it recorded of the pair.
    """
    grid = expand(task.sweep.grid)
    model, other = paths.model(drafter, seed), None if first else seed
    loaded = load_pair(params, task, paths, model, grid)
    request = Request(task.text.max_target_tokens, task.sweep.sampling, task.sweep.seed)
    require_composable(grid, loaded.pair, request)
    evaluator = PointEvaluator(loaded.pair, loaded.tokenizer, task.metric, request, task.sweep, loaded.device)
    validation, test, *further = (
        Split(name, read_jsonl(paths.split(name)), loaded.tokenizer, task.text, task.sweep)
        for name in (CHOSEN_ON, REPORTED_ON, *paths.further_tests())
    )
    inputs = [*loaded.inputs, *(paths.split(split.name) for split in further)]
    origin = {name: value for name, value in lineage(inputs=list(map(str, inputs))).items() if not name.startswith("mlflow.")}
    work = work_fingerprint(params, task, loaded, origin)
    rows = SweepRowFile(paths.rows(drafter, other), work)
    measured_as = {"latency_examples": task.sweep.latency_examples, "seed": task.sweep.seed}
    settings = {"points": len(grid), **measured_as, "drafter_seed": seed}
    # The record is sent when it ends, inside the lock, so that nothing is sent during another sweep's timing.
    with timing_lock(loaded.device), SweepRecord(paths, drafter, loaded.described, settings, inputs, other) as record:
        acceptance, sizes = measure_pair(loaded, validation.sources, request, task, params.machine.dtype == "int8")
        training = read_training_record(model)
        pair = PairRecord(
            drafter=drafter,
            seed=seed,
            training=training,
            draft_vocabulary=loaded.draft_vocabulary,
            runtime=loaded.described,
            acceptance=acceptance,
            sizes=sizes,
            memory=pair_memory(loaded.pair, sizes, task.text.max_source_tokens, task.text.max_target_tokens),
        )
        record.pair(pair)
        writer = RowWriter(evaluator, rows, paths.task, drafter, record.point)
        cache = cache_folder(work, paths.resume(f"sweep-{drafter}-{seed}"))
        runner = SweepRunner(writer, cache)
        done = runner.validate(grid, validation)
        done += runner.report(done, grid, test)
        rows.compact()
        tested = measure_tests(further, writer, cache, done, grid, paths)
        by_batch = first and task.sweep.batch_sizes
        wanted = points_by_batch(done, grid, task.sweep.margins) if by_batch else []
        pair = dataclasses.replace(
            pair,
            batches=BatchTimer(evaluator, test).load_or_measure(wanted, cache) if by_batch else None,
            outputs=evaluator.check_vanilla(validation),
            misfit=misfit((text for example in validation.examples for text in example.references), task.metric),
            vanilla_scatter=vanilla_scatter(done, CHOSEN_ON),
            costs=None if writer.costs is None else writer.costs.record(),
            plan=runner.plan,
            margins=task.sweep.margins,
            lineage={**origin, "settings": _settings_record(params, task)},
            grid=[GridPoint(method=point.method, settings=point.row_settings) for point in grid],
        )
        record.pair(pair)
        written = write_pair(pair, paths.sweep(drafter, other) / "pair.json")
        kept = sorted(written.parent.glob("rows*.jsonl"))
        record.keep([*kept, written, *uploaded_hypotheses(written.parent)])
    return [*done, *tested], pair


def measure_tests(
    splits: Sequence[Split],
    main: RowWriter,
    cache: Path,
    done: Sequence[SweepRow],
    grid: Sequence[SweepPoint],
    paths: TaskPaths,
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
        rows = SweepRowFile(folder / paths.rows(main.drafter, test=split.name).name, work)
        writer = RowWriter(main.evaluator, rows, main.task, main.drafter, main.on_row, main.costs)
        found += SweepRunner(writer, cache).report(done, grid, split)
        rows.compact()
    return found


def _settings_record(params: Params, task: Task) -> dict[str, JsonValue]:
    return {"sweep": codec.encode(task.sweep), "machine": codec.encode(params.machine.alone())}


def work_fingerprint(params: Params, task: Task, loaded: LoadedPair, origin: Mapping[str, str]) -> str:
    """The fingerprint of everything that a row depends on, the hardware included, since times belong to one machine."""
    hardware = {name: value for name, value in origin.items() if name.startswith("host_")}
    measured_as = {name: value for name, value in vars(task.sweep).items() if name not in _PLANNING}
    how = {
        "confidence": task.sweep.margins.confidence,
        "metric": task.metric,
        "text": task.text,
        "machine": params.machine.alone(),
        "ran on": [loaded.described, hardware],
    }
    return fingerprint(measured_as | how, loaded.inputs, _CODE)


def cache_folder(work: str, folder: Path) -> Path:
    """The folder of cached predictions for this fingerprint; folders of other fingerprints are removed."""
    for other in folder.glob("*") if folder.is_dir() else ():
        if other.name != work:
            shutil.rmtree(other)
    return folder / work


def main() -> None:
    """Sweep the drafters of one arm, resuming an interrupted sweep; failed points are listed on standard error."""
    from tasks.config import load, task_parser

    parser = task_parser(__doc__)
    parser.add_argument("--drafter", required=True, choices=DRAFTERS)
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    done, pairs = sweep_seeds(params, params.task(arguments.task), paths, arguments.drafter)
    timed = sum(isinstance(row, TimedRow) for row in done)
    failed = [row for row in done if isinstance(row, FailedRow)]
    for row in failed:
        print(f"failed: {row.split} {row.method} {row.settings}: {row.error}", file=sys.stderr)
    counts = f"{len(done)} points, {timed} timed, {len(failed)} failed"
    print(f"{arguments.task}/{arguments.drafter}: {counts} ({pairs[0].runtime})")
    for pair in pairs:
        if pair.vanilla_scatter is not None:
            print(scatter_text(pair.vanilla_scatter, f"{arguments.drafter}, seed {pair.seed}"))
    if len(failed) == len(done):
        raise InputError(f"every point of the sweep failed; the first: {failed[0].error}")


if __name__ == "__main__":
    with stage():
        main()
