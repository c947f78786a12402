"""Cascades without verification and oracles, sampled: exact distributions of their texts against draws, by chi-square."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

from tasks.decoding.distributions import TokenSource
from tasks.decoding.method import SamplingSettings
from tasks.decoding.methods.bild import BildOracleSettings
from tasks.decoding.methods.cascades import DiffOracleSettings, SequenceCascadeSettings, TokenCascadeSettings
from tests.distributions import (
    FALSE_ALARM,
    LARGE,
    SAMPLINGS,
    SMALL,
    SequenceDistribution,
    dist,
    draw,
    model_distribution,
    p_value,
    scores,
    sequence_distribution,
)
from tests.toys import START, Prefix

SEQUENCE = SequenceCascadeSettings(deferral_cost=0.7)


def oracle_shares(text: Prefix, sampling: SamplingSettings, cost: float) -> np.ndarray:
    """Algorithm 3: from p if δ = 1, otherwise from q; δ reads untruncated scores."""
    deferred = scores(SMALL, text).max() < scores(LARGE, text).max() - cost
    return dist(LARGE if deferred else SMALL, text, sampling)


def likelihood_shares(text: Prefix, sampling: SamplingSettings, threshold: float) -> np.ndarray:
    """A token of q that is too unlikely under p is replaced by a draw from p."""
    q, replaced = dist(SMALL, text, sampling), -np.log(scores(LARGE, text)) > threshold
    shares: np.ndarray = np.where(replaced, 0, q) + q[replaced].sum() * dist(LARGE, text, sampling)
    return shares


@functools.cache
def waiting(text: Prefix, settings: TokenCascadeSettings) -> int:
    """Number of small tokens since the last large one."""
    return 0 if len(text) == 1 or asks_large(text[:-1], settings) else waiting(text[:-1], settings) + 1


def asks_large(text: Prefix, settings: TokenCascadeSettings) -> bool:
    unsure = scores(SMALL, text).max() < 1 - settings.deferral_cost
    return bool(unsure or waiting(text, settings) == settings.max_draft)


def sequence_cascade_distribution(sampling: SamplingSettings, cost: float, limit: int) -> SequenceDistribution:
    """Texts of q that are confident enough; the remaining mass is distributed as p, independently of q."""
    first, anew = model_distribution(SMALL, sampling, limit), model_distribution(LARGE, sampling, limit)

    def sure(text: Prefix) -> bool:
        probabilities = [scores(SMALL, (START, *text[:position]))[token] for position, token in enumerate(text)]
        return math.exp(np.log(probabilities).mean()) >= 1 - cost

    deferred = sum(probability for text, probability in first.items() if not sure(text))
    assert 0.2 < deferred < 0.8
    every = first.keys() | anew.keys()
    return {text: first.get(text, 0.0) * sure(text) + deferred * anew.get(text, 0.0) for text in every}


def test_what_is_sampled_follows_its_distribution() -> None:
    sampling, limit = SAMPLINGS["all three"], 3
    cascade = TokenCascadeSettings(deferral_cost=0.7, max_draft=1)
    diff_oracle, bild_oracle = DiffOracleSettings(deferral_cost=0.05), BildOracleSettings(rollback_threshold=2.0)

    def cascade_shares(text: Prefix) -> np.ndarray:
        return dist(LARGE if asks_large(text, cascade) else SMALL, text, sampling)

    cases: tuple[tuple[str, Any, SequenceDistribution], ...] = (
        ("token_cascade", cascade, sequence_distribution(cascade_shares, limit)),
        ("diff_oracle", diff_oracle, sequence_distribution(lambda text: oracle_shares(text, sampling, 0.05), limit)),
        ("bild_oracle", bild_oracle, sequence_distribution(lambda text: likelihood_shares(text, sampling, 2.0), limit)),
        ("sequence_cascade", SEQUENCE, sequence_cascade_distribution(sampling, 0.7, limit)),
    )
    for method, settings, distribution in cases:
        found = draw(method, settings, sampling, limit)
        assert p_value(found, distribution) > FALSE_ALARM, method
        assert max(p_value(found, model_distribution(model, sampling, limit)) for model in (SMALL, LARGE)) < 1e-9
        assert set("".join(one.proposers for one in found)) in ({"s", "l"}, {"s", "c"})


def test_the_check_detects_reused_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = TokenSource.uniform

    def again(source: TokenSource, example: int, position: int, purpose: str) -> float:
        return fresh(source, example, position, purpose.removeprefix("deferred "))

    monkeypatch.setattr(TokenSource, "uniform", again)
    sampling = SAMPLINGS["all three"]
    assert p_value(draw("sequence_cascade", SEQUENCE, sampling, 3), sequence_cascade_distribution(sampling, 0.7, 3)) < 1e-9
