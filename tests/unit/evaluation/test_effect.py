"""What alignment gives, by counts: by hand, without an effect, with one, and how often its interval holds the truth."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.evaluation import effect
from tasks.evaluation.effect import Curves, counted_curves, effect_of_choices, milliseconds
from tasks.evaluation.results.rows import TimedRound
from tasks.evaluation.results.summary import AlignmentEffect
from tests.ticking import costs_of
from tests.unit.evaluation.conftest import PRICES


def test_a_run_over_several_positions_has_a_price_for_itself_and_one_for_each() -> None:
    prices = {"text_ms": 0.6, "large_call_ms": 1.5, "checked_position_ms": 0.5, "drafter_step_ms": 0.3}
    assert vars(effect.cost_model(costs_of(0.2, 0.4, 0.3, {1: 2.0, 2: 2.5, 4: 3.5}))) == pytest.approx(prices)
    alone = vars(effect.cost_model(costs_of(0.2, 0.4, 0.3, {1: 2.0})))
    assert alone == {**prices, "large_call_ms": 2.0, "checked_position_ms": 0.0, "text_ms": alone["text_ms"]}


def test_the_time_of_a_text_follows_from_its_counts() -> None:
    assert milliseconds(np.array([[3, 10, 8], [0, 0, 0]]), PRICES).tolist() == [1 + 6 + 5 + 2, 1]


def work(rng: np.random.Generator, texts: int, calls: float) -> NDArray[np.int32]:
    """Counts of texts with so many large calls on average, each over four positions."""
    found = 1 + rng.poisson(calls - 1, size=texts)
    return np.stack([found, 4 * found, 3 * found], axis=1).astype(np.int32)


def arms(seeds: int, ratio: float, scatter: float = 0.0, texts: int = 500) -> Mapping[str, Mapping[int, NDArray[np.int32]]]:
    """Work of both arms by seed; the unaligned drafters need `ratio` times as many calls, by seed more or less."""
    rng = np.random.default_rng(0)
    factors = np.exp(rng.normal(0, scatter, size=seeds))
    return {
        "unaligned": {seed: work(rng, texts, 5 * ratio * factors[seed]) for seed in range(seeds)},
        "aligned": {seed: work(rng, texts, 5) for seed in range(seeds)},
    }


def test_the_effect_is_the_mean_ratio_of_the_times_of_the_seeds() -> None:
    both = arms(3, 1.2)
    effect = effect_of_choices("bild_no_loss", "test", both, PRICES)
    assert effect is not None and (effect.split, effect.texts) == ("test", 500)
    by_hand = {
        seed: milliseconds(both["unaligned"][seed], PRICES).sum() / milliseconds(both["aligned"][seed], PRICES).sum()
        for seed in range(3)
    }
    assert effect.by_seed == pytest.approx(by_hand)
    assert effect.ratio == pytest.approx(math.prod(by_hand.values()) ** (1 / 3))
    assert effect.interval is not None and 1 < effect.interval[0] < effect.ratio < effect.interval[1] < 1.3
    assert effect.finding == "helps"
    assert effect.counts["aligned"]["checked_positions"] == pytest.approx(4 * effect.counts["aligned"]["large_calls"])
    swapped = effect_of_choices("bild_no_loss", "test", {"unaligned": both["aligned"], "aligned": both["unaligned"]}, PRICES)
    assert swapped is not None and swapped.finding == "hurts" and swapped.ratio == pytest.approx(1 / effect.ratio)


def test_scatter_over_seeds_leaves_the_effect_open_and_one_seed_proves_nothing() -> None:
    effect = effect_of_choices("speculative", "test", arms(3, 1.1, scatter=0.3), PRICES)
    assert effect.interval[0] < 1 < effect.interval[1] and effect.finding == "open"
    alone = effect_of_choices("speculative", "test", arms(1, 3.0), PRICES)
    assert alone is not None and alone.interval is None and alone.finding == "open"
    assert effect_of_choices("speculative", "test", {"unaligned": {}, "aligned": arms(1, 1.0)["aligned"]}, PRICES) is None


Setting = tuple[NDArray[np.int32], NDArray[np.float64]]


def frontier(rng: np.random.Generator, ratio: float, texts: int = 400, better: float = 0.0) -> list[Setting]:
    """Settings that take 3 to 8 calls and score 55 to 60 points, a point a call; the last one is dear and bad."""
    scores = better + 60 + np.random.default_rng(9).normal(0, 20, size=texts)  # the texts of all drafters
    settings = []
    for calls in range(3, 9):
        needed = work(rng, texts, calls * ratio)
        settings.append((needed, (scores + calls - 8 + rng.normal(0, 0.5, size=texts))[:, None]))
    return [*settings, (work(rng, texts, 20), (scores - 30)[:, None])]


def compared(arms: Mapping[str, Mapping[int, Curves]]) -> AlignmentEffect | None:
    return effect.effect_of_frontiers("bild_frontiers", "validation", arms, 60.0)


RATIOS = {"unaligned": 1.2, "aligned": 1.0}


def test_frontiers_are_compared_at_equal_quality() -> None:
    rng = np.random.default_rng(1)
    both = {arm: {seed: counted_curves(frontier(rng, ratio), PRICES) for seed in (1, 2, 3)} for arm, ratio in RATIOS.items()}
    effect = compared(both)
    # 1.2 times as many calls, of which each takes 2 + 4 · 0.5 + 3 · 0.25 ms, beside 1 ms of every text.
    assert effect.ratio == pytest.approx(1.19, abs=0.02)
    assert effect.finding == "helps" and effect.interval[1] - effect.interval[0] < 0.1 and effect.counts == {}
    assert compared({arm: {1: both[arm][1]} for arm in both}) is not None
    assert compared({"unaligned": {}, "aligned": both["aligned"]}) is None
    # Where all of the aligned arm is worth 40 points more, its fastest setting serves; where it is worth less, none does.
    above, below = (counted_curves(frontier(rng, 1.0, better=more), PRICES) for more in (40.0, -40.0))
    effect = compared({"unaligned": both["unaligned"], "aligned": {1: above}})
    assert effect is not None and effect.ratio > 1.5
    assert compared({"unaligned": both["unaligned"], "aligned": {1: below}}) is None


def rounds_of(
    setting: Setting, rng: np.random.Generator, pace: Sequence[float], noise: float = 0.02, texts: int = 100
) -> list[TimedRound]:
    """Rounds of the first texts beside vanilla, which takes 10 ms; in each the method is slower by its pace."""
    counted = milliseconds(setting[0], PRICES)[:texts]
    return [
        TimedRound(
            latency_ms=(counted * one * np.exp(rng.normal(0, noise, size=texts))).tolist(),
            vanilla_latency_ms=(10 * np.exp(rng.normal(0, noise, size=texts))).tolist(),
        )
        for one in pace
    ]


def by_clock(ratio: float, pace: Sequence[float]) -> AlignmentEffect | None:
    """Three seeds, whose unaligned drafters are slower by `pace` in each round."""
    rng = np.random.default_rng(4)
    arms: dict[str, dict[int, Curves]] = {arm: {} for arm in RATIOS}
    for arm, more in (("unaligned", ratio), ("aligned", 1.0)):
        for seed in (1, 2, 3):
            paces = pace if arm == "unaligned" else [1.0] * len(pace)
            settings = frontier(rng, more)
            arms[arm][seed] = effect.timed_curves([(rounds_of(one, rng, paces), one[1]) for one in settings])
    return compared(arms)


def test_the_clock_confirms_the_counts_and_knows_what_its_rounds_differ_by() -> None:
    steady, moving = by_clock(1.2, [1.0] * 4), by_clock(1.2, [0.9, 1.1, 1.0, 1.0])
    assert steady.ratio == pytest.approx(1.19, abs=0.03) and steady.finding == "helps" and steady.texts == 100
    assert moving.interval[1] - moving.interval[0] > 1.5 * (steady.interval[1] - steady.interval[0])
    nothing = by_clock(1.0, [1.0] * 4)
    assert nothing is not None and nothing.finding == "open"


def test_without_alignment_the_frontiers_differ_by_no_finding() -> None:
    rng = np.random.default_rng(2)
    for _ in range(4):
        effect = compared({arm: {seed: counted_curves(frontier(rng, 1.0, 200), PRICES) for seed in (1, 2)} for arm in RATIOS})
        assert effect is not None and effect.finding == "open" and effect.ratio == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("seeds", [2, *(pytest.param(more, marks=pytest.mark.slow) for more in (3, 5))])
@pytest.mark.parametrize(("scatter", "shared"), [(0.0, 0.2), (0.01, 0.0), (0.03, 0.2)])
def test_the_interval_holds_the_truth_in_94_of_100_simulations(seeds: int, scatter: float, shared: float) -> None:
    """Log ratios of seeds that vary by `scatter`, on texts that favour one arm by `shared`, for all seeds alike."""
    rng, texts, hits, trials = np.random.default_rng(3), 300, 0, 1000
    for _ in range(trials):
        together, own = rng.normal(0, shared, size=texts), rng.normal(0, 0.25, size=(seeds, texts))
        ratios = together + own + rng.normal(0, scatter, size=seeds)[:, None]
        # What a bootstrap over texts gives, without drawing it: normal errors of the means, with their covariance.
        covariance = np.cov(ratios) / texts
        drawn = rng.multivariate_normal(ratios.mean(axis=1), np.atleast_2d(covariance), size=200, method="cholesky")
        hits += abs(ratios.mean()) <= effect.reach_of(ratios.mean(axis=1).tolist(), drawn)
    assert hits / trials >= 0.94
