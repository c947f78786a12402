"""The batches of each training step: tokenised examples, their order, and a process's share of a step."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from tasks.corpora.example import read_jsonl
from tasks.errors import InputError
from tasks.models.prompting import SourceEncoder, encode
from tasks.models.settings import TextSettings
from tasks.training import distributed
from tasks.training.settings import TrainingSettings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IGNORED = -100
"""Label of padding, which `transformers` leaves out of the loss."""
_WINDOW = 256
"""Batches per sorting window: wide enough to save padding, narrow enough to keep the order random."""
_TARGET = 2
"""Cost of a padded target position relative to a source position: targets attend to both and predict the whole vocabulary."""


@dataclass(frozen=True)
class TopLogits:
    """The large model's most likely tokens at each target position of a batch; all other tokens share one bucket."""

    tokens: Tensor
    """int64 (examples, target positions, k)"""
    log_probabilities: Tensor
    """float32 of the same shape, in nats; 0 at padding."""

    def to(self, device: torch.device) -> TopLogits:
        return TopLogits(*(one.to(device, non_blocking=True) for one in (self.tokens, self.log_probabilities)))


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

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device; the host does not wait until a GPU has got it."""
        weights = None if self.weights is None else self.weights.to(device, non_blocking=True)
        top = None if self.top is None else self.top.to(device)
        source, mask, labels = (one.to(device, non_blocking=True) for one in (self.source, self.mask, self.labels))
        return Batch(source, mask, labels, weights, top)


class TopLogitsSource(Protocol):
    """The large model's stored predictions, by example."""

    def top_logits(self, example: int) -> tuple[Tensor, Tensor]:
        """Return tokens, int64, and their log-probabilities, float32: (target positions, k) both."""


class TokenDataset:
    """Sources and targets as token ids."""

    stored: TopLogitsSource | None = None
    """The large model's predictions at each target position."""
    batched_like: TokenDataset | None = None
    """Examples of the same inputs whose lengths order the batches, so that both see equal ones; None: their own lengths."""

    def __init__(self, sources: list[list[int]], targets: list[list[int]], pad: int, *, decoder_only: bool = False) -> None:
        """Take one list of ids per example.

        Args:
            sources: Ids as `tasks.models.prompting` encodes sources.
            targets: Ids that end with the end token.
            pad: Id that pads sources.
            decoder_only: Whether source and target form one sequence.
        """
        self.sources, self.targets, self.pad, self.decoder_only = sources, targets, pad, decoder_only

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, indices: Sequence[int]) -> Batch:
        """Return these examples as a batch, padded to the longest of them."""
        # Lists of ids, of unequal lengths until they are padded below.
        sources, labels = [self.sources[index] for index in indices], [self.targets[index] for index in indices]
        lengths = [len(row) if self.decoder_only else 0 for row in sources]
        if self.decoder_only:
            # The loss ignores the source part of the joined sequence.
            sources = [source + target for source, target in zip(sources, labels, strict=True)]
            labels = [[IGNORED] * length + target for length, target in zip(lengths, labels, strict=True)]
        # All (examples, longest row): ids are padded with `pad`, labels with what the loss leaves out.
        mask = pad_rows([[1] * len(row) for row in sources], 0)
        top = None if self.stored is None else _padded_top([self.stored.top_logits(index) for index in indices], lengths)
        return Batch(pad_rows(sources, self.pad), mask, pad_rows(labels, IGNORED), top=top)


def _padded_top(rows: list[tuple[Tensor, Tensor]], lengths: list[int]) -> TopLogits:
    """Return the stored predictions of some examples, each behind as many empty positions as its source takes up."""

    def padded(column: int) -> Tensor:
        behind = [functional.pad(row[column], (0, 0, length, 0)) for length, row in zip(lengths, rows, strict=True)]
        return pad_sequence(behind, batch_first=True)  # (examples, target positions, k)

    return TopLogits(padded(0), padded(1))


def pad_rows(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    """Return rows of numbers as one int64 tensor (rows, longest), padded on the right."""
    return pad_sequence([torch.tensor(row, dtype=torch.long) for row in rows], batch_first=True, padding_value=filler)


class JsonlDataset(TokenDataset):
    """Sources and first references of a JSONL file."""

    def __init__(self, path: Path, tokenizer: PreTrainedTokenizerBase, text: TextSettings, *, decoder_only: bool) -> None:
        """Read and tokenise the file; `decoder_only` joins each source with its target.

        Raises:
            InputError: the file is missing, empty or broken.
        """
        examples = read_jsonl(path) if path.is_file() else []
        if not examples:
            raise InputError(f"{path} is missing or empty; run the stage that makes it (dvc repro)")
        encode_sources = SourceEncoder(tokenizer, text)
        sources = encode_sources([example.source for example in examples])
        targets = encode_targets(tokenizer, [example.references[0] for example in examples], text, decoder_only=decoder_only)
        super().__init__(sources, targets, tokenizer.pad_token_id, decoder_only=decoder_only)
        self.cut = encode_sources.cut
        """Sources whose end did not fit into a chat prompt."""


def encode_targets(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], text: TextSettings, *, decoder_only: bool
) -> list[list[int]]:
    """Return the ids of target texts, each with its end token, as a drafter reads them."""
    rows = encode(tokenizer, texts, text.max_target_tokens)
    # A decoder-only sequence marks the start of a text once, before its source.
    return [row[1:] if row[0] == tokenizer.bos_token_id else row for row in rows] if decoder_only else rows


