"""Predictions of a model at the labelled positions of a batch; training runs models through this module only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.training.data import IGNORED, Batch, TopLogits

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput


def forward(model: PreTrainedModel, batch: Batch, **options: object) -> ModelOutput:
    """Output of a `transformers` model for the texts of a batch, without its own loss and without a cache."""
    if not model.config.is_encoder_decoder:
        return model(input_ids=batch.source, attention_mask=batch.mask, use_cache=False, **options)
    fed = model.prepare_decoder_input_ids_from_labels(labels=batch.labels)
    return model(input_ids=batch.source, attention_mask=batch.mask, decoder_input_ids=fed, use_cache=False, **options)


@dataclass(frozen=True)
class TargetPositions:
    """The labelled positions of a batch, flattened, first example first."""

    tokens: Tensor
    """int64 (positions,)"""
    weights: Tensor
    """float32 (positions,): weight of each position."""
    top: TopLogits | None
    """(positions, k), where the batch has stored predictions."""
    _places: Tensor
    _shift: int

    def select(self, values: Tensor) -> Tensor:
        """Entries of `values` (examples, input positions, …) that predict each target: (positions, …)."""
        # A decoder-only model predicts a token one position before it.
        return values[:, : values.shape[1] - self._shift][self._places]


def target_positions(model: PreTrainedModel, batch: Batch) -> TargetPositions:
    """The target positions of a batch for this kind of model."""
    shift = 0 if model.config.is_encoder_decoder else 1
    labels = batch.labels[:, shift:]
    places = labels != IGNORED
    tokens = labels[places]
    weights = torch.ones_like(tokens, dtype=torch.float32) if batch.weights is None else batch.weights[:, shift:][places]
    top = None
    if batch.top is not None:
        stored = (batch.top.tokens, batch.top.log_probabilities)
        top = TopLogits(*(numbers[:, shift:][places] for numbers in stored))
    return TargetPositions(tokens, weights, top, places, shift)


def target_log_probs(model: PreTrainedModel, batch: Batch, vocabulary: int) -> Tensor:
    """Log-softmax at each target position over the first `vocabulary` ids: float32 (positions, vocabulary), in nats."""
    return target_positions(model, batch).select(forward(model, batch).logits)[:, :vocabulary].float().log_softmax(-1)
