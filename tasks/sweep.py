"""Stage `sweep`: the grid for one drafter, planned and timed on validation; what is chosen there measured on test.

`python -m tasks.sweep --task translation --drafter aligned`
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks import tracking
from tasks.config import Params, Task
from tasks.corpora.example import read_jsonl
from tasks.decoding.decoder import Rows
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.runtimes.opened import Runtime
from tasks.decoding.settings import TABLES, SamplingSettings
from tasks.decoding.strategies import Pair, Request, compose
from tasks.errors import InputError, stage
from tasks.evaluation.acceptance import measure_acceptance
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.operations import sizes_of
from tasks.evaluation.record import SweepRecord
from tasks.evaluation.rows import Row, RowFile, as_json
from tasks.evaluation.sweeping.grid import expand
from tasks.evaluation.sweeping.point_evaluator import PointEvaluator
from tasks.evaluation.sweeping.points import Split, SweepPoint
from tasks.evaluation.sweeping.row_writer import RowWriter
from tasks.evaluation.sweeping.runner import SweepRunner
from tasks.fingerprint import fingerprint
from tasks.machine import set_up, timing_lock
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_architectures, check_lengths, check_pair, vocabulary_size
from tasks.models.tokenizers import encode, load_tokenizer
from tasks.paths import DRAFTERS, TaskPaths

_CODE = [
    "decoding",
    "models",
    *(f"evaluation/sweeping/{module}" for module in ("costs", "point_evaluator", "points", "replaying")),
    *(f"evaluation/{module}" for module in ("quality", "statistics", "timing")),
]
"""What a row depends on; how the grid is written, and what of it is timed, changes no row."""
_PLANNING = ("grid", "plan", "near", "sample")
"""Settings that say which points are measured, not how: a row stands when they change."""
_SAMPLED = SamplingSettings(temperature=1.0)


def require_composable(grid: Iterable[SweepPoint], pair: Pair, request: Request) -> None:
    """Raises `InputError` for the first point that this pair cannot run, before any is measured."""
    for point in grid:
        try:
            compose(point.method, point.settings, pair, request)
        except InputError as error:
            raise InputError(f"sweep.grid asks for {point.method}: {error}") from None


def calibration_targets(grid: Sequence[SweepPoint], path: Path, tokenizer: Any, limit: int) -> Rows:
    """Target tokens of the calibration set, at most `limit` each, where some point drafts from tables; else none.

    Raises:
        InputError: there is no calibration set, or it is empty.
    """
    if not any(getattr(point.settings, "drafter", None) in TABLES for point in grid):
        return []
    examples = read_jsonl(path)
    if not examples:
        raise InputError(f"{path} is empty; run the stage calibrate again (dvc repro)")
    return encode(tokenizer, [example.references[0] for example in examples], limit)


@dataclasses.dataclass(frozen=True)
class LoadedPair:
    """A task's two models and its text, ready to be swept."""

    pair: Pair
    models: dict[str, Any]
    tokenizer: Any
    device: str
    inputs: list[Path]
    """Files and folders whose content a row depends on."""

    @property
    def described(self) -> str:
        """What the large model runs on."""
        return str(getattr(self.pair.large, "described", type(self.pair.large).__name__))


def load_pair(params: Params, task: Task, paths: TaskPaths, drafter: str, grid: Sequence[SweepPoint]) -> LoadedPair:
    """Loads the models, once for all points.

    Raises:
        InputError: a model is missing, or the two do not fit each other or the task.
    """
    device, dtype = set_up(params.machine)
    small, large = paths.model(DRAFTERS[drafter]), paths.model("large")
    tokenizer = load_tokenizer(large)
    check_pair(load_tokenizer(small), tokenizer, str(small), str(large))
    models = {name: load_model(folder, device, dtype) for name, folder in (("small", small), ("large", large))}
    check_architectures(models["small"], models["large"])
    for name, model in models.items():
        check_lengths(model, name, task.text)
    calibration = calibration_targets(grid, paths.calibration_set, tokenizer, task.text.max_target_tokens)
    runtime = Runtime.of(params.machine.runtime, params.machine.dtype)
    pair = open_pair(models["small"], models["large"], vocabulary_size(tokenizer, *models.values()), calibration, runtime)
    # The calibration set counts whether the grid has tables or not: a point that was measured stays measured.
    inputs = [small, large, paths.split(CHOSEN_ON), paths.split(REPORTED_ON), paths.calibration_set]
    return LoadedPair(pair, models, tokenizer, device.type, inputs)


