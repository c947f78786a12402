"""Losses of early exits, draft heads and the exit classifier, in addition to the model's own loss; T5 and mT5 only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tasks.models.extras import classifier_of, heads_of
from tasks.models.layers import normed, predict
from tasks.training.data import IGNORED, Batch
from tasks.training.losses import total_weight
from tasks.training.predictions import forward
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class AuxiliaryLoss:
    """The mean of the trunk's loss (unless the trunk is frozen) and of each head's, plus the classifier's loss."""

    def __init__(self, settings: TrainingSettings) -> None:
        self._settings = settings
        self._trunk = settings.trunk == "trained"

    def term_weights(self) -> list[float]:
        parts = self._trunk + self._settings.draft_heads
        return [1 / max(parts, 1)] * parts + [1.0] * self._settings.exit_classifier

    def counts(self, batch: Batch) -> list[float]:
        whole = total_weight(batch)
        heads = [total_weight(_later(batch, ahead)) for ahead in range(1, self._settings.draft_heads + 1)]
        return [whole] * self._trunk + heads + [whole] * self._settings.exit_classifier

    def sums(self, model: PreTrainedModel, batch: Batch) -> list[Tensor]:
        output = forward(model, batch, output_hidden_states=True)
        # transformers returns the embeddings, every layer's output, and for the last layer its output after the final norm.
        *inner, last = output.decoder_hidden_states[1:]

        def logits_of(layer: int) -> Tensor:
            logits: Tensor = output.logits if layer > len(inner) else predict(model, normed(model, inner[layer - 1]))
            return logits

        terms = []
        if self._trunk:
            weights = layer_weights(self._settings.exit_loss, len(inner) + 1, self._settings.exit_layer)
            terms.append(exit_loss_sum(logits_of, batch, weights))
        heads, classifier = heads_of(model), classifier_of(model)
        if self._settings.draft_heads and heads is not None:
            terms += head_loss_sums(predict(model, heads(last)), batch)
        if self._settings.exit_classifier and classifier is not None:
            with torch.no_grad():
                states = [normed(model, hidden) for hidden in inner]
                agreements = [predict(model, state).argmax(-1) == output.logits.argmax(-1) for state in states]
            # Hidden states enter without gradients: the classifier never changes the model (CALM trains it in a second step).
            terms.append(classifier_loss_sum([classifier(state) for state in states], agreements, batch))
        return terms


def layer_weights(kind: str, layers: int, exit_layer: int) -> dict[int, float]:
    """Return the weight of each of `layers` decoder layers, counted from 1, in the loss; the weights sum to 1.

    `none`: the last layer alone. `first_last`: ½ for the exit layer and ½ for the last (BiLD, 7.2.1). `weighted`: w_i = i / Σ j
    (CALM; BiLD, 7.2.1).
    """
    if kind == "weighted":
        return {layer: 2 * layer / (layers * (layers + 1)) for layer in range(1, layers + 1)}
    return {layers: 1.0} if kind == "none" else {exit_layer: 0.5, layers: 0.5}


def cross_entropy_sum(logits: Tensor, batch: Batch) -> Tensor:
    """Return the weighted sum of the cross-entropy of logits (examples, positions, vocabulary): a scalar, in nats."""
    each = functional.cross_entropy(
        logits.flatten(0, 1).float(), batch.labels.flatten(), ignore_index=IGNORED, reduction="none"
    )
    return each.sum() if batch.weights is None else (each * batch.weights.flatten()).sum()


def exit_loss_sum(logits_of: Callable[[int], Tensor], batch: Batch, weights: dict[int, float]) -> Tensor:
    """Return Σ w_i L_i, where `logits_of(i)` applies the shared output layer to layer i."""
    return torch.stack([weight * cross_entropy_sum(logits_of(layer), batch) for layer, weight in weights.items()]).sum()


def head_loss_sums(logits: Tensor, batch: Batch) -> list[Tensor]:
    """Return one sum per head (Stern et al., 2018, section 6): head j predicts the label j positions after the model's own.

    Args:
        logits: (examples, positions, heads, vocabulary).
        batch: The labels and their weights.
    """
    later = [_later(batch, ahead) for ahead in range(1, logits.shape[2] + 1)]
    return [cross_entropy_sum(logits[:, : part.labels.shape[1], ahead], part) for ahead, part in enumerate(later)]


def _later(batch: Batch, ahead: int) -> Batch:
    """Return the batch with labels shifted by this many positions."""
    weights = None if batch.weights is None else batch.weights[:, ahead:]
    return Batch(batch.source, batch.mask, batch.labels[:, ahead:], weights)


def classifier_loss_sum(confidences: Sequence[Tensor], agreements: Sequence[Tensor], batch: Batch) -> Tensor:
    """Return the binary cross-entropy of the early-exit classifier, summed over positions and averaged over layers (CALM).

    Args:
        confidences: The classifier's logits for each inner layer: (examples, positions).
        agreements: Whether the top token of each inner layer is the last layer's: (examples, positions), bool.
        batch: The labels, which mark padding, and their weights.
    """
    weights = (batch.labels != IGNORED).float() if batch.weights is None else batch.weights
    return torch.stack(
        [
            (functional.binary_cross_entropy_with_logits(confidence, agreement.float(), reduction="none") * weights).sum()
            for confidence, agreement in zip(confidences, agreements, strict=True)
        ]
    ).mean()
