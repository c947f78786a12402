"""Block verification beside token verification, and on drafts of unequal length; test_enumeration.py proves its law."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.speculative import BlockSettings
from tasks.decoding.registry import decode
from tasks.decoding.rules import AcceptanceRule, block_verification, speculative_sampling
from tests.toys import prefix_pair, random_table, toy_sources

SAMPLED = SamplingSettings(temperature=1.0)


def block(*positions: list[float]) -> PredictionBlock:
    return PredictionBlock(torch.tensor([positions]).log(), SAMPLED)


def expected_length(rule: AcceptanceRule, q: PredictionBlock, p: PredictionBlock) -> Tensor:
    """The mean number of accepted tokens of a draft from `q`, over all drafts of two tokens."""
    vocabulary, total = q.dist.shape[-1], torch.zeros(())
    for first in range(vocabulary):
        for second in range(vocabulary):
            accept = rule.apply(torch.tensor([[first, second]]), q, p).accept[0]
            total += q.dist[0, 0, first] * q.dist[0, 1, second] * (accept[0] + accept[0] * accept[1])
    return total


def test_the_example_of_the_paper() -> None:
    """Section 2: two tokens, q and p are (2/3, 1/3) and (1/3, 2/3) at either position; 10/9 tokens become 11/9."""
    q, p = block([2 / 3, 1 / 3], [2 / 3, 1 / 3]), block([1 / 3, 2 / 3], [1 / 3, 2 / 3])
    assert float(expected_length(speculative_sampling, q, p)) == pytest.approx(10 / 9, abs=1e-6)
    assert float(expected_length(block_verification, q, p)) == pytest.approx(11 / 9, abs=1e-6)


def test_no_draft_keeps_fewer_tokens_on_average() -> None:
    generator = torch.Generator().manual_seed(3)
    better = 0
    for _ in range(40):
        q, p = (PredictionBlock(2 * torch.randn(1, 2, 4, generator=generator), SAMPLED) for _ in range(2))
        jointly, one_by_one = (float(expected_length(rule, q, p)) for rule in (block_verification, speculative_sampling))
        assert jointly >= one_by_one - 1e-6
        better += jointly > one_by_one + 1e-3
    assert better > 20


def test_drafts_of_unequal_length_are_decided_as_if_alone() -> None:
    """A draft ends at an end token, others beside it go on."""
    tables = (random_table(name, agreement=0.5, sharpness=1.0, vocabulary=5, end=1.0) for name in ("small", "large"))
    pair, sources = prefix_pair(*tables), toy_sources(40, seed=7)
    settings, request = BlockSettings(draft_length=4), Request(11, SAMPLED)
    together = decode("speculative_block", settings, pair, sources, request)
    alone = [decode("speculative_block", settings, pair, [one], request, [number])[0] for number, one in enumerate(sources)]
    assert together == alone
    assert len({drafted for one in together for drafted, _ in one.counts.kept}) > 1
