"""Model sizes from which the cost of decoding is computed, and the memory that a model takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tasks.decoding.decoder import Decoder
from tasks.decoding.method import Pair
from tasks.evaluation.results.pair import ModelMemory, ModelSizes, PairMemory, PairSizes
from tasks.models.pruned_head import PrunedHead

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SOURCE, _TARGET = 3, 2
"""Tokens of the probe: two different numbers, so that a source can be distinguished from a target."""


@torch.inference_mode()
def sizes_of(model: PreTrainedModel, *, int8: bool = False) -> ModelSizes:
    """Counts the weights of a `transformers` model that a probe of a few tokens runs through.

    Args:
        model: An encoder-decoder or decoder-only model with its head.
        int8: Whether its matrices run in 8 bits; keys and values are float32 then.
    """
    config, decoder_only = model.config, not model.config.is_encoder_decoder
    encoder = set() if decoder_only else set(model.get_encoder().modules())
    weights = {"encoder": 0, "memory": 0, "decoder": 0}

    def count(module: Any, positions: int) -> None:
        part = "encoder" if module in encoder else "memory" if positions == _SOURCE else "decoder"
        weights[part] += _numbers(module)

    with _watched(model, count):
        target = torch.zeros(1, _TARGET, dtype=torch.long, device=model.device)
        if decoder_only:
            model(input_ids=target, attention_mask=torch.ones_like(target), use_cache=False)
        else:
            source = torch.zeros(1, _SOURCE, dtype=torch.long, device=model.device)
            mask = torch.ones_like(source)
            model(input_ids=source, attention_mask=mask, decoder_input_ids=target, use_cache=False)
    heads = _first(config, "decoder_attention_heads", "num_attention_heads")
    head_width = _first(config, "head_dim", default=config.hidden_size // heads)
    return ModelSizes(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        encoder_parameters=weights["encoder"],
        memory_parameters=weights["memory"],
        decoder_parameters=weights["decoder"],
        head_parameters=_numbers(model.get_output_embeddings()),
        encoder_layers=0 if decoder_only else config.num_hidden_layers,
        layers=_first(config, "num_decoder_layers", "decoder_layers", "num_hidden_layers"),
        width=config.hidden_size,
        attention_width=heads * head_width,
        cache_width=2 * _first(config, "num_key_value_heads", default=heads) * head_width,
        weight_bytes=1 if int8 else model.dtype.itemsize,
        cache_bytes=4 if int8 else model.dtype.itemsize,
        feed_forward_width=_feed_forward_width(config),
    )


def memory_of(
    decoder: Decoder, sizes: ModelSizes, source_tokens: int, target_tokens: int, shared_parameters: int = 0
) -> ModelMemory:
    """Bytes of a model's weights, and of its caches for one text: those of the runtime or, where it does not know, computed.

    Args:
        decoder: The model in its runtime.
        sizes: Its sizes.
        source_tokens: Of the text.
        target_tokens: Of the text.
        shared_parameters: Those of its parameters that are counted with another model.
    """
    can = decoder.capabilities
    weights = can.weight_bytes or (sizes.parameters - shared_parameters) * sizes.weight_bytes
    if can.cache_bytes is not None:
        return ModelMemory(weights=weights, cache=can.cache_bytes(source_tokens, target_tokens))
    # Without an encoder the source is cached as a part of the text.
    source_width = 2 * sizes.attention_width if sizes.encoder_layers else sizes.cache_width
    numbers = sizes.layers * (sizes.cache_width * target_tokens + source_width * source_tokens)
    return ModelMemory(weights=weights, cache=numbers * sizes.cache_bytes)


def pair_memory(pair: Pair, sizes: PairSizes, source_tokens: int, target_tokens: int) -> PairMemory | None:
    """The memory of both models for a text of these lengths, what they share with the large one; None without their sizes."""
    if sizes.small is None or sizes.large is None:
        return None
    return PairMemory(
        small=memory_of(pair.small, sizes.small, source_tokens, target_tokens, sizes.shared_parameters),
        large=memory_of(pair.large, sizes.large, source_tokens, target_tokens),
        source_tokens=source_tokens,
        target_tokens=target_tokens,
    )


@contextmanager
def _watched(model: PreTrainedModel, count: Callable[[Any, int], None]) -> Iterator[None]:
    """Calls `count` with each matrix that runs and the number of positions that it runs over."""
    from transformers.pytorch_utils import Conv1D

    def hook(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        count(module, inputs[0].numel() // inputs[0].shape[-1])

    matrices = [module for module in model.modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    hooks = [module.register_forward_pre_hook(hook) for module in matrices]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def _numbers(matrix: Any) -> int:
    """Return the weights that a run multiplies: of a head over a draft vocabulary, the rows of that."""
    return matrix.rows * matrix.in_features if isinstance(matrix, PrunedHead) else int(matrix.weight.numel())


def _feed_forward_width(config: Any) -> int | None:
    names = ("d_ff", "decoder_ffn_dim", "ffn_dim", "n_inner", "intermediate_size")
    # GPT-2 names no width where it is the usual one.
    usual = 4 * config.hidden_size if hasattr(config, "n_inner") else None
    return next((int(value) for name in names if (value := getattr(config, name, None)) is not None), usual)


def _first(config: Any, *names: str, default: int | None = None) -> int:
    """The first of these settings that a configuration has; model families name them differently."""
    values = [getattr(config, name, None) for name in names]
    return next(int(value) for value in [*values, default] if value is not None)
