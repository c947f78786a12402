"""Lenient acceptance by hand and on random positions; test_enumeration.py proves lenient and lossy sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.decoding.generation import total
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.speculative import LenientSettings, LossySettings, SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.rules import lenient
from tests.emission import GREEDY, block, emission
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
