"""The base of the runtimes over `transformers`: rows of unequal length in one key-value cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from tasks.decoding.decoder import EncoderOutput, Rows, Step, require_finite
from tasks.decoding.runtimes.loaded_model import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.cache_utils import Cache


class CacheLayer(Protocol):
    """The keys and values of one layer: (rows, heads, positions, head width)."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class ModelRun:
    """The result of one run of a model."""

    logits: Tensor
    """(rows, positions, vocabulary), for all new positions or the last of them."""
    layers: list[int] | None = None
    """Decoder layers run for each row, where a runtime leaves some out."""


class CachedDecoder(LoadedModel, ABC):
    """A `Decoder` over one model and one cache.

    Cached rows end at the same column: rows of unequal length are padded on the left, where the mask hides them. New tokens
    are padded on the right, which the causal mask hides. A rewind cuts columns off, or shifts the rows to a common end.
    """

    def __init__(self, model: PreTrainedModel, name: str, vocabulary: int | None = None) -> None:
        super().__init__(model, name, vocabulary)
        self._cache: Cache = None
        self._width = 0
        self._steps = 0

    @abstractmethod
    def encode(self, sources: Rows) -> EncoderOutput:
        """Run the encoder on sources, one list of ids for each row; without an encoder, keep them."""

    @abstractmethod
    def start(self, encoder_output: EncoderOutput) -> Rows:
        """Empty the cache for these sources and return each row's first tokens."""

    @abstractmethod
    def _run(self, ids: Tensor, counts: list[int]) -> ModelRun:
        """Run the model on new ids (rows, most new tokens), `counts[row]` of them real, and cache keys and values."""

    @abstractmethod
    def _growing_layers(self) -> list[CacheLayer]:
        """Return the layers of the cache that grow with each token."""

    @torch.inference_mode()
    def forward(self, tokens: Rows) -> Step:
        counts = [len(row) for row in tokens]
        most = max(counts)
        ids = torch.tensor([row + [self.pad_token] * (most - len(row)) for row in tokens], device=self.device)
        states: list[Tensor] = []
        watching = self._watch(states)
        try:
            run = self._run(ids, counts)
        finally:
            watching.remove()
        logits = run.logits[..., : self.vocabulary]
        self._steps += 1
        require_finite(logits, self.name, self._steps)
        self._width += most
        ends = [self._width - most + count for count in counts]
        self._align(ends, [length + count for length, count in zip(self.lengths, counts, strict=True)])
        unread = most - logits.shape[1]
        hidden = states[0][:, unread:] if states else None
        return Step(logits, [max(0, count - unread) for count in counts], hidden, run.layers)

    def rewind(self, lengths: Sequence[int]) -> None:
        ends = [self._width - cached + kept for cached, kept in zip(self.lengths, lengths, strict=True)]
        self._align(ends, list(lengths))

    def reorder(self, rows: Sequence[int]) -> None:
        if list(rows) == list(range(len(self.lengths))):
            return
        self._select(torch.tensor(list(rows), device=self.device))
        self.lengths = [self.lengths[row] for row in rows]
        self._slice(self._width - max(self.lengths), self._width)

    def _select(self, index: Tensor) -> None:
        """Keep these rows of everything that is stored by row."""
        select_rows(self._growing_layers(), index)

    def _watch(self, states: list[Tensor]) -> RemovableHandle:
        """Make the next run add its last hidden states to `states`; the handle ends it."""
        decoder = self.model.get_decoder()
        handle: RemovableHandle = decoder.register_forward_hook(lambda _module, _inputs, output: states.append(output[0]))
        return handle

    def _mask(self, new: int) -> Tensor | None:
        """Return (rows, cached and new columns), 0 in the padding left of each row; none where there is no such padding."""
        if all(length == self._width for length in self.lengths):
            return None
        first = self._width - torch.tensor(self.lengths, device=self.device)
        return (torch.arange(self._width + new, device=self.device) >= first[:, None]).long()

    def _align(self, ends: list[int], lengths: list[int]) -> None:
        """Move each row, whose `lengths[row]` tokens end at column `ends[row]`, so that it ends at the last column."""
        width = max(lengths)
        self.lengths = lengths
        if all(end == ends[0] for end in ends):
            self._slice(ends[0] - width, ends[0])
            return
        shift = torch.tensor([end - width for end in ends], device=self.device)
        columns = (torch.arange(width, device=self.device) + shift[:, None]).clamp_(min=0)
        for layer in self._growing_layers():
            index = columns[:, None, :, None].expand(-1, layer.keys.shape[1], -1, -1)
            layer.keys = layer.keys.gather(2, index.expand(-1, -1, -1, layer.keys.shape[3]))
            layer.values = layer.values.gather(2, index.expand(-1, -1, -1, layer.values.shape[3]))
        self._width = width

    def _slice(self, begin: int, end: int) -> None:
        if (begin, end) != (0, self._width):
            for layer in self._growing_layers():
                layer.keys, layer.values = layer.keys[:, :, begin:end], layer.values[:, :, begin:end]
        self._width = end - begin


def select_rows(layers: list[CacheLayer], index: Tensor) -> None:
    """Keep the rows `index` of each layer's keys and values."""
    for layer in layers:
        layer.keys, layer.values = layer.keys[index], layer.values[index]
