"""Sweep one pair twice and compare the two: how well do speed-ups repeat, and do their intervals say so?

Why it exists: an interval that another sweep of the same models on the same machine leaves is no interval. Both sweeps run
here, one after the other, each with its own cost measurements and its own plan, on the validation split of a trained task.

Run `python -m tasks.bench repeat --task translation`. The last line is JSON: `disagreement` is the median relative difference
of the speed-ups of points that both sweeps timed (target 0.03), and `covered` the share of these points at which each sweep's
interval holds the other's speed-up (target 0.93). `vanilla_scatter` tells for each sweep whether the machine was steady.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tasks.bench.sweep import point_name
from tasks.config import load
from tasks.corpora.example import read_jsonl
from tasks.decoding.registry import Request
from tasks.errors import InputError
from tasks.evaluation.frontier import CHOSEN_ON, VANILLA
from tasks.evaluation.quality import forget
from tasks.evaluation.results.rows import SweepRow, SweepRowFile, TimedRow
from tasks.evaluation.rounds import scatter_text, vanilla_scatter
from tasks.evaluation.sweeping.grid import expand
from tasks.evaluation.sweeping.outputs import Split
from tasks.evaluation.sweeping.point_evaluator import PointEvaluator
from tasks.evaluation.sweeping.row_writer import RowWriter
from tasks.evaluation.sweeping.runner import SweepRunner
from tasks.loaded_pair import load_pair
from tasks.locks import timing_lock
from tasks.paths import DRAFTERS, TaskPaths


def agreement(first: Sequence[SweepRow], second: Sequence[SweepRow]) -> dict[str, object]:
    """Compare the speed-ups of the points that both sweeps timed; vanilla, whose speed-up is 1, is left out.

    Raises:
        InputError: the sweeps timed no point in common.
    """
    before, after = (
        {point_name(row): row for row in rows if isinstance(row, TimedRow) and row.method != VANILLA}
        for rows in (first, second)
    )
    pairs = [(row, after[name]) for name, row in before.items() if name in after]
    if not pairs:
        raise InputError("the two sweeps timed no point in common; widen the grid")
    differences = [abs(two.speedup / one.speedup - 1) for one, two in pairs]
    return {
        "points": len(pairs),
        "disagreement": round(statistics.median(differences), 4),
        "worst": round(max(differences), 4),
        "covered": round(statistics.fmean(_holds(one, two) and _holds(two, one) for one, two in pairs), 4),
        "half_width": round(statistics.median(_half_width(row) for pair in pairs for row in pair), 4),
    }


def _holds(one: TimedRow, other: TimedRow) -> bool:
    """Whether the interval of one row holds the speed-up of the other."""
    return one.speedup_interval is not None and one.speedup_interval[0] <= other.speedup <= one.speedup_interval[1]


def _half_width(row: TimedRow) -> float:
    """Of the interval, as a share of the speed-up."""
    low, high = row.speedup_interval or (row.speedup, row.speedup)
    return (high - low) / 2 / row.speedup


def main(given: Sequence[str]) -> None:
    """Run both sweeps; the last line printed is JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench repeat", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, help="a trained task of params.yaml")
    parser.add_argument("--drafter", default="aligned", choices=DRAFTERS, help="default: %(default)s")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    arguments = parser.parse_args(given)
    params, paths = load(arguments.params), TaskPaths(arguments.task)
    task = params.task(arguments.task)
    grid = expand(task.sweep.grid)
    with contextlib.redirect_stdout(None):
        loaded = load_pair(params, task, paths, paths.model(arguments.drafter, task.seeds[0]), grid)
    request = Request(task.text.max_target_tokens, task.sweep.sampling, task.sweep.seed)
    split = Split(CHOSEN_ON, read_jsonl(paths.split(CHOSEN_ON)), loaded.tokenizer, task.text, task.sweep)
    found = []
    for number in (1, 2):
        forget()
        evaluator = PointEvaluator(loaded.pair, loaded.tokenizer, task.metric, request, task.sweep, loaded.device)
        with tempfile.TemporaryDirectory() as folder, timing_lock(loaded.device):
            writer = RowWriter(evaluator, SweepRowFile(Path(folder, "rows.jsonl"), ""), arguments.task, arguments.drafter)
            found.append(SweepRunner(writer, Path(folder, "cache")).validate(grid, split))
        if scatter := vanilla_scatter(found[-1], CHOSEN_ON):
            print(f"sweep {number}: {scatter_text(scatter, arguments.drafter)}", flush=True)
    scatters = [scatter and round(scatter.share, 4) for scatter in (vanilla_scatter(rows, CHOSEN_ON) for rows in found)]
    result = {"task": arguments.task, "drafter": arguments.drafter, "runtime": loaded.described}
    text = json.dumps(result | agreement(*found) | {"vanilla_scatter": scatters})
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)
