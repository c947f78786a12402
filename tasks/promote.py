"""Set the new pair of a task beside its champion, and make it the champion where it is better beyond noise.

`python -m tasks.promote --task translation` takes the version of `draftline-TASK` in MLflow with the alias `candidate`, and
the one with the alias `champion`. Both decode the current test split on this machine and are timed in rounds. The alias moves
by the rule in docs/selection.md. Without a champion, the candidate has to beat its own large model alone by the same rule.

The last line says what was decided and why. The exit status is 0 where the candidate is the champion now, 3 where it is not,
and 2 for bad input. `--roll-back` gives the alias back to the champion before this one.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tasks import tracking
from tasks.corpora.example import read_jsonl
from tasks.decoding.inference import VANILLA
from tasks.decoding.pair_folder import read_manifest
from tasks.errors import InputError, stage
from tasks.evaluation.frontier import REPORTED_ON
from tasks.evaluation.metrics import PERPLEXITY, metric_of
from tasks.evaluation.promotion.measuring import Setting, Side, measure_sides
from tasks.evaluation.promotion.result import Promotion, differences_of, numbers_of, table_of
from tasks.evaluation.promotion.rule import decide, gain
from tasks.files import checksum
from tasks.lineage import datasets, hardware, lineage
from tasks.locks import host_lock, timing_lock
from tasks.machine import set_up
from tasks.paths import CACHE, TaskPaths
from tasks.schema import Params
from tasks.tracking.champion import REFUSED_TAG, ROLLED_BACK_TAG, WHY_TAG, ChampionRegistry, PairVersion

ROUNDS = 8
"""Rounds of timing: more than a sweep's, because a single pair of points is compared."""
_FEWEST_ROUNDS = 2
_ALONE = "its large model alone"


def promote(
    params: Params,
    task: str,
    registry: ChampionRegistry,
    candidate: PairVersion,
    *,
    rounds: int = ROUNDS,
    again: bool = False,
    say: Callable[[str], object] = print,
) -> Promotion:
    """Compare a version with the champion, move the alias or note why not, and record the comparison.

    Args:
        params: The whole file.
        task: The name of the task.
        registry: Its registered model.
        candidate: The version.
        rounds: Of timing.
        again: Compare even where this candidate was refused on these examples and processor, or was rolled back.
        say: Receives a line before each part.

    Raises:
        InputError: a file, a version or MLflow is missing or damaged.
    """
    if metric_of(params.task(task).metric).name == PERPLEXITY:
        raise InputError(
            f"task {task}: promotion compares the outputs of two pairs, and the metric perplexity scores none; compare the "
            "reports with python -m tasks.compare"
        )
    champion, split = registry.champion(), TaskPaths(task).split(REPORTED_ON)
    if champion is not None and champion.number == candidate.number:
        return Promotion(task, candidate.number, champion.number, True, f"version {candidate.number} is the champion already")
    examples = read_jsonl(split)
    machine = hardware()
    processor = machine.get("host_gpu", machine["host_cpu"])
    against = f"champion {champion.number if champion else 'none'}, test {checksum(split)[:12]}, {processor}"
    if not again and (known := _known_answer(candidate, against)):
        return Promotion(task, candidate.number, champion.number if champion else "", False, f"not promoted: {known}")
    scratch = CACHE / "promote" / task
    try:
        with host_lock():
            sides = _sides(registry, candidate, champion, scratch)
        settings = params.task(task)
        setting = Setting(examples, REPORTED_ON, settings.metric, settings.sweep, params.machine)
        with timing_lock(set_up(params.machine)[0].type):
            measured = measure_sides(sides, setting, rounds, say)
        manifests = [read_manifest(side.folder) for side in sides]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    first, second = measured.qualities
    sweep = settings.sweep
    found = gain(first.statistics, second.statistics, measured.rounds, sweep.bootstrap_samples, sweep.seed)
    decision = decide(found, settings.metric, sweep.margins.no_loss, sides[1].name)
    origin = lineage(inputs=[split])
    result = Promotion(
        task=task,
        candidate=candidate.number,
        champion=champion.number if champion else "",
        promoted=decision.promoted,
        line=f"{'promoted' if decision.promoted else 'not promoted'}: {decision.why}",
        notes=differences_of(manifests[1], measured, settings.metric, origin) if champion else [],
        table=table_of(measured, sides, manifests, found),
        metrics=numbers_of(measured, found),
    )
    with host_lock():
        if decision.promoted:
            registry.promote(candidate, champion, decision.why)
        else:
            registry.refuse(candidate, against, decision.why)
        _record(result, origin, {"rounds": rounds, "margin": sweep.margins.no_loss, "examples": len(examples)})
    return result


