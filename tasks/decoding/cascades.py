"""The distributions that speculative cascades sample: T(q, p) of each deferral rule (Narasimhan et al., 2024, Table 1).

A deferral rule says where the small model is not good enough. The quantities that it compares (top probabilities, entropies in
nats, the distance D of BiLD*) are read from scores; D_TV and the sampled distributions are read from dist. Greedy decoding,
whose dist is one-hot, therefore still defers by the models' confidence (appendix C.3).

All rules are pure functions of q, p and the rule's own α, on blocks of positions and on cached statistics of one position
alike (`distributions.TokenStatistics`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from tasks.decoding import rules
from tasks.decoding.distributions import Mask, PredictionBlock, TokenStatistics, Values

Deferral = Callable[[TokenStatistics, TokenStatistics, float], Mask]
"""Maps (q, p, α) to the positions that defer to the large model: bool, (rows, positions)."""

TokenDeferral = Callable[[Values, Values, Values, float], Mask]
"""Maps (q(v), p(v), max p, α) to whether token v defers to the large model: bool, of the shape of q(v)."""


def chow(q: TokenStatistics, p: TokenStatistics, alpha: float) -> Mask:
    """max q < 1 - α."""
    return q.top < 1 - alpha


def chow_log(q: TokenStatistics, p: TokenStatistics, alpha: float) -> Mask:
    """entropy(q) > α."""
    return q.entropy > alpha


def diff(q: TokenStatistics, p: TokenStatistics, alpha: float) -> Mask:
    """max q < max p - α (equation 5)."""
    return p.top - q.top > alpha


def diff_log(q: TokenStatistics, p: TokenStatistics, alpha: float) -> Mask:
    """entropy(p) < entropy(q) - α."""
    return q.entropy - p.entropy > alpha


def opt(q: TokenStatistics, p: TokenStatistics, alpha: float) -> Mask:
    """max q < max p - α D_TV(p, q) (equation 10); greedy, this is Diff (Lemma 8)."""
    return p.top - q.top > alpha * p.total_variation(q)


def opt_log(q: TokenStatistics, p: TokenStatistics, alpha: float) -> Mask:
    """entropy(p) < entropy(q) - α D_TV(p, q) (appendix C.2)."""
    return q.entropy - p.entropy > alpha * p.total_variation(q)


def bild(q: TokenStatistics, p: TokenStatistics, alpha: float) -> Mask:
    """D(q, p) > α: -log p(argmax q) when greedy, -Σ q log p when sampling (BiLD*, appendix E.1)."""
    # Sampling: the expectation under q, over the vocabulary. A token that q rules out adds 0, whatever its log p.
    if isinstance(q, PredictionBlock) and isinstance(p, PredictionBlock) and not q.sampling.greedy:
        return -torch.where(q.scores > 0, q.scores * p.log_scores, 0.0).sum(-1) > alpha
    # Greedy: q is one-hot on its argmax.
    return p.surprisal(q.argmax) > alpha


def token_v1(q: Values, p: Values, top: Values, alpha: float) -> Mask:
    """q(v) < max p - α (equation 13)."""
    return top - q > alpha


def token_v2(q: Values, p: Values, top: Values, alpha: float) -> Mask:
    """p(v) < max p - α (equation 14)."""
    return top - p > alpha


def token_v3(q: Values, p: Values, top: Values, alpha: float) -> Mask:
    """p(v) < (1 - α) max p (equation 15)."""
    return p < (1 - alpha) * top


DEFERRALS: dict[str, Deferral] = {
    "chow": chow,
    "chow_log": chow_log,
    "diff": diff,
    "diff_log": diff_log,
    "opt": opt,
    "opt_log": opt_log,
    "bild": bild,
}
"""δ(q, p): one decision for each position."""

TOKEN_DEFERRALS: dict[str, TokenDeferral] = {"token_v1": token_v1, "token_v2": token_v2, "token_v3": token_v3}
"""r(v): one decision for each token of a position."""

RULES = (*DEFERRALS, *TOKEN_DEFERRALS)
"""All of them, in the order of the kernel's `CascadeRule`."""


