"""CALM: a decoder that exits at the first confident layer, token by token (Schuster et al., 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from tasks.decoding.decoder import Decoder
from tasks.decoding.runtimes.reference import ModelRun, TransformersDecoder
from tasks.decoding.settings import CalmSettings
from tasks.errors import InputError
from tasks.models.extras import ExitClassifier, classifier_of
from tasks.models.layers import normed, predict, require_layered

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.t5.modeling_t5 import T5Block

Confidence = Callable[[Tensor, Tensor | None], Tensor]
"""Maps a layer's output and the previous layer's (or none), both (rows, 1, width), to confidences (rows,) of at most 1."""


def exit_threshold(settings: CalmSettings, position: int, limit: int) -> float:
    """clip(0.9 λ + 0.1 exp(-t i / N), 0, 1) for token number i, counted from 0, of at most N (BiLD, 7.2)."""
    return min(1.0, max(0.0, 0.9 * settings.threshold + 0.1 * math.exp(-settings.decay * position / limit)))


def top_two_gap(logits: Tensor) -> Tensor:
    """Return the softmax response, the gap between the two highest probabilities: (..., vocabulary) to (...)."""
    top = torch.softmax(logits.float(), -1).topk(2, dim=-1).values
    return top[..., 0] - top[..., 1]


def saturation(hidden: Tensor, before: Tensor | None) -> Tensor:
    """Return the cosine similarity of successive layers' outputs, (rows,); 0 after the first layer."""
    if before is None:
        return torch.zeros(hidden.shape[0], device=hidden.device)
    return functional.cosine_similarity(hidden[:, 0].float(), before[:, 0].float(), dim=-1).clamp(max=1.0)


def confidence_of(kind: str, model: PreTrainedModel, vocabulary: int) -> Confidence:
    """Return the confidence measure called `kind` (a choice of `CalmSettings`), over the first `vocabulary` tokens.

    Raises:
        InputError: the classifier is wanted, and none was trained with the model.
    """
    if kind == "saturation":
        return saturation
    if kind == "softmax":
        return lambda hidden, _: top_two_gap(predict(model, normed(model, hidden))[:, 0, :vocabulary])
    classifier: ExitClassifier | None = classifier_of(model)
    if classifier is None:
        raise InputError("confidence is classifier, but none was trained with the large model; train it with exit_classifier")
    return lambda hidden, _: torch.sigmoid(classifier(normed(model, hidden))[:, 0].float())


class EarlyExitDecoder(TransformersDecoder):
    """A T5 that stops each row at the first layer whose confidence exceeds the threshold, and predicts from there.

    A row that has exited keeps its hidden state through the layers that other rows still need, and each of those layers
    computes the row's keys and values from that state (state propagation). Once all rows have exited, only keys and values
    are computed. A row exits at the same layer in a batch as alone.
    """

    def __init__(self, large: Decoder, settings: CalmSettings, limit: int) -> None:
        """Take the large model, and the most tokens that a text may have: N of the threshold.

        Raises:
            InputError: the architecture is not T5's, or the classifier was not trained.
        """
        model = large.capabilities.transformers_model
        if model is None:
            raise InputError(f"calm needs the layers of a T5 or mT5, which the {large.name} model does not give")
        require_layered(model, "calm")
        super().__init__(model, large.name, large.vocabulary)
        self.settings = settings
        self.limit = limit
        self._confidence = confidence_of(settings.confidence, model, self.vocabulary)

    def _run(self, ids: Tensor, counts: list[int]) -> ModelRun:
        if any(count != 1 for count in counts):
            raise ValueError("an early-exit decoder takes one token for each run: the next token may exit at another layer")
        stack = self.model.decoder
        hidden = stack.embed_tokens(ids)
        own_mask, source_mask = self._masks(hidden)
        thresholds = torch.tensor([exit_threshold(self.settings, length, self.limit) for length in self.lengths])
        depths = torch.full((len(counts),), len(stack.block))
        going = torch.ones(len(counts), dtype=torch.bool)
        before = own_bias = source_bias = None
        for depth, block in enumerate(stack.block, start=1):
            if not going.any():
                self._propagate(block, hidden)
                continue
            output, own_bias, source_bias = block(
                hidden, own_mask, own_bias, self._encoder_output.hidden, source_mask, source_bias, past_key_values=self._cache
            )
            hidden = torch.where(going.to(self.device)[:, None, None], output, hidden)
            if depth < len(stack.block):
                leaving = going & (self._confidence(hidden, before).cpu() > thresholds)
                depths[leaving] = depth
                going &= ~leaving
            before = hidden
        return ModelRun(predict(self.model, normed(self.model, hidden)), depths.tolist())

    def _masks(self, hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the masks of padding in the target and in the source, as the model's own forward pass makes them."""
        from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

        config = self.model.decoder.config
        own = create_causal_mask(
            config=config,
            inputs_embeds=hidden,
            attention_mask=self._mask(1),
            past_key_values=self._cache.self_attention_cache,
        )
        source = create_bidirectional_mask(
            config=config,
            inputs_embeds=hidden,
            attention_mask=self._encoder_output.mask,
            encoder_hidden_states=self._encoder_output.hidden,
        )
        return own, source

    def _propagate(self, block: T5Block, hidden: Tensor) -> None:
        """Cache the keys and values of a skipped layer, computed from the hidden state at which the row exited."""
        layer = block.layer[0]
        attention, states = layer.SelfAttention, layer.layer_norm(hidden)
        shape = (*states.shape[:-1], attention.n_heads, attention.key_value_proj_dim)
        keys, values = (project(states).view(shape).transpose(1, 2) for project in (attention.k, attention.v))
        self._cache.self_attention_cache.update(keys, values, attention.layer_idx)
