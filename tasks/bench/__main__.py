"""Decoding speed compared with `transformers.generate` and CTranslate2 on the same weights and inputs, in one run.

Why it exists: a speed-up counts only against a baseline that is no slower than what everybody can install. A small model drafts
in vain where step overhead dominates, and any method looks good beside a slow vanilla. Every result of this project is a ratio
to vanilla decoding, so vanilla is compared with both baselines, one text at a time and in batches; the drafter and the methods
are compared with their counterparts in `generate`. All contenders run interleaved in one process, each at the fastest setting
that a short trial finds, and only after their tokens were found equal.

`python -m tasks.bench` times random weights of three shapes; `--task translation`, after `make repro`, adds the trained pair,
the only case in which BiLD is meaningful. The last line is JSON; a ratio above 1 means that decoding here is faster.

Other benchmarks, each with `--task translation`:

- `python -m tasks.bench sweep` measures what planning a sweep saves;
- `python -m tasks.bench serving` loads a served pair beside other servers of its large model;
- `python -m tasks.bench training` compares training and labelling with `transformers.Seq2SeqTrainer` and `generate`;
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tasks.bench import ctranslate, sweep
from tasks.bench.cases import Case, LoadedCase, random_case
from tasks.bench.contenders import thread_counts
from tasks.bench.formats import number_formats
from tasks.bench.limits import limit_lines, measure_limits
from tasks.bench.measuring import CaseResult, UnequalError, measure_case
from tasks.bench.serving import command as serving
from tasks.bench.shapes import SHAPES, Shape
from tasks.bench.targets import as_json, case_lines, check_targets, target_lines
from tasks.bench.timing import Found
from tasks.bench.trained import Validation, trained_case
from tasks.bench.training import command as training
from tasks.config import load
from tasks.errors import InputError, stage
from tasks.evaluation.timing import on_threads
from tasks.lineage import lineage
from tasks.locks import timing_lock
from tasks.schema import Params

_ROUNDS = 9


def bench(
    shapes: tuple[Shape, ...], task: str | None, params: Params | None, threads: int, rounds: int
) -> tuple[list[CaseResult], Found]:
    """Measure the machine's limits, every shape and the trained pair of a task, and print each as it is done.

    Args:
        shapes: Random pairs to time.
        task: A task of `params` whose trained pair is timed as well; None for none. An untrained task is skipped.
        params: Settings of the task.
        threads: CPU threads.
        rounds: Timed rounds of each case.

    Returns:
        The cases, and `limits.measure_limits`.

    Raises:
        UnequalError: decoding here generated other tokens than a baseline.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if ctranslate.version() is None:
        say("CTranslate2 is not installed, so its ratios are left out (pip install 'ctranslate2>=4.8,<5')")
    results = []
    with tempfile.TemporaryDirectory() as folder, ctranslate.all_environments() as translators, timing_lock("cpu"):
        limits = measure_limits(thread_counts(threads))
        say(f"\nlimits of this machine ({lineage().get('host_cpu')})")
        for line in limit_lines(limits):
            say(line)
        for make_case in _cases(shapes, task, params, Path(folder)):
            case = make_case()
            if case is None:
                say(f"\n{task}: not trained yet, so BiLD is not timed (run make repro)")
                continue
            say(f"\n{case.name}")
            loaded = LoadedCase(case)
            validation = None if case.bild is None or task is None or params is None else Validation(task, params)
            with on_threads(threads):
                result = measure_case(loaded, translators, threads, rounds, say)
                quality = None if validation is None else validation.quality_alone
                result.formats = number_formats(loaded, translators, threads, rounds, quality)
                if validation is not None and case.bild is not None:
                    settings = " ".join(f"{name}={value}" for name, value in case.bild.items())
                    result.bild = {"settings": settings, "from": case.bild_from, "quality": validation.bild(loaded)}
            results.append(result)
            for line in case_lines(result):
                say(line)
    return results, limits


def _cases(
    shapes: tuple[Shape, ...], task: str | None, params: Params | None, folder: Path
) -> Iterator[Callable[[], Case | None]]:
    for shape in shapes:
        yield partial(random_case, shape, folder)
    if task is not None and params is not None:
        yield partial(trained_case, task, params, folder)


def say(line: str) -> None:
    """Print a line and flush it."""
    print(line, flush=True)


def main(shapes: tuple[Shape, ...] = SHAPES, given: list[str] | None = None) -> None:
    """Print a table for each case, the targets, and JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", help="also time the trained pair of this task of params.yaml")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="timed rounds of each case (default: %(default)s)")
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="CPU threads; every contender is tried on all cores as well (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    arguments = parser.parse_args(given)
    for name in ("rounds", "threads"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name} is {getattr(arguments, name)}; it must be at least 1")
    params = load(arguments.params) if arguments.task else None
    if params is not None:
        params.task(arguments.task)
    try:
        results, limits = bench(shapes, arguments.task, params, arguments.threads, arguments.rounds)
    except UnequalError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    checks = check_targets(results, arguments.task)
    say("")
    for line in target_lines(checks):
        say(line)
    text = json.dumps(as_json(results, checks, limits, arguments.threads, arguments.rounds))
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    with stage():
        kinds = {
            "sweep": sweep.main,
            "training": training.main,
            "serving": serving.main,
        }
        if sys.argv[1:2] and sys.argv[1] in kinds:
            kinds[sys.argv[1]](sys.argv[2:])
        else:
            main()
