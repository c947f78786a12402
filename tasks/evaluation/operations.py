"""What decoding costs by the sizes of two models: their weights, the memory they take, and operations from a method's counts.

Operations and traffic are theory; nothing of them is measured. Sources: BiLD, appendix 7.5.1 and Figure 8 (FLOPs, MOPs,
arithmetic intensity, each relative to vanilla); SD, Theorem 3.11 (operations) and the remark below it (memory accesses). A run
over several positions reads the weights once, so verification adds operations and saves traffic.

Counted for a run over k positions, each with a mean of `context` cached positions before it (the source's included):

- operations: 2 for each weight that a position is multiplied with, and 4 · layers · heads · head width · context for the
  products of its query with the keys and of their softmax with the values;
- bytes: those weights once, and the keys and values of `context` positions once;
- for each source, once: 2 operations for each source token and weight of the encoder and of the decoder's keys and values of
  cross-attention, and their attention.

Not counted: norms, biases, softmax, sampling, activations, and embeddings, which are looked up. Approximations: every run sees
half of a text of mean length; all sources have mean length; a small step has one position (after a fully accepted draft it has
two); a model that runs at all reads every source (in a sequence cascade the large model reads only some).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tasks.evaluation.results.pair import ModelSizes, PairSizes
from tasks.evaluation.results.rows import DecodingCounts, Operations

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def operations_of(counts: DecodingCounts, examples: int, sizes: PairSizes) -> Operations | None:
    """Operations and bytes of one generated token.

    Args:
        counts: Summed over the examples.
        examples: Number of texts that the counts are of.
        sizes: Of the models; `small` is None where the drafter is not a model of its own.

    Returns:
        None where counts and sizes are not enough: runs of a drafter of unknown size, or of a model that leaves layers out.
    """
    small, large, source_tokens, runs = sizes.small, sizes.large, sizes.source_tokens, counts.verified
    if large is None or source_tokens is None or runs is None or counts.layers != 0 or (counts.small_steps and small is None):
        return None
    text_tokens = counts.tokens / examples
    parts = [_work(large, runs, examples, source_tokens, text_tokens, encodes=True)]
    if small is not None:
        # A shared encoder is counted with the large model, unless that model never runs.
        steps, encodes = {1: counts.small_steps}, not (sizes.shares_encoder and any(runs.values()))
        parts.append(_work(small, steps, examples, source_tokens, text_tokens, encodes=encodes))
    flops, moved = (sum(column) / counts.tokens for column in zip(*parts, strict=True))
    return Operations(flops=flops, bytes=moved, intensity=flops / moved)


def relative_operations(counts: DecodingCounts, examples: int, sizes: PairSizes) -> Operations | None:
    """The same relative to the large model alone on texts of this length: 1 is vanilla (BiLD, Figure 8)."""
    found = operations_of(counts, examples, sizes)
    alone = DecodingCounts(tokens=counts.tokens, verified={1: counts.tokens}, layers=0)
    vanilla = operations_of(alone, examples, replace(sizes, small=None))
    if found is None or vanilla is None:
        return None
    return Operations(**{name: value / getattr(vanilla, name) for name, value in vars(found).items()})


def _work(
    sizes: ModelSizes, runs: Mapping[int, int], examples: int, source_tokens: float, text_tokens: float, *, encodes: bool
) -> tuple[float, float]:
    """Operations and bytes of all runs of one model, given as calls by positions, and of the sources before them."""
    calls = sum(runs.values())
    if not calls:
        return 0.0, 0.0
    positions = sum(length * number for length, number in runs.items())
    # In a decoder-only model the prompt's last token takes the place of an encoder-decoder's start token.
    context = source_tokens + (text_tokens + 1) / 2 - (sizes.encoder_layers == 0)
    attention = 4 * sizes.layers * sizes.attention_width * context
    flops = positions * (2 * sizes.decoder_parameters + attention)
    cached = sizes.cache_bytes * sizes.layers * sizes.cache_width * context
    moved = calls * (sizes.weight_bytes * sizes.decoder_parameters + cached)
    source_flops, source_bytes = _source_work(sizes, source_tokens, encodes=encodes)
    return flops + examples * source_flops, moved + examples * source_bytes


def _source_work(sizes: ModelSizes, source_tokens: float, *, encodes: bool) -> tuple[float, float]:
    """Operations and bytes of reading one source."""
    if sizes.encoder_layers == 0:
        # The prompt without its last token, in one run with that token: the weights are not read again.
        prompt = max(source_tokens - 1, 0.0)
        attention = 4 * sizes.layers * sizes.attention_width * prompt * (prompt + 1) / 2
        return 2 * (sizes.decoder_parameters - sizes.head_parameters) * prompt + attention, 0.0
    weights = sizes.memory_parameters + encodes * sizes.encoder_parameters
    attention = encodes * 4 * sizes.encoder_layers * sizes.attention_width * source_tokens**2
    return 2 * weights * source_tokens + attention, float(sizes.weight_bytes * weights)


_SOURCE, _TARGET = 3, 2
"""Tokens of the probe: two different numbers, so that a source can be distinguished from a target."""


def sizes_of(model: PreTrainedModel, *, int8: bool = False) -> ModelSizes:
    """Counts the weights of a `transformers` model that a probe of a few tokens runs through.

    Args:
        model: An encoder-decoder or decoder-only model with its head.
        int8: Whether its matrices run in 8 bits; keys and values are float32 then.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    config, decoder_only = model.config, not model.config.is_encoder_decoder
    encoder = set() if decoder_only else set(model.get_encoder().modules())
    weights = {"encoder": 0, "memory": 0, "decoder": 0}

    def count(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        """Count a matrix that runs, by the number of positions that it runs over."""
        positions = inputs[0].numel() // inputs[0].shape[-1]
        part = "encoder" if module in encoder else "memory" if positions == _SOURCE else "decoder"
        weights[part] += _numbers(module)

    matrices = [module for module in model.modules() if isinstance(module, torch.nn.Linear | Conv1D)]
    hooks = [module.register_forward_pre_hook(count) for module in matrices]
    target, source = (torch.zeros(1, length, dtype=torch.long, device=model.device) for length in (_TARGET, _SOURCE))
    ids = {"input_ids": target} if decoder_only else {"input_ids": source, "decoder_input_ids": target}
    try:
        with torch.inference_mode():
            model(**ids, attention_mask=torch.ones_like(ids["input_ids"]), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    heads = _first(config, "decoder_attention_heads", "num_attention_heads")
    head_width = _first(config, "head_dim", default=config.hidden_size // heads)
    # GPT-2 names no width of its inner layers where it is the usual one.
    usual_width = 4 * config.hidden_size if hasattr(config, "n_inner") else None
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
        feed_forward_width=_first(
            config, "d_ff", "decoder_ffn_dim", "ffn_dim", "n_inner", "intermediate_size", default=usual_width
        ),
    )


def _numbers(matrix: Any) -> int:
    """Return the weights that a run multiplies: of a head over a draft vocabulary, the rows of that."""
    from tasks.models.pruned_head import PrunedHead

    return matrix.rows * matrix.in_features if isinstance(matrix, PrunedHead) else int(matrix.weight.numel())


def _first(config: Any, *names: str, default: int | None = None) -> Any:
    """The first of these settings that a configuration has; model families name them differently."""
    return next((int(value) for name in names if (value := getattr(config, name, None)) is not None), default)
