"""Deferral rules at the limits of their deferral cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding.cascades import cascade_rule, cascade_target
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.method import Pair, Request
from tasks.decoding.methods.cascades import (
    CASCADE_BOUNDS,
    CASCADE_RULES,
    DiffOracleSettings,
    SpeculativeCascadeSettings,
    TokenCascadeSettings,
)
from tasks.decoding.methods.speculative import SpeculativeSettings
from tasks.decoding.predictions import PredictionCache
from tasks.decoding.registry import decode
from tasks.decoding.replay import replay_pair
from tasks.decoding.rules import match_target, speculative_sampling
from tests.architectures import pair_of
from tests.emission import DRAWN, GREEDY, block, emission, positions, repeatable
from tests.toys import toy_sources


@pytest.mark.parametrize("rule", CASCADE_RULES)
@given(pair=positions((*DRAWN, GREEDY)))
@repeatable
def test_the_smallest_cost_is_speculative_decoding(rule: str, pair: tuple[PredictionBlock, PredictionBlock]) -> None:
    q, p = pair
    found, exact = (emission(one, q, p) for one in (cascade_rule(rule, CASCADE_BOUNDS[rule][0]), speculative_sampling))
    # BiLD* keeps q where D rounds to 0, which a higher temperature may show.
    tolerance = 1e-4 if rule == "bild" else 1e-6
    np.testing.assert_allclose(found.kept, exact.kept, atol=tolerance)
    np.testing.assert_allclose(found.emitted, exact.emitted, atol=tolerance)


@pytest.mark.parametrize("rule", CASCADE_RULES)
def test_texts_at_the_smallest_cost_are_those_of_speculative_decoding(rule: str) -> None:
    """One row in the native loop, and replayed."""
    pair, sources = pair_of("t5"), toy_sources(12)
    cascade = SpeculativeCascadeSettings(rule=rule, deferral_cost=CASCADE_BOUNDS[rule][0], draft_length=4)

    def texts(method: str, settings: object, pair: Pair) -> list[tuple[list[int], str]]:
        found = [decode(method, settings, pair, [source], Request(14))[0] for source in sources]
        return [(one.tokens, one.proposers) for one in found]

    wanted = texts("speculative", SpeculativeSettings(draft_length=4), pair)
    assert texts("speculative_cascade", cascade, pair) == wanted
    assert texts("speculative_cascade", cascade, replay_pair(pair, PredictionCache(pair))) == wanted


@pytest.mark.parametrize("rule", ["chow_log", "diff_log", "opt_log", "bild"])
@given(pair=positions())
@repeatable
def test_entropies_and_distances_are_not_bounded_by_one(rule: str, pair: tuple[PredictionBlock, PredictionBlock]) -> None:
    """α = 1 may still defer; an α above every entropy gives q, and one below every difference gives p."""
    q, p = pair
    assert torch.equal(cascade_target(rule, math.inf)(q, p), q.dist)
    if rule in ("chow_log", "diff_log"):
        assert torch.equal(cascade_target(rule, -100.0)(q, p), p.dist)
    spread, peaked = block([0.25] * 4), block([0.997, 0.001, 0.001, 0.001])
    assert torch.equal(cascade_target(rule, 1.0)(spread, peaked), peaked.dist)


@given(pair=positions((GREEDY,)), alpha=st.floats(0, 1))
@repeatable
def test_greedy_opt_is_diff(pair: tuple[PredictionBlock, PredictionBlock], alpha: float) -> None:
    """Lemma 8."""
    q, p = pair
    opt, diff = (emission(match_target(cascade_target(rule, alpha)), q, p) for rule in ("opt", "diff"))
    drafted = int(q.dist.argmax())
    assert opt.accept[drafted] == diff.accept[drafted]
    assert opt.accept[drafted] in (0, 1)
    np.testing.assert_array_equal(opt.emitted, diff.emitted)


@pytest.mark.parametrize(
    ("rule", "deferral_cost", "message"),
    [
        ("chow", 1.01, "with the rule chow it must be at most 1"),
        ("diff", -1.01, "with the rule diff it must be at least -1"),
        ("opt", math.nan, "deferral_cost is nan; with the rule opt"),
        ("token_v3", math.nan, "deferral_cost is nan; with the rule token_v3"),
        ("diff_log", math.nan, "deferral_cost is nan; with the rule diff_log"),
        ("bild", -0.5, "deferral_cost is -0.5; with the rule bild it must be at least 0"),
        ("best", 0.5, "rule is 'best'; it must be one of chow"),
    ],
)
def test_an_alpha_out_of_bounds_is_refused(rule: str, deferral_cost: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeculativeCascadeSettings(rule=rule, deferral_cost=deferral_cost)


def test_cascades_without_verification_have_the_bounds_of_their_rules() -> None:
    with pytest.raises(ValueError, match="with the rule chow it must be at most 1"):
        TokenCascadeSettings(deferral_cost=1.5)
    with pytest.raises(ValueError, match="with the rule diff it must be at least -1"):
        DiffOracleSettings(deferral_cost=-2.0)
    assert TokenCascadeSettings(rule="chow_log", deferral_cost=1.5).deferral_cost == 1.5
    assert DiffOracleSettings(rule="diff_log", deferral_cost=-2.0).deferral_cost == -2.0


def test_an_alpha_within_bounds_is_taken() -> None:
    for rule, deferral_cost in (("chow", 0.0), ("token_v1", -1.0), ("chow_log", -3.0), ("opt", 7.0), ("bild", math.inf)):
        assert SpeculativeCascadeSettings(rule=rule, deferral_cost=deferral_cost).deferral_cost == deferral_cost
