"""The predictions of a pair of models on one source at a time, after every prefix that some method has reached.

Greedy rules read a few numbers of a position (`distributions.CachedStatistics`), and only these are kept, never a row of the
vocabulary: in a trie of prefixes (`PrefixTrie`).
Whatever is not known yet is read by running the model (`PredictionCache`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tasks.decoding.decoder import BrokenLogitsError, Decoder, GreedyContinuation
from tasks.decoding.distributions import CachedStatistics, TokenScore, TokenStatistics, entropy
from tasks.decoding.draft_rule import DraftRule
from tasks.decoding.generation import Generation
from tasks.decoding.method import Pair
from tasks.files import atomic_write, sealed, unsealed, warn_of_damage
from tasks.models.prompting import common_prefix

SMALL_MODEL, LARGE_MODEL = 0, 1
"""Which model's statistics are meant, in a node and in calls."""

MOST_AHEAD = 8
"""Positions that a run reads beyond those that were asked for, at most."""

_FORMAT = 3
"""Of files: what they hold of a prefix. Predictions in another format are computed anew."""

_MOST_KEPT = 1 << 26
"""Logits of the open source that are kept, at most; the rest is computed again where it is asked for."""

LookUp = Callable[["TrieNode", int, int], TokenScore]
"""(node, model, token) to the score that this model gives the token after the node's prefix."""


DraftKey = tuple[int, float, float, float, int]
"""What a model's draft depends on: target model, fallback threshold, bounds of cumulative confidence and of entropy, budget."""


class TrieNode:
    """One prefix, and the statistics of what the two models predict after it."""

    __slots__ = ("children", "drafts", "parent", "statistics", "token")

    def __init__(self, parent: TrieNode | None, token: int) -> None:
        """Take the prefix that is one token shorter, and the token."""
        self.parent = parent
        self.token = token
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

    def path(self, tokens: Iterable[int]) -> list[TrieNode]:
        """Return this prefix, and those that are longer by the first, by the first two, … of the tokens."""
        return list(itertools.accumulate(tokens, TrieNode.step, initial=self))

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
        atomic_write(path, sealed(json.dumps({"source": self.source, "format": _FORMAT, "nodes": lines})))


def load_trie(path: Path, source: list[int], look_up: LookUp) -> PrefixTrie:
    """Return the trie at `path` if it is there, as it was written, of this source and in this format, else an empty one."""
    trie = PrefixTrie(source)
    try:
        found = json.loads(unsealed(path.read_text(encoding="utf-8")))
        if found["source"] != source or found.get("format") != _FORMAT:
            return trie
        nodes: list[TrieNode] = []
        for parent, token, *statistics in found["nodes"]:
            node = trie.root if parent < 0 else nodes[parent].step(token)
            node.statistics = [_from_json(one, functools.partial(look_up, node, model)) for model, one in enumerate(statistics)]
            nodes.append(node)
    except FileNotFoundError:
        return trie
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        warn_of_damage(path, error)
        return PrefixTrie(source)
    return trie


JsonStatistics = tuple[int, float, float, list[tuple[int, TokenScore]]] | None
"""Argmax, its score, entropy and the known scores, as a file holds them."""


def _to_json(statistics: CachedStatistics | None) -> JsonStatistics:
    if statistics is None:
        return None
    return statistics.argmax, statistics.top, statistics.entropy, list(statistics.token_scores.items())


def _from_json(statistics: JsonStatistics, look_up: Callable[[int], TokenScore]) -> CachedStatistics | None:
    if statistics is None:
        return None
    argmax, top, nats, token_scores = statistics
    return CachedStatistics(argmax, top, nats, {token: (score, nats) for token, (score, nats) in token_scores}, look_up)


