"""What the benchmarks share: interleaved rounds and ratios, what a step takes of the machine, options and results.

Contenders run in turn in one process. Within a round all of them do the same work back to back, in an order drawn anew, so that
a machine that slows down slows all of them; a ratio is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch

from tasks.bench.contenders import ctranslate2_version
from tasks.console import command_parser, log
from tasks.decoding.decoder import Decoder, GreedyAcceptance
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.runtimes import compiled
from tasks.errors import InputError
from tasks.lineage import lineage
from tasks.machine import on_threads

Name = TypeVar("Name", bound=Hashable)
Found = dict[str, Any]
"""A JSON object of results."""
Work = Callable[[int], object]
"""Does the work of a round, given its index; rounds cycle through the inputs."""
TimedWork = Callable[[int], float]
"""Does the work of a round and returns its seconds."""

_CACHED, _STEPS, _CHECKED, _STEP_ROUNDS = 8, 8, 5, 40
"""A timed step: tokens in the cache before it, steps in a row, positions of a timed check, rounds."""


def leave_out_failing(works: dict[str, dict[str, TimedWork]]) -> None:
    """Run every setting once, and remove those of a baseline that fail, such as a cache that does not fit a model."""
    for name, settings in works.items():
        for one, work in list(settings.items()):
            try:
                work(0)
            except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
                log.info(f"  {name}: {one} fails and is left out: {' '.join(str(error).split())[:200]}")
                del settings[one]


class UnequalError(RuntimeError):
    """Two contenders that must generate the same tokens do not."""


def timed_by(work: Work, clock: Callable[[], float] = time.perf_counter, threads: int = 0) -> TimedWork:
    """Return work that returns its own seconds.

    Args:
        work: Does one round.
        clock: Seconds; on a GPU use `evaluation.timing.synchronised_clock`.
        threads: CPU threads during the work; 0 leaves torch's number unchanged.
    """

    def timed(round_index: int) -> float:
        with on_threads(threads):
            begun = clock()
            work(round_index)
            return clock() - begun

    return timed


def time_interleaved(contenders: Mapping[Name, TimedWork], rounds: int) -> dict[Name, list[float]]:
    """Return the seconds of each contender in each round, after one untimed round; the order is drawn anew for each round."""
    rng = random.Random(0)  # noqa: S311 (an order, not a secret)
    seconds: dict[Name, list[float]] = {name: [] for name in contenders}
    for round_index in range(rounds + 1):
        for name in rng.sample(list(contenders), len(contenders)):
            seconds[name].append(contenders[name](round_index))
    return {name: taken[1:] for name, taken in seconds.items()}


def fastest(seconds: Mapping[Name, Sequence[float]]) -> Name:
    """Return the name with the smallest median."""
    return min(seconds, key=lambda name: statistics.median(seconds[name]))


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Found:
    """Return how many times as fast ours is, from the seconds of each round; above 1 ours is faster.

    Returns:
        `ratio`: the median over rounds of their seconds over ours. `interval`: its 95 % interval by order statistics, which
        assumes nothing about the noise; None below 6 rounds, of which no such interval exists.
    """
    ratios = sorted(their / our for our, their in zip(ours, theirs, strict=True))
    count = len(ratios)
    # Of `count` rounds so many lie below the true median as heads fall in `count` tosses of a coin.
    outside = [2 * sum(math.comb(count, heads) for heads in range(cut)) / 2**count for cut in range(count // 2 + 1)]
    cut = max(cut for cut, share in enumerate(outside) if share <= 0.05)
    interval = [round(ratios[cut - 1], 3), round(ratios[count - cut], 3)] if cut else None
    return {"ratio": round(statistics.median(ratios), 3), "interval": interval}


def shown(found: Found) -> str:
    """Return a ratio with its interval as text."""
    return f"{found['ratio']:.2f}" + ("" if found["interval"] is None else " [{:.2f}, {:.2f}]".format(*found["interval"]))


def thread_counts(threads: int) -> list[int]:
    """Return the thread counts that every contender is tried at: the requested number, and all cores of this process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return sorted({threads, cores})