def describe_pair(opened: LoadedPair, sources: Rows, request: Request, task: Task, int8: bool) -> Row:
    """What is of the two models, whatever the method: acceptance rates and sizes."""
    sweep = task.sweep
    acceptance = {}
    for name, sampling in (("greedy", SamplingSettings()), ("sampled", _SAMPLED)):
        try:
            found = measure_acceptance(
                *(opened.pair, sources, sampling, sweep.seed, request.max_new_tokens, sweep.quality_batch),
                samples=sweep.bootstrap_samples,
            )
        except RuntimeError:  # a model cannot be run: the baselines' rows will say why
            continue
        acceptance[name] = {**dataclasses.asdict(found), "temperature": sampling.temperature}
    sizes = {name: dataclasses.asdict(sizes_of(model, int8=int8)) for name, model in opened.models.items()}
    text = {"source_tokens": statistics.fmean(map(len, sources)), "shares_encoder": opened.pair.shares_encoder}
    return {"acceptance": acceptance, "sizes": {**sizes, **text}}


def sweep(params: Params, task: Task, paths: TaskPaths, drafter: str) -> tuple[list[Row], str]:
    """Measures what is not measured yet; writes rows.jsonl and pair.json, and records every point.

    Returns:
        The rows of this grid, and what the large model runs on.
    """
    grid = [SweepPoint(method, settings) for method, settings in expand(task.sweep.grid)]
    opened = load_pair(params, task, paths, drafter, grid)
    request = Request(task.text.max_target_tokens, task.sweep.sampling, task.sweep.seed)
    require_composable(grid, opened.pair, request)
    evaluator = PointEvaluator(opened.pair, opened.tokenizer, task.metric, request, task.sweep, opened.device)
    validation, test = (
        Split(name, read_jsonl(paths.split(name)), opened.tokenizer, task.text.max_source_tokens, task.sweep)
        for name in (CHOSEN_ON, REPORTED_ON)
    )
    lineage = {
        name: value
        for name, value in tracking.lineage(inputs=list(map(str, opened.inputs))).items()
        if not name.startswith("mlflow.")
    }
    work = work_fingerprint(params, task, opened, lineage)
    rows = RowFile(paths.rows(drafter), work)
    pair: Row = {"drafter": drafter, "runtime": opened.described}
    settings = {"points": len(grid), "latency_examples": task.sweep.latency_examples, "seed": task.sweep.seed}
    # The record ends, and sends what waits, when the machine is free for others again.
    with SweepRecord(paths, drafter, opened.described, settings, opened.inputs) as record, timing_lock(opened.device):
        pair |= describe_pair(opened, validation.sources, request, task, params.machine.dtype == "int8")
        record.pair(pair)
        writer = RowWriter(evaluator, rows, {"task": paths.task, "drafter": drafter}, record.point, record.quiet)
        runner = SweepRunner(writer, cache_folder(work, paths.resume(f"sweep-{drafter}")))
        done = runner.validate(grid, validation)
        done += runner.report(done, grid, test)
        noted = as_json({"sweep": dataclasses.asdict(task.sweep), "machine": dataclasses.asdict(params.machine.alone())})
        pair |= {
            "costs": None if writer.costs is None else writer.costs.as_json(),
            "plan": runner.planned or None,
            "lineage": {**lineage, "settings": noted},
            "grid": [point.fields() for point in grid],
        }
        record.pair(pair)
        record.keep([paths.rows(drafter), write_pair(pair, paths.rows(drafter).with_name("pair.json"))])
    return done, opened.described


def work_fingerprint(params: Params, task: Task, opened: LoadedPair, lineage: Mapping[str, str]) -> str:
    """The fingerprint of what a row depends on.

    A time is of the machine that it was taken on: rows that came from another one are measured anew.
    """
    hardware = {name: value for name, value in lineage.items() if name.startswith("host_")}
    measured_as = {name: value for name, value in vars(task.sweep).items() if name not in _PLANNING}
    how = {
        "metric": task.metric,
        "text": task.text,
        "machine": params.machine.alone(),
        "ran on": [opened.described, hardware],
    }
    return fingerprint(measured_as | how, opened.inputs, _CODE)


def cache_folder(work: str, folder: Path) -> Path:
    """Where readings are kept for this very work; those for other work are of no use, and removed."""
    for other in folder.glob("*") if folder.is_dir() else ():
        if other.name != work:
            shutil.rmtree(other)
    return folder / work


def write_pair(pair: Row, path: Path) -> Path:
    """Writes pair.json in one step."""
    partial = path.with_name(f".partial.{path.name}")
    partial.write_text(json.dumps(pair, ensure_ascii=False, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return partial.replace(path)


def main() -> None:
    """Reads `params.yaml` and the two models; appends rows, taking up an interrupted sweep where it stopped."""
    from tasks.config import load, task_parser

    parser = task_parser(__doc__)
    parser.add_argument("--drafter", required=True, choices=tuple(DRAFTERS))
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    done, described = sweep(params, params.task(arguments.task), paths, arguments.drafter)
    timed, failed = ([row for row in done if name in row] for name in ("speedup", "error"))
    counts = f"{len(done)} points, {len(timed)} timed, {len(failed)} failed"
    print(f"{arguments.task}/{arguments.drafter}: {counts} ({described})")
    if len(failed) == len(done):
        raise InputError(f"every point of the sweep failed; the first: {failed[0]['error']}")


if __name__ == "__main__":
    with stage():
        main()
