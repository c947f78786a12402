"""The reference runtime: a `transformers` encoder-decoder, its own forward pass and cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tasks.decoding.decoder import Memory, Rows, Step, require_finite
from tasks.errors import InputError


class TransformersDecoder:
    """A `Decoder` over an `AutoModelForSeq2SeqLM` with relative positions.

    Cached rows end at the same column: rows of unequal length are padded on the left, where the mask hides them, so that
    the distance between any two tokens of a row, all that T5's position bias reads, is the same as without padding.
    """

    def __init__(self, model: Any, name: str) -> None:
        """Takes a model in evaluation mode, and what to call it.

        Raises:
            InputError: the model numbers positions from the row's start, which the padding on the left would shift.
        """
        if not hasattr(model.config, "relative_attention_num_buckets"):
            raise InputError(
                f"the {name} model is of type {model.config.model_type}, whose positions are absolute; "
                "name one with relative positions (T5, mT5, UMT5, LongT5)"
            )
        self.model = model
        self.name = name
        self.device: torch.device = next(model.parameters()).device
        self.end_token: int = model.config.eos_token_id
        self.pad_token: int = model.config.pad_token_id
        self.start_token: int = model.config.decoder_start_token_id
        self.lengths: list[int] = []
        self._steps = 0

    @torch.inference_mode()
    def encode(self, sources: Rows) -> Memory:
        widest = max(map(len, sources))
        ids = torch.tensor([source + [self.pad_token] * (widest - len(source)) for source in sources], device=self.device)
        mask = torch.tensor([[1] * len(source) + [0] * (widest - len(source)) for source in sources], device=self.device)
        return Memory(self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state, mask)

    def start(self, memory: Memory) -> Rows:
        from transformers import DynamicCache, EncoderDecoderCache

        self._memory = memory
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self._width = 0
        self._steps = 0
        self.lengths = [0] * memory.hidden.shape[0]
        return [[self.start_token] for _ in self.lengths]

    @torch.inference_mode()
    def forward(self, tokens: Rows) -> Step:
        counts = [len(row) for row in tokens]
        most = max(counts)
        ids = torch.tensor([row + [self.pad_token] * (most - len(row)) for row in tokens], device=self.device)
        logits = self.model(
            encoder_outputs=(self._memory.hidden,),
            attention_mask=self._memory.mask,
            decoder_input_ids=ids,
            decoder_attention_mask=self._mask(most),
            past_key_values=self._cache,
            use_cache=True,
        ).logits
        self._steps += 1
        require_finite(logits, self.name, self._steps)
        self._width += most
        ends = [self._width - most + count for count in counts]
        self._align(ends, [length + count for length, count in zip(self.lengths, counts, strict=True)])
        return Step(logits, counts)

    def rewind(self, lengths: Sequence[int]) -> None:
        ends = [self._width - cached + kept for cached, kept in zip(self.lengths, lengths, strict=True)]
        self._align(ends, list(lengths))

    def reorder(self, rows: Sequence[int]) -> None:
        if list(rows) == list(range(len(self.lengths))):
            return
        index = torch.tensor(list(rows), device=self.device)
        self._memory = Memory(self._memory.hidden[index], self._memory.mask[index])
        for cache in (self._cache.self_attention_cache, self._cache.cross_attention_cache):
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[index], layer.values[index]
        self.lengths = [self.lengths[row] for row in rows]
        self._trim()

    def _mask(self, new: int) -> Tensor | None:
        """Hides the padding left of each row; new tokens are padded on the right, where causality hides them."""
        if all(length == self._width for length in self.lengths):
            return None
        first = self._width - torch.tensor(self.lengths, device=self.device)
        return (torch.arange(self._width + new, device=self.device) >= first[:, None]).long()

    def _align(self, ends: list[int], lengths: list[int]) -> None:
        """Makes each row, which holds its `lengths[row]` tokens up to column `ends[row]`, end at the last column."""
        width = max(lengths)
        self.lengths = lengths
        if all(end == ends[0] for end in ends):
            self._slice(ends[0] - width, ends[0])
            return
        shift = torch.tensor([end - width for end in ends], device=self.device)
        columns = (torch.arange(width, device=self.device) + shift[:, None]).clamp_(min=0)
        for layer in self._cache.self_attention_cache.layers:
            index = columns[:, None, :, None].expand(-1, layer.keys.shape[1], -1, layer.keys.shape[3])
            layer.keys, layer.values = layer.keys.gather(2, index), layer.values.gather(2, index)
        self._width = width

    def _trim(self) -> None:
        """Drops the columns that no row uses any more."""
        self._slice(self._width - max(self.lengths), self._width)

    def _slice(self, begin: int, end: int) -> None:
        if (begin, end) != (0, self._width):
            for layer in self._cache.self_attention_cache.layers:
                layer.keys, layer.values = layer.keys[:, :, begin:end], layer.values[:, :, begin:end]
        self._width = end - begin
