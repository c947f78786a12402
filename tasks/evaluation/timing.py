"""Latency measured as a ratio of neighbours: each example is timed with a method and with vanilla, back to back."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Output = TypeVar("Output")
"""What decoding one example returns."""


@dataclass(frozen=True)
class Latencies(Generic[Output]):
    """Milliseconds of each timed example, and what the timed calls returned."""

    method: list[float]
    vanilla: list[float]
    method_outputs: list[Output] = field(default_factory=list)
    """By example."""
    vanilla_outputs: list[Output] = field(default_factory=list)

    @property
    def speedup(self) -> float:
        """Σ vanilla / Σ method over the same examples."""
        return sum(self.vanilla) / sum(self.method)


def synchronised_clock(device: str) -> Callable[[], float]:
    """A clock in seconds that waits for the device to finish its queued work before each reading."""
    if device == "cpu":
        return time.perf_counter
    import torch

    def clock() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return clock


@contextlib.contextmanager
def on_threads(count: int) -> Iterator[None]:
    """Limits torch to `count` CPU threads inside the block; 0 leaves the number unchanged."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(
    method: Callable[[int], Output],
    vanilla: Callable[[int], Output],
    examples: Sequence[int],
    *,
    warmup: int,
    rng: random.Random,
    clock: Callable[[], float],
) -> Latencies[Output]:
    """Time the method and vanilla once on each example, in a random order.

    Both run back to back, so a machine that slows down slows both and their ratio stands.

    Args:
        method: Decodes the example of that number, alone, from its source ids to its output ids.
        vanilla: The same with the large model alone.
        examples: Numbers of the timed examples.
        warmup: Examples that both decode untimed first.
        rng: Draws the order.
        clock: Seconds; see `synchronised_clock`.
    """
    for example in examples[:warmup]:
        vanilla(example)
        method(example)
    calls = {"method": method, "vanilla": vanilla}
    times: dict[str, dict[int, float]] = {name: {} for name in calls}
    outputs: dict[str, dict[int, Output]] = {name: {} for name in calls}
    for example in rng.sample(list(examples), len(examples)):
        contenders = list(calls.items())
        rng.shuffle(contenders)
        for name, decode in contenders:
            begun = clock()
            output = decode(example)
            times[name][example] = 1000 * (clock() - begun)
            outputs[name][example] = output
    method_ms, vanilla_ms = ([times[name][example] for example in examples] for name in calls)
    method_outputs, vanilla_outputs = ([outputs[name][example] for example in examples] for name in calls)
    return Latencies(method_ms, vanilla_ms, method_outputs, vanilla_outputs)
