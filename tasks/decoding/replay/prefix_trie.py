"""The predictions of two models on one source, after every prefix that some method has reached: a trie of prefixes.

Only the numbers that rules read are kept (`token_statistics`), never a row of the vocabulary.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.decoding.generation import Generation
from tasks.decoding.token_statistics import CachedStatistics, TokenScore, TokenStatistics
from tasks.files import atomic_write

SMALL_MODEL, LARGE_MODEL = 0, 1
"""Which model's statistics are meant, in a node and in calls."""

MOST_AHEAD = 8
"""Positions that a run reads beyond those that were asked for, at most."""

_FORMAT = 3
"""Of files: what they hold of a prefix. Predictions in another format are computed anew."""

LookUp = Callable[["TrieNode", int, int], TokenScore]
"""(node, model, token) to the score that this model gives the token after the node's prefix."""


DraftKey = tuple[int, float, float, float, bool, int]
"""What a model's draft depends on: target model, fallback threshold, bounds of cumulative confidence and of entropy, whether
the latter stops before its token, budget."""


class TrieNode:
    """One prefix, and the statistics of what the two models predict after it."""

    __slots__ = ("children", "drafts", "number", "parent", "statistics", "token")

    def __init__(self, parent: TrieNode | None, token: int) -> None:
        """Take the prefix that is one token shorter, and the token."""
        self.parent = parent
        self.token = token
        self.number = -1
        """Its place among the nodes of the native replay; -1: it has none."""
        self.children: dict[int, TrieNode] = {}
        self.statistics: list[CachedStatistics | None] = [None, None]
        self.drafts: dict[DraftKey, CachedDraft] = {}
        """Drafts from here, for replays with the same draft rule; not written to disk."""

    def step(self, token: int) -> TrieNode:
        """Return the prefix that is longer by `token`."""
        found = self.children.get(token)
        if found is None:
            found = self.children[token] = TrieNode(self, token)
        return found

    def tokens(self) -> list[int]:
        """Return the prefix, without the tokens that every text starts with."""
        tokens: list[int] = []
        node = self
        while node.parent is not None:
            tokens.append(node.token)
            node = node.parent
        return tokens[::-1]


@dataclass(slots=True)
class CachedDraft:
    """A draft, and the statistics along it."""

    tokens: list[int]
    q: Sequence[TokenStatistics]
    """The drafter's statistics at the position of each token."""
    fallback: bool
    steps: int
    """Runs of the drafter's model."""
    nodes: list[TrieNode]
    """Before the draft, and after each of its tokens."""
    p: list[CachedStatistics] = field(default_factory=list)
    """The target's statistics at the first of these nodes, as far as they were needed."""


class PrefixTrie:
    """All statistics of one source."""

    def __init__(self, source: list[int]) -> None:
        """Take the ids of the source; nothing is known yet."""
        self.source = source
        self.root = TrieNode(None, -1)
        self.own_texts: dict[tuple[int, bool, int], Generation] = {}
        """Texts of one model alone by model, whether they are scored, and limit; several methods ask for them."""

    def nodes(self) -> Iterator[tuple[TrieNode, int]]:
        """Give every prefix, shorter ones first, with the number of its parent in this order; -1 at the root."""
        queue = [(self.root, -1)]
        for number, (node, parent) in enumerate(queue):
            yield node, parent
            queue += [(child, number) for child in node.children.values()]

    def forget(self) -> None:
        """Take the nodes apart, which refer to each other: their memory is then free without the garbage collector."""
        for node in [node for node, _ in self.nodes()]:
            node.parent = None
            node.children.clear()
            node.drafts.clear()
            node.statistics = [None, None]

    def save(self, path: Path) -> None:
        """Write the trie in one step."""
        lines = [[parent, node.token, *map(_to_json, node.statistics)] for node, parent in self.nodes()]
        atomic_write(path, json.dumps({"source": self.source, "format": _FORMAT, "nodes": lines}))


def load_trie(path: Path, source: list[int], look_up: LookUp) -> PrefixTrie:
    """Return the trie at `path` if it is there, of this source and in this format, else an empty one."""
    trie = PrefixTrie(source)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return trie
    if found["source"] != source or found.get("format") != _FORMAT:
        return trie
    nodes: list[TrieNode] = []
    for parent, token, *statistics in found["nodes"]:
        node = trie.root if parent < 0 else nodes[parent].step(token)
        node.statistics = [_from_json(one, functools.partial(look_up, node, model)) for model, one in enumerate(statistics)]
        nodes.append(node)
    return trie


JsonStatistics = tuple[int, float, float, list[tuple[int, TokenScore]]] | None
"""Likeliest token, its score, entropy and the known scores, as a file holds them."""


def _to_json(statistics: CachedStatistics | None) -> JsonStatistics:
    if statistics is None:
        return None
    return statistics.best, statistics.top, statistics.entropy, list(statistics.token_scores.items())


def _from_json(statistics: JsonStatistics, look_up: Callable[[int], TokenScore]) -> CachedStatistics | None:
    if statistics is None:
        return None
    best, top, entropy, token_scores = statistics
    return CachedStatistics(best, top, entropy, {token: (score, nats) for token, (score, nats) in token_scores}, look_up)
