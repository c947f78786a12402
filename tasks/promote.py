"""Set the new pair of a task beside its champion, and make it the champion where it is better beyond noise.

`python -m tasks.promote --task translation` takes the version of `draftline-TASK` in MLflow with the alias `candidate`, and
the one with the alias `champion`. Both decode the current test split on this machine and are timed in rounds. The alias moves
by the rule in docs/selection.md. Without a champion, the candidate has to beat its own large model alone by the same rule.

The last line says what was decided and why. The exit status is 0 where the candidate is the champion now, 3 where it is not,
and 2 for bad input.
"""

from __future__ import annotations

import shutil

import numpy as np

from tasks import tracking
from tasks.config import Params
from tasks.console import log
from tasks.corpora.example import read_jsonl
from tasks.decoding.inference import VANILLA
from tasks.errors import STATUS_NOT_PROMOTED, InputError, stage
from tasks.evaluation.promotion import Gain, Setting, Side, decide, gain, measure_sides
from tasks.evaluation.results.rows import TimedRound
from tasks.evaluation.scoring.metrics import PERPLEXITY, metric_of
from tasks.evaluation.scoring.quality import Quality
from tasks.evaluation.scoring.statistics import combined
from tasks.evaluation.settings import REPORTED_ON
from tasks.files import checksum
from tasks.lineage import datasets, hardware, lineage
from tasks.locks import host_lock, timing_lock
from tasks.machine import set_up
from tasks.paths import CACHE, TaskPaths
from tasks.tracking.registry import REFUSED_TAG, WHY_TAG, Champions

ROUNDS = 8
"""Rounds of timing: more than a sweep's, because a single pair of points is compared."""
_FEWEST_ROUNDS = 2
_ALONE = "its large model alone"


def promote(params: Params, task: str, champions: Champions, number: str | None, rounds: int, again: bool) -> tuple[bool, str]:
    """Compare a version with the champion, move the alias or note why not, and record the comparison.

    Args:
        params: The whole file.
        task: The name of the task.
        champions: Its registered model.
        number: Of the candidate; None: the version of the newest report.
        rounds: Of timing.
        again: Compare even where this candidate was refused on these examples and processor.

    Returns:
        Whether the candidate is the champion now, and why in a line.

    Raises:
        InputError: a file, a version or MLflow is missing or damaged.
    """
    if metric_of(params.task(task).metric).name == PERPLEXITY:
        said = f"task {task}: promotion compares the outputs of two pairs, and the metric perplexity scores none"
        raise InputError(f"{said}; compare the reports with python -m tasks.compare")
    candidate, champion = champions.candidate(number), champions.champion()
    if champion is not None and champion.version == candidate.version:
        return True, f"version {candidate.version} is the champion already"
    split = TaskPaths(task).split(REPORTED_ON)
    examples, machine, settings = read_jsonl(split), hardware(), params.task(task)
    processor = machine.get("host_gpu", machine["host_cpu"])
    against = f"champion {champion.version if champion else 'none'}, test {checksum(split)[:12]}, {processor}"
    if not again and candidate.tags.get(REFUSED_TAG) == against:
        # Repeating a comparison until it succeeds would have no level.
        return False, f"this was decided before on the same examples (--again repeats it): {candidate.tags[WHY_TAG]}"
    scratch = CACHE / "promote" / task
    try:
        with host_lock():
            folder = champions.fetch(candidate, scratch / "candidate")
            reference = Side(_ALONE, folder, VANILLA)
            if champion is not None:
                reference = Side(f"champion (version {champion.version})", champions.fetch(champion, scratch / "champion"))
        sides = Side(f"candidate (version {candidate.version})", folder), reference
        with timing_lock(set_up(params.machine)[0].type):
            setting = Setting(examples, REPORTED_ON, settings.metric, settings.sweep, params.machine)
            qualities, timed = measure_sides(sides, setting, rounds, log.info)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    ours, theirs = (quality.statistics for quality in qualities)
    found = gain(ours, theirs, timed, settings.sweep.bootstrap_samples, settings.sweep.seed)
    promoted, why = decide(found, settings.metric, settings.sweep.margins.no_loss, reference.name)
    tags = {"kind": "promotion", "stage": "promote", "promoted": promoted, "why": why, "against": against}
    origin = lineage(inputs=[split])
    with host_lock():
        if promoted:
            champions.promote(candidate, champion, why)
        else:
            champions.refuse(candidate, against, why)
        name = f"promotion of version {candidate.version}"
        with tracking.Recorder(task, name, {**tags, "candidate": candidate.version, **origin}, {"rounds": rounds}) as run:
            run.log_inputs(datasets([split], "test"))
            run.log_metrics(_numbers(qualities, timed, found))
            run.describe(why)
    return promoted, why


def _numbers(qualities: tuple[Quality, Quality], timed: list[TimedRound], found: Gain) -> dict[str, float]:
    """The numbers under flat names; milliseconds are those of a text, medians over the rounds."""
    numbers: dict[str, float] = {}
    for name, quality, times in zip(("candidate", "reference"), qualities, combined(timed), strict=True):
        numbers |= {f"{name}_quality": quality.value, f"{name}_latency_ms": float(np.mean(times))}
    for name, value, (low, high) in (
        ("quality_difference", found.quality_difference, found.quality_interval),
        ("speed_ratio", found.speed_ratio, found.speed_interval),
    ):
        numbers |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return numbers


def main() -> int:
    """Compare, and return the exit status."""
    from transformers.utils import logging

    from tasks.config import load, task_parser

    parser = task_parser(__doc__)
    parser.add_argument("--version", metavar="N", help="the candidate by its number (default: the version with the alias)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of timing (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="compare a candidate that was refused before")
    arguments = parser.parse_args()
    if arguments.rounds < _FEWEST_ROUNDS:
        raise InputError(f"--rounds is {arguments.rounds}; an interval over rounds needs at least {_FEWEST_ROUNDS}")
    params, task = load(arguments.params), arguments.task
    params.task(task)
    logging.set_verbosity_error()
    logging.disable_progress_bar()  # the models are opened anew for each round
    promoted, why = promote(params, task, Champions(task), arguments.version, arguments.rounds, arguments.again)
    print(f"{'promoted' if promoted else 'not promoted'}: {why}")
    return 0 if promoted else STATUS_NOT_PROMOTED


if __name__ == "__main__":
    with stage():
        raise SystemExit(main())
