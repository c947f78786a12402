"""Divergences between the large model's prediction p and the drafter's prediction q at each position.

Pure functions of log-probabilities (…, vocabulary), float32, in nats, to (…): the token-level losses of DistillSpec (Zhou et
al., 2023, section 4), of generalised knowledge distillation (Agarwal et al., 2024), and the negative log of the acceptance
probability (LK losses: Samarin et al., 2026, arXiv 2602.23881). Gradients flow into q.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

_FLOOR = -60.0
"""Lower bound of log-probabilities: it keeps divergences finite where a token is masked with -infinity."""

Divergence = Callable[[Tensor, Tensor], Tensor]
"""A function of (log p, log q)."""


def forward_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p|q) = Σ p (log p - log q): spreads q over all tokens that p finds likely."""
    return _kl(log_p, log_q)


def reverse_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(q|p) = Σ q (log q - log p): concentrates q where p is."""
    return _kl(log_q, log_p)


def jensen_shannon(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    """beta KL(p|M) + (1 - beta) KL(q|M), with M = beta p + (1 - beta) q (Agarwal et al., 2024, equation 1)."""
    mixture = (beta * log_p.exp() + (1 - beta) * log_q.exp()).clamp_min(torch.finfo(log_p.dtype).tiny).log()
    return beta * _kl(log_p, mixture) + (1 - beta) * _kl(log_q, mixture)


def total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    """D_TV = ½ Σ |p - q| = 1 - Σ min(p, q): the probability that p rejects a token drawn from q (SD, Corollary 3.6)."""
    return (log_p.exp() - log_q.exp()).abs().sum(-1) / 2


def negative_log_acceptance(log_p: Tensor, log_q: Tensor) -> Tensor:
    """-log Σ min(p, q): the negative log of the probability that p accepts a token drawn from q (SD, Corollary 3.6).

    Its gradient is that of total variation divided by the acceptance Σ min(p, q), so that it does not vanish with it: for a
    one-hot p it is the cross-entropy. Where p and q have no token in common, no gradient can help; the value is finite there.
    """
    return -log_overlap(log_p, log_q)


def blended_with_kl(divergence: Divergence, weight: float) -> Divergence:
    """Return weight KL(p|q) + (1 - weight) D(p, q) for a divergence D, which is D itself for a weight of 0."""
    if weight == 0:
        return divergence
    return lambda log_p, log_q: weight * forward_kl(log_p, log_q) + (1 - weight) * divergence(log_p, log_q)


def log_overlap(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return log Σ min(p, q), in nats, without underflow where it is small; `_FLOOR` where no token has both p > 0 and q > 0.

    p may sum to less than 1.
    """
    shared = torch.minimum(log_p, log_q)
    disjoint = torch.isneginf(shared).all(-1)
    # The logsumexp of -infinity alone has no gradient: these positions are taken out before it, and again after it.
    return shared.masked_fill(disjoint[..., None], 0.0).logsumexp(-1).masked_fill(disjoint, _FLOOR)


def _kl(log_one: Tensor, log_other: Tensor) -> Tensor:
    return (log_one.exp() * (log_one.clamp_min(_FLOOR) - log_other.clamp_min(_FLOOR))).sum(-1)


def divergence(loss: str, beta: float) -> Divergence:
    """Return the divergence for a value of `align.loss`."""
    known: dict[str, Divergence] = {
        "forward_kl": forward_kl,
        "reverse_kl": reverse_kl,
        "jensen_shannon": functools.partial(jensen_shannon, beta=beta),
        "total_variation": total_variation,
        "negative_log_acceptance": negative_log_acceptance,
    }
    return known[loss]


def gather_with_rest(log_probabilities: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities of `tokens` (…, k), and of all others together: (…, vocabulary) to (…, k + 1)."""
    return append_rest(log_probabilities.gather(-1, tokens))


def append_rest(log_probabilities: Tensor) -> Tensor:
    """Append the log-probability of all other tokens to those of some: (…, k) to (…, k + 1)."""
    rest = (1 - log_probabilities.exp().sum(-1, keepdim=True)).clamp_min(torch.finfo(log_probabilities.dtype).eps).log()
    return torch.cat([log_probabilities, rest], dim=-1)
