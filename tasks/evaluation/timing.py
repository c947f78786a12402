"""Latency as a ratio of neighbours: every example is timed with a method and with vanilla, one right after the other."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

DecodeOne = Callable[[int], object]
"""Decodes the example of that number, alone, from its source ids to its output ids."""


@dataclass(frozen=True)
class Latencies:
    """Mean milliseconds of each timed example over the trials."""

    method: list[float]
    vanilla: list[float]

    @property
    def speedup(self) -> float:
        """Σ vanilla / Σ method over the same examples."""
        return sum(self.vanilla) / sum(self.method)


def synchronised_clock(device: str) -> Callable[[], float]:
    """Seconds, read after the device has finished what was asked of it."""
    if device == "cpu":
        return time.perf_counter
    import torch

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Lets torch use `count` CPU threads meanwhile; 0 leaves it as it is."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(
    method: DecodeOne,
    vanilla: DecodeOne,
    examples: Sequence[int],
    *,
    trials: int,
    warmup: int,
    rng: random.Random,
    clock: Callable[[], float],
) -> Latencies:
    """Times both on each example, in an order drawn anew each time, after `warmup` untimed examples.

    Taken side by side, a machine that slows down slows both, and their ratio stands.
    """
    for example in examples[:warmup]:
        vanilla(example)
        method(example)
    totals = {name: dict.fromkeys(examples, 0.0) for name in ("method", "vanilla")}
    for _ in range(trials):
        for example in rng.sample(list(examples), len(examples)):
            contenders = [("method", method), ("vanilla", vanilla)]
            rng.shuffle(contenders)
            for name, run in contenders:
                begun = clock()
                run(example)
                totals[name][example] += 1000 * (clock() - begun) / trials
    return Latencies([totals["method"][one] for one in examples], [totals["vanilla"][one] for one in examples])
