"""What the engine runs: a model, what is trained beside it, and the loss of a batch as one forward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tasks.errors import InputError
from tasks.models.extras import add_classifier, add_heads, classifier_of, heads_of
from tasks.models.layers import decoder_layers, normed, predict, require_layered
from tasks.training.data import Batch
from tasks.training.losses import consistency_loss, exit_loss, heads_losses, layer_weights
from tasks.training.settings import TrainingSettings

Loss = Callable[[Any, Batch], Tensor]
"""The model and a batch on its device to a scalar, in nats a token."""


class Objective(torch.nn.Module):
    """A model with its loss. A frozen trunk runs without dropout: its hidden states are those that decoding will see."""

    def __init__(self, model: Any, settings: TrainingSettings) -> None:
        """Adds to `model` what the settings train beside it, and marks what is trained.

        Raises:
            InputError: the model is not built for what the settings ask.
        """
        super().__init__()
        _prepare(model, settings)
        self.model = model
        self.frozen = settings.trunk == "frozen"
        self._loss = loss_of(settings)

    def forward(self, source: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        return self._loss(self.model, Batch(source, mask, labels))

    def train(self, mode: bool = True) -> Objective:
        super().train(mode)
        if self.frozen:
            self.model.eval()
        return self


def _prepare(model: Any, settings: TrainingSettings) -> None:
    if settings.layered:
        require_layered(model, "training with exit_loss, draft_heads or exit_classifier")
        layers = len(decoder_layers(model))
        if settings.exit_loss == "first_last" and settings.exit_layer >= layers:
            raise InputError(f"exit_layer is {settings.exit_layer}, but the decoder has {layers} layers; it must be less")
        if settings.exit_classifier and layers == 1:
            raise InputError("exit_classifier is set, but the decoder has one layer, with none to exit before; give it more")
    model.config.exit_layer = settings.exit_layer
    if settings.draft_heads:
        add_heads(model, settings.draft_heads, settings.seed)
    if settings.exit_classifier:
        add_classifier(model)
    model.requires_grad_(settings.trunk == "trained")
    for extra, wanted in ((heads_of(model), settings.draft_heads > 0), (classifier_of(model), settings.exit_classifier)):
        if extra is not None:
            extra.requires_grad_(wanted)


def loss_of(settings: TrainingSettings) -> Loss:
    """The loss that the settings describe."""
    return functools.partial(_layered_loss, settings) if settings.layered else _plain_loss


def _plain_loss(model: Any, batch: Batch) -> Tensor:
    loss: Tensor = model(input_ids=batch.source, attention_mask=batch.mask, labels=batch.labels).loss
    return loss


def _layered_loss(settings: TrainingSettings, model: Any, batch: Batch) -> Tensor:
    """The mean of the trunk's loss, unless that is frozen, and of each head's; the classifier's loss is added to it."""
    run = model(input_ids=batch.source, attention_mask=batch.mask, labels=batch.labels, output_hidden_states=True)
    # transformers gives the embeddings, each layer's output, and in place of the last layer's that after the final norm.
    *inner, last = run.decoder_hidden_states[1:]

    def logits_of(layer: int) -> Tensor:
        logits: Tensor = run.logits if layer > len(inner) else predict(model, normed(model, inner[layer - 1]))
        return logits

    parts = []
    if settings.trunk == "trained":
        weights = layer_weights(settings.exit_loss, len(inner) + 1, settings.exit_layer)
        parts.append(exit_loss(logits_of, batch.labels, weights))
    heads, classifier = heads_of(model), classifier_of(model)
    if settings.draft_heads and heads is not None:
        parts += heads_losses(predict(model, heads(last)), batch.labels)
    loss = torch.stack(parts).mean() if parts else torch.zeros((), device=last.device)
    if settings.exit_classifier and classifier is not None:
        with torch.no_grad():
            states = [normed(model, hidden) for hidden in inner]
            agreements = [predict(model, state).argmax(-1) == run.logits.argmax(-1) for state in states]
        # It reads states without their gradients: what it learns never changes the model (CALM trains it in a second step).
        loss = loss + consistency_loss([classifier(state) for state in states], agreements, batch.labels)
    return loss
