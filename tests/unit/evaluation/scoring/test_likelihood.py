"""Perplexity of given texts from sums, its derivatives, and what has none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tasks.errors import InputError
from tasks.evaluation.metrics import METRICS, InfinitePerplexityError, likelihood_statistics, points_of
from tasks.evaluation.quality import gradients_of, score, score_likelihoods, values_of
from tasks.evaluation.selection import paired_differences

LIKELIHOODS, TOKENS = [-6.0, -2.0, -12.0, -5.0], [3, 2, 4, 1]


def test_perplexity_is_of_all_tokens_and_not_a_mean_of_texts() -> None:
    found = score_likelihoods(LIKELIHOODS, TOKENS, 200, 1)
    assert found.scores == {"perplexity": pytest.approx(math.exp(2.5))}
    assert found.value == -found.scores["perplexity"]
    assert found.interval[0] < found.value < found.interval[1] < 0
    assert found.signature == "tokens:10|given:the second part of each text|distribution:temperature 1"
    assert found.minus(found) == (0.0, 0.0)


def test_less_perplexity_is_more_quality() -> None:
    worse = score_likelihoods([value - 1 for value in LIKELIHOODS], TOKENS, 200, 1)
    better = score_likelihoods(LIKELIHOODS, TOKENS, 200, 1)
    assert worse.scores["perplexity"] > better.scores["perplexity"]
    assert worse.value < better.value
    assert max(worse.minus(better)) < 0
    assert {points_of(name, 3.0) for name in METRICS if name != "perplexity"} == {3.0}
    assert points_of("perplexity", 3.0) == -3.0


def test_gradients_are_those_of_the_value() -> None:
    sums, step = np.array([[25.0, 10.0], [70.0, 33.0]]), 1e-6
    found = gradients_of(sums, 4)
    for column in range(2):
        shift = np.zeros(2)
        shift[column] = step
        slope = (values_of(sums + shift, 4) - values_of(sums - shift, 4)) / (2 * step)
        assert found[:, column] == pytest.approx(slope, rel=1e-6)


def test_influences_predict_what_an_example_is_worth() -> None:
    """Leaving an example out changes the difference by about its influence over n, as for every metric that is of sums."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(50, 100, 400).tolist()
    nats = [rng.uniform(1.9, 2.1, 400) * tokens for _ in range(2)]
    point, vanilla = (likelihood_statistics((-one).tolist(), tokens) for one in nats)
    differences = paired_differences(point[None], vanilla)
    assert differences.values[0] == pytest.approx(math.exp(nats[1].sum() / sum(tokens)) - math.exp(nats[0].sum() / sum(tokens)))
    for left_out in (0, 57, 399):
        rest = [index for index in range(400) if index != left_out]
        without = paired_differences(point[None, rest], vanilla[rest]).values[0]
        assert 399 * (differences.values[0] - without) == pytest.approx(differences.influence[0, left_out], abs=0.02)


@pytest.mark.parametrize("value", [-math.inf, math.nan, -1500.0])
def test_an_impossible_text_has_no_perplexity(value: float) -> None:
    with pytest.raises(InfinitePerplexityError, match="the text of example 1 has a log-likelihood of"):
        score_likelihoods([-1.0, value], [2, 2], 100, 0)


@pytest.mark.parametrize(("values", "tokens"), [([], []), ([-1.0], [1, 2]), ([-1.0], [0])])
def test_texts_without_tokens_are_refused(values: list[float], tokens: list[int]) -> None:
    with pytest.raises(ValueError, match="one for each, of at least a token"):
        score_likelihoods(values, tokens, 100, 0)


def test_outputs_have_no_perplexity() -> None:
    with pytest.raises(InputError, match="the metric perplexity is of given texts, and these are outputs; choose another"):
        score(["a"], [("a",)], "perplexity", 100, 0)
