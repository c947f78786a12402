"""The batches of each training step."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch

from tasks.training import distributed
from tasks.training.batching import BucketBatchSampler, partition
from tasks.training.data import IGNORED, Batch, TokenDataset
from tasks.training.settings import TrainingSettings


class BatchSource(Protocol):
    """Micro-batches by step. They depend only on the step and the weights before it, so that a resumed run gets the same."""

    def microbatches(self, step: int) -> list[Batch]:
        """Return this process's micro-batches of a step, counted from 0: equally many in each process, none of them empty."""
        ...


class DatasetSource:
    """A dataset in the order of its seed."""

    def __init__(self, examples: TokenDataset, settings: TrainingSettings) -> None:
        self._examples, self._accumulation = examples, settings.accumulation
        self._order = BucketBatchSampler(examples, settings)

    def microbatches(self, step: int) -> list[Batch]:
        return split_microbatches(self._examples, self._order.batch_at(step), self._accumulation)


def split_microbatches(examples: TokenDataset, indices: list[int], accumulation: int) -> list[Batch]:
    """Return this process's share of a batch as `accumulation` micro-batches.

    All processes must run the model equally often. Where a batch has fewer examples than micro-batches, the empty ones get an
    example without labels.
    """
    parts = distributed.world_size() * accumulation
    found = []
    for micro in range(accumulation):
        mine = partition(indices, micro * distributed.world_size() + distributed.rank(), parts)
        found.append(examples.batch(mine) if mine else _unlabelled(examples.batch(indices[:1])))
    return found


def _unlabelled(batch: Batch) -> Batch:
    weights = None if batch.weights is None else torch.zeros_like(batch.weights)
    return dataclasses.replace(batch, labels=torch.full_like(batch.labels, IGNORED), weights=weights)
