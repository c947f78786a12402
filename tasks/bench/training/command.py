"""Compares the speed of training and labelling with `transformers` on the same model, text and machine.

Why it exists: alignment costs training time, and a training loop of our own is worth keeping only if it is faster than the one
in `transformers`. Our loop is compared with `Seq2SeqTrainer` at its fastest (grouped by the length that a short trial finds
best). Both start from the same fresh model and use the same optimiser, rate, batch size and clipping, in float32. Labelling is
compared with `transformers.generate` at its fastest batch size, after a check that both give the same tokens.

Run `python -m tasks.bench training --task translation` after `dvc repro`. The two loops alternate in one process, some steps
each in a round; the ratio is the median over rounds. The losses of both are printed as evidence that neither skips work. The
last line is JSON: `train_over_trainer` is the ratio for the large model with the task's own optimiser, and
`calibrate_over_generate` the ratio for labelling; above 1, ours is faster. Peak memory and the seconds to the first step are
measured in fresh processes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.bench.targets import hardware
from tasks.bench.training.labelling import UnequalError, compare_labelling
from tasks.bench.training.recipes import Recipe
from tasks.bench.training.startup import startup_seconds
from tasks.bench.training.worker import OURS, LoopComparison, run_in_process
from tasks.config import load
from tasks.errors import InputError
from tasks.locks import timing_lock
from tasks.paths import TaskPaths
from tasks.schema import Task

_OPTIMIZERS = ("adafactor", "adamw")
_TRIALS = 3


@dataclass(frozen=True, kw_only=True)
class TrainingComparison(LoopComparison):
    """Both loops on one model with one optimiser."""

    grouped_by: str
    """The length by which Trainer is fastest."""
    tried: dict[str, float]
    """Trainer's tokens per second by each length."""
    peak_mib: dict[str, float]
    """Peak memory by contender."""


def measure_all(arguments: argparse.Namespace, task: Task) -> dict[str, object]:
    """Run every comparison and print each line as soon as it is measured.

    Raises:
        UnequalError: labelling and `generate` give different tokens.
    """
    recipes = [
        Recipe(arguments.task, str(arguments.params), model, optimizer, arguments.threads)
        for model in arguments.models
        for optimizer in _ordered(getattr(task.finetune, model).optimizer)
    ]
    trained = {recipe.name: _compare_loops(recipe, arguments.steps, arguments.rounds) for recipe in recipes}
    labels = compare_labelling(arguments.task, str(arguments.params), arguments.threads, arguments.inputs, arguments.rounds)
    _say(
        f"labelling {labels.inputs} inputs: {labels.ratio:.2f} times as fast as generate ({labels.ours:.0f} and "
        f"{labels.generate:.0f} tokens/s, {labels.setting}); {labels.differ} of {labels.compared} texts differ"
    )
    model = arguments.models[0]
    starts = {
        name: startup_seconds(name, arguments.task, str(arguments.params), model, _TRIALS) for name in ("ours", "trainer")
    }
    for contender, parts in starts.items():
        _say(
            f"to the first step of {model}, {contender}: " + ", ".join(f"{name} {taken:.1f} s" for name, taken in parts.items())
        )
    return {
        **hardware(),
        "task": arguments.task,
        "threads": arguments.threads,
        "train_over_trainer": trained[recipes[0].name].ratio,
        "calibrate_over_generate": labels.ratio,
        "startup_seconds": starts["ours"]["all"],
        "trainer_startup_seconds": starts["trainer"]["all"],
        "training": {name: asdict(one) for name, one in trained.items()},
        "labelling": asdict(labels),
        "startup": starts,
    }


def _ordered(own: str) -> list[str]:
    """Return both optimisers, the task's own first."""
    return sorted(_OPTIMIZERS, key=lambda name: name != own)


def _compare_loops(recipe: Recipe, steps: int, rounds: int) -> TrainingComparison:
    trial = run_in_process(dict[str, float], "tried", recipe, steps=steps, rounds=_TRIALS)
    length = max(trial, key=lambda name: trial[name])
    found = run_in_process(LoopComparison, "compared", recipe, steps=steps, rounds=rounds, length=length)
    contenders = {"ours": OURS, "trainer": length}
    peaks = {
        name: run_in_process(float, "peak", recipe, steps=steps, contender=contender) for name, contender in contenders.items()
    }
    first, last = zip(found.losses["ours"], found.losses["trainer"], strict=True)
    _say(
        f"{recipe.name}: {found.ratio:.2f} times as fast as Trainer ({found.least:.2f} to {found.most:.2f}; "
        f"{found.ours:.0f} and {found.trainer:.0f} tokens/s, grouped by {length}); peak {peaks['ours']:.0f} and "
        f"{peaks['trainer']:.0f} MiB; loss {first[0]:.2f} to {last[0]:.2f} and {first[1]:.2f} to {last[1]:.2f}"
    )
    tried = {name: round(one, 1) for name, one in trial.items()}
    return TrainingComparison(**asdict(found), grouped_by=length, tried=tried, peak_mib=peaks)


def _say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def _require(arguments: argparse.Namespace) -> None:
    """Raise `InputError` if an option is out of bounds, or a file or package is missing."""
    for name in ("steps", "rounds", "inputs"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name} is {getattr(arguments, name)}; it must be at least 1")
    if arguments.threads < 0:
        raise InputError(f"--threads is {arguments.threads}; it must be at least 0 (0 uses torch's default)")
    paths = TaskPaths(arguments.task)
    for path in (paths.split("train"), paths.tokenizer, paths.model("large")):
        if not path.exists():
            raise InputError(f"{path} is missing; make it by dvc repro")
    if importlib.util.find_spec("accelerate") is None:
        raise InputError("accelerate is not installed, but Seq2SeqTrainer needs it; pip install 'accelerate>=1.15,<2'")


def main(given: Sequence[str]) -> None:
    """Print a line for each comparison, and JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="translation", help="a trained task of params.yaml (default: %(default)s)")
    parser.add_argument(
        "--model", dest="models", action="append", choices=("large", "small"), help="train only this model (default: both)"
    )
    parser.add_argument("--steps", type=int, default=20, help="steps of each contender in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds (default: %(default)s)")
    parser.add_argument("--inputs", type=int, default=1000, help="texts to label in each round (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's default (default: %(default)s)")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    arguments = parser.parse_args(given)
    arguments.models = arguments.models or ["large", "small"]
    params = load(arguments.params)
    task = params.task(arguments.task)
    _require(arguments)
    with timing_lock("cpu"):
        try:
            found = measure_all(arguments, task)
        except UnequalError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(1) from None
    text = json.dumps(found)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)
