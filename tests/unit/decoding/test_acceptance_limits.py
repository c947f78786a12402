"""Tolerant acceptance at its strictest is speculative decoding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from tasks.decoding.acceptance_rules import speculative_sampling
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.divergences import DIVERGENCES
from tasks.decoding.method import Pair
from tasks.decoding.registry import Request, decode
from tasks.decoding.replay.prediction_cache import PredictionCache
from tasks.decoding.replay.replay_decoder import replay_pair
from tasks.decoding.settings import FuzzySettings, SamplingSettings, SpeculativeSettings, TopKSettings
from tasks.decoding.tolerance import within_divergence
from tests.architectures import pair_of
from tests.emission import DRAWN, GREEDY, emission, positions, repeatable
from tests.toys import toy_sources

STRICTEST = [
    ("speculative_top_k", TopKSettings(accepted_tokens=1, draft_length=4)),
    *(("speculative_fuzzy", FuzzySettings(divergence=name, max_divergence=0.0, draft_length=4)) for name in DIVERGENCES),
]
SOURCES = toy_sources(12)


def generations(method: str, settings: Any, pair: Pair, sampling: SamplingSettings = GREEDY) -> list[Any]:
    return [decode(method, settings, pair, [source], Request(14, sampling))[0] for source in SOURCES]


@pytest.mark.parametrize(("method", "settings"), STRICTEST)
def test_the_strictest_tolerance_is_greedy_speculative_decoding(method: str, settings: Any) -> None:
    pair = pair_of("t5")
    wanted = generations("speculative", SpeculativeSettings(draft_length=4), pair)
    assert generations(method, settings, pair) == wanted
    assert generations(method, settings, replay_pair(pair, PredictionCache(pair))) == wanted


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("speculative_top_k", TopKSettings(accepted_tokens=2, draft_length=4)),
        ("speculative_fuzzy", FuzzySettings(max_divergence=0.1, draft_length=4)),
    ],
)
def test_a_wider_tolerance_accepts_more(method: str, settings: Any) -> None:
    pair = pair_of("t5")
    exact, wider = generations("speculative", SpeculativeSettings(draft_length=4), pair), generations(method, settings, pair)
    assert sum(one.counts.large_calls for one in wider) < sum(one.counts.large_calls for one in exact)


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_sampling_without_a_divergence_is_speculative_sampling(divergence: str) -> None:
    pair, sampling = pair_of("t5"), SamplingSettings(temperature=1.0)
    settings = FuzzySettings(divergence=divergence, max_divergence=0.0, draft_length=4)
    wanted = generations("speculative", SpeculativeSettings(draft_length=4), pair, sampling)
    assert generations("speculative_fuzzy", settings, pair, sampling) == wanted


@pytest.mark.parametrize("divergence", DIVERGENCES)
@given(pair=positions((*DRAWN, GREEDY)))
@repeatable
def test_each_position_is_exact_without_a_divergence(divergence: str, pair: tuple[PredictionBlock, PredictionBlock]) -> None:
    found, exact = (emission(rule, *pair) for rule in (within_divergence(divergence, 0.0), speculative_sampling))
    np.testing.assert_allclose(found.kept, exact.kept, atol=1e-6)
    np.testing.assert_allclose(found.emitted, exact.emitted, atol=1e-6)
