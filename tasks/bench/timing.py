"""Time contenders in interleaved rounds; a ratio is the median over rounds in which each contender ran once."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from tasks.evaluation.rounds import student
from tasks.evaluation.statistics import Interval
from tasks.evaluation.timing import on_threads

Name = TypeVar("Name", bound=Hashable)
Work = Callable[[int], object]
"""Does the work of one round; rounds cycle through the inputs."""
Found = dict[str, Any]
"""A JSON object of a result, which is printed, or read back from another process or a file."""
TimedWork = Callable[[int], float]
"""Does the work of one round and returns its seconds."""


def timed_by(work: Work, clock: Callable[[], float] = time.perf_counter, threads: int = 0) -> TimedWork:
    """Work that returns its own seconds.

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


def time_interleaved(contenders: Mapping[Name, TimedWork], rounds: int, rng: random.Random) -> dict[Name, list[float]]:
    """Seconds of each contender in each round, after one untimed round; the order is drawn anew for each round.

    Within a round all contenders do the same inputs back to back, so a machine that slows down slows all of them.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in contenders}
    for round_index in range(rounds + 1):
        for name in rng.sample(list(contenders), len(contenders)):
            seconds[name].append(contenders[name](round_index))
    return {name: taken[1:] for name, taken in seconds.items()}


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over the rounds of their seconds over ours; above 1 ours is faster."""
    return statistics.median(their / our for our, their in zip(ours, theirs, strict=True))


def mean_ratio(ratios: Sequence[float]) -> tuple[float, Interval]:
    """The geometric mean of at least two ratios, and its 95 % interval by Student's t of their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = student(len(logs) - 1) * error
    return math.exp(mean), (math.exp(mean - reach), math.exp(mean + reach))


def fastest(seconds: Mapping[str, Sequence[float]]) -> str:
    """The name with the smallest median."""
    return min(seconds, key=lambda name: statistics.median(seconds[name]))
