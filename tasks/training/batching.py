"""Which examples each step learns from: batches of like length, the same for a seed wherever training is resumed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tasks.training.data import TokenDataset
from tasks.training.settings import TrainingSettings

_WINDOW = 256
"""Batches among which examples are sorted by length: enough to save padding, few enough to stay random."""
_TARGET = 2
"""What padding a target costs beside a source: its layers attend to both, and a whole vocabulary is predicted there."""


class BucketBatchSampler:
    """Batches of examples, by number, for every step of a run; epochs follow one another."""

    def __init__(self, examples: TokenDataset, settings: TrainingSettings) -> None:
        """Takes the examples, and from the settings the seed and the size of a batch."""
        self._lengths = [(len(source), len(target)) for source, target in zip(examples.sources, examples.targets, strict=True)]
        self._size, self._budget, self._seed = settings.batch_size, settings.batch_tokens, settings.seed
        self._epoch, self._begins, self._batches = -1, 0, list[list[int]]()

    def batch_at(self, step: int) -> list[int]:
        """The examples of a step, counted from 0, over all processes."""
        if step < self._begins:
            self._epoch, self._begins, self._batches = -1, 0, []
        while step >= self._begins + len(self._batches):
            self._epoch, self._begins = self._epoch + 1, self._begins + len(self._batches)
            self._batches = self._shuffled(random.Random(f"{self._seed} {self._epoch}"))  # noqa: S311 (an order, not a secret)
        return self._batches[step - self._begins]

    def _shuffled(self, chance: random.Random) -> list[list[int]]:
        """Every example once, in shuffled batches of like length."""
        indices = list(range(len(self._lengths)))
        chance.shuffle(indices)
        window = _WINDOW * (self._size if not self._budget else max(1, self._budget // self._mean()))
        for begin in range(0, len(indices), window):
            indices[begin : begin + window] = self._alike(indices[begin : begin + window])
        batches = list(self._cut(indices))
        chance.shuffle(batches)
        return batches

    def _alike(self, indices: list[int]) -> list[int]:
        """Sorted by target and then source or the other way round, whichever pads less."""
        orders = [sorted(indices, key=lambda index: _winding(*self._lengths[index][::turn])) for turn in (-1, 1)]
        return min(orders, key=lambda order: sum(map(self._padded, self._cut(order))))

    def _padded(self, batch: list[int]) -> int:
        source, target = (max(self._lengths[index][side] for index in batch) for side in (0, 1))
        return len(batch) * (source + _TARGET * target)

    def _cut(self, indices: list[int]) -> Iterator[list[int]]:
        return self._filled(indices) if self._budget else self._counted(indices)

    def _mean(self) -> int:
        return max(1, sum(map(sum, self._lengths)) // len(self._lengths))

    def _counted(self, indices: list[int]) -> Iterator[list[int]]:
        for begin in range(0, len(indices), self._size):
            yield indices[begin : begin + self._size]

    def _filled(self, indices: list[int]) -> Iterator[list[int]]:
        """As many examples at a time as the budget holds once they are padded, and at least one."""
        batch: list[int] = []
        source = target = 0
        for index in indices:
            wider = max(source, self._lengths[index][0]), max(target, self._lengths[index][1])
            if batch and sum(wider) * (len(batch) + 1) > self._budget:
                yield batch
                batch, wider = [], self._lengths[index]
            batch.append(index)
            source, target = wider
        yield batch


def _winding(first: int, second: int) -> tuple[int, int]:
    """A key that sorts by `first`, then by `second`, up and down in turn: neighbours stay alike where `first` grows."""
    return first, second if first % 2 else -second


def partition(indices: Sequence[int], part: int, parts: int) -> Sequence[int]:
    """One of so many shares of a batch; of neighbours in length each share gets its part."""
    return indices[part::parts]
