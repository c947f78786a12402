"""Perplexity with fallback, compared with a plain implementation without caches and loops."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts
from tasks.decoding.method import Pair
from tasks.decoding.runtimes.reference import TransformersDecoder
from tasks.perplexity import Perplexity, PerplexitySettings, chunks, latencies, perplexity
from tests.toys import END, START, Predict, prefix_pair, random_table, says, toy_sources, toy_t5, whole_runs

SMALL, LARGE = (random_table(name, agreement=0.7, sharpness=2.0) for name in ("small", "large"))
EIGHT = math.log(math.e**0.5 + 7)
"""Log of the sum over the eight logits where `says` is unsure."""


def by_hand(small: Predict, large: Predict, sources: Rows, texts: Rows, threshold: float) -> Perplexity:
    """BiLD-v1, 3.3, literally: the small model scores unless its top probability is not above the threshold."""
    log_likelihood, counts = 0.0, Counts()
    for source, text in zip(sources, texts, strict=True):
        unseen = 0
        for position, token in enumerate(text):
            prefix = (START, *text[:position])
            log_q = torch.log_softmax(small(tuple(source), prefix), -1)
            unseen += 1
            counts.small_steps += 1
            if math.exp(float(log_q.max())) > threshold:
                counts.drafted += 1
                log_likelihood += float(log_q[token])
            else:
                counts.fallbacks += 1
                counts.large_calls += 1
                counts.accepted += unseen - 1
                counts.verified[unseen] += 1
                if unseen > 1:
                    counts.kept[unseen - 1, unseen - 1] += 1
                unseen = 0
                log_likelihood += float(torch.log_softmax(large(tuple(source), prefix), -1)[token])
        counts.tokens += len(text)
    return Perplexity(log_likelihood, counts)


def same(one: Perplexity, other: Perplexity) -> bool:
    return one.counts == other.counts and one.log_likelihood == pytest.approx(other.log_likelihood, rel=1e-6)


def random_texts(count: int, vocabulary: int) -> Rows:
    """Texts of several lengths that contain end tokens."""
    return [[token % vocabulary for token in (*row, *row[:3])] for row in toy_sources(count, seed=3)]


@pytest.mark.parametrize("batch_size", [1, 3, 40])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.5, 0.7, 1.0])
def test_it_follows_the_paper_on_random_tables(threshold: float, batch_size: int) -> None:
    sources, texts = toy_sources(40), random_texts(40, 8)
    assert any(END in text[:-1] for text in texts)
    options = PerplexitySettings(fallback_threshold=threshold, batch_size=batch_size)
    found = perplexity(prefix_pair(SMALL, LARGE), sources, texts, options)
    assert same(found, by_hand(SMALL, LARGE, sources, texts, threshold))
    assert (found.large_share == 0, found.large_share == 1) == (threshold == 0, threshold == 1)


def test_caches_change_nothing() -> None:
    models = toy_t5(1, 2, 1), toy_t5(2, 1, 3)
    pair = Pair(TransformersDecoder(models[0], "small"), TransformersDecoder(models[1], "large"))
    sources, texts = toy_sources(12), random_texts(12, 24)
    found = perplexity(pair, sources, texts, PerplexitySettings(fallback_threshold=0.5))
    assert same(found, by_hand(whole_runs(models[0]), whole_runs(models[1]), sources, texts, 0.5))
    assert 0.2 < found.large_share < 0.8
    assert pair.large.end_token == pair.small.end_token == END


@pytest.mark.parametrize(("threshold", "model"), [(0.0, 0), (1.0, 1)])
def test_extreme_thresholds_give_the_loss_of_one_model(threshold: float, model: int) -> None:
    models = toy_t5(1, 2, 1), toy_t5(2, 1, 3)
    pair = Pair(TransformersDecoder(models[0], "small"), TransformersDecoder(models[1], "large"))
    source, text = [7, 9, END], [4, 5, END, 6, 7, 8, END]
    found = perplexity(pair, [source], [text], PerplexitySettings(fallback_threshold=threshold))
    with torch.inference_mode():
        loss = float(models[model](input_ids=torch.tensor([source]), labels=torch.tensor([text])).loss)
    assert found.value == pytest.approx(math.exp(loss), rel=1e-5)


def test_counts_by_hand() -> None:
    """Sure, sure, unsure, sure, unsure, unsure, sure: the large model reads 3, 2 and 1 new positions in its three runs."""
    pair = prefix_pair(says([2, 3, 4, 5, 6, 7, 2], unsure=[2, 4, 5]), says([2, 3, 4, 5, 6, 6, 2]))
    found = perplexity(pair, [[5, END]], [[2, 3, 4, 5, 6, 7, 2]], PerplexitySettings(fallback_threshold=0.5))
    expected = Counts(7, small_steps=7, large_calls=3, drafted=4, accepted=3, fallbacks=3)
    expected.verified, expected.kept = Counter({3: 1, 2: 1, 1: 1}), Counter({(2, 2): 1, (1, 1): 1})
    assert found.counts == expected
    assert found.large_share == 3 / 7
    # All positions but one are nearly certain; there the large model predicts 6, and 7 is e^-20 as likely.
    assert found.log_likelihood == pytest.approx(-20, abs=1e-4)
    assert found.value == pytest.approx(math.exp(20 / 7), rel=1e-4)


def test_an_unsure_model_scores_alone_without_fallback() -> None:
    pair = prefix_pair(says([2, 3], unsure=[0, 1]), says([2, 3]))
    found = perplexity(pair, [[5, END]], [[2, 7]], PerplexitySettings(fallback_threshold=0.0))
    assert found.log_likelihood == pytest.approx((0.5 - EIGHT) - EIGHT)


def test_an_impossible_token_gives_infinity() -> None:
    def never_seven(source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
        return torch.zeros(8).index_fill_(0, torch.tensor([7]), -torch.inf)

    pair = prefix_pair(never_seven, never_seven)
    assert perplexity(pair, [[END]], [[3, 3]], PerplexitySettings(fallback_threshold=0)).value == pytest.approx(7)
    assert perplexity(pair, [[END]], [[3, 7]], PerplexitySettings(fallback_threshold=0)).value == math.inf


@pytest.mark.parametrize(("length", "sizes"), [(2, [2]), (8, [4, 4]), (9, [4, 4]), (11, [4, 4, 3])])
def test_a_stream_is_cut_into_chunks(length: int, sizes: list[int]) -> None:
    stream = list(range(100, 100 + length))
    sources, texts = chunks(stream, 4)
    pieces = [source + text for source, text in zip(sources, texts, strict=True)]
    assert [len(piece) for piece in pieces] == sizes
    assert list(itertools.chain(*pieces)) == stream[: sum(sizes)]
    assert all(len(source) == 1 for source in sources)


def test_a_short_stream_has_no_chunk() -> None:
    assert chunks([], 4) == chunks([3], 4) == ([], [])


def test_it_is_timed_relative_to_the_large_model_alone() -> None:
    """Uses a clock that counts the positions that the large model predicts."""
    asked = 0

    def large(source: tuple[int, ...], prefix: tuple[int, ...]) -> torch.Tensor:
        nonlocal asked
        asked += 1
        return LARGE(source, prefix)

    texts = random_texts(9, 8)
    for threshold, share in ((0.0, 0), (1.0, 1)):
        options = PerplexitySettings(fallback_threshold=threshold)
        found = latencies(prefix_pair(SMALL, large), toy_sources(9), texts, options, 9, lambda: float(asked))
        assert sorted(found.vanilla) == sorted(1000.0 * len(text) for text in texts)
        assert found.method == [share * vanilla for vanilla in found.vanilla]
    some = latencies(prefix_pair(SMALL, large), toy_sources(9), texts, options, 4, lambda: float(asked))
    assert len(some.method) == len(some.vanilla) == 4


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"fallback_threshold": 1.5}, "fallback_threshold is 1.5; it must be at most 1"),
        ({"fallback_threshold": math.nan}, "fallback_threshold is nan; it must be at least 0"),
        ({"chunk": 1}, "chunk is 1; it must be at least 2"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
    ],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PerplexitySettings(**wrong)  # type: ignore[arg-type]  # out of bounds is the point
