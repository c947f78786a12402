"""The compiled CPU runtime: one function call for each run, on caches that are never moved.

From top to bottom: the caches of a stack, a stack that runs on them, the encoder, and the decoder.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tasks.decoding.decoder import Capabilities, CheckedDraft, Continuation, EncoderOutput, GreedyAcceptance, Rows, Step
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.runtimes import compiled, layout
from tasks.decoding.runtimes.blueprint import Blueprint, Linear, Stack, Table, blueprint_of
from tasks.decoding.runtimes.layout import LoopModel, NativeLoopModel, SingleRow, integers, pack_acceptance, several_rows
from tasks.decoding.runtimes.loaded_model import SlotDecoder, encode_prompts, skipped_columns
from tasks.decoding.runtimes.packed import PackedStack, empty_floats, tied_head
from tasks.errors import InputError
from tasks.machine import require_memory
from tasks.models.pair import output_vocabulary
from tasks.models.pruned_head import spread

if TYPE_CHECKING:
    from _ctypes import _CArgObject

    from transformers import PreTrainedModel

_UNIT = 64
"""Positions are allocated by whole vectors of any processor, and not too few of them at first."""


class NativeKVCache:
    """The keys and values of texts and of their sources; the cache grows and is reused."""

    def __init__(self, stack: PackedStack) -> None:
        """Take the stack whose keys and values these are; an encoder's layers reuse one layer's memory."""
        self._shape = stack.blueprint
        self._layers = int(stack.native.layers) if stack.blueprint.causal else 1
        self._tables: list[Tensor] = []
        self._lengths: ctypes.Array[ctypes.c_int32] | None = None
        self._own = empty_floats(2, self._layers, 0, self._shape.key_value_heads, self._shape.head_width, 0)
        self._cross = empty_floats(2, self._layers, 0, self._shape.heads, self._shape.head_width, 0)
        self.native = layout.Cache()
        self.reference = ctypes.byref(self.native)

    @property
    def capacity(self) -> int:
        """Positions of each slot."""
        return self._own.shape[-1]

    def fit(self, slots: int, positions: int) -> None:
        """Grow to that many texts and positions, keeping the contents."""
        if slots > self._own.shape[2] or positions > self.capacity:
            self._grow(max(slots, self._own.shape[2]), positions)

    def _grow(self, slots: int, positions: int) -> None:
        # Twice as long at least, so that a growing text is copied a few times only.
        capacity = self.capacity if positions <= self.capacity else _whole(max(positions, 2 * self.capacity))
        needed = 8 * self._layers * slots * self._own.shape[3] * self._own.shape[4] * capacity
        require_memory(needed, f"the keys and values of a batch of {slots} texts", "decode fewer texts at once")
        # (keys and values, layers, slots, heads, head width, positions)
        grown = empty_floats(2, self._layers, slots, *self._own.shape[3:5], capacity)
        _, _, old, heads, width, before = self._own.shape
        grown[0, :, :old, :, :, :before] = self._own[0]
        # Values are stored as (position, width).
        values = grown[1].view(self._layers, slots, heads, capacity, width)
        values[:, :old, :, :before] = self._own[1].view(self._layers, old, heads, before, width)
        if capacity != before:
            self._make_tables(capacity)
        self._point(grown)

    def _point(self, own: Tensor) -> None:
        self._own = own
        cache = self.native
        cache.keys, cache.values = own[0].data_ptr(), own[1].data_ptr()
        cache.slots, cache.capacity = own.shape[2], own.shape[-1]
        # An encoder needs keys and values of one layer at a time: all its layers use the same place.
        cache.layer_stride = own[0, 0].numel() if self._shape.causal else 0

    def _make_tables(self, capacity: int) -> None:
        shape, cache = self._shape, self.native
        self._tables = []
        if shape.position_bias is not None:
            self._tables.append(shape.position_bias(capacity).float().contiguous())
            cache.bias = self._tables[-1].data_ptr()
        if shape.rotary is not None:
            cache.cosines, cache.sines = self._angles(shape.rotary, capacity)
        if shape.window_rotary is not None:
            cache.window_cosines, cache.window_sines = self._angles(shape.window_rotary, capacity)

    def _angles(self, rotary: Table, capacity: int) -> tuple[int, int]:
        """Make a table, and return the addresses of its cosines and of its sines."""
        angles = rotary(capacity).float()
        self._tables.append(angles)
        return angles[0].data_ptr(), angles[1].data_ptr()

    def fit_sources(self, lengths: Sequence[int]) -> None:
        """Grow to sources of these lengths, one a slot, dropping the contents."""
        slots, longest = self._own.shape[2], max(lengths)
        # Sources are read anew, so that nothing has to be copied.
        if self._cross.shape[2] != slots or self._cross.shape[-1] < longest:
            capacity = max(self._cross.shape[-1], _whole(longest))
            self._point_sources(empty_floats(2, self._layers, slots, *self._cross.shape[3:5], capacity))
        self.note_sources(lengths)

    def note_sources(self, lengths: Sequence[int]) -> None:
        """Set the length of each slot's source."""
        self._lengths = (ctypes.c_int32 * self._own.shape[2])(*lengths)
        self.native.source_lengths = ctypes.addressof(self._lengths)

    def _point_sources(self, cross: Tensor) -> None:
        self._cross = cross
        self.native.cross_keys, self.native.cross_values = cross[0].data_ptr(), cross[1].data_ptr()
        self.native.source_capacity = cross.shape[-1]

    def copy(self, slots: Sequence[int]) -> None:
        """Copy the texts of these slots, some perhaps twice, to the slots 0, 1, ..."""
        # (keys and values, layers, slots, ...): all layers are copied at once.
        index = torch.tensor(list(slots))
        self._point(self._own[:, :, index])
        if self._cross.shape[2] and self._lengths is not None:
            lengths = [self._lengths[slot] for slot in slots]
            self._point_sources(self._cross[:, :, index])
            self.note_sources(lengths)


