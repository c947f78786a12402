"""The Gatekeeper loss: a drafter that is sure where it is right and unsure elsewhere, for methods that defer by its confidence.

Rabanser et al., 2025, "Gatekeeper: Improving Model Cascades Through Confidence Tuning", arXiv 2502.19335.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.models.pruned_head import pruned_head
from tasks.training.data import Batch
from tasks.training.losses import TokenLevelLoss
from tasks.training.predictions import drafted_logits, target_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class GatekeeperLoss(TokenLevelLoss):
    """Sum over target positions of -α log q(y) where q's likeliest token is y, and of (1 - α) KL(q|uniform) elsewhere.

    The paper's y is the truth. Here it is the text's token, the large model's own in an aligned drafter: what a cascade defers
    for is that the two models differ. Both terms are divided by all positions, as in the paper.
    """

    def __init__(self, vocabulary: int, sure_weight: float) -> None:
        """Store the parts of the loss.

        Args:
            vocabulary: Number of ids that are predicted; uniform is over these, or over the draft vocabulary.
            sure_weight: α, in 0…1.
        """
        self._vocabulary, self._sure_weight = vocabulary, sure_weight

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        targets, head = target_positions(model, batch), pruned_head(model)
        # Padding of the vocabulary follows the last token; a draft vocabulary has none.
        log_q = drafted_logits(model, batch)[:, : self._vocabulary].float().log_softmax(-1)
        labels = targets.tokens if head is None else head.positions(targets.tokens)[0]
        sure = -self._sure_weight * log_q.gather(-1, labels[:, None])[:, 0]
        unsure = (1 - self._sure_weight) * ((log_q.exp() * log_q).sum(-1) + math.log(log_q.shape[-1]))
        return [(torch.where(log_q.argmax(-1) == labels, sure, unsure) * targets.weights).sum()]
