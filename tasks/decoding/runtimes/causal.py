"""The runtime of decoder-only models: the source is a prompt, and the output goes on from it in the same row."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.runtimes.cached import CachedDecoder
from tasks.decoding.runtimes.prompts import encode_prompts, skipped_columns

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CausalDecoder(CachedDecoder):
    """A `Decoder` over an `AutoModelForCausalLM`: GPT-2, Llama, Gemma and their like.

    Padding on the left shifts columns, not positions: those are given with each run, counted from each row's first token.
    """

    def __init__(self, model: PreTrainedModel, name: str, vocabulary: int | None = None) -> None:
        super().__init__(model, name, vocabulary)
        takes = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in takes
        self._takes_kept = "logits_to_keep" in takes
        self._prompts: list[int] = []

    def encode(self, sources: Rows) -> EncoderOutput:
        """Keeps the prompts."""
        return encode_prompts(sources, self.name, self.device)

    def start(self, encoder_output: EncoderOutput) -> Rows:
        from transformers import DynamicCache

        if encoder_output.prompts is None:
            raise ValueError(f"the {self.name} model is decoder-only; it cannot start from what an encoder gave")
        self._cache = DynamicCache()
        self._width = 0
        self._steps = 0
        self._prompts = [len(prompt) for prompt in encoder_output.prompts]
        self.lengths = [0] * len(self._prompts)
        return [list(prompt) for prompt in encoder_output.prompts]

    def _run(self, ids: Tensor, counts: list[int]) -> Any:
        new = ids.shape[1]
        options: dict[str, Any] = {}
        if self._takes_positions:
            options["position_ids"] = self._positions(counts, new)
        if self._takes_kept:
            options["logits_to_keep"] = new - skipped_columns(self._prompts, self.lengths, counts)
        return self.model(input_ids=ids, attention_mask=self._mask(new), past_key_values=self._cache, use_cache=True, **options)

    def _positions(self, counts: list[int], new: int) -> Tensor:
        """(rows, new): how many tokens of its row stand before each; in the padding, those before the last one."""
        before = torch.tensor(self.lengths, device=self.device)[:, None]
        last = before + torch.tensor(counts, device=self.device)[:, None] - 1
        return torch.minimum(before + torch.arange(new, device=self.device), last.clamp_(min=0))

    def _growing_layers(self) -> list[Any]:
        layers: list[Any] = self._cache.layers
        return layers

    def _select(self, index: Tensor) -> None:
        super()._select(index)
        self._prompts = [self._prompts[row] for row in index.tolist()]
