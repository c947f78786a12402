"""Acceptance rules that accept more than the exact rule: lenience (SD, A.5) and lossy acceptance (SpecCascade, section 2).

In both, the token after a fully accepted draft comes from p, as in the exact algorithm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tasks.decoding.acceptance_rules import (
    AcceptanceResult,
    AcceptanceRule,
    acceptance_probability,
    masked,
    positive_residual,
    speculative_sampling,
)
from tasks.decoding.decoder import GreedyAcceptance
from tasks.decoding.distributions import PredictionBlock
from tasks.decoding.token_statistics import Mask, TokenIds, TokenStatistics


def lenient(lenience: float) -> AcceptanceRule:
    """Return the rule with lenience l, 0 < l ≤ 1 (SD, A.5); 1 is the exact rule.

    Sampling accepts x with probability min(1, p(x)/(l q(x))), else draws from norm(max(0, p - l q)), and emits no token with
    probability above p(x)/l. Greedy decoding accepts x where p(x) ≥ l max p, read from scores.
    """
    if lenience == 1:
        return speculative_sampling

    def accept_mask(tokens: TokenIds, q: TokenStatistics, p: TokenStatistics) -> Mask:
        return p.of(tokens) >= lenience * p.top

    def apply(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        if p.sampling.greedy:
            return masked(accept_mask, tokens, q, p)
        return AcceptanceResult(
            acceptance_probability(p.dist / lenience, q.dist, tokens), positive_residual(p.dist - lenience * q.dist, p.dist)
        )

    numbers = GreedyAcceptance(max_surprisal=-1.0, keep_agreed=False, min_share=lenience)
    return AcceptanceRule(apply, accept_mask=accept_mask, greedy=numbers)


def lossy(alpha: float, *, tuned: bool) -> AcceptanceRule:
    """Accept x with probability min(1, p/((1 - α) q)), 0 ≤ α < 1, else draw from norm(max(0, p/β - q)).

    β is 1 or `tuned_beta`. A drafted position emits min(q, p/(1 - α)) + R norm(max(0, p/β - q)), where R = Σ max(0, q -
    p/(1 - α)) is how often it rejects; with tuned β this is π = max(min(q, p/(1 - α)), p/β) (Lemma 2). Where nothing can
    be rejected, R = 0, it emits q. Greedy decoding is exact.
    """

    def apply(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
        beta = tuned_beta(q.dist, p.dist, alpha)[..., None].to(p.dist.dtype) if tuned else 1.0
        return AcceptanceResult(
            acceptance_probability(p.dist / (1 - alpha), q.dist, tokens), positive_residual(p.dist / beta - q.dist, q.dist)
        )

    return AcceptanceRule(apply, accept_mask=speculative_sampling.accept_mask, greedy=speculative_sampling.greedy)


def tuned_beta(q: Tensor, p: Tensor, alpha: float) -> Tensor:
    """Return β ≥ 1 - α with Σ max(0, q - p/(1 - α)) = Σ max(0, p/β - q) (SpecCascade, E.6); infinity where only that gives 0.

    The right side is piecewise linear and increasing in 1/β, with a corner at each token's q/p. Between the two corners that
    enclose the left side's value, the root is exact.

    Args:
        q: The small model's distribution, (..., vocabulary).
        p: The large model's, of the same shape.
        alpha: The lossiness α, 0 ≤ α < 1.

    Returns:
        float64, (...).
    """
    q, p = q.double(), p.double()
    rejected = (q - p / (1 - alpha)).clamp_min(0.0).sum(-1, keepdim=True)
    corners, order = torch.where(p > 0, q / p, torch.inf).sort(dim=-1)
    q_below, p_below = q.gather(-1, order).cumsum(-1), p.gather(-1, order).cumsum(-1)
    # Tokens that p rules out are never reached: their corner is at infinity.
    reached = (corners.isfinite() & (corners * p_below - q_below <= rejected)).sum(-1, keepdim=True)
    last = (reached - 1).clamp_min(0)
    beta = p_below.gather(-1, last) / (rejected + q_below.gather(-1, last))
    return beta.squeeze(-1).clamp_min(1 - alpha)
