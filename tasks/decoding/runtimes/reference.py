"""The reference runtime: `transformers` models of any architecture, with their own forward pass and cache.

From top to bottom: the cache that all share, encoder-decoders, FSMT, decoder-only models, and rows that cannot be batched.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.hooks import RemovableHandle

from tasks.decoding.decoder import EncoderOutput, Rows, Step, require_finite
from tasks.decoding.runtimes.loaded_model import LoadedModel, encode_prompts, skipped_columns

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
        # 1. Pad new tokens on the right: (rows, most new tokens).
        ids = torch.tensor([row + [self.pad_token] * (most - len(row)) for row in tokens], device=self.device)
        states: list[Tensor] = []
        # The hidden states come by a hook: the model's own output would hold those of every layer.
        watching = self._watch(states)
        try:
            run = self._run(ids, counts)
        finally:
            watching.remove()
        # 2. Cut the padding of the vocabulary off: (rows, positions, vocabulary).
        logits = run.logits[..., : self.vocabulary]
        self._steps += 1
        require_finite(logits, self.name, self._steps)
        # 3. Move rows with fewer new tokens to the right, so that all end in one column again.
        self._width += most
        ends = [self._width - most + count for count in counts]
        self._align(ends, [length + count for length, count in zip(self.lengths, counts, strict=True)])
        # Columns inside prompts, whose logits the model left out.
        unread = most - logits.shape[1]
        hidden = states[0][:, unread:] if states else None
        return Step(logits, [max(0, count - unread) for count in counts], hidden, run.layers)

    def rewind(self, lengths: Sequence[int]) -> None:
        # Rows end at one column; each now ends as many columns before it as it loses.
        ends = [self._width - cached + kept for cached, kept in zip(self.lengths, lengths, strict=True)]
        self._align(ends, list(lengths))

    def reorder(self, rows: Sequence[int]) -> None:
        if list(rows) == list(range(len(self.lengths))):
            return
        self._select(torch.tensor(list(rows), device=self.device))
        self.lengths = [self.lengths[row] for row in rows]
        # Without the longest row, columns that are padding for all others go.
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
        # All rows end together still, as at batch size 1: cutting columns is enough.
        if all(end == ends[0] for end in ends):
            self._slice(ends[0] - width, ends[0])
            return
        # Column by which each row moves; what comes from before the first column is masked.
        shift = torch.tensor([end - width for end in ends], device=self.device)
        columns = (torch.arange(width, device=self.device) + shift[:, None]).clamp_(min=0)
        for layer in self._growing_layers():
            # (rows, heads, columns, head width), as keys and values lie; the layers of a spread model are on several cards.
            index = columns.to(layer.keys.device)[:, None, :, None].expand(-1, layer.keys.shape[1], -1, -1)
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
        own = index.to(layer.keys.device)
        layer.keys, layer.values = layer.keys[own], layer.values[own]


class TransformersDecoder(CachedDecoder):
    """A `Decoder` over an `AutoModelForSeq2SeqLM`.

    T5's relative position bias depends only on the distance between two tokens of a row, which padding on the left does not
    change. A model with absolute positions runs one row at a time (`choose.open_decoder` wraps it in `PerRowDecoder`).
    """

    @torch.inference_mode()
    def encode(self, sources: Rows) -> EncoderOutput:
        widest = max(map(len, sources))
        ids = torch.tensor([source + [self.pad_token] * (widest - len(source)) for source in sources], device=self.device)
        mask = torch.tensor([[1] * len(source) + [0] * (widest - len(source)) for source in sources], device=self.device)
        # (rows, source positions, width); attention never reads what the mask hides.
        return EncoderOutput(self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state, mask)

    def start(self, encoder_output: EncoderOutput) -> Rows:
        from transformers import DynamicCache, EncoderDecoderCache

        self._encoder_output = encoder_output
        self._cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self._width = 0
        self._steps = 0
        self.lengths = [0] * encoder_output.hidden.shape[0]
        return [list(self.start_tokens) for _ in self.lengths]

    def _run(self, ids: Tensor, counts: list[int]) -> ModelRun:
        output = self.model(
            encoder_outputs=(self._encoder_output.hidden,),
            attention_mask=self._encoder_output.mask,
            decoder_input_ids=ids,
            decoder_attention_mask=self._mask(ids.shape[1]),
            past_key_values=self._cache,
            use_cache=True,
        )
        return ModelRun(output.logits)

    def _growing_layers(self) -> list[CacheLayer]:
        layers: list[CacheLayer] = self._cache.self_attention_cache.layers
        return layers

    def _select(self, index: Tensor) -> None:
        super()._select(index)
        select_rows(self._cache.cross_attention_cache.layers, index)
        hidden, mask = self._encoder_output.hidden, self._encoder_output.mask
        self._encoder_output = EncoderOutput(hidden[index.to(hidden.device)], mask[index.to(mask.device)])


class FsmtDecoder(TransformersDecoder):
    """A `Decoder` over an `FSMTForConditionalGeneration`, one row at a time.

    With a cache, transformers runs FSMT one token at a time without the causal mask; a run over a draft needs the mask.
    """

    def _run(self, ids: Tensor, counts: list[int]) -> ModelRun:
        new = ids.shape[1]
        # -infinity above the diagonal that begins behind the cached columns: (new, cached + new).
        later = torch.full((new, self._width + new), -torch.inf, device=self.device, dtype=self.model.dtype)
        output = self.model.model.decoder(
            ids,
            self._encoder_output.hidden,
            self._encoder_output.mask,
            decoder_padding_mask=None,
            decoder_causal_mask=later.triu(self._width + 1),
            past_key_values=self._cache,
            use_cache=True,
        )
        # FSMT's decoder has the head inside.
        return ModelRun(output.last_hidden_state)

    def _watch(self, states: list[Tensor]) -> RemovableHandle:
        head = self.model.model.decoder.output_projection
        handle: RemovableHandle = head.register_forward_pre_hook(lambda _module, inputs: states.append(inputs[0]))
        return handle


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
            # The head is most of the work on a prompt, and only its last position is read.
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


class PerRowDecoder(LoadedModel):
    """A `Decoder` of any model, above all of those that count positions from the first column: BART, FSMT, BLOOM.

    A single row has no padding, so its columns are its positions. At batch size 1, where latency is measured, nothing is lost.
    It has no capabilities of a single row: they would act on the inner runtime, whose cache is not used.
    """

    def __init__(self, runtime: CachedDecoder) -> None:
        """Take a runtime that is correct for one row."""
        super().__init__(runtime.model, runtime.name, runtime.vocabulary)
        self._runtime = runtime
        self._rows: list[CachedDecoder] = []

    def encode(self, sources: Rows) -> EncoderOutput:
        return self._runtime.encode(sources)

    def start(self, encoder_output: EncoderOutput) -> Rows:
        rows = encoder_output.hidden.shape[0]
        self._rows = [copy.copy(self._runtime) for _ in range(rows)]
        self.lengths = [0] * rows
        return [row.start(_row_of(encoder_output, index))[0] for index, row in enumerate(self._rows)]

    def forward(self, tokens: Rows) -> Step:
        steps = [row.forward([new]) if new else None for row, new in zip(self._rows, tokens, strict=True)]
        self._count()
        return Step(
            _padded([None if step is None else step.logits for step in steps]),
            [0 if step is None else step.lengths[0] for step in steps],
            _padded([None if step is None else step.hidden for step in steps]),
        )

    def rewind(self, lengths: Sequence[int]) -> None:
        for row, length in zip(self._rows, lengths, strict=True):
            row.rewind([length])
        self._count()

    def reorder(self, rows: Sequence[int]) -> None:
        kept: set[int] = set()
        chosen = []
        for row in rows:
            # A row that is kept twice needs a cache of its own.
            chosen.append(_twin(self._rows[row]) if row in kept else self._rows[row])
            kept.add(row)
        self._rows = chosen
        self._count()

    def _count(self) -> None:
        self.lengths = [row.lengths[0] for row in self._rows]


def _row_of(encoder_output: EncoderOutput, row: int) -> EncoderOutput:
    """Return one source without its padding."""
    here, length = slice(row, row + 1), int(encoder_output.mask[row].sum())
    prompts = None if encoder_output.prompts is None else encoder_output.prompts[here]
    return EncoderOutput(encoder_output.hidden[here, :length], encoder_output.mask[here, :length], prompts)


@torch.inference_mode()
def _twin(row: CachedDecoder) -> CachedDecoder:
    """Return a copy of the row with its own cache."""
    twin = copy.copy(row)
    twin._cache = copy.deepcopy(row._cache)
    return twin


def _padded(parts: list[Tensor | None]) -> Tensor:
    """Stack each row's predictions (1, positions, size), none for a row without new tokens: (rows, most positions, size)."""
    some = next(part for part in parts if part is not None)
    return pad_sequence([some[0, :0] if part is None else part[0] for part in parts], batch_first=True)
