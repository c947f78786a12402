"""Texts of a drafter in training: its own decoding's, from its weights as they are, whatever is written beside them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from tasks.alignment.interleaving import interleaved
from tasks.alignment.rollout_generator import RolloutGenerator, drafter_only, on_policy_method, rejection_weights, speculative
from tasks.alignment.settings import AlignSettings
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.registry import Request, decode
from tasks.decoding.runtimes.choose import open_pair
from tasks.decoding.settings import SamplingSettings, SpeculativeSettings, VanillaSettings
from tests.toys import VOCABULARY, toy_sources, toy_t5

LIMIT = 12
SOURCES = toy_sources(70, seed=2)
NUMBERS = range(100, 170)


def writer(drafter: Any, large: Any, **settings: Any) -> RolloutGenerator:
    return RolloutGenerator(drafter, large, VOCABULARY, LIMIT, AlignSettings(loss="forward_kl", **settings))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_those_of_the_methods(temperature: float) -> None:
    small, large = toy_t5(1, 1, 1), toy_t5(2, 1, 2)
    ours = writer(small, large, writing_temperature=temperature)
    request = Request(LIMIT, SamplingSettings(temperature=temperature), 7)
    pair = open_pair(small, large, VOCABULARY)
    for composed, name, settings in (
        (drafter_only, "vanilla_small", VanillaSettings()),
        (speculative, "speculative", SpeculativeSettings()),
    ):
        found = ours.generate(composed, SOURCES, NUMBERS, 7)
        expected = decode(name, settings, pair, SOURCES, request, NUMBERS)
        assert [(one.tokens, one.proposers) for one in found] == [(one.tokens, one.proposers) for one in expected]
    mixed = ours.generate(on_policy_method(AlignSettings(writer="interleaved", interleave_top_k=2)), SOURCES, NUMBERS, 7)
    assert mixed == interleaved(pair, request, 2).run(SOURCES, NUMBERS, LIMIT)
    assert any("c" in one.proposers for one in mixed)


def test_a_text_does_not_depend_on_what_is_written_beside_it() -> None:
    ours = writer(toy_t5(1, 1, 1), toy_t5(2, 1, 2))
    together = ours.generate(drafter_only, SOURCES, NUMBERS, 7)
    half = ours.generate(drafter_only, SOURCES[1::2], NUMBERS[1::2], 7)
    assert half == together[1::2]
    assert ours.generate(drafter_only, SOURCES[:20], NUMBERS[:20], 8) != together[:20]


def test_the_writer_is_the_drafter_as_it_is_now() -> None:
    small = toy_t5(1, 1, 1)
    ours = writer(small, toy_t5(2, 1, 2), writing_temperature=0.0)
    before = ours.generate(drafter_only, SOURCES, NUMBERS, 7)
    with torch.no_grad():
        small.lm_head.weight.copy_(small.lm_head.weight.roll(1, 0))
    after = ours.generate(drafter_only, SOURCES, NUMBERS, 7)
    assert after != before
    assert after == writer(copy.deepcopy(small), None, writing_temperature=0.0).generate(drafter_only, SOURCES, NUMBERS, 7)


def test_dropout_is_off_while_it_writes_and_on_again_after() -> None:
    small = toy_t5(1, 1, 1)
    for module in small.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    ours = writer(small, toy_t5(2, 1, 2))
    still = ours.generate(speculative, SOURCES, NUMBERS, 7)
    assert not small.training
    assert ours.generate(speculative, SOURCES, NUMBERS, 7) == still
    small.train()
    assert ours.generate(speculative, SOURCES, NUMBERS, 7) == still
    assert all(module.training for module in small.modules())


def test_writing_draws_nothing_from_what_dropout_draws_from() -> None:
    ours = writer(toy_t5(1, 1, 1), toy_t5(2, 1, 2))
    state = torch.get_rng_state()
    ours.generate(speculative, SOURCES, NUMBERS, 7)
    assert torch.equal(torch.get_rng_state(), state)


def test_tokens_that_replaced_a_rejected_one_weigh_more() -> None:
    generation = Generation([4, 5, 6, 7, 1], "sscls", Counts())
    assert rejection_weights(generation, 0.1) == [0.1, 0.1, 1.0, 0.1, 0.1]
    assert rejection_weights(generation, 0.0) == [0.0, 0.0, 1.0, 0.0, 0.0]
