"""Access to single decoder layers: norm and output head after any layer, and the first layers as a model of their own."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYERED = ("t5", "mt5")
_LAYER_LISTS = ("decoder.block", "model.decoder.layers", "transformer.h", "model.layers")
"""Attribute paths of the decoder layers in T5, BART, GPT-2 and Llama."""


def require_layered(model: PreTrainedModel, what: str) -> None:
    """Raise `InputError` if the decoder of `model` is not built from T5's blocks, which `what` needs."""
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if kind not in _LAYERED:
        raise InputError(f"{what} takes T5 and mT5, but the model is of type {kind}; name one of those")


def normed(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Apply the final norm, and dropout in training, to a decoder layer's output; both of shape (..., width)."""
    result: Tensor = model.decoder.dropout(model.decoder.final_layer_norm(hidden))
    return result


def predict(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Apply the output head of a T5-style model to normed hidden states: (..., width) to (..., vocabulary)."""
    logits: Tensor = model.lm_head(hidden if head_scale(model) == 1 else hidden * head_scale(model))
    return logits


def head_scale(model: PreTrainedModel) -> float:
    """Return the factor that a T5-style model applies to its last hidden state before the head."""
    config = model.config
    # T5 and LongT5 have a setting for it; UMT5 scales if its embeddings are tied; mT5 never scales.
    scaled = getattr(config, "scale_decoder_outputs", config.model_type == "umt5" and config.tie_word_embeddings)
    return float(config.d_model**-0.5) if scaled else 1.0


def decoder_layers(model: PreTrainedModel) -> torch.nn.ModuleList:
    """Return the decoder's layers, first to last.

    Raises:
        InputError: the architecture does not name its layers as T5, BART, GPT-2 or Llama do.
    """
    return _located(model)[1]


def decoder_path(model: PreTrainedModel) -> str:
    """Return the attribute path of the decoder's layers, such as `model.layers`; raises as `decoder_layers` does."""
    return ".".join(_located(model)[0])


def first_layers(model: PreTrainedModel, count: int) -> PreTrainedModel:
    """Return a view of `model` whose decoder ends after `count` layers; norm, head and all weights are shared."""
    (*owners, name), _ = _located(model)
    view = inner = _shallow(model)
    for owner in owners:
        setattr(inner, owner, _shallow(getattr(inner, owner)))
        inner = getattr(inner, owner)
    setattr(inner, name, getattr(inner, name)[:count])
    return view


def exit_layer_of(model: PreTrainedModel) -> int:
    """Return the number of decoder layers of the early-layer drafter: `exit_layer` of the configuration, or 1.

    Raises:
        InputError: the decoder does not have more layers than that.
    """
    count, layers = getattr(model.config, "exit_layer", 1), len(decoder_layers(model))
    if not 1 <= count < layers:
        raise InputError(
            f"exit_layer is {count}, but the decoder has {layers} layers; it must be at least 1 and less than that"
        )
    return int(count)


def _located(model: PreTrainedModel) -> tuple[list[str], torch.nn.ModuleList]:
    """Return the attribute path of the decoder's layers, and the layers."""
    for path in _LAYER_LISTS:
        layers = functools.reduce(lambda inner, name: getattr(inner, name, None), path.split("."), model)
        if isinstance(layers, torch.nn.ModuleList):
            return path.split("."), layers
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    raise InputError(f"the decoder layers of a model of type {kind} cannot be located; name a T5, BART, GPT-2 or Llama")


def _shallow(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy that shares all parts, whose submodules can be replaced without changing the original."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin
