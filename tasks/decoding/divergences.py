"""How far two distributions are from each other, for rules that compare the drafter's with the large model's."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Divergence = Callable[[Tensor, Tensor], Tensor]
"""(log q, log p), each (..., vocabulary), to the divergence at each position: (...); 0 where q and p are equal."""


def kullback_leibler(log_q: Tensor, log_p: Tensor) -> Tensor:
    """Return KL(q ‖ p) = Σ q log(q/p), in nats; infinity where p rules out a token of q."""
    q = log_q.exp()
    return torch.where(q > 0, q * (log_q - log_p), 0.0).sum(-1).clamp_min(0.0)


def jensen_shannon(log_q: Tensor, log_p: Tensor) -> Tensor:
    """Return ½ KL(q ‖ m) + ½ KL(p ‖ m) with m = ½ (q + p), in nats: at most log 2."""
    log_m = torch.logaddexp(log_q, log_p) - math.log(2)
    return (kullback_leibler(log_q, log_m) + kullback_leibler(log_p, log_m)) / 2


def total_variation(log_q: Tensor, log_p: Tensor) -> Tensor:
    """Return ½ Σ |q - p|: at most 1."""
    return (log_q.exp() - log_p.exp()).abs().sum(-1) / 2


DIVERGENCES: dict[str, Divergence] = {"js": jensen_shannon, "kl": kullback_leibler, "tv": total_variation}
"""By name, as `divergence` in the settings has it."""
