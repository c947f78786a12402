"""The law of a learning curve on points whose law is known, its check and forecast, and calibration sets that are too small."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest

from tasks import learning_curve as module
from tasks.alignment.settings import AlignSettings
from tasks.errors import InputError
from tasks.learning_curve import LearningCurve, chosen_texts, described, fit, learning_curve, resample, texts_read, verdict
from tasks.training.data import TokenDataset

SIZES = [1000, 2000, 4000, 8000]
TEXTS = 300
GREEDY = "acceptance_greedy"


def curve_of(
    rate: Callable[[float], float], seeds: int = 3, noise: float = 0.0005, read: int = 10**6, draw: int = 0
) -> LearningCurve:
    """The curve of drafters whose acceptance is `rate` of x, but for noise of each training."""
    rng = np.random.default_rng(draw)
    expected = np.array([rate(min(size, read) / SIZES[-1]) for size in SIZES])
    rates = {seed: expected + rng.normal(0, noise, len(SIZES)) for seed in range(seeds)}
    positions, easier = np.full(TEXTS, 10.0), np.linspace(-0.1, 0.1, TEXTS)
    sums = [positions * (mean + easier) for mean in np.mean(list(rates.values()), axis=0)]
    return learning_curve(SIZES, read, rates, resample(rates, sums, positions, samples=200))


@pytest.mark.parametrize(("limit", "drop", "exponent"), [(0.9, 0.05, 0.3), (0.85, 0.01, 1.0), (0.95, 0.1, 0.15)])
def test_a_known_power_law_is_recovered(limit: float, drop: float, exponent: float) -> None:
    rates = [limit - drop * (size / SIZES[-1]) ** -exponent for size in SIZES]
    found = fit([size / SIZES[-1] for size in SIZES], np.array([rates]), module.LAWS["power law"])
    assert found.exponent == pytest.approx([exponent], rel=0.05)
    assert found.at(10) == pytest.approx([limit - drop * 10**-exponent], abs=1e-3)
    bend = curve_of(lambda one: limit - drop * one**-exponent, noise=1e-5)
    assert bend.law == "power law"
    assert bend.forecasts[0].rate == pytest.approx(limit - drop * 2**-exponent, abs=1e-3)


def test_a_straight_line_in_the_logarithm_is_recovered() -> None:
    found = curve_of(lambda x: 0.8 + 0.01 * math.log2(x), noise=1e-5)
    assert found.law == "straight line in the logarithm"
    assert list(found.parameters.values()) == pytest.approx([0.8, 0.01 / math.log(2), 0], abs=1e-3)
    twice, tenfold = found.forecasts
    assert [twice.gain, tenfold.gain] == pytest.approx([0.01, 0.0332], abs=1e-3)
    assert twice.gain_interval[0] > 0
    assert verdict(found, GREEDY).startswith("Twice the calibration texts would raise the greedy acceptance: +0.0100 [")


def test_a_flat_curve_forecasts_no_gain() -> None:
    found = curve_of(lambda _: 0.8, draw=3)
    for one in found.forecasts:
        assert one.gain_interval[0] <= 0 <= one.gain_interval[1]
    assert verdict(found, GREEDY).startswith("Twice the calibration texts are not shown to raise the greedy acceptance: ")


def test_the_left_out_point_is_where_the_law_expects_it_or_said_to_be_outside() -> None:
    smooth = curve_of(lambda x: 0.85 - 0.02 * x**-0.5)
    assert next(check for check in smooth.checks if check.law == smooth.law).held
    jump = curve_of(lambda x: 0.8 + 0.1 * (x == 1))
    assert not any(check.held for check in jump.checks)
    assert "outside: do not rely on the forecast" in "\n".join(described(jump, GREEDY))


def test_the_interval_covers_other_trainings() -> None:
    """Nominally 95 % of these; the law is chosen by the data too, and three seeds know little of their spread."""
    gains = 0.02 * (1 - 2**-0.5)
    found = [curve_of(lambda x: 0.85 - 0.02 * x**-0.5, noise=0.001, draw=draw).forecasts[0] for draw in range(100)]
    inside = sum(one.gain_interval[0] <= gains <= one.gain_interval[1] for one in found)
    assert inside >= 85


def test_one_seed_knows_other_texts_alone() -> None:
    alone, several = curve_of(lambda _: 0.8, seeds=1), curve_of(lambda _: 0.8, noise=0.01)
    width = alone.points[0].interval[1] - alone.points[0].interval[0]
    assert 0 < width < several.points[0].interval[1] - several.points[0].interval[0]


def test_texts_that_no_step_reads_bring_nothing() -> None:
    found = curve_of(lambda x: 0.8 + 0.01 * math.log2(x), read=6000)
    assert [one.gain for one in found.forecasts] == [0.0, 0.0]
    assert (
        verdict(found, GREEDY)
        == "More calibration texts would bring nothing: the steps read 6,000 of 8,000. Raise align.steps first."
    )
    twice, tenfold = curve_of(lambda x: 0.8 + 0.01 * math.log2(x), read=12000).forecasts
    assert twice.gain == tenfold.gain == pytest.approx(0.01 * math.log2(1.5), abs=1e-3)


def test_smaller_parts_are_inside_larger_ones_and_another_seed_draws_others() -> None:
    parts = [set(chosen_texts(1000, share, 1)) for share in module.SHARES]
    assert [len(part) for part in parts] == [125, 250, 500, 1000]
    assert parts[0] < parts[1] < parts[2] < parts[3]
    assert set(chosen_texts(1000, 1 / 8, 2)) != parts[0]
    assert chosen_texts(1000, 1.0, 1) == list(range(1000))


def examples(count: int) -> TokenDataset:
    return TokenDataset([[5, 1]] * count, [[6, 7, 1]] * count, 0)


def test_a_calibration_set_that_is_too_small_is_refused_in_one_line() -> None:
    settings = AlignSettings(steps=76, batch_size=16)
    assert texts_read(examples(600), settings) == 1200  # two epochs of 38 batches, of which the smallest holds 8 texts
    with pytest.raises(
        InputError, match=r"^the calibration set has 511 texts, too few for a learning curve; it takes 512: raise"
    ):
        texts_read(examples(511), settings)
    few = dataclasses.replace(settings, steps=18)
    with pytest.raises(
        InputError, match=r"^the 18 steps of align read 288 of 640 calibration texts; .* align\.steps is raised$"
    ):
        texts_read(examples(640), few)