class NativeStack:
    """A packed stack with its caches, on which the kernel runs."""

    def __init__(self, packed: PackedStack) -> None:
        self.packed = packed
        self.cache = NativeKVCache(packed)
        self.width = packed.blueprint.width
        self._single = SingleRow()

    def call(self, function: Callable[..., int], *arguments: object) -> int:
        """Call a function of the kernel on the stack and its caches, with as many threads as PyTorch has."""
        # Read at each call, since `torch.set_num_threads` may come between two.
        self.packed.native.threads = torch.get_num_threads()
        return function(self.packed.reference, self.cache.reference, *arguments)

    def run(self, tokens: Rows, cached: Sequence[int], slots: Sequence[int]) -> Tensor:
        """Return the last hidden states of all new tokens, row after row: float32 (new tokens, width)."""
        rows, _kept = self.rows(tokens, cached, slots)
        hidden = empty_floats(sum(map(len, tokens)), self.width)
        self.call(self.packed.functions.draftline_run, rows, hidden.data_ptr())
        return hidden

    def rows(self, tokens: Rows, cached: Sequence[int], slots: Sequence[int]) -> tuple[_CArgObject, object]:
        """Return a reference to a `RowBatch` of the kernel, and what must be kept while it is used."""
        # One row with few tokens, as at batch size 1: no array is made.
        if len(tokens) == 1 and self._single.write(tokens[0], cached[0], slots[0]):
            return self._single.reference, self._single
        return several_rows(tokens, cached, slots)


class NativeEncoder(NativeStack):
    """A compiled encoder with its working memory, which grows and is reused."""

    def encode(self, sources: Rows, name: str) -> EncoderOutput:
        """Encode sources of known token ids.

        Raises:
            InputError: a source is empty; `name` is what the message calls the model.
        """
        lengths = [len(source) for source in sources]
        if not all(lengths):
            raise InputError(f"source {lengths.index(0) + 1} is empty; the {name} model needs at least one token to read")
        count, longest = len(sources), max(lengths)
        self.cache.fit(count, longest)
        self.cache.note_sources(lengths)
        flat = self.run(sources, [0] * count, range(count))  # (tokens of all sources, width)
        mask = torch.ones(count, longest, dtype=torch.long)
        if min(lengths) < longest:
            mask = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
        return EncoderOutput(_by_row(flat, lengths), mask)


