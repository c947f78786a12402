"""BiLD equals Algorithm 1 of its paper, written out without caches; its counts on toys, by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tasks.decoding.generation import Generation, total
from tasks.decoding.method import Request
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.registry import decode
from tests.toys import END, START, Predict, Prefix, Toys, prefix_pair, random_table, toy_sources


@dataclass
class Run:
    """The result of Algorithm 1 on one source."""

    tokens: list[int]
    small_steps: int = 0
    large_calls: int = 0
    fallbacks: int = 0
    rollbacks: int = 0


def algorithm_1(small: Predict, large: Predict, source: Prefix, settings: BildSettings, limit: int) -> Run:
    """The small model writes while confident; otherwise the large model checks all tokens since its last run and adds one."""
    run = Run([])
    y, unchecked = [START], 1
    while y[-1] != END and len(y) - 1 < limit:
        forced = len(y) - unchecked == settings.max_draft or (settings.large_first and len(y) == 1)
        if not forced:
            run.small_steps += 1
            q = torch.softmax(small(source, tuple(y)), -1)
            if float(q.max()) > settings.fallback_threshold:
                y.append(int(q.argmax()))
                continue
            run.fallbacks += 1
        run.large_calls += 1
        for m in range(unchecked, len(y) + 1):
            p = torch.softmax(large(source, tuple(y[:m])), -1)
            best = int(p.argmax())
            if m == len(y):
                y.append(best)
                break
            far = -math.log(max(float(p[y[m]]), 1e-45)) > settings.rollback_threshold
            if far and not (settings.keep_agreed and best == y[m]):
                run.rollbacks += 1
                y = [*y[:m], best]
                break
        unchecked = len(y)
    run.tokens = y[1:]
    return run


def runs_of(generations: list[Generation]) -> list[Run]:
    return [
        Run(one.tokens, one.counts.small_steps, one.counts.large_calls, one.counts.fallbacks, one.counts.rollbacks)
        for one in generations
    ]


def happened(generations: list[Generation]) -> Counter[str]:
    """How often each branch of the algorithm was taken."""
    counts = total(generations)
    last = Counter(one.proposers[-1] + ("." if one.tokens[-1] == END else "") for one in generations)
    return Counter(
        fallbacks=counts.fallbacks,
        rollbacks=counts.rollbacks,
        kept=counts.accepted,
        ended_by_small=last["s."],
        ended_by_large=last["l."],
        ended_by_correction=last["c."],
        cut_at_limit=last["s"] + last["l"] + last["c"],
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "large first": {"large_first": True},
    "keep agreed": {"keep_agreed": True},
    "both": {"large_first": True, "keep_agreed": True},
}
THRESHOLDS = [
    *((0.0, rollback) for rollback in (0.5, math.inf)),
    *((0.3, rollback) for rollback in (0.0, 2.0, 5.0)),
    *((0.6, rollback) for rollback in (0.5, math.inf)),
    (0.9, 2.0),
    (1.0, 0.0),
]
"""(fallback, rollback): every value of each, and the extremes together."""


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("max_draft", [1, 3, 10])
def test_the_loop_is_algorithm_1_on_random_tables(option: str, max_draft: int) -> None:
    small, large = (random_table(name, agreement=0.7, sharpness=4.0, end=-1.5) for name in ("small", "large"))
    sources = toy_sources(20)
    seen: Counter[str] = Counter()
    for fallback, rollback in THRESHOLDS:
        settings = BildSettings(
            fallback_threshold=fallback, rollback_threshold=rollback, max_draft=max_draft, **OPTIONS[option]
        )
        generations = decode("bild", settings, prefix_pair(small, large), sources, Request(14))
        assert runs_of(generations) == [algorithm_1(small, large, tuple(one), settings, 14) for one in sources]
        seen += happened(generations)
    assert len(seen) == 7
    assert min(seen.values()) >= 3


@pytest.mark.parametrize("option", OPTIONS)
def test_the_loop_with_caches_is_algorithm_1(toys: Toys, option: str) -> None:
    sources = toy_sources(8, seed=2)
    seen: Counter[str] = Counter()
    for fallback, rollback, max_draft in ((0.4, 1.0, 10), (0.6, 2.0, 4), (0.8, 0.3, 2), (0.2, math.inf, 3)):
        settings = BildSettings(
            fallback_threshold=fallback, rollback_threshold=rollback, max_draft=max_draft, **OPTIONS[option]
        )
        generations = decode("bild", settings, toys.cached, sources, Request(14))
        assert runs_of(generations) == [algorithm_1(*toys.predicts, tuple(one), settings, 14) for one in sources]
        seen += happened(generations)
    assert min(seen[name] for name in ("fallbacks", "rollbacks", "kept", "ended_by_small", "cut_at_limit")) > 0


def test_the_written_out_algorithm_reads_its_models(toys: Toys) -> None:
    """Without drafts it is greedy decoding by whole runs."""
    settings = BildSettings(fallback_threshold=1.0)
    run = algorithm_1(*toys.predicts, (4, 9, END), settings, 6)
    for position, token in enumerate(run.tokens):
        assert int(toys.predicts[1]((4, 9, END), (START, *run.tokens[:position])).argmax()) == token