class BucketBatchSampler:
    """Example indices of every step of a run, in buckets of similar length; epochs follow one another.

    The order depends on seed and step alone, so that training can resume anywhere.
    """

    def __init__(self, examples: TokenDataset, settings: TrainingSettings, chosen: Sequence[int] | None = None) -> None:
        """Read the lengths of `examples`, or those that they are batched by, and seed and batch size from `settings`.

        Args:
            examples: What the indices belong to.
            settings: The training settings.
            chosen: Indices of the examples to train on; None: all.
        """
        self._chosen = range(len(examples)) if chosen is None else chosen
        by = examples if examples.batched_like is None else examples.batched_like
        self._lengths = [(len(source), len(target)) for source, target in zip(by.sources, by.targets, strict=True)]
        self._size, self._seed = settings.batch_size, settings.seed
        self._epoch, self._begins, self._batches = -1, 0, list[list[int]]()

    def batch_at(self, step: int) -> list[int]:
        """Return the example indices of a step, counted from 0, for all processes together."""
        # Epochs are made one after the other, from the first one again for a step before the current one.
        if step < self._begins:
            self._epoch, self._begins, self._batches = -1, 0, []
        while step >= self._begins + len(self._batches):
            self._epoch, self._begins = self._epoch + 1, self._begins + len(self._batches)
            self._batches = self._shuffled(random.Random(f"{self._seed} {self._epoch}"))  # noqa: S311 (an order, not a secret)
        return self._batches[step - self._begins]

    def _shuffled(self, rng: random.Random) -> list[list[int]]:
        """Return every example once, in shuffled batches of similar length."""
        # 1. Shuffle the examples.
        indices = list(self._chosen)
        rng.shuffle(indices)
        # 2. Sort them by length, but only within windows of many batches.
        window = _WINDOW * self._size
        for begin in range(0, len(indices), window):
            indices[begin : begin + window] = self._alike(indices[begin : begin + window])
        # 3. Cut the batches, and shuffle these.
        batches = self._cut(indices)
        rng.shuffle(batches)
        return batches

    def _alike(self, indices: list[int]) -> list[int]:
        """Sort by target and then source length, or the reverse, whichever needs less padding."""
        # (source, target)[::-1] sorts by target first.
        orders = [sorted(indices, key=lambda index: _winding(*self._lengths[index][::turn])) for turn in (-1, 1)]
        return min(orders, key=lambda order: sum(map(self._padded, self._cut(order))))

    def _padded(self, batch: list[int]) -> int:
        source, target = (max(self._lengths[index][side] for index in batch) for side in (0, 1))
        return len(batch) * (source + _TARGET * target)

    def _cut(self, indices: list[int]) -> list[list[int]]:
        return [indices[begin : begin + self._size] for begin in range(0, len(indices), self._size)]


def _winding(first: int, second: int) -> tuple[int, int]:
    """Return a sort key: `first`, then `second` in alternating direction, so that neighbours are similar as `first` grows."""
    return first, second if first % 2 else -second


class BatchSource(Protocol):
    """Micro-batches by step. They depend only on the step and the weights before it, so that a resumed run gets the same."""

    def microbatches(self, step: int) -> list[Batch]:
        """Return this process's micro-batches of a step, counted from 0: equally many in each process, none of them empty."""


class DatasetSource:
    """A dataset, or the examples that are chosen of it, in the order of its seed."""

    def __init__(self, examples: TokenDataset, settings: TrainingSettings, chosen: Sequence[int] | None = None) -> None:
        self._examples, self._accumulation = examples, settings.accumulation
        self._order = BucketBatchSampler(examples, settings, chosen)

    def microbatches(self, step: int) -> list[Batch]:
        return split_microbatches(self._examples, self._order.batch_at(step), self._accumulation)


def own_parts(indices: Sequence[int], accumulation: int) -> list[Sequence[int]]:
    """Return this process's share of the indices of a step, for each of its micro-batches; some may be empty.

    Neighbours are similar in length, so each part takes every n-th index.
    """
    world, rank = distributed.world_size(), distributed.rank()
    # Parts are numbered micro-batch by micro-batch, with one of each process in each.
    return [indices[micro * world + rank :: world * accumulation] for micro in range(accumulation)]


def split_microbatches(examples: TokenDataset, indices: list[int], accumulation: int) -> list[Batch]:
    """Return this process's share of a batch as `accumulation` micro-batches.

    All processes must run the model equally often. Where a batch has fewer examples than micro-batches, the empty ones get an
    example without labels.
    """

    def unlabelled() -> Batch:
        batch = examples.batch(indices[:1])
        return dataclasses.replace(batch, labels=torch.full_like(batch.labels, IGNORED))

    return [examples.batch(part) if part else unlabelled() for part in own_parts(indices, accumulation)]
