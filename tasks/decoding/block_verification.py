"""Block verification (Sun et al., 2024, arXiv 2403.10444): the tokens of a draft are accepted or rejected jointly.

Text by text as likely as the large model's own, as with token verification, and no draft keeps fewer tokens on average.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from tasks.decoding.acceptance_rules import AcceptanceResult, masked, positive_residual, speculative_sampling
from tasks.decoding.distributions import PredictionBlock, probability

_SMALLEST = torch.finfo(torch.float32).tiny


def _reach(tokens: Tensor, q: Tensor, p: Tensor) -> Tensor:
    """Return p_0 = 1 and p_i = min(1, p_{i-1} p(x_i) / q(x_i)) for i up to n (Algorithm 2): (rows, n + 1)."""
    ratio = probability(p, tokens) / probability(q, tokens).clamp_min(_SMALLEST)
    reach = [torch.ones_like(ratio[:, 0])]
    for position in range(tokens.shape[1]):
        reach.append((reach[-1] * ratio[:, position]).clamp_max(1.0))
    return torch.stack(reach, -1)


def _apply(tokens: Tensor, q: PredictionBlock, p: PredictionBlock) -> AcceptanceResult:
    """Decide on whole drafts of n tokens, all of one length.

    Of the lengths i whose own draw η_i falls under h_i, Algorithm 2 takes the longest. Token by token, that is to accept the
    i-th, once those before it are, with probability P(length ≥ i) / P(length ≥ i - 1).
    """
    if p.sampling.greedy and speculative_sampling.accept_mask is not None:
        return masked(speculative_sampling.accept_mask, tokens, q, p)
    reach = _reach(tokens, q.dist, p.dist)
    residual = (reach[:, :-1, None] * p.dist - q.dist).clamp_min(0.0)
    excess, short = residual.sum(-1), 1 - reach[:, :-1]
    # Where q and p agree and nothing was missed before, a draft never ends: h is of no consequence.
    inner = torch.where(excess + short > 0, excess / (excess + short).clamp_min(_SMALLEST), 1.0)
    h = torch.cat([inner, reach[:, -1:]], -1)
    shorter = (1 - h).flip(-1).cumprod(-1).flip(-1)
    at_least = 1 - shorter
    accept = at_least[:, 1:] / at_least[:, :-1].clamp_min(_SMALLEST)
    return AcceptanceResult(accept.clamp(0.0, 1.0), positive_residual(residual, p.dist))


block_verification = replace(speculative_sampling, apply=_apply, joint=True)
"""Greedy decoding is that of token verification, which keeps the same tokens there."""
