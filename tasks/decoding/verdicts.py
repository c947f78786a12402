"""Acceptance rules: pure functions of the two models' distributions at a block of drafted positions.

A rule says, for each drafted token, with which probability it is kept; what to draw from where one is not; and what the
token after a fully kept draft comes from. The loop does the rest, the same for every rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.decoding.distributions import Block
from tasks.decoding.settings import BildSettings

_SMALLEST = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class Verdict:
    """What an acceptance rule decides on a block of n drafted tokens."""

    accept: Tensor
    """(rows, n): probability that each token is kept, given that all before it were."""
    replacement: Tensor
    """(rows, n, vocabulary): drawn from where the first token is not kept; rows need not be normalised."""
    final: Tensor
    """(rows, n + 1, vocabulary): at a row's position after its last drafted token, drawn from when all were kept."""


AcceptanceRule = Callable[[Tensor, Block, Block], Verdict]
"""(drafted tokens (rows, n), q at n positions, p at n + 1 positions) to a verdict."""


def _of(dist: Tensor, tokens: Tensor) -> Tensor:
    """The probability of each token: (rows, n, vocabulary), (rows, n) to (rows, n)."""
    return dist.gather(-1, tokens[..., None]).squeeze(-1)


def speculative(tokens: Tensor, q: Block, p: Block) -> Verdict:
    """Keeps x with probability min(1, p(x)/q(x)), else draws from norm(max(0, p - q)) (SD, Algorithm 1).

    The emitted token follows p exactly (SD, A.1); with one-hot distributions it is the large model's argmax.
    """
    target = p.dist[:, : tokens.shape[1]]
    if not tokens.shape[1]:
        return always_final(tokens, q, p)
    accept = (_of(target, tokens) / _of(q.dist, tokens).clamp_min(_SMALLEST)).clamp_max(1.0)
    residual = (target - q.dist).clamp_min(0.0)
    # Where p and q differ by rounding alone nothing is left over, and p itself is what was meant.
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, target)
    return Verdict(accept, residual, p.dist)


def distance_rollback(settings: BildSettings) -> AcceptanceRule:
    """Keeps y while -log p(y) is at most the rollback threshold, else takes the large model's token (BiLD, section 3.4)."""

    def rule(tokens: Tensor, q: Block, p: Block) -> Verdict:
        drafted = tokens.shape[1]
        kept = -_of(p.scores[:, :drafted], tokens).log() <= settings.rollback_threshold
        if settings.keep_agreed:
            kept |= p.scores[:, :drafted].argmax(-1) == tokens
        return Verdict(kept.float(), p.dist[:, :drafted], p.dist)

    return rule


def always_final(tokens: Tensor, q: Block, p: Block) -> Verdict:
    """Nothing is drafted: the token comes from p."""
    return Verdict(tokens.float(), p.dist[:, :0], p.dist)
