"""How fast decoding is here, beside `transformers.generate` and CTranslate2 on the same weights and inputs, in one run.

Why it exists: a speed-up is worth something only against a baseline that is no slower than what everybody has. A small model
drafts for a large one in vain where most of the time is the overhead of a step, and a method looks good beside a slow vanilla.
So vanilla decoding, which every result of this project is a ratio of, is set against the two, alone and in batches; then what
one drafts with, and the methods themselves, against what `generate` has in their place. All in one run, interleaved, everybody
at the fastest setting that a short trial finds, only after the tokens were seen to be the same.

`python -m tasks.bench` times random weights of three shapes; with `--task translation`, after `make repro`, the trained pair as
well, on which alone BiLD means anything. The last line is JSON; ratios are above 1 where decoding here is faster.
`python -m tasks.bench sweep --task translation` shows what planning a sweep saves, `python -m tasks.bench alignment --task
translation` what ways of aligning the drafter are worth at equal training time, and `python -m tasks.bench training --task
translation` how fast training and labelling are beside `transformers.Seq2SeqTrainer` and `generate`.
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
from tasks.bench.alignment import command as alignment
from tasks.bench.cases import Case, LoadedCase, random_case
from tasks.bench.formats import number_formats
from tasks.bench.measuring import CaseResult, UnequalError, measure_case
from tasks.bench.shapes import SHAPES, Shape
from tasks.bench.targets import as_json, case_lines, check_targets, target_lines
from tasks.bench.trained import Validation, trained_case
from tasks.bench.training import command as training
from tasks.config import Params, load
from tasks.errors import InputError, stage
from tasks.evaluation.timing import on_threads
from tasks.machine import timing_lock

_ROUNDS = 9


def bench(shapes: tuple[Shape, ...], task: str | None, params: Params | None, threads: int, rounds: int) -> list[CaseResult]:
    """Measures every shape and, where a task is given and trained, its pair; prints what it finds.

    Raises:
        UnequalError: decoding here gave other tokens than it must.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if ctranslate.version() is None:
        say("CTranslate2 is not installed: nothing is compared with it (pip install 'ctranslate2>=4.8,<5')")
    results = []
    with tempfile.TemporaryDirectory() as folder, ctranslate.all_environments() as translators, timing_lock("cpu"):
        for make in _cases(shapes, task, params, Path(folder)):
            case = make()
            if case is None:
                say(f"\n{task}: not trained yet, so BiLD is not timed (make repro)")
                continue
            say(f"\n{case.name}")
            opened = LoadedCase(case)
            validation = None if case.bild is None or task is None or params is None else Validation(task, params)
            with on_threads(threads):
                result = measure_case(opened, translators, threads, rounds, say)
                result.formats = number_formats(opened, rounds, None if validation is None else validation.alone)
                if validation is not None and case.bild is not None:
                    settings = " ".join(f"{name}={value}" for name, value in case.bild.items())
                    result.bild = {"settings": settings, "from": case.bild_from, "quality": validation.bild(opened)}
            results.append(result)
            for line in case_lines(result):
                say(line)
    return results


def _cases(
    shapes: tuple[Shape, ...], task: str | None, params: Params | None, folder: Path
) -> Iterator[Callable[[], Case | None]]:
    for shape in shapes:
        yield partial(random_case, shape, folder)
    if task is not None and params is not None:
        yield partial(trained_case, task, params, folder)


def say(line: str) -> None:
    """To a person, at once."""
    print(line, flush=True)


def main(shapes: tuple[Shape, ...] = SHAPES, given: list[str] | None = None) -> None:
    """Prints a table a case, the targets, and JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", help="a task of params.yaml whose trained pair is timed as well")
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="timed rounds of each case (default: %(default)s)")
    parser.add_argument(
        "--threads", type=int, default=1, help="CPU threads; all cores are tried as well, by everybody (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line there")
    arguments = parser.parse_args(given)
    for name in ("rounds", "threads"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name} is {getattr(arguments, name)}; it must be at least 1")
    params = load(arguments.params) if arguments.task else None
    if params is not None:
        params.task(arguments.task)
    try:
        results = bench(shapes, arguments.task, params, arguments.threads, arguments.rounds)
    except UnequalError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    checks = check_targets(results, arguments.task)
    say("")
    for line in target_lines(checks):
        say(line)
    text = json.dumps(as_json(results, checks, arguments.threads, arguments.rounds))
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    with stage():
        kinds = {"sweep": sweep.main, "alignment": alignment.main, "training": training.main}
        if sys.argv[1:2] and sys.argv[1] in kinds:
            kinds[sys.argv[1]](sys.argv[2:])
        else:
            main()
