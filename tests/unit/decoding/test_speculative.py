"""Greedy speculative decoding gives the large model's output with any drafter; its counts on toys, by hand."""

import pytest

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import total
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.reference import TransformersDecoder
from tests.toys import END, Toys, toy_sources

LIMIT = 16
SOURCES = toy_sources(52)


@pytest.fixture(scope="module")
def vanilla(toys: Toys) -> Rows:
    """Greedy texts of the large model; some end with the end token, some at the limit."""
    generations = decode("vanilla_large", VanillaSettings(), toys.cached, SOURCES, Request(LIMIT))
    texts = [one.tokens for one in generations]
    ended = sum(text[-1] == END for text in texts)
    assert 10 < ended < 42
    assert len({tuple(text) for text in texts}) > 25
    return texts


@pytest.mark.parametrize("draft_length", [1, 2, 4, 7])
def test_greedy_output_is_vanilla(toys: Toys, vanilla: Rows, draft_length: int) -> None:
    settings = SpeculativeSettings(draft_length=draft_length)
    generations = decode("speculative", settings, toys.cached, SOURCES, Request(LIMIT))
    assert [one.tokens for one in generations] == vanilla
    counts = total(generations)
    assert counts.accepted > 50
    assert counts.rollbacks > 50
    assert counts.large_calls < counts.tokens


@pytest.mark.parametrize("draft_length", [1, 4])
def test_a_drafter_equal_to_the_target_is_always_accepted(toys: Toys, vanilla: Rows, draft_length: int) -> None:
    pair = Pair(TransformersDecoder(toys.large, "twin"), toys.cached.large)
    generations = decode("speculative", SpeculativeSettings(draft_length=draft_length), pair, SOURCES, Request(LIMIT))
    assert [one.tokens for one in generations] == vanilla
    for one in generations:
        assert one.counts.accepted == one.counts.drafted
        assert one.counts.rollbacks == 0
        assert one.counts.large_calls == -(-one.counts.tokens // (draft_length + 1))
