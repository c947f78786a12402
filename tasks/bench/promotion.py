"""How often `python -m tasks.promote` would promote a pair that gives nothing, by drawing one pair's results anew.

Why it exists: an alias that moves by noise is worse than none. A pair is timed against a twin of itself, opened from other
files, and decodes the test split in two ways whose outputs differ. From these, null trials are drawn (`null_trials`): examples
with replacement, a coin for which of the two outputs the candidate gives, rounds with replacement, a coin for the sides of each
round. In truth no candidate gives anything, so that each promotion is false.

`python -m tasks.bench promotion --task translation` reads `results/TASK/pair`, or `--pair FOLDER`. The last line is JSON:
`false_promotions_per_100` of all trials, `worst_hundred`, the same with candidates that are truly faster by 5, 10 and 20 %
(`promoted_per_100`), and how the twins differed: the mean speed ratio of the rounds with its interval, and their scatter.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tasks.bench.timing import mean_ratio
from tasks.config import DEFAULT, load
from tasks.corpora.example import read_jsonl
from tasks.decoding.inference import VANILLA
from tasks.decoding.pair_folder import read_manifest
from tasks.decoding.settings.configured import configure_method
from tasks.errors import InputError
from tasks.evaluation.frontier import REPORTED_ON
from tasks.evaluation.promotion.measuring import Setting, Side, measure_sides
from tasks.evaluation.promotion.null_trials import NullSource, null_gains
from tasks.evaluation.promotion.rule import decide
from tasks.evaluation.results.rows import TimedRound
from tasks.files import link_folder
from tasks.lineage import lineage
from tasks.locks import timing_lock
from tasks.machine import set_up
from tasks.paths import TaskPaths
from tasks.promote import ROUNDS
from tasks.schema import Params

_HUNDRED = 100
_FASTER = (1.05, 1.1, 1.2)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command."""
    made = argparse.ArgumentParser(
        prog="python -m tasks.bench promotion", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--task", required=True, help="name of a task in params.yaml")
    made.add_argument("--params", type=Path, default=DEFAULT, help="parameter file (default: %(default)s)")
    made.add_argument("--pair", type=Path, metavar="FOLDER", help="the pair (default: results/TASK/pair)")
    made.add_argument("--method", default="bild", help="decoding whose outputs differ from vanilla's (default: %(default)s)")
    made.add_argument("--rounds", type=int, default=24, help="rounds of the twins, from which are drawn (default: %(default)s)")
    made.add_argument("--trials", type=int, default=1000, help="null trials, whole hundreds (default: %(default)s)")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    return made


def source_of(params: Params, task: str, pair: Path, method: str, rounds: int) -> NullSource:
    """Measure what null trials are drawn from.

    Raises:
        InputError: a file is missing, or the method does not fit the pair.
    """
    settings = params.task(task)
    examples = read_jsonl(TaskPaths(task).split(REPORTED_ON))
    setting = Setting(examples, REPORTED_ON, settings.metric, settings.sweep, params.machine)
    point = configure_method(method, {})
    with tempfile.TemporaryDirectory(dir=pair.parent) as folder, timing_lock(set_up(params.machine)[0].type):
        twin = Path(folder, "twin")
        link_folder(pair, twin)
        outputs = measure_sides((Side("one", pair, point), Side("other", pair, VANILLA)), setting, 1, _say)
        twins = measure_sides((Side("pair", pair, point), Side("twin", twin, point)), setting, rounds, _say)
    first, second = outputs.qualities
    latencies = [(one.latency_ms, one.vanilla_latency_ms) for one in twins.rounds]
    return NullSource((first.statistics, second.statistics), np.array(latencies))


def result_of(source: NullSource, metric: str, margin: float, samples: int, trials: int) -> dict[str, object]:
    """Draw the trials and count promotions."""

    def promoted(seed: int, faster: float = 1.0) -> int:
        gains = null_gains(source, _HUNDRED, ROUNDS, samples, seed, faster=faster)
        return sum(decide(one, metric, margin, "").promoted for one in gains)

    hundreds = [promoted(seed) for seed in range(trials // _HUNDRED)]
    differ = np.any(source.statistics[0] != source.statistics[1], axis=1)
    rounds = [TimedRound(latency_ms=ours.tolist(), vanilla_latency_ms=theirs.tolist()) for ours, theirs in source.latencies]
    return {
        "false_promotions_per_100": round(statistics.fmean(hundreds), 2),
        "worst_hundred": max(hundreds),
        "trials": _HUNDRED * len(hundreds),
        "rounds": ROUNDS,
        "margin": margin,
        "promoted_per_100": {f"{faster:g}": promoted(0, faster) for faster in _FASTER},
        "differing_outputs": round(float(differ.mean()), 4),
        "twins": twins_of(rounds),
    }


def twins_of(rounds: Sequence[TimedRound]) -> dict[str, object]:
    """How two equal pairs differed: the mean speed ratio of the rounds, its 95 % interval, and the rounds' scatter."""
    ratios = [sum(one.vanilla_latency_ms) / sum(one.latency_ms) for one in rounds]
    mean, interval = mean_ratio(ratios)
    scatter = statistics.stdev(map(math.log, ratios))
    return {
        "rounds": len(ratios),
        "speed_ratio": round(mean, 4),
        "interval": [round(end, 4) for end in interval],
        "scatter": round(scatter, 4),
    }


def main(given: Sequence[str]) -> None:
    """Print the result; the last line is JSON."""
    arguments = parser().parse_args(given)
    if arguments.rounds < ROUNDS or arguments.trials < _HUNDRED:
        raise InputError(f"--rounds is {arguments.rounds}, --trials {arguments.trials}; at least {ROUNDS} and {_HUNDRED}")
    params = load(arguments.params)
    task = params.task(arguments.task)
    pair = arguments.pair or TaskPaths(arguments.task).results / "pair"
    read_manifest(pair)
    source = source_of(params, arguments.task, pair, arguments.method, arguments.rounds)
    found = result_of(source, task.metric, task.sweep.margins.no_loss, task.sweep.bootstrap_samples, arguments.trials)
    found |= {"method": arguments.method, "host_cpu": lineage().get("host_cpu", "")}
    text = json.dumps(found)
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
