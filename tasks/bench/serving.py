"""A served pair against other servers of the same large model, under the same load.

A speed-up of one text at a time says nothing about a server, where batches make drafting lose. The same server (routes, queue,
batching) runs four engines: the pair with drafting where it pays, its large model alone, `generate` of transformers, and
CTranslate2 in the environment that a short trial finds the fastest. Clients send their next text when they have the last
answer, 1 to 32 at a time. In each round all servers get the same texts (transformers the first eighth of them), in an order
that is drawn anew; ratios are of visits in the same round.

Equal processes differ by several in a hundred for as long as they run, which rounds of one start cannot show. So all servers
are started several times: a ratio is the geometric mean over starts of each start's median over its rounds, and its interval is
Student's over starts. The large model alone is served by two processes: we are compared with their mean, and the second over
the first is the null control.

Every answer of ours is compared with the text of the same method offline. The last line is JSON: `served_over_vanilla_worst`
(goodput, over all numbers of clients), `null_worst` (the same of the two equal servers, in the order that makes it the lower),
`served_over_ctranslate2_1`, `served_over_ctranslate2_8`, `lost`, `wrong`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tasks import supervisor
from tasks.bench import contenders
from tasks.bench.harness import Found, alone, finish, hardware, mean_ratio, parse, parser_of, shown
from tasks.console import command_parser, log
from tasks.corpora.example import read_jsonl
from tasks.decoding import DecodingPair, load_pair
from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.inference import VANILLA as VANILLA_POINT
from tasks.decoding.pair_folder import read_examples
from tasks.errors import InputError, stage
from tasks.evaluation.settings import CHOSEN_ON
from tasks.models.checkpoints import load_model
from tasks.paths import TaskPaths
from tasks.serve.__main__ import listen, serve
from tasks.serve.pacing import Batch, Way
from tasks.serve.scheduler import ServerSettings

CLIENTS = (1, 2, 4, 8, 16, 32)
STARTS = 8
OURS, VANILLA, TRANSFORMERS, CTRANSLATE2 = "served", "vanilla", "transformers", "ctranslate2"
AGAIN = "vanilla, again"
"""A second server that differs from `VANILLA` in nothing: what two processes differ by."""
FEWER = {TRANSFORMERS: 8}
"""Servers that get one of so many texts of a visit: they are slower by far more than that leaves unsure."""
_START = 300.0
"""Seconds within which a server must be up, its warm-up included."""


# --- load -----------------------------------------------------------------------------------------------------------------


@dataclass
class LoadResult:
    """What came back from a server."""

    seconds: float = 0.0
    """From the first request to the last answer."""
    latencies: list[float] = field(default_factory=list)
    """Seconds of each answered request."""
    choices: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """Prompt and output of each answered request."""
    lost: int = 0
    """Requests without an answer of status 200."""

    @property
    def texts_per_second(self) -> float:
        """Goodput: answered texts over the time of all."""
        return len(self.choices) / self.seconds


Visits = dict[str, dict[int, list[LoadResult]]]
"""Of one start, by server and number of clients: a result a round."""


async def load(url: str, prompts: Sequence[str], clients: int) -> LoadResult:
    """Send every prompt once, greedily, from some clients at a time.

    Args:
        url: Of the server.
        prompts: One request each, taken in order.
        clients: Requests that are under way at any time, until the prompts run out.
    """
    import aiohttp

    result, waiting = LoadResult(), list(prompts)[::-1]
    connector = aiohttp.TCPConnector(limit=clients)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=600)) as session:

        async def client() -> None:
            while waiting:
                prompt = waiting.pop()
                begun = time.perf_counter()
                try:
                    async with session.post(f"{url}/v1/completions", json={"prompt": prompt}) as answer:
                        found = await answer.json()
                        good = answer.status == 200
                except (aiohttp.ClientError, TimeoutError):
                    good = False
                if not good:
                    result.lost += 1
                    continue
                result.latencies.append(time.perf_counter() - begun)
                result.choices.append((prompt, found["choices"][0]))

        begun = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        result.seconds = time.perf_counter() - begun
    return result


# --- servers --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeerEngine:
    """Decodes greedily by a peer, behind the server of this project."""

    name: str
    decode: Callable[[Rows, int], Rows]
    """Greedy texts of some sources, side by side: rows and length to tokens, the end token included where it was reached."""
    ends: frozenset[int]
    drafts: bool = False

    def described(self, way: Way) -> str:  # noqa: ARG002 (the protocol's)
        """Return the peer's name."""
        return self.name

    def run(self, batch: Batch, way: Way) -> None:
        """Decode a batch, side by side or one text after the other. A peer is not watched, and draws nothing."""
        positions = list(range(len(batch.rows)))
        for part in [positions] if way.together else [[one] for one in positions]:
            texts = self.decode([batch.rows[one] for one in part], batch.request.max_new_tokens)
            for position, tokens in zip(part, texts, strict=True):
                batch.finish(position, Generation(tokens, "l" * len(tokens), Counts(tokens=len(tokens))))


