"""The runtime of decoder-only models: the source is a prompt, and the output continues it in the same row."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.runtimes.cached import CachedDecoder, CacheLayer, ModelRun
from tasks.decoding.runtimes.prompts import encode_prompts, skipped_columns

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CausalDecoder(CachedDecoder):
    """A `Decoder` over an `AutoModelForCausalLM`: GPT-2, Llama, Gemma and their like.

    Padding on the left shifts columns but not positions, which each run passes explicitly, counted from the row's first token.
    """

    def __init__(self, model: PreTrainedModel, name: str, vocabulary: int | None = None) -> None:
        super().__init__(model, name, vocabulary)
        takes = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in takes
        self._takes_kept = "logits_to_keep" in takes
        self._prompts: list[int] = []

    def encode(self, sources: Rows) -> EncoderOutput:
        """Keep the prompts."""
        return encode_prompts(sources, self.name, self.device)

    def start(self, encoder_output: EncoderOutput) -> Rows:
        from transformers import DynamicCache

        if encoder_output.prompts is None:
            raise ValueError(f"the {self.name} model is decoder-only; it cannot start from the output of an encoder")
        self._cache = DynamicCache()
        self._width = 0
        self._steps = 0
        self._prompts = [len(prompt) for prompt in encoder_output.prompts]
        self.lengths = [0] * len(self._prompts)
        return [list(prompt) for prompt in encoder_output.prompts]

    def _run(self, ids: Tensor, counts: list[int]) -> ModelRun:
        new = ids.shape[1]
        options: dict[str, Tensor | int] = {}
        if self._takes_positions:
            options["position_ids"] = self._positions(counts, new)
        if self._takes_kept:
            options["logits_to_keep"] = new - skipped_columns(self._prompts, self.lengths, counts)
        inputs = {"input_ids": ids, "attention_mask": self._mask(new)}
        return ModelRun(self.model(**inputs, past_key_values=self._cache, use_cache=True, **options).logits)

    def _positions(self, counts: list[int], new: int) -> Tensor:
        """Return the position of each new token in its row (rows, new); in the padding, that of the last token."""
        before = torch.tensor(self.lengths, device=self.device)[:, None]
        last = before + torch.tensor(counts, device=self.device)[:, None] - 1
        return torch.minimum(before + torch.arange(new, device=self.device), last.clamp_(min=0))

    def _growing_layers(self) -> list[CacheLayer]:
        layers: list[CacheLayer] = self._cache.layers
        return layers

    def _select(self, index: Tensor) -> None:
        super()._select(index)
        self._prompts = [self._prompts[row] for row in index.tolist()]
