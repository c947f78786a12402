"""Speculative decoding that keeps more than p allows: lenience (SD, A.5) and lossy acceptance (SpecCascade, section 2).

Either way the token after a fully kept draft comes from p, as in the strict algorithm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tasks.decoding.distributions import Block
from tasks.decoding.readings import Reading
from tasks.decoding.verdicts import AcceptanceRule, Verdict, acceptance, left_over, speculative


def lenient(lenience: float) -> AcceptanceRule:
    """Acceptance with lenience l, 0 < l ≤ 1 (SD, A.5); 1 is the strict rule.

    Sampling keeps x with probability min(1, p(x)/(l q(x))), else draws from norm(max(0, p - l q)), and emits no token with
    more than p(x)/l. Greedy decoding keeps x where p(x) ≥ l max p, read from scores.
    """
    if lenience == 1:
        return speculative

    def stays(tokens: Any, q: Reading, p: Reading) -> Any:
        return p.of(tokens) >= lenience * p.top

    def judge(tokens: Tensor, q: Block, p: Block) -> Verdict:
        if p.sampling.greedy:
            return Verdict(stays(tokens, q, p), p)
        return Verdict(acceptance(p.dist / lenience, q.dist, tokens), left_over(p.dist - lenience * q.dist, p.dist))

    return AcceptanceRule(judge, stays=stays)


def lossy(alpha: float, *, tuned: bool) -> AcceptanceRule:
    """Keeps x with probability min(1, p/((1 - α) q)), 0 ≤ α < 1, else draws from norm(max(0, p/β - q)).

    β is 1 or `tuned_beta`. A drafted position emits min(q, p/(1 - α)) + R norm(max(0, p/β - q)), where R = Σ max(0, q -
    p/(1 - α)) is how often it rejects; with tuned β this is π = max(min(q, p/(1 - α)), p/β) (Lemma 2). Where nothing can
    be rejected, R = 0, it emits q. Greedy decoding has nothing to lose: it is strict.
    """

    def judge(tokens: Tensor, q: Block, p: Block) -> Verdict:
        beta = tuned_beta(q.dist, p.dist, alpha)[..., None].to(p.dist.dtype) if tuned else 1.0
        return Verdict(acceptance(p.dist / (1 - alpha), q.dist, tokens), left_over(p.dist / beta - q.dist, q.dist))

    return AcceptanceRule(judge, stays=speculative.stays)


def tuned_beta(q: Tensor, p: Tensor, alpha: float) -> Tensor:
    """β ≥ 1 - α with Σ max(0, q - p/(1 - α)) = Σ max(0, p/β - q) (SpecCascade, E.6); infinity where only that gives 0.

    The right side is piecewise linear and rising in 1/β, with a corner where it passes each token's q/p: between the two
    corners about the left side's value the root is exact.

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
    # Not reached are tokens that p rules out: their corner is at infinity.
    reached = (corners.isfinite() & (corners * p_below - q_below <= rejected)).sum(-1, keepdim=True)
    last = (reached - 1).clamp_min(0)
    beta = p_below.gather(-1, last) / (rejected + q_below.gather(-1, last))
    return beta.squeeze(-1).clamp_min(1 - alpha)
