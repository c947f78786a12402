from __future__ import annotations

import random
from collections.abc import Callable
from statistics import fmean

import pytest

from tasks.evaluation.timing import Latencies, measure, on_threads


class Machine:
    """A simulated clock that runs advance by `cost` times the machine's slowness at that moment."""

    def __init__(self, slowness: Callable[[float], float] = lambda now: 1.0) -> None:
        self.now = 0.0
        self.slowness = slowness
        self.runs: list[tuple[str, int]] = []

    def clock(self) -> float:
        return self.now

    def run(self, name: str, cost: Callable[[int], float]) -> Callable[[int], None]:
        def run(example: int) -> None:
            self.runs.append((name, example))
            self.spend(cost(example))

        return run

    def spend(self, seconds: float) -> None:
        self.now += seconds * self.slowness(self.now)


NAMES = ("method", "vanilla")


def timed(machine: Machine, examples: list[int], rounds: int = 1, warmup: int = 0, seed: int = 0) -> Latencies[None]:
    """Times a method that takes 1 second plus the example's number; vanilla takes twice as long. Means over the rounds."""
    rng = random.Random(seed)
    found = [
        measure(
            machine.run("method", lambda example: 1.0 + example),
            machine.run("vanilla", lambda example: 2.0 + 2.0 * example),
            examples,
            warmup=warmup,
            rng=rng,
            clock=machine.clock,
        )
        for _ in range(rounds)
    ]
    method, vanilla = ([fmean(times) for times in zip(*(getattr(one, name) for one in found), strict=True)] for name in NAMES)
    return Latencies(method, vanilla)


def test_milliseconds_of_each_example_in_the_order_given() -> None:
    latencies = timed(Machine(), [3, 0, 9])
    assert latencies.method == pytest.approx([4000, 1000, 10000])
    assert latencies.vanilla == pytest.approx([8000, 2000, 20000])
    assert latencies.speedup == pytest.approx(2)


def test_speedup_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    assert Latencies(method=[1.0, 10.0], vanilla=[4.0, 10.0]).speedup == pytest.approx(14 / 11)


SLOW: dict[str, Callable[[float], float]] = {
    "slower and slower": lambda now: 1.0 + now / 2000,
    "slow from then on": lambda now: 5.0 if now > 2100 else 1.0,
    "slow for a while": lambda now: 5.0 if 1500 < now < 9000 else 1.0,
}


@pytest.mark.parametrize("slowness", SLOW.values(), ids=SLOW)
def test_a_machine_that_slows_down_slows_both(slowness: Callable[[float], float]) -> None:
    latencies = timed(Machine(slowness), list(range(20)), rounds=10)
    assert sum(latencies.vanilla) > 1.3 * sum(2000.0 + 2000.0 * example for example in range(20))
    assert latencies.speedup == pytest.approx(2, rel=0.06)


def test_both_run_back_to_back_in_a_random_order() -> None:
    machine = Machine()
    timed(machine, [5, 6, 7, 8], rounds=8)
    pairs = list(zip(machine.runs[::2], machine.runs[1::2], strict=True))
    assert len(pairs) == 32
    for first, second in pairs:
        assert first[1] == second[1]
        assert {first[0], second[0]} == {"method", "vanilla"}
    assert 8 <= sum(first[0] == "method" for first, _ in pairs) <= 24
    orders = [tuple(first[1] for first, _ in pairs[begin : begin + 4]) for begin in range(0, 32, 4)]
    assert {tuple(sorted(order)) for order in orders} == {(5, 6, 7, 8)}
    assert len(set(orders)) > 3


def test_warm_up_runs_both_and_is_not_timed() -> None:
    machine = Machine(lambda now: 100.0 if now < 2000 else 1.0)
    latencies = timed(machine, [4, 5, 6], warmup=2)
    assert machine.runs[:4] == [("vanilla", 4), ("method", 4), ("vanilla", 5), ("method", 5)]
    assert latencies.method == pytest.approx([5000, 6000, 7000])
    assert latencies.vanilla == pytest.approx([10000, 12000, 14000])


def test_threads_are_restored_after_the_block() -> None:
    import torch

    before = torch.get_num_threads()
    with pytest.raises(RuntimeError, match="broken"), on_threads(before + 1):
        assert torch.get_num_threads() == before + 1
        raise RuntimeError("broken")
    assert torch.get_num_threads() == before
    with on_threads(0):
        assert torch.get_num_threads() == before
