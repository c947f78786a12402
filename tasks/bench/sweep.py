"""Compares a planned sweep with an exhaustive one, which decodes and times every point of the same grid.

A plan that misses the frontier is worthless however cheap it is, and so is an exact replay that costs as much as
decoding. Both sweeps run here, one after the other, on the validation split of a trained task. Their running times, every
replayed quality and count, and the frontiers are compared.

Run `python -m tasks.bench sweep --task translation`. The last line is JSON: `cost_ratio` is the planned sweep's time over the
exhaustive one's, `same_frontier` tells whether the planned sweep reaches the exhaustive frontier (see `missed_share`), and
`prediction_error` is the mean error of the predicted speed-up of random points.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from tasks.bench.harness import Found, alone, finish, hardware, parse, parser_of
from tasks.config import load
from tasks.corpora.example import read_jsonl
from tasks.decoding.method import Request
from tasks.decoding.methods.baselines import VANILLA
from tasks.evaluation.results.files import SweepRowFile
from tasks.evaluation.results.rows import DecodingCounts, MeasuredRow, SweepRow, TimedRow
from tasks.evaluation.scoring.metrics import forget
from tasks.evaluation.selection import frontier, resolution, tradeoff_of
from tasks.evaluation.settings import CHOSEN_ON, GridSettings, SweepSettings
from tasks.evaluation.sweep.clock import PointTimer
from tasks.evaluation.sweep.grid import Drafter, SweepPoint, expand
from tasks.evaluation.sweep.replay import Split
from tasks.evaluation.sweep.rows import PointEvaluator, RowWriter
from tasks.evaluation.sweep.run import SweepRunner, TaskSweep, measured_costs, points_at
from tasks.loaded_pair import load_for_sweep
from tasks.paths import ARMS, TaskPaths

_RANGES = (
    *(("bild", "no_fallback"), ("bild", "no_rollback"), ("speculative", "windows"), ("speculative_lenient", "paper")),
    *(("speculative_cascade", rule) for rule in ("chow", "diff", "opt", "token_v3")),
    *(("token_cascade", "paper"), ("sequence_cascade", "paper")),
)
GRID = [
    GridSettings(method="bild", preset="translation", values={"fallback_threshold": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]}),
    *(GridSettings(method=method, preset=preset) for method, preset in _RANGES),
]
"""About two hundred points of the papers' ranges."""
_DRAFTER = Drafter("", 0)
QUICK = [GridSettings(method="speculative", preset="windows")]


def planned_and_whole(
    make: Callable[[bool], PointEvaluator], timer: PointTimer, split: Split, grid: Sequence[SweepPoint], folder: Path
) -> Found:
    """Run both sweeps and compare them.

    Args:
        make: Makes an evaluator that plans (True) or not (False) and shares no cache with another.
        timer: Times in this process, where its starts are not compared.
        split: The examples.
        grid: The points.
        folder: An empty folder, for their rows.

    Raises:
        InputError: a model cannot run.
    """
    found = {}
    for name, plan in (("planned", True), ("whole", False)):
        evaluator = make(plan)
        begun = time.monotonic()
        writer = RowWriter(evaluator, SweepRowFile(folder / f"{name}.jsonl", name), "", name)
        costs = measured_costs(folder / f"{name}.json", split, evaluator.request, lambda: timer) if plan else None
        runner = SweepRunner(_DRAFTER, writer, folder / "predictions", costs=costs)
        both = TaskSweep({_DRAFTER: runner}, {_DRAFTER: grid}, lambda: nullcontext(timer.lap))
        rows = both.validate(split)[_DRAFTER]
        found[name] = (rows, time.monotonic() - begun, both.plans[_DRAFTER])
    (planned, planned_seconds, how), (whole, whole_seconds, _) = found["planned"], found["whole"]
    assert how is not None  # noqa: S101 (the first sweep plans)
    apart = retiming(planned, whole)
    missed = missed_share(planned, whole, apart)
    differing = unequal(planned, whole)
    return {
        "cost_ratio": round(planned_seconds / whole_seconds, 4),
        "same_frontier": missed["points"] == 0,
        "prediction_error": how.prediction_error and round(how.prediction_error.mean, 4),
        "exact": differing == 0,
        "unequal": differing,
        "missed": missed,
        "retiming": round(apart, 4),
        "points": how.points,
        "distinct": how.distinct,
        "timed": how.timed,
        "planned_seconds": round(planned_seconds, 1),
        "replay_seconds": round(how.replay_seconds or 0.0, 1),
        "whole_seconds": round(whole_seconds, 1),
    }


