"""Cascades without verification and oracles equal the algorithms of their papers; counts by hand, limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.decoding.decoder import Rows
from tasks.decoding.generation import Counts, Generation
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildOracleSettings, BildSettings
from tasks.decoding.methods.cascades import DiffOracleSettings, SequenceCascadeSettings, TokenCascadeSettings
from tasks.decoding.registry import decode
from tests.toys import END, START, Predict, Prefix, Toys, prefix_pair, random_table, toy_sources

LIMIT = 14
TABLES: tuple[Predict, Predict] = (
    random_table("small", agreement=0.7, sharpness=4.0, end=-1.5),
    random_table("large", agreement=0.7, sharpness=4.0, end=-1.5),
)
Delta = Callable[[Tensor, Tensor], bool]
"""(q, p), float32, to whether the step is deferred."""


def next_scores(predict: Predict, source: Prefix, text: list[int]) -> Tensor:
    return torch.softmax(predict(source, tuple(text)), -1)


def entropy(scores: Tensor) -> float:
    return -math.fsum(one * math.log(one) for one in scores.double().tolist() if one > 0)


def algorithm_2(small: Predict, large: Predict, source: Prefix, settings: TokenCascadeSettings) -> Generation:
    """TokenCascade: x from q if q is sure enough, otherwise from p, and always from p after max_draft tokens of q."""
    text, proposers, waiting, counts = [START], "", 0, Counts()
    while text[-1] != END and len(text) - 1 < LIMIT:
        deferred = waiting == settings.max_draft
        if not deferred:
            counts.small_steps += 1
            q = next_scores(small, source, text)
            cost = settings.deferral_cost
            deferred = float(q.max()) < 1 - cost if settings.rule == "chow" else entropy(q) > cost
            counts.fallbacks += deferred
            counts.drafted += not deferred
        if deferred:
            counts.large_calls += 1
            counts.accepted += waiting
            counts.verified[waiting + 1] += 1
            if waiting:
                counts.kept[waiting, waiting] += 1
        text.append(int((next_scores(large, source, text) if deferred else q).argmax()))
        proposers += "l" if deferred else "s"
        waiting = 0 if deferred else waiting + 1
    counts.tokens = len(proposers)
    return Generation(text[1:], proposers, counts)


def algorithm_3(small: Predict, large: Predict, source: Prefix, delta: Delta) -> Generation:
    """OracleCascade: both models run at every step, and δ(q, p) decides whose token is taken."""
    text, proposers = [START], ""
    while text[-1] != END and len(text) - 1 < LIMIT:
        q, p = (next_scores(predict, source, text) for predict in (small, large))
        deferred = delta(q, p)
        text.append(int((p if deferred else q).argmax()))
        proposers += "c" if deferred else "s"
    steps, replaced = len(proposers), proposers.count("c")
    counts = Counts(
        tokens=steps, small_steps=steps, large_calls=steps, drafted=steps, accepted=steps - replaced, rollbacks=replaced
    )
    counts.verified[1] = steps
    counts.kept.update({(1, kept): number for kept, number in ((1, steps - replaced), (0, replaced)) if number})
    return Generation(text[1:], proposers, counts)


def diff(cost: float) -> Delta:
    return lambda q, p: float(q.max()) < float(p.max()) - cost


def diff_log(cost: float) -> Delta:
    return lambda q, p: entropy(p) < entropy(q) - cost


def far(threshold: float) -> Delta:
    return lambda q, p: -math.log(max(float(p[int(q.argmax())]), 1e-45)) > threshold


def texts(method: str, settings: Any, pair: Pair, sources: Rows) -> Rows:
    return [one.tokens for one in decode(method, settings, pair, sources, Request(LIMIT))]


def deferred_in(generations: list[Generation]) -> set[str]:
    return set("".join(one.proposers for one in generations))


@pytest.mark.parametrize("max_draft", [1, 3, 10])
@pytest.mark.parametrize(
    ("rule", "cost"),
    [("chow", 0.0), ("chow", 0.3), ("chow", 0.6), ("chow", 1.0), ("chow_log", 0.0), ("chow_log", 0.8), ("chow_log", 1.4)],
)
def test_the_token_cascade_is_algorithm_2(toys: Toys, rule: str, cost: float, max_draft: int) -> None:
    settings = TokenCascadeSettings(rule=rule, deferral_cost=cost, max_draft=max_draft)
    for pair, predicts, count in ((prefix_pair(*TABLES), TABLES, 24), (toys.cached, toys.predicts, 6)):
        sources = toy_sources(count)
        found = decode("token_cascade", settings, pair, sources, Request(LIMIT))
        assert found == [algorithm_2(*predicts, tuple(source), settings) for source in sources]
        assert deferred_in(found) == ({"l"} if cost == 0 else {"s", "l"})


@pytest.mark.parametrize(("rule", "delta"), [("diff", diff), ("diff_log", diff_log)])
@pytest.mark.parametrize("cost", [0.0, 0.1, 0.3, 1.0])
def test_the_diff_oracle_is_algorithm_3(toys: Toys, cost: float, rule: str, delta: Callable[[float], Delta]) -> None:
    for pair, predicts, count in ((prefix_pair(*TABLES), TABLES, 24), (toys.cached, toys.predicts, 6)):
        sources = toy_sources(count)
        found = decode("diff_oracle", DiffOracleSettings(rule=rule, deferral_cost=cost), pair, sources, Request(LIMIT))
        assert found == [algorithm_3(*predicts, tuple(source), delta(cost)) for source in sources]
        assert deferred_in(found) == ({"s"} if (rule, cost) == ("diff", 1) else {"s", "c"})


@pytest.mark.parametrize("threshold", [0.0, 0.5, 2.0, 5.0, math.inf])
def test_the_bild_oracle_replaces_what_is_unlikely(toys: Toys, threshold: float) -> None:
    for pair, predicts, count in ((prefix_pair(*TABLES), TABLES, 24), (toys.cached, toys.predicts, 6)):
        sources = toy_sources(count)
        found = decode("bild_oracle", BildOracleSettings(rollback_threshold=threshold), pair, sources, Request(LIMIT))
        assert found == [algorithm_3(*predicts, tuple(source), far(threshold)) for source in sources]
        assert deferred_in(found) == {0.0: {"c"}, math.inf: {"s"}}.get(threshold, {"s", "c"})


def half(*tokens: int) -> Predict:
    """Gives each of two tokens probability 1/2, exact in every number format, or one token probability 1; then ends."""

    def predict(source: Prefix, prefix: Prefix) -> Tensor:
        logits = torch.full((8,), -torch.inf)
        logits[list(tokens) if len(prefix) == 1 else [END]] = 0.0
        return logits

    return predict


def test_a_confidence_that_equals_the_bound_is_kept() -> None:
    """The cascades defer only below 1 - α; BiLD falls back at its threshold as well."""
    pair, source = prefix_pair(half(2, 3), half(4)), [[5, END]]
    cases: tuple[tuple[str, Any, Any], ...] = (
        ("token_cascade", TokenCascadeSettings(deferral_cost=0.5), TokenCascadeSettings(deferral_cost=0.4999)),
        ("diff_oracle", DiffOracleSettings(deferral_cost=0.5), DiffOracleSettings(deferral_cost=0.4999)),
    )
    for method, kept, deferred in cases:
        assert texts(method, kept, pair, source) == [[2, END]]
        assert texts(method, deferred, pair, source) == [[4, END]]
    assert texts("bild", BildSettings(fallback_threshold=0.5), pair, source) == [[4, END]]
    oracle = prefix_pair(half(3), half(2, 3))
    assert texts("bild_oracle", BildOracleSettings(rollback_threshold=math.log(2) + 1e-6), oracle, source) == [[3, END]]
    assert texts("bild_oracle", BildOracleSettings(rollback_threshold=math.log(2) - 1e-6), oracle, source) == [[2, END]]


def test_the_limits_are_one_model_alone(toys: Toys) -> None:
    sources = toy_sources(10, seed=4)
    large, small = (texts(name, VanillaSettings(), toys.cached, sources) for name in ("vanilla_large", "vanilla_small"))
    assert large != small
    ends: tuple[tuple[str, Any, Any], ...] = (
        ("sequence_cascade", SequenceCascadeSettings(deferral_cost=0.0), SequenceCascadeSettings(deferral_cost=1.0)),
        ("token_cascade", TokenCascadeSettings(deferral_cost=0.0), TokenCascadeSettings(deferral_cost=1.0, max_draft=LIMIT)),
        (
            "token_cascade",
            TokenCascadeSettings(rule="chow_log", deferral_cost=-math.inf),
            TokenCascadeSettings(rule="chow_log", deferral_cost=math.inf, max_draft=LIMIT),
        ),
        (
            "diff_oracle",
            DiffOracleSettings(rule="diff_log", deferral_cost=-math.inf),
            DiffOracleSettings(rule="diff_log", deferral_cost=math.inf),
        ),
        ("bild_oracle", BildOracleSettings(rollback_threshold=0.0), BildOracleSettings(rollback_threshold=math.inf)),
    )
    for method, strict, loose in ends:
        assert texts(method, strict, toys.cached, sources) == large
        assert texts(method, loose, toys.cached, sources) == small
    assert texts("diff_oracle", DiffOracleSettings(deferral_cost=1.0), toys.cached, sources) == small
    # At α = 0 the oracle still takes the small model's token where both are equally confident.
    assert texts("diff_oracle", DiffOracleSettings(deferral_cost=0.0), toys.cached, sources) not in (small, large)
