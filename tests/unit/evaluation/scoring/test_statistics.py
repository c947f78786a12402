"""Intervals: the paired bootstrap, and speed-ups from rounds of timing on a busy machine."""

import math

import numpy as np
import pytest

from tasks.evaluation.results.rows import TimedRound
from tasks.evaluation.scoring import statistics


def test_the_interval_holds_the_ratio_of_sums_and_narrows_with_examples() -> None:
    draws = np.random.default_rng(5)
    numerator, denominator = draws.uniform(20, 60, 800), draws.uniform(10, 30, 800)
    few = statistics.ratio_interval(numerator[:50].tolist(), denominator[:50].tolist(), samples=500, seed=0)
    many = statistics.ratio_interval(numerator.tolist(), denominator.tolist(), samples=500, seed=0)
    assert many[0] < numerator.sum() / denominator.sum() < many[1]
    assert many[1] - many[0] < (few[1] - few[0]) / 2


def test_pairs_are_resampled_together() -> None:
    sums = statistics.resampled_sums([[1.0, 10.0], [2.0, 20.0], [5.0, 50.0]], samples=50, seed=3)
    assert sums.shape == (50, 2)
    assert np.array_equal(sums[:, 1], 10 * sums[:, 0])
    assert sums[:, 0].min() >= 3 and sums[:, 0].max() <= 15
    assert len(set(sums[:, 0])) > 3


def test_the_seed_decides_the_draws() -> None:
    columns = np.arange(20.0).reshape(-1, 1)
    assert np.array_equal(statistics.resampled_sums(columns, 10, seed=4), statistics.resampled_sums(columns, 10, seed=4))
    assert not np.array_equal(statistics.resampled_sums(columns, 10, seed=4), statistics.resampled_sums(columns, 10, seed=5))


def test_percentiles_of_a_ladder() -> None:
    assert statistics.percentile_interval(np.arange(0, 1001)) == (25.0, 975.0)


@pytest.mark.parametrize(("numerator", "denominator"), [([], []), ([1.0], [1.0, 2.0]), ([1, 1], [1, 0]), ([1.0], [-1.0])])
def test_what_is_no_pair_of_latencies_is_refused(numerator: list[float], denominator: list[float]) -> None:
    with pytest.raises(ValueError, match=r"denominator|resamples|dimensions"):
        statistics.ratio_interval(numerator, denominator, samples=10, seed=0)


def test_nothing_cannot_be_resampled() -> None:
    with pytest.raises(ValueError, match="resamples"):
        statistics.resampled_sums(np.empty((0, 2)), samples=10, seed=0)


def rounds_of(*rounds: tuple[list[float], list[float]]) -> list[TimedRound]:
    return [TimedRound(latency_ms=method, vanilla_latency_ms=vanilla) for method, vanilla in rounds]


def test_a_slow_call_in_one_round_of_three_changes_nothing() -> None:
    quiet = ([1.0, 2.0], [3.0, 4.0])
    assert statistics.combined(rounds_of(quiet, ([1.0, 90.0], [80.0, 4.0]), quiet)) == quiet
    assert statistics.combined(rounds_of(quiet, ([3.0, 4.0], [5.0, 8.0]))) == ([2.0, 3.0], [4.0, 6.0])


def test_the_scatter_of_rounds_by_hand() -> None:
    rounds = rounds_of(([1.0, 1.0], [2.0, 2.0]), ([1.0, 1.0], [3.0, 1.0]), ([2.0, 2.0], [6.0, 6.0]))
    logs = [math.log(2), math.log(2), math.log(3)]
    assert statistics.rounds_reach(rounds) == pytest.approx(4.303 * np.std(logs, ddof=1) * math.sqrt(2 / 3), rel=1e-3)
    assert statistics.rounds_reach(rounds[:1]) == 0.0


def test_one_stalled_call_does_not_widen_the_interval_but_a_slow_round_does() -> None:
    rng = np.random.default_rng(4)
    ended = [(np.full(50, 0.6) * np.exp(0.02 * rng.normal(size=50))).tolist() for _ in range(4)]
    rounds = rounds_of(*((method, [1.2] * 50) for method in ended))
    low, high = statistics.speedup_interval(rounds, 200, 0)
    assert 1.9 < low < high < 2.1
    ended[0][7] = 430.0  # a round of 460 ms instead of 30: the logarithm of its speed-up falls by 2.7
    stalled = statistics.speedup_interval(rounds_of(*((method, [1.2] * 50) for method in ended)), 200, 0)
    assert stalled == pytest.approx((low, high), rel=0.08)
    ended[0] = [1.0] * 50
    slow = statistics.rounds_reach(rounds_of(*((method, [1.2] * 50) for method in ended)))
    assert slow == pytest.approx(3.182 * np.std(np.log([2, 2, 2, 1.2]), ddof=1) / 2**0.5, rel=0.05)


