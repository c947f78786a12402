"""Runs of one compiled stack on its caches, and the encoder, which is such a stack."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tasks.decoding.decoder import EncoderOutput, Rows
from tasks.decoding.runtimes.layout import SingleRow, several_rows
from tasks.decoding.runtimes.native_cache import NativeKVCache, empty_floats
from tasks.decoding.runtimes.packed import PackedStack
from tasks.errors import InputError

if TYPE_CHECKING:
    from _ctypes import _CArgObject


class StackRunner:
    """Runs the kernel on new tokens of a stack."""

    def __init__(self, functions: ctypes.CDLL, stack: PackedStack, kv_cache: NativeKVCache) -> None:
        """Take the functions of `compiled.library`, the stack, and the caches that its runs read and extend."""
        self._functions = functions
        self._stack = stack
        self._kv_cache = kv_cache
        self._single = SingleRow()

    def run(self, tokens: Rows, cached: Sequence[int], slots: Sequence[int]) -> Tensor:
        """Return the last hidden states of all new tokens, row after row: float32 (new tokens, width)."""
        rows, _kept = self.rows(tokens, cached, slots)
        hidden = empty_floats(sum(map(len, tokens)), self._stack.blueprint.width)
        self._stack.native.threads = torch.get_num_threads()
        self._functions.draftline_run(self._stack.reference, self._kv_cache.reference, rows, hidden.data_ptr())
        return hidden

    def rows(self, tokens: Rows, cached: Sequence[int], slots: Sequence[int]) -> tuple[_CArgObject, object]:
        """Return a reference to a `RowBatch` of the kernel, and what must be kept while it is used."""
        if len(tokens) == 1 and self._single.write(tokens[0], cached[0], slots[0]):
            return self._single.reference, self._single
        return several_rows(tokens, cached, slots)


class NativeEncoder:
    """A compiled encoder with its working memory, which grows and is reused."""

    def __init__(self, functions: ctypes.CDLL, stack: PackedStack) -> None:
        """Take the functions of `compiled.library` and the encoder."""
        self._width = stack.blueprint.width
        self.held = stack.held
        """Bytes of its weights by their address."""
        self._memory = NativeKVCache(stack)
        self._runner = StackRunner(functions, stack, self._memory)

    def encode(self, sources: Rows, name: str) -> EncoderOutput:
        """Encode sources of known token ids.

        Raises:
            InputError: a source is empty; `name` is what the message calls the model.
        """
        lengths = [len(source) for source in sources]
        if not all(lengths):
            raise InputError(f"source {lengths.index(0) + 1} is empty; the {name} model needs at least one token to read")
        longest = max(lengths)
        self._memory.fit(len(sources), longest)
        self._memory.note_sources(lengths)
        flat = self._runner.run(sources, [0] * len(sources), range(len(sources)))
        mask = torch.ones(len(sources), longest, dtype=torch.long)
        if min(lengths) == longest:
            return EncoderOutput(flat.view(len(sources), longest, self._width), mask)
        for row, length in enumerate(lengths):
            mask[row, length:] = 0
        return EncoderOutput(pad_sequence(list(torch.split(flat, lengths)), batch_first=True), mask)
