"""Deferral rules at the limits of their deferral cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding.acceptance_rules import match_target
from tasks.decoding.cascade_rules import cascade_target
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.settings import SpeculativeCascadeSettings
from tests.emission import DRAWN, GREEDY, block, emission, positions, repeatable

PLAIN = DRAWN[0]


@pytest.mark.parametrize("rule", ["chow", "chow_log", "bild"])
@given(pair=positions((*DRAWN, GREEDY)))
@repeatable
def test_a_cost_of_zero_gives_p_unless_q_is_certain(rule: str, pair: tuple[PredictionBlock, PredictionBlock]) -> None:
    q, p = pair
    sure = float(q.scores.max()) == 1 or (rule == "bild" and float(p.scores.max()) == 1)
    target = cascade_target(rule, 0.0)(q, p)
    assert torch.equal(target, p.dist) or (sure and torch.equal(target, q.dist))


@pytest.mark.parametrize("rule", ["diff", "opt"])
@given(pair=positions((*DRAWN, GREEDY)))
@repeatable
def test_a_cost_of_zero_follows_the_more_confident_model(rule: str, pair: tuple[PredictionBlock, PredictionBlock]) -> None:
    q, p = pair
    keeps = float(q.scores.max()) >= float(p.scores.max())
    assert torch.equal(cascade_target(rule, 0.0)(q, p), q.dist if keeps else p.dist)


@pytest.mark.parametrize("rule", ["chow", "diff", "opt", "token_v1", "token_v2", "token_v3"])
@given(pair=positions((PLAIN, GREEDY)))
@repeatable
def test_a_cost_of_one_gives_q(rule: str, pair: tuple[PredictionBlock, PredictionBlock]) -> None:
    q, p = pair
    assert torch.equal(cascade_target(rule, 1.0)(q, p), q.dist)


def test_rounding_does_not_matter_at_a_cost_of_one() -> None:
    """If p is q with more mass on its top token, max p - max q equals D_TV: OPT compares two equal numbers."""
    logits = torch.randn(1, 500, 8, generator=torch.Generator().manual_seed(1))
    q = PredictionBlock(logits, PLAIN)
    p = PredictionBlock(logits + 0.5 * torch.nn.functional.one_hot(logits.argmax(-1), 8), PLAIN)
    assert not torch.equal(p.dist, q.dist)
    assert torch.equal(cascade_target("opt", 1.0)(q, p), q.dist)


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
        ("opt", -0.01, "with the rule opt it must be at least 0"),
        ("token_v3", math.nan, "deferral_cost is nan; with the rule token_v3"),
        ("diff_log", math.nan, "deferral_cost is nan; with the rule diff_log"),
        ("bild", -0.5, "deferral_cost is -0.5; with the rule bild it must be at least 0"),
        ("best", 0.5, "rule is 'best'; it must be one of chow"),
    ],
)
def test_an_alpha_out_of_bounds_is_refused(rule: str, deferral_cost: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SpeculativeCascadeSettings(rule=rule, deferral_cost=deferral_cost)


def test_an_alpha_within_bounds_is_taken() -> None:
    for rule, deferral_cost in (("chow", 0.0), ("token_v1", 1.0), ("chow_log", -3.0), ("opt_log", 7.0), ("bild", math.inf)):
        assert SpeculativeCascadeSettings(rule=rule, deferral_cost=deferral_cost).deferral_cost == deferral_cost
