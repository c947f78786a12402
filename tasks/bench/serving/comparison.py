"""Goodput of servers under the same load, and their ratios over several starts.

Equal processes differ by several in a hundred for as long as they run, which rounds of one start cannot show. So every server
is started several times, a ratio is the geometric mean over starts of each start's median over its rounds, and its interval
is Student's over starts.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tasks.bench.serving.load import LoadResult, load
from tasks.bench.serving.servers import AGAIN, CTRANSLATE2, OURS, TRANSFORMERS, VANILLA
from tasks.bench.timing import Found, mean_ratio
from tasks.decoding.inference import VANILLA as VANILLA_POINT
from tasks.decoding.inference import DecodingPair

CLIENTS = (1, 2, 4, 8, 16, 32)
ALONE = VANILLA_POINT.method
FEWER = {TRANSFORMERS: 8}
"""Servers that get one of so many texts of a visit: they are slower by far more than that leaves unsure."""

Visits = dict[str, dict[int, list[LoadResult]]]
"""Of one start, by server and number of clients: a result a round."""


def visit(servers: Mapping[str, tuple[str, str]], texts: list[str], rounds: int, requests: int, rng: random.Random) -> Visits:
    """Load every server with every number of clients in every round; the first round is not kept.

    Args:
        servers: Addresses by name.
        texts: The corpus that each round draws from.
        rounds: Rounds that are kept.
        requests: Texts of one visit; at least twice as many as clients are sent.
        rng: Draws the texts and the order of the visits.
    """
    found: Visits = {name: {clients: [] for clients in CLIENTS} for name in servers}
    for number in range(rounds + 1):
        for clients in CLIENTS:
            chosen = [texts[rng.randrange(len(texts))] for _ in range(max(requests, 2 * clients))]
            for name in rng.sample(list(servers), len(servers)):
                sent = chosen[: max(requests // FEWER.get(name, 1), 2 * clients)]
                result = load(servers[name][0], sent, clients)
                for place, (position, choice) in enumerate(result.choices):
                    result.choices[place] = (position, {**choice, "prompt": chosen[position]})
                if number:
                    found[name][clients].append(result)
    return found


def results_of(starts: Sequence[Visits], name: str, clients: int) -> list[LoadResult]:
    """Return what one server answered to so many clients, of all starts."""
    return [result for visits in starts for result in visits[name][clients]]


def wrong_answers(starts: Sequence[Visits], pair: DecodingPair) -> int:
    """Count answers of our servers that are not the text of the same method offline, one text at a time."""
    offline: dict[tuple[str, str], str] = {}
    points = {str(pair.manifest.point): None, ALONE: ALONE}
    wrong = 0
    for name in (OURS, VANILLA, AGAIN):
        for result in (result for clients in CLIENTS for result in results_of(starts, name, clients)):
            for _, choice in result.choices:
                key = (choice["draftline"]["method"], choice["prompt"])
                if key not in offline:
                    offline[key] = pair.generate(choice["prompt"], method=points[key[0]])[0].text
                wrong += choice["text"] != offline[key]
    return wrong


def ratio(starts: Sequence[Visits], ours: str, others: Sequence[str], clients: int) -> Found:
    """Return a server's goodput over the mean of others', its 95 % interval over at least two starts, and each start."""
    found = []
    for visits in starts:
        speeds = {name: np.array([one.texts_per_second for one in visits[name][clients]]) for name in (ours, *others)}
        ratios = speeds[ours] / np.mean([speeds[name] for name in others], axis=0)
        found.append(float(np.median(ratios)))
    mean, interval = mean_ratio(found)
    return {"mean": mean, "interval": list(interval), "starts": [round(one, 4) for one in found]}


def table(starts: Sequence[Visits]) -> Found:
    """Return goodput and latency of every server by number of clients, and our ratios."""
    found: Found = {}
    servers = list(starts[0])
    for clients in CLIENTS:
        row: Found = {}
        for name in servers:
            results = results_of(starts, name, clients)
            latencies = [1000 * one for result in results for one in result.latencies]
            row[name] = {
                "texts_per_second": statistics.median(result.texts_per_second for result in results),
                "latency_ms_p50": float(np.percentile(latencies, 50)),
                "latency_ms_p95": float(np.percentile(latencies, 95)),
            }
        choices = [choice for result in results_of(starts, OURS, clients) for _, choice in result.choices]
        row["drafted_share"] = sum(choice["draftline"]["method"] != ALONE for choice in choices) / len(choices)
        row["over"] = {name: ratio(starts, OURS, [name], clients) for name in servers if name not in (OURS, VANILLA, AGAIN)}
        row["over"][VANILLA] = ratio(starts, OURS, [VANILLA, AGAIN], clients)
        row["null"] = ratio(starts, AGAIN, [VANILLA], clients)
        found[str(clients)] = row
    return found


def summary(rows: Found, starts: Sequence[Visits], wrong: int) -> Found:
    """Return the keys of the last line."""
    over = {name: {clients: row["over"][name]["mean"] for clients, row in rows.items()} for name in rows["1"]["over"]}
    null = [row["null"]["mean"] for row in rows.values()]
    lost = sum(one.lost for name in starts[0] for clients in CLIENTS for one in results_of(starts, name, clients))
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
    return f"{found['mean']:.2f} [{low:.2f}, {high:.2f}]"
