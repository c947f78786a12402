"""Batches of examples of similar length, reproducible from the seed at any step, so that training can resume anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tasks.training.data import TokenDataset
from tasks.training.settings import TrainingSettings

_WINDOW = 256
"""Batches per sorting window: wide enough to save padding, narrow enough to keep the order random."""
_TARGET = 2
"""Cost of a padded target position relative to a source position: targets attend to both and predict the whole vocabulary."""


class BucketBatchSampler:
    """Example indices of every step of a run, in buckets of similar length; epochs follow one another."""

    def __init__(self, examples: TokenDataset, settings: TrainingSettings) -> None:
        """Read the lengths of `examples`, or those that they are batched by, and seed and batch size from `settings`."""
        by = examples if examples.batched_like is None else examples.batched_like
        self._lengths = [(len(source), len(target)) for source, target in zip(by.sources, by.targets, strict=True)]
        self._size, self._budget, self._seed = settings.batch_size, settings.batch_tokens, settings.seed
        self._epoch, self._begins, self._batches = -1, 0, list[list[int]]()

    def batch_at(self, step: int) -> list[int]:
        """Return the example indices of a step, counted from 0, for all processes together."""
        if step < self._begins:
            self._epoch, self._begins, self._batches = -1, 0, []
        while step >= self._begins + len(self._batches):
            self._epoch, self._begins = self._epoch + 1, self._begins + len(self._batches)
            self._batches = self._shuffled(random.Random(f"{self._seed} {self._epoch}"))  # noqa: S311 (an order, not a secret)
        return self._batches[step - self._begins]

    def _shuffled(self, rng: random.Random) -> list[list[int]]:
        """Return every example once, in shuffled batches of similar length."""
        indices = list(range(len(self._lengths)))
        rng.shuffle(indices)
        window = _WINDOW * (self._size if not self._budget else max(1, self._budget // self._mean()))
        for begin in range(0, len(indices), window):
            indices[begin : begin + window] = self._alike(indices[begin : begin + window])
        batches = list(self._cut(indices))
        rng.shuffle(batches)
        return batches

    def _alike(self, indices: list[int]) -> list[int]:
        """Sort by target and then source length, or the reverse, whichever needs less padding."""
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
        """Fill each batch up to the token budget, padding included; an example over the budget forms a batch alone."""
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
    """Return a sort key: `first`, then `second` in alternating direction, so that neighbours are similar as `first` grows."""
    return first, second if first % 2 else -second


def partition(indices: Sequence[int], part: int, parts: int) -> Sequence[int]:
    """Return every `parts`-th element from `part` on, so that all shares have similar lengths."""
    return indices[part::parts]