def transformers_engine(pair: DecodingPair, large: Path) -> PeerEngine:
    """Return `generate` of transformers."""
    model, ends = load_model(large), frozenset(pair.decoders.large.end_tokens)

    def decode(rows: Rows, limit: int) -> Rows:
        return contenders.new_tokens(model, contenders.generate(model, rows, limit), rows)

    return PeerEngine(TRANSFORMERS, decode, ends)


def ctranslate2_engine(pair: DecodingPair, converted: Path, threads: int) -> PeerEngine:
    """Return CTranslate2 on converted weights."""
    translator = contenders.open_translator(str(converted), threads)
    [end] = pair.decoders.large.end_tokens

    def decode(rows: Rows, limit: int) -> Rows:
        _, texts = contenders.translate(translator, rows, limit, batched=True)
        return [tokens if len(tokens) >= limit else [*tokens, end] for tokens in texts]

    return PeerEngine(CTRANSLATE2, decode, frozenset([end]))


def serve_peer(given: Sequence[str]) -> None:
    """Serve the large model of a pair by a peer, on any free port; the benchmark starts this as a process of its own."""
    parser = command_parser(serve_peer.__doc__)
    parser.add_argument("kind", choices=(TRANSFORMERS, CTRANSLATE2))
    parser.add_argument("--pair", type=Path, required=True)
    parser.add_argument("--converted", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args(given)
    pair = load_pair(arguments.pair, threads=arguments.threads)
    if arguments.kind == TRANSFORMERS:
        engine = transformers_engine(pair, arguments.pair / "large")
    else:
        engine = ctranslate2_engine(pair, arguments.converted, arguments.threads)
    with listen("127.0.0.1", 0) as bound:
        serve(bound, pair, engine, engine.name, read_examples(arguments.pair), ServerSettings())


@contextmanager
def running_server(words: list[str], environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start a server, and end it on exit.

    Yields:
        Its address.

    Raises:
        RuntimeError: it did not start.
    """
    command, end, text = [sys.executable, "-m", *words], time.monotonic() + _START, ""
    environment = dict(os.environ if environment is None else environment)
    with (
        tempfile.TemporaryFile() as said,
        supervisor.running(command, env=environment, stderr=said, stdout=subprocess.DEVNULL) as process,
    ):
        while time.monotonic() < end:
            text = os.pread(said.fileno(), 1 << 16, 0).decode("utf-8", errors="replace")
            if found := re.search(r"^serving \S+ on (http://\S+?): ", text, re.MULTILINE):
                yield found[1]
                return
            if process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"{' '.join(words)} did not start: {' '.join(text.strip().splitlines()[-1:])}")


@contextmanager
def all_servers(
    pair: Path, converted: Path, environments: Mapping[str, Mapping[str, str]], threads: int, rng: random.Random
) -> Iterator[dict[str, str]]:
    """Run every server; CTranslate2 once for each of its environments.

    Args:
        pair: Its folder.
        converted: The large model as CTranslate2 reads it; not read without environments.
        environments: Variables by name (`contenders.ENVIRONMENTS`).
        threads: Of every server.
        rng: Draws the order in which they start.

    Yields:
        Addresses by name.
    """
    common = ["--pair", str(pair), "--threads", str(threads)]
    ours, peer = ["tasks.serve", "--port", "0", *common], ["tasks.bench.serving"]
    wanted: dict[str, tuple[list[str], Mapping[str, str] | None]] = {
        OURS: (ours, None),
        **{name: ([*ours, "--drafting", "never"], None) for name in (VANILLA, AGAIN)},
        TRANSFORMERS: ([*peer, TRANSFORMERS, *common], None),
    }
    own = {key: value for key, value in os.environ.items() if key not in contenders.OUR_THREAD_VARIABLES}
    words = [*peer, CTRANSLATE2, *common, "--converted", str(converted)]
    wanted |= {f"{CTRANSLATE2}, {name}": (words, {**own, **variables}) for name, variables in environments.items()}
    with ExitStack() as stack:
        yield {name: stack.enter_context(running_server(*wanted[name])) for name in rng.sample(list(wanted), len(wanted))}


# --- comparison -----------------------------------------------------------------------------------------------------------


def visit(servers: Mapping[str, str], texts: list[str], rounds: int, requests: int, rng: random.Random) -> Visits:
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
                result = asyncio.run(load(servers[name], sent, clients))
                if number:
                    found[name][clients].append(result)
    return found


def results_of(starts: Sequence[Visits], name: str, clients: int) -> list[LoadResult]:
    """Return what one server answered to so many clients, of all starts."""
    return [result for visits in starts for result in visits[name][clients]]


def wrong_answers(starts: Sequence[Visits], pair: DecodingPair) -> int:
    """Count answers of our servers that are not the text of the same method offline, one text at a time."""
    offline: dict[tuple[str, str], str] = {}
    points = {str(pair.manifest.point): None, VANILLA_POINT.method: VANILLA_POINT.method}
    wrong = 0
    for name in (OURS, VANILLA, AGAIN):
        for result in (result for clients in CLIENTS for result in results_of(starts, name, clients)):
            for prompt, choice in result.choices:
                key = (choice["draftline"]["method"], prompt)
                if key not in offline:
                    offline[key] = pair.generate(prompt, method=points[key[0]])[0].text
                wrong += choice["text"] != offline[key]
    return wrong


def ratio(starts: Sequence[Visits], ours: str, others: Sequence[str], clients: int) -> Found:
    """Return a server's goodput over the mean of others', its 95 % interval over at least two starts, and each start."""
    found = []
    for visits in starts:
        speeds = {name: np.array([one.texts_per_second for one in visits[name][clients]]) for name in (ours, *others)}
        found.append(float(np.median(speeds[ours] / np.mean([speeds[name] for name in others], axis=0))))
    return mean_ratio(found) | {"starts": [round(one, 4) for one in found]}


def by_clients(starts: Sequence[Visits]) -> Found:
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
        drafted = [choice["draftline"]["method"] != VANILLA_POINT.method for choice in choices]
        row["drafted_share"] = sum(drafted) / len(drafted)
        row["over"] = {name: ratio(starts, OURS, [name], clients) for name in servers if name not in (OURS, VANILLA, AGAIN)}
        row["over"][VANILLA] = ratio(starts, OURS, [VANILLA, AGAIN], clients)
        row["null"] = ratio(starts, AGAIN, [VANILLA], clients)
        found[str(clients)] = row
    return found


def summary(rows: Found, starts: Sequence[Visits], wrong: int) -> Found:
    """Return the keys of the last line."""
    over = {name: {clients: row["over"][name]["mean"] for clients, row in rows.items()} for name in rows["1"]["over"]}
    null = [row["null"]["mean"] for row in rows.values()]
    found: Found = {
        "served_over_vanilla_worst": min(over[VANILLA].values()),
        "null_worst": min(min(null), 1 / max(null)),
        "lost": sum(one.lost for name in starts[0] for clients in CLIENTS for one in results_of(starts, name, clients)),
        "wrong": wrong,
    }
    for name in (TRANSFORMERS, CTRANSLATE2):
        for clients in ("1", "8"):
            if name in over and clients in over[name]:
                found[f"served_over_{name}_{clients}"] = over[name][clients]
    return found


def lines(rows: Found) -> Iterator[str]:
    """Yield texts a second and the 95th percentile of latency of each server, then our ratios."""
    for clients, row in rows.items():
        servers = [name for name in row if name not in ("over", "null", "drafted_share")]
        parts = [f"{one} {row[one]['texts_per_second']:.1f} texts/s ({row[one]['latency_ms_p95']:.1f} ms)" for one in servers]
        yield f"{clients:>2} clients: {', '.join(parts)}; drafting for {row['drafted_share']:.0%}"
        yield f"            served is {', '.join(f'{shown(value)} × {name}' for name, value in row['over'].items())}"
        yield f"            null control: {AGAIN}, is {shown(row['null'])} × {VANILLA}"


# --- the command ----------------------------------------------------------------------------------------------------------


def measure(folder: Path, texts: list[str], options: argparse.Namespace) -> list[Visits]:
    """Start all servers several times, load them, and return their answers by start."""
    rng = random.Random(0)  # noqa: S311 (the order of timed visits)
    environments = dict(contenders.ENVIRONMENTS if contenders.ctranslate2_version() else {})
    found, starts = [], 2 if options.quick else STARTS
    with tempfile.TemporaryDirectory() as scratch, alone("cpu", quick=options.quick):
        converted = Path(scratch) / "converted"
        if environments:
            contenders.convert(load_model(folder / "large"), converted)
        for start in range(starts):
            with all_servers(folder, converted, environments, options.threads, rng) as servers:
                log.info(f"start {start + 1} of {starts}: {', '.join(servers)}")
                tried = [name for name in servers if name.startswith(CTRANSLATE2)]
                compared = {name: address for name, address in servers.items() if name not in tried}
                if tried:
                    best = min(tried, key=lambda name: _trial(servers[name], texts))
                    environment = best.partition(", ")[2]
                    environments = {environment: environments[environment]}
                    compared[CTRANSLATE2] = servers[best]
                found.append(visit(compared, texts, options.rounds, options.requests, rng))
    return found


def _trial(url: str, texts: list[str]) -> float:
    """Return the seconds of a short load by one and by eight clients."""
    return sum(asyncio.run(load(url, texts[:48], clients)).seconds for clients in (8, 1, 8))


def main(given: Sequence[str]) -> None:
    """Start all servers, load them, and print what was measured and JSON.

    Raises:
        InputError: an option is out of bounds, or there is no pair of encoder-decoders.
    """
    parser = parser_of(
        *("serving", __doc__),
        rounds=(3, "rounds of a start"),
        requests=(256, "texts of a visit"),
        threads=(1, "CPU threads of every server"),
    )
    parser.add_argument("--task", required=True, help="a finished task: its results/TASK/pair and its validation texts")
    options = parse(parser, given)
    paths = TaskPaths(options.task)
    folder = paths.results / "pair"
    if not folder.is_dir():
        raise InputError(f"{folder} is missing; make it with dvc repro report@{options.task} (make repro runs all tasks)")
    if options.quick:
        options.rounds, options.requests = 1, 8
    texts = [example.source for example in read_jsonl(paths.split(CHOSEN_ON))]
    pair = load_pair(folder, threads=options.threads)
    kind = pair.models["large"].config.model_type
    if kind != "t5":
        raise InputError(f"{folder} holds a model of type {kind}; this benchmark compares T5 pairs")
    starts = measure(folder, texts, options)
    rows = by_clients(starts)
    for line in lines(rows):
        log.info(line)
    found = summary(rows, starts, wrong_answers(starts, pair))
    settings = {name: getattr(options, name) for name in ("rounds", "requests", "threads")} | {"starts": len(starts)}
    finish({**found, **hardware(), "point": str(pair.manifest.point), **settings, "clients": rows}, options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == [CTRANSLATE2]:
        for variable in contenders.OUR_THREAD_VARIABLES:
            os.environ.pop(variable, None)
    with stage():
        serve_peer(sys.argv[1:])
