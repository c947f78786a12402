"""What a batch loses: terms, each a sum over positions and how many it sums over.

A term is divided by its count over the whole step, all processes and micro-batches together, so that how a step is cut up does
not change what is learned: a mean of means would weigh the tokens of short texts more.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional

from tasks.training.data import IGNORED, Batch
from tasks.training.predictions import forward, target_positions


class Loss(Protocol):
    """What a model is trained on."""

    def term_weights(self) -> list[float]:
        """What the mean of each term weighs in the loss."""
        ...

    def counts(self, batch: Batch) -> list[float]:
        """Over how much each term sums; of the labels alone, so that it is known before the model runs."""
        ...

    def sums(self, model: Any, batch: Batch) -> list[Tensor]:
        """Each term of a batch on the model's device: scalars, in nats."""
        ...


class TokenLevelLoss:
    """A `Loss` of one term: something of each labelled position, by what the position weighs."""

    def term_weights(self) -> list[float]:
        return [1.0]

    def counts(self, batch: Batch) -> list[float]:
        return [total_weight(batch)]


class CrossEntropyLoss(TokenLevelLoss):
    """Cross-entropy of the text, by what each position weighs: fine-tuning, and BiLD's alignment on the large model's text."""

    def sums(self, model: Any, batch: Batch) -> list[Tensor]:
        targets = target_positions(model, batch)
        logits = targets.select(forward(model, batch).logits)
        return [(functional.cross_entropy(logits.float(), targets.tokens, reduction="none") * targets.weights).sum()]


def total_weight(batch: Batch) -> float:
    """What the labelled positions of a batch weigh together."""
    return float((batch.labels != IGNORED).sum() if batch.weights is None else batch.weights.sum())
