"""Compares ways of training a drafter by what a sweep uses: the speed of greedy BiLD at kept quality, on validation.

Why it exists: each paper's method is the best on its own data, with its own models and training time, and an aligned drafter is
easily better than one that was merely trained for less. This benchmark trains a drafter for every recipe and seed from the same
starts, the control that learns from references included, for equal steps and for equal time, and names the default by the rule
of docs/alignment.md, which was written before the run.

Run `python -m tasks.bench alignment --task translation` after `dvc repro`. Each finished drafter is kept, so that a killed run
resumes. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.bench.alignment.criterion import MARGIN, fastest_kept
from tasks.bench.alignment.drafters import Comparison
from tasks.bench.alignment.equal_time import steps_in_equal_time
from tasks.bench.alignment.measuring import cost_model
from tasks.bench.alignment.recipes import NAMES, chosen
from tasks.bench.alignment.rows import DrafterRow, Run
from tasks.bench.alignment.summary import BUDGETS, Summary, TestResult, numbers_of, summarize, summarize_test, to_test
from tasks.bench.alignment.table import markdown
from tasks.bench.alignment.work import finished_rows, tested_point
from tasks.config import load
from tasks.errors import InputError
from tasks.evaluation.frontier import CHOSEN_ON
from tasks.evaluation.results.codec import encode
from tasks.evaluation.sweeping.costs import Costs
from tasks.lineage import lineage
from tasks.machine import set_up
from tasks.paths import CACHE
from tasks.schema import Params

_SEEDS = 3
_EXAMPLES = 1000


def steps_of(comparison: Comparison, recipes: Sequence[str], budget: str, seed: int) -> dict[str, int]:
    """Return the steps of each recipe: those of the control, or for the budget `time` as many as take the control's time."""
    if budget == "steps":
        return dict.fromkeys(recipes, comparison.steps)
    return {recipe: steps_in_equal_time(comparison, recipe, seed) for recipe in recipes}


def train_and_measure(comparison: Comparison, runs: Sequence[Run], costs: Costs, processes: int) -> dict[Run, DrafterRow]:
    """Return the row of each drafter, and print a line for each; a drafter whose training diverges is left out."""
    rows = {}
    for number, (run, row) in enumerate(finished_rows(comparison, runs, costs, processes), start=1):
        if isinstance(row, str):
            described = f"left out, {row}"
        else:
            rows[run] = row
            numbers = numbers_of(row)
            described = f"BiLD {numbers['bild_speedup']:.3f}×, greedy agreement {row.acceptance_greedy:.3f}"
            described += f", {row.training_seconds:.1f} s of training"
        print(f"{number} of {len(runs)}: {run.recipe}, seed {run.seed}, {run.steps} steps: {described}", flush=True)
    return rows


def test(
    comparison: Comparison, summary: Summary, steps: Mapping[str, int], rows: Mapping[Run, DrafterRow], costs: Costs
) -> list[TestResult]:
    """Measure the default and its control on test, each seed at the thresholds that validation chose for it."""
    results = []
    for recipe in to_test(summary):
        points = {}
        for run, row in sorted(rows.items()):
            if (run.recipe, run.steps) == (recipe, steps[recipe]):
                kept = fastest_kept(row.points)
                points[run.seed] = None if kept is None else tested_point(comparison, run, costs, kept)
        results.append(summarize_test(recipe, points))
    return results


