"""Which share of the machine each contender of a case uses: bytes or multiplications over time, beside the machine's limit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.bench.contenders import threads_of
from tasks.decoding.runtimes import compiled

if TYPE_CHECKING:
    from transformers import PreTrainedModel

READING = ("vanilla", "generate", "ctranslate2")
"""Contenders that run the large model on one token at a time, and so read all of its weights for each."""
MULTIPLYING = ("batched", "batched by generate", "batched by ctranslate2")
"""Contenders that run it on many tokens at a time, for which multiplying is the bound."""


@dataclass(frozen=True)
class MatrixSizes:
    """Numbers in a model's matrices, by how often they are multiplied."""

    per_source_token: int
    """Of an encoder, and of the projections to the keys and values that a decoder reads sources by."""
    per_token: int
    """Of all others, with the head."""


def matrix_sizes(model: PreTrainedModel) -> MatrixSizes:
    """Count the numbers of all linear layers; embeddings are looked up and not multiplied."""
    import torch
    from transformers.pytorch_utils import Conv1D

    source = other = 0
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear | Conv1D):
            of_source = name.startswith("encoder.") or name.endswith(("EncDecAttention.k", "EncDecAttention.v"))
            source, other = source + module.weight.numel() * of_source, other + module.weight.numel() * (not of_source)
    # A model without an encoder reads its source as it reads everything else.
    return MatrixSizes(source if model.config.is_encoder_decoder else other, other)


def shares(
    settings: Mapping[str, str], ms_per_token: Mapping[str, float], sizes: MatrixSizes, source_tokens: float
) -> dict[str, float]:
    """Return the share of the limit at each contender's own number of threads, in float32; attention is left out.

    Args:
        settings: Labels of `contenders.label` by contender; others than `READING` and `MULTIPLYING` are passed over.
        ms_per_token: Milliseconds for each new token, the encoding of the source included.
        sizes: Of the large model.
        source_tokens: Source tokens for each new token, over the whole batch.

    Returns:
        Shares by contender; empty where no compiler makes the kernel that measures the limits.
    """
    rates = compiled.multiply_rates()
    if rates is None:
        return {}
    step_bytes = 4 * sizes.per_token
    found = {}
    for name, setting in settings.items():
        threads, tokens_per_second = threads_of(setting), 1000 / ms_per_token[name]
        if name in READING:
            found[name] = step_bytes * tokens_per_second / (compiled.read_bandwidth(step_bytes, threads) or 1.0)
        elif name in MULTIPLYING:
            multiplications = sizes.per_token + sizes.per_source_token * source_tokens
            found[name] = multiplications * tokens_per_second / (rates["float32"] * threads)
    return {name: round(share, 3) for name, share in found.items()}
