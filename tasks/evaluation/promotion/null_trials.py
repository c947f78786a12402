"""How often the rule promotes a candidate that gives nothing: trials made of one pair's examples and timings, drawn again.

In a null trial both sides are equal in truth. Of each drawn example a coin says which of two decodings with known outputs the
candidate gives; the other is the reference's. So their qualities differ by chance alone. Rounds are those of a pair timed
against itself; each drawn round is turned round by a coin, so that a lasting difference of the recorded rounds is no gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.evaluation.promotion.rule import Gain, gain
from tasks.evaluation.results.rows import TimedRound


@dataclass(frozen=True)
class NullSource:
    """What null trials are drawn from."""

    statistics: tuple[NDArray[np.generic], NDArray[np.generic]]
    """`[examples, values]` of two decodings of the same examples (`quality.example_statistics`)."""
    latencies: NDArray[np.float64]
    """`[rounds, 2, examples]`: milliseconds of one pair, timed against itself."""


def null_gains(source: NullSource, trials: int, rounds: int, samples: int, seed: int, *, faster: float = 1.0) -> Iterator[Gain]:
    """Yield what the candidate gives in each trial.

    Args:
        source: The examples and timings.
        trials: How many.
        rounds: Of each trial.
        samples: Bootstrap resamples of the speed ratio.
        seed: Of the draws.
        faster: The true speed ratio; 1 in a null trial, and otherwise a measure of power.
    """
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        candidate, reference = _exchanged(*source.statistics, rng)
        yield gain(candidate, reference, _rounds(source.latencies, rounds, faster, rng), samples, seed)


def _exchanged(
    first: NDArray[np.generic], second: NDArray[np.generic], rng: np.random.Generator
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Examples drawn with replacement; of each, a coin says which side gives which of the two outputs."""
    drawn = rng.integers(len(first), size=len(first))
    coin = rng.random(len(first))[:, None] < 0.5
    return np.where(coin, first[drawn], second[drawn]), np.where(coin, second[drawn], first[drawn])


def _rounds(latencies: NDArray[np.float64], rounds: int, faster: float, rng: np.random.Generator) -> Sequence[TimedRound]:
    """Rounds and examples drawn with replacement, and a coin for the sides of each round."""
    drawn = latencies[rng.integers(len(latencies), size=rounds)]
    drawn = drawn[:, :, rng.integers(drawn.shape[2], size=drawn.shape[2])]
    turned = rng.random(rounds) < 0.5
    drawn = np.where(turned[:, None, None], drawn[:, ::-1], drawn)
    return [TimedRound(latency_ms=(ours / faster).tolist(), vanilla_latency_ms=theirs.tolist()) for ours, theirs in drawn]
