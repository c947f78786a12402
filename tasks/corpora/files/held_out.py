"""Holds out validation and test examples of a corpus that has no files for them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from tasks.corpora.example import Example

_LARGEST_SHARE = 10
"""A held-out split takes at most one source of so many."""


def hold_out(examples: Sequence[Example], names: Sequence[str], most: int) -> dict[str, list[Example]]:
    """Split examples into `train` and further splits by a hash of their sources, which is the same everywhere.

    All examples of a source go to one split. Sources that differ in case or white space alone count as one.

    Args:
        examples: All of them.
        names: Of the splits to hold out.
        most: Sources of each such split, at most; a tenth of all sources is another limit.

    Returns:
        The splits, `train` first, each in the order of `examples`; a split is empty where there are too few sources.
    """
    keys = [_key(example.source) for example in examples]
    ordered = sorted({*keys})
    size = min(most, len(ordered) // _LARGEST_SHARE)
    split_of = {key: name for index, name in enumerate(names) for key in ordered[index * size : (index + 1) * size]}
    found: dict[str, list[Example]] = {name: [] for name in ("train", *names)}
    for key, example in zip(keys, examples, strict=True):
        found[split_of.get(key, "train")].append(example)
    return found


def _key(source: str) -> bytes:
    return hashlib.sha256(" ".join(source.split()).casefold().encode()).digest()
