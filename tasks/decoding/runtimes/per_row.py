"""Rows that a runtime cannot batch: each has its own cache, and they run one after the other."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tasks.decoding.decoder import Capabilities, EncoderOutput, Rows, Step
from tasks.decoding.runtimes.cached import CachedDecoder


class PerRowDecoder:
    """A `Decoder` of any model, above all of those that count positions from the first column: BART, FSMT, BLOOM.

    A single row has no padding, so its columns are its positions. At batch size 1, where latency is measured, nothing is lost.
    """

    def __init__(self, runtime: CachedDecoder) -> None:
        """Take a runtime that is correct for one row."""
        self._runtime = runtime
        self._rows: list[CachedDecoder] = []
        self.capabilities = Capabilities(transformers_model=runtime.model, tokens=runtime.capabilities.tokens)
        """Without single-row capabilities: they would act on the inner runtime, whose cache is not used."""
        self.name = runtime.name
        self.vocabulary = runtime.vocabulary
        self.specials = runtime.specials
        self.end_token = runtime.end_token
        self.end_tokens = runtime.end_tokens
        self.lengths: list[int] = []
        self.described = runtime.described

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
