"""How fast training and labelling are here, beside `transformers` on the same model, text and machine.

Why it exists: aligning is paid for in training time, and a loop of one's own is worth keeping only where it is faster than the
one that everybody has. Ours is set against `Seq2SeqTrainer` at its fastest (grouped by the length that a short trial finds
best), each from the same fresh model, with the same optimiser, rate, batch size and clipping, in float32; what the large model
writes for the calibration set against `transformers.generate` at its fastest batch, after its tokens were seen to be the same.

`python -m tasks.bench training --task translation`, after `dvc repro`. The two loops take turns in one process, a chunk of
steps each; a ratio is the median of the rounds'. Both losses are printed: nothing may be skipped. The last line is JSON:
`train_over_trainer` is the large model's by the task's own optimiser, `calibrate_over_generate` the labelling's; above 1, ours
is faster. Peak memory and the seconds to the first step are measured in fresh processes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from tasks.bench.targets import hardware
from tasks.bench.training.adafactor import compare_adafactor
from tasks.bench.training.labelling import UnequalError, labelled
from tasks.bench.training.recipes import Recipe
from tasks.bench.training.startup import startup_seconds
from tasks.bench.training.worker import run_in_process
from tasks.config import Task, load
from tasks.errors import InputError
from tasks.locks import timing_lock
from tasks.paths import TaskPaths

_OPTIMIZERS = ("adafactor", "adamw")
_TRIALS = 3


def measured(arguments: argparse.Namespace, task: Task) -> dict[str, object]:
    """Run every part and print each line as soon as it is found.

    Raises:
        UnequalError: labels here are not what `generate` writes.
    """
    recipes = [
        Recipe(arguments.task, str(arguments.params), model, optimizer, arguments.threads)
        for model in arguments.models
        for optimizer in _ordered(getattr(task.finetune, model).optimizer)
    ]
    trained = {recipe.name: _trained(recipe, arguments.steps, arguments.rounds) for recipe in recipes}
    labels = labelled(arguments.task, str(arguments.params), arguments.threads, arguments.inputs, arguments.rounds)
    _say(
        f"labelling {labels['inputs']} inputs: {labels['ratio']:.2f} times as fast as generate ({labels['ours']:.0f} and "
        f"{labels['generate']:.0f} tokens/s, {labels['setting']}); {labels['differ']} of {labels['compared']} texts differ"
    )
    model = arguments.models[0]
    starts = {
        side: startup_seconds(side, arguments.task, str(arguments.params), model, _TRIALS) for side in ("ours", "trainer")
    }
    for side, parts in starts.items():
        _say(f"to the first step of {model}, {side}: " + ", ".join(f"{name} {taken:.1f} s" for name, taken in parts.items()))
    return {
        **hardware(),
        "task": arguments.task,
        "threads": arguments.threads,
        "train_over_trainer": trained[recipes[0].name]["ratio"],
        "calibrate_over_generate": labels["ratio"],
        "startup_seconds": starts["ours"]["all"],
        "trainer_startup_seconds": starts["trainer"]["all"],
        "training": trained,
        "labelling": labels,
        "startup": starts,
    }


def adafactors(arguments: argparse.Namespace) -> dict[str, object]:
    """Both implementations of Adafactor, by model."""
    found = {}
    for model in arguments.models:
        recipe = Recipe(arguments.task, str(arguments.params), model, "adafactor", arguments.threads)
        one = found[model] = compare_adafactor(recipe, arguments.steps, arguments.rounds)
        _say(
            f"{model}: a step takes {one['ours_ms']:.1f} ms with our Adafactor and {one['torch_ms']:.1f} ms with torch's: "
            f"{one['ratio']:.2f} times as fast ({one['quartiles'][0]:.2f} to {one['quartiles'][1]:.2f})"
        )
    return {**hardware(), "task": arguments.task, "threads": arguments.threads, "steps": arguments.steps, "adafactor": found}


def _ordered(own: str) -> list[str]:
    """The task's own optimiser first."""
    return sorted(_OPTIMIZERS, key=lambda name: name != own)


def _trained(recipe: Recipe, steps: int, rounds: int) -> dict[str, object]:
    trial: dict[str, float] = run_in_process("tried", recipe, steps=steps, rounds=_TRIALS)
    length = max(trial, key=lambda name: trial[name])
    found = run_in_process("compared", recipe, steps=steps, rounds=rounds, length=length)
    peaks = {name: run_in_process("peak", recipe, steps=steps, side=side)["mib"] for name, side in _sides(length).items()}
    first, last = zip(found["losses"]["ours"], found["losses"]["trainer"], strict=True)
    _say(
        f"{recipe.name}: {found['ratio']:.2f} times as fast as Trainer ({found['least']:.2f} to {found['most']:.2f}; "
        f"{found['ours']:.0f} and {found['trainer']:.0f} tokens/s, grouped by {length}); peak {peaks['ours']:.0f} and "
        f"{peaks['trainer']:.0f} MiB; loss {first[0]:.2f} to {last[0]:.2f} and {first[1]:.2f} to {last[1]:.2f}"
    )
    return {**found, "grouped_by": length, "tried": {name: round(one, 1) for name, one in trial.items()}, "peak_mib": peaks}


def _sides(length: str) -> dict[str, str]:
    return {"ours": "ours", "trainer": length}


def _say(line: str) -> None:
    """To a person, at once."""
    print(line, flush=True)


def _require(arguments: argparse.Namespace) -> None:
    """Raises `InputError` where there is nothing to measure, or nothing to measure with."""
    for name in ("steps", "rounds", "inputs"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name} is {getattr(arguments, name)}; it must be at least 1")
    if arguments.threads < 0:
        raise InputError(f"--threads is {arguments.threads}; it must be at least 0, which takes as many as torch finds")
    paths = TaskPaths(arguments.task)
    pair = () if arguments.adafactor else (paths.model("large"),)
    for path in (paths.split("train"), paths.tokenizer, *pair):
        if not path.exists():
            raise InputError(f"{path} is missing; run dvc repro, which makes it, before what is measured on it")
    if not arguments.adafactor and importlib.util.find_spec("accelerate") is None:
        raise InputError("accelerate is not installed, which Seq2SeqTrainer needs; pip install 'accelerate>=1.15,<2'")


def main(given: Sequence[str]) -> None:
    """Prints a line for each comparison, and JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="translation", help="a trained task of params.yaml (default: %(default)s)")
    parser.add_argument(
        "--model", dest="models", action="append", choices=("large", "small"), help="train this one alone (default: both)"
    )
    parser.add_argument("--steps", type=int, default=20, help="training steps of a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each side that count (default: %(default)s)")
    parser.add_argument("--inputs", type=int, default=1000, help="texts that are labelled a round (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: as many as torch finds (default: %(default)s)")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    parser.add_argument(
        "--adafactor",
        action="store_true",
        help="only compare this project's Adafactor with torch.optim.Adafactor(foreach=True)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line there")
    arguments = parser.parse_args(given)
    arguments.models = arguments.models or ["large", "small"]
    params = load(arguments.params)
    task = params.task(arguments.task)
    _require(arguments)
    with timing_lock("cpu"):
        try:
            found = adafactors(arguments) if arguments.adafactor else measured(arguments, task)
        except UnequalError as error:
            print(f"error: {error}", file=sys.stderr)
            raise SystemExit(1) from None
    text = json.dumps(found)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)