def hardware() -> Found:
    """Return the machine, the versions that matter, and the commit."""
    tags = lineage()
    versions = {name: tags[name] for name in ("python", "torch", "transformers")} | {"ctranslate2": ctranslate2_version()}
    machine = {name.removeprefix("host_"): value for name, value in tags.items() if name.startswith("host_")}
    return {"hardware": machine, "versions": versions, "commit": tags.get("git_commit")}


@torch.inference_mode()
def step_limits(decoder: Decoder, source: list[int]) -> Found:
    """Compare one token and a check of five with what the machine gives.

    Args:
        decoder: A model whose runtime declares what a step reads.
        source: Token ids that its text is generated for.

    Returns:
        `step_ms`, `check_over_step` (five tokens in one run over one token), `read_mib` (weights that a step reads) and
        `bandwidth_share` (of what one thread reads of a working set of that size); empty where the runtime declares nothing.
    """
    can = decoder.capabilities
    if not can.step_bytes or can.continue_greedily is None or can.check_draft is None:
        return {}
    [start] = decoder.start(decoder.encode([source]))
    text = (start + source * _CACHED)[: _CACHED + 1]
    decoder.forward([text[:-1]])
    go_on, check = can.continue_greedily, can.check_draft

    def steps(_round: int) -> None:
        decoder.rewind([_CACHED])
        go_on(text[-1:], _STEPS, DraftRule(), with_logits=False)

    def checked(_round: int) -> None:
        decoder.rewind([_CACHED])
        check(text[-1:], text[1:_CHECKED], GreedyAcceptance(max_surprisal=float("inf"), keep_agreed=False))

    # The least time, as for the bandwidth: what other processes take is no property of the code.
    step, five = (min(map(timed_by(run), range(_STEP_ROUNDS))) for run in (steps, checked))
    step /= _STEPS
    share = compiled.bandwidth_share(can.step_bytes, step)
    return {
        "step_ms": round(1000 * step, 4),
        "check_over_step": round(five / step, 3),
        "read_mib": round(can.step_bytes / 2**20, 2),
        "bandwidth_share": None if share is None else round(share, 3),
    }


def step_lines(number_format: str, found: Found) -> Iterator[str]:
    """Yield a line for the step of a number format, and a warning where it uses less than half of the bandwidth."""
    if found.get("bandwidth_share") is None:
        return
    share = f"{found['bandwidth_share']:.0%} of the bandwidth; five tokens take {found['check_over_step']:.2f} steps"
    yield f"  a step in {number_format:10}{found['step_ms']:>8.3f} ms for {found['read_mib']:.1f} MiB of weights: {share}"
    if found["bandwidth_share"] < compiled.LEAST_SHARE:
        least = f"{compiled.LEAST_SHARE:.0%}"
        yield f"  warning: a step in {number_format} uses less than {least} of what this machine reads"


def parser_of(name: str, description: str | None, **counts: tuple[int, str]) -> argparse.ArgumentParser:
    """Return the parser of a benchmark with the options that all have.

    Args:
        name: Of the benchmark.
        description: The module's docstring.
        counts: By option, the default and the help of a number that must be at least 1 (`parse` checks it).
    """
    parser = command_parser(description, name)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that every part works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the last line to this file")
    for option, (default, text) in counts.items():
        parser.add_argument(f"--{option}", type=int, default=default, help=f"{text} (default: %(default)s)")
    parser.set_defaults(counts=tuple(counts))
    return parser


def parse(parser: argparse.ArgumentParser, given: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a benchmark.

    Raises:
        InputError: a count is below 1.
    """
    arguments = parser.parse_args(given)
    for name in arguments.counts:
        if getattr(arguments, name) < 1:
            raise InputError(f"--{name} is {getattr(arguments, name)}; it must be at least 1")
    return arguments


def alone(device: str, *, quick: bool) -> AbstractContextManager[None]:
    """Wait until nothing else of this project runs on a device, and keep it so; a quick run measures nothing and shares it."""
    from tasks.locks import timing_lock

    return nullcontext() if quick else timing_lock(device)


def finish(found: Mapping[str, object], file: Path | None) -> None:
    """Print the results as the last line, and write them to a file."""
    text = json.dumps(found)
    if file is not None:
        file.write_text(text + "\n", encoding="utf-8")
    print(text, flush=True)
