"""After every turn each cache holds a prefix of the tokens, and no run is fed a token twice."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import pytest

from tasks.decoding.decoder import Rows, Step
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.drafters.base import Draft, Drafter
from tasks.decoding.loop import SpeculativeLoop, generate
from tasks.decoding.method import Pair, Request, SamplingSettings
from tasks.decoding.methods.baselines import VanillaSettings
from tasks.decoding.methods.bild import BildOracleSettings, BildSettings
from tasks.decoding.methods.cascades import DiffOracleSettings, TokenCascadeSettings
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.registry import METHODS
from tests.toys import END, PrefixDecoder, random_table, toy_sources

LIMIT = 40
"""Texts end before: a row at its limit is not drafted for, and its drafter's cache falls further behind."""


class Watcher:
    """Forwards all calls to a drafter, and checks both caches after every verification."""

    def __init__(self, drafter: Drafter, target: PrefixDecoder, small: PrefixDecoder | None) -> None:
        self.drafter, self.target, self.small = drafter, target, small
        self.turns = 0
        self.lags: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.drafter, name)

    def draft(self, tokens: Rows, examples: Sequence[int], budgets: Sequence[int], rule: DraftRule) -> Draft:
        draft = self.drafter.draft(tokens, examples, budgets, rule)
        for new, budget in zip(draft.tokens, budgets, strict=True):
            assert len(new) <= budget
            assert END not in new[:-1]
        return draft

    def observe(self, tokens: Rows, step: Step, positions: Sequence[int]) -> None:
        self.drafter.observe(tokens, step, positions)
        self.turns += 1
        assert self.target.lengths == [len(row) - 1 for row in tokens]
        assert self.target.rows == [row[:-1] for row in tokens]
        if self.small is not None:
            for cached, row in zip(self.small.rows, tokens, strict=True):
                assert cached == row[: len(cached)]
                assert len(cached) < len(row)
                self.lags.add(len(row) - len(cached))

    def reorder(self, rows: Sequence[int]) -> None:
        self.drafter.reorder(rows)
        if self.small is not None:
            assert len(self.small.rows) == len(self.target.rows) == len(rows)


@pytest.mark.parametrize("sampling", [SamplingSettings(), SamplingSettings(temperature=1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("name", "settings", "longest", "lags"),
    [
        ("vanilla_large", VanillaSettings(), 1, set()),
        ("speculative", SpeculativeSettings(draft_length=4), 5, {1, 2}),
        ("bild", BildSettings(fallback_threshold=0.3, rollback_threshold=2.0, max_draft=2), 3, {1, 2}),
        ("token_cascade", TokenCascadeSettings(deferral_cost=0.5, max_draft=2), 3, {1, 2}),
        ("bild_oracle", BildOracleSettings(rollback_threshold=1.0), 1, {1}),
        ("diff_oracle", DiffOracleSettings(deferral_cost=0.1), 1, {1}),
    ],
)
def test_caches_hold_prefixes(name: str, settings: Any, longest: int, lags: set[int], sampling: SamplingSettings) -> None:
    small, large = (PrefixDecoder(random_table(one, agreement=0.9, sharpness=3.0, end=1.0), one) for one in ("small", "large"))
    method = METHODS[name].make(settings, Pair(small, large), Request(LIMIT, sampling))
    assert isinstance(method, SpeculativeLoop)
    watcher = Watcher(method.drafter, large, small if lags else None)
    generations = generate(dataclasses.replace(method, drafter=cast("Any", watcher)), toy_sources(24, seed=6), range(24), LIMIT)
    assert watcher.turns == max(one.counts.large_calls for one in generations)
    assert watcher.lags == lags
    # A run is fed at most a draft and the token before it: a rewind recomputes nothing.
    assert max(map(max, large.runs)) == longest
    assert len(large.runs) == watcher.turns
    if lags:
        assert max(map(max, small.runs)) == max(lags)
    for one in generations:
        assert len(one.proposers) == len(one.tokens) == one.counts.tokens <= LIMIT
        assert END not in one.tokens[:-1]
        assert len(one.tokens) == LIMIT or one.tokens[-1] == END
        assert one.counts.accepted <= one.counts.drafted <= one.counts.small_steps
        assert sum(one.counts.verified.values()) == one.counts.large_calls
        assert one.proposers.count("c") == one.counts.rollbacks
        assert one.proposers.count("s") >= one.counts.accepted
