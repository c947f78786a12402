"""Greedy speculative decoding gives the large model's output with any drafter; its counts on toys, by hand."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts, total
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode
from tasks.decoding.runtimes.reference import TransformersDecoder
from tests.toys import END, START, Toys, prefix_pair, says, toy_sources

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


def test_vanilla_is_what_transformers_generates(toys: Toys, vanilla: Rows) -> None:
    width = max(map(len, SOURCES))
    generated = toys.large.generate(
        input_ids=torch.tensor([source + [START] * (width - len(source)) for source in SOURCES]),
        attention_mask=torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in SOURCES]),
        past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache()),
        max_new_tokens=LIMIT,
        do_sample=False,
        num_beams=1,
    )
    for row, text in zip(generated.tolist(), vanilla, strict=True):
        assert row == [START, *text] + [START] * (len(row) - 1 - len(text))


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


def test_a_drafter_that_is_always_wrong_changes_no_token(toys: Toys, vanilla: Rows) -> None:
    """It drafts the large model's least likely token."""
    adversarial = copy.deepcopy(toys.large)
    with torch.no_grad():
        adversarial.lm_head.weight.neg_()
    pair = Pair(TransformersDecoder(adversarial, "adversarial"), toys.cached.large)
    generations = decode("speculative", SpeculativeSettings(draft_length=3), pair, SOURCES, Request(LIMIT))
    assert [one.tokens for one in generations] == vanilla
    counts = total(generations)
    assert counts.accepted == 0
    assert counts.large_calls == counts.tokens


@pytest.mark.parametrize(
    ("small", "large", "draft_length", "limit", "tokens", "proposers", "counts"),
    [
        pytest.param(
            [2, 3, 4, 5, 6, 7], [2, 3, 4, 5, 6, 7], 3, 10, [2, 3, 4, 5, 6, 7, END], "ssslsss",
            Counts(
                tokens=7, small_steps=6, large_calls=2, drafted=6, accepted=6,
                verified=Counter({4: 2}), kept=Counter({(3, 3): 2}),
            ),
            id="always accepted, the end token at the window's end",
        ),
        pytest.param(
            [3, 4, 5, 6, 7, 2, 2, 2, 2], [2, 3, 4, 5, 6, 7], 3, 10, [2, 3, 4, 5, 6, 7, END], "ccccccc",
            Counts(
                tokens=7, small_steps=21, large_calls=7, drafted=21, rollbacks=7,
                verified=Counter({4: 7}), kept=Counter({(3, 0): 7}),
            ),
            id="never accepted",
        ),
        pytest.param(
            [2, 7, 4, 5, 2, 7], [2, 3, 4, 5, 6, 7], 3, 10, [2, 3, 4, 5, 6, 7, END], "scsscss",
            Counts(
                tokens=7, small_steps=8, large_calls=3, drafted=8, accepted=5, rollbacks=2,
                verified=Counter({4: 2, 3: 1}), kept=Counter({(3, 1): 1, (3, 2): 1, (2, 2): 1}),
            ),
            id="sometimes accepted",
        ),
        pytest.param(
            [2, 3], [2, 3], 5, 10, [2, 3, END], "sss",
            Counts(
                tokens=3, small_steps=3, large_calls=1, drafted=3, accepted=3,
                verified=Counter({4: 1}), kept=Counter({(3, 3): 1}),
            ),
            id="the end token inside a draft",
        ),
        pytest.param(
            [2], [2, 3, 4], 3, 10, [2, 3, 4, END], "sccs",
            Counts(
                tokens=4, small_steps=4, large_calls=3, drafted=4, accepted=2, rollbacks=2,
                verified=Counter({3: 1, 2: 2}), kept=Counter({(2, 1): 1, (1, 0): 1, (1, 1): 1}),
            ),
            id="an end token too early is taken back",
        ),
        pytest.param(
            [2, 3, 3, 3], [2], 3, 10, [2, END], "sc",
            Counts(
                tokens=2, small_steps=3, large_calls=1, drafted=3, accepted=1, rollbacks=1,
                verified=Counter({4: 1}), kept=Counter({(3, 1): 1}),
            ),
            id="the end token right after a rollback",
        ),
        pytest.param(
            [2, 3], [2], 1, 10, [2, END], "sl",
            Counts(
                tokens=2, small_steps=1, large_calls=1, drafted=1, accepted=1,
                verified=Counter({2: 1}), kept=Counter({(1, 1): 1}),
            ),
            id="the end token after a whole draft",
        ),
        pytest.param(
            [2, 3, 4, 5, 6, 7], [2, 3, 4, 5, 6, 7], 5, 4, [2, 3, 4, 5], "sssl",
            Counts(
                tokens=4, small_steps=3, large_calls=1, drafted=3, accepted=3,
                verified=Counter({4: 1}), kept=Counter({(3, 3): 1}),
            ),
            id="the limit inside a draft",
        ),
        pytest.param(
            [2, 7, 4, 5], [2, 3, 4, 5], 5, 3, [2, 3, 4], "scl",
            Counts(
                tokens=3, small_steps=2, large_calls=2, drafted=2, accepted=1, rollbacks=1,
                verified=Counter({3: 1, 1: 1}), kept=Counter({(2, 1): 1}),
            ),
            id="nothing is drafted for the last token",
        ),
        pytest.param(
            [2, 3], [2, 3], 5, 1, [2], "l", Counts(tokens=1, large_calls=1, verified=Counter({1: 1})), id="limit 1"
        ),
    ],
)  # fmt: skip
def test_counts_on_toys(
    small: list[int], large: list[int], draft_length: int, limit: int, tokens: list[int], proposers: str, counts: Counts
) -> None:
    pair = prefix_pair(says(small), says(large))
    [generation] = decode("speculative", SpeculativeSettings(draft_length=draft_length), pair, [[5, END]], Request(limit))
    assert (generation.tokens, generation.proposers, generation.counts) == (tokens, proposers, counts)


@pytest.mark.parametrize(("method", "letter"), [("vanilla_large", "l"), ("vanilla_small", "s")])
@pytest.mark.parametrize(("limit", "tokens"), [(1, [2]), (3, [2, 3, 4]), (10, [2, 3, 4, END])])
def test_counts_of_one_model_alone(method: str, letter: str, limit: int, tokens: list[int]) -> None:
    pair = prefix_pair(says([2, 3, 4]), says([2, 3, 4]))
    [generation] = decode(method, VanillaSettings(), pair, [[5, END]], Request(limit))
    count = len(tokens)
    assert (generation.tokens, generation.proposers) == (tokens, letter * count)
    if letter == "l":
        assert generation.counts == Counts(tokens=count, large_calls=count, verified=Counter({1: count}))
    else:
        assert generation.counts == Counts(tokens=count, small_steps=count)
