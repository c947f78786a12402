"""What a batch loses: terms, each a sum over positions and how many it sums over.

A term is divided by its count over the whole step, all processes and micro-batches together, so that how a step is cut up does
not change what is learned: a mean of means would weigh the tokens of short texts more.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor
from torch.nn import functional

from tasks.training.data import IGNORED, Batch
from tasks.training.predictions import run, targets_of


class Loss(Protocol):
    """What a model is trained on."""

    def shares(self) -> list[float]:
        """What the mean of each term weighs in the loss."""
        ...

    def counts(self, batch: Batch) -> list[float]:
        """Over how much each term sums; of the labels alone, so that it is known before the model runs."""
        ...

    def sums(self, model: Any, batch: Batch) -> list[Tensor]:
        """Each term of a batch on the model's device: scalars, in nats."""
        ...


class PositionLoss:
    """A `Loss` of one term: something of each labelled position, by what the position weighs."""

    def shares(self) -> list[float]:
        return [1.0]

    def counts(self, batch: Batch) -> list[float]:
        return [weight_of(batch)]


class TokenLoss(PositionLoss):
    """Cross-entropy of the text, by what each position weighs: fine-tuning, and BiLD's alignment on the large model's text."""

    def sums(self, model: Any, batch: Batch) -> list[Tensor]:
        targets = targets_of(model, batch)
        logits = targets.of(run(model, batch).logits)
        return [(functional.cross_entropy(logits.float(), targets.tokens, reduction="none") * targets.weights).sum()]


def weight_of(batch: Batch) -> float:
    """What the labelled positions of a batch weigh together."""
    return float((batch.labels != IGNORED).sum() if batch.weights is None else batch.weights.sum())
