"""What a model predicts where a batch has labels: the one way in which training runs a model along a text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tasks.training.data import IGNORED, Batch, TopLogits


def forward(model: Any, batch: Batch, **options: Any) -> Any:
    """The output of `transformers` along the texts of a batch, without a loss of its own and without a cache."""
    if not model.config.is_encoder_decoder:
        return model(input_ids=batch.source, attention_mask=batch.mask, use_cache=False, **options)
    fed = model.prepare_decoder_input_ids_from_labels(labels=batch.labels)
    return model(input_ids=batch.source, attention_mask=batch.mask, decoder_input_ids=fed, use_cache=False, **options)


@dataclass(frozen=True)
class TargetPositions:
    """The labelled positions of a batch in one row, first example first."""

    tokens: Tensor
    """int64 (positions,)"""
    weights: Tensor
    """float32 (positions,): what each weighs."""
    top: TopLogits | None
    """(positions, k), where the batch has them."""
    _places: Tensor
    _shift: int

    def select(self, values: Tensor) -> Tensor:
        """The entries of something (examples, positions fed, ...) from which each target is predicted: (positions, ...)."""
        # In one row with its source, a token is predicted one position before it stands.
        return values[:, : values.shape[1] - self._shift][self._places]


def target_positions(model: Any, batch: Batch) -> TargetPositions:
    """The targets of a batch, as this kind of model predicts them."""
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


def target_log_probs(model: Any, batch: Batch, vocabulary: int) -> Tensor:
    """log softmax at each target over the first `vocabulary` ids: float32 (positions, vocabulary), in nats."""
    return target_positions(model, batch).select(forward(model, batch).logits)[:, :vocabulary].float().log_softmax(-1)
