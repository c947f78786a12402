"""A served pair beside other servers of the same large model, under the same load.

Why it exists: a speed-up of one text at a time says nothing about a server, where batches make drafting lose. The same server
(routes, queue, batching) runs four engines: the pair with drafting where it pays, its large model alone, `generate` of
transformers, and CTranslate2 in the environment that a short trial finds the fastest. Clients send their next text when they
have the last answer, 1 to 32 at a time. In each round all servers get the same texts (transformers the first eighth of
them), in an order that is drawn anew; ratios are of visits in the same round.

Equal processes differ by several in a hundred for as long as they run. So all servers are started several times, and intervals
are over starts; and the large model alone is served by two processes: we are compared with their mean, and the second over the
first is the null control.

Every answer of ours is compared with the text of the same method offline. The last line is JSON:
`served_over_vanilla_worst` (goodput, over all numbers of clients), `null_worst` (the same of the two equal servers, in the
order that makes it the lower), `served_over_ctranslate2_1`, `served_over_ctranslate2_8`, `lost`, `wrong`.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tasks.bench import ctranslate
from tasks.bench.serving.comparison import Visits, lines, summary, table, visit, wrong_answers
from tasks.bench.serving.load import load
from tasks.bench.serving.servers import CTRANSLATE2, OURS, all_servers
from tasks.bench.timing import Found
from tasks.corpora.example import read_jsonl
from tasks.decoding.inference import load_pair
from tasks.errors import InputError
from tasks.evaluation.frontier import CHOSEN_ON
from tasks.lineage import lineage
from tasks.locks import timing_lock
from tasks.paths import TaskPaths

TARGETS = {"served_over_vanilla_worst": 0.98, "served_over_ctranslate2_1": 2.5, "served_over_ctranslate2_8": 1.2}
_LEAST = {"starts": 2, "rounds": 1, "requests": 1, "threads": 1}


def fastest_ctranslate2(servers: Mapping[str, tuple[str, str]], texts: list[str]) -> str | None:
    """Return the name of the fastest server of CTranslate2 in a short trial of one and of eight clients; None without any."""
    names = [name for name in servers if name.startswith(CTRANSLATE2)]

    def seconds(name: str) -> float:
        return sum(load(servers[name][0], texts[:48], clients).seconds for clients in (8, 1, 8))

    return min(names, key=seconds, default=None)


def measure(folder: Path, texts: list[str], options: argparse.Namespace, say: partial[None]) -> list[Visits]:
    """Start all servers several times, load them, and return their answers by start."""
    rng = random.Random(0)  # noqa: S311 (the order of timed visits)
    environments, found = dict(ctranslate.ENVIRONMENTS if ctranslate.version() is not None else {}), []
    with tempfile.TemporaryDirectory() as scratch, timing_lock("cpu"):
        converted = Path(scratch) / "converted"
        if environments:
            from tasks.models.checkpoints import load_model

            ctranslate.convert(load_model(folder / "large"), converted)
        for start in range(options.starts):
            with all_servers(folder, converted, environments, options.threads, rng) as servers:
                say(f"start {start + 1} of {options.starts}: {OURS}: {servers[OURS][1]}")
                best = fastest_ctranslate2(servers, texts)
                if best is not None:
                    environment = best.partition(", ")[2]
                    environments = {environment: environments[environment]}
                    say(f"environment of {CTRANSLATE2}: {environment}")
                compared = {name: address for name, address in servers.items() if not name.startswith(CTRANSLATE2)}
                compared |= {CTRANSLATE2: servers[best]} if best is not None else {}
                found.append(visit(compared, texts, options.rounds, options.requests, rng))
    return found


def compare(folder: Path, texts: list[str], options: argparse.Namespace, say: partial[None]) -> Found:
    """Start all servers, load them, and return what was measured."""
    pair = load_pair(folder, threads=options.threads)
    model = pair.opened.models["large"]
    if model.config.model_type != "t5":
        raise InputError(f"{folder} holds a model of type {model.config.model_type}; this benchmark compares T5 pairs")
    starts = measure(folder, texts, options, say)
    rows = table(starts)
    for line in lines(rows):
        say(line)
    found = summary(rows, starts, wrong_answers(starts, pair))
    for name, target in TARGETS.items():
        if name in found:
            say(f"{name} {found[name]:.2f}, target {target}: {'met' if found[name] >= target else 'missed'}")
    facts = {name: value for name, value in lineage().items() if name.startswith("host_") or name == "git_commit"}
    return {
        **found,
        **facts,
        "point": str(pair.manifest.point),
        **{name: getattr(options, name) for name in _LEAST},
        "ctranslate2": ctranslate.version(),
        "clients": rows,
    }


def main(given: list[str]) -> None:
    """Print the table and JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, help="a finished task: its results/TASK/pair and its validation texts")
    parser.add_argument("--starts", type=int, default=8, help="how often all servers are started (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of a start (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=256, help="texts of a visit (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of every server (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    options = parser.parse_args(given)
    for name, least in _LEAST.items():
        if getattr(options, name) < least:
            raise InputError(f"--{name} is {getattr(options, name)}; it must be at least {least}")
    paths = TaskPaths(options.task)
    folder = paths.results / "pair"
    if not folder.is_dir():
        raise InputError(f"{folder} is missing; make it with dvc repro report@{options.task} (make repro runs all tasks)")
    texts = [example.source for example in read_jsonl(paths.split(CHOSEN_ON))]
    text = json.dumps(compare(folder, texts, options, partial(print, flush=True)))
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    print(text)