def defers(rule: str, alpha: float) -> rules.AcceptMask:
    """Return the function of (token, q, p) that says whether a drafted token defers to the large model."""
    if rule in DEFERRALS:
        return lambda token, q, p: DEFERRALS[rule](q, p, alpha)
    # r(v) at the drafted token alone.
    return lambda token, q, p: TOKEN_DEFERRALS[rule](q.of(token), p.of(token), p.top, alpha)


def cascade_target(rule: str, alpha: float) -> Callable[[PredictionBlock, PredictionBlock], Tensor]:
    """Return T(q, p) of a rule by name, one of `methods.cascades.CASCADE_RULES`; its rows sum to 1.

    One decision for each position selects p or q: (1 - δ) q + δ p. One decision for each token keeps q where it is good
    enough, and distributes the remaining probability by p: π(v) = q(v) (1 - r(v)) + p(v) Σ r q (equation 11).
    """

    def whole(q: PredictionBlock, p: PredictionBlock) -> Tensor:
        # δ (rows, n, 1) takes the whole of either distribution.
        return torch.where(cast(Tensor, DEFERRALS[rule](q, p, alpha))[..., None], p.dist, q.dist)

    def token_by_token(q: PredictionBlock, p: PredictionBlock) -> Tensor:
        # Σ r q is the probability that is spread by p.
        deferred = torch.where(cast(Tensor, TOKEN_DEFERRALS[rule](q.scores, p.scores, p.top[..., None], alpha)), q.dist, 0.0)
        # π(v) of all tokens: (rows, n, vocabulary).
        return q.dist - deferred + p.dist * deferred.sum(-1, keepdim=True)

    return token_by_token if rule in TOKEN_DEFERRALS else whole


_BOUNDED = {
    "chow": "min_confidence",
    "chow_log": "max_entropy",
    "diff": "max_gain",
    "diff_log": "max_entropy_gain",
    "opt": "max_gain",
    "opt_log": "max_entropy_gain",
    "bild": "max_surprisal",
    "token_v1": "max_gain",
    "token_v2": "max_gap",
    "token_v3": "min_share",
}
"""The field of `GreedyDeferral` that each rule is, greedily.

The drafted token x is then q's argmax, so that q(x) is max q, and D_TV is 1 wherever p has another argmax: OPT and TokenV1 are
Diff. Where both have one argmax, x is kept in either case.
"""


def in_numbers(rule: str, alpha: float) -> rules.GreedyDeferral:
    """Return a rule as a bound for the compiled kernel."""
    return rules.GreedyDeferral(**{_BOUNDED[rule]: 1 - alpha if rule in ("chow", "token_v3") else alpha})


def cascade_rule(rule: str, alpha: float) -> rules.AcceptanceRule:
    """Match T(q, p) of a rule; greedy, accept a token where the rule does not defer, or where it is p's argmax."""
    asks = defers(rule, alpha)
    # Greedily, a deferral to p would write its argmax: a drafted token that is this argmax stays in any case.
    matched = rules.match_target(
        cascade_target(rule, alpha), lambda token, q, p: (p.argmax == token) | (asks(token, q, p) ^ True)
    )
    return replace(matched, deferral=in_numbers(rule, alpha), sampled=rules.SampledRule("cascade", alpha, RULES.index(rule)))


def oracle(rule: str, alpha: float) -> rules.AcceptanceRule:
    """Draw from p where a rule of whole positions defers, else from q: (1 - δ) q + δ p (Algorithm 3)."""
    return rules.AcceptanceRule(lambda tokens, q, p: DEFERRALS[rule](q, p, alpha) ^ True, bonus=rules.BonusToken.NONE)
