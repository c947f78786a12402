"""Reads the inputs to label, in shards."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.corpora.example import Example, stream_jsonl
from tasks.errors import InputError


@dataclass(frozen=True)
class Shard:
    """Inputs that are labelled and saved together."""

    name: str
    first: int
    """Index of its first input, over all sets."""
    examples: list[Example]
    """The inputs with the corpus' references; unlabelled ones have none."""


@dataclass(frozen=True)
class InputSet:
    """The inputs of one set. Their texts are read when needed."""

    name: str
    """Name of the resulting set, calibration or validation."""
    indices: dict[Path, list[int]]
    """JSONL files, and the indices of the examples taken from each, ascending."""
    samples: int
    """Outputs per input."""
    first: int = 0
    """Index of the first input, over all sets."""

    def __len__(self) -> int:
        return sum(map(len, self.indices.values()))

    def sizes(self, size: int) -> dict[str, int]:
        """Return the names of the shards of `size` inputs, with the number of inputs in each; the last one may be smaller."""
        return {f"{self.name}-{begin // size:05d}": min(size, len(self) - begin) for begin in range(0, len(self), size)}

    def shards(self, size: int) -> Iterator[Shard]:
        """Yield the shards with their texts."""
        examples, first = self._examples(), self.first
        for name, count in self.sizes(size).items():
            yield Shard(name, first, list(itertools.islice(examples, count)))
            first += count

    def _examples(self) -> Iterator[Example]:
        for file, indices in self.indices.items():
            wanted = iter(indices)
            following = next(wanted, None)
            for index, example in enumerate(stream_jsonl(file)):
                if index == following:
                    yield example
                    following = next(wanted, None)


def input_set(
    name: str, whole: list[Path], part: tuple[Path, float, int] | None = None, *, samples: int = 1, first: int = 0
) -> InputSet:
    """Collect the inputs of a set.

    Args:
        name: Name of the set.
        whole: Files that are taken as a whole.
        part: A file of which a fraction is taken, before the others: file, fraction, and seed of the draw.
        samples: Outputs per input.
        first: Index of the first input, over all sets.

    Raises:
        InputError: a file is missing or broken, or there are no inputs.
    """
    indices: dict[Path, list[int]] = {}
    if part is not None:
        file, share, seed = part
        known = _examples(file)
        rng = random.Random(f"calibrate {seed}")  # noqa: S311 (a choice, not a secret)
        indices[file] = sorted(rng.sample(range(known), max(1, round(known * share)) if known else 0))
    indices.update({file: list(range(_examples(file))) for file in whole})
    found = InputSet(name, indices, samples, first)
    if not len(found):
        raise InputError(f"{' and '.join(map(str, indices))} holds no examples; run the stage prepare again (dvc repro)")
    return found


def _examples(file: Path) -> int:
    return sum(1 for _ in stream_jsonl(file))
