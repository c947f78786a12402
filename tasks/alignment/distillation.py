"""The distillation loss, which trains the drafter on the large model's predictions instead of its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.alignment.divergences import Divergence, append_rest, blended_with_kl, gather_with_rest, log_overlap
from tasks.alignment.position_weights import reach
from tasks.alignment.progress import kl_weight
from tasks.models.pruned_head import pruned_head
from tasks.training.data import Batch
from tasks.training.losses import TokenLevelLoss
from tasks.training.predictions import drafted_logits, target_log_probs, target_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class DivergenceLoss(TokenLevelLoss):
    """Sum over target positions of (1 - w) D(p, q) - w log q(y): a divergence, mixed with the cross-entropy of the text."""

    def __init__(
        self,
        divergence: Divergence,
        vocabulary: int,
        large: PreTrainedModel | None,
        label_weight: float = 0.0,
        *,
        kl_until: float = 0.0,
        window: int = 0,
    ) -> None:
        """Store the parts of the loss.

        Args:
            divergence: Function of log p and log q at each position.
            vocabulary: Number of ids that are compared.
            large: The large model; None: each batch carries its stored predictions.
            label_weight: w, in 0…1; the text's tokens y are below `vocabulary`.
            kl_until: Progress of training until which KL(p|q) turns into the divergence; 0: it is the divergence throughout.
            window: γ, in tokens: positions of training texts are weighted by `reach`; 0: they are not.
        """
        self._divergence, self._vocabulary, self._large = divergence, vocabulary, large
        self._label_weight, self._kl_until, self._window = label_weight, kl_until, window

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        targets, head = target_positions(model, batch), pruned_head(model)
        # Padding of the vocabulary follows the last token; a draft vocabulary has none.
        log_q = drafted_logits(model, batch)[:, : self._vocabulary].float().log_softmax(-1)
        labels = targets.tokens if head is None else head.positions(targets.tokens)[0]
        log_label = log_q.gather(-1, labels[:, None])[:, 0] if self._label_weight else None
        shares = None
        if self._large is not None:
            with torch.no_grad():
                log_p = target_log_probs(self._large, batch, self._vocabulary)
                if head is not None:
                    log_p, shares = given_inside(log_p[:, head.tokens])
        elif targets.top is None:
            raise ValueError("the batch has no predictions of the large model, and there is no large model")
        elif head is None:
            log_p, log_q = append_rest(targets.top.log_probabilities), gather_with_rest(log_q, targets.top.tokens)
        else:
            rows, inside = head.positions(targets.top.tokens)
            log_p, shares = given_not_outside(targets.top.log_probabilities, inside)
            log_q = append_rest(log_q.gather(-1, rows).masked_fill(~inside, -torch.inf))
        losses = blended_with_kl(self._divergence, kl_weight(batch.progress, self._kl_until))(log_p, log_q)
        if shares is not None:
            losses = losses * shares
        if log_label is not None:
            losses = (1 - self._label_weight) * losses - self._label_weight * log_label
        if self._window and batch.progress is not None:
            # The acceptance is that of p over all tokens, of which a draft vocabulary shares what is inside.
            whole = log_p if shares is None else log_p + shares.log()[:, None]
            losses = losses * reach(log_overlap(whole, log_q).exp(), targets.indices, self._window)
        return [(losses * targets.weights).sum()]


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