def main(given: list[str]) -> None:
    """Print a line for each drafter, the tables, and JSON."""
    begun = time.monotonic()
    arguments = _parser().parse_args(given)
    params = load(arguments.params)
    params.task(arguments.task)
    comparison = _comparison(arguments, params)
    seeds = _seeds(arguments)
    comparison.require_trained()
    recipes = _possible(comparison, chosen(arguments.recipes.split(",")))
    budgets = BUDGETS if arguments.budget == "both" else (arguments.budget,)
    costs = cost_model(comparison, CHOSEN_ON)
    steps = {budget: steps_of(comparison, recipes, budget, seeds[0]) for budget in budgets}
    runs = sorted({Run(seed, recipe, count) for one in steps.values() for recipe, count in one.items() for seed in seeds})
    rows = train_and_measure(comparison, runs, costs, _processes(arguments, params))
    if not rows:
        raise InputError("the training of every drafter diverged; lower align.learning_rate in params.yaml")
    summary = summarize(steps, rows)
    tested = test(comparison, summary, steps[budgets[0]], rows, costs)
    table = markdown(summary, tested)
    (comparison.out / "table.md").write_text(table + "\n", encoding="utf-8")
    print(f"\n{table}\n")
    result = {
        "task": arguments.task,
        "seeds": seeds,
        "steps": comparison.steps,
        "examples": comparison.examples,
        "margin": MARGIN,
        "machine": {name: value for name, value in lineage().items() if name.startswith("host_")},
        "costs": encode(costs.record(), omit_null=True),
        "vanilla_quality": next(iter(rows.values())).vanilla_quality,
        **encode(summary),
        "test": [encode(one) for one in tested],
        "seconds": round(time.monotonic() - begun, 1),
    }
    text = json.dumps(result)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)


def _comparison(arguments: argparse.Namespace, params: Params) -> Comparison:
    for option, value in (("--steps", arguments.steps), ("--processes", arguments.processes)):
        if value is not None and value < 1:
            raise InputError(f"{option} is {value}; it must be at least 1")
    if arguments.examples < 2:
        raise InputError(f"--examples is {arguments.examples}; it must be at least 2")
    # On one thread training is timed by processor time, which other processes lengthen little.
    machine = dataclasses.replace(params.machine, threads=1)
    steps = arguments.steps or params.task(arguments.task).align.steps
    out = arguments.out or CACHE / "alignment" / arguments.task
    return Comparison(arguments.task, params.model_copy(update={"machine": machine}), steps, arguments.examples, out)


def _possible(comparison: Comparison, recipes: Sequence[str]) -> list[str]:
    """Return the recipes that the calibration set has the texts for, and print why others are left out."""
    missing = {recipe: comparison.missing(recipe) for recipe in recipes}
    for recipe, what in missing.items():
        if what:
            print(f"{recipe}: left out, {what}", flush=True)
    possible = [recipe for recipe in recipes if not missing[recipe]]
    if not possible:
        raise InputError("no recipe is left to compare; run the stage calibrate again with calibrate.top_logits set")
    return possible


def _processes(arguments: argparse.Namespace, params: Params) -> int:
    """As many as the CPU has cores; a GPU trains one drafter at a time."""
    if arguments.processes is not None:
        return int(arguments.processes)
    return len(os.sched_getaffinity(0)) if set_up(params.machine)[0].type == "cpu" else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench alignment", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, help="a task of params.yaml with a trained pair and a calibration set")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    parser.add_argument("--recipes", default=",".join(NAMES), help="names, separated by commas (default: %(default)s)")
    parser.add_argument("--budget", choices=(*BUDGETS, "both"), default="both", help="what is equal (default: %(default)s)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--seeds", type=int, default=_SEEDS, help="number of seeds: 1, 2, … (default: %(default)s)")
    group.add_argument("--seed-list", help="the seeds themselves, separated by commas")
    parser.add_argument("--steps", type=int, help="steps of the control (default: the task's align.steps)")
    parser.add_argument(
        "--examples", type=int, default=_EXAMPLES, help="examples of validation and of test, at most (default: %(default)s)"
    )
    parser.add_argument("--processes", type=int, help="drafters trained at the same time (default: one for each core)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder of drafters, rows and table (default: under .cache)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    return parser


def _seeds(arguments: argparse.Namespace) -> list[int]:
    if arguments.seed_list is None:
        if arguments.seeds < 1:
            raise InputError(f"--seeds is {arguments.seeds}; it must be at least 1")
        return list(range(1, arguments.seeds + 1))
    try:
        return list(dict.fromkeys(int(one) for one in arguments.seed_list.split(",")))
    except ValueError:
        raise InputError(f"--seed-list is {arguments.seed_list!r}; it must be whole numbers, such as 1,2,3") from None
