"""Times contenders side by side: a ratio is the median over rounds in which each of them ran once."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from tasks.evaluation.timing import on_threads

Name = TypeVar("Name", bound=Hashable)
Work = Callable[[int], object]
"""Does the work of a turn; turns go round the inputs."""
TimedWork = Callable[[int], float]
"""Does the work of a turn and gives the seconds that it took."""


def timed_by(work: Work, clock: Callable[[], float] = time.perf_counter, threads: int = 0) -> TimedWork:
    """`run`, timed by `clock` (`evaluation.timing.synchronised_clock` on a GPU) on that many CPU threads; 0: as set."""

    def timed(round_index: int) -> float:
        with on_threads(threads):
            begun = clock()
            work(round_index)
            return clock() - begun

    return timed


def time_interleaved(contenders: Mapping[Name, TimedWork], rounds: int, rng: random.Random) -> dict[Name, list[float]]:
    """Seconds of each contender in each round, the order drawn anew each round, after one untimed round.

    In a round all do the same turn, one right after the other: a machine that slows down slows them all.
    """
    seconds: dict[Name, list[float]] = {name: [] for name in contenders}
    for round_index in range(rounds + 1):
        for name in rng.sample(list(contenders), len(contenders)):
            seconds[name].append(contenders[name](round_index))
    return {name: taken[1:] for name, taken in seconds.items()}


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median over the rounds of their time over ours: above 1, ours is faster."""
    return statistics.median(their / our for our, their in zip(ours, theirs, strict=True))


def fastest(seconds: Mapping[str, Sequence[float]]) -> str:
    """The name with the smallest median."""
    return min(seconds, key=lambda name: statistics.median(seconds[name]))
