"""Compares ways of aligning a drafter at equal training time: how often each is accepted, and how much faster the pair becomes.

Why it exists: each paper's method is the best on its own data, with its own models and training time. This benchmark finds the
drafter that is accepted most often on your own task after the same training time, and whether it speeds up the pair. A training
loss says neither.

Run `python -m tasks.bench alignment --task translation` after `dvc repro`. It trains a drafter for every recipe and seed and
measures it on the test split. Each finished row is kept, so that a killed run resumes. The last line is JSON. Several commands
with `--train-only --threads 1` and other `--recipes` or `--seed-list` may run side by side; the same command without
`--train-only` then measures what they trained, and must run alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from tasks.bench.alignment.drafters import Comparison, train_drafter
from tasks.bench.alignment.measuring import DrafterEvaluation, measurement_fingerprint
from tasks.bench.alignment.recipes import NAMES, RECIPES, UNALIGNED, chosen
from tasks.bench.alignment.rows import DrafterRow, DrafterRowFile, TrainedRow
from tasks.bench.alignment.table import markdown, summarize
from tasks.config import Params, load
from tasks.errors import InputError
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.evaluation.results.codec import encode, joined
from tasks.fingerprint import fingerprint
from tasks.paths import CACHE
from tasks.training.loop import DivergedError

_SECONDS = 90.0
_SEEDS = 3
_R = TypeVar("_R", bound=TrainedRow)
_MEASURED_BY = ["bench/alignment/measuring", "evaluation", "decoding", "models"]


def trained_rows(comparison: Comparison, recipes: list[str], seeds: list[int]) -> Iterator[TrainedRow]:
    """Train the drafters that are not trained yet, and yield each one; a drafter whose training diverges is left out."""
    for recipe, seed in _runs(comparison, recipes, seeds):
        try:
            cost = train_drafter(comparison, recipe, seed)
        except DivergedError as error:
            print(f"{recipe}, seed {seed}: left out, {error}", flush=True)
            continue
        yield joined(TrainedRow, cost, recipe=recipe, seed=seed)


def measured_rows(comparison: Comparison, drafters: Iterable[TrainedRow]) -> Iterator[DrafterRow]:
    """Measure the drafters that are not measured yet, and yield the row of each one."""
    splits = [comparison.paths.split(name) for name in (CHOSEN_ON, REPORTED_ON)]
    rows = DrafterRowFile(comparison.out / "rows.jsonl", fingerprint({}, splits, _MEASURED_BY))
    for row in drafters:
        measured = measurement_fingerprint(comparison, comparison.work(row.recipe, row.seed))
        known = rows.find(row.recipe, row.seed, measured)
        if known is None:
            evaluation = DrafterEvaluation(comparison, comparison.folder(row.recipe, row.seed))
            with tempfile.TemporaryDirectory() as folder:
                known = rows.append(joined(DrafterRow, row, evaluation.measure(Path(folder)), measured=measured))
        yield known


def _runs(comparison: Comparison, recipes: list[str], seeds: list[int]) -> Iterator[tuple[str, int]]:
    """Yield all recipes of a seed before the next seed, so that an interrupted run has compared equal numbers of seeds."""
    for number, seed in enumerate(seeds):
        for recipe in recipes:
            if recipe == UNALIGNED:
                # It has no seed.
                if number == 0:
                    yield recipe, 0
            elif RECIPES[recipe].needs_logits and not comparison.has_logits():
                if number == 0:
                    print(f"{recipe}: left out, {comparison.paths.calibration} holds no logits (set calibrate.top_logits)")
            else:
                yield recipe, seed


def _described(row: TrainedRow) -> str:
    """Return a drafter as a line of text."""
    cost = "not trained" if row.training_seconds is None else f"{row.steps} steps in {row.training_seconds:.1f} s"
    rates = f", α {row.acceptance_rate:.3f}, greedy {row.acceptance_greedy:.3f}" if isinstance(row, DrafterRow) else ""
    return f"{row.recipe}, seed {row.seed}: {cost}{rates}"


def main(given: list[str]) -> None:
    """Print a line for each drafter, the tables, and JSON."""
    arguments = _parser().parse_args(given)
    params = load(arguments.params)
    params.task(arguments.task)
    recipes = chosen(arguments.recipes.split(","))
    seeds = _seeds(arguments)
    if not (math.isfinite(arguments.seconds) and arguments.seconds > 0):
        raise InputError(f"--seconds is {arguments.seconds}; it must be more than 0")
    out = arguments.out or CACHE / "alignment" / arguments.task
    comparison = Comparison(arguments.task, _on_threads(params, arguments.threads), arguments.seconds, out)
    comparison.require_trained()
    result: dict[str, object] = {"task": arguments.task, "seconds": arguments.seconds, "seeds": seeds}
    trained = trained_rows(comparison, recipes, seeds)
    if arguments.train_only:
        result["trained"] = [encode(row, omit_null=True) for row in _printed(trained)]
    elif rows := list(_printed(measured_rows(comparison, trained))):
        summary = summarize(rows)
        result |= {"vanilla_quality": rows[0].vanilla_quality, **summary.as_json()}
        table = markdown(summary)
        (out / "table.md").write_text(table + "\n", encoding="utf-8")
        print(f"\n{table}\n")
    text = json.dumps(result)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)


def _printed(rows: Iterable[_R]) -> Iterator[_R]:
    for row in rows:
        print(_described(row), flush=True)
        yield row


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench alignment", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, help="a task of params.yaml with a trained pair and a calibration set")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    parser.add_argument("--recipes", default=",".join(NAMES), help="names, separated by commas (default: %(default)s)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--seeds", type=int, default=_SEEDS, help="number of seeds: 1, 2, … (default: %(default)s)")
    group.add_argument("--seed-list", help="the seeds themselves, separated by commas")
    parser.add_argument(
        "--seconds", type=float, default=_SECONDS, help="training time of a drafter, without evaluations (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: machine.threads)")
    parser.add_argument("--train-only", action="store_true", help="train without measuring")
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


def _on_threads(params: Params, threads: int | None) -> Params:
    if threads is None:
        return params
    if threads < 1:
        raise InputError(f"--threads is {threads}; it must be at least 1")
    return params.model_copy(update={"machine": dataclasses.replace(params.machine, threads=threads)})
