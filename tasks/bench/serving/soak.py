"""A served pair under mixed load for a long time: does its memory stay flat, is anything lost or wrong?

Why it exists: a server leaks where no test looks, in streams that end early, in refused requests, in caches that keep a slot.
Clients send whole and streamed texts of several lengths, drawn ones, bad requests, and hang up after the first piece. The
resident memory of the server's process is read every few seconds. Its slope is of the means of ten stretches of the time
after the warm-up, so that neighbouring readings, which are alike, do not count as many; the interval is 95 %. Every greedy
answer is compared with the text of the pair offline. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tasks.bench.serving.mixed_load import MixedResult, Texts, mixed_load
from tasks.bench.serving.servers import running_server
from tasks.bench.timing import Found
from tasks.decoding.inference import VANILLA, DecodingPair, load_pair
from tasks.decoding.pair_folder import read_examples
from tasks.errors import InputError
from tasks.lineage import lineage

STRETCHES = 10
_WARM_SHARE = 0.2
"""Share of the time that is left out at the beginning: caches fill, and batches of all sizes run for the first time."""
_EVERY = 2.0
"""Seconds between readings of memory; shorter where the time is short."""


@dataclass(frozen=True)
class Slope:
    """Growth of memory in megabytes an hour, with its 95 % interval."""

    value: float
    low: float
    high: float


def memory_slope(seconds: Sequence[float], megabytes: Sequence[float]) -> Slope:
    """Return the slope of readings, by least squares over the means of stretches of equal length.

    Args:
        seconds: When each reading was taken, ascending.
        megabytes: The readings, as many, at least one in each stretch.

    Raises:
        ValueError: a stretch holds no reading.
    """
    from scipy.stats import linregress, t

    edges = np.linspace(seconds[0], seconds[-1], STRETCHES + 1)
    places = np.clip(np.searchsorted(edges, seconds, side="right") - 1, 0, STRETCHES - 1)
    if len(set(places.tolist())) < STRETCHES:
        raise ValueError(f"{len(seconds)} readings do not fill {STRETCHES} stretches")
    hours = [np.mean(np.asarray(seconds)[places == place]) / 3600 for place in range(STRETCHES)]
    means = [np.mean(np.asarray(megabytes)[places == place]) for place in range(STRETCHES)]
    fit = linregress(hours, means)
    wide = float(t.ppf(0.975, STRETCHES - 2)) * float(fit.stderr)
    return Slope(float(fit.slope), float(fit.slope) - wide, float(fit.slope) + wide)


def right_texts(pair: DecodingPair, prompts: Sequence[str]) -> Texts:
    """Return the greedy texts of each prompt at the pair's length, a half and a quarter of it, by each way of decoding."""
    longest = pair.manifest.text.max_target_tokens
    lengths = sorted({max(2, longest // part) for part in (4, 2, 1)})
    ways = (None, VANILLA.method)
    return {
        (prompt, length): frozenset(pair.generate(prompt, method=way, max_new_tokens=length)[0].text for way in ways)
        for prompt in prompts
        for length in lengths
    }


def soak(folder: Path, minutes: float, clients: int, rate: float, threads: int) -> Found:
    """Serve a pair, load it, and return what was measured."""
    pair = load_pair(folder, threads=threads)
    texts = right_texts(pair, read_examples(folder))
    if not texts:
        raise InputError(f"{folder} has no examples; give a pair that the report stage wrote")
    with running_server(["tasks.serve", "--pair", str(folder), "--port", "0", "--threads", str(threads)]) as (url, _):
        readings, result = asyncio.run(_loaded(url, texts, clients, rate, 60 * minutes))
        left = _under_way(url)
    begun = readings[0][0] + _WARM_SHARE * (readings[-1][0] - readings[0][0])
    kept = [one for one in readings if one[0] >= begun]
    slope = memory_slope(*zip(*kept, strict=True))
    return {
        "minutes": minutes,
        "requests": dict(result.requests),
        "lost": result.lost,
        "wrong": result.wrong,
        "left_under_way": left,
        "rss_mb_started": readings[0][1],
        "rss_mb_warm": kept[0][1],
        "rss_mb_end": kept[-1][1],
        "slope_mb_per_hour": slope.value,
        "slope_interval": [slope.low, slope.high],
        "clients": clients,
        "rate": rate,
        "threads": threads,
        "point": str(pair.manifest.point),
        **{name: value for name, value in lineage().items() if name.startswith("host_") or name == "git_commit"},
    }


async def _loaded(
    url: str, texts: Texts, clients: int, rate: float, seconds: float
) -> tuple[list[tuple[float, float]], MixedResult]:
    """Load a server and read its memory meanwhile: seconds and megabytes."""
    server, readings, begun = _listening(int(url.rpartition(":")[2])), [], time.monotonic()
    load = asyncio.create_task(mixed_load(url, texts, clients, rate, seconds))
    while not load.done():
        readings.append((time.monotonic() - begun, server.memory_info().rss / 1e6))
        await asyncio.wait([load], timeout=min(_EVERY, seconds / 100))
    return readings, await load


def _listening(port: int) -> psutil.Process:
    """Return the process below this one that listens on a port: the server itself, not its supervisor."""
    for process in psutil.Process().children(recursive=True):
        for one in process.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr.port == port:
                return process
    raise RuntimeError(f"no process listens on port {port}")


def _under_way(url: str, seconds: float = 10.0) -> int:
    """Return the requests that the server still holds after some seconds at most; those of clients that hung up are to end."""
    from urllib.request import urlopen

    end = time.monotonic() + seconds
    while True:
        with urlopen(f"{url}/metrics") as answer:  # noqa: S310 (the server that was started here)
            said = answer.read().decode()
        held = re.findall(r"^draftline:num_requests_(?:waiting|running) (\S+)$", said, re.MULTILINE)
        if (left := int(sum(map(float, held)))) == 0 or time.monotonic() > end:
            return left
        time.sleep(0.2)


def line(found: dict[str, Any]) -> str:
    """Return the result for people."""
    low, high = found["slope_interval"]
    return (
        f"{found['minutes']:g} minutes, {sum(found['requests'].values())} requests: {found['lost']} lost, {found['wrong']} "
        f"wrong, {found['left_under_way']} left under way; {found['rss_mb_warm']:.1f} MB after the warm-up, "
        f"{found['rss_mb_end']:.1f} at the end, {found['slope_mb_per_hour']:+.2f} [{low:+.2f}, {high:+.2f}] MB an hour"
    )


def main(given: list[str]) -> None:
    """Print a line for people and JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.bench soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pair", type=Path, metavar="PAIR", help="a folder with pair.json and examples")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long to load the server (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=8, help="clients at a time (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=20.0, help="requests a second at most (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of the server (default: %(default)s)")
    arguments = parser.parse_args(given)
    for name in ("minutes", "clients", "rate", "threads"):
        if getattr(arguments, name) <= 0:
            raise InputError(f"--{name} is {getattr(arguments, name):g}; it must be above 0")
    found = soak(arguments.pair, arguments.minutes, arguments.clients, arguments.rate, arguments.threads)
    print(line(found))
    print(json.dumps(found))
