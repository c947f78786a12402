"""Lenient acceptance by hand and on random positions; test_enumeration.py proves lenient and lossy sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.generation import total
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.speculative import LenientSettings, LossySettings, SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.rules import lenient, lossy
from tests import laws
from tests.distributions import LARGE, SAMPLINGS, SMALL, model_distribution
from tests.emission import GREEDY, block, dist, emission, positions, repeatable
from tests.toys import START, Prefix, Toys, toy_sources

Q = [0.6, 0.3, 0.1]
P = [0.2, 0.3, 0.5]
LIMIT = 14


@pytest.mark.parametrize(
    ("lenience", "accept", "replacement"),
    [
        (0.5, [2 / 3, 1, 1], [0, 0.15, 0.45]),
        (0.25, [1, 1, 1], [0.05, 0.225, 0.475]),
        (1.0, [1 / 3, 1, 1], [0, 0, 0.4]),
    ],
)
def test_lenience_by_hand(lenience: float, accept: list[float], replacement: list[float]) -> None:
    one = emission(lenient(lenience), block(Q), block(P))
    np.testing.assert_allclose(one.accept, accept, atol=1e-6)
    np.testing.assert_allclose(one.replacement, replacement, atol=1e-6)


@pytest.mark.parametrize(("lenience", "accept"), [(0.41, [0, 1, 1]), (0.39, [1, 1, 1]), (0.61, [0, 0, 1]), (1.0, [0, 0, 1])])
def test_greedy_lenience_by_hand(lenience: float, accept: list[float]) -> None:
    """Relative to max p = 0.5, token 0 has 0.4 and token 1 has 0.6; token 2 replaces a rejected token."""
    q, p = block(Q, GREEDY), block(P, GREEDY)
    result = lenient(lenience).apply(torch.tensor([[0]]), q, p)
    assert result.accept.tolist() == [accept[:1]]
    assert result.residual_probabilities.argmax(-1).tolist() == [[2]]
    for token in (1, 2):
        drafts_it = block([float(one == token) for one in range(3)], GREEDY)
        assert lenient(lenience).apply(torch.tensor([[token]]), drafts_it, p).accept.tolist() == [[accept[token]]]


def test_greedy_lenience_of_one_compares_argmaxes() -> None:
    """Two tokens tie for the maximum; the large model would take the first."""
    even = block([0.4, 0.4, 0.2], GREEDY)
    second = block([0.1, 0.8, 0.1], GREEDY)
    assert lenient(1.0).apply(torch.tensor([[1]]), second, even).accept.tolist() == [[0.0]]
    assert lenient(0.99).apply(torch.tensor([[1]]), second, even).accept.tolist() == [[1.0]]


@given(pair=positions(), lenience=st.floats(0.01, 1))
@repeatable
def test_lenience_bounds_every_token(pair: tuple[PredictionBlock, PredictionBlock], lenience: float) -> None:
    q, p = pair
    one = emission(lenient(lenience), q, p)
    assert one.replacement.min() >= 0
    assert one.emitted.sum() == pytest.approx(1)
    assert (one.emitted <= dist(p) / lenience + 2e-6).all()
    # A.5: the acceptance rate is Σ min(p/l, q).
    assert 1 - one.rejected == pytest.approx(np.minimum(dist(p) / lenience, dist(q)).sum(), abs=2e-6)


@given(pair=positions())
@repeatable
def test_lenience_one_and_lossiness_zero_give_p(pair: tuple[PredictionBlock, PredictionBlock]) -> None:
    q, p = pair
    for rule in (lenient(1.0), lossy(0.0, tuned=False), lossy(0.0, tuned=True)):
        np.testing.assert_allclose(emission(rule, q, p).emitted, dist(p), atol=2e-6)


def test_strict_acceptance_has_the_distribution_of_p() -> None:
    """The law of lenience is right in a known case."""
    transform = SAMPLINGS["all three"]
    distribution = laws.by_windows(laws.leniently(1.0), laws.Models(SMALL, LARGE, transform), 2, 3)
    known = model_distribution(LARGE, transform, 3)
    assert distribution.keys() == known.keys()
    assert all(distribution[text] == pytest.approx(known[text]) for text in known)


@pytest.mark.parametrize("sampling", [GREEDY, SamplingSettings(temperature=0.9)], ids=["greedy", "sampled"])
def test_lenience_one_is_speculative_decoding(toys: Toys, sampling: SamplingSettings) -> None:
    sources, request = toy_sources(12, seed=3), Request(LIMIT, sampling)
    strict = decode("speculative", SpeculativeSettings(draft_length=3), toys.cached, sources, request)
    lenient_one = LenientSettings(lenience=1.0, draft_length=3)
    assert decode("speculative_lenient", lenient_one, toys.cached, sources, request) == strict


def test_greedy_lenience_accepts_by_its_bound(toys: Toys) -> None:
    """Every accepted token has at least 0.3 of max p; every other is the large model's best, where the drafted one had less."""
    sources = toy_sources(24, seed=4)
    settings = LenientSettings(lenience=0.3, draft_length=3)
    generations = decode("speculative_lenient", settings, toys.cached, sources, Request(LIMIT))
    small, large = toys.predicts
    kept_otherwise = 0
    for source, generation in zip(sources, generations, strict=True):
        text: Prefix = (START,)
        for token, proposer in zip(generation.tokens, generation.proposers, strict=True):
            scores = torch.softmax(large(tuple(source), text), -1)
            share = scores / scores.max()
            if proposer == "s":
                assert share[token] >= 0.3
                kept_otherwise += token != int(scores.argmax())
            else:
                assert token == int(scores.argmax())
            if proposer == "c":
                assert share[int(small(tuple(source), text).argmax())] < 0.3
            text = (*text, token)
    assert kept_otherwise > 10
    assert total(generations).rollbacks > 10


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (LenientSettings, {"lenience": 0.0}, "lenience is 0.0; it must be more than 0"),
        (LenientSettings, {"lenience": 1.1}, "lenience is 1.1; it must be at most 1"),
        (LossySettings, {"lossiness": 1.0}, "lossiness is 1.0; it must be less than 1"),
        (LossySettings, {"lossiness": -0.1}, "lossiness is -0.1; it must be at least 0"),
    ],
)
def test_values_out_of_bounds_are_refused(kind: type, values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**values)
