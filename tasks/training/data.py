"""Tokenised examples and padded batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypedDict

import torch
from torch import Tensor

from tasks.errors import InputError
from tasks.models.prompting import SourceEncoder
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""Label of padding, which `transformers` leaves out of the loss."""


@dataclass(frozen=True)
class TopLogits:
    """The large model's most likely tokens at each target position of a batch; all other tokens share one bucket."""

    tokens: Tensor
    """int64 (examples, target positions, k)"""
    log_probabilities: Tensor
    """float32 of the same shape, in nats; 0 at padding."""

    def to(self, device: torch.device) -> TopLogits:
        return TopLogits(self.tokens.to(device), self.log_probabilities.to(device))


@dataclass(frozen=True)
class Batch:
    """Padded token ids, int64. Decoder-only models read source and target as one sequence, with labels of the same length."""

    source: Tensor
    """(examples, source positions)"""
    mask: Tensor
    """(examples, source positions): 1 at real positions."""
    labels: Tensor
    """(examples, target positions), `IGNORED` at padding and at the source part of a decoder-only sequence."""
    weights: Tensor | None = None
    """Weight of each position in the loss, float32, shaped like labels, 0 at padding; None: 1 everywhere."""
    top: TopLogits | None = None
    """The large model's predictions at each position; None if the calibration set stores none."""
    progress: float | None = None
    """Share of the training steps before this one, in 0…1, for losses that change over training; None outside of training."""

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        weights = None if self.weights is None else self.weights.to(device)
        top = None if self.top is None else self.top.to(device)
        return Batch(self.source.to(device), self.mask.to(device), self.labels.to(device), weights, top, self.progress)


class TopLogitsSource(Protocol):
    """The large model's stored predictions, by example."""

    def top_logits(self, example: int) -> tuple[Tensor, Tensor]:
        """Return tokens, int64, and their log-probabilities, float32: (target positions, k) both."""
        ...


class TokenDataset:
    """Sources and targets as token ids."""

    def __init__(
        self,
        sources: list[list[int]],
        targets: list[list[int]],
        pad: int,
        *,
        decoder_only: bool = False,
        weights: list[list[float]] | None = None,
        stored: TopLogitsSource | None = None,
    ) -> None:
        """Take one list of ids per example.

        Args:
            sources: Ids as `tasks.models.prompting` encodes sources.
            targets: Ids that end with the end token.
            pad: Id that pads sources.
            decoder_only: Whether source and target form one sequence.
            weights: Weight of each target position in the loss; None: 1 everywhere.
            stored: The large model's predictions at each target position.
        """
        self.sources, self.targets, self.pad, self.decoder_only = sources, targets, pad, decoder_only
        self.weights, self.stored = weights, stored
        self.batched_like: TokenDataset | None = None
        """Examples of the same inputs whose lengths order the batches, so that both see equal ones; None: their own lengths."""

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return these examples as a batch, padded to the longest of them."""
        sources, labels = [self.sources[index] for index in indices], [self.targets[index] for index in indices]
        lengths = [len(row) if self.decoder_only else 0 for row in sources]
        if self.decoder_only:
            sources = [source + target for source, target in zip(sources, labels, strict=True)]
            labels = [[IGNORED] * length + target for length, target in zip(lengths, labels, strict=True)]
        mask = pad_rows([[1] * len(row) for row in sources], 0)
        weights = None
        if self.weights is not None:
            rows = [[0.0] * length + self.weights[index] for length, index in zip(lengths, indices, strict=True)]
            weights = pad_rows(rows, 0.0, torch.float32)
        return Batch(pad_rows(sources, self.pad), mask, pad_rows(labels, IGNORED), weights, self._top(indices, lengths))

    def _top(self, indices: Sequence[int], lengths: list[int]) -> TopLogits | None:
        if self.stored is None:
            return None
        rows = [self.stored.top_logits(index) for index in indices]
        widest = max(length + len(tokens) for length, (tokens, _) in zip(lengths, rows, strict=True))
        shape = (len(rows), widest, rows[0][0].shape[-1])
        top = TopLogits(torch.zeros(shape, dtype=torch.long), torch.zeros(shape))
        for row, (length, (tokens, log_probabilities)) in enumerate(zip(lengths, rows, strict=True)):
            top.tokens[row, length : length + len(tokens)] = tokens
            top.log_probabilities[row, length : length + len(tokens)] = log_probabilities
        return top


class ExampleColumns(TypedDict):
    """The columns of a JSONL file of examples."""

    source: list[str]
    references: list[list[str]]


class JsonlDataset(TokenDataset):
    """Sources and first references of a JSONL file."""

    def __init__(
        self, path: Path, tokenizer: PreTrainedTokenizerBase, text: TextSettings, *, decoder_only: bool = False
    ) -> None:
        """Read and tokenise the file; `decoder_only` joins each source with its target.

        Raises:
            InputError: the file is missing or empty.
        """
        if not path.is_file() or not path.stat().st_size:
            raise InputError(f"{path} is missing or empty; run the stage that makes it (dvc repro)")
        import datasets

        datasets.disable_progress_bars()
        raw = datasets.Dataset.from_json(str(path), keep_in_memory=True, cache_dir=str(Path(".cache") / "datasets"))

        encode_sources = SourceEncoder(tokenizer, text)

        def tokenise(rows: ExampleColumns) -> dict[str, list[list[int]]]:
            return {
                "source_ids": encode_sources(rows["source"]),
                "target_ids": encode(tokenizer, [row[0] for row in rows["references"]], text.max_target_tokens),
            }

        ids = raw.map(tokenise, batched=True, remove_columns=raw.column_names, keep_in_memory=True)
        targets: list[list[int]] = ids["target_ids"][:]
        if decoder_only:
            # The start of a text is marked once, before its source.
            targets = [row[1:] if row[0] == tokenizer.bos_token_id else row for row in targets]
        super().__init__(ids["source_ids"][:], targets, tokenizer.pad_token_id, decoder_only=decoder_only)
        self.cut = encode_sources.cut
        """Sources whose end did not fit into a chat prompt."""


def pad_rows(rows: Sequence[Sequence[float]], filler: float, dtype: torch.dtype = torch.long) -> Tensor:
    """Return rows of numbers as one tensor (rows, longest), padded on the right."""
    widest = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (widest - len(row))] for row in rows], dtype=dtype)
