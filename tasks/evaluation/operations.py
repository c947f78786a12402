"""Theory of the cost of decoding: operations and memory traffic, from two models' sizes and a method's counts.

Nothing here is measured. Sources: BiLD, appendix 7.5.1 and Figure 8 (FLOPs, MOPs, arithmetic intensity, each relative to
vanilla); SD, Theorem 3.11 (operations) and the remark below it (memory accesses). A run over several positions reads the
weights once, so verification adds operations and saves traffic.

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
from dataclasses import dataclass

from tasks.evaluation.results.pair import ModelSizes
from tasks.evaluation.results.rows import DecodingCounts, OperationsRatio


@dataclass(frozen=True)
class Operations:
    """Work of one generated token."""

    flops: float
    """Arithmetic operations; a multiplication and an addition count as two."""
    bytes: float
    """Memory traffic: weights, keys and values read."""
    intensity: float
    """Operations per byte."""


def operations_of(
    counts: DecodingCounts,
    examples: int,
    source_tokens: float,
    small: ModelSizes | None,
    large: ModelSizes,
    *,
    shares_encoder: bool = False,
) -> Operations | None:
    """Operations and bytes of one generated token.

    Args:
        counts: Summed over the examples.
        examples: Number of texts that the counts are of.
        source_tokens: Mean length of a source.
        small: The drafting model; None where the drafter is not a model of its own.
        large: The verifying model.
        shares_encoder: Whether the small model decodes from the large model's encoder output.

    Returns:
        None where counts and sizes are not enough: runs of a drafter of unknown size, or of a model that leaves layers out.
    """
    runs = counts.verified
    if counts.layers != 0 or runs is None or (counts.small_steps and small is None):
        return None
    text_tokens = counts.tokens / examples
    parts = [_work(large, runs, examples, source_tokens, text_tokens, encodes=True)]
    if small is not None:
        # A shared encoder is counted with the large model, unless that model never runs.
        steps, encodes = {1: counts.small_steps}, not (shares_encoder and any(runs.values()))
        parts.append(_work(small, steps, examples, source_tokens, text_tokens, encodes=encodes))
    flops, moved = (sum(column) / counts.tokens for column in zip(*parts, strict=True))
    return Operations(flops, moved, flops / moved)


def relative_operations(
    counts: DecodingCounts,
    examples: int,
    source_tokens: float,
    small: ModelSizes | None,
    large: ModelSizes,
    *,
    shares_encoder: bool = False,
) -> OperationsRatio | None:
    """The same relative to the large model alone on texts of this length: 1 is vanilla (BiLD, Figure 8)."""
    found = operations_of(counts, examples, source_tokens, small, large, shares_encoder=shares_encoder)
    alone = DecodingCounts(tokens=counts.tokens, verified={1: counts.tokens}, layers=0)
    vanilla = operations_of(alone, examples, source_tokens, None, large)
    if found is None or vanilla is None:
        return None
    return OperationsRatio(
        flops=found.flops / vanilla.flops, bytes=found.bytes / vanilla.bytes, intensity=found.intensity / vanilla.intensity
    )


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
