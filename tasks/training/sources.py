"""Where the text of each step comes from."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch

from tasks.training import distributed
from tasks.training.batching import BucketBatchSampler, partition
from tasks.training.data import IGNORED, Batch, TokenDataset
from tasks.training.settings import TrainingSettings


class BatchSource(Protocol):
    """Gives each step's text; for a step and the weights before it always the same, so that a resumed run reads it again."""

    def microbatches(self, step: int) -> list[Batch]:
        """This process's micro-batches of a step, counted from 0: as many in each process, and each with an example."""
        ...


class DatasetSource:
    """A text set, in the order of its seed."""

    def __init__(self, examples: TokenDataset, settings: TrainingSettings) -> None:
        self._examples, self._accumulation = examples, settings.accumulation
        self._order = BucketBatchSampler(examples, settings)

    def microbatches(self, step: int) -> list[Batch]:
        return split_microbatches(self._examples, self._order.batch_at(step), self._accumulation)


def split_microbatches(examples: TokenDataset, indices: list[int], accumulation: int) -> list[Batch]:
    """This process's share of a batch as so many micro-batches.

    Where a batch has fewer examples than there are shares, those without one get an example without labels: all processes
    must run the model as often.
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
