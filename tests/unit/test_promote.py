"""The rule of promotion: by hand, on null trials, and its power."""

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.config import Params
from tasks.errors import InputError
from tasks.evaluation.results.rows import TimedRound
from tasks.promote import Gain, decide, gain, promote

MARGIN = 0.5


def decided(quality: tuple[float, float], speed: tuple[float, float]) -> tuple[bool, str]:
    middle = [sum(interval) / 2 for interval in (quality, speed)]
    return decide(Gain(middle[0], quality, middle[1], speed), "bleu", MARGIN, "the champion")


@pytest.mark.parametrize(
    ("quality", "speed", "promoted", "why"),
    [
        ((-0.4, 0.1), (1.1, 1.3), True, "faster, and loses less than 0.5 points"),
        ((0.1, 0.5), (1.1, 1.3), True, "faster and better"),
        ((-0.5, 0.1), (1.1, 1.3), False, "faster, but it may lose 0.5 points or more"),
        ((0.1, 0.5), (0.96, 1.1), True, "better, and loses less than 5% of the speed"),
        ((0.1, 0.5), (0.95, 1.1), False, "better, but it may lose 5% of the speed or more"),
        ((0.0, 0.5), (1.0, 1.3), False, "neither faster nor better beyond noise"),
        ((-0.6, -0.1), (0.8, 0.9), False, "neither faster nor better beyond noise"),
    ],
)
def test_the_rule_by_hand(quality: tuple[float, float], speed: tuple[float, float], promoted: bool, why: str) -> None:
    decision, line = decided(quality, speed)
    assert decision is promoted
    assert line.startswith(f"{why}: ")
    assert line.endswith(f"BLEU {sum(quality) / 2:+.2f} [{quality[0]:+.2f}, {quality[1]:+.2f}]")
    assert f"× [{speed[0]:.2f}, {speed[1]:.2f}] as fast as the champion" in line


def test_a_pair_that_is_measured_by_perplexity_is_refused_before_anything_is_fetched() -> None:
    params = Params.model_validate({"active": {"texts": "data"}, "tasks": {"texts": {"metric": "perplexity"}}})
    with pytest.raises(InputError, match="task texts: promotion compares the outputs of two pairs, and the metric perplexity"):
        promote(params, "texts", None, None, 2, again=False)  # type: ignore[arg-type]  # neither is looked at


def test_what_a_candidate_gives_by_hand() -> None:
    scores = np.array([[10.0], [20.0], [30.0], [40.0]])
    rounds = [TimedRound(latency_ms=[1.0, 2.0], vanilla_latency_ms=[2.0, 4.0])] * 3
    found = gain(scores + 5, scores, rounds, 200, 0)
    # No text differs from the others in what it gains, but a further one may lose all its points.
    low, high = found.quality_interval
    assert found.quality_difference == pytest.approx((low + high) / 2) == 5.0 and high - low > 40
    assert found.speed_ratio == 2.0
    assert found.speed_interval == pytest.approx((2.0, 2.0))
    lower = gain(scores, scores + np.array([[0.0], [0.0], [0.0], [8.0]]), rounds, 200, 0)
    assert lower.quality_difference == -2.0
    assert lower.quality_interval[0] < -2 - 1.96 * np.std([0, 0, 0, 8]) / 2
    assert lower.quality_interval[1] > -2 + 1.96 * np.std([0, 0, 0, 8]) / 2


Source = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""Scores of the same examples by two decodings, and milliseconds `[rounds, 2, examples]` of one pair timed against itself."""


def source(*, differ: float = 0.3) -> Source:
    """Scores that differ on some examples, and rounds with noise of calls and of whole rounds (3 % and 2 %)."""
    rng = np.random.default_rng(5)
    scores = rng.uniform(20, 100, (400, 1))
    other = scores + np.where(rng.random((400, 1)) < differ, rng.normal(0.0, 15, (400, 1)), 0.0)
    lengths = rng.uniform(5, 20, 50)
    calls = 0.03 * rng.standard_normal((24, 2, 50))
    calls[:, 0] += 0.02 * rng.standard_normal((24, 1))
    return scores, other, lengths * np.exp(calls)


def null_gains(source: Source, trials: int, samples: int, seed: int, faster: float = 1.0) -> Iterator[Gain]:
    """Yield what a candidate gives that is equal to the reference in truth, or only faster.

    Of each drawn example a coin says which side gives which of the two outputs; of each drawn round, which side was which.
    """
    first, second, latencies = source
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        drawn = rng.integers(len(first), size=len(first))
        coin = rng.random(len(first))[:, None] < 0.5
        sides = np.where(coin, first[drawn], second[drawn]), np.where(coin, second[drawn], first[drawn])
        times = latencies[rng.integers(len(latencies), size=8)]
        times = times[:, :, rng.integers(times.shape[2], size=times.shape[2])]
        times = np.where((rng.random(8) < 0.5)[:, None, None], times[:, ::-1], times)
        rounds = [TimedRound(latency_ms=(a / faster).tolist(), vanilla_latency_ms=b.tolist()) for a, b in times]
        yield gain(*sides, rounds, samples, seed)


def promoted(gains: list[Gain], margin: float = MARGIN) -> float:
    return sum(decide(one, "rougeL", margin, "the champion")[0] for one in gains) / len(gains)


def test_at_most_five_of_a_hundred_null_trials_promote() -> None:
    """Many trials, since the count in one hundred varies; with many, few and no differing outputs, also with a wide margin."""
    for differ in (0.3, 0.01, 0.0):
        gains = list(null_gains(source(differ=differ), 300, 100, 1))
        assert promoted(gains) <= 0.05
        assert promoted(gains, margin=20.0) <= 0.05


def test_a_candidate_that_is_a_tenth_faster_is_mostly_promoted() -> None:
    assert promoted(list(null_gains(source(differ=0.02), 100, 200, 2, faster=1.1)), margin=1.5) >= 0.8


def test_a_faster_candidate_that_loses_the_margin_is_not_promoted() -> None:
    """The truth lies at the margin: the most that the rule has to refuse."""
    rng = np.random.default_rng(0)
    scores, losses = rng.uniform(20, 100, (4000, 1)), rng.exponential(MARGIN / 0.3, (4000, 1)) * (rng.random((4000, 1)) < 0.3)
    losses *= MARGIN / losses.mean()
    fast = [TimedRound(latency_ms=[1.0] * 50, vanilla_latency_ms=[1.3] * 50)] * 8
    for share, fewest, most in ((1.0, 0.0, 0.05), (0.5, 0.9, 1.0)):  # half of the margin is mostly shown to be less
        gains = []
        for _ in range(200):
            drawn = rng.integers(4000, size=4000)
            gains.append(gain((scores - share * losses)[drawn], scores[drawn], fast, 100, 0))
        assert fewest <= promoted(gains) <= most
