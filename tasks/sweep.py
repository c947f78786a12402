"""Stage `sweep`: every point of the grid for one drafter, measured on validation; the chosen ones measured on test.

`python -m tasks.sweep --task translation --drafter aligned`
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tasks import tracking
from tasks.corpora.example import read_jsonl
from tasks.decoding.decoder import Rows
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.runtimes.opened import Runtime
from tasks.decoding.settings import TABLES, VanillaSettings
from tasks.decoding.strategies import Pair, Request, compose
from tasks.errors import InputError, stage
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON, choose_rows
from tasks.evaluation.measurements import point_metrics
from tasks.evaluation.measuring import VANILLA, Bench, Point, Split
from tasks.evaluation.rows import Row, RowFile
from tasks.evaluation.settings import SweepSettings
from tasks.fingerprint import fingerprint
from tasks.machine import set_up, timing_lock
from tasks.models.checkpoints import load_model
from tasks.models.pair import check_kinds, check_lengths, check_pair, vocabulary_of
from tasks.models.tokenizers import encode, load_tokenizer
from tasks.paths import DRAFTERS, TaskPaths

_BASELINES = [VANILLA, Point("vanilla_small", VanillaSettings())]
_MEASURING = [f"evaluation/{module}" for module in ("measuring", "quality", "statistics", "timing")]
_CODE = ["decoding", "models", *_MEASURING]


def run_points(points: Iterable[Point], split: Split, bench: Bench, rows: RowFile, labels: Row) -> list[Row]:
    """Measures the points that the row file does not hold yet; gives the rows of all of them."""
    done = []
    for point in tqdm(list(points), desc=f"sweep {labels['drafter']} {split.name}", unit="point"):
        found = rows.find(split=split.name, **point.fields())
        done.append(found or rows.append({**labels, **bench.row(point, split)}))
    return done


def chosen_points(rows: list[Row], points: list[Point]) -> list[Point]:
    """The points that the validation rows single out, each once."""
    chosen = [rows[index] for index in choose_rows(rows).values() if index is not None]
    named = [{"method": row["method"], "settings": row["settings"]} for row in chosen]
    return [point for point in points if point.fields() in named]


def shuffled(points: list[Point], seed: int) -> list[Point]:
    """An order that no method profits from."""
    return random.Random(seed).sample(points, len(points))  # noqa: S311 (an order, not a secret)


def require_composable(grid: Iterable[Point], pair: Pair, request: Request) -> None:
    """Raises `InputError` for the first point that this pair cannot run, before any is measured."""
    for point in grid:
        try:
            compose(point.method, point.settings, pair, request)
        except InputError as error:
            raise InputError(f"sweep.grid asks for {point.method}: {error}") from None


def calibration_targets(grid: Sequence[Point], path: Path, tokenizer: Any, limit: int) -> Rows:
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


def record(paths: TaskPaths, drafter: str, runtime: str, sweep: SweepSettings, rows: list[Row], inputs: list[str]) -> None:
    """One parent run for the sweep and one child run a point."""
    tags = {"kind": "sweep", "stage": "sweep", "drafter": drafter, "runtime": runtime}
    with tracking.Recorder(paths.task, f"sweep {drafter}", tags={**tags, **tracking.lineage(inputs=inputs)}) as parent:
        parent.log_params({"points": len(rows), "latency_examples": sweep.latency_examples, "seed": sweep.seed})
        for row in rows:
            settings = " ".join(f"{name}={value}" for name, value in row["settings"].items())
            parent.child(
                " ".join(part for part in (row["method"], drafter, settings, row["split"]) if part),
                tags={
                    **tags,
                    "kind": "point",
                    "method": row["method"],
                    "lossless": row["lossless"],
                    "split": row["split"],
                },
                params=row["settings"],
                metrics={} if "error" in row else point_metrics(row),
                status="FAILED" if "error" in row else "FINISHED",
            )
        parent.log_artifact(paths.rows(drafter))


def main() -> None:
    """Reads `params.yaml` and the two models; appends rows, taking up an interrupted sweep where it stopped."""
    from tasks.config import load, points, task_parser

    parser = task_parser(__doc__)
    parser.add_argument("--drafter", required=True, choices=tuple(DRAFTERS))
    arguments = parser.parse_args()
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task, drafter = params.task(arguments.task), arguments.drafter
    device, dtype = set_up(params.machine)
    small, large = paths.model(DRAFTERS[drafter]), paths.model("large")
    tokenizer = load_tokenizer(large)
    check_pair(load_tokenizer(small), tokenizer, str(small), str(large))
    models = {name: load_model(folder, device, dtype) for name, folder in (("small", small), ("large", large))}
    check_kinds(models["small"], models["large"])
    for name, model in models.items():
        check_lengths(model, name, task.text)
    grid = [Point(entry.method, settings) for entry in task.sweep.grid for settings in points(entry)]
    calibration = calibration_targets(grid, paths.calibration_set, tokenizer, task.text.max_target_tokens)
    runtime = Runtime.of(params.machine.runtime, params.machine.dtype)
    pair = open_pair(models["small"], models["large"], vocabulary_of(tokenizer, *models.values()), calibration, runtime)
    request = Request(task.text.max_target_tokens, task.sweep.sampling, task.sweep.seed)
    require_composable(grid, pair, request)
    bench = Bench(pair, tokenizer, task.metric, request, task.sweep, device.type)
    split = {
        name: Split(name, read_jsonl(paths.split(name)), tokenizer, task.text.max_source_tokens, task.sweep)
        for name in (CHOSEN_ON, REPORTED_ON)
    }
    # The calibration set counts whether the grid has tables or not, and the grid does not: a point that was measured stays
    # measured when others are added.
    files = [small, large, paths.split(CHOSEN_ON), paths.split(REPORTED_ON), paths.calibration_set]
    measured_as = {name: value for name, value in vars(task.sweep).items() if name != "grid"} | {
        "metric": task.metric,
        "text": task.text,
        "machine": params.machine,
    }
    rows = RowFile(paths.rows(drafter), fingerprint(measured_as, files, _CODE))
    labels = {"task": arguments.task, "drafter": drafter}
    with timing_lock(device.type):
        done = run_points([*_BASELINES, *shuffled(grid, task.sweep.seed)], split[CHOSEN_ON], bench, rows, labels)
        chosen = chosen_points(done, grid)
        done += run_points([*_BASELINES, *chosen], split[REPORTED_ON], bench, rows, labels)
    described = str(getattr(pair.large, "described", type(pair.large).__name__))
    record(paths, drafter, described, task.sweep, done, [str(file) for file in files])
    failed = [row for row in done if "error" in row]
    print(f"{arguments.task}/{drafter}: {len(done)} points measured, {len(failed)} failed ({described})")
    if len(failed) == len(done):
        raise InputError(f"every point of the sweep failed; the first: {failed[0]['error']}")


if __name__ == "__main__":
    with stage():
        main()