class _Model:
    """A decoder, and what its key-value cache holds: tokens of which source."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.trie: PrefixTrie | None = None
        self.start: list[int] = []
        self.cached: list[int] = []


class _Predictions(NamedTuple):
    """What a model predicts at consecutive positions of a text."""

    logits: Tensor
    """float32 (positions, vocabulary)."""
    argmax: list[int]
    """The argmax at each position."""


class PredictionCache:
    """Statistics of both models on one source at a time, running a model for what is not known."""

    def __init__(self, pair: Pair, folder: Path | None = None) -> None:
        """Take the models, and the folder where tries are kept between runs, if any."""
        self._models = (_Model(pair.small), _Model(pair.large))
        self._shares_encoder = pair.shares_encoder
        self._folder = folder
        self.trie = PrefixTrie([])
        self._logits: dict[tuple[TrieNode, int], Tensor] = {}
        """What the models predicted at the nodes of the open source since it was opened, by node and model."""
        self.runs = 0
        """Forward runs so far, of either model."""

    def open_source(self, source: list[int], name: str = "") -> None:
        """Turn to the trie of `source`; with a name, continue the one saved under it."""
        path = self._path(name)
        self._logits.clear()
        self.trie.forget()
        self.trie = PrefixTrie(source) if path is None else load_trie(path, source, self._look_up)

    def save(self, name: str) -> None:
        """Save the trie of the open source under `name`."""
        path = self._path(name)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.trie.save(path)

    def _path(self, name: str) -> Path | None:
        return self._folder / f"{name}.json" if self._folder is not None and name else None

    def start(self, model: int) -> list[int]:
        """Return the tokens that each of a model's texts on the open source starts with."""
        return self._started(model).start

    def read(self, model: int, nodes: Sequence[TrieNode]) -> list[CachedStatistics]:
        """Return a model's statistics at `nodes`, each of which is one token longer than the one before it."""
        known = [statistics for node in nodes if (statistics := node.statistics[model]) is not None]
        if len(known) == len(nodes):
            return known
        # Everything from the first unknown node on, and a little further along the likely path.
        missing = nodes[next(index for index, node in enumerate(nodes) if node.statistics[model] is None) :]
        longer = [*missing, *_likely_next(missing[-1], model)]
        try:
            self._record(model, longer, self._run(model, longer[-1], len(longer)))
        except BrokenLogitsError:  # perhaps only beyond what was asked for
            self._record(model, missing, self._run(model, missing[-1], len(missing)))
        return [statistics for node in nodes if (statistics := node.statistics[model]) is not None]

    @torch.inference_mode()
    def read_ahead(self, model: int, node: TrieNode, budget: int) -> CachedStatistics:
        """Return a model's statistics at `node`; up to `budget` nodes of its greedy continuation may be read as well."""
        continuation = self._started(model).decoder.capabilities.continue_greedily
        if budget > 1 and continuation is not None:
            with contextlib.suppress(BrokenLogitsError):  # perhaps only beyond this node
                self._continue(model, node, budget, continuation)
        [statistics] = self.read(model, [node])
        return statistics

    def _continue(self, model: int, node: TrieNode, budget: int, continuation: GreedyContinuation) -> None:
        self.runs += 1
        started = self._started(model)
        tokens = started.start + node.tokens()
        # Wind the cache back to what both texts share; the last token has to be fed anyway.
        kept = min(common_prefix(started.cached, tokens), len(tokens) - 1)
        started.decoder.rewind([kept])
        started.cached = tokens[:kept]
        found = continuation(tokens[kept:], budget, DraftRule())
        started.cached = tokens + found.tokens[:-1]
        # The last token was predicted and not fed: no node follows it.
        self._record(model, node.path(found.tokens[:-1]), _Predictions(found.logits[0].float(), found.tokens))

    def _record(self, model: int, nodes: Sequence[TrieNode], found: _Predictions) -> None:
        """Record what a model predicts at these nodes.

        Scores are kept of the tokens that rules ask about: the argmax, the other model's argmax where it is known, and
        the token by which the path goes on.
        """
        logits, argmax = found
        # The tokens that a rule may ask about at each position.
        following = [*(node.token for node in nodes[1:]), -1]
        others = [_argmax_of_other(node, model) for node in nodes]
        tokens = [
            (top, top if after < 0 else after, top if other < 0 else other)
            for top, after, other in zip(argmax, following, others, strict=True)
        ]
        # (positions, 3): argmax, next on the path, the other model's argmax.
        index = torch.tensor(tokens, device=logits.device)
        scores, log_scores = torch.softmax(logits, -1), torch.log_softmax(logits, -1)  # (positions, vocabulary)
        columns = scores.gather(-1, index), -log_scores.gather(-1, index), entropy(scores, log_scores)
        for node, ids, chosen, surprisals, nats, row in zip(
            nodes, tokens, *(one.tolist() for one in columns), logits, strict=True
        ):
            known = dict(zip(ids, zip(chosen, surprisals, strict=True), strict=True))
            look_up = functools.partial(self._look_up, node, model)
            node.statistics[model] = CachedStatistics(ids[0], chosen[0], nats, known, look_up)
            if len(self._logits) * len(row) < _MOST_KEPT:
                self._logits[node, model] = row

    def _look_up(self, node: TrieNode, model: int, token: int) -> TokenScore:
        logits = self._logits.get((node, model))
        if logits is None:  # the trie was read from a file, or had too many
            [logits] = self._run(model, node, 1).logits
        return float(torch.softmax(logits, -1)[token]), -float(torch.log_softmax(logits, -1)[token])

    @torch.inference_mode()
    def _run(self, model: int, last: TrieNode, positions: int) -> _Predictions:
        """Return what a model predicts after `last` and the prefixes before it."""
        self.runs += 1
        started = self._started(model)
        tokens = started.start + last.tokens()
        # The positions that are asked for have to be fed, even where the cache holds them.
        kept = min(common_prefix(started.cached, tokens), len(tokens) - positions)
        started.decoder.rewind([kept])
        started.cached = tokens[:kept]  # all that is sure to be there if the run fails
        step = started.decoder.forward([tokens[kept:]])
        started.cached = tokens
        logits, argmax = step.last([positions])[0].float(), step.last_argmax([positions])
        return _Predictions(logits, logits.argmax(-1).tolist() if argmax is None else argmax[0])

    def _started(self, model: int) -> _Model:
        """Return the model, started on the open source."""
        chosen = self._models[model]
        if chosen.trie is not self.trie:
            # A shared encoder is the large model's.
            encoder = self._models[LARGE_MODEL] if self._shares_encoder else chosen
            [chosen.start] = chosen.decoder.start(encoder.decoder.encode([self.trie.source]))
            chosen.trie, chosen.cached = self.trie, []
        return chosen


def _likely_next(node: TrieNode, model: int) -> Iterator[TrieNode]:
    """Give the nodes that follow by the other model's argmax tokens, as far as they are there and not read yet.

    A drafter drafts along them next; a run over more positions costs little more, and another run later costs as much again.
    """
    for _ in range(MOST_AHEAD):
        token = _argmax_of_other(node, model)
        following = node.children.get(token)
        if following is None or following.statistics[model] is not None:
            return
        yield following
        node = following


def _argmax_of_other(node: TrieNode, model: int) -> int:
    """Return the other model's argmax, which rules compare; -1 where it is not known."""
    other = node.statistics[SMALL_MODEL + LARGE_MODEL - model]
    return -1 if other is None else other.argmax


@dataclass(frozen=True)
class CachedModel:
    """One model's side of a prediction cache."""

    cache: PredictionCache
    model: int
    """`SMALL_MODEL` or `LARGE_MODEL`."""
    end_tokens: frozenset[int]
    """Tokens that end a text for this model."""
