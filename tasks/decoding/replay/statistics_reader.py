"""The interface between cached predictions and whoever decodes from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tasks.decoding.replay.known_predictions import KnownPredictions
from tasks.decoding.replay.prefix_trie import PrefixTrie, TrieNode
from tasks.decoding.token_statistics import CachedStatistics


class StatisticsReader(Protocol):
    """Gives the statistics of both models on one source at a time, running a model for what is not known."""

    trie: PrefixTrie
    known: KnownPredictions | None
    """What is known of the open source, as the compiled kernel reads it; none where there is no kernel."""

    def open_source(self, source: list[int], name: str = "") -> None:
        """Turn to the trie of `source`."""
        ...

    def start(self, model: int) -> list[int]:
        """Return the tokens that each of a model's texts on the open source starts with."""
        ...

    def read(self, model: int, nodes: Sequence[TrieNode]) -> list[CachedStatistics]:
        """Return a model's statistics at `nodes`, each of which is one token longer than the one before it."""
        ...

    def read_ahead(self, model: int, node: TrieNode, budget: int) -> CachedStatistics:
        """Return a model's statistics at `node`; up to `budget` nodes of its greedy continuation may be read as well."""
        ...


@dataclass(frozen=True)
class ReplaySource:
    """One model's side of cached predictions."""

    reader: StatisticsReader
    model: int
    """`SMALL_MODEL` or `LARGE_MODEL`."""
    end_tokens: frozenset[int]
    """Tokens that end a text for this model."""
