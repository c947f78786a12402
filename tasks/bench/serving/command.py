"""A served pair beside other servers of the same large model, under the same load.

Why it exists: a speed-up of one text at a time says nothing about a server, where batches make drafting lose. The same server
(routes, queue, batching) runs four engines: the pair with drafting where it pays, its large model alone, `generate` of
transformers, and CTranslate2 in the environment that a short trial finds the fastest. Clients send their next text when they
have the last answer, 1 to 32 at a time. In each round all servers get the same texts, in an order that is drawn anew; ratios
are of visits in the same round.

Equal processes differ by several in a hundred for as long as they run, which an interval over rounds leaves out. So the large
model alone is served by two processes: we are compared with their mean, and the second over the first is the null control.

Every answer of ours is compared with the text of the same method offline. The last line is JSON:
`served_over_vanilla_worst` (goodput, over all numbers of clients), `null_worst` (the same of the two equal servers, in the
order that makes it the lower), `served_over_ctranslate2_1`, `served_over_ctranslate2_8`, `lost`, `wrong`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from tasks.bench import ctranslate
from tasks.bench.serving.load import LoadResult, load
from tasks.bench.serving.servers import AGAIN, CTRANSLATE2, OURS, TRANSFORMERS, VANILLA, all_servers
from tasks.bench.timing import Found
from tasks.corpora.example import read_jsonl
from tasks.decoding.inference import VANILLA as VANILLA_POINT
from tasks.decoding.inference import DecodingPair, load_pair
from tasks.errors import InputError
from tasks.evaluation.frontier import CHOSEN_ON
from tasks.evaluation.statistics import percentile_interval
from tasks.lineage import lineage
from tasks.locks import timing_lock
from tasks.paths import TaskPaths

CLIENTS = (1, 2, 4, 8, 16, 32)
TARGETS = {"served_over_vanilla_worst": 0.98, "served_over_ctranslate2_1": 2.5, "served_over_ctranslate2_8": 1.2}
_BOOTSTRAP = 2000
_ALONE = VANILLA_POINT.method

Visits = dict[str, dict[int, list[LoadResult]]]
"""By server and number of clients: a result a round."""


def visit(servers: Mapping[str, tuple[str, str]], texts: list[str], rounds: int, requests: int) -> Visits:
    """Load every server with every number of clients in every round; the first round is not kept.

    Args:
        servers: Addresses by name.
        texts: The corpus that each round draws from.
        rounds: Rounds that are kept.
        requests: Texts of one visit, at least as many as clients.
    """
    rng = random.Random(0)  # noqa: S311 (the order of timed visits)
    found: Visits = {name: {clients: [] for clients in CLIENTS} for name in servers}
    for number in range(rounds + 1):
        for clients in CLIENTS:
            chosen = [texts[rng.randrange(len(texts))] for _ in range(max(requests, 2 * clients))]
            for name in rng.sample(list(servers), len(servers)):
                result = load(servers[name][0], chosen, clients)
                for place, (position, choice) in enumerate(result.choices):
                    result.choices[place] = (position, {**choice, "prompt": chosen[position]})
                if number:
                    found[name][clients].append(result)
    return found


def fastest_ctranslate2(servers: Mapping[str, tuple[str, str]], texts: list[str]) -> str | None:
    """Return the name of the fastest server of CTranslate2 in a short trial of one and of eight clients; None without any."""
    names = [name for name in servers if name.startswith(CTRANSLATE2)]

    def seconds(name: str) -> float:
        return sum(load(servers[name][0], texts[:48], clients).seconds for clients in (8, 1, 8))

    return min(names, key=seconds, default=None)


def wrong_answers(visits: Visits, pair: DecodingPair) -> int:
    """Count answers of our servers that are not the text of the same method offline, one text at a time."""
    offline: dict[tuple[str, str], str] = {}
    points = {str(pair.manifest.point): None, _ALONE: _ALONE}
    wrong = 0
    for name in (OURS, VANILLA, AGAIN):
        for results in visits[name].values():
            for _, choice in (one for result in results for one in result.choices):
                key = (choice["draftline"]["method"], choice["prompt"])
                if key not in offline:
                    offline[key] = pair.generate(choice["prompt"], method=points[key[0]])[0].text
                wrong += choice["text"] != offline[key]
    return wrong


def ratio(visits: Visits, ours: str, others: Sequence[str], clients: int) -> Found:
    """Return a server's goodput over the mean of others': the median over rounds, and its 95 % interval over rounds."""
    speeds = {name: np.array([one.texts_per_second for one in visits[name][clients]]) for name in (ours, *others)}
    ratios = speeds[ours] / np.mean([speeds[name] for name in others], axis=0)
    drawn = np.random.default_rng(0).choice(ratios, (_BOOTSTRAP, len(ratios)))
    return {"median": float(np.median(ratios)), "interval": list(percentile_interval(np.median(drawn, axis=1)))}


def table(visits: Visits) -> Found:
    """Return goodput and latency of every server by number of clients, and our ratios."""
    found: Found = {}
    for clients in CLIENTS:
        row: Found = {}
        for name, by_clients in visits.items():
            results = by_clients[clients]
            latencies = [1000 * one for result in results for one in result.latencies]
            row[name] = {
                "texts_per_second": statistics.median(result.texts_per_second for result in results),
                "latency_ms_p50": float(np.percentile(latencies, 50)),
                "latency_ms_p95": float(np.percentile(latencies, 95)),
            }
        drafted = [choice["draftline"]["method"] != _ALONE for one in visits[OURS][clients] for _, choice in one.choices]
        row["drafted_share"] = sum(drafted) / len(drafted)
        row["over"] = {name: ratio(visits, OURS, [name], clients) for name in visits if name not in (OURS, VANILLA, AGAIN)}
        row["over"][VANILLA] = ratio(visits, OURS, [VANILLA, AGAIN], clients)
        row["null"] = ratio(visits, AGAIN, [VANILLA], clients)
        found[str(clients)] = row
    return found


def summary(rows: Found, visits: Visits, wrong: int) -> Found:
    """Return the keys of the last line."""
    over = {name: {clients: row["over"][name]["median"] for clients, row in rows.items()} for name in rows["1"]["over"]}
    null = [row["null"]["median"] for row in rows.values()]
    lost = sum(result.lost for by_clients in visits.values() for results in by_clients.values() for result in results)
    found: Found = {
        "served_over_vanilla_worst": min(over[VANILLA].values()),
        "null_worst": min(min(null), 1 / max(null)),
        "lost": lost,
        "wrong": wrong,
    }
    for name in (TRANSFORMERS, CTRANSLATE2):
        for clients in ("1", "8"):
            if name in over and clients in over[name]:
                found[f"served_over_{name}_{clients}"] = over[name][clients]
    return found


def lines(rows: Found) -> Iterator[str]:
    """The table for people: texts a second and the 95th percentile of latency of each server, then our ratios."""
    for clients, row in rows.items():
        servers = [name for name in row if name not in ("over", "null", "drafted_share")]
        parts = [
            f"{name} {row[name]['texts_per_second']:.1f} texts/s ({row[name]['latency_ms_p95']:.1f} ms)" for name in servers
        ]
        yield f"{clients:>2} clients: {', '.join(parts)}; drafting for {row['drafted_share']:.0%}"
        yield f"            served is {', '.join(f'{_shown(value)} × {name}' for name, value in row['over'].items())}"
        yield f"            null control: {AGAIN}, is {_shown(row['null'])} × {VANILLA}"


def _shown(found: Found) -> str:
    low, high = found["interval"]
    return f"{found['median']:.2f} [{low:.2f}, {high:.2f}]"


def compare(folder: Path, texts: list[str], threads: int, rounds: int, requests: int, say: partial[None]) -> Found:
    """Start all servers, load them, and return what was measured."""
    pair = load_pair(folder, threads=threads)
    model = pair.opened.models["large"]
    if model.config.model_type != "t5":
        raise InputError(f"{folder} holds a model of type {model.config.model_type}; this benchmark compares T5 pairs")
    with tempfile.TemporaryDirectory() as scratch, timing_lock("cpu"):
        converted = None
        if ctranslate.version() is not None:
            from tasks.models.checkpoints import load_model

            converted = Path(scratch) / "converted"
            ctranslate.convert(load_model(folder / "large"), converted)
        with all_servers(folder, converted, threads) as servers:
            say(f"{OURS}: {servers[OURS][1]}")
            best = fastest_ctranslate2(servers, texts)
            compared = {name: servers[name] for name in (OURS, VANILLA, AGAIN, TRANSFORMERS)}
            if best is not None:
                say(f"fastest environment of CTranslate2 here: {best.partition(', ')[2]}")
                compared[CTRANSLATE2] = servers[best]
            visits = visit(compared, texts, rounds, requests)
    rows = table(visits)
    for line in lines(rows):
        say(line)
    found = summary(rows, visits, wrong_answers(visits, pair))
    for name, target in TARGETS.items():
        if name in found:
            say(f"{name} {found[name]:.2f}, target {target}: {'met' if found[name] >= target else 'missed'}")
    facts = {name: value for name, value in lineage().items() if name.startswith("host_") or name == "git_commit"}
    return {
        **found,
        **facts,
        "point": str(pair.manifest.point),
        "threads": threads,
        "rounds": rounds,
        "requests": requests,
        "ctranslate2": ctranslate.version(),
        "clients": rows,
    }


def main(given: list[str]) -> None:
    """Print the table and JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench serving", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", required=True, help="a finished task: its results/TASK/pair and its validation texts")
    parser.add_argument("--rounds", type=int, default=9, help="rounds (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=64, help="texts of a visit (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of every server (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    arguments = parser.parse_args(given)
    for name in ("rounds", "requests", "threads"):
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name} is {getattr(arguments, name)}; it must be at least 1")
    paths = TaskPaths(arguments.task)
    folder = paths.results / "pair"
    if not folder.is_dir():
        raise InputError(f"{folder} is missing; make it with dvc repro report@{arguments.task} (make repro runs all tasks)")
    texts = [example.source for example in read_jsonl(paths.split(CHOSEN_ON))]
    say = partial(print, flush=True)
    text = json.dumps(compare(folder, texts, arguments.threads, arguments.rounds, arguments.requests, say))
    if arguments.json:
        arguments.json.write_text(text + "\n", encoding="utf-8")
    print(text)
