"""The distributions that speculative cascades sample: T(q, p) of each deferral rule (Narasimhan et al., 2024, Table 1).

A deferral rule says where the small model is not good enough. What it compares (top probabilities, entropies in nats, the
distance D of BiLD*) it reads from scores; D_TV and what is drawn are read from dist, so that greedy decoding, whose dist is
one-hot, defers by how sure the models are (appendix C.3). All rules are pure functions of q, p and the rule's own α.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tasks.decoding.distributions import Block, entropy, probability, total_variation

Deferral = Callable[[Block, Block, float], Tensor]
"""(q, p, α) to where the large model is asked: bool, (rows, positions), or of each token (rows, positions, vocabulary)."""


def _top(block: Block) -> Tensor:
    return block.scores.amax(-1)


def chow(q: Block, p: Block, alpha: float) -> Tensor:
    """max q < 1 - α."""
    return _top(q) < 1 - alpha


def chow_log(q: Block, p: Block, alpha: float) -> Tensor:
    """entropy(q) > α."""
    return entropy(q.scores) > alpha


def diff(q: Block, p: Block, alpha: float) -> Tensor:
    """max q < max p - α (equation 5)."""
    return _top(p) - _top(q) > alpha


def diff_log(q: Block, p: Block, alpha: float) -> Tensor:
    """entropy(p) < entropy(q) - α."""
    return entropy(q.scores) - entropy(p.scores) > alpha


def opt(q: Block, p: Block, alpha: float) -> Tensor:
    """max q < max p - α D_TV(p, q) (equation 10); greedy, this is Diff (Lemma 8)."""
    return _top(p) - _top(q) > alpha * total_variation(p.dist, q.dist)


def opt_log(q: Block, p: Block, alpha: float) -> Tensor:
    """entropy(p) < entropy(q) - α D_TV(p, q) (appendix C.2)."""
    return entropy(q.scores) - entropy(p.scores) > alpha * total_variation(p.dist, q.dist)


def bild(q: Block, p: Block, alpha: float) -> Tensor:
    """D(q, p) > α: -log p(argmax q) when greedy, -Σ q log p when sampling (BiLD*, appendix E.1)."""
    log_p = torch.log_softmax(p.logits.float(), dim=-1)
    if q.sampling.greedy:
        return -probability(log_p, q.logits.argmax(-1)) > alpha
    return -torch.where(q.scores > 0, q.scores * log_p, 0.0).sum(-1) > alpha


def token_v1(q: Block, p: Block, alpha: float) -> Tensor:
    """Of each token v: q(v) < max p - α (equation 13)."""
    return _top(p)[..., None] - q.scores > alpha


def token_v2(q: Block, p: Block, alpha: float) -> Tensor:
    """Of each token v: p(v) < max p - α (equation 14)."""
    return _top(p)[..., None] - p.scores > alpha


def token_v3(q: Block, p: Block, alpha: float) -> Tensor:
    """Of each token v: p(v) < (1 - α) max p (equation 15)."""
    return p.scores < (1 - alpha) * _top(p)[..., None]


DEFERRALS: dict[str, Deferral] = {
    "chow": chow,
    "chow_log": chow_log,
    "diff": diff,
    "diff_log": diff_log,
    "opt": opt,
    "opt_log": opt_log,
    "bild": bild,
}
"""δ(q, p): one decision a position."""

TOKEN_DEFERRALS: dict[str, Deferral] = {"token_v1": token_v1, "token_v2": token_v2, "token_v3": token_v3}
"""r(v): one decision for each token of a position."""


def cascade(rule: str, alpha: float) -> Callable[[Block, Block], Tensor]:
    """T(q, p) of a rule by name, one of `settings.CASCADE_RULES`; its rows sum to 1.

    A decision a position takes p or q whole: (1 - δ) q + δ p. A decision a token keeps q where it is good enough, and
    spreads what is left over p: π(v) = q(v) (1 - r(v)) + p(v) Σ r q (equation 11).
    """

    def whole(q: Block, p: Block) -> Tensor:
        return torch.where(DEFERRALS[rule](q, p, alpha)[..., None], p.dist, q.dist)

    def token_by_token(q: Block, p: Block) -> Tensor:
        deferred = torch.where(TOKEN_DEFERRALS[rule](q, p, alpha), q.dist, 0.0)
        return q.dist - deferred + p.dist * deferred.sum(-1, keepdim=True)

    return token_by_token if rule in TOKEN_DEFERRALS else whole
