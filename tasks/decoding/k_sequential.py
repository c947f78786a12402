"""k-sequential selection of one of several drafted tokens (SpecTr: Sun et al., 2023, arXiv 2310.15141, Algorithm 2)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tasks.decoding.acceptance_rules import positive_residual

_HALVINGS = 60
"""Bisections of the factor ρ; beyond these float64 has no number between the bounds."""
_SMALLEST = torch.finfo(torch.float64).tiny


class Selection(NamedTuple):
    """How one of k tokens, each drawn from q, is selected."""

    accept: Tensor
    """float64 (vocabulary,): min(1, p(x) / (ρ q(x))), with which each drafted x is accepted, one after the other."""
    residual: Tensor
    """float64 (vocabulary,), not normalised: what replaces them where none is accepted."""


def k_sequential_selection(q: Tensor, p: Tensor, drafts: int) -> Selection:
    """Return how to select a token that follows p from k independent ones that follow q.

    With β(ρ) = Σ min(p/ρ, q), a token is selected with probability 1 - (1 - β)^k, so that the residual is
    p - min(p/ρ, q) (1 - (1 - β)^k) / β. It is nowhere negative where ρ is at least the solution of 1 - (1 - β)^k = ρ β between
    1 and k, which is taken. k = 1 is speculative sampling.

    Args:
        q: The drafter's distribution, (vocabulary,).
        p: The target's, (vocabulary,).
        drafts: k, at least 1.
    """
    q, p = q.double(), p.double()

    def shared(factor: float) -> Tensor:
        return torch.minimum(p / factor, q)

    def selected(beta: float) -> float:
        return 1.0 - (1.0 - min(beta, 1.0)) ** drafts

    low, factor = 1.0, float(drafts)
    if selected(float(shared(1.0).sum())) <= float(shared(1.0).sum()):
        factor = 1.0
    for _ in range(_HALVINGS if factor > 1 else 0):
        middle = (low + factor) / 2
        beta = float(shared(middle).sum())
        low, factor = (low, middle) if selected(beta) <= middle * beta else (middle, factor)
    taken = shared(factor)
    beta = float(taken.sum())
    residual = p - taken * (selected(beta) / beta) if beta > 0 else p
    return Selection((p / (factor * q).clamp_min(_SMALLEST)).clamp_max(1.0), positive_residual(residual, p))
