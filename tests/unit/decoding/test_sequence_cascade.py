"""The sequence cascade against equation 1 of its paper; its confidences by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.cascades import SequenceCascadeSettings, sequence_confidence
from tasks.decoding.registry import decode
from tests.toys import END, Prefix, prefix_pair
from tests.unit.decoding.test_sequential import half, texts


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
