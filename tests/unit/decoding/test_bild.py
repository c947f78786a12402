"""BiLD equals Algorithm 1 of its paper, written out without caches; its counts on toys, by hand."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts, Generation, total
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildSettings
from tasks.decoding.registry import decode
from tests.toys import END, START, Predict, Prefix, Toys, prefix_pair, random_table, says, toy_sources


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


def test_the_options_change_something() -> None:
    small, large = (random_table(name, agreement=0.7, sharpness=4.0, end=-1.5) for name in ("small", "large"))
    results = []
    for options in OPTIONS.values():
        settings = BildSettings(fallback_threshold=0.3, rollback_threshold=0.1, **options)
        generations = decode("bild", settings, prefix_pair(small, large), toy_sources(30), Request(14))
        results.append((total(generations).large_calls, total(generations).rollbacks))
    assert len(set(results)) == len(OPTIONS)


def texts(method: str, settings: object, pair: Pair, sources: Rows) -> Rows:
    return [one.tokens for one in decode(method, settings, pair, sources, Request(14))]


def test_the_extremes_of_the_thresholds(toys: Toys) -> None:
    """Always falling back gives the large model; never falling back nor rolling back gives the small one."""
    sources = toy_sources(20, seed=4)
    large, small = (texts(name, VanillaSettings(), toys.cached, sources) for name in ("vanilla_large", "vanilla_small"))
    assert large != small
    assert texts("bild", BildSettings(fallback_threshold=1.0), toys.cached, sources) == large
    never = BildSettings(fallback_threshold=0.0, rollback_threshold=math.inf, max_draft=14)
    assert texts("bild", never, toys.cached, sources) == small


SURE = BildSettings(fallback_threshold=0.6, rollback_threshold=2.0, max_draft=3)
STRICT = BildSettings(fallback_threshold=0.6, rollback_threshold=1.0, max_draft=3)
LENIENT = BildSettings(fallback_threshold=0.6, rollback_threshold=1.0, max_draft=3, keep_agreed=True)
FIRST = BildSettings(fallback_threshold=0.6, rollback_threshold=2.0, max_draft=3, large_first=True)
SIX = [2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("small", "large", "settings", "limit", "tokens", "proposers", "counts"),
    [
        pytest.param(
            says(SIX), says(SIX), SURE, 10, [*SIX, END], "ssslsss",
            Counts(
                tokens=7, small_steps=6, large_calls=1, drafted=6, accepted=3,
                verified=Counter({4: 1}), kept=Counter({(3, 3): 1}),
            ),
            id="always accepted; a forced fallback; the small model's end token stands unverified",
        ),
        pytest.param(
            says(SIX, unsure=[1]), says(SIX), SURE, 10, [*SIX, END], "slsssls",
            Counts(
                tokens=7, small_steps=6, large_calls=2, drafted=5, accepted=4, fallbacks=1,
                verified=Counter({2: 1, 4: 1}), kept=Counter({(1, 1): 1, (3, 3): 1}),
            ),
            id="a fallback where the small model is unsure",
        ),
        pytest.param(
            says(SIX, unsure=range(9)), says(SIX), SURE, 10, [*SIX, END], "lllllll",
            Counts(tokens=7, small_steps=7, large_calls=7, fallbacks=7, verified=Counter({1: 7})),
            id="always unsure",
        ),
        pytest.param(
            says([2, 7, 4, 5, 6, 7]), says(SIX), SURE, 10, [*SIX, END], "scsssls",
            Counts(
                tokens=7, small_steps=7, large_calls=2, drafted=7, accepted=4, rollbacks=1,
                verified=Counter({4: 2}), kept=Counter({(3, 1): 1, (3, 3): 1}),
            ),
            id="sometimes accepted: a rollback drops all behind it",
        ),
        pytest.param(
            says([3, 4, 5, 6, 7, 2, 2, 2, 2]), says(SIX), SURE, 5, [2, 3, 5, 6, 7], "ccsss",
            Counts(
                tokens=5, small_steps=9, large_calls=2, drafted=9, rollbacks=2,
                verified=Counter({4: 2}), kept=Counter({(3, 0): 2}),
            ),
            id="never accepted, but a draft that reaches the limit stands unverified",
        ),
        pytest.param(
            says([2, 3, 3, 3]), says([2]), SURE, 10, [2, END], "sc",
            Counts(
                tokens=2, small_steps=3, large_calls=1, drafted=3, accepted=1, rollbacks=1,
                verified=Counter({4: 1}), kept=Counter({(3, 1): 1}),
            ),
            id="the end token right after a rollback",
        ),
        pytest.param(
            says([2]), says(SIX), SURE, 10, [2, END], "ss", Counts(tokens=2, small_steps=2, drafted=2),
            id="the small model ends too early, inside a draft",
        ),
        pytest.param(
            says([2, 3]), says(SIX), SURE, 10, [2, 3, END], "sss", Counts(tokens=3, small_steps=3, drafted=3),
            id="the small model ends at the window's end",
        ),
        pytest.param(
            says(SIX), says(SIX), SURE, 2, [2, 3], "ss", Counts(tokens=2, small_steps=2, drafted=2),
            id="the limit inside a draft",
        ),
        pytest.param(
            says(SIX), says(SIX), SURE, 3, [2, 3, 4], "sss", Counts(tokens=3, small_steps=3, drafted=3),
            id="the limit at the window's end",
        ),
        pytest.param(
            says(SIX), says(SIX), SURE, 4, [2, 3, 4, 5], "sssl",
            Counts(
                tokens=4, small_steps=3, large_calls=1, drafted=3, accepted=3,
                verified=Counter({4: 1}), kept=Counter({(3, 3): 1}),
            ),
            id="the limit with the large model's token",
        ),
        pytest.param(says(SIX), says(SIX), SURE, 1, [2], "s", Counts(tokens=1, small_steps=1, drafted=1), id="limit 1"),
        pytest.param(
            says(SIX, unsure=[0]), says(SIX), SURE, 1, [2], "l",
            Counts(tokens=1, small_steps=1, large_calls=1, fallbacks=1, verified=Counter({1: 1})),
            id="limit 1, unsure",
        ),
        pytest.param(
            says(SIX), says(SIX, unsure=[1]), STRICT, 4, [2, 3, 4, 5], "scss",
            Counts(
                tokens=4, small_steps=5, large_calls=1, drafted=5, accepted=1, rollbacks=1,
                verified=Counter({4: 1}), kept=Counter({(3, 1): 1}),
            ),
            id="a rollback to the same token",
        ),
        pytest.param(
            says(SIX), says(SIX, unsure=[1]), LENIENT, 4, [2, 3, 4, 5], "sssl",
            Counts(
                tokens=4, small_steps=3, large_calls=1, drafted=3, accepted=3,
                verified=Counter({4: 1}), kept=Counter({(3, 3): 1}),
            ),
            id="no rollback to the same token where that is asked for",
        ),
        pytest.param(
            says(SIX), says(SIX), FIRST, 4, [2, 3, 4, 5], "lsss",
            Counts(tokens=4, small_steps=3, large_calls=1, drafted=3, verified=Counter({1: 1})),
            id="the large model first",
        ),
    ],
)  # fmt: skip
def test_counts_on_toys(
    small: Predict,
    large: Predict,
    settings: BildSettings,
    limit: int,
    tokens: list[int],
    proposers: str,
    counts: Counts,
) -> None:
    [generation] = decode("bild", settings, prefix_pair(small, large), [[5, END]], Request(limit))
    assert (generation.tokens, generation.proposers, generation.counts) == (tokens, proposers, counts)
    reference = algorithm_1(small, large, (5, END), settings, limit)
    assert runs_of([generation]) == [reference]


def test_the_written_out_algorithm_reads_its_models(toys: Toys) -> None:
    """Without drafts it is greedy decoding by whole runs."""
    settings = BildSettings(fallback_threshold=1.0)
    run = algorithm_1(*toys.predicts, (4, 9, END), settings, 6)
    for position, token in enumerate(run.tokens):
        assert int(toys.predicts[1]((4, 9, END), (START, *run.tokens[:position])).argmax()) == token
