"""The distillation loss, which trains the drafter on the large model's predictions instead of its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.alignment.divergences import Divergence, append_rest, gather_with_rest
from tasks.training.data import Batch
from tasks.training.losses import TokenLevelLoss
from tasks.training.predictions import target_log_probs, target_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class DivergenceLoss(TokenLevelLoss):
    """Sum over target positions of (1 - w) D(p, q) - w log q(y): a divergence, mixed with the cross-entropy of the text."""

    def __init__(
        self, divergence: Divergence, vocabulary: int, large: PreTrainedModel | None, label_weight: float = 0.0
    ) -> None:
        """Store the parts of the loss.

        Args:
            divergence: Function of log p and log q at each position.
            vocabulary: Number of ids that are compared.
            large: The large model; None: each batch carries its stored predictions.
            label_weight: w, in 0…1; the text's tokens y are below `vocabulary`.
        """
        self._divergence, self._vocabulary, self._large = divergence, vocabulary, large
        self._label_weight = label_weight

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        targets = target_positions(model, batch)
        log_q = target_log_probs(model, batch, self._vocabulary)
        log_label = log_q.gather(-1, targets.tokens[:, None])[:, 0] if self._label_weight else None
        if self._large is not None:
            with torch.no_grad():
                log_p = target_log_probs(self._large, batch, self._vocabulary)
        elif targets.top is not None:
            log_p, log_q = append_rest(targets.top.log_probabilities), gather_with_rest(log_q, targets.top.tokens)
        else:
            raise ValueError("the batch has no predictions of the large model, and there is no large model")
        losses = self._divergence(log_p, log_q)
        if log_label is not None:
            losses = (1 - self._label_weight) * losses - self._label_weight * log_label
        return [(losses * targets.weights).sum()]
