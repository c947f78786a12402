"""Predicts with a model at the labelled positions of a batch; training runs models only through this module."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.models.pruned_head import pruned_head
from tasks.training.data import IGNORED, Batch, TopLogits

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils import ModelOutput


def forward(model: PreTrainedModel, batch: Batch, **options: object) -> ModelOutput:
    """Return the output of a `transformers` model for the texts of a batch, without its own loss and without a cache."""
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
    indices: Tensor
    """int64 (positions,): index of each position among those of its text, from 0."""
    top: TopLogits | None
    """(positions, k); None without stored predictions."""
    _labelled: Tensor
    _shift: int

    def select(self, values: Tensor) -> Tensor:
        """Return the entries of `values` (examples, input positions, …) that predict each target: (positions, …)."""
        # A decoder-only model predicts a token one position before it.
        return values[:, : values.shape[1] - self._shift][self._labelled]


def target_positions(model: PreTrainedModel, batch: Batch) -> TargetPositions:
    """Return the target positions of a batch for this kind of model."""
    shift = 0 if model.config.is_encoder_decoder else 1
    labels = batch.labels[:, shift:]
    labelled = labels != IGNORED
    tokens = labels[labelled]
    weights = torch.ones_like(tokens, dtype=torch.float32) if batch.weights is None else batch.weights[:, shift:][labelled]
    top = None
    if batch.top is not None:
        stored = (batch.top.tokens, batch.top.log_probabilities)
        top = TopLogits(*(numbers[:, shift:][labelled] for numbers in stored))
    indices = (labelled.cumsum(1) - 1)[labelled]
    return TargetPositions(tokens, weights, indices, top, labelled, shift)


def drafted_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return the logits at each target position of the tokens that a model predicts.

    They are those of all tokens, (positions, vocabulary), or of a draft vocabulary, (positions, N): `PrunedHead.positions`.
    """
    head = pruned_head(model)
    with contextlib.nullcontext() if head is None else head.compact():
        return _target_logits(model, batch)


def target_log_probs(model: PreTrainedModel, batch: Batch, vocabulary: int) -> Tensor:
    """Return the log-softmax at each target position over the first `vocabulary` ids: float32 (positions, vocabulary), nats."""
    return _target_logits(model, batch)[:, :vocabulary].float().log_softmax(-1)


def _target_logits(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return the logits at each target position: (positions, outputs of the head)."""
    targets = target_positions(model, batch)
    head = None if model.config.is_encoder_decoder else model.get_output_embeddings()
    if head is None:
        return targets.select(forward(model, batch).logits)
    # Most positions of a decoder-only model belong to prompts, whose logits nobody reads: the head skips them.
    selecting = head.register_forward_pre_hook(lambda _module, inputs: (targets.select(inputs[0])[None],))
    try:
        logits: Tensor = forward(model, batch).logits[0]
    finally:
        selecting.remove()
    return logits