class NativeDecoder(SlotDecoder):
    """A `Decoder` in compiled code.

    The logits of a token are identical to the bit whether it is computed alone, in a draft or in a batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        blueprint: Blueprint,
        functions: ctypes.CDLL,
        name: str,
        vocabulary: int | None,
        number_format: str,
        large: NativeDecoder | None = None,
    ) -> None:
        """Take a model, its blueprint, the functions of `compiled.library`, and the number format of the matrices.

        `large` is a decoder whose encoder is this model's too. That encoder is kept once, as are, in the same number format, an
        embedding and a head that are the same tensors.

        Raises:
            ValueError: `vocabulary` is more than the model predicts over.
        """
        super().__init__(model, blueprint, name, vocabulary)
        if not 0 < self.vocabulary <= output_vocabulary(model):
            raise ValueError(f"the {name} model predicts over {output_vocabulary(model)} tokens, not {self.vocabulary}")
        self._format, self.described = number_format, f"native, {number_format}"
        self._dtype: torch.dtype = model.dtype
        self._draft_tokens = blueprint.decoder.head_tokens
        self._outputs = self.vocabulary if self._draft_tokens is None else len(self._draft_tokens)
        """Logits that a run computes for each position."""
        if self._draft_tokens is not None and int(self._draft_tokens[-1]) >= self.vocabulary:
            beyond = f"tokens beyond the {self.vocabulary} of its tokenizer"
            raise ValueError(f"the draft vocabulary of the {name} model has {beyond}")
        # What the large model holds already is not packed again, and has to outlive this one.
        self._large = large
        self._unpacked = {**vars(self)}
        """What is known before anything is packed."""
        self._pack(blueprint, functions)

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process opens the decoder by, without `transformers`: its weights in place of the model."""
        return {**self._unpacked, "model": None, "runtime": self.runtime, "weights": blueprint_of(self.model)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        weights, functions = state.pop("weights"), compiled.library()
        if functions is None:
            raise RuntimeError("there is no C++ compiler any more, which the native runtime needs")
        vars(self).update(state, _unpacked=state)
        self._pack(weights, functions)

    def __copy__(self) -> NativeDecoder:
        """Return a decoder on the same weights and caches."""
        other = NativeDecoder.__new__(NativeDecoder)
        vars(other).update(vars(self))
        return other

    def _pack(self, blueprint: Blueprint, functions: ctypes.CDLL) -> None:
        decoder, encoder, number_format, large = blueprint.decoder, blueprint.encoder, self._format, self._large
        # 1. The decoder.
        self._head = decoder.head if self._draft_tokens is None else None
        # A head that is the large model's embedding or head lies packed there already.
        alike = large is not None and large._format == number_format
        shared = large._packed_weights_of(decoder, number_format) if large is not None and alike else (None, None)
        self._stack = NativeStack(PackedStack(decoder, number_format, functions, *shared))
        self._packed, self._cache = self._stack.packed, self._stack.cache
        # 2. The encoder: the large model's, or one whose embedding may be the decoder's head.
        self._encoder: NativeEncoder | None = None if large is None else large._encoder
        if self._encoder is None and encoder is not None:
            head = self._packed.native.head if tied_head(encoder, decoder.head, number_format) else None
            self._encoder = NativeEncoder(PackedStack(encoder, number_format, functions, head))
        # 3. Buffers: the kernel writes whole panels of logits.
        self._functions = functions
        # Floats from the logits of one position to those of the next.
        self._stride = self._packed.padded(int(self._packed.native.head.outputs))
        self._slots: list[int] = []
        self._kept: _Kept | None = None
        self._ends = integers(sorted(self.end_tokens))

    def encode(self, sources: Rows) -> EncoderOutput:
        """Run the encoder; without one, keep the prompts.

        Raises:
            InputError: a source is empty.
        """
        if self._kept is not None and self._kept.encoded is not None and self._kept.sources == sources:
            return self._kept.encoded
        self.require_known(sources)
        if self._encoder is None:
            found = encode_prompts(sources, self.name, self.device)
        else:
            self.require_positions(max(map(len, sources)))
            found = self._encoder.encode(sources, self.name)
        if self._kept is not None:
            self._kept.sources, self._kept.encoded = [list(source) for source in sources], found
        return found

    def start(self, encoder_output: EncoderOutput) -> Rows:
        rows, longest, width = encoder_output.hidden.shape
        if self._encoder is not None and width != self._stack.width:
            raise ValueError(f"the {self.name} model reads sources of width {self._stack.width}, not {width}")
        if encoder_output.prompts is None and encoder_output.mask.shape != (rows, longest):
            raise ValueError(f"the mask of {rows} sources of {longest} tokens has the shape {tuple(encoder_output.mask.shape)}")
        # Runs from Python, which the kernel does not see, leave other tokens in the slots than it has noted.
        clean = not any(self.lengths)
        first = self.start_rows(encoder_output)
        self._slots = list(range(rows))
        self._fit(rows, 1)
        if self._kept is not None:
            if clean and encoder_output is self._kept.started:
                return first
            self._kept.begin(encoder_output)
        if encoder_output.prompts is None:
            hidden = encoder_output.hidden.float().contiguous()
            # Keys and values of the source in every layer, computed once a text.
            self._cache.fit_sources(encoder_output.mask.sum(1).tolist())
            self._stack.call(self._functions.draftline_read, hidden.data_ptr(), rows, longest)
        return first

    def forward(self, tokens: Rows) -> Step:
        self.require_rows(tokens)
        counts = [len(row) for row in tokens]
        self._fit(len(tokens), max(map(operator.add, self.lengths, counts)))
        hidden = self._stack.run(tokens, self.lengths, self._slots)  # (new tokens of all rows, width)
        # Predictions inside prompts are known: their logits, most of the work, are left out.
        unread = skipped_columns(self._prompts, self.lengths, counts)
        self.lengths = list(map(operator.add, self.lengths, counts))
        if unread:
            # The first columns of each row go; what is left is again row after row.
            hidden = torch.cat([part[unread:] for part in torch.split(hidden, counts)])
            counts = [max(0, count - unread) for count in counts]
        logits, best = self._predict(hidden)
        if self._dtype != torch.float32:
            hidden = hidden.to(self._dtype)
        if len(counts) == 1:
            # One row: its tokens are the whole of each tensor.
            return Step(logits[None], counts, hidden[None], argmax=[best])
        ends = list(accumulate(counts))
        return Step(
            _by_row(logits, counts),
            counts,
            _by_row(hidden, counts),
            argmax=[best[end - count : end] for end, count in zip(ends, counts, strict=True)],
        )

    def _continue(self, pending: list[int], budget: int, until: DraftRule, with_logits: bool) -> Continuation:
        rows, _kept = self._stack.rows([pending], self.lengths, self._slots)
        # One call of the kernel runs the model for each token, and stops where the draft rule does.
        hidden = empty_floats(len(pending), self._stack.width)
        logits = empty_floats(budget if with_logits else 1, self._stride)
        best, confidence, entropies = (ctypes.c_int32 * budget)(), (ctypes.c_double * budget)(), (ctypes.c_double * budget)()
        count = self._stack.call(
            *(self._functions.draftline_continue, rows, budget),
            *(until.fallback_threshold, until.stop_below, until.max_entropy, self._ends, len(self._ends)),
            *(hidden.data_ptr(), logits.data_ptr(), self._stride if with_logits else 0, self._outputs),
            *(best, confidence, entropies),
        )
        # Without logits, the buffer holds those of the last position.
        return Continuation(best[:count], confidence[:count], self._whole(logits[:count])[None], entropies[:count])

    def _check(self, pending: list[int], drafted: list[int], rule: GreedyAcceptance) -> CheckedDraft:
        count, positions = len(pending) + len(drafted), len(drafted) + 1
        rows, _kept = self._stack.rows([pending + drafted], self.lengths, self._slots)
        # One call runs the model over pending and drafted tokens, and applies the rule.
        hidden, logits = empty_floats(count, self._stack.width), empty_floats(positions, self._stride)
        best = (ctypes.c_int32 * positions)()
        accepted = self._stack.call(
            *(self._functions.draftline_check_draft, rows, len(drafted), pack_acceptance(rule)),
            *(hidden.data_ptr(), logits.data_ptr(), self._stride, self.vocabulary, best),
        )
        chosen = best[:]
        states = hidden[None, -positions:].to(self._dtype)
        step = Step(logits[None, :, : self.vocabulary], [positions], states, argmax=[chosen])
        return CheckedDraft(step, accepted, chosen[accepted])

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            continue_greedily=self.continue_greedily,
            check_draft=self.check_draft if self._draft_tokens is None else None,
            native_loop=NativeLoopModel(self._functions, self._known, self._draft_tokens is None, self._prepare, self._keep),
            transformers_model=self.model,
            runtime=self.runtime,
            step_bytes=self._packed.step_bytes,
        )

    def _prepare(self, rows: int, longest_run: int, predictions: int, length: int) -> tuple[LoopModel, object]:
        """Return `layout.NativeLoopModel.prepare`; raises `ValueError` where the model has fewer learned positions."""
        self._fit(rows, length)
        stack, cache = self._packed.native, self._cache.native
        stack.threads = torch.get_num_threads()
        if self._kept is not None:  # a run may catch up on whole texts, whose predictions were known so far
            longest_run = rows * length
        hidden, logits = empty_floats(longest_run, self._stack.width), empty_floats(predictions, self._stride)
        # The kernel's loop calls the model itself: it gets weights, cache and buffers, and no Python.
        addresses = (ctypes.addressof(stack), ctypes.addressof(cache), hidden.data_ptr(), logits.data_ptr())
        kept = None if self._kept is None else self._kept.address
        return LoopModel(*addresses, None, self._stride, self._outputs, kept=kept), (hidden, logits)

    @contextlib.contextmanager
    def _keep(self) -> Iterator[None]:
        """Do what `layout.NativeLoopModel.keep` says."""
        with contextlib.closing(_Kept(self._functions)) as self._kept:
            try:
                yield
            finally:
                self._kept = None

    def _packed_weights_of(self, stack: Stack, number_format: str) -> tuple[layout.Linear | None, layout.Linear | None]:
        """Return this model's packed head where it is the embedding of another model's stack, and where it is its head."""
        head, packed = self._head, self._packed.native.head
        same = head is not None and stack.head_tokens is None and _same_matrix(head, stack.head)
        return packed if tied_head(stack, head, number_format) else None, packed if same else None

    def _fit(self, rows: int, positions: int) -> None:
        self.require_positions(positions)
        self._cache.fit(rows, positions)

    def reorder(self, rows: Sequence[int]) -> None:
        self.lengths = [self.lengths[row] for row in rows]
        self._prompts = [self._prompts[row] for row in rows]
        slots = [self._slots[row] for row in rows]
        # A row that is kept twice needs a slot of its own.
        if len(set(slots)) < len(slots):
            self._cache.copy(slots)
            slots = list(range(len(slots)))
            if self._kept is not None:
                self._kept.started = None
        self._slots = slots

    def _predict(self, hidden: Tensor) -> tuple[Tensor, list[int]]:
        """Return the logits (tokens, vocabulary), and the argmax at each position."""
        tokens = hidden.shape[0]
        logits = empty_floats(tokens, self._stride)
        best = (ctypes.c_int32 * tokens)()
        self._functions.draftline_predict(
            self._packed.reference, hidden.data_ptr(), tokens, logits.data_ptr(), self._stride, self._outputs, best
        )
        self._steps += 1
        chosen = best[:]
        self.require_sound([chosen])
        return self._whole(logits), chosen

    def _whole(self, logits: Tensor) -> Tensor:
        """Return what the kernel wrote (positions, stride) as logits of all tokens, (positions, vocabulary)."""
        if self._draft_tokens is None:
            return logits[:, : self.vocabulary]
        return spread(logits[:, : self._outputs], self._draft_tokens, self.vocabulary)


