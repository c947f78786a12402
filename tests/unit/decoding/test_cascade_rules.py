"""The deferral rules and the distributions that speculative cascades sample, against the papers' formulas."""

from __future__ import annotations

import functools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tasks.decoding.cascades import DEFERRALS, TOKEN_DEFERRALS, cascade_target
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.generation import Counts
from tasks.decoding.method import Request, SamplingSettings
from tasks.decoding.methods.cascades import CASCADE_BOUNDS, CASCADE_RULES, SpeculativeCascadeSettings
from tasks.decoding.registry import decode
from tasks.decoding.rules import match_target, target_distribution
from tests import distributions
from tests.distributions import FALSE_ALARM, LARGE, SAMPLINGS, SMALL, model_distribution, p_value, sequence_distribution
from tests.emission import DRAWN, GREEDY, block, dist, emission, positions, repeatable
from tests.laws import cascade_shares
from tests.toys import END, Prefix, prefix_pair, says

PLAIN = DRAWN[0]
Q = [0.5, 0.3, 0.2]
P = [0.1, 0.2, 0.7]


def nats(probabilities: Any) -> float:
    return -math.fsum(one * math.log(one) for one in probabilities if one > 0)


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


@pytest.mark.parametrize("rule", CASCADE_RULES)
@pytest.mark.parametrize("sampling", [*DRAWN, GREEDY], ids=["plain", "top-k", "top-p", "greedy"])
def test_targets_equal_the_papers_formulas(rule: str, sampling: SamplingSettings) -> None:
    """Several rows and positions at once, with different decisions."""
    generator = torch.Generator().manual_seed(5)
    q, p = (PredictionBlock(2 * torch.randn(4, 25, 6, generator=generator), sampling) for _ in "qp")
    alpha = {"chow": 0.4, "chow_log": 1.1, "bild": 2.5}.get(rule, 0.1)
    target = cascade_target(rule, alpha)(q, p)
    own = 0
    for row in range(4):
        for position in range(25):
            views = [[one[row, position].double().numpy() for one in pair] for pair in ((q.scores, p.scores), (q.dist, p.dist))]
            wanted = cascade_shares(rule, alpha, views[0], views[1], greedy=sampling.greedy)
            torch.testing.assert_close(target[row, position].double(), torch.tensor(wanted), atol=1e-6, rtol=1e-5)
            own += not np.allclose(wanted, views[1][1]) and np.allclose(wanted, views[1][0])
    assert own or rule in TOKEN_DEFERRALS
    assert not torch.equal(target, q.dist)


@pytest.mark.parametrize("rule", CASCADE_RULES)
@given(pair=positions((*DRAWN, GREEDY)), data=st.data())
@repeatable
def test_the_target_is_emitted(rule: str, pair: tuple[PredictionBlock, PredictionBlock], data: st.DataObject) -> None:
    """Accepted tokens and residual add up to π; the residual is not negative and has the mass of the rejections."""
    q, p = pair
    target = cascade_target(rule, data.draw(alphas(rule)))
    wanted = target(q, p)[0, 0].double().numpy()
    assert wanted.min() >= 0
    assert wanted.sum() == pytest.approx(1, abs=1e-5)
    one = emission(match_target(target), q, p)
    assert one.accept.min() >= 0
    assert one.accept.max() <= 1
    assert one.replacement.min() >= 0
    assert one.replacement.sum() > 0
    np.testing.assert_allclose(one.emitted, wanted, atol=2e-6)
    np.testing.assert_allclose(one.kept, np.minimum(dist(q), wanted), atol=1e-6)
    if one.rejected > 1e-3:
        assert one.replacement.sum() == pytest.approx(one.rejected, abs=1e-5)


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


@given(pair=positions())
@repeatable
def test_rejection_of_p_itself_is_the_distance(pair: tuple[PredictionBlock, PredictionBlock]) -> None:
    q, p = pair
    assert emission(match_target(target_distribution), q, p).rejected == pytest.approx(
        1 - np.minimum(dist(p), dist(q)).sum(), abs=1e-5
    )


@functools.cache
def sampled_target(rule: str, alpha: float, sampling: SamplingSettings, text: Prefix) -> np.ndarray:
    scores = [distributions.scores(model, text) for model in (SMALL, LARGE)]
    dists = [distributions.dist(model, text, sampling) for model in (SMALL, LARGE)]
    return cascade_shares(rule, alpha, scores, dists, greedy=False)


@pytest.mark.parametrize(
    ("rule", "alpha", "sampling"),
    [
        ("chow", 0.55, "plain"),
        ("chow_log", 1.5, "cool, top-k"),
        ("diff", 0.05, "warm, top-p"),
        ("diff_log", 0.1, "all three"),
        ("opt", 0.2, "cool, top-k"),
        ("opt_log", 0.3, "plain"),
        ("token_v1", 0.2, "cool, top-k"),
        ("token_v2", 0.2, "warm, top-p"),
        ("token_v3", 0.5, "all three"),
        ("bild", 2.1, "warm, top-p"),
    ],
)
def test_sampling_follows_the_target(rule: str, alpha: float, sampling: str) -> None:
    """Texts of three tokens: drafted, replaced, and drawn after a fully accepted draft."""
    transform = SAMPLINGS[sampling]
    settings = SpeculativeCascadeSettings(rule=rule, deferral_cost=alpha, draft_length=2)
    generations = distributions.draw("speculative_cascade", settings, transform, limit=3)
    distribution = sequence_distribution(lambda text: sampled_target(rule, alpha, transform, text), 3)
    assert p_value(generations, distribution) > FALSE_ALARM
    assert p_value(generations, model_distribution(LARGE, transform, 3)) < 1e-9
    assert p_value(generations, model_distribution(SMALL, transform, 3)) < 1e-9
    assert {"s", "c", "l"} == set("".join(one.proposers for one in generations))


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
