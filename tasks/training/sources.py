"""Where the text of each step comes from."""

from __future__ import annotations

import dataclasses
from typing import Protocol

import torch

from tasks.training import ranks
from tasks.training.data import IGNORED, Batch, TextSet
from tasks.training.order import Order, share
from tasks.training.settings import TrainingSettings


class TextSource(Protocol):
    """Gives each step's text; for a step and the weights before it always the same, so that a resumed run reads it again."""

    def parts(self, step: int) -> list[Batch]:
        """This process's micro-batches of a step, counted from 0: as many in each process, and each with an example."""
        ...


class FixedText:
    """A text set, in the order of its seed."""

    def __init__(self, examples: TextSet, settings: TrainingSettings) -> None:
        self._examples, self._accumulation = examples, settings.accumulation
        self._order = Order(examples, settings)

    def parts(self, step: int) -> list[Batch]:
        return cut(self._examples, self._order.at(step), self._accumulation)


def cut(examples: TextSet, indices: list[int], accumulation: int) -> list[Batch]:
    """This process's share of a batch as so many micro-batches.

    Where a batch has fewer examples than there are shares, those without one get an example without labels: all processes
    must run the model as often.
    """
    parts = ranks.world() * accumulation
    found = []
    for micro in range(accumulation):
        mine = share(indices, micro * ranks.world() + ranks.rank(), parts)
        found.append(examples.batch(mine) if mine else _unlabelled(examples.batch(indices[:1])))
    return found


def _unlabelled(batch: Batch) -> Batch:
    weights = None if batch.weights is None else torch.zeros_like(batch.weights)
    return dataclasses.replace(batch, labels=torch.full_like(batch.labels, IGNORED), weights=weights)
