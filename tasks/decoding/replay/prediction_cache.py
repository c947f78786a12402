"""The predictions of a pair of models, kept source by source; whatever is not known yet is read by running the model."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tasks.decoding.decoder import BrokenLogitsError, Decoder, GreedyContinuation, StopRule
from tasks.decoding.distributions import entropy
from tasks.decoding.method import Pair
from tasks.decoding.replay.known_predictions import KnownPredictions
from tasks.decoding.replay.prefix_trie import LARGE_MODEL, MOST_AHEAD, SMALL_MODEL, PrefixTrie, TrieNode, load_trie
from tasks.decoding.token_statistics import CachedStatistics, TokenScore

_MOST_KEPT = 1 << 26
"""Logits of the open source that are kept, at most; the rest is computed again where it is asked for."""


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
    best: list[int]
    """The likeliest token at each position."""


class PredictionCache:
    """Statistics of both models on one source at a time: a `statistics_reader.StatisticsReader`."""

    def __init__(self, pair: Pair, folder: Path | None = None) -> None:
        """Take the models, and the folder where tries are kept between runs, if any."""
        self._models = (_Model(pair.small), _Model(pair.large))
        self._shares_encoder = pair.shares_encoder
        self._folder = folder
        self.trie = PrefixTrie([])
        native = pair.large.capabilities.native_loop
        self.known = None if native is None else KnownPredictions(native.functions)
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
        if self.known is not None:
            self.known.open_source(self.trie.root)
            for node, _ in self.trie.nodes():
                self.known.record(node)

    def save(self, name: str) -> None:
        """Save the trie of the open source under `name`."""
        path = self._path(name)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.trie.save(path)

    def _path(self, name: str) -> Path | None:
        return self._folder / f"{name}.json" if self._folder is not None and name else None

    def start(self, model: int) -> list[int]:
        return self._started(model).start

    def read(self, model: int, nodes: Sequence[TrieNode]) -> list[CachedStatistics]:
        known = [statistics for node in nodes if (statistics := node.statistics[model]) is not None]
        if len(known) == len(nodes):
            return known
        missing = nodes[next(index for index, node in enumerate(nodes) if node.statistics[model] is None) :]
        longer = [*missing, *_likely_next(missing[-1], model)]
        try:
            self._record(model, longer, self._run(model, longer[-1], len(longer)))
        except BrokenLogitsError:  # perhaps only beyond what was asked for
            self._record(model, missing, self._run(model, missing[-1], len(missing)))
        return [statistics for node in nodes if (statistics := node.statistics[model]) is not None]

    @torch.inference_mode()
    def read_ahead(self, model: int, node: TrieNode, budget: int) -> CachedStatistics:
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
        kept = min(_common_prefix(started.cached, tokens), len(tokens) - 1)
        started.decoder.rewind([kept])
        started.cached = tokens[:kept]
        found = continuation(tokens[kept:], budget, StopRule())
        started.cached = tokens + found.tokens[:-1]
        nodes = [node]
        for token in found.tokens[:-1]:
            nodes.append(nodes[-1].step(token))
        self._record(model, nodes, _Predictions(found.logits[0].float(), found.tokens))

    def _record(self, model: int, nodes: Sequence[TrieNode], found: _Predictions) -> None:
        """Record what a model predicts at these nodes.

        Scores are kept of the tokens that rules ask about: the likeliest, the other model's likeliest where it is known, and
        the token by which the path goes on.
        """
        logits, best = found
        asked = [(_next_token(nodes, index), _best_of_other(node, model)) for index, node in enumerate(nodes)]
        tokens = [
            (top, top if following < 0 else following, top if other < 0 else other)
            for top, (following, other) in zip(best, asked, strict=True)
        ]
        index = torch.tensor(tokens, device=logits.device)
        scores, log_scores = torch.softmax(logits, -1), torch.log_softmax(logits, -1)
        columns = scores.gather(-1, index), -log_scores.gather(-1, index), entropy(scores, log_scores)
        for node, ids, chosen, surprisals, nats, row in zip(
            nodes, tokens, *(one.tolist() for one in columns), logits, strict=True
        ):
            known = dict(zip(ids, zip(chosen, surprisals, strict=True), strict=True))
            look_up = functools.partial(self._look_up, node, model)
            node.statistics[model] = CachedStatistics(ids[0], chosen[0], nats, known, look_up)
            if len(self._logits) * len(row) < _MOST_KEPT:
                self._logits[node, model] = row
            if self.known is not None:
                self._write_down(node, self.known)

    def _write_down(self, node: TrieNode, known: KnownPredictions) -> None:
        """Write a node down for the kernel, with the large model's score of the small one's token wherever it takes no run."""
        small, large = node.statistics
        if small is not None and large is not None and (node, LARGE_MODEL) in self._logits:
            large.of(small.best)
        known.record(node)

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
        kept = min(_common_prefix(started.cached, tokens), len(tokens) - positions)
        started.decoder.rewind([kept])
        started.cached = tokens[:kept]  # all that is sure to be there if the run fails
        step = started.decoder.forward([tokens[kept:]])
        started.cached = tokens
        logits, best = step.last([positions])[0].float(), step.last_best([positions])
        return _Predictions(logits, logits.argmax(-1).tolist() if best is None else best[0])

    def _started(self, model: int) -> _Model:
        """Return the model, started on the open source."""
        chosen = self._models[model]
        if chosen.trie is not self.trie:
            encoder = self._models[LARGE_MODEL] if self._shares_encoder else chosen
            [chosen.start] = chosen.decoder.start(encoder.decoder.encode([self.trie.source]))
            chosen.trie, chosen.cached = self.trie, []
        return chosen


def _likely_next(node: TrieNode, model: int) -> Iterator[TrieNode]:
    """Give the nodes that follow by the other model's likeliest tokens, as far as they are there and not read yet.

    A drafter drafts along them next; a run over more positions costs little more, and another run later costs as much again.
    """
    for _ in range(MOST_AHEAD):
        token = _best_of_other(node, model)
        following = node.children.get(token)
        if following is None or following.statistics[model] is not None:
            return
        yield following
        node = following


def _next_token(nodes: Sequence[TrieNode], index: int) -> int:
    """Return the token by which the path goes on, which a rule will ask about; -1 at its end."""
    return nodes[index + 1].token if index + 1 < len(nodes) else -1


def _best_of_other(node: TrieNode, model: int) -> int:
    """Return the other model's likeliest token, which rules compare; -1 where it is not known."""
    other = node.statistics[SMALL_MODEL + LARGE_MODEL - model]
    return -1 if other is None else other.best


def _common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    shorter = min(len(one), len(other))
    return next((index for index in range(shorter) if one[index] != other[index]), shorter)
