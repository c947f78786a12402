"""Tokenised examples and their order: batches of like length, the same for a seed wherever training is resumed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.errors import InputError
from tasks.models.settings import TextSettings
from tasks.models.tokenizers import encode

_WINDOW = 32
"""Batches among which examples are sorted by length: enough to save padding, few enough to stay random."""
IGNORED = -100
"""The label of padding, which `transformers` leaves out of the loss."""


@dataclass(frozen=True)
class Batch:
    """Padded token ids, int64; for a decoder-only model source and target stand in one row, and the labels beside them."""

    source: Tensor
    """(examples, source positions)"""
    mask: Tensor
    """(examples, source positions): 1 at real positions."""
    labels: Tensor
    """(examples, target positions), `IGNORED` at padding, and at a source that stands in the same row."""


class TokenisedSet:
    """Sources and first references of a JSONL file as token ids."""

    def __init__(self, path: Path, tokenizer: Any, text: TextSettings, *, one_row: bool = False) -> None:
        """Takes the file; `one_row` for a decoder-only model, which reads the source as the target's beginning.

        Raises:
            InputError: the file is missing or has no example.
        """
        if not path.is_file() or not path.stat().st_size:
            raise InputError(f"{path} is missing or empty; run the stage that makes it (dvc repro)")
        import datasets

        datasets.disable_progress_bars()
        raw = datasets.Dataset.from_json(str(path), keep_in_memory=True, cache_dir=str(Path(".cache") / "datasets"))

        def tokenise(rows: dict[str, list[Any]]) -> dict[str, list[list[int]]]:
            return {
                "source_ids": encode(tokenizer, rows["source"], text.max_source_tokens),
                "target_ids": encode(tokenizer, [row[0] for row in rows["references"]], text.max_target_tokens),
            }

        ids = raw.map(tokenise, batched=True, remove_columns=raw.column_names, keep_in_memory=True)
        self.sources: list[list[int]] = ids["source_ids"][:]
        self.targets: list[list[int]] = ids["target_ids"][:]
        self.pad: int = tokenizer.pad_token_id
        self.one_row = one_row
        if one_row:
            # A text's beginning is marked once, before its source.
            self.targets = [row[1:] if row[0] == tokenizer.bos_token_id else row for row in self.targets]

    def __len__(self) -> int:
        return len(self.sources)

    def batch(self, indices: list[int]) -> Batch:
        """These examples, padded to the longest among them."""
        sources, labels = [self.sources[index] for index in indices], [self.targets[index] for index in indices]
        if self.one_row:
            rows = list(zip(sources, labels, strict=True))
            sources = [source + target for source, target in rows]
            labels = [[IGNORED] * len(source) + target for source, target in rows]
        mask = _padded([[1] * len(row) for row in sources], 0)
        return Batch(_padded(sources, self.pad), mask, _padded(labels, IGNORED))


def _padded(rows: list[list[int]], filler: int) -> Tensor:
    widest = max(map(len, rows))
    return torch.tensor([row + [filler] * (widest - len(row)) for row in rows], dtype=torch.long)


def ordered_batches(examples: TokenisedSet, batch_size: int, seed: int, first_step: int, steps: int) -> Iterator[Batch]:
    """Batches `first_step` to `steps - 1` of the run that `seed` orders, epochs one after the other."""
    per_epoch = -(-len(examples) // batch_size)
    order: list[list[int]] = []
    for step in range(first_step, steps):
        epoch, place = divmod(step, per_epoch)
        if not order or place == 0:
            order = _epoch(examples, batch_size, f"{seed} {epoch}")
        yield examples.batch(order[place])


def _epoch(examples: TokenisedSet, batch_size: int, key: str) -> list[list[int]]:
    """Every example once, in shuffled batches of like length."""
    chance = random.Random(key)  # noqa: S311 (an order, not a secret)
    indices = list(range(len(examples)))
    chance.shuffle(indices)
    window = _WINDOW * batch_size
    for begin in range(0, len(indices), window):
        indices[begin : begin + window] = sorted(
            indices[begin : begin + window],
            key=lambda index: len(examples.targets[index]) + len(examples.sources[index]),
        )
    batches = [indices[begin : begin + batch_size] for begin in range(0, len(indices), batch_size)]
    chance.shuffle(batches)
    return batches
