"""Single layers of a model: norm and head after any of them, the first ones alone, and a small model of some of the large's.

Such a small model may read the large one's encoder: training then leaves the encoder as it is, and decoding runs it once.
BiLD-v1 (section 4.1) makes its small FSMT models so. The embedding that an encoder reads is a part of it; T5 and BART read the
same matrix in the decoder, where it is frozen too. A head that is tied to it becomes a matrix of its own, which is trained.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.errors import InputError
from tasks.models.settings import LayersSettings, from_large_problem, no_encoder_problem

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LAYERED = ("t5", "mt5")
_DEPTHS = {
    "decoder.block": "num_decoder_layers",
    "model.decoder.layers": "decoder_layers",
    "transformer.h": "n_layer",
    "model.layers": "num_hidden_layers",
}
"""The setting of the decoder's depth, by the attribute path of its layers, in T5, BART, GPT-2 and Llama."""
_ENCODERS = {
    "decoder.block": ("encoder.block", "num_layers"),
    "model.decoder.layers": ("model.encoder.layers", "encoder_layers"),
}
"""The encoder's path and its depth, by the decoder's path."""
_PROBE = 16
"""Tokens of the source that tells whether two encoders compute the same."""
_SHARED = "layer.0.SelfAttention.relative_attention_bias.weight"
"""T5 keeps the position biases of all layers in the first one."""
_MARK = "shares_encoder"
"""Says in a model's configuration, which is saved with it, that its encoder is the large model's."""


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
    (*owners, name), layers = _located(model)
    # Only the modules above the layers are copied.
    above = list(itertools.accumulate(owners, getattr, initial=model))
    shared = [*model.parameters(), *model.buffers(), *(part for part in model.modules() if part not in above)]
    view = copy.deepcopy(model, {id(part): part for part in shared})
    setattr(functools.reduce(getattr, owners, view), name, layers[:count])
    return view


def exit_layer_of(model: PreTrainedModel) -> int:
    """Return the number of decoder layers of the early-layer drafter: `exit_layer` of the configuration, or 1.

    Raises:
        InputError: the decoder does not have more layers than that.
    """
    count, layers = getattr(model.config, "exit_layer", 1), len(decoder_layers(model))
    if not 1 <= count < layers:
        raise InputError(f"exit_layer is {count}, but the decoder has {layers} layers; it must be at least 1 and less")
    return int(count)


def _located(model: PreTrainedModel) -> tuple[list[str], torch.nn.ModuleList]:
    """Return the attribute path of the decoder's layers, and the layers."""
    for path in _DEPTHS:
        layers = functools.reduce(lambda inner, name: getattr(inner, name, None), path.split("."), model)
        if isinstance(layers, torch.nn.ModuleList):
            return path.split("."), layers
    kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    raise InputError(f"the decoder layers of a model of type {kind} cannot be located; name a T5, BART, GPT-2 or Llama")


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
        head = small.get_output_embeddings()
        if head.weight is small.get_input_embeddings().weight:
            head.weight = torch.nn.Parameter(head.weight.detach().clone())
    weights = large.state_dict()
    for layers_path, layers in kept:
        weights = _chosen(weights, layers_path, layers)
    small.load_state_dict({name: weights[name] for name in small.state_dict()})
    small.generation_config = copy.deepcopy(large.generation_config)
    if settings.share_encoder:
        setattr(small.config, _MARK, True)
    return small.to(device=large.device, dtype=large.dtype).eval()


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


def reads_large_encoder(model: PreTrainedModel) -> bool:
    """Return whether a model was made to read the large model's encoder."""
    return bool(getattr(model.config, _MARK, False))


@torch.inference_mode()
def shares_encoder(small: PreTrainedModel, large: PreTrainedModel) -> bool:
    """Return whether two encoder-decoders have the same encoder: equal weights, and identical output for a probe.

    The probe detects encoders with equal weights and different configurations (heads, activation).
    """
    if not (small.config.is_encoder_decoder and large.config.is_encoder_decoder):
        return False
    encoders = [model.get_encoder() for model in (small, large)]
    ours, theirs = (encoder.state_dict() for encoder in encoders)
    if ours.keys() != theirs.keys() or not all(torch.equal(ours[name], theirs[name]) for name in ours):
        return False
    known = small.get_input_embeddings().weight.shape[0]
    probe = torch.arange(_PROBE, device=small.device)[None] % known
    mask = torch.ones_like(probe)
    one, other = (encoder(input_ids=probe, attention_mask=mask).last_hidden_state for encoder in encoders)
    return torch.equal(one, other)


@torch.no_grad()
def keep_encoder_once(small: PreTrainedModel, large: PreTrainedModel) -> None:
    """Let the encoder of `small`, whose weights equal those of `large`, be in memory once: its tensors become the other's."""
    theirs = dict(large.get_encoder().named_parameters())
    for name, weight in small.get_encoder().named_parameters():
        weight.data = theirs[name].data


def shared_parameters(small: PreTrainedModel, large: PreTrainedModel) -> int:
    """Return how many parameters of `small` are in memory as tensors of `large`."""
    theirs = {weight.data_ptr() for weight in large.parameters()}
    return sum(weight.numel() for weight in small.parameters() if weight.data_ptr() in theirs)