def unequal(planned: Sequence[SweepRow], whole: Sequence[SweepRow]) -> int:
    """Number of points whose quality or counts differ between the two sweeps."""
    decoded = {point_name(row): _outcome(row) for row in whole}
    return sum(_outcome(row) != decoded[point_name(row)] for row in planned)


def _outcome(row: SweepRow) -> tuple[dict[str, float], DecodingCounts] | None:
    return (row.quality, row.counts) if isinstance(row, MeasuredRow) else None


def retiming(planned: Sequence[SweepRow], whole: Sequence[SweepRow]) -> float:
    """Mean relative difference between two timings of one point, over the points that both sweeps timed."""
    first, second = ({point_name(row): row.speedup for row in rows if isinstance(row, TimedRow)} for rows in (planned, whole))
    return statistics.fmean(abs(speedup / second[name] - 1) for name, speedup in first.items() if name in second)


def missed_share(planned: Sequence[SweepRow], whole: Sequence[SweepRow], apart: float = 0.0) -> Found:
    """How much of the exhaustive frontier the planned sweep missed.

    Speeds of both are taken from the exhaustive sweep, so that timing noise does not create a second frontier. A frontier point
    is missed if every planned point of its quality (within `frontier.resolution`) is slower than the lower end of its speed-up
    interval, and slower by a larger share than `apart`, the relative difference between two timings of one point (`retiming`).

    Returns:
        `frontier`: points of the frontier; `points`: missed ones; `mean` and `worst`: by which share the best planned point is
        slower.
    """
    measured = [(row, point) for row in whole if isinstance(row, TimedRow) and (point := tradeoff_of(row)) is not None]
    timed = {point_name(row) for row in planned if isinstance(row, TimedRow)}
    kept = [point for row, point in measured if point_name(row) in timed]
    curve = [measured[index] for index in frontier([point for _, point in measured])]
    vanilla = next(point.quality for row, point in measured if row.method == VANILLA)
    lags, missed = [], 0
    for row, point in curve:
        alike = [one.speedup for one in kept if one.quality >= point.quality - resolution(point.quality, vanilla)]
        reached = max(alike, default=0.0)
        lags.append(max(0.0, 1 - reached / point.speedup))
        lower = row.speedup if row.speedup_interval is None else row.speedup_interval[0]
        missed += reached < min(lower, point.speedup * (1 - apart))
    return {"frontier": len(curve), "points": missed, "mean": round(statistics.fmean(lags), 4), "worst": round(max(lags), 4)}


def point_name(row: SweepRow) -> str:
    """Method and settings, by which two sweeps are compared."""
    return json.dumps([row.method, row.settings], sort_keys=True)


def main(given: Sequence[str]) -> None:
    """Run both sweeps and print JSON.

    Raises:
        InputError: an option is out of bounds, or a model or split is missing.
    """
    parser = parser_of("sweep", __doc__)
    parser.add_argument("--task", required=True, help="a trained task of params.yaml")
    parser.add_argument("--arm", default="unaligned", choices=ARMS, help="default: %(default)s")
    arguments = parse(parser, given)
    params, paths = load(), TaskPaths(arguments.task)
    task = params.task(arguments.task)
    sweep: SweepSettings = task.sweep
    grid = points_at(sweep.sampling.temperature, expand(QUICK if arguments.quick else GRID))
    with contextlib.redirect_stdout(None):
        loaded = load_for_sweep(params, task, paths, paths.model(arguments.arm, task.seeds[0]), grid)
    timer = PointTimer({_DRAFTER: loaded.pair}, sweep, loaded.opened.device)
    request = Request(task.text.max_target_tokens, sweep.sampling, sweep.seed)

    def make(plan: bool) -> PointEvaluator:
        forget()
        planning = dataclasses.replace(sweep, plan=plan)
        return PointEvaluator(lambda: loaded.pair, loaded.opened.tokenizer, task.metric, request, planning)

    examples = read_jsonl(paths.split(CHOSEN_ON))[: 20 if arguments.quick else None]
    split = Split(CHOSEN_ON, examples, loaded.opened.tokenizer, task.text, sweep)
    result = {"task": arguments.task, "arm": arguments.arm, "runtime": loaded.pair.described, "examples": len(examples)}
    with tempfile.TemporaryDirectory() as folder, alone(loaded.opened.device, quick=arguments.quick):
        result |= planned_and_whole(make, timer, split, grid, Path(folder))
    finish({**hardware(), **result}, arguments.json)
