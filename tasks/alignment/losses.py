"""Distillation losses: divergences between the large model's prediction p and the drafter's prediction q at each position.

Divergences are pure functions of log-probabilities (…, vocabulary), float32, in nats, to (…): the token-level losses of
DistillSpec (Zhou et al., 2023, section 4) and of generalised knowledge distillation (Agarwal et al., 2024). Gradients flow into
q.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.models.pruned_head import pruned_head
from tasks.training.data import Batch
from tasks.training.objective import Loss, drafted_logits, target_log_probs, target_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_FLOOR = -60.0
"""Lower bound of log-probabilities: it keeps divergences finite where a token is masked with -infinity."""

Divergence = Callable[[Tensor, Tensor], Tensor]
"""A function of (log p, log q)."""


def divergence(loss: str, beta: float) -> Divergence:
    """Return the divergence for a value of `align.loss`."""
    known: dict[str, Divergence] = {
        "forward_kl": forward_kl,
        "reverse_kl": reverse_kl,
        "jensen_shannon": functools.partial(jensen_shannon, beta=beta),
        "total_variation": total_variation,
    }
    return known[loss]


def forward_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p|q) = Σ p (log p - log q): spreads q over all tokens that p finds likely."""
    return (log_p.exp() * (log_p.clamp_min(_FLOOR) - log_q.clamp_min(_FLOOR))).sum(-1)


def reverse_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(q|p) = Σ q (log q - log p): concentrates q where p is."""
    return forward_kl(log_q, log_p)


def jensen_shannon(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    """beta KL(p|M) + (1 - beta) KL(q|M), with M = beta p + (1 - beta) q (Agarwal et al., 2024, equation 1)."""
    mixture = (beta * log_p.exp() + (1 - beta) * log_q.exp()).clamp_min(torch.finfo(log_p.dtype).tiny).log()
    return beta * forward_kl(log_p, mixture) + (1 - beta) * forward_kl(log_q, mixture)


def total_variation(log_p: Tensor, log_q: Tensor) -> Tensor:
    """D_TV = ½ Σ |p - q| = 1 - Σ min(p, q): the probability that p rejects a token drawn from q (SD, Corollary 3.6)."""
    return (log_p.exp() - log_q.exp()).abs().sum(-1) / 2


class DivergenceLoss(Loss):
    """Sum over target positions of a divergence D(p, q): the drafter learns the large model's predictions, not its outputs."""

    def __init__(self, divergence: Divergence, vocabulary: int, large: PreTrainedModel | None) -> None:
        """Store the parts of the loss.

        Args:
            divergence: Function of log p and log q at each position.
            vocabulary: Number of ids that are compared.
            large: The large model; None: each batch carries its stored predictions.
        """
        self._divergence, self._vocabulary, self._large = divergence, vocabulary, large

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        targets, head = target_positions(model, batch), pruned_head(model)
        # 1. The drafter's log q: (positions, vocabulary), or (positions, N) over a draft vocabulary of N tokens.
        # Padding of the vocabulary follows the last token; a draft vocabulary has none.
        log_q = drafted_logits(model, batch)[:, : self._vocabulary].float().log_softmax(-1)
        # 2. The large model's log p over the same tokens. A draft vocabulary takes it given that the token is in there, and
        # weights the position by the probability of that.
        shares = None
        if self._large is not None:
            with torch.no_grad():
                log_p = target_log_probs(self._large, batch, self._vocabulary)
                if head is not None:
                    log_p, shares = given_inside(log_p[:, head.tokens])
        elif targets.top is None:
            raise ValueError("the batch has no predictions of the large model, and there is no large model")
        elif head is None:
            # (positions, k + 1): the k stored tokens, and the rest in one bucket.
            log_p = append_rest(targets.top.log_probabilities)
            log_q = append_rest(log_q.gather(-1, targets.top.tokens))
        else:
            rows, inside = head.positions(targets.top.tokens)
            log_p, shares = given_not_outside(targets.top.log_probabilities, inside)
            log_q = append_rest(log_q.gather(-1, rows).masked_fill(~inside, -torch.inf))
        # 3. Their divergence at each position.
        losses = self._divergence(log_p, log_q)
        if shares is not None:
            losses = losses * shares
        return [(losses * targets.weights).sum()]


def append_rest(log_probabilities: Tensor) -> Tensor:
    """Append the log-probability of all other tokens to those of some: (…, k) to (…, k + 1)."""
    rest = (1 - log_probabilities.exp().sum(-1, keepdim=True)).clamp_min(torch.finfo(log_probabilities.dtype).eps).log()
    return torch.cat([log_probabilities, rest], dim=-1)


def given_inside(log_p: Tensor) -> tuple[Tensor, Tensor]:
    """Condition a prediction on the draft vocabulary.

    A divergence of the conditional prediction, times the share, is the forward KL divergence but for what does not depend on
    the drafter: a term that is infinite, since the drafter gives the other tokens no probability.

    Args:
        log_p: log p of the tokens of the draft vocabulary: (positions, N).

    Returns:
        log p given that the token is one of them, of the same shape, and the probability of that: (positions,).
    """
    log_share = log_p.logsumexp(-1, keepdim=True)
    return log_p - log_share, log_share[:, 0].exp()


def given_not_outside(log_p: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Condition a stored prediction on the token being none of those that are known to be outside the draft vocabulary.

    Without that the drafter would learn to give their probability to the rest, tokens that the large model finds unlikely.

    Args:
        log_p: log p of the most likely tokens: (positions, k).
        inside: Which of them are in the draft vocabulary: (positions, k).

    Returns:
        Conditional log p of those inside, -infinity for the others, and of the rest: (positions, k + 1); and the probability
        of the condition: (positions,).
    """
    outside = log_p.exp().masked_fill(inside, 0.0).sum(-1, keepdim=True)
    shares = (1 - outside).clamp_min(torch.finfo(log_p.dtype).eps)
    return append_rest((log_p - shares.log()).masked_fill(~inside, -torch.inf)), shares[:, 0]
