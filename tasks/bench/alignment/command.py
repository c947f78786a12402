"""Ways of aligning a drafter at equal training time: how often each is accepted, and how fast it makes the pair.

Why it exists: every paper's method is the best on its own data, with its own models and for as long as it was trained. What
counts here is which drafter is accepted most on a task of one's own after the same time of training, and whether it makes the
pair faster; a training loss tells neither.

`python -m tasks.bench alignment --task translation`, after `dvc repro`. A drafter is trained for every recipe and seed, and
measured on the test split; each row is kept as it is done, so that a killed run goes on. The last line is JSON.
`--train-only`, with other `--recipes` or `--seed-list`, may run several times side by side, each on `--threads 1`; the same
command without it then measures, by itself, what was trained.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tasks.bench.alignment.drafters import Comparison, trained
from tasks.bench.alignment.measuring import DrafterEvaluation, work_of
from tasks.bench.alignment.recipes import NAMES, RECIPES, UNALIGNED, chosen
from tasks.bench.alignment.rows import Row, RowFile
from tasks.bench.alignment.table import markdown, summary
from tasks.config import Params, load
from tasks.errors import InputError
from tasks.evaluation.frontier import CHOSEN_ON, REPORTED_ON
from tasks.fingerprint import fingerprint
from tasks.paths import CACHE
from tasks.training.loop import DivergedError

_SECONDS = 90.0
_SEEDS = 3
_MEASURED_BY = ["bench/alignment/measuring", "evaluation", "decoding", "models"]


def compared(comparison: Comparison, recipes: list[str], seeds: list[int], *, measure: bool) -> list[Row]:
    """Trains what is not trained yet and, where `measure` says so, measures what is not measured yet.

    Returns:
        The rows of these recipes and seeds; without `measure`, what training took.
    """
    comparison.require_trained()
    paths = comparison.paths
    splits = [paths.split(name) for name in (CHOSEN_ON, REPORTED_ON)]
    rows = RowFile(comparison.out / "rows.jsonl", fingerprint({}, splits, _MEASURED_BY)) if measure else None
    found = []
    for recipe, seed in _runs(comparison, recipes, seeds):
        try:
            cost = trained(comparison, recipe, seed)
        except DivergedError as error:
            print(f"{recipe}, seed {seed}: left out, {error}", flush=True)
            continue
        row: Row = {"recipe": recipe, "seed": seed, **cost}
        found.append(row if rows is None else _measured(comparison, rows, row))
        print(_told(found[-1]), flush=True)
    return found


def _runs(comparison: Comparison, recipes: list[str], seeds: list[int]) -> Iterator[tuple[str, int]]:
    """All recipes of a seed before the next seed: a run that is cut short has compared like with like."""
    for number, seed in enumerate(seeds):
        for recipe in recipes:
            if recipe == UNALIGNED:
                # It has no seed.
                if number == 0:
                    yield recipe, 0
            elif RECIPES[recipe].changes.get("reference") == "stored" and not comparison.has_logits():
                if number == 0:
                    print(f"{recipe}: left out, {comparison.paths.calibration} holds no logits (set calibrate.top_logits)")
            else:
                yield recipe, seed


def _measured(comparison: Comparison, rows: RowFile, row: Row) -> Row:
    recipe, seed = row["recipe"], row["seed"]
    work = fingerprint(work_of(comparison, comparison.work(recipe, seed)), [], [])
    known = rows.find(recipe=recipe, seed=seed, measured=work)
    if known is not None:
        return known
    measuring = DrafterEvaluation(comparison, comparison.folder(recipe, seed))
    with tempfile.TemporaryDirectory() as folder:
        return rows.append({**row, "measured": work, **measuring.row(Path(folder))})


def _told(row: Row) -> str:
    cost = "as it is" if row["recipe"] == UNALIGNED else f"{row['steps']} steps in {row['training_seconds']:.1f} s"
    worth = f", α {row['acceptance_rate']:.3f}, greedy {row['acceptance_greedy']:.3f}" if "acceptance_rate" in row else ""
    return f"{row['recipe']}, seed {row['seed']}: {cost}{worth}"


def main(given: list[str]) -> None:
    """Prints a line a drafter, the tables, and JSON."""
    arguments = _parser().parse_args(given)
    params = load(arguments.params)
    params.task(arguments.task)
    recipes = chosen(arguments.recipes.split(","))
    seeds = _seeds(arguments)
    if not (math.isfinite(arguments.seconds) and arguments.seconds > 0):
        raise InputError(f"--seconds is {arguments.seconds}; it must be more than 0")
    out = arguments.out or CACHE / "alignment" / arguments.task
    comparison = Comparison(arguments.task, _on_threads(params, arguments.threads), arguments.seconds, out)
    rows = compared(comparison, recipes, seeds, measure=not arguments.train_only)
    result: dict[str, object] = {"task": arguments.task, "seconds": arguments.seconds, "seeds": seeds}
    if arguments.train_only:
        result["trained"] = rows
    elif rows:
        result |= {"vanilla_quality": rows[0]["vanilla_quality"], **summary(rows)}
        table = markdown(result)
        (out / "table.md").write_text(table + "\n", encoding="utf-8")
        print(f"\n{table}\n")
    text = json.dumps(result)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench alignment", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, help="a task of params.yaml whose pair is trained and calibrated")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    parser.add_argument("--recipes", default=",".join(NAMES), help="names with commas between them (default: %(default)s)")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--seeds", type=int, default=_SEEDS, help="how many seeds, from 1 (default: %(default)s)")
    group.add_argument("--seed-list", help="in their place: numbers with commas between them")
    parser.add_argument(
        "--seconds", type=float, default=_SECONDS, help="training time of a drafter, evaluations aside (default: %(default)s)"
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: machine.threads)")
    parser.add_argument("--train-only", action="store_true", help="measure nothing")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="drafters, rows and table (default: under .cache)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line there")
    return parser


def _seeds(arguments: argparse.Namespace) -> list[int]:
    if arguments.seed_list is None:
        if arguments.seeds < 1:
            raise InputError(f"--seeds is {arguments.seeds}; it must be at least 1")
        return list(range(1, arguments.seeds + 1))
    try:
        return list(dict.fromkeys(int(one) for one in arguments.seed_list.split(",")))
    except ValueError:
        raise InputError(f"--seed-list is {arguments.seed_list!r}; it must be whole numbers, as 1,2,3") from None


def _on_threads(params: Params, threads: int | None) -> Params:
    if threads is None:
        return params
    if threads < 1:
        raise InputError(f"--threads is {threads}; it must be at least 1")
    return params.model_copy(update={"machine": dataclasses.replace(params.machine, threads=threads)})
