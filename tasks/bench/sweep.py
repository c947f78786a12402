"""What planning a sweep saves, and whether it finds the same: one grid planned, and every point of it decoded and timed.

Why it exists: a plan that is cheaper and misses the frontier is worth nothing, and an exact replay that costs as much as
decoding is no use. Both sweeps are run here, one after the other, on the validation split of a trained task, and compared: the
time they took, every replayed quality and count with the decoded one, and the frontiers.

`python -m tasks.bench sweep --task translation`. The last line is JSON: `cost_ratio` is the planned sweep's time over the
other's, `same_frontier` whether what was planned reaches the whole frontier of everything (see `missed_share`),
`prediction_error` the mean error of the predicted speed-up of random points.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasks.config import load
from tasks.corpora.example import read_jsonl
from tasks.decoding.strategies import Request
from tasks.errors import InputError
from tasks.evaluation.frontier import CHOSEN_ON, VANILLA, Point, frontier, point_of, resolution
from tasks.evaluation.quality import forget
from tasks.evaluation.rows import Row, RowFile
from tasks.evaluation.settings import GridSettings, SweepSettings
from tasks.evaluation.sweeping import points as swept
from tasks.evaluation.sweeping.grid import expand
from tasks.evaluation.sweeping.point_evaluator import PointEvaluator
from tasks.evaluation.sweeping.points import Split
from tasks.evaluation.sweeping.row_writer import RowWriter
from tasks.evaluation.sweeping.runner import SweepRunner
from tasks.machine import timing_lock
from tasks.paths import DRAFTERS, TaskPaths
from tasks.sweep import LoadedPair, load_pair

_RANGES = (
    *(("bild", "no_fallback"), ("bild", "no_rollback"), ("speculative", "windows"), ("speculative_lenient", "paper")),
    *(("speculative_cascade", rule) for rule in ("chow", "diff", "opt", "token_v3")),
    *(("token_cascade", "paper"), ("sequence_cascade", "paper")),
)
GRID = [
    GridSettings(method="bild", preset="translation", values={"fallback_threshold": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]}),
    *(GridSettings(method=method, preset=preset) for method, preset in _RANGES),
]
"""Some two hundred points, of the papers' ranges."""


def planned_and_whole(
    opened: LoadedPair, make: Callable[[bool], PointEvaluator], split: Split, grid: Sequence[swept.SweepPoint], folder: Path
) -> dict[str, Any]:
    """Runs both sweeps and sets them against each other; their rows are left in `folder`.

    Args:
        opened: The models.
        make: A bench that plans, or does not, and remembers nothing of another.
        split: What is decoded.
        grid: The points.
        folder: Empty.

    Raises:
        InputError: a model cannot be run.
    """
    found = {}
    for name, plan in (("planned", True), ("whole", False)):
        evaluator = make(plan)
        with timing_lock(opened.device):
            begun = time.monotonic()
            writer = RowWriter(evaluator, RowFile(folder / f"{name}.jsonl", name), {"drafter": name})
            runner = SweepRunner(writer, folder / "notes")
            rows = runner.validate(grid, split)
            found[name] = (rows, time.monotonic() - begun, runner.planned)
    (planned, planned_seconds, how), (whole, whole_seconds, _) = found["planned"], found["whole"]
    if not how:
        raise InputError(f"nothing was planned: {planned[0].get('error', 'the models cannot be run')}")
    apart = retiming(planned, whole)
    missed = missed_share(planned, whole, apart)
    errors = how["prediction_error"]
    return {
        "cost_ratio": round(planned_seconds / whole_seconds, 4),
        "same_frontier": missed["points"] == 0,
        "prediction_error": round(errors["sample"]["mean"], 4) if "sample" in errors else None,
        "exact": unequal(planned, whole) == 0,
        "unequal": unequal(planned, whole),
        "missed": missed,
        "retiming": round(apart, 4),
        "points": how["points"],
        "distinct": how["distinct"],
        "timed": how["timed"],
        "planned_seconds": round(planned_seconds, 1),
        "replay_seconds": round(how["replay_seconds"], 1),
        "whole_seconds": round(whole_seconds, 1),
        "errors": errors,
    }


