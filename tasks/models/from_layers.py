"""A small model from layers of the large one: its embeddings, its head, its norms, and some of its layers in their order."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from tasks.errors import InputError
from tasks.models.layers import decoder_path
from tasks.models.settings import LayersSettings, from_large_problem, no_encoder_problem
from tasks.models.shared_encoder import mark_shared_encoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_DEPTHS = {
    "decoder.block": "num_decoder_layers",
    "model.decoder.layers": "decoder_layers",
    "transformer.h": "n_layer",
    "model.layers": "num_hidden_layers",
}
"""The setting of the decoder's depth, by the attribute path of its layers."""
_ENCODERS = {
    "decoder.block": ("encoder.block", "num_layers"),
    "model.decoder.layers": ("model.encoder.layers", "encoder_layers"),
}
"""The encoder's path and its depth, by the decoder's path."""
_SHARED = "layer.0.SelfAttention.relative_attention_bias.weight"
"""T5 keeps the position biases of all layers in the first one."""


def model_from_layers(large: PreTrainedModel, settings: LayersSettings) -> PreTrainedModel:
    """Return a new model of the chosen layers, with copies of the large model's weights, in evaluation mode.

    All decoder layers give a model that equals the large one. Draft heads and exit classifiers are not copied.

    Raises:
        InputError: the large model does not have these layers, or its architecture does not name its layers in a known way.
    """
    check_layers(large, settings)
    path, config = decoder_path(large), copy.deepcopy(large.config)
    kept = [(path, settings.layers)]
    _set_depth(config, _DEPTHS[path], settings.layers)
    if path == "decoder.block" and hasattr(config, "decoder_layers"):
        config.decoder_layers = len(settings.layers)  # the name by which `generate` finds T5's depth
    if settings.encoder_layers is not None:
        encoder, depth = _ENCODERS[path]
        kept.append((encoder, settings.encoder_layers))
        _set_depth(config, depth, settings.encoder_layers)
    with torch.random.fork_rng(devices=[]):
        small: PreTrainedModel = type(large)(config)
    # `transformers` ties the head of every new T5 and mT5, also where that of the large model is its own.
    own_head = large.get_output_embeddings().weight is not large.get_input_embeddings().weight
    if own_head or settings.share_encoder:
        _untie_head(small)
    weights = large.state_dict()
    for layers_path, layers in kept:
        weights = _chosen(weights, layers_path, layers)
    small.load_state_dict({name: weights[name] for name in small.state_dict()})
    small.generation_config = copy.deepcopy(large.generation_config)
    if settings.share_encoder:
        mark_shared_encoder(small)
    return small.to(device=large.device, dtype=large.dtype).eval()


def _untie_head(small: PreTrainedModel) -> None:
    """Give a model whose head is its embedding a head of its own."""
    head = small.get_output_embeddings()
    if head.weight is small.get_input_embeddings().weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone())


def check_layers(large: PreTrainedModel, settings: LayersSettings) -> None:
    """Check that a model has the layers of these settings.

    Raises:
        InputError: it does not have one of them, or no encoder where some of its layers are named.
    """
    path = decoder_path(large)
    _require(settings.layers, getattr(large.config, _DEPTHS[path]), "layers", "decoder layers")
    if settings.about_encoder is not None and path not in _ENCODERS:
        raise InputError(no_encoder_problem(settings.about_encoder, f"the large model, a {large.config.model_type}"))
    if settings.encoder_layers is not None:
        _require(settings.encoder_layers, getattr(large.config, _ENCODERS[path][1]), "encoder_layers", "encoder layers")


def _require(layers: Sequence[int], depth: int, setting: str, kind: str) -> None:
    if layers[-1] >= depth:
        raise InputError(from_large_problem(setting, layers[-1], depth, kind))


def _set_depth(config: object, name: str, layers: Sequence[int]) -> None:
    setattr(config, name, len(layers))
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:  # by layer, where some of them attend to a window alone
        config.layer_types = [kinds[layer] for layer in layers]  # type: ignore[attr-defined]


def _chosen(weights: dict[str, torch.Tensor], path: str, layers: Sequence[int]) -> dict[str, torch.Tensor]:
    """Return the weights with those of the layers under `path` renumbered, and those of the other layers left out."""
    begin, found = f"{path}.", dict[str, torch.Tensor]()
    places = {str(layer): str(place) for place, layer in enumerate(layers)}
    for name, weight in weights.items():
        if not name.startswith(begin):
            found[name] = weight
            continue
        layer, _, rest = name.removeprefix(begin).partition(".")
        if rest == _SHARED:
            found[name] = weight
        elif layer in places:
            found[f"{begin}{places[layer]}.{rest}"] = weight
    return found
