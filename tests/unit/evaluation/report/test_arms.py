"""The effect of alignment over seeds and examples, on results made by hand and by simulation."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from tasks.evaluation.report.arms import NO_LOSS, effect_of
from tasks.evaluation.results.summary import ArmPoint, ArmResult


def results(*speedups: tuple[float, float], error: float = 0.0) -> list[ArmResult]:
    """Unaligned and aligned speed-ups, seed by seed, with the standard error of their logarithms over examples."""
    reach = math.exp(1.959964 * error)
    return [
        ArmResult(
            arm=arm,
            seed=seed,
            points=[ArmPoint(purpose=NO_LOSS, speedup=value, speedup_interval=(value / reach, value * reach))],
        )
        for seed, pair in enumerate(speedups)
        for arm, value in zip(("unaligned", "aligned"), pair, strict=True)
    ]


def test_the_effect_is_the_mean_ratio_of_the_seeds() -> None:
    effect = effect_of(NO_LOSS, results((1.0, 1.2), (1.5, 1.8), (2.0, 2.4)))
    assert effect is not None
    assert effect.by_seed == pytest.approx({0: 1.2, 1: 1.2, 2: 1.2})
    assert effect.mean == pytest.approx(1.2)
    assert effect.interval == pytest.approx((1.2, 1.2))
    assert effect.finding == "helps"


def test_scatter_over_seeds_leaves_the_effect_open() -> None:
    effect = effect_of(NO_LOSS, results((1.0, 1.4), (1.0, 1.0), (1.0, 1.2)))
    assert effect is not None and effect.interval is not None
    assert effect.mean > 1.1 and effect.interval[0] < 1 and effect.finding == "open"


def test_more_seeds_do_not_reduce_the_error_over_examples() -> None:
    effects = [effect_of(NO_LOSS, results(*[(1.0, 1.1)] * seeds, error=0.1)) for seeds in (10, 1000)]
    errors = [math.log(effect.interval[1] / effect.mean) for effect in effects if effect is not None and effect.interval]
    assert errors == pytest.approx([1.960 * 0.1 * math.sqrt(2)] * 2, rel=1e-3)


def test_one_seed_proves_nothing() -> None:
    effect = effect_of(NO_LOSS, results((1.0, 3.0)))
    assert effect is not None and effect.interval is None and effect.finding == "open"


def test_a_copy_is_no_effect_of_alignment() -> None:
    """The fastest choice of an arm may draft without its model, and then says nothing of it."""
    both = results((1.0, 1.2), (1.0, 1.3), (1.0, 1.4))
    copying = dataclasses.replace(both[0].points[0], settings={"drafter": "copy"}, speedup=9.0)
    both[0] = dataclasses.replace(both[0], points=[copying])
    effect = effect_of(NO_LOSS, both)
    assert effect is not None
    assert effect.by_seed == pytest.approx({1: 1.3, 2: 1.4})
    assert effect_of(NO_LOSS, both[:2]) is None
    both[0] = dataclasses.replace(both[0], points=[dataclasses.replace(copying, settings={"drafter": "retokenized"})])
    assert effect_of(NO_LOSS, both[:2]) is not None, "the arm's model drafts with its text"


def test_an_arm_alone_has_no_effect() -> None:
    assert effect_of(NO_LOSS, results((1.0, 1.2))[:1]) is None


@pytest.mark.parametrize("scatter", [0.01, 0.05, 0.2])
def test_without_an_effect_few_simulations_find_one(scatter: float) -> None:
    rng, found = random.Random(0), 0
    for _ in range(2000):
        shared = rng.gauss(0, 0.03)  # the error over examples, which all seeds share
        pairs = [(1.5, 1.5 * math.exp(shared + rng.gauss(0, scatter))) for _ in range(3)]
        effect = effect_of(NO_LOSS, results(*pairs, error=0.03 / math.sqrt(2)))
        found += effect is not None and effect.finding != "open"
    assert found / 2000 < 0.06
