"""The deferral rules and the distributions that speculative cascades sample, against the papers' formulas."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding.cascades import DEFERRALS, TOKEN_DEFERRALS, cascade_target
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.generation import Counts
from tasks.decoding.method import Request
from tasks.decoding.methods.cascades import CASCADE_BOUNDS, CASCADE_RULES, SpeculativeCascadeSettings
from tasks.decoding.registry import decode
from tasks.decoding.rules import match_target
from tests.emission import DRAWN, GREEDY, block, dist, emission, positions, repeatable
from tests.toys import END, prefix_pair, says

Q = [0.5, 0.3, 0.2]
P = [0.1, 0.2, 0.7]


def alphas(rule: str) -> st.SearchStrategy[float]:
    least, most = CASCADE_BOUNDS[rule]
    return st.floats(max(least, -3), min(most, 6))


def test_every_rule_is_defined() -> None:
    assert {*DEFERRALS, *TOKEN_DEFERRALS} == set(CASCADE_RULES)
    assert not set(DEFERRALS) & set(TOKEN_DEFERRALS)


@pytest.mark.parametrize(
    ("rule", "kept", "deferred"),
    [
        # Q has top 0.5 and entropy 1.0297, P top 0.7 and entropy 0.8018; D_TV is 0.5.
        ("chow", 0.51, 0.49),
        ("chow_log", 1.030, 1.029),
        ("diff", 0.21, 0.19),
        ("diff_log", 0.229, 0.227),
        ("opt", 0.41, 0.39),
        ("opt_log", 0.457, 0.454),
        # -Σ q log p = -(0.5 ln 0.1 + 0.3 ln 0.2 + 0.2 ln 0.7) = 1.7055.
        ("bild", 1.706, 1.705),
    ],
)
def test_deferral_by_hand(rule: str, kept: float, deferred: float) -> None:
    q, p = block(Q), block(P)
    assert torch.equal(cascade_target(rule, kept)(q, p), q.dist)
    assert torch.equal(cascade_target(rule, deferred)(q, p), p.dist)


@pytest.mark.parametrize(
    ("rule", "alpha", "target"),
    [
        # Deferred is v with q(v) < 0.7 - 0.3: all but token 0. Half of q is deferred to p.
        ("token_v1", 0.3, [0.5 + 0.05, 0.1, 0.35]),
        ("token_v1", 0.5, [0.5, 0.3, 0.2]),
        # Deferred is v with p(v) < 0.7 - 0.55 = 0.15: token 0.
        ("token_v2", 0.55, [0.05, 0.3 + 0.1, 0.2 + 0.35]),
        ("token_v2", 0.0, [0.08, 0.16, 0.2 + 0.56]),
        # Deferred is v with p(v) < 0.25 * 0.7 = 0.175: token 0; with p(v) < 0.35: tokens 0 and 1.
        ("token_v3", 0.75, [0.05, 0.3 + 0.1, 0.2 + 0.35]),
        ("token_v3", 0.5, [0.08, 0.16, 0.2 + 0.56]),
    ],
)
def test_token_rules_by_hand(rule: str, alpha: float, target: list[float]) -> None:
    torch.testing.assert_close(cascade_target(rule, alpha)(block(Q), block(P))[0, 0], torch.tensor(target))


def test_the_distance_of_bild_has_two_forms() -> None:
    """Greedily, it is that of the small model's only token: -ln 0.1 = 2.303."""
    q, p = block(Q, GREEDY), block(P, GREEDY)
    assert cascade_target("bild", 2.31)(q, p).tolist() == [[[1, 0, 0]]]
    assert cascade_target("bild", 2.30)(q, p).tolist() == [[[0, 0, 1]]]
    certain = block([1.0, 0.0, 0.0])
    assert torch.equal(cascade_target("bild", 2.31)(certain, block(P)), certain.dist)
    for alpha in (1e9, math.inf):
        forbidden = cascade_target("bild", alpha)(block(Q), certain)
        assert torch.equal(forbidden, block(Q).dist if alpha == math.inf else certain.dist)


@pytest.mark.parametrize("rule", DEFERRALS)
@given(pair=positions((*DRAWN, GREEDY)), data=st.data())
@repeatable
def test_rejection_is_deferral_times_distance(
    rule: str, pair: tuple[PredictionBlock, PredictionBlock], data: st.DataObject
) -> None:
    """Lemma 3: the probability of rejection is δ(q, p) · D_TV(p, q)."""
    q, p = pair
    alpha = data.draw(alphas(rule))
    delta = float(DEFERRALS[rule](q, p, alpha))
    apart = np.abs(dist(p) - dist(q)).sum() / 2
    assert emission(match_target(cascade_target(rule, alpha)), q, p).rejected == pytest.approx(delta * apart, abs=1e-5)


@pytest.mark.parametrize(("deferral_cost", "proposers", "tokens"), [(0.1, "scsl", [2, 3, 4, 5]), (0.9, "sssl", [2, 7, 4, 5])])
def test_counts_of_a_speculative_cascade(deferral_cost: float, proposers: str, tokens: list[int]) -> None:
    """The small model is unsure of its 7. The token after a fully accepted draft takes one more run of q."""
    pair = prefix_pair(says([2, 7, 4, 5], unsure=[1]), says([2, 3, 4, 5]))
    settings = SpeculativeCascadeSettings(rule="diff", deferral_cost=deferral_cost, draft_length=3)
    [generation] = decode("speculative_cascade", settings, pair, [[5, END]], Request(4))
    assert (generation.tokens, generation.proposers) == (tokens, proposers)
    if deferral_cost == 0.9:
        assert generation.counts == Counts(
            tokens=4, small_steps=4, large_calls=1, drafted=3, accepted=3, verified=Counter({4: 1}), kept=Counter({(3, 3): 1})
        )
    else:
        # Three drafted and the second corrected; then one drafted and one more run for the token after it.
        assert generation.counts == Counts(
            tokens=4,
            small_steps=5,
            large_calls=2,
            drafted=4,
            accepted=2,
            rollbacks=1,
            verified=Counter({4: 1, 2: 1}),
            kept=Counter({(3, 1): 1, (1, 1): 1}),
        )
