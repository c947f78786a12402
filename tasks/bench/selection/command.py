"""Show which rule of choice holds its level: choose on many draws of the validation split, and judge by the whole pool.

Why it exists: the fastest of many settings that seem to lose nothing loses something. A pool of fresh examples, decoded with
every setting of the grid, stands for all text. Validation and test are drawn from it again and again, each rule chooses,
and a choice violates its margin if it loses more than that on the whole pool.

`python -m tasks.bench selection --task translation` decodes the pool with the trained models (some ten minutes of one core
for 8,000 examples and 180 settings of each drafter), keeps it in `--pool FILE`, and simulates; a pool that exists is read
instead (a minute or two). The last line is JSON: for each rule, size of the validation split and margin the share of choices
that violate their margin (`violations`), the mean speed-up, and what the test split says; `violations` on top is the largest
of the rule that sweeps use.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from tasks.bench.selection.decoding import fresh_examples, make_pool
from tasks.bench.selection.pool import Pool, read_pool, save_pool
from tasks.bench.selection.rules import RULES
from tasks.bench.selection.simulation import simulate
from tasks.config import DEFAULT, load
from tasks.corpora.example import SPLITS, read_jsonl
from tasks.errors import InputError
from tasks.evaluation.settings import CHOICES
from tasks.evaluation.sweeping.grid import expand
from tasks.paths import DRAFTERS, TaskPaths
from tasks.schema import Params

_DEFAULT_RULE = "max_t"
_HEADINGS = (
    "rule",
    "validation",
    "margin",
    "violations",
    "violations_of_lossy",
    "lossless",
    "mean_speedup",
    "mean_loss",
    "worst_loss",
    "different",
)


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    found = argparse.ArgumentParser(
        prog="python -m tasks.bench selection", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--task", required=True, help="name of a task in params.yaml")
    found.add_argument("--params", type=Path, default=DEFAULT, help="parameter file (default: %(default)s)")
    found.add_argument("--pool", type=Path, metavar="FILE", help="read the pool from this file, or write it there (npz)")
    found.add_argument("--large", type=Path, metavar="FOLDER", help="the large model (default: the task's)")
    found.add_argument(
        "--drafter",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="a small model, any number of times (default: the task's drafters)",
    )
    found.add_argument("--examples", type=int, default=8000, help="fresh examples of the pool (default: %(default)s)")
    found.add_argument("--split", type=Path, metavar="FILE", help="take the pool's examples from this JSONL split instead")
    found.add_argument("--sizes", type=int, nargs="+", default=[400, 1000, 2000, 4000], help="sizes of validation")
    found.add_argument("--test", type=int, default=2000, help="size of test (default: %(default)s)")
    found.add_argument("--draws", type=int, default=200, help="draws of validation and test (default: %(default)s)")
    found.add_argument("--seed", type=int, default=1, help="of the draws (default: %(default)s)")
    found.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    return found


def load_or_make_pool(arguments: argparse.Namespace, params: Params) -> Pool:
    """The pool of `--pool`, or a new one, which is written there."""
    if arguments.pool is not None and arguments.pool.is_file():
        return read_pool(arguments.pool)
    task, paths = params.task(arguments.task), TaskPaths(arguments.task)
    embedded = task.corpus.embedded if task.corpus.source == "embedded" else None
    known = [paths.split(name) for name in SPLITS]
    examples = read_jsonl(arguments.split) if arguments.split else fresh_examples(embedded, arguments.examples, known)
    large = arguments.large or paths.model("large")
    pool = make_pool(params, task, large, _drafters(arguments.drafter, paths, task.seeds[0]), expand(task.sweep.grid), examples)
    if arguments.pool is not None:
        save_pool(pool, arguments.pool)
    return pool


def _drafters(given: Sequence[str], paths: TaskPaths, seed: int) -> dict[str, Path]:
    if not given:
        return {name: paths.model(name, seed) for name in DRAFTERS}
    found = dict(item.partition("=")[::2] for item in given)
    if not all(found.values()):
        raise InputError(f"--drafter takes NAME=FOLDER, not {next(item for item in given if '=' not in item)}")
    return {name: Path(folder) for name, folder in found.items()}


def result_of(pool: Pool, arguments: argparse.Namespace, params: Params) -> dict[str, object]:
    """Simulate, and gather what the last line holds."""
    margins = params.task(arguments.task).sweep.margins
    found = simulate(
        pool,
        sizes=arguments.sizes,
        test=arguments.test,
        margins=[margins.of(choice) for choice in CHOICES],
        alpha=1.0 - margins.confidence,
        draws=arguments.draws,
        seed=arguments.seed,
    )
    own = [float(str(row["violations"])) for row in found if row["rule"] == _DEFAULT_RULE and row["violations"] is not None]
    return {
        "task": arguments.task,
        "pool": {"examples": pool.examples, "settings": {arm.name: len(arm.labels) for arm in pool.arms}, **pool.about},
        "draws": arguments.draws,
        "test": arguments.test,
        "confidence": margins.confidence,
        "violations": max(own) if own else None,
        "simulations": found,
    }


def table(simulations: Sequence[dict[str, object]]) -> list[str]:
    """The simulations as aligned lines."""
    cells = [list(_HEADINGS)]
    cells += [["–" if row[name] is None else f"{row[name]}" for name in _HEADINGS] for row in simulations]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADINGS))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]


def main(given: Sequence[str]) -> None:
    """Print a table and, as the last line, JSON."""
    arguments = parser().parse_args(given)
    for name in ("examples", "test", "draws", *(["sizes"] if min(arguments.sizes) < 2 else [])):
        if name == "sizes" or getattr(arguments, name) < 1:
            raise InputError(f"--{name} is too small; it must be at least {2 if name == 'sizes' else 1}")
    params = load(arguments.params)
    params.task(arguments.task)
    result = result_of(load_or_make_pool(arguments, params), arguments, params)
    print(f"rules: {', '.join(RULES)}; a sweep uses {_DEFAULT_RULE}")
    for line in table(result["simulations"]):  # type: ignore[arg-type]
        print(line)
    text = json.dumps(result)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)
