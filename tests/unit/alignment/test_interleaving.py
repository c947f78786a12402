"""Interleaved sampling: the exact distribution of its texts, and its two limits."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.alignment.interleaving import interleaved, top_k_rule
from tasks.decoding.distributions import TokenSource
from tasks.decoding.generation import CORRECTED, Generation
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings, fixed_window
from tasks.decoding.registry import decode
from tests.distributions import (
    DRAWS,
    FALSE_ALARM,
    LARGE,
    SAMPLINGS,
    SMALL,
    SOURCE,
    SequenceDistribution,
    dist,
    model_distribution,
    p_value,
    scores,
    sequence_distribution,
)
from tests.toys import START, Prefix, prefix_pair

PLAIN = SAMPLINGS["plain"]
VOCABULARY = 8


def interleaved_distribution(top_k: int, sampling: SamplingSettings, limit: int) -> SequenceDistribution:
    """Each token q's where it is among p's likeliest, and p's for the rest of q."""

    def shares(text: Prefix) -> np.ndarray:
        q, p = dist(SMALL, text, sampling), dist(LARGE, text, sampling)
        likely = np.isin(np.arange(VOCABULARY), np.argsort(-scores(LARGE, text))[:top_k])
        kept = np.where(likely, q, 0.0)
        return np.asarray(kept + p * (1 - kept.sum()))

    return sequence_distribution(shares, limit)


def written(top_k: int, sampling: SamplingSettings, limit: int, draws: int = DRAWS) -> list[Generation]:
    method = interleaved(prefix_pair(SMALL, LARGE), Request(limit, sampling, seed=3), top_k)
    return method.run([list(SOURCE)] * draws, range(draws), limit)


@pytest.mark.parametrize(
    ("top_k", "sampling"),
    [(1, SamplingSettings(temperature=0.7)), pytest.param(3, PLAIN, marks=pytest.mark.slow)],
    ids=["one, cool", "three, plain"],
)
def test_texts_follow_their_distribution(top_k: int, sampling: SamplingSettings) -> None:
    texts = written(top_k, sampling, 3)
    assert p_value(texts, interleaved_distribution(top_k, sampling, 3)) > FALSE_ALARM
    assert p_value(texts, model_distribution(SMALL, sampling, 3)) < FALSE_ALARM
    assert p_value(texts, model_distribution(LARGE, sampling, 3)) < FALSE_ALARM


def test_texts_longer_than_a_draft_follow_the_law_too() -> None:
    """After a draft that is kept whole the next one begins, with no token of p's between."""
    sampling = SamplingSettings(temperature=0.7)
    pair, drafts = prefix_pair(SMALL, LARGE), SpeculativeSettings(draft_length=1)
    method = fixed_window(pair, drafts, top_k_rule(3), sampling, TokenSource(5))
    texts = method.run([list(SOURCE)] * DRAWS, range(DRAWS), 3)
    assert p_value(texts, interleaved_distribution(3, sampling, 3)) > FALSE_ALARM


def test_with_the_whole_vocabulary_nothing_is_replaced() -> None:
    texts = written(VOCABULARY, PLAIN, 3)
    assert p_value(texts, model_distribution(SMALL, PLAIN, 3)) > FALSE_ALARM
    assert not any(CORRECTED in one.proposers for one in texts)
    assert written(VOCABULARY + 9, PLAIN, 3, draws=50) == texts[:50]


def test_replaced_tokens_are_marked() -> None:
    texts = written(2, PLAIN, 3, draws=200)
    assert {place for one in texts for place, who in enumerate(one.proposers) if who == CORRECTED} == {0, 1, 2}
    for one in texts:
        for place, (token, who) in enumerate(zip(one.tokens, one.proposers, strict=True)):
            likeliest = np.argsort(-scores(LARGE, (START, *one.tokens[:place])))[:2]
            assert who == CORRECTED or token in likeliest


def test_greedy_with_one_likeliest_is_the_large_model_s_text() -> None:
    pair, request = prefix_pair(SMALL, LARGE), Request(12)
    [one] = interleaved(pair, request, 1).run([list(SOURCE)], [0], 12)
    [expected] = decode("vanilla_large", VanillaSettings(), pair, [list(SOURCE)], request)
    assert one.tokens == expected.tokens
