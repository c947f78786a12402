"""The losses of a model that also predicts from inner layers, or through heads that look further ahead.

Pure functions of logits and labels; labels are int64 (examples, positions), `IGNORED` at padding. All give means a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from tasks.training.data import IGNORED


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross-entropy in nats of logits (examples, positions, vocabulary); 0 where there is no label at all."""
    total = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    return total / (labels != IGNORED).sum().clamp(min=1)


def layer_weights(kind: str, layers: int, exit_layer: int) -> dict[int, float]:
    """What each of `layers` decoder layers, counted from 1, weighs in the loss; the weights sum to 1.

    `none`: the last alone. `first_last`: ½ the layer that drafts and ½ the last (BiLD, 7.2.1). `weighted`: w_i = i / Σ j
    (CALM; BiLD, 7.2.1).
    """
    if kind == "weighted":
        return {layer: 2 * layer / (layers * (layers + 1)) for layer in range(1, layers + 1)}
    return {layers: 1.0} if kind == "none" else {exit_layer: 0.5, layers: 0.5}


def exit_loss(logits_of: Callable[[int], Tensor], labels: Tensor, weights: dict[int, float]) -> Tensor:
    """Σ w_i L_i, where `logits_of(i)` is what the shared head makes of layer i."""
    return torch.stack([weight * token_loss(logits_of(layer), labels) for layer, weight in weights.items()]).sum()


def heads_losses(logits: Tensor, labels: Tensor) -> list[Tensor]:
    """One loss a head (Stern et al., 2018, section 6): head j is judged by the label j positions after the model's own.

    `logits` is (examples, positions, heads, vocabulary).
    """
    return [
        token_loss(logits[:, : labels.shape[1] - ahead, ahead - 1], labels[:, ahead:])
        for ahead in range(1, logits.shape[2] + 1)
    ]


def consistency_loss(confidences: Sequence[Tensor], agreements: Sequence[Tensor], labels: Tensor) -> Tensor:
    """Binary cross-entropy of the early-exit classifier, each layer by itself, averaged over layers (CALM).

    Args:
        confidences: Of each inner layer, the classifier's logits: (examples, positions).
        agreements: Of each inner layer, whether its top token is the last layer's: (examples, positions), bool.
        labels: Tells real positions from padding.
    """
    real = labels != IGNORED
    return torch.stack(
        [
            functional.binary_cross_entropy_with_logits(confidence[real], agreement[real].float())
            for confidence, agreement in zip(confidences, agreements, strict=True)
        ]
    ).mean()
