"""Sampled texts follow the distributions of the papers: exact enumeration against many draws, by chi-square."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tasks.decoding.distributions import PredictionBlock, TokenSource, probability
from tasks.decoding.generation import Generation
from tasks.decoding.loop import SpeculativeLoop, generate
from tasks.decoding.method import SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS
from tasks.decoding.rules import AcceptanceResult, AcceptanceRule, BonusToken, speculative_sampling
from tests.distributions import (
    DRAWS,
    FALSE_ALARM,
    LARGE,
    SAMPLINGS,
    SMALL,
    SOURCE,
    SequenceDistribution,
    dist,
    draw,
    model_distribution,
    p_value,
    scores,
)
from tests.toys import END, START, Predict, Prefix, prefix_pair


@functools.cache
def bild_distribution(settings: BildSettings, sampling: SamplingSettings, limit: int) -> SequenceDistribution:
    """The probability of each text under BiLD's Algorithm 1 if all draws are independent."""
    distribution: SequenceDistribution = defaultdict(float)

    def branch(text: Prefix, probability: float, unchecked: int, shares: np.ndarray) -> None:
        for token, share in enumerate(shares):
            if share > 0:
                grow((*text, token), probability * share, unchecked)

    def grow(text: Prefix, probability: float, unchecked: int) -> None:
        if len(text) - 1 == limit or text[-1] == END:
            distribution[text[1:]] += probability
            return
        confident = scores(SMALL, text).max() > settings.fallback_threshold
        if confident and len(text) - unchecked < settings.max_draft:
            branch(text, probability, unchecked, dist(SMALL, text, sampling))
            return
        for position in range(unchecked, len(text)):
            if -math.log(scores(LARGE, text[:position])[text[position]]) > settings.rollback_threshold:
                branch(text[:position], probability, position + 1, dist(LARGE, text[:position], sampling))
                return
        branch(text, probability, len(text) + 1, dist(LARGE, text, sampling))

    grow((START,), 1.0, 1)
    return distribution


def draw_with(rule: AcceptanceRule, sampling: SamplingSettings, limit: int) -> list[Generation]:
    """Speculative decoding with another acceptance rule."""
    settings, source = SpeculativeSettings(draft_length=2), TokenSource(0)
    method = METHODS["speculative"].build(prefix_pair(SMALL, LARGE), settings, sampling, source)
    assert isinstance(method, SpeculativeLoop)
    return generate(dataclasses.replace(method, acceptance=rule), [list(SOURCE)] * DRAWS, range(DRAWS), limit)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("draft_length", [1, 3])
def test_speculative_sampling_follows_the_large_model(sampling: SamplingSettings, draft_length: int) -> None:
    generations = draw("speculative", SpeculativeSettings(draft_length=draft_length), sampling, limit=3)
    assert p_value(generations, model_distribution(LARGE, sampling, 3)) > FALSE_ALARM
    assert p_value(generations, model_distribution(SMALL, sampling, 3)) < 1e-12
    assert {"s", "c", "l"} <= set("".join(one.proposers for one in generations))


@pytest.mark.parametrize(("method", "model"), [("vanilla_large", LARGE), ("vanilla_small", SMALL)])
def test_one_model_alone_follows_its_distribution(method: str, model: Predict) -> None:
    sampling = SAMPLINGS["all three"]
    assert p_value(draw(method, VanillaSettings(), sampling, limit=3), model_distribution(model, sampling, 3)) > FALSE_ALARM


def _drawn_from_p(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
    """Wrong: a rejected token is replaced from p."""
    return dataclasses.replace(speculative_sampling.apply(tokens, q, p), residual=p.dist)


def _accepted_by_scores(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
    """Wrong: acceptance reads the untruncated softmax."""
    accept = probability(p.scores, tokens) / probability(q.scores, tokens)
    return dataclasses.replace(speculative_sampling.apply(tokens, q, p), accept=accept.clamp_max(1))


def _accepted_by_p(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
    """Wrong: a token is kept with probability p."""
    return dataclasses.replace(speculative_sampling.apply(tokens, q, p), accept=probability(p.dist, tokens))


def _likeliest(q: PredictionBlock, p: PredictionBlock) -> Tensor:
    """Wrong: the token after a whole draft is the likeliest one, not a draw."""
    return torch.zeros_like(p.dist).scatter_(-1, p.dist.argmax(-1, keepdim=True), 1.0)


WRONG = {
    "replaced from p": AcceptanceRule(_drawn_from_p),
    "accepted by scores": AcceptanceRule(_accepted_by_scores),
    "accepted by p": AcceptanceRule(_accepted_by_p),
    "likeliest in the end": dataclasses.replace(speculative_sampling, bonus=BonusToken.RULE, target=_likeliest),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_the_check_detects_a_wrong_rule(wrong: AcceptanceRule) -> None:
    sampling = SAMPLINGS["all three"]
    distribution = model_distribution(LARGE, sampling, 3)
    assert p_value(draw_with(speculative_sampling, sampling, 3), distribution) > FALSE_ALARM
    assert p_value(draw_with(wrong, sampling, 3), distribution) < 1e-6


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_a_token_is_accepted_with_probability_sum_of_minima(sampling: SamplingSettings) -> None:
    generations = draw("speculative", SpeculativeSettings(draft_length=1), sampling, limit=2)
    accepted = sum(one.counts.accepted for one in generations)
    minima = np.minimum(dist(SMALL, (START,), sampling), dist(LARGE, (START,), sampling)).sum()
    assert 0.1 < minima < 0.9
    assert stats.binomtest(accepted, DRAWS, minima).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "settings",
    [
        BildSettings(fallback_threshold=0.0, rollback_threshold=1.0, max_draft=3),
        BildSettings(fallback_threshold=0.4, rollback_threshold=1.5, max_draft=2),
        BildSettings(fallback_threshold=0.0, rollback_threshold=math.inf, max_draft=2),
    ],
    ids=["never falls back", "falls back", "never rolls back"],
)
def test_sampled_bild_draws_tokens_independently(settings: BildSettings) -> None:
    """A discarded draft must not influence the next; the test below breaks this on purpose."""
    sampling = SAMPLINGS["plain"]
    assert p_value(draw("bild", settings, sampling, limit=4), bild_distribution(settings, sampling, 4)) > FALSE_ALARM


def test_the_check_detects_a_reused_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, sampling = BildSettings(fallback_threshold=0.0, rollback_threshold=1.0, max_draft=3), SAMPLINGS["plain"]
    fresh = TokenSource.uniform

    def again(source: TokenSource, example: int, position: int, purpose: str) -> float:
        return fresh(source, example, position, purpose.split()[0])

    monkeypatch.setattr(TokenSource, "uniform", again)
    assert p_value(draw("bild", settings, sampling, 4, draws=2 * DRAWS), bild_distribution(settings, sampling, 4)) < 1e-12


def measured(run: Callable[[int], list[Generation]]) -> float:
    """The share of positions at which two seeds agree."""
    pairs = zip(run(0), run(1), strict=True)
    return float(np.mean([first.tokens[0] == second.tokens[0] for first, second in pairs]))


def test_seeds_are_independent() -> None:
    sampling = SAMPLINGS["plain"]
    agreement = measured(lambda seed: draw("speculative", SpeculativeSettings(draft_length=2), sampling, 1, seed))
    assert agreement == pytest.approx(float((dist(LARGE, (START,), sampling) ** 2).sum()), abs=0.03)