def unequal(planned: Sequence[Row], whole: Sequence[Row]) -> int:
    """Points whose quality or counts differ between the two."""
    decoded = {_name(row): row for row in whole}
    return sum(any(row.get(part) != decoded[_name(row)].get(part) for part in ("quality", "counts")) for row in planned)


def retiming(planned: Sequence[Row], whole: Sequence[Row]) -> float:
    """By which share two timings of one point differ here, in the mean over the points that both sweeps timed."""
    speedups = {_name(row): row["speedup"] for row in whole if "speedup" in row}
    twice = [(row["speedup"], speedups[_name(row)]) for row in planned if "speedup" in row and _name(row) in speedups]
    return statistics.fmean(abs(one / other - 1) for one, other in twice)


def missed_share(planned: Sequence[Row], whole: Sequence[Row], apart: float = 0.0) -> dict[str, Any]:
    """What of the whole frontier the planned sweep did not time, nor anything as good.

    Both are read by the times of the whole sweep, so that two timings of one point do not make two frontiers. A point of the
    frontier is missed where all that was timed of its quality (to `frontier.resolution`) is slower than the lower end of its
    interval, and by a larger share than `apart`, by which two timings of one point differ (`retiming`).

    Returns:
        `frontier`, its points; `points`, those missed; `mean` and `worst`, by which share the best that was timed is slower.
    """
    measured = {_name(row): row for row in whole if point_of(row) is not None}
    timed = {_name(row) for row in planned if "speedup" in row}
    names = list(measured)
    points = {name: point_of(measured[name]) for name in names}
    kept: list[Point] = [point for name in names if name in timed and (point := points[name]) is not None]
    curve = [names[index] for index in frontier(list(points.values()))]
    vanilla = next(point.quality for row in whole if row["method"] == VANILLA and (point := point_of(row)) is not None)
    lags, missed = [], 0
    for name in curve:
        point = points[name]
        if point is not None:
            alike = [one.speedup for one in kept if one.quality >= point.quality - resolution(point.quality, vanilla)]
            reached = max(alike, default=0.0)
            lags.append(max(0.0, 1 - reached / point.speedup))
            missed += reached < min(measured[name]["speedup_interval"][0], point.speedup * (1 - apart))
    return {
        "frontier": len(curve),
        "points": missed,
        "mean": round(statistics.fmean(lags), 4),
        "worst": round(max(lags), 4),
    }


def _name(row: Row) -> str:
    return json.dumps([row["method"], row["settings"]], sort_keys=True)


def main(given: Sequence[str]) -> None:
    """Prints JSON at the end."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench sweep", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, help="a trained task of params.yaml")
    parser.add_argument("--drafter", default="unaligned", choices=tuple(DRAFTERS), help="default: %(default)s")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    parser.add_argument("--own-grid", action="store_true", help="the task's grid in place of the papers' ranges")
    parser.add_argument("--rows", type=Path, metavar="FOLDER", help="an empty folder to leave the rows of both sweeps in")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line there")
    arguments = parser.parse_args(given)
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task = params.task(arguments.task)
    sweep: SweepSettings = task.sweep
    grid = [swept.SweepPoint(method, settings) for method, settings in expand(sweep.grid if arguments.own_grid else GRID)]
    with contextlib.redirect_stdout(None):
        opened = load_pair(params, task, paths, arguments.drafter, grid)
    request = Request(task.text.max_target_tokens, sweep.sampling, sweep.seed)

    def make(plan: bool) -> PointEvaluator:
        forget()
        planning = dataclasses.replace(sweep, plan=plan)
        return PointEvaluator(opened.pair, opened.tokenizer, task.metric, request, planning, opened.device)

    if arguments.rows is not None and arguments.rows.is_dir() and any(arguments.rows.iterdir()):
        raise InputError(f"--rows {arguments.rows} is not empty; name another folder")
    split = Split(CHOSEN_ON, read_jsonl(paths.split(CHOSEN_ON)), opened.tokenizer, task.text.max_source_tokens, sweep)
    result = {"task": arguments.task, "drafter": arguments.drafter, "runtime": opened.described}
    with tempfile.TemporaryDirectory() as folder:
        result |= planned_and_whole(opened, make, split, grid, Path(folder) if arguments.rows is None else arguments.rows)
    text = json.dumps(result)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)
