"""What sampling emits follows the law that the papers promise: exact enumeration against many draws, by chi-square."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tasks.decoding.distributions import Block
from tasks.decoding.generation import Generation
from tasks.decoding.loop import generate
from tasks.decoding.randomness import TokenSource
from tasks.decoding.settings import BildSettings, SamplingSettings, SpeculativeSettings, VanillaSettings
from tasks.decoding.strategies import METHODS, Request, decode
from tasks.decoding.verdicts import AcceptanceRule, Verdict, speculative
from tests.toys import END, START, Predict, Prefix, prefix_pair, random_table

SOURCE = (5, END)
DRAWS = 6000
FALSE_ALARM = 1e-4
Law = dict[Prefix, float]

SMALL = random_table("small", agreement=0.5, sharpness=2.0, end=0.5)
LARGE = random_table("large", agreement=0.5, sharpness=2.0, end=0.5)
SAMPLINGS = {
    "plain": SamplingSettings(temperature=1.0),
    "cool, top-k": SamplingSettings(temperature=0.7, top_k=4),
    "warm, top-p": SamplingSettings(temperature=1.4, top_p=0.8),
    "all three": SamplingSettings(temperature=1.2, top_k=5, top_p=0.9),
}


def softmax(logits: Tensor) -> np.ndarray:
    exponents = np.exp(logits.double().numpy() - float(logits.max()))
    return np.asarray(exponents / exponents.sum())


@functools.cache
def scores(predict: Predict, prefix: Prefix) -> np.ndarray:
    """The model's own softmax."""
    return softmax(predict(SOURCE, prefix))


@functools.cache
def dist(predict: Predict, prefix: Prefix, sampling: SamplingSettings) -> np.ndarray:
    """The sampling transform, token by token: temperature, then top-k, then the nucleus of what is left."""
    probabilities = softmax(predict(SOURCE, prefix) / sampling.temperature)
    ranked = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    kept = ranked[: sampling.top_k or None]
    total, nucleus = 0.0, []
    for token in kept:
        if total >= sampling.top_p * probabilities[kept].sum():
            break
        nucleus.append(token)
        total += probabilities[token]
    result = np.zeros_like(probabilities)
    result[nucleus] = probabilities[nucleus] / total
    return result


@functools.cache
def law_of(predict: Predict, sampling: SamplingSettings, limit: int) -> Law:
    """The probability of each text that one model alone draws."""
    law: Law = {}

    def grow(text: Prefix, probability: float) -> None:
        if len(text) - 1 == limit or text[-1] == END:
            law[text[1:]] = probability
            return
        for token, share in enumerate(dist(predict, text, sampling)):
            if share > 0:
                grow((*text, token), probability * share)

    grow((START,), 1.0)
    return law


@functools.cache
def bild_law(settings: BildSettings, sampling: SamplingSettings, limit: int) -> Law:
    """The probability of each text under BiLD's Algorithm 1 with every token drawn afresh."""
    law: Law = defaultdict(float)

    def branch(text: Prefix, probability: float, unchecked: int, shares: np.ndarray) -> None:
        for token, share in enumerate(shares):
            if share > 0:
                grow((*text, token), probability * share, unchecked)

    def grow(text: Prefix, probability: float, unchecked: int) -> None:
        if len(text) - 1 == limit or text[-1] == END:
            law[text[1:]] += probability
            return
        confident = scores(SMALL, text).max() > settings.fallback_threshold
        if confident and len(text) - unchecked < settings.max_draft:
            branch(text, probability, unchecked, dist(SMALL, text, sampling))
            return
        for place in range(unchecked, len(text)):
            if -math.log(scores(LARGE, text[:place])[text[place]]) > settings.rollback_threshold:
                branch(text[:place], probability, place + 1, dist(LARGE, text[:place], sampling))
                return
        branch(text, probability, len(text) + 1, dist(LARGE, text, sampling))

    grow((START,), 1.0, 1)
    return law


def p_value(generations: list[Generation], law: Law) -> float:
    """Of the chi-square test that the texts follow the law; texts expected fewer than five times are taken together."""
    assert sum(law.values()) == pytest.approx(1)
    observed = Counter(tuple(one.tokens) for one in generations)
    if set(observed) - set(law):
        return 0.0
    expected = {text: probability * len(generations) for text, probability in law.items()}
    common = [text for text, count in expected.items() if count >= 5]
    assert len(common) > 10
    counts = [observed[text] for text in common]
    means = [expected[text] for text in common]
    counts.append(len(generations) - sum(counts))
    means.append(len(generations) - sum(means))
    return float(stats.chisquare(counts, means).pvalue)


def draw(method: str, settings: object, sampling: SamplingSettings, limit: int, seed: int = 0) -> list[Generation]:
    sources = [list(SOURCE)] * DRAWS
    return decode(method, settings, prefix_pair(SMALL, LARGE), sources, Request(limit, sampling, seed))


