"""The `transformers` baselines: `generate` with each of its caches, in batches, and assisted by a small model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tasks.decoding.decoder import Rows
from tasks.verify.transformers_engine import assisting_masks

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.inference_mode()
def generate(model: PreTrainedModel, sources: Rows, limit: int, *, static: bool = False, **options: object) -> Tensor:
    """`transformers.generate`, greedy, on the sources as one batch.

    Args:
        model: A model of `transformers`.
        sources: Token ids of each source.
        limit: Most new tokens.
        static: Preallocate the cache instead of growing it; on a GPU `generate` then compiles the model as well.
        options: Further arguments of `generate`.

    Returns:
        The output of `generate`, (rows, tokens), with start tokens and padding; `new_tokens` removes them.
    """
    encoded = model.config.is_encoder_decoder
    widest = max(map(len, sources))
    options.update(_static_cache(model, widest, limit) if static else {"past_key_values": _dynamic_cache(encoded)})
    pad = model.config.pad_token_id or 0

    def padded(rows: Rows, filler: int) -> Tensor:
        # Prompts are padded on the left, encoder sources on the right.
        gaps = [[filler] * (widest - len(row)) for row in rows]
        filled = [row + gap if encoded else gap + row for row, gap in zip(rows, gaps, strict=True)]
        return torch.tensor(filled, device=model.device)

    output: Tensor = model.generate(
        input_ids=padded(sources, pad),
        attention_mask=padded([[1] * len(source) for source in sources], 0),
        max_new_tokens=limit,
        do_sample=False,
        **options,
    )
    return output


def _dynamic_cache(encoded: bool) -> object:
    """A growing cache. The default cache of `generate` lacks layers for a decoder deeper than its encoder."""
    from transformers import DynamicCache, EncoderDecoderCache

    return EncoderDecoderCache(DynamicCache(), DynamicCache()) if encoded else DynamicCache()


def _static_cache(model: PreTrainedModel, source: int, limit: int) -> dict[str, object]:
    """Arguments that request a preallocated cache; built here where `generate` would create too few layers."""
    from transformers import EncoderDecoderCache, StaticCache

    config = model.config
    if not config.is_encoder_decoder or config.num_hidden_layers >= model.get_decoder().config.num_hidden_layers:
        return {"cache_implementation": "static"}
    inner = model.get_decoder().config
    own, cross = (StaticCache(config=inner, max_cache_len=length) for length in (limit + 1, source))
    return {"past_key_values": EncoderDecoderCache(own, cross)}


def assisted(
    model: PreTrainedModel, assistant: PreTrainedModel, source: list[int], limit: int, draft_length: int | None = None
) -> Tensor:
    """`generate` with a small model drafting `draft_length` tokens at a time; None keeps the drafting rules of `generate`."""
    settings = assistant.generation_config
    settings.num_assistant_tokens = 20 if draft_length is None else draft_length
    settings.assistant_confidence_threshold = 0.4 if draft_length is None else 0.0
    settings.num_assistant_tokens_schedule = "constant"
    options: dict[str, Any] = {"assistant_model": assistant, **assisting_masks(model)}
    return generate(model, [source], limit, **options)


def new_tokens(model: PreTrainedModel, output: Tensor, sources: Rows) -> Rows:
    """The new tokens of each row of the output of `generate`, up to and including the first end token."""
    skipped = 1 if model.config.is_encoder_decoder else max(map(len, sources))
    ends = model.generation_config.eos_token_id
    ends = {ends} if isinstance(ends, int) else set(ends or ())
    return [until_end(row[skipped:], ends) for row in output.tolist()]


def until_end(tokens: list[int], ends: set[int] | frozenset[int]) -> list[int]:
    """The tokens up to and including the first end token."""
    position = next((position for position, token in enumerate(tokens) if token in ends), len(tokens))
    return tokens[: position + 1]
