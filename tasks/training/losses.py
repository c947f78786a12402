"""Training losses. A loss has terms, each a sum over positions and the count that the sum is divided by.

The count covers the whole step, all processes and micro-batches together, so that the partition of a step does not change the
gradient. A mean of per-part means would give tokens of short texts more weight.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

from torch import Tensor
from torch.nn import functional

from tasks.models.pruned_head import PrunedHead, pruned_head
from tasks.training.data import IGNORED, Batch
from tasks.training.predictions import drafted_logits, target_positions

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Loss(Protocol):
    """A training loss of one or more terms."""

    def term_weights(self) -> list[float]:
        """Weight of each term's mean in the loss."""
        ...

    def counts(self, batch: Batch) -> list[float]:
        """Return the divisor of each term, computed from the labels alone, before the model runs."""
        ...

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        """Return each term, summed over the batch: scalars on the model's device, in nats."""
        ...


class TokenLevelLoss:
    """A `Loss` of one term: a weighted sum over labelled positions."""

    def term_weights(self) -> list[float]:
        return [1.0]

    def counts(self, batch: Batch) -> list[float]:
        return [total_weight(batch)]


class CrossEntropyLoss(TokenLevelLoss):
    """Return the cross-entropy of the text: fine-tuning, and BiLD's alignment on the large model's outputs."""

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        targets, head = target_positions(model, batch), pruned_head(model)
        labels = targets.tokens if head is None else head.positions(targets.tokens)[0]
        logits = drafted_logits(model, batch)
        return [(functional.cross_entropy(logits.float(), labels, reduction="none") * targets.weights).sum()]


def without_labels_outside(batch: Batch, head: PrunedHead) -> Batch:
    """Return the batch with weight 0 where the label is not in the draft vocabulary of a head."""
    weights = (batch.labels != IGNORED).float() if batch.weights is None else batch.weights
    inside = head.positions(batch.labels.to(head.tokens.device))[1].to(weights.device)
    return dataclasses.replace(batch, weights=weights * inside)


def total_weight(batch: Batch) -> float:
    """Return the total weight of the labelled positions of a batch."""
    return float((batch.labels != IGNORED).sum() if batch.weights is None else batch.weights.sum())