def test_without_scatter_of_rounds_the_interval_is_that_of_the_examples() -> None:
    latencies = ([1.0, 2.0, 4.0], [3.0, 3.0, 9.0])
    for count in (1, 3):
        wanted = statistics.ratio_interval(latencies[1], latencies[0], samples=200, seed=3)
        assert statistics.speedup_interval(rounds_of(*[latencies] * count), 200, 3) == pytest.approx(wanted)


def simulated(rng: np.random.Generator, rounds: int) -> list[TimedRound]:
    """Twelve of endlessly many examples whose speed-ups scatter around 2 by 6 %; a round's state adds 4 %, a call 3 %."""
    lengths, gains = rng.uniform(5, 15, 12), 2.0 * np.exp(0.06 * rng.normal(size=12))
    found = []
    for _ in range(rounds):
        state = np.exp(0.04 * rng.normal())
        method, vanilla = (lengths * np.exp(0.03 * rng.normal(size=12)) for _ in range(2))
        found.append(TimedRound(latency_ms=(method / gains * state).tolist(), vanilla_latency_ms=vanilla.tolist()))
    return found


def test_speedup_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    assert statistics.speedup_of(rounds_of(([1.0, 10.0], [4.0, 10.0]))) == pytest.approx(14 / 11)


@pytest.mark.parametrize("rounds", [2, 4])
def test_intervals_hold_the_truth_as_often_as_they_say(rounds: int) -> None:
    rng = np.random.default_rng(rounds)
    truth = 2.0 * math.exp(-0.5 * 0.06**2)  # Σ vanilla / Σ method over endlessly many examples
    intervals = [statistics.speedup_interval(simulated(rng, rounds), 200, 0) for _ in range(400)]
    assert np.mean([low <= truth <= high for low, high in intervals]) > 0.93
    widths = [math.log(high / low) for low, high in intervals]
    assert np.median(widths) < {2: 1.1, 4: 0.25}[rounds]  # and they are no wider than they must be


def test_a_repeated_sweep_of_the_same_examples_is_covered_only_with_the_scatter_of_rounds() -> None:
    """Two sweeps share their examples, so that an interval from examples alone may miss the other sweep."""
    rng = np.random.default_rng(0)
    inside, alone = list[bool](), list[bool]()
    for _ in range(300):
        examples = np.exp(0.005 * rng.normal(size=12)) * rng.uniform(5, 15, 12)
        first, second = (
            rounds_of(*(((examples / 2 * np.exp(0.04 * rng.normal())).tolist(), examples.tolist()) for _ in range(4)))
            for _ in range(2)
        )
        method, vanilla = statistics.combined(first)
        both = statistics.speedup_interval(first, 100, 0), statistics.ratio_interval(vanilla, method, 100, 0)
        for found, (low, high) in zip((inside, alone), both, strict=True):
            found.append(low <= statistics.speedup_of(second) <= high)
    assert np.mean(inside) > 0.93
    assert np.mean(alone) < 0.2


def alone(rng: np.random.Generator, steps: list[int], starts: list[float], noise: float = 0.01) -> list[TimedRound]:
    """A small model alone: 0.3 ms a text and 0.2 a step; each start of the process has a pace of its own."""
    times = 0.3 + 0.2 * np.array(steps)
    return [
        TimedRound(
            latency_ms=(times * pace * np.exp(rng.normal(0, noise, size=len(steps)))).tolist(),
            vanilla_latency_ms=[1.0] * len(steps),
        )
        for pace in starts
    ]


@pytest.mark.parametrize("longer", [0, 3])
def test_equal_models_come_out_equal_whatever_they_write(longer: int) -> None:
    """In 95 of 100 runs; one of the two may write longer texts, and each start of a process has a pace of its own."""
    rng, held, trials = np.random.default_rng(5), 0, 400
    for _ in range(trials):
        pairs = []
        for _ in range(2):
            steps = rng.integers(5, 15, size=60).tolist()
            others = [max(1, step + int(more)) for step, more in zip(steps, rng.integers(-1, 2 + longer, size=60), strict=True)]
            ours, theirs = (alone(rng, one, np.exp(rng.normal(0, 0.02, size=4)).tolist()) for one in (steps, others))
            pairs.append(((ours, steps), (theirs, others)))
        found = statistics.null_test(pairs)
        held += found[1][0] <= 1 <= found[1][1]
    assert held / trials >= 0.93


def test_a_model_that_is_slower_at_equal_work_is_no_equal_one() -> None:
    rng, steps = np.random.default_rng(6), list(range(5, 45))
    slow, fast = alone(rng, steps, [1.2, 1.21, 1.19, 1.2]), alone(rng, steps, [1.0, 1.01, 0.99, 1.0])
    found = statistics.null_test([((slow, steps), (fast, steps))])
    assert found is not None and 1.1 < found[1][0] < found[0] < found[1][1] < 1.3
    assert found[0] == pytest.approx(1.2, abs=0.02)
    assert statistics.null_test([((slow[:1], steps), (fast[:1], steps))]) is None and statistics.null_test([]) is None