class _Kept:
    """`kernel/kept.h`: Kept, of the sources that were started last."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        self._functions = functions
        self.address: int = functions.draftline_keep()
        self.sources: Rows = []
        self.encoded: EncoderOutput | None = None
        self.started: EncoderOutput | None = None

    def begin(self, encoder_output: EncoderOutput) -> None:
        """Forget all predictions: the next ones are of other sources."""
        self.close()
        self.address, self.started = self._functions.draftline_keep(), encoder_output

    def close(self) -> None:
        """Free the memory."""
        self._functions.draftline_drop(self.address)


def _same_matrix(one: Linear, other: Linear | None) -> bool:
    """Return whether two heads without biases are one tensor."""
    if other is None or one.bias is not None or other.bias is not None or one.shape != other.shape:
        return False
    return one.weight.data_ptr() == other.weight.data_ptr()


def _by_row(flat: Tensor, counts: list[int]) -> Tensor:
    """Turn (tokens, size) into (rows, most tokens of a row, size), padded on the right."""
    most = max(counts)
    if min(counts) == most:
        return flat.reshape(len(counts), most, -1)
    return pad_sequence(list(torch.split(flat, counts)), batch_first=True)


def _whole(positions: int) -> int:
    return -(-positions // _UNIT) * _UNIT