def draw_with(rule: AcceptanceRule, sampling: SamplingSettings, limit: int) -> list[Generation]:
    """Speculative decoding with another acceptance rule."""
    settings, source = SpeculativeSettings(draft_length=2), TokenSource(0)
    method = METHODS["speculative"].compose(prefix_pair(SMALL, LARGE), settings, sampling, source)
    return generate(dataclasses.replace(method, acceptance=rule), [list(SOURCE)] * DRAWS, range(DRAWS), limit)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("draft_length", [1, 3])
def test_speculative_sampling_follows_the_large_model(sampling: SamplingSettings, draft_length: int) -> None:
    generations = draw("speculative", SpeculativeSettings(draft_length=draft_length), sampling, limit=3)
    assert p_value(generations, law_of(LARGE, sampling, 3)) > FALSE_ALARM
    assert p_value(generations, law_of(SMALL, sampling, 3)) < 1e-12
    assert {"s", "c", "l"} <= set("".join(one.proposers for one in generations))


@pytest.mark.parametrize(("method", "model"), [("vanilla_large", LARGE), ("vanilla_small", SMALL)])
def test_one_model_alone_follows_itself(method: str, model: Predict) -> None:
    sampling = SAMPLINGS["all three"]
    assert p_value(draw(method, VanillaSettings(), sampling, limit=3), law_of(model, sampling, 3)) > FALSE_ALARM


def _drawn_from_p(tokens: Tensor, q: Block, p: Block) -> Verdict:
    """Wrong: a rejected token is replaced from p."""
    return dataclasses.replace(speculative(tokens, q, p), replacement=p.dist[:, :-1])


def _accepted_by_scores(tokens: Tensor, q: Block, p: Block) -> Verdict:
    """Wrong: acceptance reads the untruncated softmax."""
    shares = (block.scores[:, : tokens.shape[1]].gather(-1, tokens[..., None])[..., 0] for block in (p, q))
    return dataclasses.replace(speculative(tokens, q, p), accept=torch.div(*shares).clamp_max(1))


def _accepted_by_p(tokens: Tensor, q: Block, p: Block) -> Verdict:
    """Wrong: a token is kept with probability p."""
    return dataclasses.replace(speculative(tokens, q, p), accept=p.dist[:, :-1].gather(-1, tokens[..., None])[..., 0])


def _final_from_q(tokens: Tensor, q: Block, p: Block) -> Verdict:
    """Wrong: the token after a whole draft is the likeliest one, not a draw."""
    likeliest = torch.zeros_like(p.dist).scatter_(-1, p.dist.argmax(-1, keepdim=True), 1.0)
    return dataclasses.replace(speculative(tokens, q, p), final=likeliest)


@pytest.mark.parametrize("wrong", [_drawn_from_p, _accepted_by_scores, _accepted_by_p, _final_from_q])
def test_the_check_catches_a_wrong_rule(wrong: AcceptanceRule) -> None:
    sampling = SAMPLINGS["all three"]
    law = law_of(LARGE, sampling, 3)
    assert p_value(draw_with(speculative, sampling, 3), law) > FALSE_ALARM
    assert p_value(draw_with(wrong, sampling, 3), law) < 1e-6


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
def test_sampled_bild_draws_every_token_afresh(settings: BildSettings) -> None:
    """A draft that is thrown away must not tell on the next: see the test below for one that does."""
    sampling = SAMPLINGS["plain"]
    assert p_value(draw("bild", settings, sampling, limit=4), bild_law(settings, sampling, 4)) > FALSE_ALARM


def test_the_check_catches_a_draw_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, sampling = BildSettings(fallback_threshold=0.0, rollback_threshold=1.0, max_draft=3), SAMPLINGS["plain"]
    fresh = TokenSource.uniform

    def again(source: TokenSource, example: int, position: int, purpose: str) -> float:
        return fresh(source, example, position, purpose.split()[0])

    monkeypatch.setattr(TokenSource, "uniform", again)
    assert p_value(draw("bild", settings, sampling, limit=4), bild_law(settings, sampling, 4)) < 1e-12


def measured(run: Callable[[int], list[Generation]]) -> float:
    """The share of positions at which two seeds agree."""
    pairs = zip(run(0), run(1), strict=True)
    return float(np.mean([first.tokens[0] == second.tokens[0] for first, second in pairs]))


def test_seeds_are_independent() -> None:
    sampling = SAMPLINGS["plain"]
    agreement = measured(lambda seed: draw("speculative", SpeculativeSettings(draft_length=2), sampling, 1, seed))
    assert agreement == pytest.approx(float((dist(LARGE, (START,), sampling) ** 2).sum()), abs=0.03)