def _known_answer(candidate: PairVersion, against: str) -> str:
    """Why a candidate needs no comparison; empty where it does. Repeating one until it succeeds would have no level."""
    if ROLLED_BACK_TAG in candidate.tags:
        return f"version {candidate.number} was rolled back on {candidate.tags[ROLLED_BACK_TAG]} (--again compares it anew)"
    if candidate.tags.get(REFUSED_TAG) == against:
        return f"this was decided before on the same examples (--again repeats it): {candidate.tags.get(WHY_TAG, '')}"
    return ""


def _sides(
    registry: ChampionRegistry, candidate: PairVersion, champion: PairVersion | None, scratch: Path
) -> tuple[Side, Side]:
    """The candidate, and what it has to beat."""
    folder = registry.fetch(candidate, scratch / "candidate")
    name = f"candidate (version {candidate.number})"
    if champion is None:
        return Side(name, folder), Side(_ALONE, folder, VANILLA)
    return Side(name, folder), Side(f"champion (version {champion.number})", registry.fetch(champion, scratch / "champion"))


def _record(result: Promotion, origin: dict[str, str], settings: dict[str, object]) -> None:
    """Record the comparison as a run of the task's experiment."""
    tags = {"kind": "promotion", "stage": "promote", "promoted": result.promoted, "why": result.line}
    tags |= {"candidate": result.candidate, "champion": result.champion or _ALONE}
    with (
        tempfile.TemporaryDirectory() as folder,
        tracking.Recorder(result.task, f"promotion of version {result.candidate}", {**tags, **origin}, settings) as run,
    ):
        page = Path(folder, "promotion.md")
        page.write_text(result.markdown(), encoding="utf-8")
        run.log_inputs(datasets([TaskPaths(result.task).split(REPORTED_ON)], "test"))
        run.describe(result.markdown())
        run.log_metrics(result.metrics)
        run.log_artifact(page)


def main() -> int:
    """Compare, or roll back, and return the exit status."""
    from tasks.config import load, task_parser

    parser = task_parser(__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", metavar="N", help="the candidate by its number (default: the version with the alias)")
    which.add_argument("--pair", type=Path, metavar="FOLDER", help="the candidate by its folder, such as results/TASK/pair")
    which.add_argument("--roll-back", action="store_true", help="give the alias back to the champion before this one")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of timing (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="compare a candidate that was refused or rolled back before")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result, for programs")
    arguments = parser.parse_args()
    if arguments.rounds < _FEWEST_ROUNDS:
        raise InputError(f"--rounds is {arguments.rounds}; an interval over rounds needs at least {_FEWEST_ROUNDS}")
    params = load(arguments.params)
    params.task(arguments.task)
    _silence_loading()
    registry = ChampionRegistry(arguments.task)
    if arguments.roll_back:
        before, now = registry.roll_back()
        result = Promotion(arguments.task, now, before, True, f"rolled back: the champion is version {now}, no longer {before}")
    else:
        candidate = _candidate(registry, arguments.version, arguments.pair)
        result = promote(params, arguments.task, registry, candidate, rounds=arguments.rounds, again=arguments.again, say=_say)
    if arguments.json:
        arguments.json.write_text(json.dumps(result.as_json()) + "\n", encoding="utf-8")
    for note in result.notes:
        print(f"note: {note}")
    print(result.line)
    return result.status


def _silence_loading() -> None:
    """Leave out the bars of transformers, which opens the models anew for each round."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _candidate(registry: ChampionRegistry, number: str | None, folder: Path | None) -> PairVersion:
    if folder is not None:
        read_manifest(folder)
        return registry.version_of(folder)
    return registry.candidate() if number is None else registry.version(number)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    with stage():
        raise SystemExit(main())
