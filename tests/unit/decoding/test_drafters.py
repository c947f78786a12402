"""Drafters that need no training do not change what an exact method emits."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import Rows
from tasks.decoding.distributions import TokenSource
from tasks.decoding.drafters import make_drafter
from tasks.decoding.drafters.base import DraftRule
from tasks.decoding.drafters.look_ups import BigramDrafter, TableDrafter
from tasks.decoding.generation import total
from tasks.decoding.loop import SpeculativeLoop, generate
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import decode, decode_all
from tasks.decoding.rules import match_target
from tests.distributions import DRAWS, FALSE_ALARM, LARGE, SAMPLINGS, SOURCE, model_distribution, p_value
from tests.toys import END, Predict, Toys, prefix_pair, random_table, says, toy_sources
from tests.unit.decoding.test_bild import Run, algorithm_1, runs_of
from tests.unit.decoding.test_untrained_drafters import TEXTS, table_drafter

UNTRAINED = ("unigram", "bigram", "copy", "suffix", "random")
GREEDY, SAMPLED = SamplingSettings(), SamplingSettings(temperature=0.9, top_p=0.95)


LIMIT = 16
SOURCES = toy_sources(40)


@functools.cache
def table_sources(rows: int) -> Rows:
    """Random sources of a small vocabulary, long enough to copy from."""
    rng = random.Random(rows)
    return [[rng.randrange(2, 8) for _ in range(rng.randint(1, 12))] + [END] for _ in range(rows)]


@pytest.fixture(scope="module")
def pair(toys: Toys) -> Pair:
    """The toy T5s, and what the large one writes on other inputs."""
    written = decode("vanilla_large", VanillaSettings(), toys.cached, toy_sources(60, seed=8), Request(LIMIT))
    return dataclasses.replace(toys.cached, calibration=[one.tokens for one in written])


@pytest.mark.parametrize(("drafter", "draft_length"), zip(UNTRAINED, (3, 7, 3, 5, 1), strict=True))
def test_greedy_output_is_vanilla_on_models(pair: Pair, drafter: str, draft_length: int) -> None:
    vanilla = decode("vanilla_large", VanillaSettings(), pair, SOURCES, Request(LIMIT))
    settings = SpeculativeSettings(draft_length=draft_length, drafter=drafter)
    generations = decode("speculative", settings, pair, SOURCES, Request(LIMIT))
    assert [one.tokens for one in generations] == [one.tokens for one in vanilla]
    counts = total(generations)
    assert counts.accepted > (40 if drafter in ("bigram", "suffix") else 2)
    assert counts.rollbacks > 20
    assert counts.large_calls < counts.tokens
    assert counts.small_steps == 0


@pytest.mark.parametrize("drafter", UNTRAINED)
@pytest.mark.parametrize(
    ("method", "settings", "sampling"),
    [
        ("speculative", SpeculativeSettings(draft_length=3), SAMPLED),
        ("bild", BildSettings(fallback_threshold=0.3, rollback_threshold=1.5, max_draft=4), GREEDY),
    ],
    ids=["sampled speculative", "greedy bild"],
)
def test_a_batch_equals_single_rows(pair: Pair, method: str, settings: Any, drafter: str, sampling: SamplingSettings) -> None:
    settings = dataclasses.replace(settings, drafter=drafter)
    sources, request = SOURCES[:8], Request(12, sampling, seed=2)
    alone = [decode(method, settings, pair, [source], request, [number])[0] for number, source in enumerate(sources)]
    assert len({tuple(one.tokens) for one in alone}) > 4
    for batch_size in (3, 8):
        assert decode_all(method, settings, pair, sources, request, batch_size) == alone


def large(source: Sequence[int], prefix: tuple[int, ...]) -> torch.Tensor:
    """The large model of the sampling tests with one distribution for all sources, which only copying reads."""
    return LARGE(SOURCE, prefix)


def drawing_pair() -> Pair:
    return dataclasses.replace(prefix_pair(says([2]), large), calibration=TEXTS)


def test_a_rule_may_read_the_table_after_a_draft() -> None:
    """The target ½ (q + p) is emitted after fully accepted drafts as well, and counts no model run."""
    sampling, pair = SAMPLINGS["plain"], drawing_pair()
    drafter = table_drafter(BigramDrafter, sampling)

    def mixture(source: Sequence[int], prefix: tuple[int, ...]) -> torch.Tensor:
        q, p = (torch.softmax(logits, -1) for logits in (drafter.look_up(prefix[-1]), large(source, prefix)))
        return ((q + p) / 2).log()

    rule = match_target(lambda q, p: (q.dist + p.dist) / 2)
    method = SpeculativeLoop(pair.large, rule, sampling, TokenSource(0), drafter, DraftRule(window=1))
    generations = generate(method, table_sources(DRAWS), range(DRAWS), 3)
    assert p_value(generations, model_distribution(mixture, sampling, 3)) > FALSE_ALARM
    assert p_value(generations, model_distribution(large, sampling, 3)) < 1e-12
    assert total(generations).small_steps == 0


@pytest.mark.parametrize("drafter", ["unigram", "bigram"])
@pytest.mark.parametrize("max_draft", [1, 4])
def test_bild_with_tables_is_algorithm_1(drafter: str, max_draft: int) -> None:
    sources = table_sources(25)
    target: Predict = random_table("large", agreement=0, sharpness=3.0, end=-1.0)
    pair = dataclasses.replace(
        prefix_pair(says([2]), target), calibration=[*TEXTS, [5, 6, 7, 6, 7, 2, 2, END], [6, 7, 5, 6, 2, END]]
    )
    table = make_drafter(drafter, pair, GREEDY, TokenSource(0))
    assert isinstance(table, TableDrafter)

    def small(source: Sequence[int], prefix: tuple[int, ...]) -> torch.Tensor:
        return table.look_up(prefix[-1])

    seen: Counter[str] = Counter()
    for fallback in (0.0, 0.3, 0.6, 1.0):
        for rollback in (0.5, 2.0, float("inf")):
            settings = BildSettings(
                fallback_threshold=fallback, rollback_threshold=rollback, max_draft=max_draft, drafter=drafter
            )
            generations = decode("bild", settings, pair, sources, Request(12))
            expected = [algorithm_1(small, target, tuple(one), settings, 12) for one in sources]
            assert runs_of(generations) == [without_runs(one) for one in expected]
            counts = total(generations)
            seen += Counter(accepted=counts.accepted, fallbacks=counts.fallbacks, rollbacks=counts.rollbacks)
    assert min(seen[name] for name in ("accepted", "fallbacks", "rollbacks")) > 20


def without_runs(run: Run) -> Run:
    """The same run without steps of a small model: look-ups are not counted."""
    return dataclasses.replace(run, small_steps=0)
