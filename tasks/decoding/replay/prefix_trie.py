"""What two models predict on one source, after each prefix that some method has come to: a tree of prefixes.

Only the numbers that rules read are kept (`readings.Reading`), never a row of the vocabulary.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tasks.decoding.token_statistics import CachedStatistics, TokenScore
from tasks.files import atomic_write

SMALL_MODEL, LARGE_MODEL = 0, 1
"""The sides of a page: whose reading it is."""

LookUp = Callable[["TrieNode", int, int], TokenScore]
"""(place, side, token) to the chance that this model gives the token there."""


class TrieNode:
    """One prefix, and what the two models predict after it."""

    __slots__ = ("after", "before", "drafts", "statistics", "token")

    def __init__(self, before: TrieNode | None, token: int) -> None:
        """Takes the prefix that is one token shorter, and the token."""
        self.before = before
        self.token = token
        self.after: dict[int, TrieNode] = {}
        self.statistics: list[CachedStatistics | None] = [None, None]
        self.drafts: dict[Any, Any] = {}
        """What was drafted here before, for whoever plays by the same draft rule; it is not kept on disk."""

    def step(self, token: int) -> TrieNode:
        """The prefix that is longer by `token`."""
        found = self.after.get(token)
        if found is None:
            found = self.after[token] = TrieNode(self, token)
        return found

    def tokens(self) -> list[int]:
        """What stands behind the start."""
        tokens: list[int] = []
        place = self
        while place.before is not None:
            tokens.append(place.token)
            place = place.before
        return tokens[::-1]


class PrefixTrie:
    """All that was noted on one source."""

    def __init__(self, source: list[int]) -> None:
        """Takes the ids of the source; nothing is noted yet."""
        self.source = source
        self.root = TrieNode(None, -1)

    def places(self) -> Iterator[tuple[TrieNode, int]]:
        """Every prefix, the shorter before the longer, with the number of the one before it in this order; -1 at the root."""
        queue = [(self.root, -1)]
        for number, (place, before) in enumerate(queue):
            yield place, before
            queue += [(after, number) for after in place.after.values()]

    def save(self, path: Path) -> None:
        """Writes the page in one step."""
        lines = [[before, place.token, *map(_written, place.statistics)] for place, before in self.places()]
        atomic_write(path, json.dumps({"source": self.source, "places": lines}))


def load_trie(path: Path, source: list[int], ask: LookUp) -> PrefixTrie:
    """The page at `path` if it is there and of this source; else an empty one."""
    trie = PrefixTrie(source)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return trie
    if found["source"] != source:
        return trie
    places: list[TrieNode] = []
    for before, token, *statistics in found["places"]:
        place = trie.root if before < 0 else places[before].step(token)
        place.statistics = [_read(note, functools.partial(ask, place, side)) for side, note in enumerate(statistics)]
        places.append(place)
    return trie


def _written(note: CachedStatistics | None) -> Any:
    return None if note is None else [note.best, note.top, note.entropy, list(note.chances.items())]


def _read(note: Any, ask: Callable[[int], TokenScore]) -> CachedStatistics | None:
    if note is None:
        return None
    best, top, entropy, chances = note
    return CachedStatistics(best, top, entropy, {token: (score, nats) for token, (score, nats) in chances}, ask)
