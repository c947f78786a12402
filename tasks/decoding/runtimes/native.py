"""The compiled CPU runtime of T5, Llama and GPT-2: one function call for each run, on caches that are never moved."""

from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tasks.decoding.decoder import (
    BrokenLogitsError,
    Capabilities,
    CheckedDraft,
    Continuation,
    EncoderOutput,
    GreedyAcceptance,
    Rows,
    Step,
    StopRule,
)
from tasks.decoding.runtimes import layout
from tasks.decoding.runtimes.blueprint import Blueprint, Linear, Stack
from tasks.decoding.runtimes.layout import LoopModel, NativeLoopModel, integers
from tasks.decoding.runtimes.loaded_model import LoadedModel
from tasks.decoding.runtimes.native_acceptance import pack_acceptance
from tasks.decoding.runtimes.native_cache import NativeKVCache, empty_floats
from tasks.decoding.runtimes.native_stack import NativeEncoder, StackRunner
from tasks.decoding.runtimes.packed import PackedStack, tied_head
from tasks.decoding.runtimes.prompts import encode_prompts, skipped_columns
from tasks.models.pair import output_vocabulary
from tasks.models.pruned_head import spread

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class NativeDecoder(LoadedModel):
    """A `Decoder` whose rows are slots of preallocated caches: a rewind sets a length, and dropping a row shortens a list.

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

        `large` is a decoder in the same format whose encoder is this model's too. That encoder is kept once, as are an
        embedding and a head that are the same tensors.

        Raises:
            ValueError: `vocabulary` is more than the model predicts over.
        """
        super().__init__(model, name, vocabulary)
        if not 0 < self.vocabulary <= output_vocabulary(model):
            raise ValueError(f"the {name} model predicts over {output_vocabulary(model)} tokens, not {self.vocabulary}")
        self.described = f"native, {number_format}"
        self._functions = functions
        panel = functions.draftline_panel()
        self._large = large
        self._head = blueprint.decoder.head if blueprint.decoder.head_tokens is None else None
        shared = (None, None) if large is None else large._packed_weights_of(blueprint.decoder, number_format)
        self._decoder = PackedStack(blueprint.decoder, number_format, functions, *shared)
        self._encoder: NativeEncoder | None = None if large is None else large._encoder
        if self._encoder is None and blueprint.encoder is not None:
            tied = tied_head(blueprint.encoder, blueprint.decoder.head, number_format)
            head = self._decoder.native.head if tied else None
            self._encoder = NativeEncoder(functions, PackedStack(blueprint.encoder, number_format, functions, head))
        self._width = blueprint.decoder.width
        self._dtype: torch.dtype = model.dtype
        self._stride = -(-int(self._decoder.native.head.outputs) // panel) * panel
        self._known = int(blueprint.decoder.embedding.shape[0])
        self._draft_tokens = blueprint.decoder.head_tokens
        self._outputs = self.vocabulary if self._draft_tokens is None else len(self._draft_tokens)
        """Logits that a run computes for each position."""
        if self._draft_tokens is not None and int(self._draft_tokens[-1]) >= self.vocabulary:
            raise ValueError(
                f"the draft vocabulary of the {name} model has tokens beyond the {self.vocabulary} of its tokenizer"
            )
        self._texts = NativeKVCache(self._decoder)
        self._slots: list[int] = []
        self._runner = StackRunner(functions, self._decoder, self._texts)
        self._prompts: list[int] = []
        self._steps = 0
        self._ends = integers(sorted(self.end_tokens))

    def encode(self, sources: Rows) -> EncoderOutput:
        """Run the encoder; without one, keep the prompts.

        Raises:
            InputError: a source is empty.
        """
        self._require_known(sources)
        if self._encoder is None:
            return encode_prompts(sources, self.name, self.device)
        return self._encoder.encode(sources, self.name)

    def start(self, encoder_output: EncoderOutput) -> Rows:
        rows, longest, width = encoder_output.hidden.shape
        if self._encoder is None and encoder_output.prompts is None:
            raise ValueError(f"the {self.name} model is decoder-only; it cannot start from the output of an encoder")
        if self._encoder is not None and width != self._width:
            raise ValueError(f"the {self.name} model reads sources of width {self._width}, not {width}")
        self.lengths = [0] * rows
        self._slots = list(range(rows))
        self._steps = 0
        self._texts.fit(rows, 1)
        if encoder_output.prompts is not None:
            self._prompts = [len(prompt) for prompt in encoder_output.prompts]
            return [list(prompt) for prompt in encoder_output.prompts]
        self._prompts = [1] * rows
        hidden = encoder_output.hidden.float().contiguous()
        self._texts.fit_sources(encoder_output.mask.sum(1).tolist())
        self._decoder.native.threads = torch.get_num_threads()
        self._functions.draftline_read(self._decoder.reference, self._texts.reference, hidden.data_ptr(), rows, longest)
        return [list(self.start_tokens) for _ in range(rows)]

    def forward(self, tokens: Rows) -> Step:
        self._require_known(tokens)
        counts = [len(row) for row in tokens]
        self._texts.fit(len(tokens), max(map(operator.add, self.lengths, counts)))
        hidden = self._runner.run(tokens, self.lengths, self._slots)
        unread = skipped_columns(self._prompts, self.lengths, counts)
        self.lengths = list(map(operator.add, self.lengths, counts))
        if unread:
            hidden = torch.cat([part[unread:] for part in torch.split(hidden, counts)])
            counts = [max(0, count - unread) for count in counts]
        logits, best = self._predict(hidden)
        if self._dtype != torch.float32:
            hidden = hidden.to(self._dtype)
        if len(counts) == 1:
            return Step(logits[None], counts, hidden[None], best=[best])
        ends = list(accumulate(counts))
        return Step(
            _by_row(logits, counts),
            counts,
            _by_row(hidden, counts),
            best=[best[end - count : end] for end, count in zip(ends, counts, strict=True)],
        )

    def continue_greedily(self, pending: list[int], budget: int, until: StopRule, *, with_logits: bool = True) -> Continuation:
        self._require_known([pending])
        [cached] = self.lengths
        if not pending or budget < 1:
            raise ValueError("a continuation needs at least one pending token and a budget of at least one")
        self._texts.fit(1, cached + len(pending) + budget - 1)
        rows, _kept = self._runner.rows([pending], self.lengths, self._slots)
        hidden = empty_floats(len(pending), self._width)
        logits = empty_floats(budget if with_logits else 1, self._stride)
        best, confidence, entropies = (ctypes.c_int32 * budget)(), (ctypes.c_double * budget)(), (ctypes.c_double * budget)()
        self._decoder.native.threads = torch.get_num_threads()
        count = self._functions.draftline_continue(
            *(self._decoder.reference, self._texts.reference, rows, budget),
            *(until.confidence, until.cumulative_confidence, until.max_entropy, self._ends, len(self._ends)),
            *(hidden.data_ptr(), logits.data_ptr(), self._stride if with_logits else 0, self._outputs),
            *(best, confidence, entropies),
        )
        self.lengths = [cached + len(pending) + count - 1]
        self._steps += count
        chosen = best[:count]
        self._require_sound(chosen)
        # Without logits, the buffer holds those of the last position.
        return Continuation(chosen, confidence[:count], self._whole(logits[:count])[None], entropies[:count])

    def check_draft(self, pending: list[int], drafted: list[int], rule: GreedyAcceptance) -> CheckedDraft:
        tokens = pending + drafted
        self._require_known([tokens])
        [cached] = self.lengths
        if not pending or max(drafted, default=0) >= self.vocabulary:
            raise ValueError("a draft needs at least one pending token, and drafted tokens within the vocabulary")
        count, positions = len(tokens), len(drafted) + 1
        self._texts.fit(1, cached + count)
        rows, _kept = self._runner.rows([tokens], self.lengths, self._slots)
        hidden, logits = empty_floats(count, self._width), empty_floats(positions, self._stride)
        best = (ctypes.c_int32 * positions)()
        self._decoder.native.threads = torch.get_num_threads()
        accepted = self._functions.draftline_check_draft(
            *(self._decoder.reference, self._texts.reference, rows, len(drafted), pack_acceptance(rule)),
            *(hidden.data_ptr(), logits.data_ptr(), self._stride, self.vocabulary, best),
        )
        self.lengths = [cached + count]
        self._steps += 1
        chosen = best[:]
        self._require_sound(chosen)
        states = hidden[None, -positions:].to(self._dtype)
        step = Step(logits[None, :, : self.vocabulary], [positions], states, best=[chosen])
        return CheckedDraft(step, accepted, chosen[accepted])

    @functools.cached_property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            continue_greedily=self.continue_greedily,
            check_draft=self.check_draft if self._draft_tokens is None else None,
            native_loop=NativeLoopModel(self._functions, self._known, self._draft_tokens is None, self._prepare),
            transformers_model=self.model,
            runtime=self.runtime,
            step_bytes=self._decoder.step_bytes,
            weight_bytes=sum(self._own_weights().values()),
            cache_bytes=self._cache_bytes,
        )

    def _prepare(self, rows: int, longest_run: int, predictions: int, length: int) -> tuple[LoopModel, object]:
        """Return `layout.NativeLoopModel.prepare`; raises `ValueError` where the model has fewer learned positions."""
        self._texts.fit(rows, length)
        stack, cache = self._decoder.native, self._texts.cache
        stack.threads = torch.get_num_threads()
        hidden, logits = empty_floats(longest_run, self._width), empty_floats(predictions, self._stride)
        addresses = (ctypes.addressof(stack), ctypes.addressof(cache), hidden.data_ptr(), logits.data_ptr())
        return LoopModel(*addresses, None, self._stride, self._outputs), (hidden, logits)

    def _weights(self) -> dict[int, int]:
        """Bytes of the packed weights by their address: both stacks may hold one embedding."""
        return self._decoder.held | ({} if self._encoder is None else self._encoder.held)

    def _own_weights(self) -> dict[int, int]:
        """The same without those of the decoder that shares its encoder."""
        others = {} if self._large is None else self._large._weights()
        return {address: size for address, size in self._weights().items() if address not in others}

    def _packed_weights_of(self, stack: Stack, number_format: str) -> tuple[layout.Linear | None, layout.Linear | None]:
        """Return this model's packed head where it is the embedding of another model's stack, and where it is its head."""
        head, packed = self._head, self._decoder.native.head
        same = head is not None and stack.head_tokens is None and _same_matrix(head, stack.head)
        return packed if tied_head(stack, head, number_format) else None, packed if same else None

    def _cache_bytes(self, source_tokens: int, target_tokens: int) -> int:
        if self._encoder is None:
            return self._texts.bytes_of(source_tokens + target_tokens, 0)
        return self._texts.bytes_of(target_tokens, source_tokens)

    def rewind(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def reorder(self, rows: Sequence[int]) -> None:
        self.lengths = [self.lengths[row] for row in rows]
        self._prompts = [self._prompts[row] for row in rows]
        slots = [self._slots[row] for row in rows]
        if len(set(slots)) < len(slots):
            self._texts.copy(slots)
            slots = list(range(len(slots)))
        self._slots = slots

    def _predict(self, hidden: Tensor) -> tuple[Tensor, list[int]]:
        """Return the logits (tokens, vocabulary), and the likeliest token at each position."""
        tokens = hidden.shape[0]
        logits = empty_floats(tokens, self._stride)
        best = (ctypes.c_int32 * tokens)()
        self._functions.draftline_predict(
            self._decoder.reference, hidden.data_ptr(), tokens, logits.data_ptr(), self._stride, self._outputs, best
        )
        self._steps += 1
        chosen = best[:]
        self._require_sound(chosen)
        return self._whole(logits), chosen

    def _whole(self, logits: Tensor) -> Tensor:
        """Return what the kernel wrote (positions, stride) as logits of all tokens, (positions, vocabulary)."""
        if self._draft_tokens is None:
            return logits[:, : self.vocabulary]
        return spread(logits[:, : self._outputs], self._draft_tokens, self.vocabulary)

    def _require_sound(self, best: list[int]) -> None:
        if -1 in best:
            raise BrokenLogitsError.at(self.name, self._steps)

    def _require_known(self, tokens: Rows) -> None:
        """Refuse an id that the model has no embedding for: compiled code would read beyond the matrix."""
        for row in tokens:
            if row and not 0 <= min(row) <= max(row) < self._known:
                raise IndexError(f"the {self.name} model has {self._known} tokens, and was given {min(row)} to {max(row)}")


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
