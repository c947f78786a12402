"""What is known of one source, laid out for the compiled kernel: a node for each prefix, as in the trie."""

from __future__ import annotations

import ctypes
import math

from tasks.decoding.generation import Generation
from tasks.decoding.replay.prefix_trie import TrieNode
from tasks.decoding.runtimes.layout import NativeTurn, ReplayNode

_FIRST_NODES = 256
_UNKNOWN = math.nan, math.nan


class KnownPredictions:
    """The nodes of the open source, and the buffers of the kernel's calls."""

    def __init__(self, functions: ctypes.CDLL) -> None:
        """Take the compiled kernel."""
        self.functions = functions
        self.nodes = (ReplayNode * _FIRST_NODES)()
        self.texts: dict[tuple[bool, bytes, tuple[int, ...]], Generation] = {}
        """By whether turns add tokens, the turns, and the tokens: settings often give the same."""
        self.tokens, self.turns = (ctypes.c_int32 * 0)(), (NativeTurn * 0)()
        self.best = (ctypes.c_int32 * 0)()
        self.count = ctypes.c_int64()
        self._used = 0

    def open_source(self, root: TrieNode) -> None:
        """Forget all nodes: another source begins."""
        self.texts.clear()
        self._used = 0
        self._add(root, None)

    def record(self, node: TrieNode) -> None:
        """Write down what is known at a node of the open source."""
        number = self._number(node)
        entry, (small, large) = self.nodes[number], node.statistics
        if small is not None:
            entry.small.best, entry.small.top, entry.small.entropy = small.best, small.top, small.entropy
        if large is not None:
            entry.large.best, entry.large.top, entry.large.entropy = large.best, large.top, large.entropy
            if small is not None:
                entry.score, entry.surprisal = large.token_scores.get(small.best, _UNKNOWN)

    def fit(self, limit: int, window: int) -> None:
        """Make room for texts of `limit` tokens and drafts of `window`."""
        if limit > len(self.tokens):
            self.tokens, self.turns = (ctypes.c_int32 * limit)(), (NativeTurn * limit)()
        if window > len(self.best):
            self.best = (ctypes.c_int32 * window)()

    def _number(self, node: TrieNode) -> int:
        """Return the node's place, adding it and the prefixes before it where they are new."""
        if node.number < 0 and node.parent is not None:
            self._add(node, self._number(node.parent))
        return node.number

    def _add(self, node: TrieNode, parent: int | None) -> None:
        """Append a node, which becomes the first of its siblings."""
        if self._used == len(self.nodes):
            longer = (ReplayNode * (2 * self._used))()
            ctypes.memmove(longer, self.nodes, ctypes.sizeof(self.nodes))
            self.nodes = longer
        node.number, entry = self._used, self.nodes[self._used]
        entry.token, entry.child, entry.sibling, entry.score = node.token, 0, 0, math.nan
        entry.small.best = entry.large.best = -1
        if parent is not None:
            entry.sibling, self.nodes[parent].child = self.nodes[parent].child, self._used
        self._used += 1
