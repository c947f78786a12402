"""The sequence cascade against equation 1 of its paper; its confidences by hand."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from tasks.decoding.generation import Counts, Generation
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.cascades import SequenceCascadeSettings, sequence_confidence
from tasks.decoding.registry import decode
from tests.toys import END, START, Predict, Prefix, Toys, prefix_pair, toy_sources
from tests.unit.decoding.test_sequential import LIMIT, TABLES, half, next_scores, texts


def greedy(predict: Predict, source: Prefix) -> tuple[list[int], list[float]]:
    """A model's greedy text and the probability of each of its tokens."""
    text, probabilities = [START], []
    while text[-1] != END and len(text) - 1 < LIMIT:
        q = next_scores(predict, source, text)
        text.append(int(q.argmax()))
        probabilities.append(float(q.max()))
    return text[1:], probabilities


def equation_1(small: Predict, large: Predict, source: Prefix, confidence: str, cost: float) -> Generation:
    """The small model's text if its confidence is at least 1 - α, otherwise the large model's."""
    tokens, probabilities = greedy(small, source)
    product = math.prod(probabilities)
    by_kind = {"sum": product, "mean": product ** (1 / len(probabilities)), "quantile": min(probabilities)}
    counts = Counts(tokens=len(tokens), small_steps=len(tokens))
    if by_kind[confidence] >= 1 - cost:
        return Generation(tokens, "s" * len(tokens), counts)
    tokens, _ = greedy(large, source)
    counts.tokens = counts.large_calls = counts.verified[1] = len(tokens)
    counts.fallbacks = 1
    return Generation(tokens, "l" * len(tokens), counts)


@pytest.mark.parametrize(("confidence", "cost"), [("sum", 0.99), ("mean", 0.4), ("quantile", 0.65)])
def test_the_sequence_cascade_is_equation_1(toys: Toys, confidence: str, cost: float) -> None:
    settings, seen = SequenceCascadeSettings(confidence=confidence, deferral_cost=cost), Counter[str]()
    for pair, predicts, count in ((prefix_pair(*TABLES), TABLES, 24), (toys.cached, toys.predicts, 6)):
        sources = toy_sources(count)
        found = decode("sequence_cascade", settings, pair, sources, Request(LIMIT))
        assert found == [equation_1(*predicts, tuple(source), confidence, cost) for source in sources]
        seen.update(one.proposers[0] for one in found)
    assert min(seen["s"], seen["l"]) >= 5


def test_confidence_by_hand() -> None:
    """Of three tokens with probabilities 1/2, 1/8 and 1/4."""
    log_probabilities = [math.log(one) for one in (1 / 2, 1 / 8, 1 / 4)]
    by_hand = {"sum": 1 / 64, "mean": 1 / 4}
    for confidence, expected in by_hand.items():
        assert sequence_confidence(log_probabilities, SequenceCascadeSettings(confidence=confidence)) == pytest.approx(expected)
    for quantile, expected in ((0.0, 1 / 8), (0.25, 2**-2.5), (0.5, 1 / 4), (1.0, 1 / 2)):
        settings = SequenceCascadeSettings(confidence="quantile", quantile=quantile)
        assert sequence_confidence(log_probabilities, settings) == pytest.approx(expected)


def test_a_token_too_unlikely_for_float32_still_has_a_confidence() -> None:
    """At this temperature a token of probability e^-200 is drawn; the quantile must remain finite."""

    def cold(source: Prefix, prefix: Prefix) -> Tensor:
        return torch.tensor([0.0, -200.0, -200.0, -200.0])

    settings = SequenceCascadeSettings(confidence="quantile", quantile=0.5, deferral_cost=0.9)
    sampling = SamplingSettings(temperature=1000.0)
    found = decode("sequence_cascade", settings, prefix_pair(cold, cold), [[END]] * 30, Request(3, sampling))
    assert {one.proposers[0] for one in found} == {"s", "l"}


def test_a_sequence_as_confident_as_the_bound_is_kept() -> None:
    certain = prefix_pair(half(2), half(4))
    assert texts("sequence_cascade", SequenceCascadeSettings(deferral_cost=0.0), certain, [[5, END]]) == [[2, END]]
